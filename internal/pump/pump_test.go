package pump

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
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/gobwas/ws"
	"go.uber.org/goleak"

	"holdfast/internal/frame"
	"holdfast/internal/memnet"
	"holdfast/internal/sock"
	"holdfast/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a running pump and the far ends of its legs.
type rig struct {
	pump   *Pump
	ends   [2]*peer // by Side
	result chan Result
}

// peer is the far end of a leg: it speaks WebSocket by gobwas/ws, so that
// encoder and rewriter are not both ours.
type peer struct {
	net.Conn
	// pings and pongs are control frames that read met.
	pings, pongs []string
}

type pairing struct {
	name string
	pair func(t *testing.T) (relay, far net.Conn)
}

func tcpPair(t *testing.T) (relay, far net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if far, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if relay, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return relay, far
}

func memPair(*testing.T) (relay, far net.Conn) { return memnet.Pipe() }

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

func tlsPair(t *testing.T) (relay, far net.Conn) {
	t.Helper()
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := sock.NewTLSListener(plain, tlsConfig())
	defer l.Close()
	dialed := make(chan error, 1)
	go func() {
		var err error
		far, err = tls.Dial("tcp", plain.Addr().String(), &tls.Config{InsecureSkipVerify: true})
		dialed <- err
	}()
	if relay, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	if err := relay.(*tls.Conn).Handshake(); err != nil {
		t.Fatal(err)
	}
	if err := <-dialed; err != nil {
		t.Fatal(err)
	}
	return relay, far
}

// pairings are the connections that can be frozen; TLS cannot.
var pairings = []pairing{{"TCP", tcpPair}, {"memnet", memPair}}

// start joins two fresh connections.
func start(t *testing.T, pair func(*testing.T) (relay, far net.Conn), o Options) *rig {
	t.Helper()
	r := &rig{result: make(chan Result, 1)}
	var legs [2]Leg
	for side := range legs {
		relay, far := pair(t)
		legs[side].Conn = relay
		r.ends[side] = &peer{Conn: far}
		t.Cleanup(func() { far.Close() })
	}
	var err error
	if r.pump, err = New(legs[Device], legs[Agent], o); err != nil {
		t.Fatal(err)
	}
	r.pump.Start(func(res Result) { r.result <- res })
	return r
}

// each runs f over every kind of connection.
func each(t *testing.T, o Options, f func(t *testing.T, r *rig)) {
	for _, p := range append([]pairing{{"TLS", tlsPair}}, pairings...) {
		t.Run(p.name, func(t *testing.T) {
			r := start(t, p.pair, o)
			for _, e := range r.ends {
				e.SetDeadline(time.Now().Add(20 * time.Second))
			}
			f(t, r)
		})
	}
}

// bothWays runs f for each side as the one that acts.
func bothWays(t *testing.T, o Options, f func(t *testing.T, r *rig, by Side, actor, other *peer)) {
	for _, by := range []Side{Device, Agent} {
		t.Run(by.String(), func(t *testing.T) {
			each(t, o, func(t *testing.T, r *rig) { f(t, r, by, r.ends[by], r.ends[by.other()]) })
		})
	}
}

// ended returns the result, which must come soon.
func (r *rig) ended(t *testing.T) Result {
	t.Helper()
	select {
	case res := <-r.result:
		return res
	case <-time.After(10 * time.Second):
		t.Fatal("the pump does not end")
		panic("unreachable")
	}
}

func frameBytes(op frame.Opcode, fin bool, payload string) []byte {
	var b bytes.Buffer
	if err := ws.WriteFrame(&b, ws.MaskFrame(ws.NewFrame(ws.OpCode(op), fin, []byte(payload)))); err != nil {
		panic(err)
	}
	return b.Bytes()
}

func closeBytes(code int, reason string) []byte {
	return frameBytes(frame.Close, true, string(ws.NewCloseFrameBody(ws.StatusCode(code), reason)))
}

func (p *peer) send(t *testing.T, b []byte) {
	t.Helper()
	if _, err := p.Write(b); err != nil {
		t.Fatalf("write: %v", err)
	}
}

// read returns the next message or close frame, put together from fragments.
func (p *peer) read() (op frame.Opcode, payload string, err error) {
	var message strings.Builder
	for {
		f, err := ws.ReadFrame(p)
		if err != nil {
			return 0, message.String(), err
		}
		if f.Header.Masked {
			return 0, "", errors.New("the relay masks")
		}
		switch f.Header.OpCode {
		case ws.OpPing:
			p.pings = append(p.pings, string(f.Payload))
			continue
		case ws.OpPong:
			p.pongs = append(p.pongs, string(f.Payload))
			continue
		case ws.OpClose:
			return frame.Close, string(f.Payload), nil
		case ws.OpContinuation:
			if op == 0 {
				return 0, "", errors.New("continuation without start")
			}
		default:
			if op != 0 {
				return 0, "", errors.New("a message inside a message")
			}
			op = frame.Opcode(f.Header.OpCode)
		}
		message.Write(f.Payload)
		if f.Header.Fin {
			return op, message.String(), nil
		}
	}
}

func (p *peer) want(t *testing.T, op frame.Opcode, payload string) {
	t.Helper()
	gotOp, got, err := p.read()
	if err != nil || gotOp != op || got != payload {
		t.Fatalf("read %s %.100q, %v; want %s %.100q", gotOp, got, err, op, payload)
	}
}

// wantClose reads a close frame and hangs up.
func (p *peer) wantClose(t *testing.T, code int, reason string) {
	t.Helper()
	op, payload, err := p.read()
	if err != nil || op != frame.Close {
		t.Fatalf("read %s %.100q, %v; want a close frame", op, payload, err)
	}
	gotCode, gotReason, err := frame.ParseClose([]byte(payload))
	if err != nil || int(gotCode) != code || !strings.Contains(gotReason, reason) {
		t.Fatalf("closed with %d %q, %v; want %d %q", gotCode, gotReason, err, code, reason)
	}
	if n, err := io.Copy(io.Discard, p); n != 0 || err != nil {
		t.Fatalf("behind the close frame: %d bytes, %v", n, err)
	}
	p.Close()
}

func TestMessagesKeepTypeBytesAndEnds(t *testing.T) {
	bothWays(t, Options{}, func(t *testing.T, r *rig, by Side, actor, other *peer) {
		messages := []struct {
			op      frame.Opcode
			payload string
		}{
			{frame.Binary, "SSH-2.0-x\r\n"}, {frame.Binary, ""}, {frame.Text, "c29tZSB0ZXh0"},
			{frame.Text, "\xff not UTF-8 and not ours to judge"},
			{frame.Binary, strings.Repeat("0123456789abcdef", 64<<10)}, // 1 MiB
			{frame.Binary, strings.Repeat("y", 125)}, {frame.Binary, strings.Repeat("z", 126)},
			{frame.Binary, strings.Repeat("w", 65536)},
		}
		go func() {
			for _, m := range messages {
				actor.Write(frameBytes(m.op, true, m.payload))
			}
			// And one in fragments of its own.
			actor.Write(frameBytes(frame.Binary, false, "in "))
			actor.Write(frameBytes(frame.Ping, true, "between"))
			actor.Write(frameBytes(frame.Continuation, false, ""))
			actor.Write(frameBytes(frame.Continuation, true, "parts"))
			actor.Write(closeBytes(4001, "done"))
		}()
		var total int64
		for _, m := range messages {
			other.want(t, m.op, m.payload)
			total += int64(len(m.payload))
		}
		other.want(t, frame.Binary, "in parts")
		other.wantClose(t, 4001, "done")
		if _, _, err := actor.read(); err != nil || len(actor.pongs) != 1 || actor.pongs[0] != "between" {
			t.Errorf("pongs %q, %v", actor.pongs, err)
		}
		actor.Close()
		res := r.ended(t)
		if len(other.pings)+len(other.pongs) != 0 {
			t.Errorf("control frames were forwarded: %q, %q", other.pings, other.pongs)
		}
		got, zero := res.ToAgent, res.ToDevice
		if by == Agent {
			got, zero = zero, got
		}
		if got != total+8 || zero != 0 || !res.Text || res.Cause != CauseClosed || res.By != by || res.Code != 4001 {
			t.Errorf("result %+v, want %d bytes", res, total+8)
		}
	})
}

// Every split of a short stream arrives as it was.
func TestEverySplit(t *testing.T) {
	stream := bytes.Join([][]byte{
		frameBytes(frame.Binary, false, "ab"), frameBytes(frame.Ping, true, "p"),
		frameBytes(frame.Continuation, true, "cd"), frameBytes(frame.Text, true, strings.Repeat("t", 126)),
	}, nil)
	each(t, Options{}, func(t *testing.T, r *rig) {
		d, a := r.ends[Device], r.ends[Agent]
		for i := 1; i < len(stream); i++ {
			d.send(t, stream[:i])
			runtime.Gosched()
			d.send(t, stream[i:])
			a.want(t, frame.Binary, "abcd")
			a.want(t, frame.Text, strings.Repeat("t", 126))
		}
		d.send(t, closeBytes(1000, ""))
		a.wantClose(t, 1000, "")
		d.Close()
		r.ended(t)
		if n := len(stream) - 1; r.pump.Stats().ToAgent != int64(n*130) {
			t.Errorf("%+v after %d rounds", r.pump.Stats(), n)
		}
	})
}

func TestPendingBytesComeFirst(t *testing.T) {
	whole := frameBytes(frame.Binary, true, strings.Repeat("early", 1000))
	for _, n := range []int{1, 7, 4096, len(whole)} {
		relay, far := memnet.Pipe()
		relay2, far2 := memnet.Pipe()
		p, err := New(Leg{Conn: relay, Pending: whole[:n]}, Leg{Conn: relay2}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan Result)
		go func() { done <- p.Run() }()
		d, a := &peer{Conn: far}, &peer{Conn: far2}
		d.send(t, whole[n:])
		a.want(t, frame.Binary, strings.Repeat("early", 1000))
		p.Stop(wire.CloseGoingAway, "")
		d.wantClose(t, 1001, "")
		a.wantClose(t, 1001, "")
		<-done
	}
}

func TestCloseIsCarriedBehindTheData(t *testing.T) {
	for _, c := range []struct {
		name     string
		frame    []byte
		code     int
		reason   string
		back     int // what the sender gets
		cause    Cause
		sentinel error
	}{
		{"with reason", closeBytes(4502, "sshd: connection refused"), 4502, "sshd: connection refused", 4502, CauseClosed, nil},
		{"reason is cleaned", closeBytes(1000, "a\x1b[31m\u202eb"), 1000, "a[31mb", 1000, CauseClosed, nil},
		{"none is 1000", frameBytes(frame.Close, true, ""), 1000, "", 1000, CauseClosed, nil},
		{"one byte", frameBytes(frame.Close, true, "x"), 1011, "broke the WebSocket protocol", 1002, CauseProtocol, frame.ErrClosePayload},
		{"code 1006", closeBytes(1006, ""), 1011, "broke", 1002, CauseProtocol, frame.ErrCloseCode},
		{"reason not UTF-8", closeBytes(1000, "\xff"), 1011, "broke", 1007, CauseProtocol, frame.ErrCloseReason},
		{"unmasked", frame.AppendFrame(nil, frame.Binary, nil), 1011, "broke", 1002, CauseProtocol, frame.ErrUnmasked},
		{"reserved bit", []byte{0xC2, 0x80}, 1011, "broke", 1002, CauseProtocol, frame.ErrReserved},
		{"2^63", []byte{0x82, 0xFF, 0x80, 0, 0, 0, 0, 0, 0, 0}, 1011, "broke", 1002, CauseProtocol, frame.ErrLength},
	} {
		t.Run(c.name, func(t *testing.T) {
			bothWays(t, Options{}, func(t *testing.T, r *rig, by Side, actor, other *peer) {
				data := strings.Repeat("d", 300<<10)
				go func() {
					actor.Write(frameBytes(frame.Binary, true, data))
					actor.Write(c.frame)
				}()
				other.want(t, frame.Binary, data)
				other.wantClose(t, c.code, c.reason)
				actor.wantClose(t, c.back, "")
				res := r.ended(t)
				if res.Cause != c.cause || res.By != by || int(res.Code) != c.code || !errors.Is(res.Err, c.sentinel) {
					t.Errorf("result %+v", res)
				}
			})
		})
	}
}

func TestLostLegIs1011ForTheOther(t *testing.T) {
	for _, how := range []string{"hang-up", "reset", "half-close"} {
		t.Run(how, func(t *testing.T) {
			bothWays(t, Options{}, func(t *testing.T, r *rig, by Side, actor, other *peer) {
				actor.send(t, frameBytes(frame.Binary, false, "last words"))
				// Half of a frame: what came of it is forwarded.
				f := frameBytes(frame.Continuation, true, "0123456789")
				actor.send(t, f[:len(f)-4])
				switch how {
				case "reset":
					reset(actor.Conn)
				case "half-close":
					actor.Conn.(interface{ CloseWrite() error }).CloseWrite()
				default:
					actor.Close()
				}
				op, got, err := other.read()
				if err != nil || op != frame.Close {
					// The open message ends in the close frame, as it must.
					t.Fatalf("read %s %q, %v", op, got, err)
				}
				code, reason, err := frame.ParseClose([]byte(got))
				if err != nil || code != 1011 || !strings.Contains(reason, "the "+by.String()+"'s connection was lost") {
					t.Fatalf("closed with %d %q, %v", code, reason, err)
				}
				other.Close()
				if res := r.ended(t); res.Cause != CauseLost || res.By != by || res.Err == nil {
					t.Errorf("result %+v", res)
				}
			})
		})
	}
}

func reset(c net.Conn) {
	if over, ok := c.(*tls.Conn); ok {
		c = over.NetConn()
	}
	switch c := c.(type) {
	case *net.TCPConn:
		c.SetLinger(0)
		c.Close()
	case *memnet.Conn:
		c.Reset()
	}
}

func TestStopEndsBothWithinASecond(t *testing.T) {
	each(t, Options{}, func(t *testing.T, r *rig) {
		r.ends[Device].send(t, frameBytes(frame.Binary, true, "before"))
		r.ends[Agent].want(t, frame.Binary, "before")
		began := time.Now()
		r.pump.Stop(wire.CloseUnauthorized, "token revoked\x00")
		r.pump.Stop(wire.CloseGoingAway, "a second one does nothing")
		for _, e := range r.ends {
			op, payload, err := e.read()
			if err != nil || op != frame.Close || payload != "\x11\x31token revoked" {
				t.Fatalf("read %s %q, %v", op, payload, err)
			}
		}
		// Neither hangs up, and one goes on sending.
		r.ends[Device].Write(frameBytes(frame.Binary, true, "ignored"))
		res := r.ended(t)
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("it took %v", took)
		}
		if res.Cause != CauseStopped || res.Code != wire.CloseUnauthorized || res.ToAgent != 6 {
			t.Errorf("result %+v", res)
		}
	})
}

// A peer that reads nothing cannot hold a revoked stream open.
func TestStopWhileBothAreBlocked(t *testing.T) {
	each(t, Options{StopTimeout: 200 * time.Millisecond}, func(t *testing.T, r *rig) {
		var sent sync.WaitGroup
		for _, e := range r.ends {
			sent.Go(func() {
				for {
					if _, err := e.Write(frameBytes(frame.Binary, true, strings.Repeat("x", 1<<20))); err != nil {
						return
					}
				}
			})
		}
		blocked(t, r)
		r.pump.Stop(wire.CloseUnauthorized, "token revoked")
		if res := r.ended(t); res.Cause != CauseStopped {
			t.Errorf("result %+v", res)
		}
		sent.Wait()
	})
}

// blocked returns once neither direction moves any more.
func blocked(t *testing.T, r *rig) {
	t.Helper()
	still := 0
	last := Stats{}
	for range 1000 {
		time.Sleep(10 * time.Millisecond)
		s := r.pump.Stats()
		if s == last && s.ToAgent > 0 {
			if still++; still == 10 {
				return
			}
		} else {
			still, last = 0, s
		}
	}
	t.Fatal("the pump is never blocked")
}

// Whatever a sender offers, a reader that stands still costs the same.
func TestSlowReaderCostsAFixedNumberOfBytes(t *testing.T) {
	each(t, Options{}, func(t *testing.T, r *rig) {
		data := frameBytes(frame.Binary, true, strings.Repeat("x", 1<<20))
		go func() {
			for {
				if _, err := r.ends[Device].Write(data); err != nil {
					return
				}
			}
		}()
		blocked(t, r)
		before := heap()
		blocked(t, r)
		// The kernel's buffers may still have grown, ours may not.
		if grown := int64(heap()) - int64(before); grown > 2<<20 || r.pump.Stats().ToAgent > 64<<20 {
			t.Errorf("%d bytes of heap more, %d of the stream taken", grown, r.pump.Stats().ToAgent)
		}
		// The other direction is not concerned.
		r.ends[Agent].send(t, frameBytes(frame.Binary, true, "still here"))
		r.ends[Device].want(t, frame.Binary, "still here")
		r.pump.Stop(wire.CloseGoingAway, "")
		r.ended(t)
	})
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestPingsOfAReadingPeerAreAnsweredWhileItsOutputIsBlocked(t *testing.T) {
	each(t, Options{}, func(t *testing.T, r *rig) {
		d := r.ends[Device]
		d.send(t, bytes.Repeat(frameBytes(frame.Ping, true, "flood"), 1000))
		d.send(t, frameBytes(frame.Ping, true, "last"))
		r.ends[Agent].send(t, frameBytes(frame.Binary, true, "data"))
		d.want(t, frame.Binary, "data")
		for len(d.pongs) == 0 || d.pongs[len(d.pongs)-1] != "last" {
			f, err := ws.ReadFrame(d)
			if err != nil || f.Header.OpCode != ws.OpPong {
				t.Fatalf("read %+v, %v", f.Header, err)
			}
			d.pongs = append(d.pongs, string(f.Payload))
		}
		if len(d.pongs) > 1001 {
			t.Errorf("%d pongs for 1001 pings", len(d.pongs))
		}
		r.pump.Stop(wire.CloseGoingAway, "")
		r.ended(t)
	})
}

// coder/websocket is the agent's and the command line's library.
func TestBothWaysAtOnceWithCoder(t *testing.T) {
	legs := make(chan Leg, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, rw, _, err := ws.UpgradeHTTP(r, w)
		if err != nil {
			t.Error(err)
			return
		}
		pending, _ := rw.Reader.Peek(rw.Reader.Buffered())
		legs <- Leg{Conn: conn, Pending: pending}
	}))
	defer srv.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	var conns [2]*websocket.Conn
	var both [2]Leg
	for side := range conns {
		c, _, err := websocket.Dial(ctx, srv.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.CloseNow()
		c.SetReadLimit(-1)
		conns[side], both[side] = c, <-legs
	}
	p, err := New(both[Device], both[Agent], Options{})
	if err != nil {
		t.Fatal(err)
	}
	result := make(chan Result, 1)
	go func() { result <- p.Run() }()

	data := make([]byte, 8<<20)
	rand.Read(data)
	var all sync.WaitGroup
	for side := range conns {
		all.Go(func() {
			rest := data
			for i := 1; len(rest) > 0; i++ {
				n := min(len(rest), i*i*37%(300<<10)+1)
				if err := conns[side].Write(ctx, websocket.MessageBinary, rest[:n]); err != nil {
					t.Error(err)
					return
				}
				rest = rest[n:]
			}
		})
		all.Go(func() {
			var got []byte
			for i := 1; len(got) < len(data); i++ {
				want := min(len(data)-len(got), i*i*37%(300<<10)+1)
				_, b, err := conns[side].Read(ctx)
				if err != nil || len(b) != want {
					t.Errorf("message %d: %d bytes, want %d, %v", i, len(b), want, err)
					return
				}
				got = append(got, b...)
			}
			if !bytes.Equal(got, data) {
				t.Error("bytes differ")
			}
		})
	}
	all.Wait()
	go conns[Agent].Read(ctx)
	all.Go(func() {
		_, _, err := conns[Device].Read(ctx)
		if websocket.CloseStatus(err) != 1000 {
			t.Errorf("device read: %v", err)
		}
	})
	go conns[Agent].Ping(ctx)
	if err := conns[Agent].Close(websocket.StatusNormalClosure, "over"); err != nil {
		t.Error(err)
	}
	all.Wait()
	if res := <-result; res.ToAgent != int64(len(data)) || res.ToDevice != int64(len(data)) || res.Text ||
		res.Cause != CauseClosed || res.By != Agent || res.Reason != "over" {
		t.Errorf("result %+v", res)
	}
}

// 1,000 streams, ended from each side in each way, leave nothing behind; goleak
// and the descriptor count look.
func TestManyStreamsLeaveNothing(t *testing.T) {
	base := descriptors(t)
	var all sync.WaitGroup
	slots := make(chan struct{}, 50)
	for i := range 1000 {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			r := start(t, tcpPair, Options{CloseTimeout: 50 * time.Millisecond, StopTimeout: 50 * time.Millisecond})
			actor, other := r.ends[i%2], r.ends[1-i%2]
			if i%3 == 0 {
				actor.Write(frameBytes(frame.Binary, true, strings.Repeat("x", i*100)))
			}
			switch i % 5 {
			case 0:
				actor.Write(closeBytes(1000, ""))
			case 1:
				actor.Close()
			case 2:
				reset(actor.Conn)
			case 3:
				r.pump.Stop(wire.CloseUnauthorized, "")
			case 4:
				actor.Close()
				other.Close()
			}
			<-r.result
			actor.Close()
			other.Close()
		})
	}
	all.Wait()
	if now := descriptors(t); now > base+3 {
		t.Errorf("%d descriptors, %d before", now, base)
	}
}

func TestNewRefuses(t *testing.T) {
	a, b := memnet.Pipe()
	defer a.Close()
	defer b.Close()
	if _, err := New(Leg{Conn: a}, Leg{}, Options{}); err == nil {
		t.Error("a leg without connection is taken")
	}
	for _, o := range []Options{{Keepalive: -1}, {Keepalive: time.Second}, {CloseTimeout: -1}, {StopTimeout: -1}} {
		if _, err := New(Leg{Conn: a}, Leg{Conn: b}, o); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
	if fmt.Sprint(Device, Agent) != "device machine" {
		t.Error("sides are named for people")
	}
}
