package enginetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/engine"
	"holdfast/internal/wire"
)

// OpenRouter gives a fresh router that is closed when the test ends.
type OpenRouter func(t *testing.T) engine.Router

// RouterConformance is what a relay counts on in a Router.
func RouterConformance(t *testing.T, open OpenRouter) {
	for _, c := range []struct {
		name string
		test func(*testing.T, engine.Router)
	}{
		{"NobodyHolds", testNobody},
		{"HoldAndDeliver", testHold},
		{"HigherEpochReplaces", testReplace},
		{"StaleReleaseKeepsTheHolder", testStaleRelease},
		{"SameNameInTwoAccounts", testTwoAccounts},
		{"HolderFails", testHolderFails},
		{"HolderVanishesDuringDeliver", testVanish},
		{"DeliverFollowsToTheNewHolder", testFollow},
		{"DisconnectRace", testDisconnectRace},
		{"RouterClosed", testRouterClosed},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, open(t)) })
	}
}

// errGone is what a holder's Deliver says after its socket was closed.
var errGone = errors.New("socket is gone")

// holder counts what it was given.
type holder struct {
	name    string
	got     atomic.Int64
	gone    atomic.Bool
	deliver func() // called first, if set
}

func (h *holder) Deliver(wire.Message) error {
	if h.deliver != nil {
		h.deliver()
	}
	if h.gone.Load() {
		return fmt.Errorf("holder %s: %w", h.name, errGone)
	}
	h.got.Add(1)
	return nil
}

var dial = wire.Message{Op: wire.OpDial, ConnID: "n1.abc"}

func testNobody(t *testing.T, r engine.Router) {
	must(t, r.Ping(t.Context()))
	wantErr(t, r.Deliver(t.Context(), mini, dial), engine.ErrNoHolder)
	h := &holder{name: "a"}
	if r.Holds(mini, h) {
		t.Error("a stranger holds the name")
	}
	r.Release(mini, h)
}

func testHold(t *testing.T, r engine.Router) {
	h := &holder{name: "a"}
	before, err := r.Hold(mini, 1, h)
	must(t, err)
	if before != nil {
		t.Errorf("replaced %v, want nobody", before)
	}
	if !r.Holds(mini, h) {
		t.Error("the holder does not hold")
	}
	must(t, r.Deliver(t.Context(), mini, dial))
	if h.got.Load() != 1 {
		t.Errorf("delivered %d times", h.got.Load())
	}
	r.Release(mini, h)
	r.Release(mini, h)
	if r.Holds(mini, h) {
		t.Error("holds after its release")
	}
	wantErr(t, r.Deliver(t.Context(), mini, dial), engine.ErrNoHolder)
	// A cancelled request is not delivered.
	_, err = r.Hold(mini, 2, h)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Deliver(ctx, mini, dial); err == nil || h.got.Load() != 1 {
		t.Errorf("a cancelled delivery: %v, delivered %d times", err, h.got.Load())
	}
}

func testReplace(t *testing.T, r engine.Router) {
	a, b := &holder{name: "a"}, &holder{name: "b"}
	_, err := r.Hold(mini, 5, a)
	must(t, err)
	for _, epoch := range []uint64{0, 4, 5} {
		_, err := r.Hold(mini, epoch, b)
		wantErr(t, err, engine.ErrStaleAttempt)
	}
	if !r.Holds(mini, a) || r.Holds(mini, b) {
		t.Error("a lower epoch took the name")
	}
	before, err := r.Hold(mini, 6, b)
	must(t, err)
	if before != engine.Holder(a) {
		t.Errorf("replaced %v, want a", before)
	}
	// At once: the old socket answers neither pong nor dial from here on.
	if r.Holds(mini, a) || !r.Holds(mini, b) {
		t.Error("the replaced holder still holds")
	}
	must(t, r.Deliver(t.Context(), mini, dial))
	if a.got.Load() != 0 || b.got.Load() != 1 {
		t.Errorf("delivered to a %d, to b %d", a.got.Load(), b.got.Load())
	}
}

func testStaleRelease(t *testing.T, r engine.Router) {
	a, b := &holder{name: "a"}, &holder{name: "b"}
	_, err := r.Hold(mini, 1, a)
	must(t, err)
	_, err = r.Hold(mini, 2, b)
	must(t, err)
	r.Release(mini, a)
	if !r.Holds(mini, b) {
		t.Fatal("the old holder's release removed the new one")
	}
	must(t, r.Deliver(t.Context(), mini, dial))
}

func testTwoAccounts(t *testing.T, r engine.Router) {
	a, b := &holder{name: "a"}, &holder{name: "b"}
	other := engine.Key{Account: "other", Machine: "mini"}
	_, err := r.Hold(mini, 9, a)
	must(t, err)
	before, err := r.Hold(other, 1, b)
	must(t, err)
	if before != nil {
		t.Errorf("replaced %v of another account", before)
	}
	must(t, r.Deliver(t.Context(), other, dial))
	r.Release(mini, a)
	if a.got.Load() != 0 || b.got.Load() != 1 || !r.Holds(other, b) {
		t.Error("two accounts' machines of one name touch each other")
	}
}

func testHolderFails(t *testing.T, r engine.Router) {
	h := &holder{name: "a"}
	_, err := r.Hold(mini, 1, h)
	must(t, err)
	h.gone.Store(true)
	err = r.Deliver(t.Context(), mini, dial)
	if !errors.Is(err, errGone) && !errors.Is(err, engine.ErrNoHolder) {
		t.Errorf("a holder that fails: %v", err)
	}
}

// The holder's socket dies while a dial is on its way: it releases the name from
// within Deliver, which must not lock up, and the answer is "nobody".
func testVanish(t *testing.T, r engine.Router) {
	h := &holder{name: "a"}
	h.deliver = func() {
		h.gone.Store(true)
		r.Release(mini, h)
	}
	_, err := r.Hold(mini, 1, h)
	must(t, err)
	done := make(chan error, 1)
	go func() { done <- r.Deliver(t.Context(), mini, dial) }() // ends by itself; waited for below
	select {
	case err := <-done:
		wantErr(t, err, engine.ErrNoHolder)
	case <-time.After(10 * time.Second):
		t.Fatal("Deliver hangs")
	}
}

// The agent came back while the dial was on its way to its old socket.
func testFollow(t *testing.T, r engine.Router) {
	a, b := &holder{name: "a"}, &holder{name: "b"}
	a.deliver = func() {
		a.gone.Store(true)
		if _, err := r.Hold(mini, 2, b); err != nil {
			t.Error(err)
		}
	}
	_, err := r.Hold(mini, 1, a)
	must(t, err)
	must(t, r.Deliver(t.Context(), mini, dial))
	if b.got.Load() != 1 {
		t.Errorf("the new holder got %d dials", b.got.Load())
	}
}

// Agents connect, are replaced and vanish while devices dial: every dial is
// answered, none is counted as delivered that no holder took, and at the end the
// newest holder has the name.
func testDisconnectRace(t *testing.T, r engine.Router) {
	const agents, devices, rounds = 4, 4, 500
	var epoch atomic.Uint64
	var delivered, taken atomic.Int64
	var working sync.WaitGroup
	stop := make(chan struct{})
	for range agents {
		working.Go(func() {
			for i := range rounds {
				h := &holder{name: "racer"}
				h.deliver = func() {
					if !h.gone.Load() {
						taken.Add(1)
					}
				}
				e := epoch.Add(1)
				before, err := r.Hold(mini, e, h)
				if err != nil {
					if !errors.Is(err, engine.ErrStaleAttempt) {
						t.Errorf("hold: %v", err)
					}
					continue
				}
				if before != nil {
					before.(*holder).gone.Store(true)
				}
				if i%3 == 0 && rand.IntN(2) == 0 {
					h.gone.Store(true)
				}
				r.Release(mini, h)
				if r.Holds(mini, h) {
					t.Error("holds after its release")
				}
			}
		})
	}
	var dialling sync.WaitGroup
	for range devices {
		// Ended by stop; waited for below.
		dialling.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				err := r.Deliver(t.Context(), mini, dial)
				switch {
				case err == nil:
					delivered.Add(1)
				case !errors.Is(err, engine.ErrNoHolder) && !errors.Is(err, errGone):
					t.Errorf("deliver: %v", err)
				}
			}
		})
	}
	working.Wait()
	close(stop)
	finished := make(chan struct{})
	go func() { dialling.Wait(); close(finished) }() // ends with the devices
	select {
	case <-finished:
	case <-time.After(30 * time.Second):
		t.Fatal("a delivery hangs")
	}
	if delivered.Load() > taken.Load() {
		t.Errorf("%d dials were called delivered, holders took %d", delivered.Load(), taken.Load())
	}
	last := &holder{name: "last"}
	_, err := r.Hold(mini, epoch.Add(1), last)
	must(t, err)
	must(t, r.Deliver(t.Context(), mini, dial))
	if last.got.Load() != 1 {
		t.Error("the newest holder got nothing")
	}
}

func testRouterClosed(t *testing.T, r engine.Router) {
	h := &holder{name: "a"}
	_, err := r.Hold(mini, 1, h)
	must(t, err)
	must(t, r.Close())
	must(t, r.Close())
	if _, err := r.Hold(mini, 2, h); err == nil {
		t.Error("a closed router takes a holder")
	}
	if err := r.Ping(t.Context()); err == nil {
		t.Error("a closed router answers a ping")
	}
	wantErr(t, r.Deliver(t.Context(), mini, dial), engine.ErrNoHolder)
}
