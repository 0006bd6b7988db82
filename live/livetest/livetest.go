// Package livetest holds what every channels.Storage must pass. It is for tests
// only; a site with a storage of its own runs Storage on it.
//
// It never looks at how a storage works, and leaves its test items behind: give
// it an empty one.
package livetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"holdfast/live/channels"
)

// T is what is needed of *testing.T.
type T interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Context() context.Context
}

// Storage runs the conformance test on an empty storage.
func Storage(t T, s channels.Storage) {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%v", err)
		}
	}
	load := func(bucket, key, want string, revision int64) {
		t.Helper()
		v, r, err := s.Load(ctx, bucket, key)
		if err != nil || string(v) != want || r != revision {
			t.Errorf("load %q: %q, revision %d, %v; want %q, %d", key, v, r, err, want, revision)
		}
	}

	load("b", "missing", "", 0)
	must(s.Save(ctx, "b", "k", []byte("one"), 0))
	load("b", "k", "one", 1)
	load("other", "k", "", 0)
	if err := s.Save(ctx, "b", "k", []byte("again"), 0); !errors.Is(err, channels.ErrConflict) {
		t.Errorf("a second first save: %v", err)
	}
	must(s.Save(ctx, "b", "k", []byte("two"), 1))
	if err := s.Save(ctx, "b", "k", []byte("late"), 1); !errors.Is(err, channels.ErrConflict) {
		t.Errorf("a save over a newer revision: %v", err)
	}
	load("b", "k", "two", 2)
	must(s.Save(ctx, "b", "empty", nil, 0))
	if _, r, err := s.Load(ctx, "b", "empty"); r != 1 || err != nil {
		t.Errorf("an empty value: revision %d, %v", r, err)
	}
	must(s.Remove(ctx, "b", "k"))
	must(s.Remove(ctx, "b", "k"))
	load("b", "k", "", 0)

	for i := range 25 {
		must(s.Save(ctx, "list", fmt.Sprintf("k%02d", i), []byte{byte(i)}, 0))
	}
	var got int
	for after := ""; ; {
		items, err := s.List(ctx, "list", after, 10)
		must(err)
		for _, it := range items {
			if it.Key != fmt.Sprintf("k%02d", got) || len(it.Value) != 1 || it.Value[0] != byte(got) {
				t.Errorf("item %d is %q %v", got, it.Key, it.Value)
			}
			got++
			after = it.Key
		}
		if len(items) < 10 {
			break
		}
	}
	if got != 25 {
		t.Errorf("listed %d of 25", got)
	}
	if items, err := s.List(ctx, "list", "k24", 10); len(items) != 0 || err != nil {
		t.Errorf("after the last: %v %v", items, err)
	}

	// Of many that save over one revision, one wins.
	var won atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			err := s.Save(ctx, "race", "k", []byte("x"), 0)
			if err == nil {
				won.Add(1)
			} else if !errors.Is(err, channels.ErrConflict) {
				t.Errorf("race: %v", err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Errorf("%d saves over one revision succeeded", won.Load())
	}
}
