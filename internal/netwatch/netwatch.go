// Package netwatch tells when the ground under a machine's connections moved:
// the computer slept, its clock was stepped, or its network changed. It judges
// nothing: whoever hears of it probes its links and lets the judge decide.
//
// What a caller will get wrong: an event says "look now", never "dead"; a short
// sleep on the same network raises no network event at all, and a network event
// comes in bursts, so both are needed and both are folded into one signal.
package netwatch

import (
	"context"
	"log/slog"
	"time"
)

// Kind says what moved. Kinds are bits: one Event may hold several.
type Kind uint8

const (
	// Slept: the wall clock ran ahead of the monotonic one, or a tick came far
	// too late: the computer slept, was stopped, or its clock was set forward.
	Slept Kind = 1 << iota
	// SteppedBack: the wall clock was set back.
	SteppedBack
	// Network: an interface, an address or a route changed.
	Network
)

// String names the kinds for logs, in a fixed order.
func (k Kind) String() string {
	s := ""
	for _, n := range []struct {
		kind Kind
		name string
	}{{Slept, "slept"}, {SteppedBack, "clock stepped back"}, {Network, "network changed"}} {
		if k&n.kind != 0 {
			if s != "" {
				s += ", "
			}
			s += n.name
		}
	}
	return s
}

const (
	// tick is how often the clocks are compared. At half of it an idle laptop
	// wakes twice as often for nothing; at double, a lid that was opened waits
	// ten seconds for its first probe.
	tick = 5 * time.Second
	// slack is the gap between the clocks that means something. NTP slews far
	// less than this in one tick; half would see a loaded machine as asleep.
	slack = 3 * time.Second
	// settle gathers a burst of network messages: an interface that comes up
	// sends a dozen within a few milliseconds.
	settle = 250 * time.Millisecond
)

// Clock reads both clocks at once. Mono is monotonic since any fixed point and
// stands still during sleep where the system's does.
type Clock func() (wall time.Time, mono time.Duration)

// Options configure Watch. The zero value watches the real clocks and network.
type Options struct {
	// Clock is what tests replace; nil means the system's.
	Clock Clock
	// Changes delivers a value for each network message; nil means the system's
	// source: netlink on Linux, the route socket on macOS and the BSDs, and a
	// comparison of the interfaces' addresses every tick elsewhere.
	Changes <-chan struct{}
	// Logger is told once if the system's source cannot be opened (the clocks
	// are watched all the same); nil means silence.
	Logger *slog.Logger
}

// Watch calls notify for each event until ctx ends, and returns then. notify
// runs on Watch's own goroutine and must not block.
func Watch(ctx context.Context, o Options, notify func(Kind)) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if o.Clock == nil {
		start := time.Now()
		o.Clock = func() (time.Time, time.Duration) {
			now := time.Now()
			return now.Round(0), now.Sub(start)
		}
	}
	if o.Changes == nil {
		changes, err := systemChanges(ctx)
		if err != nil && o.Logger != nil {
			o.Logger.Warn("network changes are not watched, only sleep and clock steps", "err", err)
		}
		o.Changes = changes
	}
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	settled := time.NewTimer(settle)
	settled.Stop()
	defer settled.Stop()
	wall, mono := o.Clock()
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-o.Changes:
			if !ok {
				o.Changes = nil // the source ended: the clocks go on
				continue
			}
			settled.Reset(settle)
		case <-settled.C:
			notify(Network)
		case <-ticker.C:
			w, m := o.Clock()
			if k := compare(w.Sub(wall), m-mono); k != 0 {
				notify(k)
			}
			wall, mono = w, m
		}
	}
}

// compare judges one tick's movement of the two clocks.
func compare(wall, mono time.Duration) Kind {
	var k Kind
	if wall-mono > slack || mono > tick+slack {
		k |= Slept
	}
	if mono-wall > slack {
		k |= SteppedBack
	}
	return k
}
