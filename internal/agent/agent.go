// Package agent is one machine's presence at a relay: it keeps the control
// connection for ever, answers dials by connecting a service and dialling back,
// and removes devices that were revoked.
//
// It opens no port, never reads what its streams carry and never gives up: after
// a terminal answer of the relay it says why and asks again hourly. Only the
// news that another agent took the machine's name ends Run.
//
// What a caller will get wrong: being connected does not mean being reachable
// (see Status.Proven and Status.LastDialBack); streams outlive the control
// connection that asked for them; and a service's Handle must return when its
// connection ends, since Run waits for it.
package agent

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/url"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/http/httpproxy"

	"holdfast/internal/liveness"
	"holdfast/internal/wire"
	"holdfast/internal/wsconn"
)

// maxStreams bounds the streams of one machine, those being dialled included:
// what a relay allows one token. At half a person with many tabs is refused; at
// double a process with the usual limit of 1,024 descriptors is out of them
// before it can say so.
const maxStreams = 1000

// ErrReplaced says that another agent took this machine's name. Run returns it
// inside a *ReplacedError.
var ErrReplaced = errors.New("another agent has taken this machine's name")

// ReplacedError names the winner.
type ReplacedError struct {
	Machine wire.MachineID
	Winner  wire.Instance // empty where the relay did not say
}

func (e *ReplacedError) Error() string {
	who := "another agent"
	if e.Winner != "" {
		who += " (instance " + string(e.Winner) + ")"
	}
	return fmt.Sprintf("machine %q is now held by %s: stop one of the two, or give one another name", e.Machine, who)
}

func (e *ReplacedError) Unwrap() error { return ErrReplaced }

// Service is what a dial can ask for: exactly one of the two.
type Service struct {
	// Addr is host:port, or unix:/path.
	Addr string
	// Handle serves one stream inside this process and returns when conn is
	// over; conn is closed afterwards.
	Handle func(ctx context.Context, conn net.Conn, info DialInfo)
}

// DialInfo says who asks.
type DialInfo struct {
	Conn wire.ConnID
	// Device is the relay's word for the device, to index by and to show; it
	// authenticates nobody. Empty for a token that no device was paired for.
	Device string
}

// Options configure an Agent.
type Options struct {
	// Relay is the relay's base URL, required.
	Relay *url.URL
	// Machine is this machine's name, required.
	Machine wire.MachineID
	// Token is asked at every attempt, so that a token can be exchanged while
	// the agent runs. Required.
	Token func(ctx context.Context) (wire.Token, error)
	// SSHD is the address of the service used when a dial names none; empty
	// refuses those dials.
	SSHD string
	// Services are the named ones, the only ones that can be asked for.
	Services map[wire.ServiceName]Service
	// Revoke removes a device's key (SSH public key, "type base64") from this
	// machine. It only removes, may be called again for the same key, and an
	// error leaves the revocation unacknowledged. Nil where there are no keys.
	Revoke func(ctx context.Context, device, key string) error
	// Version is told to the relay.
	Version string
	// Presence is asked at each connect for what the relay is to hand, unread, to
	// the account's devices: at most wire.MaxPresenceBytes. Nil, or nothing, leaves
	// it out.
	Presence func() []byte
	// Keepalive sends protocol pings this often on control and data connections;
	// zero means data 15 s and control off. At least liveness.MinKeepalive.
	Keepalive time.Duration
	// Control and Data judge the connections in place of liveness.AgentControl and
	// liveness.Data; nil means those. The lab sets them, to let time run faster.
	Control, Data *liveness.Config
	// MaxStreams is 1,000 if zero.
	MaxStreams int
	// Proxy, TLS, InsecureHTTP and DialContext are those of wsconn.Options.
	Proxy        *httpproxy.Config
	TLS          *tls.Config
	InsecureHTTP bool
	DialContext  func(ctx context.Context, network, addr string) (net.Conn, error)
	// DialService replaces net.Dialer for services; tests set it.
	DialService func(ctx context.Context, network, addr string) (net.Conn, error)
	// Log may be nil.
	Log *slog.Logger
}

func (o *Options) validate() error {
	if err := wsconn.CheckRelay(o.Relay, o.InsecureHTTP); err != nil {
		return err
	}
	if _, err := wire.ParseMachineID(string(o.Machine)); err != nil {
		return err
	}
	if o.Token == nil {
		return errors.New("agent options: a token source is required")
	}
	if o.MaxStreams < 0 {
		return errors.New("agent options: a negative number of streams")
	}
	for name, s := range o.Services {
		if _, err := wire.ParseServiceName(string(name)); err != nil {
			return fmt.Errorf("service %q: %w", name, err)
		}
		if (s.Addr == "") == (s.Handle == nil) {
			return fmt.Errorf("service %q: want an address or a handler", name)
		}
		if s.Addr == "" {
			continue
		}
		if err := CheckAddr(s.Addr); err != nil {
			return fmt.Errorf("service %q: %w", name, err)
		}
	}
	if o.SSHD == "" {
		return nil
	}
	if err := CheckAddr(o.SSHD); err != nil {
		return fmt.Errorf("sshd: %w", err)
	}
	return nil
}

// Agent is one machine's presence. See New and Run.
type Agent struct {
	opt      Options
	log      *slog.Logger
	instance wire.Instance
	hello    []byte
	control  liveness.Config
	data     liveness.Config
	clock    liveness.Clock

	work sync.WaitGroup // attempts, dials and streams

	mu sync.Mutex
	// ctx is what the work is made under. Nil before Run; it ends after the
	// farewell, so that this is not cut short.
	ctx      context.Context
	stopping bool // nothing new is begun
	funnel   *liveness.Funnel
	next     time.Duration // when the funnel wants its tick
	rearm    chan struct{} // capacity 1: next has changed
	// live is the control connection of the funnel's present socket, old the one
	// that a drain retired and that serves until the next is there.
	live, old *presence
	streams   map[wire.ConnID]*stream
	seen      seen
	status    Status
}

// New checks o. It starts nothing.
func New(o Options) (*Agent, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	if o.MaxStreams == 0 {
		o.MaxStreams = maxStreams
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.DialService == nil {
		o.DialService = (&net.Dialer{}).DialContext
	}
	a := &Agent{
		opt:      o,
		log:      o.Log.With("machine", string(o.Machine)),
		instance: wire.NewInstance(),
		control:  liveness.AgentControl(),
		data:     liveness.Data(),
		clock:    liveness.NewClock(time.Now()),
		rearm:    make(chan struct{}, 1),
		streams:  make(map[wire.ConnID]*stream),
	}
	if o.Control != nil {
		a.control = *o.Control
	}
	if o.Data != nil {
		a.data = *o.Data
	}
	if err := errors.Join(a.control.Validate(), a.data.Validate()); err != nil {
		return nil, err
	}
	if o.Keepalive != 0 {
		var err error
		if a.control, err = a.control.WithKeepalive(o.Keepalive); err != nil {
			return nil, err
		}
		if a.data, err = a.data.WithKeepalive(o.Keepalive); err != nil {
			return nil, err
		}
	}
	var err error
	if a.hello, err = a.makeHello(); err != nil {
		return nil, err
	}
	a.funnel, err = liveness.NewFunnel(liveness.FunnelOptions{
		Profile:    liveness.Holdfast,
		Backoff:    liveness.AgentBackoff,
		Rand:       rand.Float64,
		Unattended: true,
		Instance:   string(a.instance),
	})
	if err != nil {
		return nil, err
	}
	a.status = Status{Machine: o.Machine, Relay: o.Relay.Redacted(), Instance: a.instance}
	return a, nil
}

func (a *Agent) makeHello() ([]byte, error) {
	names := make([]wire.ServiceName, 0, len(a.opt.Services))
	for name := range a.opt.Services {
		names = append(names, name)
	}
	slices.Sort(names)
	m := wire.Message{
		Op:       wire.OpHello,
		Version:  a.opt.Version,
		Features: []string{wire.FeatureRevoke, wire.FeatureDrain},
		Services: names,
	}
	if a.opt.Presence == nil {
		return wire.EncodeControl(m)
	}
	// A presence that does not fit costs the devices a hint, not the machine.
	blob := a.opt.Presence()
	if len(blob) <= wire.MaxPresenceBytes {
		with := m
		with.Presence = base64.StdEncoding.EncodeToString(blob)
		if b, err := wire.EncodeControl(with); err == nil {
			return b, nil
		}
	}
	a.log.Warn("the presence does not fit and is left out", "bytes", len(blob))
	return wire.EncodeControl(m)
}

// Instance is what this agent calls itself at the relay.
func (a *Agent) Instance() wire.Instance { return a.instance }

// Run keeps the machine present until ctx ends, and returns its cause; or until
// another agent takes the name: *ReplacedError. It returns after everything
// that it started has ended. It must be called once.
func (a *Agent) Run(ctx context.Context) error {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	a.mu.Lock()
	if a.ctx != nil {
		a.mu.Unlock()
		cancel()
		return errors.New("agent runs already")
	}
	a.ctx = work
	a.mu.Unlock()

	a.apply(func(now liveness.Instant) liveness.Action { return a.funnel.Start(now) })
	err := a.loop(ctx)
	a.farewell()
	cancel()
	a.work.Wait()
	return err
}

// sleepCheck is how often the clocks are compared while nothing is due.
const sleepCheck = 5 * time.Second

// loop holds the funnel's timer.
func (a *Agent) loop(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		a.mu.Lock()
		next, phase, why := a.next, a.funnel.Phase(), a.funnel.Why()
		a.mu.Unlock()
		if phase == liveness.Stopped {
			err := &ReplacedError{Machine: a.opt.Machine, Winner: wire.ReplacedBy(why.Reason)}
			a.log.Error("agent stops", "err", err)
			return err
		}
		timer.Reset(max(0, min(next-a.clock.At(time.Now()).Mono, sleepCheck)))
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-a.rearm:
		case <-timer.C:
			a.apply(func(now liveness.Instant) liveness.Action { return a.funnel.Tick(now) })
		}
	}
}

// apply runs one event of the funnel and does what it asks.
func (a *Agent) apply(event func(now liveness.Instant) liveness.Action) {
	a.mu.Lock()
	now := time.Now()
	act := event(a.clock.At(now))
	a.next = act.Next
	probe := a.obey(act)
	a.note(now, act)
	a.mu.Unlock()
	select {
	case a.rearm <- struct{}{}:
	default:
	}
	if probe != nil {
		probe.conn.Wake()
	}
}

// obey is called with mu held. It returns the connection to probe, if any.
func (a *Agent) obey(act liveness.Action) (probe *presence) {
	if act.Retire != 0 && a.live != nil && a.live.socket == act.Retire {
		if a.live.conn.Err() == nil {
			// A drain: it still works, and serves until the next one is there.
			a.dropOld()
			a.old = a.live
		}
		a.live = nil
	}
	if act.Connect != 0 && !a.stopping {
		a.status.Attempt = uint64(act.Connect)
		ctx := a.ctx
		a.work.Go(func() { a.attempt(ctx, act.Connect) }) // ends with ctx or the connection
	}
	if act.Probe {
		probe = a.live
	}
	return probe
}

// dropOld is called with mu held.
func (a *Agent) dropOld() {
	if old := a.old; old != nil {
		a.old = nil
		a.work.Go(func() { old.conn.CloseWith(wire.CloseNormal, "") }) // ends by itself
	}
}

// Wake says that the network changed, the machine woke or somebody looks: every
// link is probed and a wait is skipped. Sleep is noticed without it.
func (a *Agent) Wake() {
	a.mu.Lock()
	running := a.ctx != nil
	streams := make([]*wsconn.Stream, 0, len(a.streams))
	for _, s := range a.streams {
		if s.conn != nil {
			streams = append(streams, s.conn)
		}
	}
	a.mu.Unlock()
	if !running {
		return
	}
	a.apply(func(now liveness.Instant) liveness.Action { return a.funnel.Wake(now) })
	for _, s := range streams {
		s.Wake()
	}
}

// Retry is a person's act: it asks at once, also while the relay is left alone
// for an hour after a terminal answer. A live connection is left alone.
func (a *Agent) Retry() {
	a.mu.Lock()
	running := a.ctx != nil && !a.stopping
	a.mu.Unlock()
	if running {
		a.apply(func(now liveness.Instant) liveness.Action { return a.funnel.Start(now) })
	}
}

// farewell ends all connections in an orderly way.
func (a *Agent) farewell() {
	a.mu.Lock()
	a.stopping = true
	live, streams := a.live, make([]*stream, 0, len(a.streams))
	for _, s := range a.streams {
		streams = append(streams, s)
	}
	a.dropOld()
	a.mu.Unlock()
	var closing sync.WaitGroup
	if live != nil {
		closing.Go(func() { live.conn.CloseSoon(wire.CloseGoingAway, "agent stops") })
	}
	for _, s := range streams {
		closing.Go(func() { s.end(wire.CloseGoingAway, "agent stops") })
	}
	closing.Wait()
}
