package wheel

import (
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

type item struct {
	entry   Entry
	mu      sync.Mutex
	expired []time.Time
}

func newWheel() *Wheel[*item] {
	return New(func(i *item) *Entry { return &i.entry }, (*item).expire)
}

func (i *item) expire() {
	i.mu.Lock()
	i.expired = append(i.expired, time.Now())
	i.mu.Unlock()
}

// Whatever is set, in whatever order: nothing expires early, more than a second
// late, twice, or after it was renewed.
func TestManyItems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWheel()
		rnd := rand.New(rand.NewPCG(1, 2))
		begin := time.Now()
		items := make([]item, 500)
		want := make([]time.Time, len(items))
		for range 20 {
			for i := range items {
				if rnd.IntN(3) == 0 || !want[i].IsZero() && want[i].Before(time.Now()) {
					continue
				}
				d := time.Duration(rnd.Int64N(int64(10*time.Minute))) + 4*time.Second
				want[i] = time.Now().Add(d)
				if rnd.IntN(10) == 0 {
					d, want[i] = 0, time.Time{}
				}
				w.Set(&items[i], d)
			}
			time.Sleep(3 * time.Second)
		}
		time.Sleep(time.Hour)
		w.Stop()
		for i := range items {
			got := items[i].expired
			if want[i].IsZero() {
				if len(got) != 0 {
					t.Fatalf("item %d expired and was never to", i)
				}
				continue
			}
			if len(got) != 1 || got[0].Before(want[i]) || got[0].Sub(want[i]) > time.Second {
				t.Fatalf("item %d: expired at %v, want %v after the start", i, got, want[i].Sub(begin))
			}
		}
	})
}

func TestSetFromExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w *Wheel[*item]
		w = New(func(i *item) *Entry { return &i.entry }, func(i *item) {
			i.expire()
			w.Set(i, time.Minute)
		})
		i := new(item)
		w.Set(i, time.Minute)
		time.Sleep(time.Hour)
		w.Stop()
		if n := len(i.expired); n < 58 || n > 60 {
			t.Errorf("expired %d times in an hour", n)
		}
	})
}

// The race detector looks.
func TestRenewalsFromManySides(t *testing.T) {
	w := newWheel()
	var all sync.WaitGroup
	items := make([]item, 50)
	end := time.Now().Add(1200 * time.Millisecond) // a tick falls into it
	for range 4 {
		all.Go(func() {
			for time.Now().Before(end) {
				w.Set(&items[rand.IntN(len(items))], time.Duration(rand.IntN(2000))*time.Millisecond)
			}
		})
	}
	all.Wait()
	w.Stop()
}
