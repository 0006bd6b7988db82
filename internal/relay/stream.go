package relay

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"holdfast/internal/engine"
	"holdfast/internal/liveness"
	"holdfast/internal/pump"
	"holdfast/internal/relay/admit"
	"holdfast/internal/relay/axes"
	"holdfast/internal/relay/changes"
	"holdfast/internal/relay/gate"
	"holdfast/internal/relay/handshake"
	"holdfast/internal/relay/meter"
	"holdfast/internal/relay/waiting"
	"holdfast/internal/wire"
)

// stream is one device's stream, from its accepted upgrade to its end.
type stream struct {
	relay   *Relay
	legs    [2]leg // by pump.Side
	service wire.ServiceName
	proto   string
	began   time.Time
	plain   bool // both legs are plain TCP; set with pump

	mu      sync.Mutex
	stopped chan struct{} // closed by the first stop
	halted  bool
	told    [2]pump.Farewell // of that stop, by pump.Side
	pump    *pump.Pump       // once both legs are there
}

// leg is a stream's place in the axes, once for each side.
type leg struct {
	axes.Member
	stream *stream
}

// End implements axes.Ender. What is wrong with one side's token is nothing to
// the other side: it is told that its peer has gone, which says nothing about
// whether to come back. Everything else concerns both.
func (l *leg) End(code wire.CloseCode, reason string) {
	told := [2]pump.Farewell{{Code: code, Reason: reason}, {Code: code, Reason: reason}}
	if code == wire.CloseUnauthorized && reason != changes.ReasonAccount {
		for side := range told {
			if l != &l.stream.legs[side] {
				told[side] = pump.Farewell{Code: wire.CloseGoingAway, Reason: "the other side was closed"}
			}
		}
	}
	l.stream.stop(told)
}

// stop ends the stream from outside; told is by pump.Side.
func (s *stream) stop(told [2]pump.Farewell) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.halted {
		return
	}
	s.halted, s.told = true, told
	close(s.stopped)
	if s.pump != nil {
		s.pump.StopEach(told[pump.Device], told[pump.Agent]) // returns at once
	}
}

// serveConnect is /connect/{machineID}, its token verified.
func (r *Relay) serveConnect(w http.ResponseWriter, req *http.Request, hs handshake.Request, t engine.Token) *gate.Refusal {
	rt, ref := admit.Route(req)
	if ref != nil {
		return ref
	}
	k := engine.Key{Account: t.Account, Machine: rt.Machine}
	if t.Kind != engine.KindDevice {
		return gate.NotAllowed()
	}
	if _, err := r.store.Machine(req.Context(), k); err != nil {
		return r.door.Failure("look up a machine", err)
	}
	if ref := r.overStreams(t); ref != nil {
		return ref
	}
	if !r.door.Negotiated(w, req, hs) {
		return nil
	}
	if ref := r.takeStream(t); ref != nil {
		return ref
	}
	conn, head, err := handshake.Upgrade(w, req, hs.Selected.Protocol)
	if err != nil {
		r.axes.Release(t.ID)
		return nil
	}
	s := r.newStream(k.Machine, rt.Service)
	r.gate.Touch(t, req)
	// Ends when the stream does, which Close brings about and waits for.
	r.door.Own(conn, func() { s.run(conn, head, t) })
	return nil
}

func (r *Relay) newStream(m wire.MachineID, service wire.ServiceName) *stream {
	s := &stream{relay: r, service: service, proto: wire.SubprotocolV1, began: time.Now(), stopped: make(chan struct{})}
	for side, role := range [2]axes.Role{pump.Device: axes.Device, pump.Agent: axes.Agent} {
		l := &s.legs[side]
		l.stream = s
		l.Init(l, m, role)
	}
	return s
}

// overStreams says whether a token has all the streams it may have.
func (r *Relay) overStreams(t engine.Token) *gate.Refusal {
	if wait := r.over(t); wait > 0 {
		return gate.TooMany(wait, "this token has too many streams: close some, or wait")
	}
	return nil
}

func (r *Relay) over(t engine.Token) time.Duration {
	if wait, full := r.limits.opened.Full(t.ID, time.Now()); full {
		return wait
	}
	if r.axes.Streams(t.ID) >= r.limits.Streams {
		return time.Second
	}
	return 0
}

// takeStream counts one stream for t; axes.Release undoes it.
func (r *Relay) takeStream(t engine.Token) *gate.Refusal {
	if !r.axes.Reserve(t, r.limits.Streams) {
		return r.overStreams(t)
	}
	if wait, ok := r.limits.opened.Take(t.ID, time.Now()); !ok {
		r.axes.Release(t.ID)
		return gate.TooMany(wait, "this token opens streams too fast: wait")
	}
	return nil
}

// run is the stream's goroutine until both legs are there.
func (s *stream) run(conn net.Conn, head []byte, t engine.Token) {
	r := s.relay
	device := &s.legs[pump.Device]
	r.axes.Add(&device.Member, t)
	carried := false
	defer func() {
		if !carried {
			s.leave(t.ID)
		}
	}()
	k := device.Key()
	if code, reason := r.door.Recheck(k, t); code != 0 {
		r.door.Part(conn, code, reason)
		return
	}

	d := r.dials.Open(k)
	a, head, outcome := s.await(conn, head, d, t.Device)
	took := time.Since(s.began)
	r.meter.Dialled(outcome, took)
	log := r.log.With("account", k.Account, "machine", k.Machine)
	if outcome != meter.DialPaired {
		// The connID is spent by now, so it may be logged.
		log.Info("dial failed", "conn", d.ID, "verdict", verdict(a.Code, outcome), "took", took)
		if a.Conn != nil {
			// It came in the last moment.
			r.door.Own(a.Conn, func() { r.door.Part(a.Conn, a.agent.Code, a.agent.Reason) })
		}
		r.door.Part(conn, a.Code, a.Reason)
		return
	}
	agent := &s.legs[pump.Agent]
	r.axes.Add(&agent.Member, a.Token)
	if code, reason := r.door.Recheck(k, a.Token); code != 0 {
		agent.End(code, reason)
	}
	p, err := pump.New(pump.Leg{Conn: conn, Pending: head}, pump.Leg{Conn: a.Conn, Pending: a.Head},
		r.pumpOptions())
	if err != nil {
		log.Error("join a stream", "conn", d.ID, "err", err)
		r.door.Part(a.Conn, wire.CloseInternal, "the relay could not join the stream")
		r.door.Part(conn, wire.CloseInternal, "the relay could not join the stream")
		return
	}
	log.Info("stream begun", "conn", d.ID, "took", took)
	_, plainDevice := conn.(*net.TCPConn)
	_, plainAgent := a.Conn.(*net.TCPConn)
	s.mu.Lock()
	s.plain = plainDevice && plainAgent
	s.mu.Unlock()
	// On a small stack: this one has grown with the store's questions. Ends when the
	// stream does, which Close brings about and waits for.
	if carried = r.background(func() { s.carry(p, log.With("conn", d.ID), t.ID) }); !carried {
		_ = conn.Close() // the relay is closing
		_ = a.Conn.Close()
	}
}

// carry is the stream from its pairing, or its taking over, to its end.
func (s *stream) carry(p *pump.Pump, log *slog.Logger, tokenID string) {
	res := s.pumpOn(p)
	log.Info("stream ended", "verdict", verdict(res.Code, string(res.Cause)+" by "+res.By.String()), "took", time.Since(s.began), "err", res.Err)
	s.leave(tokenID)
}

// leave takes the stream out of the axes.
func (s *stream) leave(tokenID string) {
	s.relay.axes.Remove(&s.legs[pump.Device].Member)
	s.relay.axes.Remove(&s.legs[pump.Agent].Member) // nothing, where it was never added
	s.relay.axes.Release(tokenID)
}

// verdict is what the log calls the end of a connection.
func verdict(code wire.CloseCode, why string) string {
	return strconv.Itoa(int(code)) + " " + why
}

// answer is what a dial came to.
type answer struct {
	waiting.Answer
	agent pump.Farewell // what a machine is told that comes too late
}

// await asks the machine and waits for its answer, for the device's hang-up, or
// for the end of the time or of the stream. Without an answer, a's code and
// reason are what the device is told; a zero code means that nobody is there to
// be told. head comes back with what the device sent meanwhile.
func (s *stream) await(conn net.Conn, head []byte, d *waiting.Dial, device string) (a answer, _ []byte, outcome string) {
	r := s.relay
	endEach := func(outcome string, device, agent pump.Farewell) (answer, []byte, string) {
		late, _ := r.dials.Abandon(d, agent.Code, agent.Reason)
		return answer{waiting.Answer{Conn: late.Conn, Code: device.Code, Reason: device.Reason}, agent}, nil, outcome
	}
	end := func(outcome string, code wire.CloseCode, reason string) (answer, []byte, string) {
		both := pump.Farewell{Code: code, Reason: reason}
		return endEach(outcome, both, both)
	}
	ctx, cancel := context.WithTimeout(r.ctx, wire.DialTimeout)
	defer cancel()
	err := r.router.Deliver(ctx, d.Key, wire.Message{
		Op: wire.OpDial, ConnID: d.ID, Service: s.service, Device: device, Proto: s.proto,
	})
	switch {
	case errors.Is(err, engine.ErrNoHolder):
		return end(meter.DialOffline, wire.CloseTryLater, wire.ReasonOffline)
	case err != nil:
		r.log.Warn("deliver a dial", "account", d.Key.Account, "machine", d.Key.Machine, "err", err)
		return end(meter.DialOffline, wire.CloseTryLater, wire.ReasonOffline)
	}
	early := waiting.NewEarly(conn, head)
	go early.Read() // ends by the deadline that Stop sets, and Stop waits for it
	select {
	case a.Answer = <-d.Answers:
		head = early.Stop()
		if a.Conn == nil {
			return a, nil, meter.DialRefused
		}
		return a, head, meter.DialPaired
	case <-early.Over:
		early.Stop()
		code, reason := early.Farewell()
		return endEach(meter.DialHangup, pump.Farewell{Code: code, Reason: reason},
			pump.Farewell{Code: wire.CloseGoingAway, Reason: "the device has gone"})
	case <-s.stopped:
		early.Stop()
		return endEach(meter.DialStopped, s.told[pump.Device], s.told[pump.Agent])
	case <-ctx.Done():
		early.Stop()
		if r.ctx.Err() != nil {
			return end(meter.DialStopped, wire.CloseRestart, liveness.RestartReason(0))
		}
		return end(meter.DialTimeout, wire.CloseNoDialBack, "the machine did not dial back within "+wire.DialTimeout.String())
	}
}

// serveAgentData is /agent-data/{machineID}/{connID}, its token verified.
func (r *Relay) serveAgentData(w http.ResponseWriter, req *http.Request, hs handshake.Request, t engine.Token) *gate.Refusal {
	rt, ref := admit.Route(req)
	if ref != nil {
		return ref
	}
	// An agent token that is not bound has never been sent a dial.
	if t.Kind != engine.KindAgent || t.Machine != rt.Machine {
		return gate.NotAllowed()
	}
	k := engine.Key{Account: t.Account, Machine: rt.Machine}
	unknown := gate.Refuse(http.StatusNotFound, wire.RefusalNotFound, "this connection id is not waiting here")
	if !r.dials.Knows(rt.Conn, k) {
		return unknown
	}
	if !r.door.Negotiated(w, req, hs) {
		return nil
	}
	d := r.dials.Take(rt.Conn, k)
	if d == nil {
		return unknown
	}
	conn, head, err := handshake.Upgrade(w, req, hs.Selected.Protocol)
	if err != nil {
		r.dials.Give(d, waiting.Answer{Code: wire.CloseNoDialBack, Reason: "the machine's connection broke while it dialled back"})
		return nil
	}
	if told, ok := r.dials.Give(d, waiting.Answer{Conn: conn, Head: head, Token: t}); !ok {
		r.door.Own(conn, func() { r.door.Part(conn, told.Code, told.Reason) })
	}
	return nil
}
