// Package pump joins the two halves of a stream: a device's connection and an
// agent's, both already upgraded to WebSocket. What one sends reaches the other
// byte for byte, with message types and ends kept, until one of them closes,
// breaks or falls silent.
//
// It never looks into a payload, never assembles a message and never holds more
// than one chunk a direction: a slow reader stops the reading of the other side
// and nothing else. It pings both legs, answers their pings, and ends a leg that
// gives no sign of life.
//
// What a caller will get wrong: a Pump owns both connections from New on and
// closes them; nothing else may read from or write to them. A stream is over only
// when everything it started has ended, which after a close frame takes up to
// Options.CloseTimeout.
package pump

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"holdfast/internal/frame"
	"holdfast/internal/liveness"
	"holdfast/internal/sock"
	"holdfast/internal/wire"
)

// Side names one end of a stream.
type Side int

// The two sides of a stream.
const (
	Device Side = iota
	Agent
)

func (s Side) String() string {
	if s == Agent {
		return "machine"
	}
	return "device"
}

func (s Side) other() Side { return 1 - s }

// Leg is one upgraded connection.
type Leg struct {
	// Conn is required. A *net.TCPConn costs least: while idle it holds no buffer.
	Conn net.Conn
	// Pending is what was read from Conn already, behind the upgrade request.
	Pending []byte
}

// Options of a Pump. The zero value is right for a relay.
type Options struct {
	// Keepalive is how often each leg is pinged whatever it sends; zero means as
	// Liveness says.
	Keepalive time.Duration
	// Liveness is how each leg is judged; zero means liveness.Data().
	Liveness liveness.Config
	// CloseTimeout bounds the reading on after a close frame was sent; zero means
	// wire.DrainTimeout.
	CloseTimeout time.Duration
	// StopTimeout bounds the same after Stop; zero means 0.9 s: a revoked
	// stream must have ended within a second.
	StopTimeout time.Duration
}

const (
	// defaultStopTimeout is within the second that a revocation may take.
	defaultStopTimeout = 900 * time.Millisecond
	// deadTimeout is what a leg judged dead still gets, for the case that only
	// its sending side is gone and a close frame can reach it.
	deadTimeout = 250 * time.Millisecond
	// brokenTimeout is how long a leg that cannot be written to may take to say
	// why: its close frame may still wait to be read.
	brokenTimeout = time.Second
)

// complete fills in defaults and validates.
func (o *Options) complete() error {
	if o.Liveness.Tracks == nil {
		o.Liveness = liveness.Data()
	}
	if o.Keepalive != 0 {
		o.Liveness.Keepalive = o.Keepalive
	}
	if err := o.Liveness.Validate(); err != nil {
		return fmt.Errorf("make a pump: %w", err)
	}
	if o.CloseTimeout < 0 || o.StopTimeout < 0 {
		return errors.New("make a pump: negative timeout")
	}
	if o.CloseTimeout == 0 {
		o.CloseTimeout = wire.DrainTimeout
	}
	if o.StopTimeout == 0 {
		o.StopTimeout = defaultStopTimeout
	}
	return nil
}

// Cause says what ended a stream.
type Cause string

// The causes.
const (
	CauseClosed   Cause = "closed"   // a side sent a close frame
	CauseLost     Cause = "lost"     // a side's connection ended without one
	CauseDead     Cause = "dead"     // a side gave no sign of life
	CauseProtocol Cause = "protocol" // a side broke the WebSocket protocol
	CauseStopped  Cause = "stopped"  // Stop was called
	CauseFrozen   Cause = "frozen"   // Freeze was called: the stream is not over
)

// Result is how a stream ended.
type Result struct {
	Stats
	Cause Cause
	// By is the side that ended it; without meaning for CauseStopped.
	By Side
	// Code and Reason are what the other side was told (both, for CauseStopped).
	Code   wire.CloseCode
	Reason string
	// Err is the error behind CauseLost and CauseProtocol; it holds nothing of
	// the stream.
	Err error
	// Frozen is set after Freeze: the caller owns the connections again.
	Frozen *Frozen
}

// Stats of a stream so far.
type Stats struct {
	// ToAgent and ToDevice count payload bytes of data frames.
	ToAgent, ToDevice int64
	// Text says that a side sent text frames: an older peer, or a browser that
	// should not.
	Text bool
}

// Pump joins two legs.
type Pump struct {
	opt   Options
	start time.Time
	clock liveness.Clock
	legs  [2]leg

	ended  chan struct{} // closed by finish
	once   sync.Once
	result Result // written inside once, before ended is closed

	frozen chan struct{} // closed by Freeze
	freeze sync.Once

	// aside counts what runs beside the two copying goroutines: ticks, set or
	// running, and the flushes at the end.
	aside sync.WaitGroup
}

// New makes a Pump of two connections, which it owns from then on; with an error
// they stay the caller's.
func New(device, agent Leg, o Options) (*Pump, error) {
	if device.Conn == nil || agent.Conn == nil {
		return nil, errors.New("make a pump: both legs need a connection")
	}
	if err := o.complete(); err != nil {
		return nil, err
	}
	start := time.Now()
	p := &Pump{opt: o, start: start, clock: liveness.NewClock(start),
		ended: make(chan struct{}), frozen: make(chan struct{})}
	p.legs[Device].init(p, Device, device)
	p.legs[Agent].init(p, Agent, agent)
	return p, nil
}

// Start is Run on a goroutine of its own, which calls done at the end and is the
// caller's to wait for. Where the caller's goroutine has been deep in a handshake
// its stack is large, and Start leaves it free to end.
func (p *Pump) Start(done func(Result)) {
	go func() { done(p.Run()) }()
}

// Run pumps until the stream has ended, both connections are closed and nothing
// of the Pump runs any more. Either Run or Start is called, once. It uses the
// caller's goroutine for one direction.
func (p *Pump) Run() Result {
	for i := range p.legs {
		p.legs[i].startTicks()
	}
	done := make(chan struct{})
	// Ends with its leg: by the peer, by the judge, or by Stop. Run waits for it.
	go func() {
		defer close(done)
		p.legs[Agent].copyTo(&p.legs[Device])
	}()
	p.legs[Device].copyTo(&p.legs[Agent])
	<-done
	for i := range p.legs {
		p.legs[i].stopTicks()
	}
	if p.isFrozen() {
		return p.export()
	}
	p.aside.Wait()
	for i := range p.legs {
		sock.HangUp(p.legs[i].conn) // both sides have had their close frame
	}
	r := p.result
	r.Stats = p.Stats()
	return r
}

// Stats may be called at any time.
func (p *Pump) Stats() Stats {
	d, a := &p.legs[Device], &p.legs[Agent]
	return Stats{
		ToAgent:  d.forwarded.Load(),
		ToDevice: a.forwarded.Load(),
		Text:     d.text.Load() || a.text.Load(),
	}
}

// Farewell is what a side is told.
type Farewell struct {
	Code   wire.CloseCode
	Reason string
}

// Stop ends the stream from outside, with a close frame to both sides, and
// returns at once; the stream is over within Options.StopTimeout. Data that was not
// forwarded yet is dropped. A second Stop, and one after the stream has ended,
// does nothing.
func (p *Pump) Stop(code wire.CloseCode, reason string) {
	p.StopEach(Farewell{code, reason}, Farewell{code, reason})
}

// StopEach is Stop where the two sides are told different things. The Result
// holds the device's.
func (p *Pump) StopEach(device, agent Farewell) {
	leave := func(f Farewell) closing { return closing{f.Code, wire.CleanReason(f.Reason), p.opt.StopTimeout} }
	p.finish(Result{Cause: CauseStopped, Code: device.Code, Reason: wire.CleanReason(device.Reason)}, leave(device), leave(agent))
}

// closing is how a leg is taken leave of.
type closing struct {
	code    wire.CloseCode
	reason  string
	timeout time.Duration
}

// finish ends the stream, once. It never blocks: the close frames are written
// by goroutines of their own, which the deadlines set here end and Run waits
// for.
func (p *Pump) finish(r Result, device, agent closing) {
	p.once.Do(func() {
		p.result = r
		// Added before ended is closed: Run cannot be past its Wait until then.
		p.aside.Add(2)
		close(p.ended)
		for side, c := range [2]closing{device, agent} {
			l := &p.legs[side]
			l.beginClose(c)
			go func() {
				defer p.aside.Done()
				l.flush()
			}()
		}
	})
}

// end is finish as a side causes it: own is what that side is told, other what
// the other is.
func (p *Pump) end(r Result, own, other closing) {
	r.Code, r.Reason = other.code, other.reason
	if r.By == Device {
		p.finish(r, own, other)
	} else {
		p.finish(r, other, own)
	}
}

// closedBy carries a close frame over: the side that sent it gets it back, the
// other gets it cleaned.
func (p *Pump) closedBy(side Side, payload []byte) {
	code, reason, err := frame.ParseClose(payload)
	if err != nil {
		p.brokeProtocol(side, err)
		return
	}
	if code == uint16(wire.CloseNoStatus) {
		code = uint16(wire.CloseNormal)
	}
	c := closing{wire.CloseCode(code), wire.CleanReason(reason), p.opt.CloseTimeout}
	p.end(Result{Cause: CauseClosed, By: side}, closing{code: c.code, timeout: p.opt.CloseTimeout}, c)
}

func (p *Pump) brokeProtocol(side Side, err error) {
	p.end(Result{Cause: CauseProtocol, By: side, Err: err},
		closing{wire.CloseCode(frame.CodeOf(err)), err.Error(), p.opt.CloseTimeout},
		closing{wire.CloseInternal, "the " + side.String() + "'s side broke the WebSocket protocol", p.opt.CloseTimeout})
}

func (p *Pump) lost(side Side, err error) {
	p.end(Result{Cause: CauseLost, By: side, Err: err},
		closing{wire.CloseInternal, "connection lost", deadTimeout},
		closing{wire.CloseInternal, "the " + side.String() + "'s connection was lost", p.opt.CloseTimeout})
}

func (p *Pump) dead(side Side) {
	t := p.opt.Liveness.Tracks[0]
	quiet := (t.Idle + t.Window).String()
	p.end(Result{Cause: CauseDead, By: side},
		closing{wire.CloseInternal, "no sign of life for " + quiet, deadTimeout},
		closing{wire.CloseInternal, "the " + side.String() + " gave no sign of life for " + quiet, p.opt.CloseTimeout})
}

// copyTo is one direction: it reads l until l ends, and forwards to dst until
// the stream ends; then it reads on, for nothing, until l's peer has hung up or
// l's deadline passes.
func (l *leg) copyTo(dst *leg) {
	p := l.pump
	dst.flushUnsent(l)
	if l.forwardPending(dst) {
		for {
			chunk, n, err := l.reader.Read()
			if err != nil {
				l.readFailed(err)
				return
			}
			l.heardNow()
			more := l.forward(dst, chunk.Buf[:], n)
			chunk.Release()
			if !more {
				break
			}
		}
	}
	// The stream has ended. Closing while bytes are unread would reset the
	// connection and could destroy the close frame on its way.
	<-p.ended
	for {
		chunk, _, err := l.reader.Read()
		if err != nil {
			return
		}
		chunk.Release()
	}
}

// readFailed tells apart how reading ended.
func (l *leg) readFailed(err error) {
	select {
	case <-l.pump.ended: // the deadline, or the peer's own hang-up after its close
	default:
		if l.pump.stoppedBy(err) {
			return // nothing is lost: what is unread stays in the socket
		}
		if errors.Is(err, io.EOF) {
			err = errEOF
		}
		l.pump.lost(l.side, fmt.Errorf("read from the %s: %w", l.side, err))
	}
}

// errEOF says what an io.EOF means here.
var errEOF = fmt.Errorf("hung up without a close frame: %w", io.EOF)

// onControl is the rewriter's callback: nothing is written here, because the
// data before this frame has not been written yet.
func (l *leg) onControl(op frame.Opcode, payload []byte) {
	switch op {
	case frame.Ping:
		l.queuePong(payload)
	case frame.Close:
		l.closePayload = append(l.closePayload[:0], payload...)
	}
}

// forward rewrites buf's n bytes behind the headroom and writes them to dst. It
// reports whether the stream goes on.
func (l *leg) forward(dst *leg, buf []byte, n int) bool {
	p := l.pump
	out, err := l.rewriter.Rewrite(buf, headroom, headroom+n, l.control)
	if l.rewriter.SawText() && !l.text.Load() {
		l.text.Store(true)
	}
	l.flush() // pongs: before a write that may block
	if len(out) > 0 {
		select {
		case <-p.ended:
			return false
		default:
		}
		l.pause()
		werr := dst.writeData(out)
		l.resume()
		if werr != nil && !p.stoppedBy(werr) { // else it is kept
			dst.writeFailed(werr)
			return false
		}
		l.forwarded.Store(l.rewriter.Bytes())
	}
	switch {
	case err != nil:
		p.brokeProtocol(l.side, err)
		return false
	case l.rewriter.Closed():
		p.closedBy(l.side, l.closePayload)
		return false
	}
	return true
}

// forwardPending forwards what was read before the pump began.
func (l *leg) forwardPending(dst *leg) bool {
	rest := l.pending
	l.pending = nil
	for len(rest) > 0 {
		chunk := newChunk()
		n := copy(chunk.Buf[headroom:], rest)
		rest = rest[n:]
		more := l.forward(dst, chunk.Buf[:], n)
		chunk.Release()
		if !more {
			return false
		}
	}
	return true
}

// writeFailed waits until the leg's own reader has found out why, which may be a
// close frame, and says "lost" itself where that takes too long.
func (l *leg) writeFailed(err error) {
	ctx, cancel := context.WithTimeout(context.Background(), brokenTimeout)
	defer cancel()
	select {
	case <-l.pump.ended:
	case <-l.pump.frozen:
		l.pump.lost(l.side, fmt.Errorf("write to the %s: %w", l.side, err))
	case <-ctx.Done():
		l.pump.lost(l.side, fmt.Errorf("write to the %s: %w", l.side, err))
	}
}
