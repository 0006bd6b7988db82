package scenario

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/account"
	"holdfast/internal/agent"
	"holdfast/internal/engine"
	"holdfast/internal/faultproxy"
	"holdfast/internal/memnet"
	"holdfast/internal/wire"
)

// What a planned restart may do to a relay.
const (
	maxShare  = 0.10 // of all agents in any one second
	allBackIn = 30 * time.Second
)

// herd is many agents of one relay.
type herd struct {
	*world
	agents []*agent.Agent
	events []*record
	stop   context.CancelFunc
	wait   sync.WaitGroup
}

// newHerd starts n agents and waits until all are up.
func newHerd(f floor, n int) (*herd, error) {
	w, err := newWorld(f)
	h := &herd{world: w}
	if err != nil {
		return h, err
	}
	accounts, err := account.New(account.Options{Store: w.store})
	if err != nil {
		return h, err
	}
	var ctx context.Context
	ctx, h.stop = context.WithCancel(context.Background())
	for i := range n {
		name := wire.MachineID(fmt.Sprintf("m%04d", i))
		issued, err := accounts.Issue(ctx, account.Request{Account: "ann", Kind: engine.KindAgent, Name: "herd", Machine: name})
		if err != nil {
			return h, err
		}
		r := &record{}
		a, err := agent.New(agent.Options{
			Relay: &url.URL{Scheme: "http", Host: agentPathAddr}, Machine: name,
			Token:   func(context.Context) (wire.Token, error) { return issued.Text, nil },
			Version: "test", Log: slog.New(r), DialContext: f.DialContext,
		})
		if err != nil {
			return h, err
		}
		h.agents, h.events = append(h.agents, a), append(h.events, r)
		h.wait.Go(func() { a.Run(ctx) }) // ends with ctx; close waits
		if i%50 == 49 {
			// A relay takes so many unfinished handshakes of one address.
			if err := h.allUp(); err != nil {
				return h, err
			}
		}
	}
	return h, h.allUp()
}

func (h *herd) allUp() error {
	return h.waitUntil("all agents are up", 2*time.Minute, func() bool {
		for _, a := range h.agents {
			if !a.Status().Proven {
				return false
			}
		}
		return true
	})
}

func (h *herd) close() {
	h.agentPath.Close()
	if h.stop != nil {
		h.stop()
		h.wait.Wait()
	}
	h.world.close()
}

// histogram says when the agents came back, by second since began.
func (h *herd) histogram(began time.Time) (perSecond []int, last time.Duration, worst int) {
	var at []time.Duration
	for _, r := range h.events {
		back := r.since(began, connected)
		if len(back) > 0 {
			at = append(at, back[0].at.Sub(began))
		}
	}
	slices.Sort(at)
	for _, d := range at {
		s := int(d / time.Second)
		for len(perSecond) <= s {
			perSecond = append(perSecond, 0)
		}
		perSecond[s]++
	}
	if len(at) > 0 {
		last = at[len(at)-1]
	}
	// Whatever second one looks at, not only those that begin with the restart.
	from := 0
	for to := range at {
		for at[to]-at[from] >= time.Second {
			from++
		}
		worst = max(worst, to-from+1)
	}
	return perSecond, last, worst
}

// report logs the figures for docs/performance.md.
func (h *herd) report(t *testing.T, what string, began time.Time) (last time.Duration, worst int) {
	t.Helper()
	perSecond, last, worst := h.histogram(began)
	var b strings.Builder
	for s, n := range perSecond {
		fmt.Fprintf(&b, " %d:%d", s, n)
	}
	t.Logf("%s, %d agents: all back after %v, fullest second %d (%.1f %%); by second%s",
		what, len(h.agents), last.Round(10*time.Millisecond), worst, 100*float64(worst)/float64(len(h.agents)), b.String())
	return last, worst
}

// drain restarts the relay as planned: the next process listens when the old
// one has gone, after the time that a start takes.
func (h *herd) drain() error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := h.relay.Drain(ctx); err != nil {
		return err
	}
	h.stopRelay()
	time.Sleep(200 * time.Millisecond)
	return h.startRelay()
}

func (h *herd) checkDrain(t *testing.T) {
	t.Helper()
	began := time.Now()
	if err := h.drain(); err != nil {
		t.Fatal(err)
	}
	if err := h.waitUntil("all agents are back", allBackIn, func() bool {
		for _, r := range h.events {
			if len(r.since(began, connected)) == 0 {
				return false
			}
		}
		return true
	}); err != nil {
		t.Error(err)
	}
	last, worst := h.report(t, "planned restart", began)
	if last > allBackIn {
		t.Errorf("the last is back after %v, want within %v", last, allBackIn)
	}
	if share := float64(worst) / float64(len(h.agents)); share > maxShare {
		t.Errorf("%.1f %% of the agents came in one second, want at most %.0f %%", 100*share, 100*maxShare)
	}
	// Nobody took a clean close for leave to come back at once.
	for i, r := range h.events {
		if back := r.since(began, connected); len(back) > 0 && back[0].at.Sub(began) < 900*time.Millisecond {
			t.Errorf("agent %d was back after %v", i, back[0].at.Sub(began))
		}
	}
}

func TestPlannedRestartWith2000Agents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 2000
		if testing.Short() {
			n = 200
		}
		h, err := newHerd(inMemory{memnet.New()}, n)
		defer h.close()
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		h.checkDrain(t)
	})
}

// A kill or a flap is met by each agent's own backoff. The histogram is
// reported; that nobody comes back all at once, and everybody comes, is checked.
func TestKillAndFlap(t *testing.T) {
	n := 400
	if testing.Short() {
		n = 100
	}
	if long() {
		n = 2000
	}
	for _, what := range []string{"relay killed, back after 5 s", "network gone for 20 s"} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, err := newHerd(inMemory{memnet.New()}, n)
				defer h.close()
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(30 * time.Second)
				if strings.HasPrefix(what, "relay") {
					// The edge stays, and refuses for the relay that is not there.
					h.agentPath.ArmEvery(faultproxy.Refuse(""))
					h.agentPath.CutAll()
					time.Sleep(5 * time.Second)
					h.agentPath.Disarm()
				} else {
					h.agentPath.StallAll(both)
					h.agentPath.ArmEvery(faultproxy.Stall(both))
					time.Sleep(20 * time.Second)
					h.agentPath.Disarm()
					h.agentPath.CutAll()
				}
				up := time.Now()
				if err := h.waitUntil("all agents are back", 5*time.Minute, func() bool {
					for _, r := range h.events {
						if len(r.since(up, connected)) == 0 {
							return false
						}
					}
					return true
				}); err != nil {
					t.Error(err)
				}
				h.report(t, what, up)
			})
		})
	}
}

// A server that accepts and closes in an orderly way at once is met with growing
// waits: a clean close alone resets nothing.
func TestNobodyBacksOffToZeroBecauseOfACleanClose(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		began := time.Now()
		w.agentPath.ArmEvery(faultproxy.Finish(down).At(faultproxy.Frame(2)))
		w.agentPath.FinishAll(down)
		time.Sleep(10 * time.Minute)
		n := len(w.events.since(began, connected))
		// Full jitter under 1, 2, 4 … 30 s: 15 s a try on the average.
		if n < 20 || n > 100 {
			t.Errorf("connected %d times in 10 minutes, want about 45", n)
		}
	})
}

func TestPlannedRestartOnLoopback(t *testing.T) {
	if !long() {
		t.Skip("takes a minute of real time: HOLDFAST_LONG=1")
	}
	h, err := newHerd(&onLoopback{}, 300)
	defer h.close()
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(12 * time.Second) // stable
	h.checkDrain(t)
}
