package wsconn

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/memnet"
	"holdfast/internal/wire"
)

// joined runs Join in a bubble between a relay's handler and our end of a pipe.
type joined struct {
	local  *memnet.Conn // what the service or the person holds
	result chan error
	start  time.Time
}

func join1(t *testing.T, ctx context.Context, relay *fakeRelay) *joined {
	t.Helper()
	s := relay.stream(t, StreamOptions{})
	a, b := memnet.Pipe()
	t.Cleanup(func() { a.Close() })
	j := &joined{local: a, result: make(chan error, 1), start: time.Now()}
	go func() { j.result <- Join(ctx, s, b) }()
	return j
}

// end waits for Join's return and checks when that was.
func (j *joined) end(t *testing.T, want time.Duration) error {
	t.Helper()
	err := <-j.result
	within(t, "Join", time.Since(j.start), want)
	return err
}

func TestJoinCarriesBothWays(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := serveWS(t, echo)
		j := join1(t, t.Context(), relay)
		data := make([]byte, 1<<20)
		rand.Read(data)
		go func() {
			j.local.Write(data)
		}()
		got := make([]byte, len(data))
		if _, err := io.ReadFull(j.local, got); err != nil || !bytes.Equal(got, data) {
			t.Fatalf("what came back differs: %v", err)
		}
		j.local.Close()
		if err := <-j.result; err != nil && !errors.Is(err, ErrLocal) {
			t.Errorf("Join: %v", err)
		}
	})
}

// TestSourceThatEndedLeavesTheOtherDirectionOpen: `echo command | ssh host` must
// see the answer, however long it goes on.
func TestSourceThatEndedLeavesTheOtherDirectionOpen(t *testing.T) {
	bubble(t, func(t *testing.T) {
		code := make(chan websocket.StatusCode, 1)
		relay := serveWS(t, func(c *websocket.Conn, _ *http.Request) {
			go func() {
				for range 10 {
					time.Sleep(4 * time.Second)
					c.Write(context.Background(), websocket.MessageBinary, []byte("x"))
				}
			}()
			for {
				if _, _, err := c.Read(context.Background()); err != nil {
					code <- websocket.CloseStatus(err)
					return
				}
			}
		})
		j := join1(t, t.Context(), relay)
		j.local.CloseWrite()
		got, _ := io.ReadAll(j.local)
		if err := j.end(t, 40*time.Second+wire.QuietTimeout); err != nil || len(got) != 10 {
			t.Errorf("Join: %v, %d bytes", err, len(got))
		}
		if c := <-code; c != 1000 {
			t.Errorf("the peer saw %v", c)
		}
	})
}

func TestSourceThatEndedOnAQuietStream(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := serveWS(t, echo)
		j := join1(t, t.Context(), relay)
		j.local.CloseWrite()
		if err := j.end(t, wire.QuietTimeout); err != nil {
			t.Errorf("Join: %v", err)
		}
	})
}

// TestSlowLocalEndIsNotQuiet: bytes wait for a reader who takes his time.
func TestSlowLocalEndIsNotQuiet(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const size = 300_000
		relay := serveWS(t, func(c *websocket.Conn, _ *http.Request) {
			c.Write(context.Background(), websocket.MessageBinary, make([]byte, size))
			c.Read(context.Background())
		})
		j := join1(t, t.Context(), relay)
		j.local.CloseWrite()
		time.Sleep(time.Minute)
		got, err := io.ReadAll(j.local)
		if len(got) != size || err != nil {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		if err := <-j.result; err != nil {
			t.Errorf("Join: %v", err)
		}
	})
}

// TestPeerThatClosesIsDrained: the local end gets all that was sent, and then
// the end of the input, before anything is reset.
func TestPeerThatClosesIsDrained(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := serveWS(t, func(c *websocket.Conn, _ *http.Request) {
			c.Write(context.Background(), websocket.MessageBinary, []byte("last words"))
			c.Close(websocket.StatusNormalClosure, "")
		})
		j := join1(t, t.Context(), relay)
		talked := make(chan struct{})
		go func() {
			defer close(talked)
			for { // a service that talks on
				if _, err := j.local.Write(make([]byte, 1000)); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		}()
		time.Sleep(2 * time.Second)
		got, err := io.ReadAll(j.local)
		if string(got) != "last words" || err != nil {
			t.Errorf("read %q, %v", got, err)
		}
		if err := j.end(t, wire.QuietTimeout); err != nil {
			t.Errorf("Join: %v", err)
		}
		<-talked
	})
}

func TestServiceThatEndsAfterThePeerEndsJoinAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := serveWS(t, func(c *websocket.Conn, _ *http.Request) { c.Close(websocket.StatusNormalClosure, "") })
		j := join1(t, t.Context(), relay)
		io.ReadAll(j.local)
		time.Sleep(time.Second)
		j.local.Close()
		if err := j.end(t, time.Second); err != nil {
			t.Errorf("Join: %v", err)
		}
	})
}

func TestErrorOfTheStreamEndsJoinAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := serveWS(t, func(c *websocket.Conn, _ *http.Request) { c.Close(4502, "sshd is down") })
		j := join1(t, t.Context(), relay)
		err := j.end(t, 0)
		var c *CloseError
		if !errors.As(err, &c) || c.Code != wire.CloseServiceRefused || c.Reason != "sshd is down" {
			t.Errorf("Join: %v", err)
		}
	})
}

// TestLocalEndThatIsGoneEndsJoinAtOnce: a closed stdout ends the proxy.
func TestLocalEndThatIsGoneEndsJoinAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		code := make(chan websocket.StatusCode, 1)
		relay := serveWS(t, func(c *websocket.Conn, _ *http.Request) {
			time.Sleep(time.Second)
			c.Write(context.Background(), websocket.MessageBinary, []byte("x"))
			_, _, err := c.Read(context.Background())
			code <- websocket.CloseStatus(err)
		})
		s := relay.stream(t, StreamOptions{})
		in, stdin := io.Pipe()
		out, stdout := io.Pipe()
		out.Close()
		start := time.Now()
		err := Join(t.Context(), s, stdio{in, stdout})
		within(t, "Join", time.Since(start), time.Second)
		if !errors.Is(err, ErrLocal) {
			t.Errorf("Join: %v", err)
		}
		if c := <-code; c != 1000 {
			t.Errorf("the peer saw %v", c)
		}
		stdin.Close()
	})
}

// stdio is a local end without half-close.
type stdio struct {
	*io.PipeReader
	w *io.PipeWriter
}

func (s stdio) Write(p []byte) (int, error) { return s.w.Write(p) }
func (s stdio) Close() error {
	s.w.Close()
	return s.PipeReader.Close()
}

func TestJoinEndsWithItsContext(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := serveWS(t, echo)
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("the agent stops")
		j := join1(t, ctx, relay)
		time.AfterFunc(3*time.Second, func() { cancel(why) })
		if err := j.end(t, 3*time.Second); !errors.Is(err, why) {
			t.Errorf("Join: %v", err)
		}
	})
}

// TestClosingTheStreamEndsJoinAtOnce: a device that was revoked gets nothing
// more in, however the relay takes it.
func TestClosingTheStreamEndsJoinAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := serveRaw(t, wire.SubprotocolV1, func(c net.Conn, br *bufio.Reader) {
			for { // talks on and never answers a close
				if _, err := c.Write([]byte{0x82, 1, 'x'}); err != nil {
					return
				}
				time.Sleep(100 * time.Millisecond)
			}
		})
		s := relay.stream(t, StreamOptions{})
		a, b := memnet.Pipe()
		defer a.Close()
		result := make(chan error, 1)
		go func() { result <- Join(t.Context(), s, b) }()
		got := make(chan int, 1)
		go func() {
			all, _ := io.ReadAll(a)
			got <- len(all)
		}()
		time.Sleep(1050 * time.Millisecond)
		start := time.Now()
		go s.CloseSoon(wire.CloseUnauthorized, "device revoked")
		if n := <-got; n != 11 {
			t.Errorf("%d bytes got in", n)
		}
		within(t, "the local end", time.Since(start), 0)
		if err := <-result; !errors.Is(err, ErrClosed) {
			t.Errorf("Join: %v", err)
		}
		within(t, "Join", time.Since(start), wire.DrainTimeout)
	})
}

func TestDeadPathEndsJoin(t *testing.T) {
	bubble(t, func(t *testing.T) {
		quit := make(chan struct{})
		relay := serveRaw(t, wire.SubprotocolV1, stall(quit))
		j := join1(t, t.Context(), relay)
		if err := j.end(t, 25*time.Second); !errors.Is(err, ErrDead) {
			t.Errorf("Join: %v", err)
		}
		close(quit)
	})
}

// TestBackPressureReachesTheSender: what the local end does not read, the
// peer's writes wait for.
func TestBackPressureReachesTheSender(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var sent atomic.Int64
		relay := serveRaw(t, wire.SubprotocolV1, func(c net.Conn, br *bufio.Reader) {
			go io.Copy(io.Discard, br)
			frame := append([]byte{0x82, 126, 1000 >> 8, 1000 & 0xff}, make([]byte, 1000)...)
			for range 1000 {
				if _, err := c.Write(frame); err != nil {
					return
				}
				sent.Add(1000)
			}
		})
		j := join1(t, t.Context(), relay)
		time.Sleep(time.Hour)
		// Two in-memory buffers of 64 KiB, one chunk, and the reader's buffer.
		if n := sent.Load(); n > 200_000 {
			t.Errorf("%d bytes were taken from the peer", n)
		}
		j.local.Close()
		<-j.result
	})
}

// TestJoinLetsTheCodeOfBadTextOut: Join closes what the reader has ended
// already, and must not cut off the close frame that says why.
func TestJoinLetsTheCodeOfBadTextOut(t *testing.T) {
	for range 20 { // it was a race
		code := make(chan websocket.StatusCode, 1)
		relay := serveWS(t, func(c *websocket.Conn, _ *http.Request) {
			c.Write(context.Background(), websocket.MessageText, []byte("no base64!"))
			_, _, err := c.Read(context.Background())
			code <- websocket.CloseStatus(err)
		})
		s := relay.stream(t, StreamOptions{Side: AgentSide, Base64Compat: true})
		a, b := memnet.Pipe()
		t.Cleanup(func() { a.Close() })
		if err := Join(t.Context(), s, b); !errors.Is(err, ErrBadText) {
			t.Errorf("Join: %v", err)
		}
		if c := <-code; c != 1007 {
			t.Fatalf("the peer saw %v", c)
		}
	}
}
