package conversation

import (
	"context"
	"encoding/json"
	"errors"
	"hash/maphash"
	"io/fs"
	"time"

	"holdfast/internal/session/conversation/item"
)

const (
	// lookEvery is how often a followed transcript is looked at. A look that finds
	// nothing new is one system call; a change is seen within half of the time in
	// which it has to be on the phone's screen. Polling also sees files on network
	// drives, files that are replaced, and databases.
	lookEvery = 200 * time.Millisecond
	// window is how many items are compared at each change. A turn that changes
	// more of them at once is sent as a reset.
	window = 60
)

// Tail follows the transcript from a cursor (Page.After) on: the channel carries
// what is new or changed, the first change being what happened since the cursor,
// or a Reset when that cannot be told. It ends, and the channel is closed, with
// ctx. A slow reader gets fewer and larger changes, never an old state.
func (l *Log) Tail(ctx context.Context, from Cursor) <-chan Change {
	out := make(chan Change)
	// The goroutine ends with ctx; the closed channel says that it has.
	go func() {
		defer close(out)
		f := follower{log: l, from: from, seed: maphash.MakeSeed()}
		tick := time.NewTicker(lookEvery)
		defer tick.Stop()
		for {
			if c, ok := f.look(); ok {
				select {
				case out <- c:
				case <-ctx.Done():
					return
				}
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// A follower knows what its reader has.
type follower struct {
	log   *Log
	from  Cursor
	seed  maphash.Seed
	begun bool
	gone  bool
	stamp string
	title string
	known []known // of the newest items, oldest first
}

type known struct {
	id   string
	hash uint64
}

// look returns what changed since the last look.
func (f *follower) look() (Change, bool) {
	stamp, err := f.log.src.Stamp()
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) && !f.gone {
			f.gone, f.stamp = true, ""
			return Change{Gone: true, Items: []Item{}}, true
		}
		return Change{}, false
	}
	if stamp == f.stamp {
		return Change{}, false
	}
	page, err := f.log.Page("", window)
	if err != nil {
		return Change{}, false // half-written, or gone: the next look tells
	}
	wasGone := f.gone
	f.stamp, f.gone = stamp, false
	now := make([]known, len(page.Items))
	for i := range page.Items {
		now[i] = known{page.Items[i].ID, f.hash(&page.Items[i])}
	}
	c := Change{Items: []Item{}, After: page.After}
	if page.Title != f.title {
		f.title, c.Title = page.Title, page.Title
	}
	had := f.known
	f.known = now
	reset := func() (Change, bool) {
		c.Reset, c.Items, c.Before, c.Title = true, page.Items, page.Before, page.Title
		return c, true
	}
	if !f.begun {
		f.begun = true
		return f.first(page, c, reset)
	}
	if wasGone {
		return reset()
	}
	if len(now) == 0 {
		if len(had) > 0 {
			return reset()
		}
		return c, c.Title != ""
	}
	// Where the new window begins in the old one; what is known from there on must
	// still be there, in order.
	at := -1
	for i, k := range had {
		if k.id == now[0].id {
			at = i
			break
		}
	}
	if at < 0 && len(had) > 0 {
		return reset()
	}
	j := 0
	if at >= 0 {
		for _, k := range had[at:] {
			for j < len(now) && now[j].id != k.id {
				c.Items = append(c.Items, page.Items[j]) // came in between
				j++
			}
			if j == len(now) {
				return reset() // k is no longer there
			}
			if now[j].hash != k.hash {
				c.Items = append(c.Items, page.Items[j])
			}
			j++
		}
	}
	c.Items = append(c.Items, page.Items[j:]...)
	return c, len(c.Items) > 0 || c.Title != ""
}

// first compares with the reader's cursor.
func (f *follower) first(page Page, c Change, reset func() (Change, bool)) (Change, bool) {
	p, ok := f.log.src.(positioner)
	if f.from == "" || !ok {
		return reset()
	}
	f.log.mu.Lock()
	pos, err := p.Position(f.from)
	f.log.mu.Unlock()
	if err != nil {
		return reset()
	}
	for i := range page.Items {
		if page.Items[i].Rev > pos {
			c.Items = append(c.Items, page.Items[i])
		}
	}
	if len(c.Items) == len(page.Items) && page.Before != "" {
		return reset() // there may be more that is new above the window
	}
	return c, true
}

// A positioner can tell what is new since a cursor: items whose Rev is larger.
type positioner interface {
	Position(c item.Cursor) (int64, error)
}

func (f *follower) hash(it *Item) uint64 {
	b, err := json.Marshal(it)
	if err != nil {
		return 0
	}
	return maphash.Bytes(f.seed, b)
}

const (
	// locateEvery is how often Follow asks again which transcript is the pane's: a
	// /clear or a fork shows on the phone within that time.
	locateEvery = time.Second
)

// A Followed is a Change and the transcript it is of.
type Followed struct {
	Ref Ref
	Change
}

// Follow is Tail over whatever transcript a pane has: locate is asked each
// second, and when it names another one, that one's newest items come as a
// Reset. While it names none the last one is followed on. The channel is closed
// when ctx ends.
func Follow(ctx context.Context, locate func() (Ref, error), ref Ref, from Cursor) <-chan Followed {
	out := make(chan Followed)
	// The goroutine ends with ctx and waits for the Tail that it started.
	go func() {
		defer close(out)
		for ctx.Err() == nil {
			next, err := locate()
			if err == nil && !next.same(ref) {
				ref, from = next, ""
			}
			if !ref.IsZero() {
				ref, from = follow(ctx, locate, ref, from, out)
			}
			select {
			case <-time.After(locateEvery):
			case <-ctx.Done():
			}
		}
	}()
	return out
}

// follow carries one transcript's changes until locate names another one.
func follow(ctx context.Context, locate func() (Ref, error), ref Ref, from Cursor, out chan<- Followed) (Ref, Cursor) {
	l, err := Open(ref)
	if err != nil {
		return ref, from
	}
	tail, stop := context.WithCancel(ctx)
	changes := l.Tail(tail, from)
	defer func() {
		stop()
		for range changes { // it ends with its context
		}
		l.Close()
	}()
	tick := time.NewTicker(locateEvery)
	defer tick.Stop()
	for {
		select {
		case c, ok := <-changes:
			if !ok {
				return ref, from
			}
			select {
			case out <- Followed{ref, c}:
			case <-ctx.Done():
				return ref, from
			}
			if c.After != "" {
				from = c.After
			}
		case <-tick.C:
			if next, err := locate(); err == nil && !next.same(ref) {
				return next, ""
			}
		case <-ctx.Done():
			return ref, from
		}
	}
}

// same says whether two Refs name one conversation, however they were found.
func (r Ref) same(o Ref) bool {
	return r.Tool == o.Tool && r.Path == o.Path && r.SessionID == o.SessionID && r.Agent == o.Agent
}
