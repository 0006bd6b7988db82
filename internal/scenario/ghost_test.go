package scenario

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/engine"
	"holdfast/internal/faultproxy"
	"holdfast/internal/memnet"
	"holdfast/internal/wire"
)

// inBubble runs f with a world in virtual time whose agent is up.
func inBubble(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w, err := newWorld(inMemory{memnet.New()})
		if err != nil {
			t.Fatal(err)
		}
		defer w.close()
		if err := w.startAgent(); err != nil {
			t.Fatal(err)
		}
		if err := w.ready(); err != nil {
			t.Fatal(err)
		}
		f(t, w)
	})
}

// The edge keeps the agent's TCP connection and answers its protocol pings,
// while the relay has lost the socket. Protocol pongs prove nothing about a
// dial: 100 s after the relay's last word the agent has a new connection.
func TestGhostEdgeIsLeftWithin100s(t *testing.T) {
	// The relay's last word came this long before it lost the socket.
	for _, since := range []time.Duration{0, time.Second, 22 * time.Second, 44 * time.Second} {
		t.Run(since.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				time.Sleep(since)
				gone := time.Now()
				w.agentPath.Apply(faultproxy.AnswerPings(up))
				time.Sleep(101 * time.Second)
				over := w.events.since(gone, lost)
				if len(over) != 1 {
					t.Fatalf("given up %d times in 101 s: %+v", len(over), over)
				}
				if took, want := over[0].at.Sub(gone), 100*time.Second-since; took < want-exact || took > want {
					t.Errorf("noticed after %v, want %v", took, want)
				}
				if err := w.ready(); err != nil {
					t.Fatal(err)
				}
				back := w.events.since(over[0].at, connected)
				if len(back) != 1 || back[0].at.Sub(over[0].at) > time.Second {
					t.Errorf("back: %+v, want within the first backoff of a second", back)
				}
				if err := w.works(); err != nil {
					t.Errorf("after it is back: %v", err)
				}
			})
		})
	}
}

// held keeps what a relay holds, so that a test can take a socket's name away
// behind the relay's back, as a registry of many nodes could.
type held struct {
	engine.Router
	mu     sync.Mutex
	key    engine.Key
	holder engine.Holder
}

func (h *held) Hold(k engine.Key, epoch uint64, holder engine.Holder) (engine.Holder, error) {
	h.mu.Lock()
	h.key, h.holder = k, holder
	h.mu.Unlock()
	return h.Router.Hold(k, epoch, holder)
}

// The reverse ghost: the connection is as alive as can be, but the relay would
// not use it for a dial. The relay's answer to the next ping is its end, so the
// machine is back within one heartbeat.
func TestSocketThatNoDialWouldUseIsLeftWithinOneHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		router := &held{Router: engine.NewMemoryRouter()}
		w, err := newWorldOn(inMemory{memnet.New()}, router)
		if err != nil {
			t.Fatal(err)
		}
		defer w.close()
		if err := w.startAgent(); err != nil {
			t.Fatal(err)
		}
		if err := w.ready(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		router.mu.Lock()
		key, holder := router.key, router.holder
		router.mu.Unlock()
		router.Release(key, holder)
		stale := time.Now()
		time.Sleep(46 * time.Second)
		over := w.events.since(stale, lost)
		if len(over) != 1 || over[0].code != int64(wire.CloseRestart) {
			t.Fatalf("in 46 s: %+v, want one end with %d", over, wire.CloseRestart)
		}
		if took, want := over[0].at.Sub(stale), 35*time.Second; took < want-exact || took > want+exact {
			t.Errorf("noticed after %v, want at the heartbeat, %v", took, want)
		}
		if err := w.waitUntil("the agent is back", 10*time.Second, func() bool { return w.agent.Status().Proven }); err != nil {
			t.Fatal(err)
		}
		if err := w.works(); err != nil {
			t.Errorf("after it is back: %v", err)
		}
	})
}

// oldRelay takes control connections as relays did that predate the pong: it
// answers protocol pings, which its WebSocket code does, and nothing else.
func oldRelay(t *testing.T, f floor) (opened func() int, stop func()) {
	t.Helper()
	l, err := f.listen(agentPathAddr)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	n := 0
	var wait sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	server := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(rw, r, &websocket.AcceptOptions{Subprotocols: []string{wire.SubprotocolV1}})
		if err != nil {
			t.Errorf("accept: %v", err)
			return
		}
		wait.Add(1)
		defer wait.Done()
		defer c.CloseNow()
		mu.Lock()
		n++
		mu.Unlock()
		for {
			if _, _, err := c.Read(ctx); err != nil {
				return
			}
		}
	})}
	go server.Serve(l) // ended by stop
	return func() int {
			mu.Lock()
			defer mu.Unlock()
			return n
		}, func() {
			cancel()
			wait.Wait()
			server.Close()
		}
}

// A relay that never pongs is a relay that predates the pong: for a whole day
// its connection is left alone.
func TestAgentLeavesARelayThatNeverPongsAloneForADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := inMemory{memnet.New()}
		opened, stop := oldRelay(t, f)
		defer stop()
		w := &world{floor: f, router: engine.NewMemoryRouter(), events: &record{}, agentToken: wire.NewToken()}
		defer w.close()
		w.agentOptions = w.optionsOfAgent()
		if err := w.startAgent(); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		time.Sleep(24 * time.Hour)
		if over := w.events.since(began, lost); len(over) > 0 || opened() != 1 {
			t.Errorf("given up %d times, opened %d times: %+v", len(over), opened(), over)
		}
		if s := w.agent.Status(); s.Proven || s.ConnectedSince.IsZero() {
			t.Errorf("status %+v, want connected and never proven", s)
		}
	})
}
