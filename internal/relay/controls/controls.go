// Package controls keeps the control connections of agents: the parked sockets
// that hold their machines' names, by which a dial reaches a machine.
//
// It joins no stream and proves nothing. What a caller will get wrong: a socket
// has its machine's name before it has the answer to its upgrade, since an agent
// that was answered must be one that can be dialled; and Controls must be closed
// after everything that could still deliver on a Conn.
package controls

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"holdfast/internal/engine"
	"holdfast/internal/liveness"
	"holdfast/internal/park"
	"holdfast/internal/relay/admit"
	"holdfast/internal/relay/axes"
	"holdfast/internal/relay/gate"
	"holdfast/internal/relay/handshake"
	"holdfast/internal/relay/meter"
	"holdfast/internal/relay/proof"
	"holdfast/internal/relay/waiting"
	"holdfast/internal/wire"
)

const (
	// ReapAfter is how long a control connection may be silent: three heartbeats
	// of 45 s and some slack. At half, one lost heartbeat would cut a healthy
	// agent; at double, a machine looks connected for five minutes.
	ReapAfter = 150 * time.Second
	// revokeBatch is how many revocations are under way to an agent at once: its
	// send queue holds them even with the longest keys.
	revokeBatch = 32
	// acksMax is how many acknowledgements wait for the store; more are dropped
	// and asked for again when the agent reconnects.
	acksMax = 1024
)

// Options of New; all but the last two are required.
type Options struct {
	Store  engine.Store
	Router engine.Router
	Axes   *axes.Axes
	Dials  *waiting.Dials
	Door   *admit.Door
	Gate   *gate.Gate
	Meter  *meter.Meter
	Log    *slog.Logger
	// Changed hears that what a machine's holder says of itself, or whether there
	// is one, has changed. It must not block.
	Changed func(k engine.Key)
	// Background runs f in a goroutine that the owner waits for, or reports
	// that it does so no more; Context ends what f does.
	Background func(f func()) bool
	Context    context.Context
	// Keepalive is how often each connection gets a protocol ping; zero means
	// never. Goroutines parks connections in goroutines where epoll would do.
	Keepalive  time.Duration
	Goroutines bool
}

func (o *Options) check() error {
	if o.Store == nil || o.Router == nil || o.Axes == nil || o.Dials == nil || o.Door == nil || o.Gate == nil ||
		o.Meter == nil || o.Log == nil || o.Changed == nil || o.Background == nil || o.Context == nil {
		return errors.New("controls: all options but the keepalive and the form are required")
	}
	return nil
}

// Controls keeps the parked sockets. It is safe for concurrent use.
type Controls struct {
	Options
	lot  *park.Lot
	acks chan ack
}

// ack is a revocation that an agent has carried out.
type ack struct {
	c   *Conn
	rev engine.Revocation
}

// New makes a Controls; Close, and before it the end of Context, ends it.
func New(o Options) (*Controls, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	lot, err := park.New(park.Options{Goroutines: o.Goroutines})
	if err != nil {
		return nil, fmt.Errorf("controls: %w", err)
	}
	cs := &Controls{Options: o, lot: lot, acks: make(chan ack, acksMax)}
	o.Background(cs.acknowledge) // ends with Context
	if o.Keepalive > 0 {
		o.Background(func() { cs.keepAlive(o.Keepalive) }) // ends with Context
	}
	return cs, nil
}

// Close drops every socket that is still there.
func (cs *Controls) Close() { cs.lot.Close() }

// Parked says how many sockets wait in which form.
func (cs *Controls) Parked() park.Stats { return cs.lot.Stats() }

// keepAlive pings every control connection, for paths that drop idle ones. It
// judges nothing.
func (cs *Controls) keepAlive(every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-cs.Context.Done():
			return
		case <-t.C:
			for _, m := range cs.Axes.OfRole(axes.Control) {
				c := m.Self().(*Conn)
				c.mu.Lock()
				conn := c.conn
				c.mu.Unlock()
				if conn != nil {
					_ = conn.Ping() // one that is closing needs none
				}
			}
		}
	}
}

// acknowledge writes to the store what agents have done.
func (cs *Controls) acknowledge() {
	for {
		select {
		case <-cs.Context.Done():
			return
		case a := <-cs.acks:
			k := a.c.Key()
			if err := cs.Store.AckRevocation(cs.Context, k, a.rev); err != nil && !errors.Is(err, engine.ErrNotFound) {
				cs.Log.Error("note a revocation as done", "account", k.Account, "machine", k.Machine, "err", err)
			}
			a.c.mu.Lock()
			a.c.owed = max(a.c.owed-1, 0)
			next := a.c.more && a.c.owed == 0
			a.c.mu.Unlock()
			if next {
				cs.sendRevocations(a.c)
			}
		}
	}
}

// Serve is /agent/{machineID}, its token verified.
func (cs *Controls) Serve(w http.ResponseWriter, req *http.Request, hs handshake.Request, t engine.Token) *gate.Refusal {
	rt, ref := admit.Route(req)
	if ref != nil {
		return ref
	}
	if t.Kind != engine.KindAgent || t.Machine != "" && t.Machine != rt.Machine {
		return gate.NotAllowed()
	}
	if !cs.Door.Negotiated(w, req, hs) {
		return nil
	}
	k := engine.Key{Account: t.Account, Machine: wire.MachineID(strings.Clone(string(rt.Machine)))}
	if t.Machine == "" {
		if err := cs.Store.BindToken(req.Context(), t.ID, k.Machine); err != nil {
			return cs.Door.Failure("bind a token to a machine", err)
		}
	}
	epoch, err := cs.Store.Claim(req.Context(), k, hs.Instance, hs.Attempt)
	switch {
	case errors.Is(err, engine.ErrStaleAttempt):
		cs.Meter.Replaced()
		cs.Door.Accept(w, req, hs.Selected.Protocol, wire.CloseReplaced, wire.ReplacedReason(hs.Instance))
		return nil
	case errors.Is(err, engine.ErrReplaced):
		m, err := cs.Store.Machine(req.Context(), k)
		if err != nil {
			return cs.Door.Failure("look up a machine", err)
		}
		cs.Meter.Replaced()
		cs.Door.Accept(w, req, hs.Selected.Protocol, wire.CloseReplaced, wire.ReplacedReason(m.Instance))
		return nil
	case err != nil:
		return cs.Door.Failure("claim a machine", err)
	}
	c := &Conn{set: cs, before: &prelude{}}
	c.Init(c, k.Machine, axes.Control)
	cs.Axes.Add(&c.Member, t)
	cs.hold(c, epoch, hs.Instance)
	// Now that c is in the registry, a revocation either was seen here or closes
	// it from there.
	if code, reason := cs.Door.Recheck(k, t); code != 0 {
		c.End(code, reason)
	}
	conn, head, err := handshake.Upgrade(w, req, hs.Selected.Protocol)
	if err != nil {
		c.forget()
		return nil
	}
	cs.Gate.Touch(t, req)
	pc, err := cs.lot.Park(conn, head, c)
	if err != nil {
		c.forget()
		cs.Door.Own(conn, func() { handshake.Farewell(conn, wire.CloseRestart, liveness.RestartReason(0)) })
		return nil
	}
	pc.ExpireAfter(ReapAfter)
	if c.settle(pc) {
		cs.Log.Info("machine connected", "account", k.Account, "machine", k.Machine)
		cs.sendRevocations(c)
	}
	return nil
}

// hold makes c the machine's holder.
func (cs *Controls) hold(c *Conn, epoch uint64, instance wire.Instance) {
	k := c.Key() // the one copy of the names
	before, err := cs.Router.Hold(k, epoch, c)
	switch {
	case errors.Is(err, engine.ErrStaleAttempt):
		cs.Meter.Replaced()
		c.End(wire.CloseReplaced, wire.ReplacedReason(cs.winner(k)))
	case err != nil:
		cs.Log.Error("hold a machine", "account", k.Account, "machine", k.Machine, "err", err)
		c.End(wire.CloseRestart, liveness.RestartReason(time.Second))
	}
	if old, ok := before.(*Conn); ok {
		// It lost the name in Hold; the rest goes on in the background.
		cs.Meter.Replaced()
		old.End(wire.CloseReplaced, wire.ReplacedReason(instance))
	}
	c.mu.Lock()
	ended := c.ended
	c.mu.Unlock()
	if ended {
		cs.Router.Release(k, c) // End may have come before Hold
	}
	cs.Changed(k)
}

// winner is the instance that holds a machine by the store's word.
func (cs *Controls) winner(k engine.Key) wire.Instance {
	m, err := cs.Store.Machine(cs.Context, k)
	if err != nil {
		return "" // "a newer connection" is true all the same
	}
	return m.Instance
}

// sendRevocations sends what the machine has not acknowledged.
func (cs *Controls) sendRevocations(c *Conn) {
	k := c.Key()
	list, err := cs.Store.Revocations(cs.Context, k)
	if err != nil {
		if cs.Context.Err() == nil {
			cs.Log.Error("list a machine's revocations", "account", k.Account, "machine", k.Machine, "err", err)
		}
		return
	}
	n := min(len(list), revokeBatch)
	c.mu.Lock()
	c.owed, c.more = int16(n), n < len(list)
	c.mu.Unlock()
	for _, rev := range list[:n] {
		if c.Deliver(wire.Message{Op: wire.OpRevoke, Device: rev.Device, Key: rev.Key}) != nil {
			return // it will ask again when it reconnects
		}
	}
}

// Remind sends every agent of an account what it has yet to revoke.
func (cs *Controls) Remind(id engine.AccountID) {
	agents := cs.Axes.Controls(id)
	// Ends by itself or with Context: the store is asked once for each agent.
	cs.Background(func() {
		for _, m := range agents {
			cs.sendRevocations(m.Self().(*Conn))
		}
	})
}

// Greetings are what the holders of an account's machines, as far as their
// sockets are of this node, said of themselves.
func (cs *Controls) Greetings(id engine.AccountID) map[wire.MachineID]proof.Greeting {
	out := make(map[wire.MachineID]proof.Greeting)
	cs.holders(id, func(m wire.MachineID, c *Conn) {
		c.mu.Lock()
		hello := c.hello
		c.mu.Unlock()
		out[m] = hello.Greeting()
	})
	return out
}

// Presences are what they said for devices: opaque, and left out where it is
// nothing.
func (cs *Controls) Presences(id engine.AccountID) map[wire.MachineID]string {
	out := make(map[wire.MachineID]string)
	cs.holders(id, func(m wire.MachineID, c *Conn) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.presence != nil {
			out[m] = *c.presence
		}
	})
	return out
}

// holders calls f for the holder of each of an account's machines.
func (cs *Controls) holders(id engine.AccountID, f func(wire.MachineID, *Conn)) {
	for _, m := range cs.Axes.Controls(id) {
		c := m.Self().(*Conn)
		if k := c.Key(); cs.Router.Holds(k, c) {
			f(k.Machine, c)
		}
	}
}
