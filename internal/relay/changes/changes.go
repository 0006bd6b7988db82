// Package changes follows the store's log for a relay: what was revoked or
// removed ends exactly the sockets that it concerns.
//
// It decides nothing; the store has. What a caller will get wrong: the log must be
// followed from a place that was read before the first socket came, else what
// happened in between is missed.
package changes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"holdfast/internal/account"
	"holdfast/internal/engine"
	"holdfast/internal/relay/axes"
	"holdfast/internal/wire"
)

// What sockets are told when the store ends them.
const (
	ReasonRevoked = "token revoked"
	ReasonExpired = "token expired"
	ReasonAccount = "account removed"
	ReasonDevice  = "device revoked"
	ReasonMachine = "machine removed"
)

// retryAfter is how soon a store that failed is asked for its log again.
const retryAfter = 250 * time.Millisecond

// Options of New; all are required.
type Options struct {
	Store engine.Store
	Axes  *axes.Axes
	Log   *slog.Logger
	// Remind has an account's agents be told what they have yet to revoke.
	Remind func(id engine.AccountID)
	// Hear is told of each change once it was seen to, and of the zero Change
	// where the log no longer says what happened. It must not block.
	Hear func(c engine.Change)
}

// Follower reads the log.
type Follower struct {
	Options
	after atomic.Int64
}

// New makes a Follower that stands at the end of the log.
func New(ctx context.Context, o Options) (*Follower, error) {
	if o.Store == nil || o.Axes == nil || o.Log == nil || o.Remind == nil || o.Hear == nil {
		return nil, errors.New("changes: every option is required")
	}
	f := &Follower{Options: o}
	after, err := f.newest(ctx)
	if err != nil {
		return nil, err
	}
	f.after.Store(after)
	return f, nil
}

// Position is the number of the last change that was seen to.
func (f *Follower) Position() int64 { return f.after.Load() }

// StartAt has Run begin behind another change than the newest: before Run.
func (f *Follower) StartAt(position int64) { f.after.Store(position) }

// Run sees to what the log says until ctx ends.
func (f *Follower) Run(ctx context.Context) {
	retry := time.NewTimer(0) // once at the start: something may have come since New asked
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.Store.Wake():
		case <-retry.C:
		}
		for more := true; more; {
			list, err := f.Store.Changes(ctx, f.after.Load())
			if errors.Is(err, engine.ErrPruned) {
				err = f.resync(ctx)
			}
			if err != nil {
				if ctx.Err() == nil {
					f.Log.Error("read the store's log", "err", err)
					retry.Reset(retryAfter)
				}
				break
			}
			for _, c := range list {
				f.apply(c)
				f.Hear(c)
				f.after.Store(c.Seq)
			}
			more = len(list) > 0
		}
	}
}

// newest is where the store's log ends.
func (f *Follower) newest(ctx context.Context) (int64, error) {
	list, err := f.Store.Changes(ctx, -1)
	if err != nil {
		return 0, fmt.Errorf("read the store's log: %w", err)
	}
	after := int64(0)
	for _, c := range list {
		after = c.Seq
	}
	return after, nil
}

// resync asks about every open socket again, because the log no longer says
// what happened.
func (f *Follower) resync(ctx context.Context) error {
	after, err := f.newest(ctx)
	if err != nil {
		return err
	}
	for _, id := range f.Axes.Accounts() {
		tokens, err := f.Store.Tokens(ctx, id)
		if err != nil {
			return fmt.Errorf("list tokens again: %w", err)
		}
		machines, err := f.Store.Machines(ctx, id)
		if err != nil {
			return fmt.Errorf("list machines again: %w", err)
		}
		good, there := make(map[string]bool, len(tokens)), make(map[wire.MachineID]bool, len(machines))
		for _, t := range tokens {
			good[t.ID] = account.State(t, time.Now()) == nil
		}
		for _, m := range machines {
			there[m.Machine] = true
		}
		revoked, removed := f.Axes.Except(id, good, there)
		axes.EndAll(revoked, wire.CloseUnauthorized, ReasonRevoked)
		axes.EndAll(removed, wire.CloseNotFound, ReasonMachine)
		f.Remind(id)
	}
	f.after.Store(after)
	f.Hear(engine.Change{})
	return nil
}

func (f *Follower) apply(c engine.Change) {
	switch c.Kind {
	case engine.ChangeAccount:
		axes.EndAll(f.Axes.OfAccount(c.Account), wire.CloseUnauthorized, ReasonAccount)
	case engine.ChangeToken:
		axes.EndAll(f.Axes.OfToken(c.Token), wire.CloseUnauthorized, ReasonRevoked)
	case engine.ChangeMachine:
		axes.EndAll(f.Axes.OfMachine(engine.Key{Account: c.Account, Machine: c.Machine}), wire.CloseNotFound, ReasonMachine)
	case engine.ChangeDevice:
		axes.EndAll(f.Axes.OfDevice(c.Account, c.Device), wire.CloseUnauthorized, ReasonDevice)
		f.Remind(c.Account)
	}
}
