package engine

import (
	"context"
	"fmt"
	"sync"

	"holdfast/internal/wire"
)

// maxDeliveries bounds how often one Deliver follows the name to a new holder:
// a name that changes hands more often in that instant has none.
const maxDeliveries = 3

// Epochs is a Router that can say by which epoch a holder holds its name, so that
// another process can go on with it.
type Epochs interface {
	Epoch(k Key, h Holder) (epoch uint64, ok bool)
}

type hold struct {
	epoch  uint64
	holder Holder
}

// memoryRouter is the Router of one node.
type memoryRouter struct {
	mu sync.RWMutex
	// By account first: a Key in each of the entries, of which there are many, would
	// cost each a third more.
	holds  map[AccountID]map[wire.MachineID]hold
	closed bool
}

// NewMemoryRouter makes the Router of a relay of one node: a map in this
// process. It asks nobody and never waits.
func NewMemoryRouter() Router {
	return &memoryRouter{holds: make(map[AccountID]map[wire.MachineID]hold)}
}

func (r *memoryRouter) Hold(k Key, epoch uint64, h Holder) (Holder, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, fmt.Errorf("hold %s: %w", k, ErrClosed)
	}
	machines := r.holds[k.Account]
	before, held := machines[k.Machine]
	if held && epoch <= before.epoch {
		return nil, fmt.Errorf("hold %s: %w", k, ErrStaleAttempt)
	}
	if machines == nil {
		machines = make(map[wire.MachineID]hold)
		r.holds[k.Account] = machines
	}
	machines[k.Machine] = hold{epoch, h}
	return before.holder, nil
}

func (r *memoryRouter) Release(k Key, h Holder) {
	r.mu.Lock()
	defer r.mu.Unlock()
	machines := r.holds[k.Account]
	if machines[k.Machine].holder != h {
		return
	}
	if delete(machines, k.Machine); len(machines) == 0 {
		delete(r.holds, k.Account)
	}
}

func (r *memoryRouter) holder(k Key) Holder {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.holds[k.Account][k.Machine].holder
}

func (r *memoryRouter) Deliver(ctx context.Context, k Key, m wire.Message) error {
	if ctx.Err() != nil {
		return fmt.Errorf("deliver to %s: %w", k, context.Cause(ctx))
	}
	var last Holder
	var err error
	for range maxDeliveries {
		h := r.holder(k)
		if h == nil {
			break
		}
		if h == last {
			// It still has the name, so its error is the answer.
			return fmt.Errorf("deliver to %s: %w", k, err)
		}
		// Outside the lock: a holder may release itself from Deliver.
		if err = h.Deliver(m); err == nil {
			return nil
		}
		last = h
	}
	return fmt.Errorf("deliver to %s: %w", k, ErrNoHolder)
}

func (r *memoryRouter) Holds(k Key, h Holder) bool {
	return h != nil && r.holder(k) == h
}

// Epoch implements Epochs.
func (r *memoryRouter) Epoch(k Key, h Holder) (uint64, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	now, ok := r.holds[k.Account][k.Machine]
	return now.epoch, ok && now.holder == h
}

func (r *memoryRouter) Ping(context.Context) error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.closed {
		return fmt.Errorf("ping router: %w", ErrClosed)
	}
	return nil
}

func (r *memoryRouter) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	clear(r.holds)
	return nil
}
