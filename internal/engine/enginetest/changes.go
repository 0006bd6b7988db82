package enginetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"holdfast/internal/engine"
)

func testChanges(t *testing.T, s engine.Store, _ *Clock) {
	ctx := t.Context()
	if c, err := s.Changes(ctx, -1); err != nil || len(c) != 0 {
		t.Errorf("an empty log: %v, %v", c, err)
	}
	for i := range 5 {
		id := engine.AccountID(fmt.Sprintf("a%d", i))
		must(t, s.AddAccount(ctx, id))
		must(t, s.RemoveAccount(ctx, id))
	}
	all, err := s.Changes(ctx, 0)
	must(t, err)
	if len(all) != 5 {
		t.Fatalf("changes %+v", all)
	}
	for i, c := range all {
		if c.Kind != engine.ChangeAccount || c.Account != engine.AccountID(fmt.Sprintf("a%d", i)) || i > 0 && c.Seq != all[i-1].Seq+1 {
			t.Errorf("change %d: %+v", i, c)
		}
	}
	last, err := s.Changes(ctx, -1)
	must(t, err)
	if len(last) != 1 || last[0] != all[4] {
		t.Errorf("newest %+v", last)
	}
	rest, err := s.Changes(ctx, all[2].Seq)
	must(t, err)
	if len(rest) != 2 || rest[0] != all[3] {
		t.Errorf("rest %+v", rest)
	}
	if none, err := s.Changes(ctx, all[4].Seq); err != nil || len(none) != 0 {
		t.Errorf("after the newest: %v, %v", none, err)
	}
}

func testPruned(t *testing.T, s engine.Store, _ *Clock) {
	ctx := t.Context()
	// Concurrent, so that changes share transactions.
	const n, workers = 5_200, 20
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			id := engine.AccountID(fmt.Sprintf("a%d", w))
			for range n / workers {
				if err := errors.Join(s.AddAccount(ctx, id), s.RemoveAccount(ctx, id)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	last, err := s.Changes(ctx, -1)
	must(t, err)
	if len(last) != 1 || last[0].Seq != n {
		t.Fatalf("newest %+v, want number %d", last, n)
	}
	_, err = s.Changes(ctx, 0)
	wantErr(t, err, engine.ErrPruned)
	seq, read := last[0].Seq-4_000, 0
	for {
		c, err := s.Changes(ctx, seq)
		must(t, err)
		if len(c) == 0 {
			break
		}
		if len(c) > 1_000 {
			t.Errorf("%d changes in one answer", len(c))
		}
		read += len(c)
		seq = c[len(c)-1].Seq
	}
	if read != 4_000 {
		t.Errorf("read %d changes of the newest 4,000", read)
	}
}

// woken drains Wake and reports whether it was signalled, at most d later.
func woken(s engine.Store, d time.Duration) bool {
	select {
	case <-s.Wake():
		return true
	case <-time.After(d):
		return false
	}
}

func testWake(t *testing.T, s engine.Store, clock *Clock) {
	ctx := t.Context()
	owner(t, s)
	must(t, s.AddToken(ctx, deviceToken("t-1", "owner")))
	pair(t, s, clock, "p1")
	_, _, err := redeem(ctx, s, "p1", "d1", "key one", "t1")
	must(t, err)
	for _, c := range []struct {
		name   string
		change func() error
	}{
		{"repeated redemption", func() error {
			_, _, err := redeem(ctx, s, "p1", "d1", "key one", "t2")
			return err
		}},
		{"revoke token", func() error { return s.RevokeToken(ctx, "owner", "t-1") }},
		{"revoke device", func() error { return s.RevokeDevice(ctx, "owner", "d1") }},
		{"remove machine", func() error { return s.RemoveMachine(ctx, mini) }},
		{"remove account", func() error { return s.RemoveAccount(ctx, "owner") }},
	} {
		for woken(s, 0) {
		}
		must(t, c.change())
		if !woken(s, 2*time.Second) {
			t.Errorf("%s: not woken", c.name)
		}
	}
}

func testCancelled(t *testing.T, s engine.Store, _ *Clock) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("the relay stops")
	cancel(cause)
	wantErr(t, s.AddAccount(ctx, "owner"), cause)
	if a, err := s.Accounts(t.Context()); err != nil || len(a) != 0 {
		t.Errorf("accounts %v, %v", a, err)
	}
	// Whatever the moment of the cancellation, an error means that nothing
	// changed and nil that it did.
	for i := range 200 {
		id := engine.AccountID(fmt.Sprintf("a%d", i))
		ctx, cancel := context.WithCancel(t.Context())
		go cancel() // ends at once
		err := s.AddAccount(ctx, id)
		there := s.RemoveAccount(t.Context(), id) == nil
		if there != (err == nil) {
			t.Fatalf("account %s: error %v, there %v", id, err, there)
		}
	}
}

func testManyWriters(t *testing.T, s engine.Store, _ *Clock) {
	ctx := t.Context()
	owner(t, s)
	const writers, each = 16, 25
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				id := fmt.Sprintf("t-%d-%d", w, i)
				if err := s.AddToken(ctx, deviceToken(id, "owner")); err != nil {
					t.Error(err)
				}
				// One that fails, in the same transaction as others' good ones.
				wantErr(t, s.AddToken(ctx, deviceToken(id, "owner")), engine.ErrExists)
				if _, err := s.TokenByHash(ctx, hashOf(id)); err != nil {
					t.Errorf("what was just written: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if list, err := s.Tokens(ctx, "owner"); err != nil || len(list) != writers*each+1 {
		t.Errorf("%d tokens, %v", len(list), err)
	}
}

func testClosed(t *testing.T, s engine.Store, _ *Clock) {
	must(t, s.AddAccount(t.Context(), "owner"))
	must(t, s.Close())
	must(t, s.Close())
	if err := s.AddAccount(t.Context(), "other"); err == nil {
		t.Error("a closed store takes an account")
	}
	if _, err := s.Accounts(t.Context()); err == nil {
		t.Error("a closed store answers")
	}
	if err := s.Ping(t.Context()); err == nil {
		t.Error("a closed store answers a ping")
	}
}
