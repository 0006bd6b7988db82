package park

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"github.com/gobwas/ws"
	"go.uber.org/goleak"

	"holdfast/internal/frame"
	"holdfast/internal/memnet"
	"holdfast/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorder is a Handler that remembers, and answers "echo:" messages.
type recorder struct {
	mu      sync.Mutex
	got     []string
	closed  []End
	expired int
	changed chan struct{}
}

func newRecorder() *recorder { return &recorder{changed: make(chan struct{}, 1)} }

func (r *recorder) note(f func()) {
	r.mu.Lock()
	f()
	r.mu.Unlock()
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

func (r *recorder) Message(c *Conn, op frame.Opcode, payload []byte) {
	if rest, ok := bytes.CutPrefix(payload, []byte("echo:")); ok {
		c.Send(rest)
	}
	r.note(func() { r.got = append(r.got, op.String()+" "+string(payload)) })
}

func (r *recorder) Expired(*Conn) { r.note(func() { r.expired++ }) }

func (r *recorder) Closed(_ *Conn, e End) { r.note(func() { r.closed = append(r.closed, e) }) }

// wait returns when ok, which sees the recorder's fields, is true.
func (r *recorder) wait(t *testing.T, what string, ok func() bool) {
	t.Helper()
	limit := time.After(10 * time.Second)
	for {
		r.mu.Lock()
		done := ok()
		r.mu.Unlock()
		if done {
			return
		}
		select {
		case <-r.changed:
		case <-limit:
			r.mu.Lock()
			defer r.mu.Unlock()
			t.Fatalf("no %s: got %q, closed %+v, expired %d", what, r.got, r.closed, r.expired)
		}
	}
}

// emptied returns when the sockets are gone too, which may be after Closed.
func emptied(t *testing.T, lot *Lot) {
	t.Helper()
	for start := time.Now(); lot.Stats() != (Stats{}); time.Sleep(time.Millisecond) {
		if time.Since(start) > 10*time.Second {
			t.Fatalf("stats after the end: %+v", lot.Stats())
		}
	}
}

// A form is a way in which a Lot holds a connection.
type form struct {
	name string
	opt  Options
	pair func(t *testing.T) (server, client net.Conn)
	want string // Conn.Form
}

func tcpPair(t *testing.T) (server, client net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err = net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return server, client
}

// tlsConfig is a server's, with a certificate made for the test.
var tlsConfig = sync.OnceValue(func() *tls.Config {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		panic(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
})

// tlsPair makes a pair over a listener that wraps a plain one.
func tlsPair(wrap func(net.Listener, *tls.Config) net.Listener) func(t *testing.T) (server, client net.Conn) {
	return func(t *testing.T) (server, client net.Conn) {
		t.Helper()
		plain, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		l := wrap(plain, tlsConfig())
		defer l.Close()
		dialed := make(chan error, 1)
		go func() {
			var err error
			client, err = tls.Dial("tcp", plain.Addr().String(), &tls.Config{InsecureSkipVerify: true})
			dialed <- err
		}()
		if server, err = l.Accept(); err != nil {
			t.Fatal(err)
		}
		if err := server.(*tls.Conn).Handshake(); err != nil {
			t.Fatal(err)
		}
		if err := <-dialed; err != nil {
			t.Fatal(err)
		}
		return server, client
	}
}

func memPair(*testing.T) (server, client net.Conn) { return memnet.Pipe() }

var forms = []form{
	{"goroutine over memnet", Options{Goroutines: true}, memPair, "goroutine"},
	{"goroutine over TCP", Options{Goroutines: true}, tcpPair, "goroutine"},
	{"goroutine over TLS", Options{}, tlsPair(tls.NewListener), "goroutine"},
	{"epoll over TCP", Options{}, tcpPair, "epoll"},
	{"epoll over TLS", Options{}, tlsPair(NewListener), "epoll-tls"},
}

// bench is one parked connection and its peer.
type bench struct {
	lot    *Lot
	conn   *Conn
	rec    *recorder
	client net.Conn
}

// each runs f on every form.
func each(t *testing.T, opt Options, pending string, f func(t *testing.T, b bench)) {
	for _, form := range forms {
		t.Run(form.name, func(t *testing.T) {
			o := opt
			o.Goroutines = form.opt.Goroutines
			lot, err := New(o)
			if err != nil {
				t.Fatal(err)
			}
			defer lot.Close()
			server, client := form.pair(t)
			defer client.Close()
			client.SetDeadline(time.Now().Add(20 * time.Second))
			rec := newRecorder()
			c, err := lot.Park(server, []byte(pending), rec)
			if err != nil {
				t.Fatal(err)
			}
			if c.Form() != form.want {
				t.Fatalf("form is %q, want %q", c.Form(), form.want)
			}
			f(t, bench{lot, c, rec, client})
		})
	}
}

// masked is a client's frame.
func masked(op ws.OpCode, fin bool, payload string) []byte {
	var b bytes.Buffer
	f := ws.MaskFrame(ws.NewFrame(op, fin, []byte(payload)))
	if err := ws.WriteFrame(&b, f); err != nil {
		panic(err)
	}
	return b.Bytes()
}

func closeFrame(code int, reason string) []byte {
	return masked(ws.OpClose, true, string(ws.NewCloseFrameBody(ws.StatusCode(code), reason)))
}

func (b bench) write(t *testing.T, p []byte) {
	t.Helper()
	if _, err := b.client.Write(p); err != nil {
		t.Fatal(err)
	}
}

// read returns the next frame that the client gets.
func (b bench) read(t *testing.T) string {
	t.Helper()
	f, err := ws.ReadFrame(b.client)
	if err != nil {
		t.Fatalf("read a frame: %v", err)
	}
	if f.Header.Masked || !f.Header.Fin {
		t.Fatalf("server frame has header %+v", f.Header)
	}
	if f.Header.OpCode == ws.OpClose {
		code, reason, err := frame.ParseClose(f.Payload)
		if err != nil {
			t.Fatalf("close frame from the server: %v", err)
		}
		return fmt.Sprintf("close %d %s", code, reason)
	}
	return fmt.Sprintf("%s %s", frame.Opcode(f.Header.OpCode), f.Payload)
}

func (b bench) want(t *testing.T, frames ...string) {
	t.Helper()
	for _, want := range frames {
		if got := b.read(t); got != want {
			t.Fatalf("client got %q, want %q", got, want)
		}
	}
}

// wantEOF checks that the server hangs up.
func (b bench) wantEOF(t *testing.T) {
	t.Helper()
	if n, err := io.Copy(io.Discard, b.client); err != nil || n != 0 {
		t.Fatalf("after the close frame: %d bytes, error %v", n, err)
	}
}

func TestMessagesInEverySplit(t *testing.T) {
	stream := bytes.Join([][]byte{
		masked(ws.OpText, true, `{"op":"ping"}`),
		masked(ws.OpText, false, "frag"),
		masked(ws.OpPing, true, "in between"),
		masked(ws.OpContinuation, true, "mented"),
		masked(ws.OpBinary, true, ""),
		masked(ws.OpText, true, "echo:"+strings.Repeat("x", 300)),
	}, nil)
	want := []string{`text {"op":"ping"}`, "ping in between", "text fragmented", "binary ", "text echo:" + strings.Repeat("x", 300)}
	each(t, Options{}, "", func(t *testing.T, b bench) {
		for split := 1; split < len(stream); split += 7 {
			b.write(t, stream[:split])
			b.write(t, stream[split:])
			b.want(t, "pong in between", "text "+strings.Repeat("x", 300))
			b.rec.wait(t, "messages", func() bool { return len(b.rec.got) == len(want) })
			b.rec.mu.Lock()
			for i, w := range want {
				if b.rec.got[i] != w {
					t.Fatalf("split at %d: message %d is %q, want %q", split, i, b.rec.got[i], w)
				}
			}
			b.rec.got = nil
			b.rec.mu.Unlock()
		}
		if s := b.lot.Stats(); s.Epoll+s.Goroutine != 1 {
			t.Fatalf("stats %+v", s)
		}
	})
}

func TestPendingBytesComeFirst(t *testing.T) {
	whole := masked(ws.OpText, true, "echo:early")
	each(t, Options{}, string(whole[:len(whole)-3]), func(t *testing.T, b bench) {
		b.write(t, whole[len(whole)-3:])
		b.want(t, "text early")
	})
}

func TestPeerCloses(t *testing.T) {
	each(t, Options{}, "", func(t *testing.T, b bench) {
		b.write(t, closeFrame(4001, "done\x07"))
		b.want(t, "close 4001 ")
		b.wantEOF(t)
		b.rec.wait(t, "end", func() bool { return len(b.rec.closed) == 1 })
		if e := b.rec.closed[0]; e.Code != 4001 || e.Reason != "done" || !e.ByPeer || e.Err != nil {
			t.Fatalf("end is %+v", e)
		}
		if err := b.conn.Send([]byte("late")); !errors.Is(err, ErrClosed) {
			t.Fatalf("send after the end: %v", err)
		}
	})
}

func TestPeerHangsUp(t *testing.T) {
	each(t, Options{}, "", func(t *testing.T, b bench) {
		b.client.Close()
		b.rec.wait(t, "end", func() bool { return len(b.rec.closed) == 1 })
		if e := b.rec.closed[0]; e.Code != wire.CloseAbnormal || !e.ByPeer || e.Err == nil {
			t.Fatalf("end is %+v", e)
		}
	})
}

func TestOwnerClosesBehindItsMessages(t *testing.T) {
	each(t, Options{}, "", func(t *testing.T, b bench) {
		b.conn.Send([]byte("one"))
		b.conn.Send([]byte("two"))
		b.conn.Close(wire.CloseReplaced, "replaced by another instance")
		b.conn.Close(wire.CloseGoingAway, "too late")
		if err := b.conn.Send([]byte("three")); !errors.Is(err, ErrClosed) {
			t.Fatalf("send after close: %v", err)
		}
		b.write(t, masked(ws.OpText, true, "not delivered any more"))
		b.want(t, "text one", "text two", "close 4409 replaced by another instance")
		b.write(t, closeFrame(4409, ""))
		b.wantEOF(t)
		b.client.Close()
		b.rec.wait(t, "end", func() bool { return len(b.rec.closed) == 1 })
		if e := b.rec.closed[0]; e.Code != wire.CloseReplaced || e.ByPeer || len(b.rec.got) != 0 {
			t.Fatalf("end is %+v after messages %q", e, b.rec.got)
		}
	})
}

// A peer that reads its close frame and then does nothing is not waited for.
func TestDrainHasAnEnd(t *testing.T) {
	each(t, Options{CloseTimeout: 100 * time.Millisecond}, "", func(t *testing.T, b bench) {
		b.conn.Close(wire.CloseRestart, "restart after=0")
		b.rec.wait(t, "end", func() bool { return len(b.rec.closed) == 1 })
		if e := b.rec.closed[0]; e.Code != wire.CloseRestart || e.ByPeer {
			t.Fatalf("end is %+v", e)
		}
		b.want(t, "close 1012 restart after=0")
		b.wantEOF(t)
	})
}

func TestBreaches(t *testing.T) {
	header := func(h ws.Header) []byte {
		var b bytes.Buffer
		if err := ws.WriteHeader(&b, h); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	huge := []byte{0x81, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}
	for _, c := range []struct {
		name  string
		bytes []byte
		code  int
	}{
		{"unmasked", header(ws.Header{Fin: true, OpCode: ws.OpText, Length: 3}), 1002},
		{"reserved bit", []byte{0xC1, 0x80}, 1002},
		{"unknown opcode", []byte{0x83, 0x80}, 1002},
		{"long control", []byte{0x89, 0xFE}, 1002},
		{"fragmented control", []byte{0x09, 0x80}, 1002},
		{"continuation without start", masked(ws.OpContinuation, true, "x"), 1002},
		{"message inside a message", append(masked(ws.OpText, false, "x"), masked(ws.OpText, true, "y")...), 1002},
		{"2^63 bytes", huge, 1002},
		{"close payload of one byte", masked(ws.OpClose, true, "x"), 1002},
		{"close code 1005", closeFrame(1005, ""), 1002},
		{"close reason not UTF-8", closeFrame(1000, "\xff"), 1007},
		{"announced 4097 bytes", header(ws.Header{Fin: true, OpCode: ws.OpText, Length: 4097, Masked: true}), 1009},
		{"fragments of 4097 bytes", append(masked(ws.OpText, false, strings.Repeat("x", 4096)), masked(ws.OpContinuation, true, "x")...), 1009},
		{"announced 2^62 bytes", header(ws.Header{Fin: true, OpCode: ws.OpText, Length: 1 << 62, Masked: true}), 1009},
	} {
		t.Run(c.name, func(t *testing.T) {
			each(t, Options{}, "", func(t *testing.T, b bench) {
				b.write(t, c.bytes)
				if got := b.read(t); !strings.HasPrefix(got, fmt.Sprintf("close %d ", c.code)) {
					t.Fatalf("answer is %q, want close %d", got, c.code)
				}
				b.wantEOF(t)
				b.rec.wait(t, "end", func() bool { return len(b.rec.closed) == 1 })
				if e := b.rec.closed[0]; int(e.Code) != c.code || !e.ByPeer || e.Err == nil {
					t.Fatalf("end is %+v", e)
				}
			})
		})
	}
}

// A peer that does not read costs MaxQueue and no more, and is still closed.
func TestSlowReaderIsBounded(t *testing.T) {
	const max = 32 << 10
	each(t, Options{MaxQueue: max, CloseTimeout: 100 * time.Millisecond}, "", func(t *testing.T, b bench) {
		message := bytes.Repeat([]byte("x"), 4<<10)
		sent := 0
		for ; sent < 100_000; sent++ {
			if err := b.conn.Send(message); errors.Is(err, ErrFull) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if held := b.lot.Stats().HeldBytes; sent == 100_000 || held > max {
			t.Fatalf("%d messages were taken, %d bytes are held", sent, held)
		}
		b.conn.Close(wire.CloseGoingAway, "")
		b.rec.wait(t, "end", func() bool { return len(b.rec.closed) == 1 })
		if held := b.lot.Stats().HeldBytes; held != 0 {
			t.Fatalf("%d bytes are held after the end", held)
		}
	})
}

// Whatever waits is written once the peer reads again, in order and whole.
func TestQueueDrainsInOrder(t *testing.T) {
	each(t, Options{MaxQueue: 1 << 20}, "", func(t *testing.T, b bench) {
		n := 0
		for ; n < 100_000; n++ {
			if b.conn.Send(fmt.Appendf(nil, "%d %s", n, strings.Repeat("x", 2000))) != nil {
				break
			}
		}
		for i := range n {
			if got := b.read(t); !strings.HasPrefix(got, fmt.Sprintf("text %d x", i)) || len(got) < 2000 {
				t.Fatalf("message %d is %.20q", i, got)
			}
		}
		if err := b.conn.Send([]byte("free again")); err != nil {
			t.Fatal(err)
		}
		b.want(t, "text free again")
	})
}

func TestManyPingsAreAnsweredOrDropped(t *testing.T) {
	each(t, Options{MaxQueue: 4 << 10}, "", func(t *testing.T, b bench) {
		go func() {
			ping := bytes.Repeat(masked(ws.OpPing, true, strings.Repeat("p", 125)), 100)
			for range 100 {
				if _, err := b.client.Write(ping); err != nil {
					return
				}
			}
			b.client.Write(masked(ws.OpText, true, "still there"))
		}()
		b.rec.wait(t, "message behind the flood", func() bool {
			return len(b.rec.got) > 0 && b.rec.got[len(b.rec.got)-1] == "text still there"
		})
		if held := b.lot.Stats().HeldBytes; held > 4<<10 {
			t.Fatalf("%d bytes are held", held)
		}
	})
}

func TestLotCloseEndsEverything(t *testing.T) {
	each(t, Options{}, "", func(t *testing.T, b bench) {
		b.write(t, []byte{0x81}) // half a header stays
		b.lot.Close()
		b.rec.mu.Lock()
		defer b.rec.mu.Unlock()
		if len(b.rec.closed) != 1 || !errors.Is(b.rec.closed[0].Err, ErrClosed) {
			t.Fatalf("end is %+v", b.rec.closed)
		}
		s, c := memPair(t)
		defer s.Close()
		defer c.Close()
		if _, err := b.lot.Park(s, nil, b.rec); !errors.Is(err, ErrClosed) {
			t.Fatalf("park in a closed lot: %v", err)
		}
	})
}

// Nobody reads or writes after the end, whoever ends it first.
func TestRacingEnds(t *testing.T) {
	for _, form := range forms {
		t.Run(form.name, func(t *testing.T) {
			lot, err := New(Options{Goroutines: form.opt.Goroutines, CloseTimeout: 200 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			defer lot.Close()
			var all sync.WaitGroup
			for i := range 100 {
				server, client := form.pair(t)
				rec := newRecorder()
				c, err := lot.Park(server, nil, rec)
				if err != nil {
					t.Fatal(err)
				}
				all.Go(func() { c.Close(wire.CloseRestart, "") })
				all.Go(func() { c.Send([]byte("x")); c.ExpireAfter(time.Millisecond) })
				all.Go(func() {
					if i%2 == 0 {
						client.Write(closeFrame(1000, ""))
						io.Copy(io.Discard, client)
					}
					client.Close()
					rec.wait(t, "end", func() bool { return len(rec.closed) == 1 })
				})
			}
			all.Wait()
			emptied(t, lot)
		})
	}
}

func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lot, err := New(Options{Goroutines: true})
		if err != nil {
			t.Fatal(err)
		}
		defer lot.Close()
		server, client := memnet.Pipe()
		defer client.Close()
		rec := newRecorder()
		c, err := lot.Park(server, nil, rec)
		if err != nil {
			t.Fatal(err)
		}
		count := func(want int, when string) {
			t.Helper()
			synctest.Wait()
			rec.mu.Lock()
			defer rec.mu.Unlock()
			if rec.expired != want {
				t.Fatalf("%s: expired %d times, want %d", when, rec.expired, want)
			}
		}
		c.ExpireAfter(150 * time.Second)
		time.Sleep(149 * time.Second)
		count(0, "before")
		time.Sleep(3 * time.Second)
		count(1, "after 152 s")
		time.Sleep(time.Hour)
		count(1, "an hour later")

		for range 100 { // a heartbeat every 45 s holds it off for 75 minutes
			c.ExpireAfter(150 * time.Second)
			time.Sleep(45 * time.Second)
		}
		count(1, "while renewed")
		time.Sleep(108 * time.Second)
		count(2, "once not renewed")

		c.ExpireAfter(time.Hour) // longer than the wheel's round
		c.ExpireAfter(0)
		time.Sleep(2 * time.Hour)
		count(2, "after never")
		c.ExpireAfter(time.Hour)
		time.Sleep(time.Hour - time.Second)
		count(2, "before the hour")
		time.Sleep(3 * time.Second)
		count(3, "after the hour")

		c.ExpireAfter(time.Second)
		c.Close(wire.CloseGoingAway, "")
		time.Sleep(time.Minute)
		count(3, "closed")
	})
}

// coder/websocket is the agent's library.
func TestWithTheAgentsLibrary(t *testing.T) {
	for _, form := range forms {
		if form.name == "goroutine over memnet" {
			continue
		}
		t.Run(form.name, func(t *testing.T) {
			lot, err := New(form.opt)
			if err != nil {
				t.Fatal(err)
			}
			defer lot.Close()
			rec := newRecorder()
			srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				conn, rw, _, err := ws.UpgradeHTTP(r, w)
				if err != nil {
					t.Error(err)
					return
				}
				pending, _ := rw.Reader.Peek(rw.Reader.Buffered())
				if c, err := lot.Park(conn, pending, rec); err != nil || c.Form() != form.want {
					t.Errorf("park: %v", err)
				}
			}))
			defer srv.Close()
			url, client := "http://", http.DefaultClient
			switch form.name {
			case "goroutine over TLS":
				srv.Listener = tls.NewListener(srv.Listener, tlsConfig())
			case "epoll over TLS":
				srv.Listener = NewListener(srv.Listener, tlsConfig())
			}
			if strings.Contains(form.name, "TLS") {
				transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
				url, client = "https://", &http.Client{Transport: transport}
			}
			srv.Start()
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			c, _, err := websocket.Dial(ctx, url+srv.Listener.Addr().String(), &websocket.DialOptions{HTTPClient: client})
			if err != nil {
				t.Fatal(err)
			}
			defer c.CloseNow()
			for _, n := range []int{0, 1, 125, 126, 4000} {
				if err := c.Write(ctx, websocket.MessageText, []byte("echo:"+strings.Repeat("y", n))); err != nil {
					t.Fatal(err)
				}
				_, got, err := c.Read(ctx)
				if err != nil || string(got) != strings.Repeat("y", n) {
					t.Fatalf("echo of %d bytes: %d bytes, %v", n, len(got), err)
				}
			}
			go c.Read(ctx)
			if err := c.Ping(ctx); err != nil {
				t.Fatal(err)
			}
			if err := c.Close(4001, "bye"); err != nil {
				t.Fatal(err)
			}
			rec.wait(t, "end", func() bool { return len(rec.closed) == 1 && rec.closed[0].Code == 4001 })
		})
	}
}
