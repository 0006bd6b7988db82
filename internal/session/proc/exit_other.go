//go:build !linux

package proc

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"
)

// Exits tells when processes end. Here it asks four times a second.
type Exits struct {
	mu   sync.Mutex
	pids map[int]bool
}

const (
	askEvery = 250 * time.Millisecond
	maxExits = 1024
)

// NewExits makes an Exits. Run must be called.
func NewExits() (*Exits, error) { return &Exits{pids: map[int]bool{}}, nil }

// Add watches a process of this user. ErrGone means that it has ended already.
func (e *Exits) Add(pid int) error {
	if syscall.Kill(pid, 0) == syscall.ESRCH {
		return ErrGone
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.pids) >= maxExits {
		return fmt.Errorf("watch for the end of process %d: %d are watched already", pid, maxExits)
	}
	e.pids[pid] = true
	return nil
}

// Remove stops watching a process.
func (e *Exits) Remove(pid int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.pids, pid)
}

// Run calls ended for each watched process that ends, until ctx does.
func (e *Exits) Run(ctx context.Context, ended func(pid int)) {
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var gone []int
		e.mu.Lock()
		for pid := range e.pids {
			if syscall.Kill(pid, 0) == syscall.ESRCH {
				gone = append(gone, pid)
				delete(e.pids, pid)
			}
		}
		e.mu.Unlock()
		for _, pid := range gone {
			ended(pid)
		}
	}
}
