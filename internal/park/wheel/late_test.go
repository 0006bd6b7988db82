package wheel

import (
	"testing"
	"testing/synctest"
	"time"
)

// stopFor does to the wheel what SIGSTOP of the process does: its next turn
// finds that so much time has passed.
func (w *Wheel[T]) stopFor(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.start = w.start.Add(-d)
}

// A relay that was stopped for ten minutes turns its wheel before it has read
// the pings that wait: who is heard within the fresh minute stays, who is not
// has gone.
func TestAfterAStopEverybodyIsHeardFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWheel()
		defer w.Stop()
		const limit = 150 * time.Second
		var healthy, gone item
		w.Set(&healthy, limit)
		w.Set(&gone, limit)
		time.Sleep(100 * time.Second)
		w.stopFor(10 * time.Minute)
		time.Sleep(time.Second)
		if len(healthy.expired)+len(gone.expired) > 0 {
			t.Fatal("over at the first turn after the stop, before anything could be read")
		}
		woke := time.Now()
		for range 4 { // heartbeats
			time.Sleep(44 * time.Second)
			w.Set(&healthy, limit)
		}
		if len(healthy.expired) > 0 {
			t.Errorf("the healthy one was over %v after the stop", healthy.expired[0].Sub(woke))
		}
		if len(gone.expired) != 1 {
			t.Fatalf("the one that has gone was over %d times", len(gone.expired))
		}
		if took := gone.expired[0].Sub(woke); took < 58*time.Second || took > 62*time.Second {
			t.Errorf("the one that has gone was over %v after the stop, want one window of 60 s", took)
		}
	})
}

// One fresh minute, however often the process is stopped.
func TestStopsDoNotPutATimeOffForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWheel()
		defer w.Stop()
		var i item
		w.Set(&i, 150*time.Second)
		for range 15 {
			time.Sleep(20 * time.Second)
			w.stopFor(20 * time.Second)
		}
		time.Sleep(time.Second)
		if len(i.expired) != 1 {
			t.Errorf("over %d times", len(i.expired))
		}
	})
}
