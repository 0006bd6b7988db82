package live

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"sync"
	"time"

	"holdfast/internal/frame"
	"holdfast/internal/liveness"
)

// readBytes is a connection's own read buffer: pages send short messages. Half
// of it costs a second read for an ordinary one, and ten thousand quiet
// connections hold ten thousand of it.
const readBytes = 512

// Conn is one client's connection. Its methods are safe for concurrent use.
type Conn struct {
	s      *Server
	nc     net.Conn
	h      Handler
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	judge liveness.Judge
	timer *time.Timer // the judge's deadline
	age   *time.Timer // nil without a maximum age
	// open is how far the channel has come: ready, Open has returned without an
	// error; greeted, it has said something.
	open  struct{ ready, greeted bool }
	end   End
	ended bool // no further frame is queued
	// out waits to be written; room is signalled when it was taken.
	out      [][]byte
	outBytes int
	writing  bool
	room     chan struct{}
	// answer is the pong that waits, one at most: a later one answers as well,
	// and a client that asks without reading costs nothing.
	answer []byte
	// inbox waits for the handler.
	inbox   []task
	working bool
	rate    window
}

// task is one call of the handler.
type task struct {
	kind    taskKind
	message json.RawMessage
}

type taskKind uint8

const (
	taskOpen taskKind = iota
	taskMessage
	taskClose
)

// window counts messages in the current period.
type window struct {
	start time.Time
	n     int
}

func newConn(s *Server, nc net.Conn, h Handler) *Conn {
	c := &Conn{s: s, nc: nc, h: h, room: make(chan struct{}, 1)}
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	return c
}

// start begins to judge, read and open.
func (c *Conn) start(early []byte) {
	c.mu.Lock()
	c.timer = time.AfterFunc(time.Hour, c.tick)
	if a := c.s.opt.MaxAge; a > 0 {
		c.age = time.AfterFunc(a-uniform(a/10), func() {
			c.s.stats.aged.Add(1)
			c.closeWith(closeRestart, liveness.RestartReason(0), "too old")
		})
	}
	now := c.s.clock.At(time.Now())
	c.judge.Start(&c.s.config, now)
	c.apply(c.judge.Opened(now))
	c.enqueueTask(task{kind: taskOpen})
	c.mu.Unlock()
	// Ends when the transport does, which every way of closing brings about
	// within closeGrace and a write time-out; Close is called by its end.
	go c.read(early)
}

// Context ends with the connection; its cause says how.
func (c *Conn) Context() context.Context { return c.ctx }

// Send queues v, encoded as JSON, and returns at once: ErrClosed, ErrSlow, or
// an error of the encoding.
func (c *Conn) Send(v any) error {
	f, err := Prepare(v)
	if err != nil {
		return err
	}
	return c.SendPrepared(f)
}

// SendPrepared is Send for a message that goes to many.
func (c *Conn) SendPrepared(f Prepared) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open.greeted = true
	return c.enqueue(f.frame)
}

// SendWait is Send for a stream that goes as fast as its client reads: it waits
// for room in the queue, at most until ctx or the connection ends.
func (c *Conn) SendWait(ctx context.Context, v any) error {
	f, err := Prepare(v)
	if err != nil {
		return err
	}
	for {
		c.mu.Lock()
		if c.ended || len(c.out) == 0 || c.outBytes+len(f.frame) <= c.s.opt.MaxQueueBytes/4 {
			c.open.greeted = true
			err := c.enqueue(f.frame)
			c.mu.Unlock()
			return err
		}
		c.mu.Unlock()
		select {
		case <-c.room:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-c.ctx.Done():
			return ErrClosed
		}
	}
}

// Close ends the connection with a code and a reason, which is cut at 123 bytes.
// What was queued before is still written.
func (c *Conn) Close(code uint16, reason string) { c.closeWith(code, reason, "") }

// enqueue queues one frame; c.mu is held.
func (c *Conn) enqueue(f []byte) error {
	if c.ended {
		return ErrClosed
	}
	if len(c.out) >= c.s.opt.MaxQueue || c.outBytes+len(f) > c.s.opt.MaxQueueBytes {
		c.s.stats.slow.Add(1)
		c.closeLocked(closeTryLater, "client reads too slowly", "slow reader")
		return ErrSlow
	}
	c.push(f)
	return nil
}

func (c *Conn) push(f []byte) {
	c.out = append(c.out, f)
	c.outBytes += len(f)
	c.kick()
}

// reply sets the answer to a probe; c.mu is held.
func (c *Conn) reply(f []byte) {
	if !c.ended {
		c.answer = f
		c.kick()
	}
}

// kick starts the writer unless it runs; c.mu is held.
func (c *Conn) kick() {
	if !c.writing {
		c.writing = true
		// Ends when nothing is left to write or a write fails; nobody waits.
		go c.write()
	}
}

// write sends what is queued, all that there is in one call.
func (c *Conn) write() {
	for {
		c.mu.Lock()
		batch := net.Buffers(c.out)
		if c.answer != nil {
			// Before the rest, but never behind a close frame.
			batch = append(net.Buffers{c.answer}, batch...)
			c.answer = nil
		}
		c.out, c.outBytes = nil, 0
		if len(batch) == 0 {
			c.writing = false
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		select {
		case c.room <- struct{}{}:
		default:
		}
		err := c.nc.SetWriteDeadline(time.Now().Add(c.s.opt.WriteTimeout))
		if err == nil {
			_, err = batch.WriteTo(c.nc)
		}
		if err != nil {
			c.nc.Close() // the reader notices and ends the connection
			c.mu.Lock()
			c.out, c.outBytes, c.answer, c.writing = nil, 0, nil, false
			if !c.ended {
				c.ended = true
				c.end = End{Code: closeAbnormal, Verdict: "write failed"}
			}
			c.mu.Unlock()
			return
		}
	}
}

// read runs until the transport ends; it is always running, so that probes are
// answered whatever the handler does.
func (c *Conn) read(early []byte) {
	defer c.finish()
	r := frame.NewReader(c.s.opt.MaxMessage)
	if len(early) > 0 && !c.take(r, early) {
		return
	}
	buf := make([]byte, readBytes)
	for {
		n, err := c.nc.Read(buf)
		if n > 0 && !c.take(r, buf[:n]) {
			return
		}
		if err != nil {
			c.lost(err)
			return
		}
	}
}

// take handles what one read brought. False ends the reader.
func (c *Conn) take(r *frame.Reader, b []byte) bool {
	kind := liveness.InByte
	more := true
	for more && len(b) > 0 {
		m, n, err := r.Next(b)
		b = b[n:]
		switch {
		case errors.Is(err, frame.ErrTooBig):
			c.s.stats.tooBig.Add(1)
			fallthrough
		case err != nil:
			c.closeWith(frame.CodeOf(err), err.Error(), "protocol error")
			// The Reader is spent, but the close must be read by the peer.
			c.discard()
			return false
		case m.Op == frame.Continuation:
			more = false
		case m.Op == frame.Close:
			c.peerClosed(m.Payload)
			return false
		default:
			kind = max(kind, c.message(m))
		}
	}
	c.mu.Lock()
	if !c.ended {
		c.apply(c.judge.Inbound(c.s.clock.At(time.Now()), kind))
	}
	c.mu.Unlock()
	return true
}

// message handles one message and says what it is to the judge.
func (c *Conn) message(m frame.Message) liveness.Inbound {
	p := c.s.opt.Profile
	switch {
	case m.Op == frame.Ping:
		c.mu.Lock()
		c.reply(frame.AppendFrame(nil, frame.Pong, m.Payload))
		c.mu.Unlock()
		return liveness.InFrame
	case m.Op == frame.Pong:
		return liveness.InFrame
	case m.Op == frame.Text && string(m.Payload) == p.ping:
		c.mu.Lock()
		c.reply(frame.AppendFrame(nil, frame.Text, []byte(p.pong)))
		c.mu.Unlock()
		return liveness.InPing
	case m.Op == frame.Text && string(m.Payload) == p.pong:
		return liveness.InPong
	}
	c.s.stats.messages.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.ended:
	case m.Op != frame.Text || !json.Valid(m.Payload):
		c.s.stats.notJSON.Add(1)
		c.soft(&Error{Name: "SyntaxError"})
		if !c.open.ready {
			c.closeLocked(closeHandler, "a message is not JSON", "not JSON")
		}
	case !c.withinRate():
		c.s.stats.rateLimited.Add(1)
		c.soft(&Error{Name: "RateLimited", Params: []any{c.s.opt.Rate.Count, c.s.opt.Rate.Per.Seconds()}})
	case len(c.inbox) >= maxInbox:
		c.s.stats.rateLimited.Add(1)
		c.soft(&Error{Name: "Busy"})
	default:
		// Payload lies in the read buffer, so it is copied.
		c.enqueueTask(task{kind: taskMessage, message: append(json.RawMessage(nil), m.Payload...)})
	}
	return liveness.InText
}

func (c *Conn) withinRate() bool {
	now := time.Now()
	if now.Sub(c.rate.start) >= c.s.opt.Rate.Per {
		c.rate = window{start: now}
	}
	c.rate.n++
	return c.rate.n <= c.s.opt.Rate.Count
}

// soft queues an error frame; c.mu is held.
func (c *Conn) soft(e *Error) {
	c.s.stats.soft.Add(1)
	params := e.Params
	if params == nil {
		params = []any{}
	}
	f, err := Prepare(map[string]any{"error": map[string]any{"name": e.Name, "params": params}})
	if err == nil {
		_ = c.enqueue(f.frame) // a closed or slow connection hears it no more
	}
}

// SendError sends err as an error frame, as an error of Message is sent: an
// *Error as it is, any other as "InternalError". The connection stays.
func (c *Conn) SendError(err error) {
	shown := c.shown(err, "serve a channel")
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		c.soft(shown)
	}
}

// enqueueTask queues a call of the handler; c.mu is held.
func (c *Conn) enqueueTask(t task) {
	c.inbox = append(c.inbox, t)
	if !c.working {
		c.working = true
		// Ends when no call is left; the connection's end queues the last one,
		// and ctx tells the handler that it came.
		go c.work()
	}
}

// work calls the handler, one call at a time.
func (c *Conn) work() {
	for {
		c.mu.Lock()
		if len(c.inbox) == 0 {
			c.inbox, c.working = nil, false
			c.mu.Unlock()
			return
		}
		t := c.inbox[0]
		c.inbox = c.inbox[1:]
		end, ended := c.end, c.ended
		c.mu.Unlock()
		switch t.kind {
		case taskOpen:
			c.opened(c.h.Open(c.ctx, c))
		case taskMessage:
			if !ended {
				c.handled(c.h.Message(c.ctx, c, t.message))
			}
		case taskClose:
			c.h.Close(c, end)
			c.s.remove(c)
		}
	}
}

// opened is what becomes of Open's answer.
func (c *Conn) opened(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	if err == nil {
		c.open.ready = true
		if p := c.s.opt.Profile; !c.open.greeted && p.greets {
			// Nothing else would tell the client that the channel is open.
			c.push(frame.AppendFrame(nil, frame.Text, []byte(p.ping)))
		}
		c.apply(c.judge.Ready(c.s.clock.At(time.Now())))
		return
	}
	c.s.stats.refused.Add(1)
	var refusal *Refusal
	if errors.As(err, &refusal) {
		c.closeLocked(refusal.Code, refusal.Reason, "refused")
		return
	}
	shown := c.shown(err, "open a channel")
	c.soft(shown)
	c.closeLocked(closeHandler, shown.Name, "open failed")
}

// handled is what becomes of Message's answer.
func (c *Conn) handled(err error) {
	if err == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var refusal *Refusal
	if errors.As(err, &refusal) {
		c.s.stats.refused.Add(1)
		c.closeLocked(refusal.Code, refusal.Reason, "refused")
		return
	}
	c.soft(c.shown(err, "handle a message"))
}

// shown is what a client may see of err.
func (c *Conn) shown(err error, doing string) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	if c.s.opt.Log != nil {
		c.s.opt.Log.Error("a channel's handler fails", "doing", doing, "err", err)
	}
	return &Error{Name: "InternalError"}
}

// tick is the judge's deadline.
func (c *Conn) tick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		c.apply(c.judge.Tick(c.s.clock.At(time.Now())))
	}
}

// apply does what the judge says; c.mu is held.
func (c *Conn) apply(e liveness.Effects) {
	if e.Dead != 0 {
		if e.Dead == liveness.ReadyTimedOut {
			c.s.stats.lateOpens.Add(1)
			c.closeLocked(closeTryLater, "the channel did not open in time", e.Dead.String())
			return
		}
		c.s.stats.dead.Add(1)
		// A dead peer reads no close frame; one that only seems so comes back.
		c.ended = true
		c.end = End{Code: closeAbnormal, Verdict: e.Dead.String()}
		c.nc.Close()
		return
	}
	if e.Probes&liveness.ProbeProtocol != 0 {
		c.s.stats.probes.Add(1)
		c.push(frame.AppendFrame(nil, frame.Ping, nil))
	}
	if e.Probes&liveness.ProbeApplication != 0 {
		c.s.stats.probes.Add(1)
		c.push(frame.AppendFrame(nil, frame.Text, []byte(c.s.opt.Profile.ping)))
	}
	if e.Next == liveness.Never {
		c.timer.Stop()
		return
	}
	c.timer.Reset(max(e.Next-c.s.clock.At(time.Now()).Mono, 0))
}

func (c *Conn) closeWith(code uint16, reason, verdict string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closeLocked(code, reason, verdict)
}

// closeLocked queues the close frame behind what waits and gives the peer
// closeGrace to answer once it is written; c.mu is held.
func (c *Conn) closeLocked(code uint16, reason, verdict string) {
	if c.ended {
		return
	}
	c.ended = true
	c.end = End{Code: code, Reason: frame.CutReason(reason), Verdict: verdict}
	c.push(frame.AppendClose(nil, code, reason))
	c.timer.Stop()
	// The reader goes on until the peer's answer, its end, or this deadline.
	_ = c.nc.SetReadDeadline(time.Now().Add(closeGrace)) // an error means that it is closed
}

// peerClosed answers the peer's close frame, or takes it as the answer to ours.
func (c *Conn) peerClosed(payload []byte) {
	code, reason, err := frame.ParseClose(payload)
	if err != nil {
		code, reason = frame.CodeOf(err), ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	c.s.stats.closedByPeer.Add(1)
	c.ended = true
	c.end = End{Code: code, Reason: reason}
	c.push(frame.AppendClose(nil, code, ""))
}

// discard reads on after a protocol error, so that the close frame is not lost
// to a reset: at most closeGrace, as closeLocked has set it.
func (c *Conn) discard() {
	buf := make([]byte, readBytes)
	for {
		if _, err := c.nc.Read(buf); err != nil {
			return
		}
	}
}

// lost ends a connection whose transport ended.
func (c *Conn) lost(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	c.s.stats.lost.Add(1)
	c.ended = true
	c.end = End{Code: closeAbnormal}
	if !isGone(err) {
		c.end.Reason = "connection lost"
	}
}

// finish frees everything and queues the handler's last call.
func (c *Conn) finish() {
	c.flush()
	c.nc.Close()
	c.cancel(ErrClosed)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer.Stop()
	if c.age != nil {
		c.age.Stop()
	}
	if !c.ended {
		c.ended = true
		c.end = End{Code: closeAbnormal}
	}
	c.enqueueTask(task{kind: taskClose})
}

// flush waits until the writer is done, at most closeGrace: the answer to a
// peer's close frame must leave before the socket closes.
func (c *Conn) flush() {
	deadline := time.Now().Add(closeGrace)
	for {
		c.mu.Lock()
		done := !c.writing
		c.mu.Unlock()
		if done || !time.Now().Before(deadline) {
			return
		}
		select {
		case <-c.room:
		case <-time.After(10 * time.Millisecond):
		}
	}
}
