package channels

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"holdfast/live"
)

// Notice is one item of an Inbox.
type Notice struct {
	// ID sorts by time: notices are shown oldest first.
	ID   string          `json:"id"`
	At   time.Time       `json:"at"`
	Data json.RawMessage `json:"data"`
}

// Inbox pushes a person's unread notices on every open, takes acknowledgements
// once however often they are sent, and tells the person's other connections.
// Every push is the whole state, so nothing can be missed or overtaken.
//
// Wire: the server sends {"inbox":[Notice,…]}, at most InboxOptions.Limit of
// them; the client sends {"op":"acknowledge","id":"…"}. An unknown id is a soft
// error "NotFound".
type Inbox struct {
	opt   InboxOptions
	open  *group[string]
	order sync.Map // *live.Conn → *sync.Mutex: one push at a time for a connection
}

// InboxOptions configure NewInbox.
type InboxOptions struct {
	// Storage is required. Bucket is where the notices are, "inbox" if empty.
	Storage Storage
	Bucket  string
	// Limit is how many unread notices are pushed at once; zero means 20. The
	// next come when these are acknowledged.
	Limit int
	// For says whether a notice concerns a person; nil means that all do.
	For func(person string, n Notice) bool
	// Encode makes the message; nil means {"inbox":[…]}.
	Encode func([]Notice) any
}

// NewInbox makes an Inbox.
func NewInbox(o InboxOptions) (*Inbox, error) {
	if o.Storage == nil {
		return nil, errors.New("inbox: Storage is required")
	}
	if o.Limit < 0 {
		return nil, errors.New("inbox: Limit is negative")
	}
	setDefault(&o.Limit, 20)
	setDefault(&o.Bucket, "inbox")
	if o.For == nil {
		o.For = func(string, Notice) bool { return true }
	}
	if o.Encode == nil {
		o.Encode = func(n []Notice) any { return map[string]any{"inbox": n} }
	}
	return &Inbox{opt: o, open: newGroup[string]()}, nil
}

// Post adds a notice and pushes it to everybody whom it concerns and who is
// connected. Two notices may not share an id: ErrConflict.
func (b *Inbox) Post(ctx context.Context, n Notice) error {
	if n.ID == "" || len(n.ID) > 256 {
		return errors.New("post a notice: the id must have 1 to 256 bytes")
	}
	v, err := json.Marshal(n)
	if err != nil {
		return fmt.Errorf("post a notice: %w", err)
	}
	if err := b.opt.Storage.Save(ctx, b.opt.Bucket, n.ID, v, 0); err != nil {
		return fmt.Errorf("post notice %q: %w", n.ID, err)
	}
	for _, person := range b.open.keys() {
		if b.opt.For(person, n) {
			b.refresh(ctx, person)
		}
	}
	return nil
}

// Changed pushes the unread notices to everybody who is connected and whom to
// lets through (nil: all): for a Storage that somebody else writes to as well.
func (b *Inbox) Changed(ctx context.Context, to func(person string) bool) {
	for _, person := range b.open.keys() {
		if to == nil || to(person) {
			b.refresh(ctx, person)
		}
	}
}

// Unread lists a person's first unread notices.
func (b *Inbox) Unread(ctx context.Context, person string) ([]Notice, error) {
	out := []Notice{}
	const page = 100 // rows a question; the whole bucket is never held
	for after := ""; ; {
		items, err := b.opt.Storage.List(ctx, b.opt.Bucket, after, page)
		if err != nil {
			return nil, err
		}
		for _, it := range items {
			after = it.Key
			var n Notice
			if err := json.Unmarshal(it.Value, &n); err != nil {
				return nil, fmt.Errorf("read notice %q: %w", it.Key, err)
			}
			if !b.opt.For(person, n) {
				continue
			}
			_, read, err := b.opt.Storage.Load(ctx, b.receipts(person), n.ID)
			if err != nil {
				return nil, err
			}
			if read == 0 {
				if out = append(out, n); len(out) == b.opt.Limit {
					return out, nil
				}
			}
		}
		if len(items) < page {
			return out, nil
		}
	}
}

func (b *Inbox) receipts(person string) string { return b.opt.Bucket + "/read/" + person }

// Acknowledge marks a notice read. A second time changes nothing.
func (b *Inbox) Acknowledge(ctx context.Context, person, id string) error {
	value, _, err := b.opt.Storage.Load(ctx, b.opt.Bucket, id)
	if err != nil {
		return err
	}
	var n Notice
	if value == nil || json.Unmarshal(value, &n) != nil || !b.opt.For(person, n) {
		return &live.Error{Name: "NotFound", Params: []any{id}}
	}
	at, err := json.Marshal(time.Now().UTC())
	if err != nil {
		return err
	}
	err = b.opt.Storage.Save(ctx, b.receipts(person), id, at, 0)
	if errors.Is(err, ErrConflict) {
		return nil // read already
	}
	if err != nil {
		return err
	}
	b.refresh(ctx, person)
	return nil
}

// refresh pushes to each connection of a person.
func (b *Inbox) refresh(ctx context.Context, person string) {
	for _, c := range b.open.of(person) {
		if err := b.push(ctx, c, person); err != nil && !errors.Is(err, live.ErrClosed) && !errors.Is(err, live.ErrSlow) {
			// Its state cannot be told: let it come back and ask again.
			c.Close(closeTryLater, "the inbox cannot be read")
		}
	}
}

// push reads and sends under one lock, so that an older state never overtakes.
func (b *Inbox) push(ctx context.Context, c *live.Conn, person string) error {
	l, ok := b.order.Load(c)
	if !ok {
		return live.ErrClosed
	}
	mu := l.(*sync.Mutex)
	mu.Lock()
	defer mu.Unlock()
	unread, err := b.Unread(ctx, person)
	if err != nil {
		return err
	}
	return c.Send(b.opt.Encode(unread))
}

// Channel is the Handler of one person's connection.
func (b *Inbox) Channel(person string) live.Handler { return &inboxChannel{b, person} }

type inboxChannel struct {
	b      *Inbox
	person string
}

func (h *inboxChannel) Open(ctx context.Context, c *live.Conn) error {
	// Joined before it reads, so that a notice posted meanwhile is pushed.
	h.b.order.Store(c, new(sync.Mutex))
	h.b.open.join(h.person, c)
	return h.b.push(ctx, c, h.person)
}

func (h *inboxChannel) Message(ctx context.Context, _ *live.Conn, message json.RawMessage) error {
	var m struct {
		Op        string `json:"op"`
		Operation string `json:"operation"` // as Hydro's pages say it
		ID        string `json:"id"`
	}
	if json.Unmarshal(message, &m) != nil || m.Op+m.Operation != "acknowledge" {
		return &live.Error{Name: "BadRequest"}
	}
	return h.b.Acknowledge(ctx, h.person, m.ID)
}

func (h *inboxChannel) Close(c *live.Conn, _ live.End) {
	h.b.open.leave(h.person, c)
	h.b.order.Delete(c)
}
