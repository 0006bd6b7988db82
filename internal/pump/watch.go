package pump

import (
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/liveness"
)

// watch is the liveness of one leg. Reads note the time in heard and nothing
// else; the judge learns of them at the next tick.
type watch struct {
	// heard is when the last byte came, in nanoseconds since the pump's start.
	heard atomic.Int64
	// paused is set while this leg is not read because the other is slow.
	paused atomic.Bool
	// told is what the judge knows of paused.
	told atomic.Bool

	// written counts the bytes that were written to this leg.
	written atomic.Int64
	// question is when the first ping since heard was written, in the unit of
	// heard; questionEnd is where in the bytes written it ended.
	question    atomic.Int64
	questionEnd atomic.Int64

	mu    sync.Mutex
	judge liveness.Judge
	// reported is the newest heard that the judge knows.
	reported time.Duration
	// decided is when the open question is; liveness.Never while there is none.
	decided time.Duration
	gone    int64 // how much of written was under way at the last tick
	timer   *time.Timer
	stopped bool
}

// heardNow notes a sign of life.
func (l *leg) heardNow() { l.watch.heard.Store(int64(time.Since(l.pump.start))) }

// startTicks starts the judge and the timer.
func (l *leg) startTicks() {
	l.heardNow()
	w := &l.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	now := l.pump.clock.At(time.Now())
	w.judge.Start(&l.pump.opt.Liveness, now)
	e := w.judge.Ready(now)
	w.decided = liveness.Never
	l.pump.aside.Add(1)
	w.timer = time.AfterFunc(e.Next-now.Mono, l.tick)
}

// stopTicks ends the timer; a tick that is running ends by itself, and the
// pump waits for it.
func (l *leg) stopTicks() {
	w := &l.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	if w.timer.Stop() {
		l.pump.aside.Done()
	}
}

// tick pings and judges. Each call of it is one count of pump.aside.
func (l *leg) tick() {
	defer l.pump.aside.Done()
	w := &l.watch
	w.mu.Lock()
	e := l.consult()
	if e.Dead == 0 && !w.stopped && e.Next != liveness.Never {
		// Set before the ping is written: that write may block for long.
		l.pump.aside.Add(1)
		w.timer.Reset(max(0, e.Next-time.Since(l.pump.start)))
	}
	w.mu.Unlock()
	switch {
	case e.Dead != 0:
		l.pump.dead(l.side)
	case e.Probes != 0:
		l.sendPing()
	}
}

// consult tells the judge what happened since the last time and asks it. w.mu is
// held.
func (l *leg) consult() liveness.Effects {
	w := &l.watch
	now := l.pump.clock.At(time.Now())
	heard := time.Duration(w.heard.Load())
	var probes liveness.Probe
	if heard > w.reported {
		// The wall's time of that moment is not known; both clocks are taken to
		// have run alike since. Sleep shows in the difference to the tick before.
		w.reported = heard
		at := liveness.Instant{Wall: now.Wall - (now.Mono - heard), Mono: heard}
		probes = w.judge.Inbound(at, liveness.InByte).Probes
	}
	// Only where the verdict would fall: a ping that left a moment before the
	// question was opened is no reason to put the question off.
	if unasked := l.owesNothing(now.Mono); unasked && now.Mono >= w.decided {
		probes |= w.judge.Inbound(now, liveness.InByte).Probes
	}
	paused := w.paused.Load()
	w.told.Store(paused)
	e := w.judge.PausedReading(now, paused)
	e.Probes |= probes
	w.decided = liveness.Never
	if e.State == liveness.Suspect {
		w.decided = e.Next
	}
	return e
}

// pinged notes that a ping was written.
func (l *leg) pinged() {
	w := &l.watch
	if w.question.Load() > w.heard.Load() {
		return // the peer still owes the answer to an earlier one
	}
	written, _ := l.progress()
	w.questionEnd.Store(written)
	w.question.Store(int64(time.Since(l.pump.start)))
}

// owesNothing reports whether the peer cannot have answered yet: our ping has
// left much later than the judge asked for it, or it waits behind data, and that is getting less.
// Such a peer reads slowly, and what has not been asked needs no answer. w.mu is
// held.
func (l *leg) owesNothing(now time.Duration) bool {
	w := &l.watch
	_, gone := l.progress()
	moved := gone > w.gone
	w.gone = gone
	asked := time.Duration(w.question.Load())
	if asked <= time.Duration(w.heard.Load()) {
		return moved && l.ctl.pingWaits()
	}
	late := now-asked < l.pump.opt.Liveness.Tracks[0].Window-liveness.LateTick
	return late || moved && gone < w.questionEnd.Load()
}

// progress is how many bytes were written to this leg, and how many of them have
// gone as far as can be told: to the peer's kernel or else to ours.
func (l *leg) progress() (written, gone int64) {
	if l.outbound != nil {
		return l.outbound.Progress()
	}
	n := l.watch.written.Load()
	return n, n
}

// pause says that this leg is not read for now.
func (l *leg) pause() { l.watch.paused.Store(true) }

// resume says that it is read again. It owes no sign of life for the pause.
func (l *leg) resume() {
	w := &l.watch
	l.heardNow()
	w.paused.Store(false)
	if !w.told.Load() {
		return
	}
	// A tick came during the pause and may have set the timer far off.
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil && !w.stopped && w.timer.Stop() {
		w.timer.Reset(0) // the count of pump.aside goes on with it
	}
}
