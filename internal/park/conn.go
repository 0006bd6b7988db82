package park

import (
	"sync"
	"time"

	"holdfast/internal/frame"
	"holdfast/internal/park/wheel"
	"holdfast/internal/wire"
)

// Conn is one parked connection. Its methods may be called from anywhere, a
// Handler included, and never block.
//
// There are as many of these as machines: a field more costs every one of them.
type Conn struct {
	lot     *Lot
	handler Handler
	expiry  wheel.Entry

	// handling is held during a call of handler.
	handling sync.Mutex

	mu sync.Mutex
	// rare is guarded by mu, except that it never changes unless kind is plain.
	rare  *rare
	kind  kind // never changes
	state state
	// waitOut says that epoll waits for the socket to take more.
	waitOut bool
	// told is set once Closed was called; guarded by handling.
	told bool

	parked // of a connection in epoll
}

// rare is what an idle plain connection does without.
type rare struct {
	// out is what waits to be sent, as frames or as their ciphertext.
	out []byte
	// leaving is set in epoll once the connection is closing.
	leaving *leaving
	secure  *secure // of kind secured
	waiter  *waiter // of kind waiting
}

// kind is the way in which a connection waits.
type kind uint8

const (
	plain   kind = iota // in epoll
	secured             // in epoll, with TLS
	waiting             // with a goroutine
)

// state of a connection, as far as sending goes.
type state uint8

const (
	open    state = iota
	frozen        // being handed over: nothing is read or written
	closing       // a close frame is in out, or was sent; nothing may follow
	dropped       // the socket is closed
)

// Send queues one text message. Errors: ErrClosed, ErrFull.
func (c *Conn) Send(text []byte) error { return c.queue(frame.Text, text) }

// Ping queues a protocol ping, as a keep-alive for the path. Errors as of Send.
func (c *Conn) Ping() error { return c.queue(frame.Ping, nil) }

func (c *Conn) queue(op frame.Opcode, payload []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != open {
		return ErrClosed
	}
	if len(c.unsent())+len(payload)+frame.MaxHeaderBytes > c.lot.opt.MaxQueue {
		return ErrFull
	}
	if c.kind == plain {
		var scratch [256]byte // most frames need no allocation
		c.pushPlain(frame.AppendFrame(scratch[:0], op, payload))
	} else {
		c.push(frame.AppendFrame(nil, op, payload))
	}
	return nil
}

// push sends frames, or has them wait. mu is held.
func (c *Conn) push(frames []byte) {
	switch c.kind {
	case waiting:
		c.keep(frames)
		c.writeLater()
	case secured:
		c.encrypt(frames)
		c.writeOn()
	default:
		c.pushPlain(frames)
	}
}

// unsent is what waits to be sent. mu is held.
func (c *Conn) unsent() []byte {
	if c.rare == nil {
		return nil
	}
	return c.rare.out
}

// keep has a copy of b wait. mu is held.
func (c *Conn) keep(b []byte) {
	if len(b) == 0 {
		return
	}
	if c.rare == nil {
		c.rare = new(rare)
	}
	c.lot.held.Add(int64(len(b)))
	c.rare.out = append(c.rare.out, b...)
}

// taken notes that n bytes of what waits were written. mu is held.
func (c *Conn) taken(n int) {
	if n == 0 {
		return
	}
	c.lot.held.Add(-int64(n))
	if c.rare.out = c.rare.out[n:]; len(c.rare.out) > 0 {
		return
	}
	c.rare.out = nil
	if c.kind == plain && c.state == open {
		c.rare = nil
	}
}

// Close sends a close frame behind what is queued, then shuts the sending side
// and reads on until the peer hangs up, for Options.CloseTimeout at most. It
// returns at once. On a connection that is closing already it does nothing.
func (c *Conn) Close(code wire.CloseCode, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.beginClose(code, reason)
}

// beginClose reports whether it was this call that began. mu is held.
func (c *Conn) beginClose(code wire.CloseCode, reason string) bool {
	if c.state != open {
		return false
	}
	c.state = closing
	c.dropAfter(c.lot.opt.CloseTimeout, End{Code: code, Reason: frame.CutReason(reason)})
	c.push(frame.AppendClose(nil, uint16(code), reason))
	return true
}

// ExpireAfter has Handler.Expired called once after d, in place of what was set
// before; zero means never. It costs next to nothing: call it for every message.
func (c *Conn) ExpireAfter(d time.Duration) {
	if c.current() <= frozen {
		c.lot.wheel.Set(c, d)
	}
}

// Form names the way this connection waits: "epoll", "epoll-tls" or "goroutine".
func (c *Conn) Form() string {
	return [...]string{plain: "epoll", secured: "epoll-tls", waiting: "goroutine"}[c.kind]
}

// feed gives r what was read and handles the messages that are complete. It
// reports whether to read on for messages; after false, bytes are only to be
// thrown away.
func (c *Conn) feed(r *frame.Reader, b []byte) bool {
	for {
		m, n, err := r.Next(b)
		if err != nil {
			c.broke(err)
			return false
		}
		if m.Op == frame.Continuation {
			return true
		}
		if !c.handle(m) {
			return false
		}
		b = b[n:]
	}
}

// handle answers control frames and passes messages on.
func (c *Conn) handle(m frame.Message) bool {
	switch m.Op {
	case frame.Close:
		c.closedByPeer(m.Payload)
		return false
	case frame.Ping:
		// A peer that pings and does not read gets no more pongs than fit.
		if c.queue(frame.Pong, m.Payload) == ErrClosed {
			return true
		}
	}
	c.handling.Lock()
	defer c.handling.Unlock()
	if c.current() == open {
		c.handler.Message(c, m.Op, m.Payload)
	}
	return true
}

func (c *Conn) current() state {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// closedByPeer answers a close frame.
func (c *Conn) closedByPeer(payload []byte) {
	code, reason, err := frame.ParseClose(payload)
	if err != nil {
		c.broke(err)
		return
	}
	c.mu.Lock()
	first := c.beginClose(wire.CloseCode(code), "")
	c.mu.Unlock()
	if first {
		c.ended(End{Code: wire.CloseCode(code), Reason: wire.CleanReason(reason), ByPeer: true})
	}
}

// broke answers a breach of the protocol.
func (c *Conn) broke(err error) {
	code := wire.CloseCode(frame.CodeOf(err))
	c.mu.Lock()
	first := c.beginClose(code, err.Error())
	c.mu.Unlock()
	if first {
		c.ended(End{Code: code, Reason: err.Error(), ByPeer: true, Err: err})
	}
}

// ended tells the handler, once.
func (c *Conn) ended(e End) {
	c.lot.wheel.Set(c, 0)
	c.handling.Lock()
	defer c.handling.Unlock()
	if !c.told {
		c.told = true
		c.handler.Closed(c, e)
		c.handler = nil // the wheel may know c for minutes yet
	}
}

// expired is called by the wheel.
func (c *Conn) expired() {
	c.handling.Lock()
	defer c.handling.Unlock()
	switch s := c.current(); {
	case s == frozen:
		c.lot.wheel.Set(c, time.Second) // it may be thawed
	case s == open && !c.told:
		c.handler.Expired(c)
	}
}

// gone is called by a form when the socket is closed.
func (c *Conn) gone(e End) {
	c.mu.Lock()
	c.state = dropped
	c.taken(len(c.unsent()))
	c.mu.Unlock()
	c.ended(e)
}

// lost is the end of a connection that broke without a close frame.
func lost(err error) End {
	return End{Code: wire.CloseAbnormal, ByPeer: true, Err: err}
}
