package controls

import (
	"errors"
	"strconv"
	"sync"

	"holdfast/internal/engine"
	"holdfast/internal/frame"
	"holdfast/internal/liveness"
	"holdfast/internal/park"
	"holdfast/internal/relay/axes"
	"holdfast/internal/relay/proof"
	"holdfast/internal/relay/waiting"
	"holdfast/internal/wire"
)

// Conn is one agent's control connection: the registry entry of a parked
// machine. A field more here is paid for by every one of them.
type Conn struct {
	axes.Member
	set *Controls

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

// settle gives c its parked socket and does what waited for that. It is false
// where that was the end.
func (c *Conn) settle(pc *park.Conn) bool {
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
func (c *Conn) forget() {
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	k := c.Key()
	c.set.Router.Release(k, c)
	c.set.Axes.Remove(&c.Member)
	c.set.Changed(k)
}

// Deliver implements engine.Holder: it is the code that delivers a dial.
func (c *Conn) Deliver(m wire.Message) error {
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
func (c *Conn) queue(b []byte) (*park.Conn, error) {
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
func (c *Conn) pong() {
	k := c.Key()
	if c.set.Router.Holds(k, c) {
		// A failure shows as a closed socket.
		_ = c.Deliver(wire.Message{Op: wire.OpPong})
		return
	}
	// If it was replaced, End was called with 4409 and this does nothing.
	c.End(wire.CloseRestart, liveness.RestartReason(0))
}

// End implements axes.Ender: the name is lost at once, the rest takes its time.
func (c *Conn) End(code wire.CloseCode, reason string) {
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
	c.set.Router.Release(k, c)
	c.set.Changed(k)
	c.set.Meter.Closed(code)
	c.set.Log.Info("machine's control connection ended", "account", k.Account, "machine", k.Machine, "verdict", verdict(code, reason))
	if conn != nil {
		conn.Close(code, reason)
	}
}

// Message implements park.Handler.
func (c *Conn) Message(pc *park.Conn, op frame.Opcode, payload []byte) {
	switch op {
	case frame.Text:
		pc.ExpireAfter(ReapAfter)
		c.text(payload)
		return
	case frame.Binary:
		c.set.Meter.Dropped("binary")
	}
	c.mu.Lock()
	counts := !c.pinged
	c.mu.Unlock()
	if counts {
		pc.ExpireAfter(ReapAfter)
	}
}

// text handles one control message. What is not understood is dropped: it must
// not become a reason to disconnect.
func (c *Conn) text(payload []byte) {
	m, err := wire.DecodeControl(payload)
	switch {
	case errors.Is(err, wire.ErrUnknownOp):
		return
	case err != nil:
		c.set.Meter.Dropped("malformed")
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
		c.set.Changed(c.Key())
	case wire.OpRefuse:
		c.refused(m)
	case wire.OpRevoked:
		select {
		case c.set.acks <- ack{c, engine.Revocation{Device: m.Device, Key: m.Key}}:
		default:
			c.set.Meter.Dropped("busy")
		}
	}
}

// refused ends a dial that this machine was sent.
func (c *Conn) refused(m wire.Message) {
	d := c.set.Dials.Take(m.ConnID, c.Key())
	if d == nil {
		return // too late, or never its own
	}
	c.set.Dials.Give(d, waiting.Answer{Code: wire.RefuseCode(m.Code), Reason: wire.CleanReason(m.Reason)})
}

// Expired implements park.Handler: nothing that counts was heard.
func (c *Conn) Expired(*park.Conn) {
	c.set.Meter.Reaped()
	c.End(wire.CloseGoingAway, "nothing was heard for "+ReapAfter.String())
}

// Closed implements park.Handler.
func (c *Conn) Closed(_ *park.Conn, e park.End) {
	c.mu.Lock()
	ended := c.ended
	c.mu.Unlock()
	c.forget()
	if !ended {
		k := c.Key()
		c.set.Log.Info("machine disconnected", "account", k.Account, "machine", k.Machine, "verdict", verdict(e.Code, e.Reason), "err", e.Err)
	}
}

// verdict is what the log calls the end of a connection.
func verdict(code wire.CloseCode, why string) string {
	return strconv.Itoa(int(code)) + " " + why
}
