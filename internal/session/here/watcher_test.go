package here

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// No session is what a person reads in an empty list: it is not said for lack of time.
func TestTheFirstLookIsWaitedFor(t *testing.T) {
	const never = time.Hour
	for _, c := range []struct {
		name        string
		ready, know time.Duration // after which it is
		want        time.Duration
	}{
		{"soon", time.Second, time.Second, time.Second},
		{"one server hangs", never, time.Second, readyTime},
		{"a busy machine", 6 * time.Second, 6 * time.Second, 6 * time.Second},
		{"nothing at all", never, never, emptyTime},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				waitReady(t.Context(), func(ctx context.Context) error {
					select {
					case <-time.After(c.ready - time.Since(began)):
						return nil
					case <-ctx.Done():
						return ctx.Err()
					}
				}, func() bool { return time.Since(began) >= c.know })
				if took := time.Since(began); took != c.want {
					t.Errorf("waited %v, want %v", took, c.want)
				}
			})
		})
	}
}
