package relay

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"holdfast/internal/engine"
	"holdfast/internal/wire"
)

const (
	// drainBase is how long a restart takes at least: nobody is told to come back
	// sooner.
	drainBase = time.Second
	// drainEach is the part of the spread that each of a few agents gets, so that
	// a person with one machine does not wait for a herd.
	drainEach = time.Second
	// drainPoll is how often Drain looks whether all have gone.
	drainPoll = 20 * time.Millisecond
)

// Drain prepares a restart: it stops accepting, tells each agent when to come
// back, spread so that no second gets more than a tenth of them, and closes
// every socket with 1012 and that delay. It returns when all are gone, or with
// ctx's error. Close comes next.
func (r *Relay) Drain(ctx context.Context) error {
	r.draining.Store(true)
	// Closes the listeners at once, then waits for requests under way.
	r.background(func() { _ = r.server.Shutdown(ctx) })

	agents := r.axes.ofRole(roleControl)
	delays := spread(len(agents), time.Duration(r.limits.DrainSpreadMs)*time.Millisecond)
	began := time.Now()
	of := make(map[engine.Key]time.Duration, len(agents))
	for i, m := range agents {
		of[m.key()] = delays[i]
		// One that cannot be told learns it from the close frame.
		_ = m.self.(*control).Deliver(wire.Message{Op: wire.OpDrain, AfterMs: delays[i].Milliseconds()})
	}
	left := func(d time.Duration) string { return wire.RestartReason(d - time.Since(began)) }
	for i, m := range agents {
		m.self.end(wire.CloseRestart, left(delays[i]))
	}
	for _, m := range r.axes.ofRole(roleDevice) {
		// Its machine is back by then, or nearly.
		m.self.end(wire.CloseRestart, left(of[m.key()]+drainBase))
	}
	tick := time.NewTicker(drainPoll)
	defer tick.Stop()
	for r.axes.count(roleControl)+r.axes.count(roleDevice)+r.axes.count(roleAgent) > 0 {
		select {
		case <-ctx.Done():
			return fmt.Errorf("drain: %w", context.Cause(ctx))
		case <-tick.C:
		}
	}
	r.log.Info("drained", "machines", len(agents), "took", time.Since(began))
	return nil
}

// spread gives each of n peers its own part of the window, in random order and
// at a random place in that part: even without any peer's own jitter, no second
// is fuller than another.
func spread(n int, window time.Duration) []time.Duration {
	window = min(window, time.Duration(n)*drainEach)
	out := make([]time.Duration, n)
	for i, slot := range rand.Perm(n) {
		out[i] = drainBase + time.Duration((float64(slot)+rand.Float64())/float64(n)*float64(window))
	}
	return out
}
