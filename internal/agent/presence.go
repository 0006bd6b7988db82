package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"holdfast/internal/liveness"
	"holdfast/internal/wire"
	"holdfast/internal/wsconn"
)

// maxRevokes is how many revocations may wait to be carried out. More are
// dropped: the relay sends what was not acknowledged again after a reconnect.
const maxRevokes = 256

// presence is one control connection.
type presence struct {
	a       *Agent
	socket  liveness.Socket
	conn    *wsconn.Control
	revokes chan wire.Message
	greeted liveness.Instant // when hello was sent
}

// ping is the application's question.
var ping, _ = wire.EncodeControl(wire.Message{Op: wire.OpPing})

// attempt makes one control connection and serves it until it is over.
func (a *Agent) attempt(ctx context.Context, socket liveness.Socket) {
	conn, err := a.connect(ctx, socket)
	if err != nil {
		a.fail(socket, failureOf(err), err)
		return
	}
	p := &presence{a: a, socket: socket, conn: conn, revokes: make(chan wire.Message, maxRevokes)}
	p.serve(ctx)
}

func (a *Agent) connect(ctx context.Context, socket liveness.Socket) (*wsconn.Control, error) {
	o, err := a.dialOptions(ctx)
	if err != nil {
		return nil, err
	}
	o.Path = wire.AgentPath(a.opt.Machine)
	o.Header = http.Header{
		wire.HeaderInstance: {string(a.instance)},
		wire.HeaderAttempt:  {strconv.FormatUint(uint64(socket), 10)},
	}
	return wsconn.DialControl(ctx, o, &a.control, func(c *wsconn.Control) {
		if err := c.Write(ping); err != nil {
			a.log.Debug("ping not sent", "err", err)
		}
	})
}

// dialOptions are what control and data connections share.
func (a *Agent) dialOptions(ctx context.Context) (wsconn.Options, error) {
	token, err := a.opt.Token(ctx)
	if err != nil {
		return wsconn.Options{}, fmt.Errorf("read the agent's token: %w", err)
	}
	return wsconn.Options{
		Relay: a.opt.Relay, Token: token,
		Proxy: a.opt.Proxy, TLS: a.opt.TLS, InsecureHTTP: a.opt.InsecureHTTP, DialContext: a.opt.DialContext,
		HandshakeTimeout: a.control.Handshake,
		Log:              a.log,
	}, nil
}

// failureOf says what an error means for the next attempt.
func failureOf(err error) liveness.Failure {
	why := liveness.Failure{Cause: liveness.CauseError, Reason: err.Error()}
	var refusal *wsconn.Refusal
	var closed *wsconn.CloseError
	switch {
	case errors.As(err, &refusal):
		why.Cause = liveness.CauseRefused
		why.Code = liveness.CodeOfRefusal(refusal.Status, refusal.Believed())
		why.After = refusal.RetryAfter
	case errors.As(err, &closed):
		why.Cause = liveness.CauseClosed
		why.Code = uint16(closed.Code)
		why.Reason = closed.Reason
	case errors.Is(err, wsconn.ErrDead):
		why.Cause = liveness.CauseJudged
	}
	return why
}

// serve greets the relay and reads until the connection is over.
func (p *presence) serve(ctx context.Context) {
	a := p.a
	stop := context.AfterFunc(ctx, p.conn.CloseNow)
	defer stop()
	revoking, done := context.WithCancel(ctx)
	defer done()
	a.work.Go(func() { p.carryOutRevokes(revoking) }) // ends with revoking

	hello := a.hello
	if a.opt.Presence != nil {
		if now, err := a.makeHello(); err == nil { // it was good in New
			hello = now
		}
	}
	if err := p.conn.Write(hello); err != nil {
		a.log.Debug("hello not sent", "err", err)
	}
	p.greeted = a.clock.At(time.Now())
	a.apply(func(now liveness.Instant) liveness.Action {
		if act := a.funnel.Opened(now, p.socket); a.stopping || a.status.Attempt != uint64(p.socket) {
			return act
		}
		a.live = p
		a.status.ConnectedSince = time.Now()
		a.status.Refused = false
		a.dropOld()
		return a.funnel.Tick(now)
	})
	a.log.Info("connected to the relay", "relay", a.status.Relay)
	// A relay that predates the pong never answers. It counts as ready from the
	// hello on once it had time to answer; whether it is stable, the funnel says.
	old := time.AfterFunc(liveness.StableAfter, func() {
		if !p.conn.Answered() {
			a.apply(func(liveness.Instant) liveness.Action { return a.funnel.Ready(p.greeted, p.socket) })
		}
	})
	defer old.Stop()

	for {
		text, err := p.conn.Read()
		if err != nil {
			a.fail(p.socket, failureOf(err), err)
			return
		}
		p.handle(ctx, text)
	}
}

// handle takes one control message. It must not block: it is the reader.
func (p *presence) handle(ctx context.Context, text []byte) {
	a := p.a
	m, err := wire.DecodeControl(text)
	switch {
	case errors.Is(err, wire.ErrUnknownOp):
		a.log.Debug("control message of a later version", "op", string(m.Op))
		return
	case err != nil:
		a.mu.Lock()
		a.status.Dropped++
		a.mu.Unlock()
		return
	}
	switch m.Op {
	case wire.OpPong:
		p.conn.Pong()
		a.apply(func(now liveness.Instant) liveness.Action {
			act := a.funnel.Ready(now, p.socket)
			a.status.LastPong = time.Now()
			if a.live == p {
				a.status.Proven = true
			}
			return act
		})
	case wire.OpDial:
		a.dial(ctx, p.conn, m)
	case wire.OpRevoke:
		select {
		case p.revokes <- m:
		default:
			a.log.Warn("too many revocations at once; the relay will send this one again")
		}
	case wire.OpDrain:
		after := liveness.MaxPeerDelay
		if m.AfterMs < after.Milliseconds() {
			after = time.Duration(m.AfterMs) * time.Millisecond
		}
		a.log.Info("the relay asks to reconnect", "after", after)
		a.apply(func(now liveness.Instant) liveness.Action { return a.funnel.Drain(now, p.socket, after) })
	}
}

// carryOutRevokes works off the revocations of this connection, one by one.
func (p *presence) carryOutRevokes(ctx context.Context) {
	a := p.a
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-p.revokes:
			if a.opt.Revoke != nil {
				if err := a.opt.Revoke(ctx, m.Device, m.Key); err != nil {
					a.log.Error("a revoked device's key could not be removed", "device", m.Device, "err", err)
					a.endDevice(m.Device)
					continue
				}
			}
			a.endDevice(m.Device)
			a.log.Info("device revoked", "device", m.Device)
			if err := send(p.conn, wire.Message{Op: wire.OpRevoked, Device: m.Device, Key: m.Key}); err != nil {
				a.log.Debug("revoked not sent", "err", err)
			}
		}
	}
}

func send(c *wsconn.Control, m wire.Message) error {
	b, err := wire.EncodeControl(m)
	if err != nil {
		return err
	}
	return c.Write(b)
}
