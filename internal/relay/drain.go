package relay

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"holdfast/internal/engine"
	"holdfast/internal/liveness"
	"holdfast/internal/relay/admit"
	"holdfast/internal/relay/axes"
	"holdfast/internal/relay/controls"
	"holdfast/internal/wire"
)

const (
	// drainBase is how long a restart takes at least: nobody is told to come back
	// sooner.
	drainBase = admit.Base
	// drainSpread is over how long many agents come back: 6 % of them in any
	// second, and all well within half a minute. At half it would be over the
	// tenth that a relay should have to take in a second.
	drainSpread = 16 * time.Second
	// drainFew agents are fewer than can be held to a tenth in a second. They
	// come one by one, drainEach apart, so that a person with one machine does
	// not wait for a herd.
	drainFew  = 20
	drainEach = 1050 * time.Millisecond
	// drainPoll is how often it is looked whether all sockets have gone.
	drainPoll = 20 * time.Millisecond
)

// Drain prepares a restart: it stops accepting, tells each agent when to come
// back, spread so that no second gets more than a tenth of them, and closes
// every socket with 1012 and that delay. It returns when all are gone, or with
// ctx's error. Close comes next.
func (r *Relay) Drain(ctx context.Context) error {
	r.door.Shut()
	// Closes the listeners at once, then waits for requests under way.
	r.background(func() { _ = r.server.Shutdown(ctx) })

	began := time.Now()
	r.farewell(r.axes.OfRole(axes.Control), slices.Concat(r.axes.OfRole(axes.Device), r.axes.OfRole(axes.Live), r.axes.OfRole(axes.Agent)))
	if err := r.settle(ctx); err != nil {
		return fmt.Errorf("drain: %d sockets are still there: %w", r.axes.Total(), err)
	}
	r.log.Info("drained", "took", time.Since(began))
	return nil
}

// farewell tells agents when to come back, spread, and everybody else to come
// back a little after the machine that they want.
func (r *Relay) farewell(agents, others []*axes.Member) {
	delays := spread(len(agents))
	began := time.Now()
	of := make(map[engine.Key]time.Duration, len(agents))
	for i, m := range agents {
		of[m.Key()] = delays[i]
		// One that cannot be told learns it from the close frame.
		_ = m.Self().(*controls.Conn).Deliver(wire.Message{Op: wire.OpDrain, AfterMs: delays[i].Milliseconds()})
	}
	left := func(d time.Duration) string { return liveness.RestartReason(d - time.Since(began)) }
	for i, m := range agents {
		m.Self().End(wire.CloseRestart, left(delays[i]))
	}
	for _, m := range others {
		// A machine is back by then, or nearly.
		m.Self().End(wire.CloseRestart, left(of[m.Key()]+drainBase))
	}
}

// settle waits until every socket that was told to go has gone.
func (r *Relay) settle(ctx context.Context) error {
	tick := time.NewTicker(drainPoll)
	defer tick.Stop()
	for r.axes.Total() > 0 {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
	return nil
}

// spread gives each of n peers its delay, in random order and evenly, so that no
// second is fuller than another whenever it begins.
func spread(n int) []time.Duration {
	each := drainEach
	if n >= drainFew {
		each = drainSpread / time.Duration(n)
	}
	out := make([]time.Duration, n)
	for i, place := range rand.Perm(n) {
		out[i] = drainBase + time.Duration(place)*each
	}
	return out
}
