package relay

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/engine"
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

// slowStore makes a claim wait until it is let go.
type slowStore struct {
	engine.Store
	begun, gate chan struct{}
}

func (s *slowStore) Claim(ctx context.Context, k engine.Key, i wire.Instance, attempt uint64) (uint64, error) {
	close(s.begun)
	<-s.gate
	return s.Store.Claim(ctx, k, i, attempt)
}

// A request that is past the first look when a drain begins is told to come back
// like everybody else, and the drain does not wait for it to go by itself.
func TestDrainDuringAHandshake(t *testing.T) {
	slow := &slowStore{begun: make(chan struct{}), gate: make(chan struct{})}
	g := newRig(t, func(o *Options) { slow.Store, o.Store = o.Store, slow })
	tok := g.agentToken("mini")
	opened := make(chan *websocket.Conn, 1)
	go func() {
		ws, _, err := g.open(wire.AgentPath("mini"), header(tok.text), wire.SubprotocolV1)
		if err != nil {
			t.Error(err)
		}
		opened <- ws
	}()
	<-slow.begun
	drained := make(chan error, 1)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	go func() { drained <- g.relay.Drain(ctx) }()
	eventually(t, "the relay drains", g.relay.door.IsShut)
	close(slow.gate)
	if ws := <-opened; ws != nil {
		if ce := closeOf(t, ws, 5*time.Second); ce.Code != 1012 {
			t.Errorf("closed %d %q", ce.Code, ce.Reason)
		}
	}
	if err := <-drained; err != nil {
		t.Error(err)
	}
}

// A dial-back to a banner that never comes does not hold a drain up.
func TestDrainDuringAProof(t *testing.T) {
	g := newRig(t)
	a := g.ready("mini")
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		g.call(http.MethodGet, wire.PathMachines, g.deviceToken().text, "")
	}()
	m := a.next()
	back := g.mustOpen(wire.AgentDataPath("mini", m.ConnID), header(a.token.text), wire.SubprotocolV1)
	<-asked
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := g.relay.Drain(ctx); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 6*time.Second {
		t.Errorf("the drain took %v", took)
	}
	_ = back.CloseNow()
}

// A drain that is cut short says how many stayed.
func TestDrainSaysWhatStays(t *testing.T) {
	g := newRig(t)
	g.ready("mini")
	ctx, cancel := context.WithCancelCause(context.Background())
	cause := errors.New("enough")
	cancel(cause)
	if err := g.relay.Drain(ctx); !errors.Is(err, cause) {
		t.Errorf("error %v", err)
	}
}

// A refusal does not wait for a body that a client holds back until it is asked
// for it.
func TestRefusalBeforeAnExpectedBody(t *testing.T) {
	g := newRig(t)
	for name, token := range map[string]string{"no token": "", "wrong kind": g.deviceToken().text} {
		conn, err := net.Dial("tcp", g.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		authorization := ""
		if token != "" {
			authorization = "Authorization: Bearer\t" + token + "\r\n" // a tab will do
		}
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\n%sContent-Length: 1000000000\r\nExpect: 100-continue\r\n\r\n", wire.PathPairings, authorization)
		_ = conn.SetReadDeadline(time.Now().Add(8 * time.Second))
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		_ = resp.Body.Close()
		if want := map[bool]int{true: 401, false: 403}[token == ""]; resp.StatusCode != want {
			t.Errorf("%s: %s", name, resp.Status)
		}
	}
}
