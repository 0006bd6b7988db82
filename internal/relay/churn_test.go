package relay

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"holdfast/internal/frame"
	"holdfast/internal/relay/axes"
	"holdfast/internal/wire"
)

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("this system does not list descriptors")
	}
	return len(list)
}

// liveHeap is what is reachable, after what finalizers and pools let go.
func liveHeap() uint64 {
	var m runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Streams that are aborted in any phase leave nothing: no descriptor, no
// goroutine, no entry, no memory.
func TestAbortedStreamsLeaveNothing(t *testing.T) {
	rounds := 100
	if os.Getenv("HOLDFAST_LONG") == "1" {
		rounds = 1000
	}
	phases := map[string]func(g *rig, a *agent, device issued){
		"before the dial-back": func(g *rig, a *agent, device issued) {
			conn, _ := g.rawDevice(a, device)
			_ = conn.Close()
		},
		"by refusal": func(g *rig, a *agent, device issued) {
			conn, m := g.rawDevice(a, device)
			a.send(wire.Message{Op: wire.OpRefuse, ConnID: m.ConnID, Code: 4502})
			_, _, _ = closeCode(conn)
			_ = conn.Close()
		},
		"by the device": func(g *rig, a *agent, device issued) {
			conn, m := g.rawDevice(a, device)
			back := g.rawUpgrade(wire.AgentDataPath("mini", m.ConnID), a.token.text)
			write(a.t.(*testing.T), back, masked(frame.Binary, true, []byte("SSH-2.0-x\r\n")))
			_ = conn.Close()
			_, _, _ = closeCode(back)
			_ = back.Close()
		},
		"by the agent": func(g *rig, a *agent, device issued) {
			conn, m := g.rawDevice(a, device)
			back := g.rawUpgrade(wire.AgentDataPath("mini", m.ConnID), a.token.text)
			write(a.t.(*testing.T), conn, masked(frame.Binary, true, []byte("SSH-2.0-x\r\n")))
			_ = back.Close()
			_, _, _ = closeCode(conn)
			_ = conn.Close()
		},
	}
	for name, abort := range phases {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, func(o *Options) { o.Limits.NewStreams = 1 << 20 })
			a := g.ready("mini")
			device := g.deviceToken()
			for range 3 {
				abort(g, a, device) // whatever is made once is made now
			}
			quiet := func() bool {
				return g.relay.axes.Count(axes.Device)+g.relay.axes.Count(axes.Agent)+g.relay.dials.Count() == 0
			}
			eventually(t, "the first are gone", quiet)
			time.Sleep(50 * time.Millisecond)
			goroutines, files, heap := runtime.NumGoroutine(), descriptors(t), liveHeap()
			for range rounds {
				abort(g, a, device)
			}
			eventually(t, "all are gone", quiet)
			eventually(t, "goroutines and descriptors are back", func() bool {
				return runtime.NumGoroutine() <= goroutines+3 && descriptors(t) <= files+3
			})
			// The rig's own records and log are 2 KB a round; a buffer that stayed is 4 at
			// the least.
			if now := liveHeap(); now > heap+uint64(rounds)*4096 {
				t.Errorf("%d aborted streams left %d KB", rounds, (now-heap)>>10)
			}
			if n := g.relay.axes.Streams(device.ID); n != 0 {
				t.Errorf("%d streams are still counted", n)
			}
			a.pong()
		})
	}
}

// Many processes fight for one name: in the end one holds it, that one answers,
// and everybody else was told whose it is.
func TestFightForAName(t *testing.T) {
	const fighters = 24
	g := newRig(t)
	tok := g.agentToken("mini")
	var wg sync.WaitGroup
	agents := make([]*agent, fighters)
	for i := range fighters {
		wg.Go(func() {
			ws, _, err := g.open("/agent/mini", header(tok.text,
				wire.HeaderInstance, fmt.Sprintf("instance-%04d-abcdefgh", i), wire.HeaderAttempt, "1"))
			if err == nil {
				agents[i] = &agent{t, g, "mini", tok, ws}
			}
		})
	}
	wg.Wait()
	m, err := g.store.Machine(g.ctx(), keyOfMini)
	if err != nil {
		t.Fatal(err)
	}
	winners := 0
	for i, a := range agents {
		if a == nil {
			t.Fatalf("fighter %d was refused", i)
		}
		name := wire.Instance(fmt.Sprintf("instance-%04d-abcdefgh", i))
		if name == m.Instance {
			winners++
			a.pong()
			continue
		}
		ce := closeOf(t, a.ws, 10*time.Second)
		if by := wire.ReplacedBy(ce.Reason); ce.Code != 4409 || by == "" || by == name {
			t.Errorf("fighter %d was closed %d %q", i, ce.Code, ce.Reason)
		}
	}
	if winners != 1 {
		t.Errorf("%d fighters hold the name", winners)
	}
	eventually(t, "one socket is left", func() bool { return g.relay.axes.Count(axes.Control) == 1 })
}
