package enginetest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"holdfast/internal/engine"
	"holdfast/internal/wire"
)

// claim is one step of a Claim table.
type claim struct {
	after    time.Duration
	instance wire.Instance
	attempt  uint64
	err      error
}

func runClaims(t *testing.T, s engine.Store, clock *Clock, steps []claim) {
	t.Helper()
	var last uint64
	for i, c := range steps {
		clock.Add(c.after)
		epoch, err := s.Claim(t.Context(), mini, c.instance, c.attempt)
		switch {
		case c.err != nil:
			if !errors.Is(err, c.err) {
				t.Errorf("step %d %+v: error %v", i, c, err)
			}
		case err != nil:
			t.Errorf("step %d %+v: %v", i, c, err)
		case epoch <= last:
			t.Errorf("step %d %+v: epoch %d after %d", i, c, epoch, last)
		default:
			last = epoch
		}
	}
}

func testClaim(t *testing.T, s engine.Store, clock *Clock) {
	owner(t, s)
	runClaims(t, s, clock, []claim{
		{0, "instance-a", 1, nil},
		{0, "instance-a", 3, nil},
		{0, "instance-a", 2, engine.ErrStaleAttempt},
		{0, "instance-a", 3, nil}, // newest wins unless it is lower
		{time.Second, "instance-b", 1, nil},
		{0, "instance-a", 4, engine.ErrReplaced},
		{wire.ReplacedHold - time.Second, "instance-a", 5, engine.ErrReplaced},
		{0, "instance-b", 2, nil},
		{2 * time.Second, "instance-a", 6, nil}, // the hour is over
		{0, "instance-b", 3, engine.ErrReplaced},
		// An agent of an older version has no instance: it simply replaces.
		{0, "", 0, nil},
		{0, "", 0, nil},
		{0, "instance-a", 7, engine.ErrReplaced},
		{0, "instance-c", 1, nil},
		{0, "", 0, nil},
	})
}

func testClaimReasons(t *testing.T, s engine.Store, clock *Clock) {
	owner(t, s)
	_, err := s.Claim(t.Context(), engine.Key{Account: "owner", Machine: "none"}, "instance-a", 1)
	wantErr(t, err, engine.ErrNotFound)
	_, err = s.Claim(t.Context(), mini, "instance-a", 1<<63)
	wantErr(t, err, wire.ErrSyntax)
	runClaims(t, s, clock, []claim{{0, "instance-a", 9, nil}, {0, "instance-b", 1, nil}})
	// Replaced comes before stale: to an instance that another replaced, its own
	// attempts say nothing.
	_, err = s.Claim(t.Context(), mini, "instance-a", 1)
	wantErr(t, err, engine.ErrReplaced)
	m, err := s.Machine(t.Context(), mini)
	must(t, err)
	if m.Instance != "instance-b" || m.Epoch != 2 {
		t.Errorf("a refused claim changed the machine: %+v", m)
	}
}

func testClaimClock(t *testing.T, s engine.Store, clock *Clock) {
	owner(t, s)
	runClaims(t, s, clock, []claim{
		{0, "instance-a", 1, nil},
		{0, "instance-b", 1, nil},
		{-time.Minute, "instance-a", 2, engine.ErrReplaced},
		// A year back: the ban must not last a year.
		{-365 * 24 * time.Hour, "instance-a", 3, nil},
	})
}

func testClaimRace(t *testing.T, s engine.Store, _ *Clock) {
	ctx := t.Context()
	owner(t, s)
	const n = 32
	var wg sync.WaitGroup
	epochs := make([]uint64, n)
	for i := range n {
		wg.Go(func() {
			epoch, err := s.Claim(ctx, mini, "instance-a", uint64(i+1))
			if err != nil && !errors.Is(err, engine.ErrStaleAttempt) {
				t.Errorf("attempt %d: %v", i+1, err)
			}
			epochs[i] = epoch
		})
	}
	wg.Wait()
	m, err := s.Machine(ctx, mini)
	must(t, err)
	if m.Attempt != n || epochs[n-1] != m.Epoch {
		t.Errorf("machine %+v after the highest attempt got epoch %d", m, epochs[n-1])
	}
	// Among those that won, a higher attempt has a higher epoch.
	won := slices.DeleteFunc(epochs, func(e uint64) bool { return e == 0 })
	if !slices.IsSorted(won) || len(slices.Compact(slices.Clone(won))) != len(won) {
		t.Errorf("epochs by attempt: %v", won)
	}
}

func testClaimBound(t *testing.T, s engine.Store, clock *Clock) {
	ctx := t.Context()
	owner(t, s)
	for i := range 200 {
		clock.Add(time.Second)
		if _, err := s.Claim(ctx, mini, wire.Instance(fmt.Sprintf("instance-%d", i)), 1); err != nil {
			t.Fatal(err)
		}
	}
	// The newest of the replaced are remembered, the oldest need not be.
	for i := 199 - 60; i < 199; i++ {
		_, err := s.Claim(ctx, mini, wire.Instance(fmt.Sprintf("instance-%d", i)), 2)
		wantErr(t, err, engine.ErrReplaced)
	}
}
