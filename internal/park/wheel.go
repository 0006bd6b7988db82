package park

import (
	"sync"
	"time"
)

const (
	// wheelTick is the precision of ExpireAfter. The times set here are minutes;
	// half would wake an idle relay twice as often for nothing.
	wheelTick = time.Second
	// wheelSlots times wheelTick is the longest time that needs no second round.
	wheelSlots = 256
)

// wheel calls connections whose time is over. Setting a new time does not move a
// connection: it is looked at when the slot of its old time comes, and put into
// the slot of the new one then. So a heartbeat costs one store.
type wheel struct {
	start time.Time

	mu      sync.Mutex
	slots   [wheelSlots][]*Conn
	count   int    // entries in slots
	now     uint32 // ticks that were worked off
	timer   *time.Timer
	stopped bool
	running sync.WaitGroup // one while the timer is set or its function runs
}

func (w *wheel) init() { w.start = time.Now() }

// set has c looked at when d is over.
func (w *wheel) set(c *Conn, d time.Duration) {
	// Rounded up twice: the current tick has begun already.
	at := uint32((time.Since(w.start)+d)/wheelTick) + 1
	c.expires.Store(at)
	c.mu.Lock()
	in := c.inWheel || c.state > frozen
	if !in {
		c.inWheel = true
	}
	c.mu.Unlock()
	if in {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.count == 0 {
		w.now = uint32(time.Since(w.start) / wheelTick)
	}
	w.put(c, at)
	w.arm()
}

// put files c under tick at, or under the last slot of this round. mu is held.
func (w *wheel) put(c *Conn, at uint32) {
	at = min(max(at, w.now+1), w.now+wheelSlots-1)
	slot := &w.slots[at%wheelSlots]
	*slot = append(*slot, c)
	w.count++
}

// arm sets the timer for the next tick while there is anything to wait for. mu
// is held.
func (w *wheel) arm() {
	if w.timer != nil || w.count == 0 || w.stopped {
		return
	}
	w.running.Add(1)
	next := w.start.Add(time.Duration(w.now+1) * wheelTick)
	w.timer = time.AfterFunc(time.Until(next), w.turn)
}

// turn works off the ticks that have passed.
func (w *wheel) turn() {
	defer w.running.Done()
	var due []*Conn
	w.mu.Lock()
	for now := uint32(time.Since(w.start) / wheelTick); w.now < now && w.count > 0; {
		w.now++
		slot := &w.slots[w.now%wheelSlots]
		list := *slot
		*slot = nil
		w.count -= len(list)
		for _, c := range list {
			at, over := c.leaveWheel(w.now)
			switch {
			case at != 0:
				w.put(c, at)
			case over:
				due = append(due, c)
			}
		}
	}
	w.mu.Unlock()
	for _, c := range due {
		c.expired()
	}
	w.mu.Lock()
	w.timer = nil
	w.arm()
	w.mu.Unlock()
}

// leaveWheel takes c out of the wheel at tick now, and reports whether its time
// is over, or returns the later tick for which c is to stay.
func (c *Conn) leaveWheel(now uint32) (stay uint32, over bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch c.state {
	case frozen:
		return now + 1, false // it may be thawed
	case open:
		if at := c.expires.Load(); at > now {
			return at, false
		} else if at != 0 {
			// A new time set meanwhile is not over, and finds inWheel cleared.
			over = c.expires.CompareAndSwap(at, 0)
		}
	}
	c.inWheel = false
	return 0, over
}

func (w *wheel) stop() {
	w.mu.Lock()
	w.stopped = true
	if w.timer != nil && w.timer.Stop() {
		w.running.Done()
	}
	w.mu.Unlock()
	w.running.Wait()
}
