package relay

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"holdfast/internal/engine"
	"holdfast/internal/frame"
	"holdfast/internal/liveness"
	"holdfast/internal/park"
	"holdfast/internal/relay/axes"
	"holdfast/internal/relay/gate"
	"holdfast/internal/relay/handshake"
	"holdfast/internal/relay/proof"
	"holdfast/internal/relay/waiting"
	"holdfast/internal/wire"
)

const (
	// reapAfter is how long a control connection may be silent: three heartbeats
	// of 45 s and some slack. At half, one lost heartbeat would cut a healthy
	// agent; at double, a machine looks connected for five minutes.
	reapAfter = 150 * time.Second
	// revokeBatch is how many revocations are under way to an agent at once: its
	// send queue holds them even with the longest keys.
	revokeBatch = 32
	// acksMax is how many acknowledgements wait for the store; more are dropped
	// and asked for again when the agent reconnects.
	acksMax = 1024
)

// control is one agent's control connection: the registry entry of a parked
// machine. A field more here is paid for by every one of them.
type control struct {
	axes.Member
	relay *Relay

	mu       sync.Mutex
	conn     *park.Conn // nil until the socket is parked
	before   *prelude   // what comes until then
	hello    proof.Hello
	presence *string // opaque; nil for none
	owed     int16   // revocations sent and not acknowledged
	more     bool    // further ones wait for those
	pinged   bool    // it has sent an application ping, so that other frames count no more
	ended    bool    // nothing is delivered any more
}

// prelude is what happens to a control connection that holds its machine's name
// already and has not had its 101 yet: an agent that was answered must be one
// that can be dialled.
type prelude struct {
	messages [][]byte
	code     wire.CloseCode
	reason   string
}

// preludeMax bounds the messages of that instant.
const preludeMax = 64

// controls keep the parked sockets.
type controls struct {
	relay *Relay
	lot   *park.Lot
	acks  chan ack
}

type ack struct {
	c   *control
	rev engine.Revocation
}

func newControls(r *Relay, o park.Options, keepalive time.Duration) (*controls, error) {
	lot, err := park.New(o)
	if err != nil {
		return nil, err
	}
	cs := &controls{relay: r, lot: lot, acks: make(chan ack, acksMax)}
	r.background(cs.acknowledge) // ends with ctx
	if keepalive > 0 {
		r.background(func() { cs.keepAlive(keepalive) }) // ends with ctx
	}
	return cs, nil
}

func (cs *controls) close() { cs.lot.Close() }

// keepAlive pings every control connection, for paths that drop idle ones. It
// judges nothing.
func (cs *controls) keepAlive(every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-cs.relay.ctx.Done():
			return
		case <-t.C:
			for _, m := range cs.relay.axes.OfRole(axes.Control) {
				c := m.Self().(*control)
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
func (cs *controls) acknowledge() {
	r := cs.relay
	for {
		select {
		case <-r.ctx.Done():
			return
		case a := <-cs.acks:
			k := a.c.Key()
			if err := r.store.AckRevocation(r.ctx, k, a.rev); err != nil && !errors.Is(err, engine.ErrNotFound) {
				r.log.Error("note a revocation as done", "account", k.Account, "machine", k.Machine, "err", err)
			}
			a.c.mu.Lock()
			a.c.owed = max(a.c.owed-1, 0)
			next := a.c.more && a.c.owed == 0
			a.c.mu.Unlock()
			if next {
				r.sendRevocations(a.c)
			}
		}
	}
}

// serveAgent is /agent/{machineID}, its token verified.
func (r *Relay) serveAgent(w http.ResponseWriter, req *http.Request, hs handshake.Request, t engine.Token) *gate.Refusal {
	rt, ref := parseRoute(req)
	if ref != nil {
		return ref
	}
	if t.Kind != engine.KindAgent || t.Machine != "" && t.Machine != rt.Machine {
		return gate.NotAllowed()
	}
	if !r.negotiated(w, req, hs) {
		return nil
	}
	k := engine.Key{Account: t.Account, Machine: wire.MachineID(strings.Clone(string(rt.Machine)))}
	if t.Machine == "" {
		if err := r.store.BindToken(req.Context(), t.ID, k.Machine); err != nil {
			return r.failure("bind a token to a machine", err)
		}
	}
	epoch, err := r.store.Claim(req.Context(), k, hs.Instance, hs.Attempt)
	switch {
	case errors.Is(err, engine.ErrStaleAttempt):
		r.meter.Replaced()
		r.accept(w, req, hs.Selected.Protocol, wire.CloseReplaced, wire.ReplacedReason(hs.Instance))
		return nil
	case errors.Is(err, engine.ErrReplaced):
		m, err := r.store.Machine(req.Context(), k)
		if err != nil {
			return r.failure("look up a machine", err)
		}
		r.meter.Replaced()
		r.accept(w, req, hs.Selected.Protocol, wire.CloseReplaced, wire.ReplacedReason(m.Instance))
		return nil
	case err != nil:
		return r.failure("claim a machine", err)
	}
	c := &control{relay: r, before: &prelude{}}
	c.Init(c, k.Machine, axes.Control)
	r.axes.Add(&c.Member, t)
	r.hold(c, epoch, hs.Instance)
	// Now that c is in the registry, a revocation either was seen here or closes
	// it from there.
	if code, reason := r.stillGood(k, t); code != 0 {
		c.End(code, reason)
	}
	conn, head, err := handshake.Upgrade(w, req, hs.Selected.Protocol)
	if err != nil {
		c.forget()
		return nil
	}
	r.gate.Touch(t, req)
	pc, err := r.controls.lot.Park(conn, head, c)
	if err != nil {
		c.forget()
		r.own(conn, func() { handshake.Farewell(conn, wire.CloseRestart, liveness.RestartReason(0)) })
		return nil
	}
	pc.ExpireAfter(reapAfter)
	if c.settle(pc) {
		r.log.Info("machine connected", "account", k.Account, "machine", k.Machine)
		r.sendRevocations(c)
	}
	return nil
}

// hold makes c the machine's holder.
func (r *Relay) hold(c *control, epoch uint64, instance wire.Instance) {
	k := c.Key() // the one copy of the names
	before, err := r.router.Hold(k, epoch, c)
	switch {
	case errors.Is(err, engine.ErrStaleAttempt):
		r.meter.Replaced()
		c.End(wire.CloseReplaced, wire.ReplacedReason(r.winner(k)))
	case err != nil:
		r.log.Error("hold a machine", "account", k.Account, "machine", k.Machine, "err", err)
		c.End(wire.CloseRestart, liveness.RestartReason(time.Second))
	}
	if old, ok := before.(*control); ok {
		// It lost the name in Hold; the rest goes on in the background.
		r.meter.Replaced()
		old.End(wire.CloseReplaced, wire.ReplacedReason(instance))
	}
	c.mu.Lock()
	ended := c.ended
	c.mu.Unlock()
	if ended {
		r.router.Release(k, c) // End may have come before Hold
	}
}

// settle gives c its parked socket and does what waited for that. It is false
// where that was the end.
func (c *control) settle(pc *park.Conn) bool {
	c.mu.Lock()
	before, ended := c.before, c.ended
	c.conn, c.before = pc, nil
	// Under the lock, so that nothing overtakes what came before.
	for _, b := range before.messages {
		if pc.Send(b) != nil {
			break // closed: Closed knows
		}
	}
	c.mu.Unlock()
	if before.code != 0 {
		pc.Close(before.code, before.reason)
	}
	return !ended
}

// forget takes c out of the registry: its socket is gone, or never came.
func (c *control) forget() {
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	c.relay.router.Release(c.Key(), c)
	c.relay.axes.Remove(&c.Member)
}

// winner is the instance that holds a machine by the store's word.
func (r *Relay) winner(k engine.Key) wire.Instance {
	m, err := r.store.Machine(r.ctx, k)
	if err != nil {
		return "" // "a newer connection" is true all the same
	}
	return m.Instance
}

// sendRevocations sends what the machine has not acknowledged.
func (r *Relay) sendRevocations(c *control) {
	k := c.Key()
	list, err := r.store.Revocations(r.ctx, k)
	if err != nil {
		if r.ctx.Err() == nil {
			r.log.Error("list a machine's revocations", "account", k.Account, "machine", k.Machine, "err", err)
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

// Deliver implements engine.Holder: it is the code that delivers a dial.
func (c *control) Deliver(m wire.Message) error {
	if m.Op == proof.OpPresent {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.ended {
			return park.ErrClosed
		}
		return nil
	}
	b, err := wire.EncodeControl(m)
	if err != nil {
		return err
	}
	conn, err := c.queue(b)
	if conn == nil {
		return err
	}
	err = conn.Send(b)
	if errors.Is(err, park.ErrFull) {
		// An agent that does not read cannot be dialled either.
		c.End(wire.CloseInternal, "the agent does not read")
	}
	return err
}

// queue keeps b while there is no socket yet, or gives the socket to send it on.
func (c *control) queue(b []byte) (*park.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.ended:
		return nil, park.ErrClosed
	case c.conn != nil:
		return c.conn, nil
	case len(c.before.messages) >= preludeMax:
		return nil, park.ErrFull
	}
	c.before.messages = append(c.before.messages, b)
	return nil, nil
}

// pong answers the application round trip: from Deliver, and only if this very
// socket is what a dial would use.
func (c *control) pong() {
	k := c.Key()
	if c.relay.router.Holds(k, c) {
		// A failure shows as a closed socket.
		_ = c.Deliver(wire.Message{Op: wire.OpPong})
		return
	}
	// If it was replaced, End was called with 4409 and this does nothing.
	c.End(wire.CloseRestart, liveness.RestartReason(0))
}

// End implements axes.Ender: the name is lost at once, the rest takes its time.
func (c *control) End(code wire.CloseCode, reason string) {
	c.mu.Lock()
	ended, conn := c.ended, c.conn
	c.ended = true
	if !ended && conn == nil {
		c.before.code, c.before.reason = code, reason
	}
	c.mu.Unlock()
	if ended {
		return
	}
	k := c.Key()
	c.relay.router.Release(k, c)
	c.relay.meter.Closed(code)
	c.relay.log.Info("machine's control connection ended", "account", k.Account, "machine", k.Machine, "verdict", verdict(code, reason))
	if conn != nil {
		conn.Close(code, reason)
	}
}

// Message implements park.Handler.
func (c *control) Message(pc *park.Conn, op frame.Opcode, payload []byte) {
	switch op {
	case frame.Text:
		pc.ExpireAfter(reapAfter)
		c.text(payload)
		return
	case frame.Binary:
		c.relay.meter.Dropped("binary")
	}
	c.mu.Lock()
	counts := !c.pinged
	c.mu.Unlock()
	if counts {
		pc.ExpireAfter(reapAfter)
	}
}

// text handles one control message. What is not understood is dropped: it must
// not become a reason to disconnect.
func (c *control) text(payload []byte) {
	m, err := wire.DecodeControl(payload)
	switch {
	case errors.Is(err, wire.ErrUnknownOp):
		return
	case err != nil:
		c.relay.meter.Dropped("malformed")
		return
	}
	switch m.Op {
	case wire.OpPing:
		c.mu.Lock()
		c.pinged = true
		c.mu.Unlock()
		c.pong()
	case wire.OpHello:
		h := proof.KeepHello(m)
		c.mu.Lock()
		c.hello, c.presence = h, nil
		if m.Presence != "" {
			c.presence = new(m.Presence)
		}
		c.mu.Unlock()
	case wire.OpRefuse:
		c.refused(m)
	case wire.OpRevoked:
		select {
		case c.relay.controls.acks <- ack{c, engine.Revocation{Device: m.Device, Key: m.Key}}:
		default:
			c.relay.meter.Dropped("busy")
		}
	}
}

// refused ends a dial that this machine was sent.
func (c *control) refused(m wire.Message) {
	d := c.relay.dials.Take(m.ConnID, c.Key())
	if d == nil {
		return // too late, or never its own
	}
	c.relay.dials.Give(d, waiting.Answer{Code: wire.RefuseCode(m.Code), Reason: wire.CleanReason(m.Reason)})
}

// greetingOf is what the socket of this node that holds k said of its agent.
func (r *Relay) greetingOf(k engine.Key) proof.Greeting {
	for _, m := range r.axes.Controls(k.Account) {
		if c := m.Self().(*control); c.Key() == k && r.router.Holds(k, c) {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.hello.Greeting()
		}
	}
	return proof.Greeting{}
}

// Expired implements park.Handler: nothing that counts was heard.
func (c *control) Expired(*park.Conn) {
	c.relay.meter.Reaped()
	c.End(wire.CloseGoingAway, "nothing was heard for "+reapAfter.String())
}

// Closed implements park.Handler.
func (c *control) Closed(_ *park.Conn, e park.End) {
	c.mu.Lock()
	ended := c.ended
	c.mu.Unlock()
	c.forget()
	if !ended {
		k := c.Key()
		c.relay.log.Info("machine disconnected", "account", k.Account, "machine", k.Machine, "verdict", verdict(e.Code, e.Reason), "err", e.Err)
	}
}
