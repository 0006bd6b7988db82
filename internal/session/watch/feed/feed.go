// Package feed tells readers what changed in the sessions: to each the newest
// state of every session that it has not taken yet.
//
// It keeps no history. What a caller will get wrong: a slow reader gets fewer
// changes and misses none, so two states that followed one another may arrive as
// the second alone; and Put must be called in the order of what happened.
package feed

import (
	"sync"
	"time"

	"holdfast/internal/session"
)

// A Change is a session as it is now, or the id of one that is gone.
type Change struct {
	Session *session.Session // not changed after it was sent
	Gone    session.ID
}

// Feed has any number of readers. The zero Feed is ready.
type Feed struct {
	// mu guards the field below.
	mu      sync.Mutex
	readers map[*reader]struct{}
}

// Subscribe gives changes until cancel or End, which close the channel. What
// happened before is told by nobody: the caller lists it under the lock under
// which Put is called.
func (f *Feed) Subscribe() (changes <-chan Change, cancel func()) {
	r := &reader{out: make(chan Change), more: make(chan struct{}, 1), done: make(chan struct{}), changes: map[session.ID]Change{}}
	f.mu.Lock()
	if f.readers == nil {
		f.readers = map[*reader]struct{}{}
	}
	f.readers[r] = struct{}{}
	f.mu.Unlock()
	// Ends with cancel or End; the closed channel says that it has.
	go r.deliver()
	return r.out, func() {
		f.mu.Lock()
		delete(f.readers, r)
		f.mu.Unlock()
		r.end()
	}
}

// Put sends a change to everybody. It does not block.
func (f *Feed) Put(id session.ID, c Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for r := range f.readers {
		r.put(id, c)
	}
}

// End ends every subscription that there is.
func (f *Feed) End() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for r := range f.readers {
		r.end()
	}
}

// reader holds what one reader has not taken: at most one change a session.
type reader struct {
	out  chan Change
	more chan struct{}
	done chan struct{}
	once sync.Once

	// mu guards the fields below.
	mu      sync.Mutex
	changes map[session.ID]Change
	order   []session.ID
}

func (r *reader) end() { r.once.Do(func() { close(r.done) }) }

func (r *reader) put(id session.ID, c Change) {
	r.mu.Lock()
	if _, ok := r.changes[id]; !ok {
		r.order = append(r.order, id)
	}
	r.changes[id] = c
	r.mu.Unlock()
	select {
	case r.more <- struct{}{}:
	default:
	}
}

func (r *reader) deliver() {
	defer close(r.out)
	for {
		r.mu.Lock()
		var c Change
		ok := len(r.order) > 0
		if ok {
			c = r.changes[r.order[0]]
			delete(r.changes, r.order[0])
			r.order = r.order[1:]
		}
		r.mu.Unlock()
		if !ok {
			select {
			case <-r.more:
				continue
			case <-r.done:
				return
			}
		}
		select {
		case r.out <- c:
		case <-r.done:
			return
		}
	}
}

// Same says that nothing changed that a person would notice.
func Same(a, b session.Session) bool {
	plain := func(s session.Session) session.Session {
		s.Status.Confirmed, s.Status.Evidence, s.Status.Dialog, s.Status.ExitCode = time.Time{}, nil, nil, nil
		return s
	}
	x, y := plain(a), plain(b)
	if !x.Status.Since.Equal(y.Status.Since) {
		return false
	}
	first := func(s session.Session) session.Evidence {
		if len(s.Status.Evidence) == 0 {
			return session.Evidence{}
		}
		e := s.Status.Evidence[0]
		e.At = time.Time{}
		if e.Source == session.FromScreen {
			e.Detail = "" // a spinner turns in it
		}
		return e
	}
	digest := func(s session.Session) string {
		if s.Status.Dialog == nil {
			return ""
		}
		return s.Status.Dialog.Digest
	}
	code := func(s session.Session) int {
		if s.Status.ExitCode == nil {
			return -1
		}
		return *s.Status.ExitCode
	}
	return x.ID == y.ID && x.Name == y.Name && x.Window == y.Window && x.Index == y.Index && x.Title == y.Title &&
		x.Tool == y.Tool && x.Version == y.Version && x.PID == y.PID && x.Dir == y.Dir && x.Cols == y.Cols && x.Rows == y.Rows &&
		x.Attached == y.Attached && x.Conversation == y.Conversation && x.Status.State == y.Status.State &&
		x.Status.Kind == y.Status.Kind && first(a) == first(b) && digest(a) == digest(b) && code(a) == code(b)
}
