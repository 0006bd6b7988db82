// Package liveness decides when a connection is dead, when to try again and
// what may wait meanwhile. Evidence and time go in, verdicts come out: a Judge
// for one socket, a Funnel for the life of a channel over many sockets, an
// Outbox for what cannot be sent yet, and the close codes' meaning as data.
//
// It never opens a socket, starts a goroutine, sets a timer or reads a clock:
// the goroutine that owns the connection holds the timer, passes the time with
// every event and does what the effects say. The specification with the reason
// for every number is docs/liveness.md; testdata/vectors/liveness holds the
// cases that this and any other implementation must pass.
//
// What a caller will get wrong: events of one Judge or Funnel must not overlap
// (guard them with the connection's own lock), a read that has bytes waiting
// must be reported before the tick that would judge, and a pause of one's own
// reading must be told, or a stopped reader looks like a dead path.
package liveness

import (
	"math"
	"time"
)

// Instant is one moment on both clocks, each counted from a start of its own.
// Only differences are looked at.
type Instant struct {
	// Wall is the time of day. It may be stepped either way, and it counts on
	// during sleep.
	Wall time.Duration
	// Mono never goes back and may stand still during sleep.
	Mono time.Duration
}

// Never is the Next of effects that wait for no time.
const Never time.Duration = math.MaxInt64

// Clock turns time.Time into Instants. The zero value is not usable.
type Clock struct{ start time.Time }

// NewClock counts monotonic time from start, which must come from time.Now.
func NewClock(start time.Time) Clock { return Clock{start} }

// At is the Instant of t, which must come from time.Now, or both clocks are
// the wall's.
func (c Clock) At(t time.Time) Instant {
	return Instant{Wall: time.Duration(t.UnixNano()), Mono: t.Sub(c.start)}
}

// SleepGap is how much further than the monotonic clock the wall clock must
// have gone before it counts as sleep. Half of it would take an NTP step after
// boot for sleep (a probe too many), twice would miss naps that outlast a
// typing window.
const SleepGap = 2 * time.Second

// LateTick is how late a tick may be before it is taken for suspension or
// throttling. Browsers align the timers of hidden pages to 1 s, so half of it
// would call each of those late; twice would let a stop of 3 s, the whole
// window of the typing rule, pass for time in which an answer could have come.
const LateTick = 2 * time.Second

// Watch finds sleep and clock steps from a series of Instants. The zero value
// is ready; the first observation only starts it.
type Watch struct {
	last    Instant
	started bool
}

// Observe compares both clocks with the last observation. It returns how long
// the machine slept, as far as one can tell: a step of the wall clock forward
// looks the same, and costs a probe. A step back returns 0.
func (w *Watch) Observe(now Instant) (slept time.Duration) {
	if w.started {
		gap := (now.Wall - w.last.Wall) - (now.Mono - w.last.Mono)
		if gap > SleepGap {
			slept = gap
		}
	}
	w.last, w.started = now, true
	return slept
}

// sum is a moment some time after another; it saturates at Never.
func sum(at, d time.Duration) time.Duration {
	if d > Never-at {
		return Never
	}
	return at + d
}
