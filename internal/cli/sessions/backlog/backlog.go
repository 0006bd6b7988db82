// Package backlog holds what a machine told until it is printed, so that the
// connection is not kept waiting for a terminal or a pager: the machine would end it.
//
// It never drops anything without saying so. What a caller will get wrong: after
// ErrFull what waits is whole and in order, and nothing after it may be printed.
package backlog

import (
	"encoding/json"
	"errors"
	"sync"
)

// maxBytes bounds what waits: hours of a tool that writes much, little for any
// computer.
const maxBytes = 32 << 20

// ErrFull says that more waits than is kept.
var ErrFull = errors.New("what was written is printed too slowly; nothing printed is missing, and what came after it is not shown: show it again")

// A Backlog is filled by one goroutine and emptied by another.
type Backlog struct {
	Some <-chan struct{} // something was added since the last receive

	some chan struct{} // the same; capacity 1

	// mu guards the fields below.
	mu    sync.Mutex
	waits []json.RawMessage
	bytes int
	full  bool
}

// New makes an empty Backlog.
func New() *Backlog {
	some := make(chan struct{}, 1)
	return &Backlog{Some: some, some: some}
}

// Add keeps m, or returns ErrFull: then m and all after it are lost.
func (b *Backlog) Add(m json.RawMessage) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.full = b.full || b.bytes+len(m) > maxBytes; b.full {
		return ErrFull
	}
	b.waits, b.bytes = append(b.waits, m), b.bytes+len(m)
	select {
	case b.some <- struct{}{}:
	default: // it is known already
	}
	return nil
}

// Take returns all that waits, in order.
func (b *Backlog) Take() []json.RawMessage {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := b.waits
	b.waits, b.bytes = nil, 0
	return out
}
