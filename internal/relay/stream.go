package relay

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"holdfast/internal/engine"
	"holdfast/internal/frame"
	"holdfast/internal/pump"
	"holdfast/internal/relay/gate"
	"holdfast/internal/wire"
)

// hangupPoll is how often a device whose 4 KiB wait to be forwarded is looked
// at for a hang-up. Its socket is not read any more then, so nothing else would
// show it; half costs twice the system calls, double frees as much later.
const hangupPoll = 250 * time.Millisecond

// stream is one device's stream, from its accepted upgrade to its end.
type stream struct {
	relay   *Relay
	legs    [2]leg // by pump.Side
	service wire.ServiceName
	proto   string
	began   time.Time

	mu      sync.Mutex
	stopped chan struct{} // closed by the first stop
	halted  bool
	code    wire.CloseCode // of that stop
	reason  string
	pump    *pump.Pump // once both legs are there
}

// leg is a stream's place in the axes, once for each side.
type leg struct {
	member
	stream *stream
}

func (l *leg) end(code wire.CloseCode, reason string) { l.stream.stop(code, reason) }

// stop ends the stream from outside. Both legs are told the same.
func (s *stream) stop(code wire.CloseCode, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.halted {
		return
	}
	s.halted, s.code, s.reason = true, code, reason
	close(s.stopped)
	if s.pump != nil {
		s.pump.Stop(code, reason) // returns at once
	}
}

// serveConnect is /connect/{machineID}, its token verified.
func (r *Relay) serveConnect(w http.ResponseWriter, req *http.Request, hs handshake, t engine.Token) *gate.Refusal {
	rt, ref := parseRoute(req)
	if ref != nil {
		return ref
	}
	k := engine.Key{Account: t.Account, Machine: rt.Machine}
	if t.Kind != engine.KindDevice {
		return gate.NotAllowed()
	}
	if _, err := r.store.Machine(req.Context(), k); err != nil {
		return r.failure("look up a machine", err)
	}
	if ref := r.overStreams(t); ref != nil {
		return ref
	}
	if !r.negotiated(w, req, hs) {
		return nil
	}
	if ref := r.takeStream(t); ref != nil {
		return ref
	}
	conn, head, err := upgrade(w, req, hs.selected.Protocol)
	if err != nil {
		r.axes.release(t.ID)
		return nil
	}
	s := &stream{relay: r, service: rt.Service, proto: wire.SubprotocolV1, began: time.Now(), stopped: make(chan struct{})}
	for side, role := range [2]role{pump.Device: roleDevice, pump.Agent: roleAgent} {
		l := &s.legs[side]
		l.stream, l.self, l.machine, l.role = s, l, k.Machine, role
	}
	// Ends when the stream does, which Close brings about and waits for.
	r.touch(t.ID, r.gate.Client(req))
	r.background(func() { s.run(conn, head, t) })
	return nil
}

// overStreams says whether a token has all the streams it may have.
func (r *Relay) overStreams(t engine.Token) *gate.Refusal {
	if wait := r.over(t); wait > 0 {
		return gate.TooMany(wait, "this token has too many streams: close some, or wait")
	}
	return nil
}

func (r *Relay) over(t engine.Token) time.Duration {
	if wait, full := r.opened.Full(t.ID, time.Now()); full {
		return wait
	}
	if r.axes.streams(t.ID) >= r.limits.Streams {
		return time.Second
	}
	return 0
}

// takeStream counts one stream for t; axes.release undoes it.
func (r *Relay) takeStream(t engine.Token) *gate.Refusal {
	if !r.axes.reserve(t, r.limits.Streams) {
		return r.overStreams(t)
	}
	if wait, ok := r.opened.Take(t.ID, time.Now()); !ok {
		r.axes.release(t.ID)
		return gate.TooMany(wait, "this token opens streams too fast: wait")
	}
	return nil
}

// run is the stream's goroutine.
func (s *stream) run(conn net.Conn, head []byte, t engine.Token) {
	r := s.relay
	device := &s.legs[pump.Device]
	r.axes.add(&device.member, t)
	defer func() {
		r.axes.remove(&device.member)
		r.axes.release(t.ID)
	}()
	k := device.key()
	if code, reason := r.stillGood(k, t); code != 0 {
		r.part(conn, code, reason)
		return
	}

	d := r.dials.open(k)
	a, head, outcome := s.await(conn, head, d, t.Device)
	took := time.Since(s.began)
	r.metrics.dialed(outcome, took)
	log := r.log.With("account", k.Account, "machine", k.Machine)
	if outcome != dialPaired {
		// The connID is spent by now, so it may be logged.
		log.Info("dial failed", "conn", d.id, "verdict", outcome, "code", a.code, "took", took)
		if a.conn != nil {
			r.part(a.conn, wire.CloseGoingAway, "the device has gone")
		}
		r.part(conn, a.code, a.reason)
		return
	}
	agent := &s.legs[pump.Agent]
	r.axes.add(&agent.member, a.token)
	defer r.axes.remove(&agent.member)
	if code, reason := r.stillGood(k, a.token); code != 0 {
		s.stop(code, reason)
	}
	p, err := pump.New(pump.Leg{Conn: conn, Pending: head}, pump.Leg{Conn: a.conn, Pending: a.head},
		pump.Options{Keepalive: r.keepalive})
	if err != nil {
		log.Error("join a stream", "conn", d.id, "err", err)
		r.part(a.conn, wire.CloseInternal, "the relay could not join the stream")
		r.part(conn, wire.CloseInternal, "the relay could not join the stream")
		return
	}
	s.mu.Lock()
	s.pump = p
	if s.halted {
		p.Stop(s.code, s.reason)
	}
	s.mu.Unlock()
	log.Info("stream begun", "conn", d.id, "service", s.service, "took", took)
	res := p.Run()
	r.metrics.streamed(res)
	log.Info("stream ended", "conn", d.id, "verdict", res.Cause, "by", res.By, "code", res.Code,
		"toAgent", res.ToAgent, "toDevice", res.ToDevice, "took", time.Since(s.began), "err", res.Err)
}

// await asks the machine and waits for its answer, for the device's hang-up, or
// for the end of the time or of the stream. Without an answer, a's code and
// reason are what the device is told; a zero code means that nobody is there to
// be told. head comes back with what the device sent meanwhile.
func (s *stream) await(conn net.Conn, head []byte, d *dial, device string) (a answer, _ []byte, outcome string) {
	r := s.relay
	end := func(outcome string, code wire.CloseCode, reason string) (answer, []byte, string) {
		late, _ := r.dials.abandon(d)
		return answer{conn: late.conn, code: code, reason: reason}, nil, outcome
	}
	ctx, cancel := context.WithTimeout(r.ctx, wire.DialTimeout)
	defer cancel()
	err := r.router.Deliver(ctx, d.key, wire.Message{
		Op: wire.OpDial, ConnID: d.id, Service: s.service, Device: device, Proto: s.proto,
	})
	switch {
	case errors.Is(err, engine.ErrNoHolder):
		return end(dialOffline, wire.CloseTryLater, wire.ReasonOffline)
	case err != nil:
		r.log.Warn("deliver a dial", "account", d.key.Account, "machine", d.key.Machine, "err", err)
		return end(dialOffline, wire.CloseTryLater, wire.ReasonOffline)
	}
	early := newEarly(conn, head)
	go early.read() // ends by the deadline that stop sets, and stop waits for it
	select {
	case a = <-d.answers:
		head = early.stop()
		if a.conn == nil {
			return a, nil, dialRefused
		}
		return a, head, dialPaired
	case <-early.over:
		early.stop()
		return end(dialHangup, early.code, early.reason)
	case <-s.stopped:
		early.stop()
		return end(dialStopped, s.code, s.reason)
	case <-ctx.Done():
		early.stop()
		if r.ctx.Err() != nil {
			return end(dialStopped, wire.CloseRestart, wire.RestartReason(0))
		}
		return end(dialTimeout, wire.CloseNoDialBack, "the machine did not dial back within "+wire.DialTimeout.String())
	}
}

// serveAgentData is /agent-data/{machineID}/{connID}, its token verified.
func (r *Relay) serveAgentData(w http.ResponseWriter, req *http.Request, hs handshake, t engine.Token) *gate.Refusal {
	rt, ref := parseRoute(req)
	if ref != nil {
		return ref
	}
	// An agent token that is not bound has never been sent a dial.
	if t.Kind != engine.KindAgent || t.Machine != rt.Machine {
		return gate.NotAllowed()
	}
	k := engine.Key{Account: t.Account, Machine: rt.Machine}
	unknown := gate.Refuse(http.StatusNotFound, wire.RefusalNotFound, "this connection id is not waiting here")
	if !r.dials.knows(rt.Conn, k) {
		return unknown
	}
	if !r.negotiated(w, req, hs) {
		return nil
	}
	d := r.dials.take(rt.Conn, k)
	if d == nil {
		return unknown
	}
	conn, head, err := upgrade(w, req, hs.selected.Protocol)
	if err != nil {
		r.dials.give(d, answer{code: wire.CloseNoDialBack, reason: "the machine's connection broke while it dialled back"})
		return nil
	}
	if !r.dials.give(d, answer{conn: conn, head: head, token: t}) {
		r.background(func() { r.part(conn, wire.CloseGoingAway, "the device has gone") })
	}
	return nil
}

// part takes leave of a connection that has no pump. A zero code means that the
// peer has hung up already.
func (r *Relay) part(conn net.Conn, code wire.CloseCode, reason string) {
	if code == 0 {
		_ = conn.Close()
		return
	}
	r.metrics.closed(code)
	farewell(conn, code, reason)
}

// early reads what a device sends before its pair is complete: at most
// wire.MaxPendingBytes, kept as they came, since the pump rewrites them later.
// It looks at the frames only to see the device go.
type early struct {
	conn net.Conn
	done chan struct{} // read has returned
	over chan struct{} // the device hung up or broke the protocol
	quit chan struct{} // closed by stop

	// Of read until done is closed. code is what the device is told; zero if it
	// just went.
	buf    []byte
	next   int // where the next frame header is
	code   wire.CloseCode
	reason string
}

func newEarly(conn net.Conn, head []byte) *early {
	return &early{
		conn: conn, buf: head,
		done: make(chan struct{}), over: make(chan struct{}), quit: make(chan struct{}),
	}
}

func (e *early) read() {
	defer close(e.done)
	for {
		if e.scan() {
			close(e.over)
			return
		}
		if len(e.buf) >= wire.MaxPendingBytes {
			if e.poll() {
				close(e.over)
			}
			return
		}
		if cap(e.buf) < wire.MaxPendingBytes {
			e.buf = append(make([]byte, 0, wire.MaxPendingBytes), e.buf...)
		}
		n, err := e.conn.Read(e.buf[len(e.buf):wire.MaxPendingBytes])
		e.buf = e.buf[:len(e.buf)+n]
		if err != nil {
			select {
			case <-e.quit:
			default:
				// A close frame may have come with the last bytes.
				e.scan()
				close(e.over)
			}
			return
		}
	}
}

// poll waits for a hang-up behind bytes that stay unread.
func (e *early) poll() bool {
	tick := time.NewTicker(hangupPoll)
	defer tick.Stop()
	for {
		if hungUp(e.conn) {
			return true
		}
		select {
		case <-e.quit:
			return false
		case <-tick.C:
		}
	}
}

// scan walks over the frame headers in buf. True: the device said goodbye, or
// something that is no WebSocket frame.
func (e *early) scan() bool {
	for e.next < len(e.buf) {
		h, n, err := frame.ParseHeader(e.buf[e.next:])
		if err == nil && n > 0 && !h.Masked {
			err = frame.ErrUnmasked
		}
		if err != nil {
			e.code, e.reason = wire.CloseCode(frame.CodeOf(err)), err.Error()
			return true
		}
		left := int64(len(e.buf) - e.next - n)
		if n == 0 || h.Op == frame.Close && left < h.Length {
			return false // the rest is to come
		}
		if h.Op == frame.Close {
			payload := append([]byte(nil), e.buf[e.next+n:e.next+n+int(h.Length)]...)
			frame.Mask(h.Mask, 0, payload)
			e.code, e.reason = wire.CloseNormal, ""
			if len(payload) >= 2 {
				e.code = wire.CloseCode(binary.BigEndian.Uint16(payload))
			}
			return true
		}
		if left < h.Length {
			// The frame ends behind what is read, perhaps far behind.
			return false
		}
		e.next += n + int(h.Length)
	}
	return false
}

// stop ends read and gives what it has. The connection is as before.
func (e *early) stop() []byte {
	close(e.quit)
	_ = e.conn.SetReadDeadline(time.Now()) // wakes read; a closed connection needs no waking
	<-e.done
	_ = e.conn.SetReadDeadline(time.Time{})
	return e.buf
}
