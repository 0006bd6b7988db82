package local

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast/internal/state"
	"holdfast/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func serve(t *testing.T, handle Handler) state.Dir {
	t.Helper()
	dir, err := state.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s, err := Serve(dir, handle, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if dir.Has(state.ControlSocket) {
			t.Error("the socket is still there")
		}
	})
	return dir
}

func TestQuestionAndAnswer(t *testing.T) {
	at := time.Date(2026, 11, 30, 1, 2, 3, 0, time.UTC)
	dir := serve(t, func(_ context.Context, q Request) Answer {
		switch q.Op {
		case OpPair:
			return Answer{Link: "https://relay.example/#x", Expires: at}
		case OpRevoke:
			return Answer{Error: "no device " + q.Device, Hint: "look", Denied: true}
		}
		return Answer{Devices: []wire.DeviceInfo{{ID: "d-1", Name: "laptop"}}}
	})
	ctx := context.Background()
	a, err := Ask(ctx, dir, Request{Op: OpPair})
	if err != nil || a.Link != "https://relay.example/#x" || !a.Expires.Equal(at) {
		t.Errorf("pair: %+v, %v", a, err)
	}
	a, err = Ask(ctx, dir, Request{Op: OpRevoke, Device: "d-9"})
	if err != nil || a.Error != "no device d-9" || a.Hint != "look" || !a.Denied {
		t.Errorf("revoke: %+v, %v", a, err)
	}
	a, err = Ask(ctx, dir, Request{Op: OpDevices})
	if err != nil || len(a.Devices) != 1 || a.Devices[0].Name != "laptop" {
		t.Errorf("devices: %+v, %v", a, err)
	}
}

func TestNobodyRuns(t *testing.T) {
	dir, err := state.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Ask(context.Background(), dir, Request{Op: OpPair}); !errors.Is(err, state.ErrNotRunning) {
		t.Errorf("got %v", err)
	}
}

// TestGarbage sends what is no request: too long, no JSON, cut off.
func TestGarbage(t *testing.T) {
	dir := serve(t, func(context.Context, Request) Answer {
		t.Error("garbage reached the handler")
		return Answer{}
	})
	for _, text := range []string{"\n", "no json\n", `"text"` + "\n", strings.Repeat("x", maxRequestBytes+100) + "\n"} {
		conn, err := dir.Dial(context.Background(), state.ControlSocket)
		if err != nil {
			t.Fatal(err)
		}
		conn.SetDeadline(time.Now().Add(60 * time.Second))
		// The server may hang up before it has read an endless line.
		_, _ = io.WriteString(conn, text)
		b, _ := io.ReadAll(conn)
		conn.Close()
		if len(b) > 0 && !bytes.Contains(b, []byte(`"error"`)) {
			t.Errorf("%.20q was answered %q", text, b)
		}
	}
}

// TestCloseInterrupts ends a question that is being answered.
func TestCloseInterrupts(t *testing.T) {
	dir, err := state.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	began := make(chan struct{})
	s, err := Serve(dir, func(ctx context.Context, _ Request) Answer {
		close(began)
		<-ctx.Done()
		return Answer{Error: "interrupted"}
	}, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan error, 1)
	go func() { // ends when the server closes, waited for below
		a, err := Ask(context.Background(), dir, Request{Op: OpMachines})
		if err == nil && a.Error != "" {
			err = errors.New(a.Error) // what the handler said just in time
		}
		asked <- err
	}()
	<-began
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-asked; err == nil {
		t.Error("the question was answered although its server was closed")
	}
}

// tired is a listener whose first Accepts fail as in a process that has no
// descriptor left.
type tired struct {
	net.Listener
	left atomic.Int32
}

func (l *tired) Accept() (net.Conn, error) {
	if l.left.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Net: "unix", Err: syscall.EMFILE}
	}
	return l.Listener.Accept()
}

func TestTheSocketOutlivesAShortageOfDescriptors(t *testing.T) {
	dir, err := state.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ln, err := dir.Listen(state.ControlSocket)
	if err != nil {
		t.Fatal(err)
	}
	l := &tired{Listener: ln}
	l.left.Store(2)
	s := serveListener(l, func(context.Context, Request) Answer { return Answer{Link: "here"} }, nil, slog.New(slog.DiscardHandler))
	defer s.Close()
	if a, err := Ask(t.Context(), dir, Request{Op: OpPair}); err != nil || a.Link != "here" {
		t.Errorf("got %+v, %v", a, err)
	}
}

// Whoever comes while all places are taken waits, and is not turned away.
func TestQuestionsBeyondTheLimitWait(t *testing.T) {
	free := make(chan struct{})
	dir := serve(t, func(ctx context.Context, q Request) Answer {
		if q.Op == OpDevices {
			select {
			case <-free:
			case <-ctx.Done():
			}
		}
		return Answer{Link: "here"}
	})
	var wg sync.WaitGroup
	ask := func(op Op) {
		wg.Go(func() {
			if a, err := Ask(t.Context(), dir, Request{Op: op}); err != nil || a.Link != "here" {
				t.Errorf("%s: %+v, %v", op, a, err)
			}
		})
	}
	for range maxConns {
		ask(OpDevices)
	}
	for range maxConns {
		ask(OpPair)
	}
	time.AfterFunc(200*time.Millisecond, func() { close(free) })
	wg.Wait()
}

func TestAQuestionBecomesAStream(t *testing.T) {
	dir, err := state.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	streams := map[Op]StreamHandler{OpSessions: func(ctx context.Context, stream io.ReadWriteCloser, q Request) {
		defer close(ended)
		io.WriteString(stream, "hello "+q.Device+"\n") // at once, behind the answer
		stop := context.AfterFunc(ctx, func() { stream.Close() })
		defer stop()
		io.Copy(stream, stream)
	}}
	s, err := Serve(dir, func(context.Context, Request) Answer { return Answer{Link: "still answered"} }, streams, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	stream, a, err := Open(t.Context(), dir, Request{Op: OpSessions, Device: "me"})
	if err != nil || a.Error != "" {
		t.Fatalf("open: %+v, %v", a, err)
	}
	defer stream.Close()
	const text = "hello me\nback again"
	io.WriteString(stream, "back again")
	got := make([]byte, len(text))
	if _, err := io.ReadFull(stream, got); err != nil || string(got) != text {
		t.Fatalf("read %q, %v", got, err)
	}
	if a, err := Ask(t.Context(), dir, Request{Op: OpPair}); err != nil || a.Link == "" {
		t.Errorf("a question beside a stream: %+v, %v", a, err)
	}
	// Close ends streams too.
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	<-ended
}

func TestStreamsAreBounded(t *testing.T) {
	dir, err := state.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	streams := map[Op]StreamHandler{OpSessions: func(ctx context.Context, stream io.ReadWriteCloser, _ Request) {
		stop := context.AfterFunc(ctx, func() { stream.Close() })
		defer stop()
		io.Copy(io.Discard, stream)
	}}
	s, err := Serve(dir, func(context.Context, Request) Answer { return Answer{} }, streams, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for range maxStreams {
		stream, a, err := Open(t.Context(), dir, Request{Op: OpSessions})
		if err != nil || a.Error != "" {
			t.Fatalf("open: %+v, %v", a, err)
		}
		defer stream.Close()
	}
	if _, a, err := Open(t.Context(), dir, Request{Op: OpSessions}); err != nil || a.Error == "" {
		t.Fatalf("one too many: %+v, %v", a, err)
	}
}
