package channels

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"holdfast/live"
)

// Watch tells clients about the things that they are looking at. A client names
// the ids; the newest list replaces the one before. The state of each id is sent
// as it is, then again after each change, several changes within a moment as
// one. What is sent is read when it is sent, so the last change is never lost.
//
// Wire: the client sends {"op":"watch","ids":["…"]}; the server sends what Load
// returns. An id that Load does not know is a soft error "NotFound".
type Watch struct {
	opt  WatchOptions
	open *group[string]
	mu   sync.Mutex
	of   map[*live.Conn]*watcher
}

// WatchOptions configure NewWatch.
type WatchOptions struct {
	// Load reads the present state of an id as the message to send, or ErrNoItem.
	// Required. It runs on a goroutine of the connection.
	Load func(ctx context.Context, c *live.Conn, id string) (any, error)
	// Coalesce gathers the changes of a connection; zero means 100 ms.
	Coalesce time.Duration
	// MaxIDs bounds a client's list; zero means 200. MaxIDBytes bounds an id;
	// zero means 128.
	MaxIDs, MaxIDBytes int
}

// ErrNoItem is what Load says of an id that does not exist, or that this client
// may not see.
var ErrNoItem = errors.New("no such item")

// watcher is one connection's list.
type watcher struct {
	mu    sync.Mutex
	ids   []string
	dirty []string // in the order of their first change
	// timer is set while a flush is planned or runs: one at a time, so that
	// states are not reordered.
	timer *time.Timer
}

// NewWatch makes a Watch.
func NewWatch(o WatchOptions) (*Watch, error) {
	if o.Load == nil {
		return nil, errors.New("watch: Load is required")
	}
	if o.Coalesce < 0 || o.MaxIDs < 0 || o.MaxIDBytes < 0 {
		return nil, errors.New("watch: a limit is negative")
	}
	setDefault(&o.Coalesce, 100*time.Millisecond)
	setDefault(&o.MaxIDs, 200)
	setDefault(&o.MaxIDBytes, 128)
	return &Watch{opt: o, open: newGroup[string](), of: make(map[*live.Conn]*watcher)}, nil
}

// Changed says that an id has a new state. It returns at once.
func (w *Watch) Changed(id string) {
	for _, c := range w.open.of(id) {
		w.mu.Lock()
		s := w.of[c]
		w.mu.Unlock()
		if s != nil {
			w.mark(c, s, []string{id}, w.opt.Coalesce)
		}
	}
}

func (w *Watch) mark(c *live.Conn, s *watcher, ids []string, after time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		if slices.Contains(s.ids, id) && !slices.Contains(s.dirty, id) {
			s.dirty = append(s.dirty, id)
		}
	}
	if len(s.dirty) > 0 && s.timer == nil {
		s.timer = time.AfterFunc(after, func() { w.flush(c, s) })
	}
}

// flush sends the state of every id that is dirty now, and plans the next flush
// for those that become so meanwhile. An id leaves the list before its state is
// read: a change that comes between is read, or marks it again.
func (w *Watch) flush(c *live.Conn, s *watcher) {
	s.mu.Lock()
	n := len(s.dirty)
	s.mu.Unlock()
	for ; n > 0; n-- {
		s.mu.Lock()
		if len(s.dirty) == 0 { // the client has replaced its list
			s.mu.Unlock()
			break
		}
		id := s.dirty[0]
		s.dirty = s.dirty[1:]
		s.mu.Unlock()
		state, err := w.opt.Load(c.Context(), c, id)
		if errors.Is(err, ErrNoItem) {
			c.SendError(&live.Error{Name: "NotFound", Params: []any{id}})
			continue
		}
		if err != nil {
			c.SendError(err)
			continue
		}
		if c.SendWait(c.Context(), state) != nil {
			return // the connection ended, and timer stays set: nothing more is planned
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer = nil
	if len(s.dirty) > 0 {
		s.timer = time.AfterFunc(w.opt.Coalesce, func() { w.flush(c, s) })
	}
}

// Channel is the Handler of one connection.
func (w *Watch) Channel() live.Handler { return watchChannel{w} }

type watchChannel struct{ w *Watch }

func (h watchChannel) Open(_ context.Context, c *live.Conn) error {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	h.w.of[c] = &watcher{}
	return nil
}

func (h watchChannel) Message(_ context.Context, c *live.Conn, message json.RawMessage) error {
	var m struct {
		Op   string   `json:"op"`
		IDs  []string `json:"ids"`
		RIDs []string `json:"rids"` // as Hydro's record list says it
	}
	if json.Unmarshal(message, &m) != nil || (m.Op != "watch" && m.RIDs == nil) {
		return &live.Error{Name: "BadRequest"}
	}
	ids := m.IDs
	if m.RIDs != nil {
		ids = m.RIDs
	}
	if len(ids) > h.w.opt.MaxIDs {
		return &live.Error{Name: "TooMany", Params: []any{h.w.opt.MaxIDs}}
	}
	for _, id := range ids {
		if id == "" || len(id) > h.w.opt.MaxIDBytes {
			return &live.Error{Name: "BadRequest", Params: []any{"id"}}
		}
	}
	h.w.mu.Lock()
	s := h.w.of[c]
	h.w.mu.Unlock()
	if s == nil {
		return nil // closed meanwhile
	}
	s.mu.Lock()
	before := s.ids
	s.ids = slices.Clone(ids)
	s.dirty = nil
	s.mu.Unlock()
	for _, id := range before {
		if !slices.Contains(ids, id) {
			h.w.open.leave(id, c)
		}
	}
	for _, id := range ids {
		h.w.open.join(id, c)
	}
	h.w.mark(c, s, ids, 0) // the replay, at once or right behind a running flush
	return nil
}

func (h watchChannel) Close(c *live.Conn, _ live.End) {
	h.w.mu.Lock()
	s := h.w.of[c]
	delete(h.w.of, c)
	h.w.mu.Unlock()
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer != nil {
		s.timer.Stop()
	}
	for _, id := range s.ids {
		h.w.open.leave(id, c)
	}
	s.ids, s.dirty = nil, nil
}
