package relay

import (
	"bytes"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/coder/websocket"

	"holdfast/internal/engine"
	"holdfast/internal/relay/axes"
	"holdfast/internal/relay/controls"
	"holdfast/internal/wire"
)

// eachForm runs a test with both ways in which a control connection can wait.
func eachForm(t *testing.T, f func(t *testing.T, g *rig)) {
	for name, goroutines := range map[string]bool{"epoll": false, "goroutine": true} {
		t.Run(name, func(t *testing.T) {
			f(t, newRig(t, func(o *Options) { o.Goroutines = goroutines }))
		})
	}
}

func TestPongOnlyToTheHolder(t *testing.T) {
	eachForm(t, func(t *testing.T, g *rig) {
		first := g.ready("mini")
		second := g.agent("mini", first.token)
		second.pong()
		wantClose(t, first.ws, wire.CloseReplaced, "replaced by a newer connection")
	})
}

func TestStolenNameIsClosedAndNotPonged(t *testing.T) {
	eachForm(t, func(t *testing.T, g *rig) {
		a := g.ready("mini")
		// The registry forgets the socket without a word to it: the ghost.
		k := engine.Key{Account: "ann", Machine: "mini"}
		for _, m := range g.relay.axes.OfRole(axes.Control) {
			g.router.Release(k, m.Self().(*controls.Conn))
		}
		a.send(wire.Message{Op: wire.OpPing})
		wantClose(t, a.ws, wire.CloseRestart, "restart after=0")
	})
}

func TestTakeover(t *testing.T) {
	eachForm(t, func(t *testing.T, g *rig) {
		const one, two = "instance-one-0123456789", "instance-two-0123456789"
		tok := g.agentToken("mini")
		a1 := g.agent("mini", tok, wire.HeaderInstance, one, wire.HeaderAttempt, "5")
		a1.pong()

		lower := g.agent("mini", tok, wire.HeaderInstance, one, wire.HeaderAttempt, "4")
		if by := wire.ReplacedBy(closeOf(t, lower.ws, 5*time.Second).Reason); by != one {
			t.Errorf("a lower attempt was told %q", by)
		}
		a1.pong() // and did not disturb the higher

		higher := g.agent("mini", tok, wire.HeaderInstance, one, wire.HeaderAttempt, "6")
		higher.pong()
		wantClose(t, a1.ws, wire.CloseReplaced, "replaced by instance "+one)

		other := g.agent("mini", tok, wire.HeaderInstance, two, wire.HeaderAttempt, "1")
		other.pong()
		wantClose(t, higher.ws, wire.CloseReplaced, "replaced by instance "+two)

		again := g.agent("mini", tok, wire.HeaderInstance, one, wire.HeaderAttempt, "7")
		wantClose(t, again.ws, wire.CloseReplaced, "replaced by instance "+two)
		other.pong()

		older := g.agent("mini", tok) // without a name it just replaces
		older.pong()
		wantClose(t, other.ws, wire.CloseReplaced, "newer connection")
	})
}

// A hundred reconnects while the sockets they replace are dead on the way: each
// is ready at once, and nothing piles up.
func TestReconnectsBehindStalledSockets(t *testing.T) {
	eachForm(t, func(t *testing.T, g *rig) {
		tok := g.agentToken("mini")
		g.agent("mini", tok, wire.HeaderInstance, "instance-0123456789", wire.HeaderAttempt, "1").pong()
		base := runtime.NumGoroutine()
		var stalled []net.Conn
		for range 100 {
			raw := g.rawUpgrade(wire.AgentPath("mini"), tok.text)
			stalled = append(stalled, raw) // never read, never closed
		}
		last := g.agent("mini", tok)
		began := time.Now()
		last.pong()
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("the newest waited %v for its pong", took)
		}
		eventually(t, "replaced sockets are gone", func() bool {
			return g.relay.axes.Count(axes.Control) == 1 && runtime.NumGoroutine() < base+20
		})
		for _, c := range stalled {
			_ = c.Close()
		}
		last.pong()
	})
}

func TestGarbageIsDroppedInSilence(t *testing.T) {
	eachForm(t, func(t *testing.T, g *rig) {
		a := g.ready("mini")
		texts := [][]byte{
			nil, []byte("{"), []byte("[]"), []byte("null"), []byte(`"ping"`), []byte(`{"op":7}`), []byte(`{"op":""}`),
			[]byte(strings.Repeat("[", 4000)), []byte("{\"op\":\"ping\xff\"}"), []byte(`{"op":"hello","services":7}`),
		}
		for _, b := range texts {
			a.send(b)
		}
		a.send([]byte(`{"op":"later-version","x":{"y":[1]}}`)) // ignored, not counted
		a.send([]byte(`{"op":"pong"}`))
		a.send([]byte(`{"op":"dial","connId":"x.y"}`))
		if err := a.ws.Write(g.ctx(), websocket.MessageBinary, []byte(`{"op":"ping"}`)); err != nil {
			t.Fatal(err)
		}
		a.pong()
		if n := g.metric("holdfast_relay_control_dropped_total", "malformed"); n != float64(len(texts)) {
			t.Errorf("counted %v malformed messages, want %d", n, len(texts))
		}
		if n := g.metric("holdfast_relay_control_dropped_total", "binary"); n != 1 {
			t.Errorf("counted %v binary messages, want 1", n)
		}
	})
}

func TestControlMessageSize(t *testing.T) {
	eachForm(t, func(t *testing.T, g *rig) {
		a := g.ready("mini")
		fits := append([]byte(`{"op":"hello","presence":"`), bytes.Repeat([]byte("p"), wire.MaxControlBytes-28)...)
		fits = append(fits, `"}`...)
		a.send(fits[:wire.MaxControlBytes])
		a.pong()
		a.send(bytes.Repeat([]byte(" "), wire.MaxControlBytes+1))
		wantClose(t, a.ws, wire.CloseTooBig, "")
	})
}

func TestHelloIsKept(t *testing.T) {
	eachForm(t, func(t *testing.T, g *rig) {
		a := g.ready("mini")
		a.send(wire.Message{Op: wire.OpHello, Version: "1.2.3", Features: []string{"revoke", "drain", "bad one"},
			Services: []wire.ServiceName{"ssh", "web"}, Presence: "blob"})
		a.pong()
		h := g.relay.controls.Greetings("ann")["mini"]
		if h.Version != "1.2.3" || !slices.Equal(h.Features, []string{"revoke", "drain"}) || !slices.Equal(h.Services, []wire.ServiceName{"ssh", "web"}) || g.relay.controls.Presences("ann")["mini"] != "blob" {
			t.Errorf("kept %+v", h)
		}
	})
}

func TestFirstUseBindsTheToken(t *testing.T) {
	eachForm(t, func(t *testing.T, g *rig) {
		tok := g.token("ann", engine.KindAgent, "")
		g.agent("first", tok).pong()
		_, resp, err := g.open(wire.AgentPath("second"), header(tok.text))
		if err == nil || resp.StatusCode != 403 {
			t.Fatalf("a bound token opened a second machine: %v", err)
		}
		g.agent("first", tok).pong()
	})
}

func TestRevokesAreSentUntilAcknowledged(t *testing.T) {
	eachForm(t, func(t *testing.T, g *rig) {
		a := g.ready("mini")
		dev := g.redeem("mini")
		if err := g.store.RevokeDevice(g.ctx(), "ann", dev.Device); err != nil {
			t.Fatal(err)
		}
		m := a.next()
		if m.Op != wire.OpRevoke || m.Device != dev.Device || m.Key != deviceKey {
			t.Fatalf("got %+v", m)
		}
		// Not acknowledged: it comes again on the next connection.
		b := g.agent("mini", a.token)
		if m := b.next(); m.Op != wire.OpRevoke || m.Device != dev.Device {
			t.Fatalf("after reconnect: got %+v", m)
		}
		b.send(wire.Message{Op: wire.OpRevoked, Device: m.Device, Key: m.Key})
		eventually(t, "the revocation is done", func() bool {
			list, err := g.store.Revocations(g.ctx(), engine.Key{Account: "ann", Machine: "mini"})
			return err == nil && len(list) == 0
		})
		g.agent("mini", a.token).pong() // the first message is the pong
	})
}

// A parked machine pays for this entry; the relay has a kilobyte for it all.
func TestControlEntryIsSmall(t *testing.T) {
	if n := unsafe.Sizeof(controls.Conn{}); n > 144 {
		t.Errorf("a control connection has %d bytes", n)
	}
}
