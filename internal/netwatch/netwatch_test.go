package netwatch

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCompare(t *testing.T) {
	for _, c := range []struct {
		name       string
		wall, mono time.Duration
		want       Kind
	}{
		{"an ordinary tick", tick, tick, 0},
		{"ntp slews half a second", tick + 500*time.Millisecond, tick, 0},
		{"ten minutes of sleep, monotonic stood still", tick + 10*time.Minute, tick, Slept},
		{"ten minutes of sleep, monotonic went on", 10 * time.Minute, 10 * time.Minute, Slept},
		{"stopped by SIGSTOP for nine seconds", 9 * time.Second, 9 * time.Second, Slept},
		{"clock set back an hour", tick - time.Hour, tick, SteppedBack},
		{"slept with the clock set back meanwhile", tick - time.Hour, time.Minute, Slept | SteppedBack},
		{"a loaded machine, two seconds late", tick + 2*time.Second, tick + 2*time.Second, 0},
	} {
		if got := compare(c.wall, c.mono); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

// seen runs Watch in a bubble and returns what it was told while during ran.
func seen(t *testing.T, o Options, during func()) []Kind {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var got []Kind
	done := make(chan struct{})
	go func() {
		defer close(done)
		Watch(ctx, o, func(k Kind) { got = append(got, k) })
	}()
	synctest.Wait()
	during()
	cancel()
	<-done
	return got
}

func TestSleepIsNoticedWithinOneTick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var slept atomic.Int64 // added to the wall clock only, as on Linux
		o := Options{
			Changes: make(chan struct{}),
			Clock: func() (time.Time, time.Duration) {
				return time.Now().Add(time.Duration(slept.Load())), time.Since(start)
			},
		}
		got := seen(t, o, func() {
			time.Sleep(12*time.Minute + tick/2) // between two ticks
			slept.Store(int64(10 * time.Minute))
			time.Sleep(tick)
			slept.Store(-int64(time.Hour))
			time.Sleep(tick)
			time.Sleep(time.Hour)
		})
		if len(got) != 2 || got[0] != Slept || got[1] != SteppedBack {
			t.Errorf("got %v, want one sleep and one step back, and nothing in a quiet hour", got)
		}
	})
}

func TestBurstOfNetworkMessagesIsOneEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		changes := make(chan struct{})
		got := seen(t, Options{Changes: changes}, func() {
			for range 12 {
				changes <- struct{}{}
				time.Sleep(settle / 10)
			}
			time.Sleep(2 * settle)
			close(changes) // a source that ends stops neither the clocks nor Watch
			time.Sleep(time.Minute)
		})
		if len(got) != 1 || got[0] != Network {
			t.Errorf("got %v, want one network event", got)
		}
	})
}

func TestSystemSourceOpensAndEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	changes, err := systemChanges(ctx)
	if err != nil {
		t.Fatalf("open the system's source: %v", err)
	}
	cancel()
	deadline := time.After(10 * time.Second)
	for {
		select {
		case _, ok := <-changes:
			if !ok {
				return
			}
		case <-deadline:
			t.Fatal("the source did not end with its context")
		}
	}
}

func TestKindNames(t *testing.T) {
	if s := (Slept | Network).String(); s != "slept, network changed" {
		t.Errorf("got %q", s)
	}
}
