// Package wheel calls things whose time is over, coarsely and cheaply: a timer
// wheel for very many entries that are nearly always renewed before.
//
// Setting a later time does not move an entry: it is looked at when the slot of
// its old time comes, and put into the slot of the new one then. So a renewal
// costs one store. It runs no goroutine, and no timer while it is empty.
//
// A turn that comes late (the process was stopped) calls nothing over that could
// not be renewed meanwhile: each such entry gets one fresh minute.
//
// What a caller will get wrong: a time may be called over up to a second late, and
// at the very moment of a renewal. An entry stays known to the wheel, for minutes, after
// it was set to never.
package wheel

import (
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/liveness"
)

const (
	// tick is the precision. The times set here are minutes; half would wake an
	// idle relay twice as often for nothing.
	tick = time.Second
	// slots times tick is the longest time that needs no second round.
	slots = 256
	// lateTicks is how far behind the wheel may be before the whole process must
	// have been stopped, or its computer loaded beyond use: what has arrived
	// meanwhile is not read yet then.
	lateTicks = uint32(liveness.LateTick / tick)
	// freshTicks is what an entry gets in that case instead of its end, once:
	// longer than a peer's heartbeat, so that a healthy one is heard.
	freshTicks = uint32(liveness.ReapWindow / tick)
	// fresh marks in Entry.at that it has had that. Ticks do not reach this bit
	// in 68 years.
	fresh = uint32(1) << 31
)

// Entry is the wheel's part of something that may expire.
type Entry struct {
	at atomic.Uint32 // the tick at which it is over, with fresh; zero is never
	// filed is the tick at which it is looked at, zero if in no slot; the slot of
	// another tick that has it too has it no more. Written under Wheel.mu.
	filed atomic.Uint32
}

// Wheel is one wheel. Its owner must Stop it.
type Wheel[T any] struct {
	start   time.Time
	entry   func(T) *Entry
	expired func(T)

	mu      sync.Mutex
	slots   [slots][]T
	count   int    // entries in slots
	now     uint32 // ticks that were worked off
	timer   *time.Timer
	stopped bool
	running sync.WaitGroup // one while the timer is set or its function runs
}

// New makes an empty wheel for items whose Entry, always the same one, entry
// returns. expired is called for an item whose time is over, and must not block.
func New[T any](entry func(T) *Entry, expired func(T)) *Wheel[T] {
	return &Wheel[T]{start: time.Now(), entry: entry, expired: expired}
}

// Set has expired called when d is over, in place of what was set before; zero or
// less is never. It may be called from expired.
func (w *Wheel[T]) Set(item T, d time.Duration) {
	e := w.entry(item)
	if d <= 0 {
		e.at.Store(0)
		return
	}
	// Rounded up twice: the current tick has begun already.
	at := uint32((time.Since(w.start)+d)/tick) + 1
	e.at.Store(at)
	if e.waits(at) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.waits(at) {
		return
	}
	if w.count == 0 {
		w.now = uint32(time.Since(w.start) / tick)
	}
	w.put(item, at)
	w.arm()
}

// waits reports whether the entry is looked at by tick at.
func (e *Entry) waits(at uint32) bool {
	filed := e.filed.Load()
	return filed != 0 && filed <= at
}

// put files an item under tick at, or under the last slot of this round. mu is
// held.
func (w *Wheel[T]) put(item T, at uint32) {
	at = min(max(at, w.now+1), w.now+slots-1)
	w.entry(item).filed.Store(at)
	slot := &w.slots[at%slots]
	*slot = append(*slot, item)
	w.count++
}

// arm sets the timer for the next tick while there is anything to wait for. mu
// is held.
func (w *Wheel[T]) arm() {
	if w.timer != nil || w.count == 0 || w.stopped {
		return
	}
	w.running.Add(1)
	next := w.start.Add(time.Duration(w.now+1) * tick)
	w.timer = time.AfterFunc(time.Until(next), w.turn)
}

// turn works off the ticks that have passed.
func (w *Wheel[T]) turn() {
	defer w.running.Done()
	var due []T
	w.mu.Lock()
	now := uint32(time.Since(w.start) / tick)
	late := now > w.now+1+lateTicks
	for w.now < now && w.count > 0 {
		w.now++
		slot := &w.slots[w.now%slots]
		list := *slot
		*slot = nil
		w.count -= len(list)
		for _, item := range list {
			if w.look(item, now, late) {
				due = append(due, item)
			}
		}
	}
	w.mu.Unlock()
	for _, item := range due {
		w.expired(item)
	}
	w.mu.Lock()
	w.timer = nil
	w.arm()
	w.mu.Unlock()
}

// look puts an item that was in the slot of w.now where it belongs and reports
// whether its time is over. In a turn that is late, at tick now, it gets a fresh
// time instead. mu is held.
func (w *Wheel[T]) look(item T, now uint32, late bool) (over bool) {
	e := w.entry(item)
	if e.filed.Load() != w.now {
		return false // it was filed again, under an earlier tick
	}
	for {
		set := e.at.Load()
		if at := set &^ fresh; at > w.now {
			w.put(item, at)
			return false
		}
		if late && set != 0 && set&fresh == 0 {
			if !e.at.CompareAndSwap(set, (now+freshTicks)|fresh) {
				continue // it was set anew meanwhile
			}
			w.put(item, now+freshTicks)
			return false
		}
		e.filed.Store(0)
		// A Set before that store saw the item filed and left it to us.
		if at := e.at.Load() &^ fresh; at > w.now {
			w.put(item, at)
			return false
		}
		return set != 0 && e.at.CompareAndSwap(set, 0)
	}
}

// Stop ends the wheel and waits for calls of expired. Nothing expires afterwards.
func (w *Wheel[T]) Stop() {
	w.mu.Lock()
	w.stopped = true
	if w.timer != nil && w.timer.Stop() {
		w.running.Done()
	}
	w.mu.Unlock()
	w.running.Wait()
}
