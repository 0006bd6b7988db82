package controls

import (
	"holdfast/internal/engine"
	"holdfast/internal/liveness"
	"holdfast/internal/park"
	"holdfast/internal/relay/axes"
	"holdfast/internal/relay/handover"
	"holdfast/internal/relay/proof"
	"holdfast/internal/wire"
)

// Stays reports whether the socket can be handed over to another process.
func (c *Conn) Stays() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conn != nil && c.conn.Form() == "epoll"
}

// Freeze stops the parked sockets, so that another process can go on with them;
// Thaw undoes it.
func (cs *Controls) Freeze() []handover.Control {
	of := make(map[*park.Conn]*Conn)
	for _, m := range cs.Axes.OfRole(axes.Control) {
		c := m.Self().(*Conn)
		c.mu.Lock()
		if c.conn != nil && !c.ended {
			of[c.conn] = c
		}
		c.mu.Unlock()
	}
	epochs, _ := cs.Router.(engine.Epochs)
	var out []handover.Control
	for _, f := range cs.lot.Freeze() {
		c := of[f.Conn]
		if c == nil || epochs == nil {
			continue
		}
		epoch, holds := epochs.Epoch(c.Key(), c)
		if !holds {
			continue
		}
		h := handover.Control{
			FD: f.FD, Machine: c.Key().Machine, Token: handover.TokenOf(c.Token()), Epoch: epoch,
			Received: f.Received, Unsent: f.Unsent,
		}
		c.mu.Lock()
		h.Presence, h.Pinged, h.Owed = c.presence, c.pinged, c.owed > 0 || c.more
		if c.hello != (proof.Hello{}) {
			g := c.hello.Greeting()
			h.Hello = wire.Message{Op: wire.OpHello, Version: g.Version, Features: g.Features, Services: g.Services}
		}
		c.mu.Unlock()
		out = append(out, h)
	}
	return out
}

// Thaw goes on after a Freeze whose hand-over did not come about.
func (cs *Controls) Thaw() {
	cs.lot.Thaw()
	for _, m := range cs.Axes.OfRole(axes.Control) {
		c := m.Self().(*Conn)
		c.mu.Lock()
		ended, conn := c.ended, c.conn
		c.mu.Unlock()
		if ended && conn != nil { // meanwhile, when its socket heeded nothing
			conn.Close(wire.CloseRestart, liveness.RestartReason(0))
		}
	}
}

// Adopt goes on with a socket that a former process has handed over.
func (cs *Controls) Adopt(h handover.Control) error {
	c := &Conn{set: cs, before: &prelude{}, pinged: h.Pinged, presence: h.Presence}
	if h.Hello.Op == wire.OpHello {
		c.hello = proof.KeepHello(h.Hello)
	}
	c.Init(c, h.Machine, axes.Control)
	cs.Axes.Add(&c.Member, h.Token.Engine())
	_, err := cs.Router.Hold(c.Key(), h.Epoch, c)
	var pc *park.Conn
	if err == nil {
		pc, err = cs.lot.Adopt(park.Frozen{FD: h.FD, Received: h.Received, Unsent: h.Unsent}, c)
	}
	if err != nil {
		c.forget()
		handover.CloseAll([]int{h.FD})
		return err
	}
	pc.ExpireAfter(ReapAfter)
	if c.settle(pc) && h.Owed {
		cs.sendRevocations(c)
	}
	return nil
}
