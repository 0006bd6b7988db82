// Package proof finds out whether a device can really get into a machine: it has
// the machine dial back and reads its service's banner, at most once in half a
// minute, and says what it found and when.
//
// It never says that a machine is there because it was: that is asked of the
// holder each time. What a caller will get wrong: a state is of the moment, so
// it must not be kept.
package proof

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
	"holdfast/internal/relay/axes"
	"holdfast/internal/relay/handshake"
	"holdfast/internal/relay/waiting"
	"holdfast/internal/wire"
)

const (
	// Interval is how often a machine is proven at most: a look at the list
	// must not become a way to make a machine work.
	Interval = 30 * time.Second
	// proofFresh is how long a proof makes a machine "reachable"; then it is only
	// "connected" until the next. It outlasts the interval by a dial's time.
	proofFresh = Interval + wire.DialTimeout
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

// OpPresent is asked through the router: is the holder there? The holder answers
// by accepting it, and nothing is sent.
const OpPresent wire.Op = ""

// Options of New; all are required.
type Options struct {
	Router engine.Router
	Dials  *waiting.Dials
	Axes   *axes.Axes
	// Greetings are those of the holders of an account's machines.
	Greetings func(id engine.AccountID) map[wire.MachineID]Greeting
	// Proved is told of each result.
	Proved func(k engine.Key, reachable bool)
	// Draining reports whether the relay is about to go.
	Draining func() bool
	// Background runs f in a goroutine that the owner waits for, or reports
	// that it does so no more; Context ends what f does.
	Background func(f func()) bool
	Context    context.Context
}

// Prover remembers when a dial-back last worked.
type Prover struct {
	Options
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

// New makes a Prover.
func New(o Options) (*Prover, error) {
	if o.Router == nil || o.Dials == nil || o.Axes == nil || o.Greetings == nil || o.Proved == nil || o.Draining == nil || o.Background == nil || o.Context == nil {
		return nil, errors.New("proof: every option is required")
	}
	return &Prover{Options: o, slots: make(chan struct{}, proofsAtOnce), each: make(map[engine.Key]*proof)}, nil
}

// Held reports whether anybody holds k now. The answer is the holder's own.
func (p *Prover) Held(ctx context.Context, k engine.Key) (bool, error) {
	err := p.Router.Deliver(ctx, k, wire.Message{Op: OpPresent})
	if errors.Is(err, engine.ErrNoHolder) {
		return false, nil
	}
	return err == nil, err
}

// Describe says the state of machines, all of one account. It starts a proof of
// each that is held and was not asked lately, and waits a little for them.
func (p *Prover) Describe(ctx context.Context, machines []engine.Machine) ([]wire.MachineInfo, error) {
	infos, err := p.State(ctx, machines)
	if err != nil {
		return nil, err
	}
	waits := p.Prove(machines, infos)
	limited, cancel := context.WithTimeout(ctx, describeWait)
	defer cancel()
	for _, w := range waits {
		select {
		case <-w:
		case <-limited.Done():
		}
	}
	if len(waits) == 0 {
		return infos, nil
	}
	return p.State(ctx, machines)
}

// State says what is known of machines, all of one account, now: who is held is
// asked, the rest is what the proofs of late have shown.
func (p *Prover) State(ctx context.Context, machines []engine.Machine) ([]wire.MachineInfo, error) {
	infos := make([]wire.MachineInfo, len(machines))
	if len(machines) == 0 {
		return infos, nil
	}
	greetings, now := p.Greetings(machines[0].Account), time.Now()
	for i, m := range machines {
		held, err := p.Held(ctx, m.Key)
		if err != nil {
			return nil, fmt.Errorf("ask for the holder of machine %q: %w", m.Machine, err)
		}
		info := &infos[i]
		info.Machine, info.State = m.Machine, wire.StateOffline
		if !m.Seen.IsZero() {
			info.ConnectedAt = new(m.Seen.UTC())
		}
		if held {
			info.State = wire.StateConnected
			g := greetings[m.Machine]
			info.Version, info.Features, info.Services = g.Version, g.Features, g.Services
		}
		p.fill(info, m.Key, now)
	}
	return infos, nil
}

// Prove starts a proof of each machine that is held by its info and was not
// asked within Interval. It gives what to wait for: those that run.
func (p *Prover) Prove(machines []engine.Machine, infos []wire.MachineInfo) (running []<-chan struct{}) {
	for i, m := range machines {
		if infos[i].State == wire.StateOffline {
			continue
		}
		var service wire.ServiceName
		if slices.Contains(infos[i].Services, wire.ServiceSSH) {
			service = wire.ServiceSSH
		}
		if w := p.prove(m.Key, service); w != nil {
			running = append(running, w)
		}
	}
	return running
}

// fill adds what the last dial-backs showed.
func (p *Prover) fill(info *wire.MachineInfo, k engine.Key, now time.Time) {
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

// prove starts a dial-back unless one began within Interval, and returns
// what to wait for while one runs.
func (p *Prover) prove(k engine.Key, service wire.ServiceName) <-chan struct{} {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.each[k]
	if e == nil {
		p.makeRoom()
		e = &proof{}
		p.each[k] = e
	}
	if e.running != nil || !e.started.IsZero() && now.Sub(e.started) < Interval {
		return e.running
	}
	running := make(chan struct{})
	e.started, e.running = now, running
	// Ends by the dial's time-out or with Context.
	if !p.Background(func() {
		defer close(running)
		p.slots <- struct{}{} // whoever holds one ends by its time-out
		err := p.dialBanner(k, service)
		<-p.slots
		p.note(e, service, err)
		if !errors.Is(err, engine.ErrNoHolder) {
			p.Proved(k, err == nil)
		}
	}) {
		e.running = nil
		return nil
	}
	return running
}

// note keeps the outcome of a proof.
func (p *Prover) note(e *proof, service wire.ServiceName, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e.running = nil
	switch {
	case errors.Is(err, engine.ErrNoHolder):
		e.started = time.Time{} // it has just gone, which shows nothing of its service
	case err == nil:
		e.service, e.proven, e.since, e.reason = service, time.Now(), time.Time{}, ""
	default:
		if e.since.IsZero() {
			e.since = time.Now()
		}
		e.service, e.reason = service, wire.CleanReason(err.Error())
	}
}

// makeRoom forgets some machines where there are too many.
func (p *Prover) makeRoom() {
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
	axes.Member
	conn net.Conn
}

// End implements axes.Ender. The dial-back is of no account's: it just breaks.
func (l *proofLeg) End(wire.CloseCode, string) { _ = l.conn.Close() }

// dialBanner asks the machine to dial back and reads the service's banner.
func (p *Prover) dialBanner(k engine.Key, service wire.ServiceName) error {
	ctx, cancel := context.WithTimeout(p.Context, wire.DialTimeout)
	defer cancel()
	d := p.Dials.Open(k)
	defer func() {
		if late, ok := p.Dials.Abandon(d, wire.CloseGoingAway, "the question is over"); ok && late.Conn != nil {
			_ = late.Conn.Close()
		}
	}()
	err := p.Router.Deliver(ctx, k, wire.Message{Op: wire.OpDial, ConnID: d.ID, Service: service, Proto: wire.SubprotocolV1})
	if err != nil {
		return err
	}
	var a waiting.Answer
	select {
	case a = <-d.Answers:
	case <-ctx.Done():
		return fmt.Errorf("the machine did not dial back within %v", wire.DialTimeout)
	}
	if a.Conn == nil {
		return fmt.Errorf("the service refused (%d): %s", a.Code, a.Reason)
	}
	leg := &proofLeg{conn: a.Conn}
	leg.Init(leg, k.Machine, axes.Agent)
	p.Axes.Add(&leg.Member, a.Token)
	defer p.Axes.Remove(&leg.Member)
	if p.Draining() { // else whoever drains has seen the leg
		_ = a.Conn.Close()
		return fmt.Errorf("the relay is restarting: %w", engine.ErrNoHolder)
	}
	deadline, _ := ctx.Deadline()
	if err := a.Conn.SetDeadline(deadline); err != nil {
		return errors.New("the machine's connection broke")
	}
	err = readBanner(a.Conn, a.Head)
	handshake.Farewell(a.Conn, wire.CloseNormal, "")
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
