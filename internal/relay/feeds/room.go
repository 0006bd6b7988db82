package feeds

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"holdfast/internal/engine"
	"holdfast/internal/relay/proof"
	"holdfast/internal/wire"
	"holdfast/live"
	"holdfast/live/channels"
)

const (
	// coalesce gathers changes: a person sees no difference, and a relay whose
	// machines all come back asks its store ten times a second for an account,
	// not once for each of them.
	coalesce = 100 * time.Millisecond
	// restFactor bounds the share of time that one account's questions take.
	restFactor = 10
	// lookEvery is how often the machines are proven and looked at while somebody
	// follows: just above what a Prover does at most, so that a proof shown is
	// rarely older than that and a dial.
	lookEvery = proof.Interval + time.Second
	// retryAfter is how soon a store that failed is asked again.
	retryAfter = time.Second
	// pieceBytes bounds a message's machines; the rest is the object around them.
	pieceBytes = wire.MaxFeedBytes - 256
)

// room is an account that somebody follows.
type room struct {
	feeds  *Feeds
	id     engine.AccountID
	inbox  *channels.Inbox
	cancel context.CancelFunc
	dirty  chan struct{} // capacity 1: the machines may have changed
	mail   chan struct{} // capacity 1: so may the notices

	refreshing sync.Mutex // one at a time, so that no older state overtakes

	mu      sync.Mutex
	members map[*follower]struct{}
	entries map[wire.MachineID]entry
	version uint64 // of the newest entry
	fullAt  uint64 // who has seen less than this gets everything anew
}

// entry is a machine as it was told last.
type entry struct {
	json    []byte
	version uint64
}

// join puts c into its account's room, and makes that if need be.
func (f *Feeds) join(id engine.AccountID, c *follower) (*room, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, errors.New("the relay is closing")
	}
	r := f.rooms[id]
	if r == nil {
		inbox, err := channels.NewInbox(channels.InboxOptions{Storage: notices{f.Store, id}, Bucket: bucket, Encode: message})
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithCancel(context.Background())
		r = &room{
			feeds: f, id: id, inbox: inbox, cancel: cancel, dirty: make(chan struct{}, 1), mail: make(chan struct{}, 1),
			members: make(map[*follower]struct{}), entries: make(map[wire.MachineID]entry),
		}
		f.rooms[id] = r
		// Ends when the last follower leaves, or by Close, which waits.
		f.wg.Go(func() { r.run(ctx) })
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.members[c] = struct{}{}
	return r, nil
}

// leave takes c out; the last one ends the room.
func (r *room) leave(c *follower) {
	r.feeds.mu.Lock()
	defer r.feeds.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.members, c)
	if len(r.members) == 0 {
		delete(r.feeds.rooms, r.id)
		r.cancel()
	}
}

// run looks at the account while somebody follows it.
func (r *room) run(ctx context.Context) {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	prove, failed := true, false
	for {
		if prove {
			// A failure shows in refresh too.
			_ = r.prove(ctx)
		}
		began := time.Now()
		err := r.refresh(ctx, failed)
		if ctx.Err() != nil {
			return
		}
		if err != nil && !failed {
			r.feeds.Log.Error("look at an account's machines", "account", r.id, "err", err)
			r.tell()
		}
		failed = err != nil
		pause := max(coalesce, restFactor*time.Since(began))
		if failed {
			pause = retryAfter
			signal(r.dirty)
		}
		prove = false
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return
			case <-r.mail:
				r.inbox.Changed(ctx, nil)
				continue
			case <-look.C:
				prove = true
			case <-r.dirty:
			}
			waiting = false
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// prove starts what is due.
func (r *room) prove(ctx context.Context) error {
	machines, err := r.feeds.Store.Machines(ctx, r.id)
	if err != nil {
		return err
	}
	infos, err := r.feeds.Prover.State(ctx, machines)
	if err != nil {
		return err
	}
	r.feeds.Prover.Prove(machines, infos) // each says Changed when it ends
	return nil
}

// tell says that the state is stale.
func (r *room) tell() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.members {
		c.conn.SendError(&live.Error{Name: wire.FeedUnavailable})
	}
}

// refresh brings the entries up to what is, and wakes the followers. With anew it
// ends what tell began: everybody gets everything, changed or not, since what was
// told counts as stale until then.
func (r *room) refresh(ctx context.Context, anew bool) error {
	r.refreshing.Lock()
	defer r.refreshing.Unlock()
	machines, err := r.feeds.Store.Machines(ctx, r.id)
	if err != nil {
		return err
	}
	infos, err := r.feeds.Prover.State(ctx, machines)
	if err != nil {
		return err
	}
	presences := r.feeds.Presences(r.id)
	now := make(map[wire.MachineID][]byte, len(infos))
	for _, info := range infos {
		m := wire.FeedMachine{MachineInfo: info}
		if info.State != wire.StateOffline {
			m.Presence = presences[info.Machine]
		}
		if now[info.Machine], err = json.Marshal(m); err != nil {
			return fmt.Errorf("encode machine %q: %w", info.Machine, err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.version
	if anew {
		r.version = before + 1
		r.fullAt = r.version
	}
	for id := range r.entries {
		if now[id] == nil {
			delete(r.entries, id)
			r.version = before + 1
			r.fullAt = r.version
		}
	}
	for id, b := range now {
		if !bytes.Equal(r.entries[id].json, b) {
			r.version = before + 1
			r.entries[id] = entry{b, r.version}
		}
	}
	if r.version != before {
		for c := range r.members {
			signal(c.dirty)
		}
	}
	return nil
}

// since lists the machines that changed after a version, by name.
func (r *room) since(seen uint64, ever bool) (list []json.RawMessage, version uint64, full bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	full = !ever || seen < r.fullAt
	names := make([]wire.MachineID, 0, len(r.entries))
	for id, e := range r.entries {
		if full || e.version > seen {
			names = append(names, id)
		}
	}
	slices.SortFunc(names, func(a, b wire.MachineID) int { return cmp.Compare(a, b) })
	for _, id := range names {
		list = append(list, r.entries[id].json)
	}
	return list, r.version, full
}

// machinesMessage is a wire.FeedMessage whose machines are encoded already.
type machinesMessage struct {
	Op       wire.FeedOp       `json:"op"`
	Now      time.Time         `json:"now"`
	Full     bool              `json:"full,omitempty"`
	More     bool              `json:"more,omitempty"`
	Machines []json.RawMessage `json:"machines"`
}

// follower is one device's connection to its account's channel.
type follower struct {
	seat
	room  *room
	inbox live.Handler
	dirty chan struct{} // capacity 1
	seen  uint64        // the version that was sent last
	ever  bool          // something was
	ended chan struct{} // closed when follow has returned; nil before it began
}

// Open implements live.Handler: it sends the state as it is.
func (c *follower) Open(ctx context.Context, conn *live.Conn) error {
	if err := c.sit(ctx, conn); err != nil {
		return err
	}
	var err error
	if c.room, err = c.feeds.join(c.token.Account, c); err == nil {
		err = c.room.refresh(ctx, false)
	}
	if err == nil {
		err = c.push(ctx)
	}
	if err == nil {
		c.inbox = c.room.inbox.Channel(string(c.token.Account))
		err = c.inbox.Open(ctx, conn)
	}
	if err != nil {
		if ctx.Err() == nil {
			c.feeds.Log.Error("open an account's channel", "account", c.token.Account, "err", err)
		}
		return &live.Refusal{Code: uint16(wire.CloseInternal), Reason: "the relay cannot reach its store"}
	}
	c.ended = make(chan struct{})
	// Ends with the connection; Close waits.
	go c.follow()
	return nil
}

// follow sends what changes, as fast as the device reads: a slow one gets the
// newest state of each machine when it comes to it.
func (c *follower) follow() {
	defer close(c.ended)
	ctx := c.conn.Context()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.dirty:
		}
		if c.push(ctx) != nil {
			return // the connection has ended
		}
	}
}

// push sends what the device has not seen, in messages of bounded size.
func (c *follower) push(ctx context.Context) error {
	list, version, full := c.room.since(c.seen, c.ever)
	for first := true; first && full || len(list) > 0; first = false {
		n, size := 0, 0
		for n < len(list) && (n == 0 || size+len(list[n])+1 <= pieceBytes) {
			size += len(list[n]) + 1
			n++
		}
		m := machinesMessage{
			Op: wire.FeedMachines, Now: time.Now().UTC(), Full: full && first, More: n < len(list), Machines: list[:n],
		}
		if m.Machines == nil {
			m.Machines = []json.RawMessage{}
		}
		if err := c.conn.SendWait(ctx, m); err != nil {
			return err
		}
		list = list[n:]
	}
	c.seen, c.ever = version, true
	return nil
}

// Message implements live.Handler: a device acknowledges notices, and nothing
// else.
func (c *follower) Message(ctx context.Context, conn *live.Conn, message json.RawMessage) error {
	return c.inbox.Message(ctx, conn, message)
}

// Close implements live.Handler.
func (c *follower) Close(conn *live.Conn, end live.End) {
	if c.ended != nil {
		<-c.ended
	}
	if c.inbox != nil {
		c.inbox.Close(conn, end)
	}
	if c.room != nil {
		c.room.leave(c)
	}
	c.leave()
}
