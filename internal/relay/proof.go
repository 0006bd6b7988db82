package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"holdfast/internal/engine"
	"holdfast/internal/frame"
	"holdfast/internal/wire"
)

const (
	// proofInterval is how often a machine is proven at most: a look at the list
	// must not become a way to make a machine work.
	proofInterval = 30 * time.Second
	// proofFresh is how long a proof makes a machine "reachable"; then it is only
	// "connected" until the next. It outlasts the interval by a dial's time.
	proofFresh = proofInterval + wire.DialTimeout
	// describeWait is how long an answer waits for proofs that are under way.
	describeWait = 2 * time.Second
	// proofsAtOnce bounds the dial-backs that run at the same time.
	proofsAtOnce = 64
	// maxProofs bounds what is remembered, at about 200 bytes each.
	maxProofs = 1 << 14
	// maxBanner is how far into a stream an SSH version line is looked for: a
	// server may send lines before it (RFC 4253, section 4.2).
	maxBanner = 4 << 10
)

// proofs remember when a dial-back last worked. They say nothing of whether a
// machine is there now.
type proofs struct {
	slots chan struct{}

	mu   sync.Mutex
	each map[engine.Key]*proof
}

type proof struct {
	started time.Time     // of the newest attempt
	running chan struct{} // closed when that has ended; nil while none runs
	service wire.ServiceName
	proven  time.Time // newest success
	since   time.Time // first failure since then, or zero
	reason  string
}

func newProofs() *proofs {
	return &proofs{slots: make(chan struct{}, proofsAtOnce), each: make(map[engine.Key]*proof)}
}

// describe implements /v1/machines: the state of each comes from its holder.
func (r *Relay) describe(ctx context.Context, machines []engine.Machine) ([]wire.MachineInfo, error) {
	infos := make([]wire.MachineInfo, len(machines))
	var waits []<-chan struct{}
	for i, m := range machines {
		held, err := r.held(ctx, m.Key)
		if err != nil {
			return nil, fmt.Errorf("ask for the holder of machine %q: %w", m.Machine, err)
		}
		info := &infos[i]
		info.Machine, info.State = m.Machine, wire.StateOffline
		if !m.Seen.IsZero() {
			info.ConnectedAt = new(m.Seen.UTC())
		}
		if !held {
			continue
		}
		info.State = wire.StateConnected
		h := r.greetingOf(m.Key)
		info.Version, info.Features, info.Services = h.version, splitList[string](h.features), splitList[wire.ServiceName](h.services)
		var service wire.ServiceName
		if slices.Contains(info.Services, wire.ServiceSSH) {
			service = wire.ServiceSSH
		}
		if w := r.prove(m.Key, service); w != nil {
			waits = append(waits, w)
		}
	}
	timer := time.NewTimer(describeWait)
	defer timer.Stop()
wait:
	for _, w := range waits {
		select {
		case <-w:
		case <-timer.C:
			break wait
		case <-ctx.Done():
			break wait
		}
	}
	now := time.Now()
	for i, m := range machines {
		r.proofs.fill(&infos[i], m.Key, now)
	}
	return infos, nil
}

// greetingOf is the hello of the socket of this node that holds k.
func (r *Relay) greetingOf(k engine.Key) hello {
	for _, m := range r.axes.ofAccount(k.Account, func(m *member) bool { return m.role == roleControl && m.machine == k.Machine }) {
		if c := m.self.(*control); r.router.Holds(k, c) {
			return c.greeting()
		}
	}
	return hello{}
}

// fill adds what the last dial-backs showed.
func (p *proofs) fill(info *wire.MachineInfo, k engine.Key, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.each[k]
	if e == nil {
		return
	}
	if !e.proven.IsZero() {
		info.ProvenAt, info.Service = new(e.proven.UTC()), e.service
	}
	if info.State != wire.StateConnected {
		return
	}
	switch {
	case !e.since.IsZero():
		info.State, info.Since, info.Reason, info.Service = wire.StateUnreachable, new(e.since.UTC()), e.reason, e.service
	case !e.proven.IsZero() && now.Sub(e.proven) < proofFresh:
		info.State = wire.StateReachable
	}
}

// prove starts a dial-back unless one began within proofInterval, and returns
// what to wait for while one runs.
func (r *Relay) prove(k engine.Key, service wire.ServiceName) <-chan struct{} {
	p := r.proofs
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.each[k]
	if e == nil {
		p.makeRoom()
		e = &proof{}
		p.each[k] = e
	}
	if e.running != nil || !e.started.IsZero() && now.Sub(e.started) < proofInterval {
		return e.running
	}
	running := make(chan struct{})
	e.started, e.running = now, running
	// Ends by the dial's time-out or with ctx.
	r.background(func() {
		defer close(running)
		p.slots <- struct{}{} // whoever holds one ends by its time-out
		err := r.dialBanner(k, service)
		<-p.slots
		p.mu.Lock()
		defer p.mu.Unlock()
		e.running, e.service = nil, service
		if err == nil {
			e.proven, e.since, e.reason = time.Now(), time.Time{}, ""
			r.metrics.proven.WithLabelValues("reachable").Inc()
			return
		}
		if e.since.IsZero() {
			e.since = time.Now()
		}
		e.reason = wire.CleanReason(err.Error())
		r.metrics.proven.WithLabelValues("unreachable").Inc()
	})
	return running
}

// makeRoom forgets some machines where there are too many.
func (p *proofs) makeRoom() {
	if len(p.each) < maxProofs {
		return
	}
	for k, e := range p.each {
		if len(p.each) <= maxProofs*7/8 {
			return
		}
		if e.running == nil {
			delete(p.each, k)
		}
	}
}

// proofLeg is a dial-back's place in the axes.
type proofLeg struct {
	member
	conn net.Conn
}

// end implements ender. The dial-back is of no account's: it just breaks.
func (l *proofLeg) end(wire.CloseCode, string) { _ = l.conn.Close() }

// dialBanner asks the machine to dial back and reads the service's banner.
func (r *Relay) dialBanner(k engine.Key, service wire.ServiceName) error {
	ctx, cancel := context.WithTimeout(r.ctx, wire.DialTimeout)
	defer cancel()
	d := r.dials.open(k)
	defer func() {
		if late, ok := r.dials.abandon(d); ok && late.conn != nil {
			_ = late.conn.Close()
		}
	}()
	err := r.router.Deliver(ctx, k, wire.Message{Op: wire.OpDial, ConnID: d.id, Service: service, Proto: wire.SubprotocolV1})
	if errors.Is(err, engine.ErrNoHolder) {
		return errors.New(wire.ReasonOffline)
	}
	if err != nil {
		return err
	}
	var a answer
	select {
	case a = <-d.answers:
	case <-ctx.Done():
		return fmt.Errorf("the machine did not dial back within %v", wire.DialTimeout)
	}
	if a.conn == nil {
		return fmt.Errorf("the service refused (%d): %s", a.code, a.reason)
	}
	leg := &proofLeg{conn: a.conn}
	leg.self, leg.machine, leg.role = leg, k.Machine, roleAgent
	r.axes.add(&leg.member, a.token)
	defer r.axes.remove(&leg.member)
	deadline, _ := ctx.Deadline()
	if err := a.conn.SetDeadline(deadline); err != nil {
		return errors.New("the machine's connection broke")
	}
	err = readBanner(a.conn, a.head)
	farewell(a.conn, wire.CloseNormal, "")
	return err
}

// readBanner reads an agent's leg until an SSH version line begins.
func readBanner(conn net.Conn, head []byte) error {
	frames := frame.NewReader(wire.MaxMessageBytes)
	var got []byte
	buf := make([]byte, 1<<10)
	for b := head; ; {
		for {
			m, n, err := frames.Next(b)
			if err != nil {
				return fmt.Errorf("the machine's data connection: %w", err)
			}
			if m.Op == frame.Continuation {
				break
			}
			b = b[n:]
			switch m.Op {
			case frame.Binary:
				got = append(got, m.Payload...)
			case frame.Text: // of an older agent
				if got, err = wire.DecodeBase64(got, m.Payload); err != nil {
					return errors.New("the machine's text is not base64")
				}
			case frame.Close:
				return errors.New("the service closed before it said who it is")
			}
			switch {
			case bytes.HasPrefix(got, []byte("SSH-")), bytes.Contains(got, []byte("\nSSH-")):
				return nil
			case len(got) > maxBanner:
				return errors.New("the service is not an SSH server")
			}
		}
		n, err := conn.Read(buf)
		if err != nil {
			return errors.New("the service said nothing")
		}
		b = buf[:n]
	}
}
