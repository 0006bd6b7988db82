package channels

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"holdfast/live"
)

// Detail shows one thing from its present state to its end. On open the state is
// sent, then changes, at most one in Throttle; a while after a terminal state
// the connection is closed with 4001, which a client takes as the proper end.
// Work that is taken up again before that cancels it.
//
// Wire: the server sends what Load returns and nothing else is expected of the
// client.
type Detail struct {
	opt  DetailOptions
	open *group[string]
	mu   sync.Mutex
	of   map[*live.Conn]*detail
}

// DetailOptions configure NewDetail.
type DetailOptions struct {
	// Load reads the present state of an id as the message to send, and whether
	// it is terminal; or ErrNoItem, which closes with 4404. Required.
	Load func(ctx context.Context, id string) (state any, terminal bool, err error)
	// Linger is how long after a terminal state the connection is closed; zero
	// means 30 s. Throttle is the least time between two states; zero means 1 s.
	Linger, Throttle time.Duration
}

// detail is one connection's view.
type detail struct {
	id string

	mu       sync.Mutex
	last     time.Time
	pending  *time.Timer // set while a state is planned or being sent
	dirty    bool        // changed while a state was being sent
	sending  bool
	ending   *time.Timer // 4001
	finished bool
}

// NewDetail makes a Detail.
func NewDetail(o DetailOptions) (*Detail, error) {
	if o.Load == nil {
		return nil, errors.New("detail: Load is required")
	}
	if o.Linger < 0 || o.Throttle < 0 {
		return nil, errors.New("detail: a time is negative")
	}
	setDefault(&o.Linger, 30*time.Second)
	setDefault(&o.Throttle, time.Second)
	return &Detail{opt: o, open: newGroup[string](), of: make(map[*live.Conn]*detail)}, nil
}

// Changed says that an id has a new state. It returns at once.
func (d *Detail) Changed(id string) {
	for _, c := range d.open.of(id) {
		d.mu.Lock()
		v := d.of[c]
		d.mu.Unlock()
		if v == nil {
			continue
		}
		v.mu.Lock()
		if v.sending {
			v.dirty = true
		} else {
			d.plan(c, v)
		}
		v.mu.Unlock()
	}
}

// plan sends the state as soon as the throttle allows; v.mu is held.
func (d *Detail) plan(c *live.Conn, v *detail) {
	if v.pending != nil || v.finished {
		return
	}
	v.pending = time.AfterFunc(max(d.opt.Throttle-time.Since(v.last), 0), func() {
		if err := d.push(c, v); err != nil {
			// A state that cannot be read is asked for again by the client.
			c.Close(closeTryLater, "the state cannot be read")
		}
	})
}

// push reads and sends the state. One at a time: a change meanwhile plans the
// next.
func (d *Detail) push(c *live.Conn, v *detail) error {
	v.mu.Lock()
	v.pending, v.sending, v.dirty, v.last = nil, true, false, time.Now()
	v.mu.Unlock()
	state, terminal, err := d.opt.Load(c.Context(), v.id)
	if err == nil && c.Send(state) != nil {
		terminal = false // closed or slow: it ends by itself
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.sending = false
	if v.dirty {
		d.plan(c, v)
	}
	switch {
	case err != nil || v.finished:
	case !terminal && v.ending != nil:
		v.ending.Stop()
		v.ending = nil
	case terminal && v.ending == nil:
		v.ending = time.AfterFunc(d.opt.Linger, func() { c.Close(closeEnded, "ended") })
	}
	return err
}

// Channel is the Handler of one connection that looks at id.
func (d *Detail) Channel(id string) live.Handler { return detailChannel{d, id} }

type detailChannel struct {
	d  *Detail
	id string
}

func (h detailChannel) Open(_ context.Context, c *live.Conn) error {
	v := &detail{id: h.id, sending: true} // until push has read it
	h.d.mu.Lock()
	h.d.of[c] = v
	h.d.mu.Unlock()
	h.d.open.join(h.id, c)
	err := h.d.push(c, v)
	if errors.Is(err, ErrNoItem) {
		return &live.Refusal{Code: closeNotFound, Reason: "no such item"}
	}
	return err
}

func (detailChannel) Message(context.Context, *live.Conn, json.RawMessage) error {
	return &live.Error{Name: "BadRequest"}
}

func (h detailChannel) Close(c *live.Conn, _ live.End) {
	h.d.open.leave(h.id, c)
	h.d.mu.Lock()
	v := h.d.of[c]
	delete(h.d.of, c)
	h.d.mu.Unlock()
	if v == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.finished = true
	for _, t := range []*time.Timer{v.pending, v.ending} {
		if t != nil {
			t.Stop()
		}
	}
}
