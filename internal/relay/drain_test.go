package relay

import (
	"context"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/liveness"
	"holdfast/internal/wire"
)

func TestSpreadFillsNoSecondTooMuch(t *testing.T) {
	for n := range 2001 {
		all := spread(n)
		slices.Sort(all)
		for i, d := range all {
			if d < drainBase || d > 25*time.Second {
				t.Fatalf("%d agents: one waits %v", n, d)
			}
			// How many come in the second that begins with this one.
			end, _ := slices.BinarySearch(all, d+time.Second)
			if k := end - i; k > max(1, n/10) {
				t.Fatalf("%d agents: %d of them in the second from %v on", n, k, d)
			}
		}
	}
	if d := spread(1)[0]; d > 2*time.Second {
		t.Errorf("a single agent waits %v", d)
	}
}

func TestDrain(t *testing.T) {
	g := newRig(t)
	var agents []*agent
	for i := range 12 {
		agents = append(agents, g.ready(wire.MachineID(fmt.Sprintf("m%d", i))))
	}
	dev, agt := g.pair(agents[0], g.deviceToken())
	exchange(t, dev, agt, websocket.MessageBinary, []byte("begun"))
	drained := make(chan error, 1)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	go func() { drained <- g.relay.Drain(ctx) }()
	buckets := map[int64]int{}
	for i, a := range agents {
		m := a.next()
		if m.Op != wire.OpDrain {
			t.Fatalf("agent %d got %+v", i, m)
		}
		ce := closeOf(t, a.ws, 5*time.Second)
		after, ok := liveness.RestartDelay(ce.Reason)
		if ce.Code != 1012 || !ok {
			t.Fatalf("agent %d was closed %d %q", i, ce.Code, ce.Reason)
		}
		if off := time.Duration(m.AfterMs)*time.Millisecond - after; off < 0 || off > time.Second {
			t.Errorf("agent %d: drain said %d ms, the close frame %v", i, m.AfterMs, after)
		}
		buckets[int64(after/time.Second)]++
	}
	for second, n := range buckets {
		if n > 1 {
			t.Errorf("%d of 12 agents in second %d", n, second)
		}
	}
	for what, ws := range map[string]*websocket.Conn{"device": dev, "agent": agt} {
		if ce := closeOf(t, ws, 5*time.Second); ce.Code != 1012 {
			t.Errorf("the %s's leg was closed %d %q", what, ce.Code, ce.Reason)
		}
	}
	if err := <-drained; err != nil {
		t.Error(err)
	}
	if conn, err := net.DialTimeout("tcp", g.addr, time.Second); err == nil {
		_ = conn.Close()
		t.Error("a drained relay still accepts")
	}
}
