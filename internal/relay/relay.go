// Package relay is the rendezvous: agents hold control connections to it,
// devices ask for streams, and it joins the two data connections of each. It
// knows tokens, names, sizes and times.
//
// It never reads what a stream carries, keeps nothing about a machine that its
// socket or the store does not say, and never logs a token or a byte of a
// stream. What a caller will get wrong: the store and the router are
// the caller's, and must be closed after the Relay; and Handler alone lacks the
// limit of unfinished handshakes, which needs Serve.
package relay

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/engine"
	"holdfast/internal/liveness"
	"holdfast/internal/relay/admit"
	"holdfast/internal/relay/axes"
	"holdfast/internal/relay/changes"
	"holdfast/internal/relay/controls"
	"holdfast/internal/relay/feeds"
	"holdfast/internal/relay/gate"
	"holdfast/internal/relay/handover"
	"holdfast/internal/relay/handshake"
	"holdfast/internal/relay/jsonapi"
	"holdfast/internal/relay/meter"
	"holdfast/internal/relay/proof"
	"holdfast/internal/relay/waiting"
	"holdfast/internal/webapp"
	"holdfast/internal/wire"
)

// Times and sizes of the HTTP server. A handshake is one small request.
const (
	// readHeaderTimeout bounds a request's header, and a TLS handshake: a phone
	// on a bad link needs seconds; twice that lets a slow attacker hold twice as
	// many sockets.
	readHeaderTimeout = 10 * time.Second
	// readTimeout bounds a whole request with its body of 8 KiB.
	readTimeout = 20 * time.Second
	// writeTimeout bounds an answer, with the proofs that /v1/machines waits for:
	// a peer that does not read must not keep its handler.
	writeTimeout = 30 * time.Second
	// idleTimeout is how long a connection may wait for its next /v1 request.
	idleTimeout = 60 * time.Second
	// maxHeaderBytes holds a long token, cookies that a browser adds, and what
	// proxies add.
	maxHeaderBytes = 16 << 10
	// tickInterval is how often expired tokens are looked for: well under the
	// second in which their sockets must close.
	tickInterval = 250 * time.Millisecond
)

// nodeTag is what wire.NewConnID takes.
var nodeTag = regexp.MustCompile(`^[0-9A-Za-z]{1,16}$`)

// Limits of New; a zero field means its default.
type Limits struct {
	Streams    int // open streams a token: 1,000
	NewStreams int // new streams a second a token: 200
	Failures   int // failed authentications a minute and address: gate.DefaultFailures
	Handshakes int // unfinished handshakes an address: gate.DefaultHandshakes
}

// Options of New.
type Options struct {
	Store  engine.Store  // required
	Router engine.Router // required
	Log    *slog.Logger  // required
	// Metrics gets the relay's collectors; nil means none.
	Metrics prometheus.Registerer
	// Node is this process's tag in connIDs, 1 to 16 letters or digits; empty
	// means a random one.
	Node string
	// TrustedProxies are believed in X-Forwarded-For.
	TrustedProxies []netip.Prefix
	Limits         Limits
	// Keepalive is how often each leg of a stream gets a protocol ping; zero
	// means 15 s, at least liveness.MinKeepalive.
	Keepalive time.Duration
	// ControlKeepalive is the same for control connections; zero means never.
	ControlKeepalive time.Duration
	// Goroutines parks each control connection with a goroutine of its own, as
	// is done for TLS and on systems without epoll anyway: for virtual time, in
	// which nothing may wait in a system call.
	Goroutines bool
	// Inherited are sockets that a former process has handed over; nil for none.
	Inherited *handover.State
}

// Relay serves agents and devices. It is safe for concurrent use.
type Relay struct {
	store     engine.Store
	router    engine.Router
	log       *slog.Logger
	limits    rates
	keepalive time.Duration

	gate     *gate.Gate
	axes     *axes.Axes
	changes  *changes.Follower
	dials    *waiting.Dials
	controls *controls.Controls
	door     *admit.Door
	prover   *proof.Prover
	meter    *meter.Meter
	api      http.Handler
	feeds    *feeds.Feeds
	server   *http.Server

	// ctx ends with Close; every goroutine of the Relay heeds it.
	ctx    context.Context
	cancel context.CancelCauseFunc
	stand  handover.Point[frozenStream]
	tasks  tasks
}

// rates are the limits of streams.
type rates struct {
	Limits
	opened *gate.Windows[string] // streams of a token in this second
}

// New makes a Relay and starts to follow the store's changes. Close ends it.
func New(o Options) (*Relay, error) {
	if o.Store == nil || o.Router == nil || o.Log == nil {
		return nil, errors.New("make a relay: Store, Router and Log are required")
	}
	for _, d := range []time.Duration{o.Keepalive, o.ControlKeepalive} {
		if d != 0 && d < liveness.MinKeepalive {
			return nil, fmt.Errorf("make a relay: keepalive of %v is shorter than %v", d, liveness.MinKeepalive)
		}
	}
	if o.Node == "" {
		o.Node = strings.ToLower(rand.Text()[:6])
	}
	if !nodeTag.MatchString(o.Node) {
		return nil, fmt.Errorf("make a relay: node %q is not 1 to 16 letters or digits", o.Node)
	}
	if err := o.Limits.complete(); err != nil {
		return nil, err
	}
	g, err := gate.New(gate.Options{
		Store: o.Store, Log: o.Log, TrustedProxies: o.TrustedProxies,
		Failures: o.Limits.Failures, Handshakes: o.Limits.Handshakes,
	})
	if err != nil {
		return nil, fmt.Errorf("make a relay: %w", err)
	}
	r := &Relay{
		store: o.Store, router: o.Router, log: o.Log, keepalive: o.Keepalive,
		limits: rates{o.Limits, gate.NewWindows[string](o.Limits.NewStreams, time.Second)},
		gate:   g,
		axes:   axes.New(),
		dials:  waiting.New(o.Node),
	}
	r.ctx, r.cancel = context.WithCancelCause(context.Background())
	r.meter = meter.New(r.gauges)
	if err := r.assemble(o); err != nil {
		r.cancel(err) // ends what the parts have started
		if r.controls != nil {
			r.controls.Close()
		}
		r.tasks.wait()
		return nil, fmt.Errorf("make a relay: %w", err)
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true) // HTTP/2 has no connection that could be taken over
	r.server = &http.Server{
		Handler:           r.Handler(),
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		Protocols:         protocols,
		ConnContext:       g.ConnContext,
		ConnState:         g.ConnState,
		// What it has to say is about strangers' handshakes, with addresses.
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
	}
	if o.Inherited != nil {
		r.adopt(o.Inherited)
	}
	// Both end with ctx; Close waits.
	r.background(func() { r.changes.Run(r.ctx) })
	r.background(r.tick)
	return r, nil
}

// assemble makes the parts. Those that need one another meet in closures, since
// nothing is called before all are there.
func (r *Relay) assemble(o Options) (err error) {
	r.door, err = admit.New(admit.Options{
		Store: o.Store, Gate: r.gate, Meter: r.meter, Log: o.Log, Background: r.background, Context: r.ctx,
	})
	if err != nil {
		return err
	}
	r.prover, err = proof.New(proof.Options{
		Router: o.Router, Dials: r.dials, Axes: r.axes, Background: r.background, Context: r.ctx, Draining: r.door.IsShut,
		Greetings: func(id engine.AccountID) map[wire.MachineID]proof.Greeting { return r.controls.Greetings(id) },
		Proved: func(k engine.Key, reachable bool) {
			r.meter.Proved(reachable)
			r.feeds.Changed(k.Account)
		},
	})
	if err != nil {
		return err
	}
	r.feeds, err = feeds.New(feeds.Options{
		Store: o.Store, Axes: r.axes, Prover: r.prover, Log: o.Log, Recheck: r.door.RecheckToken,
		Presences: func(id engine.AccountID) map[wire.MachineID]string { return r.controls.Presences(id) },
		Take:      func(t engine.Token) bool { return r.takeStream(t) == nil }, Release: r.axes.Release,
	})
	if err != nil {
		return err
	}
	r.controls, err = controls.New(controls.Options{
		Store: o.Store, Router: o.Router, Axes: r.axes, Dials: r.dials, Door: r.door, Gate: r.gate, Meter: r.meter, Log: o.Log,
		Changed:    func(k engine.Key) { r.feeds.Changed(k.Account) },
		Background: r.background, Context: r.ctx, Keepalive: o.ControlKeepalive, Goroutines: o.Goroutines,
	})
	if err != nil {
		return err
	}
	r.api, err = jsonapi.New(jsonapi.Options{
		Store: o.Store, Gate: r.gate, Log: o.Log,
		Held: r.prover.Held, Describe: r.prover.Describe, Over: r.over, Refused: r.meter.Refused,
	})
	if err != nil {
		return err
	}
	r.changes, err = changes.New(r.ctx, changes.Options{Store: o.Store, Axes: r.axes, Log: o.Log, Remind: r.controls.Remind, Hear: r.feeds.Hear})
	if err != nil {
		return err
	}
	if o.Metrics != nil {
		if err := o.Metrics.Register(r.meter); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}

// page is what a browser gets.
var page = webapp.Handler()

func (l *Limits) complete() error {
	for _, f := range []struct {
		value *int
		zero  int
		name  string
	}{
		{&l.Streams, 1000, "open streams"},
		{&l.NewStreams, 200, "new streams"},
		{&l.Failures, gate.DefaultFailures, "failed authentications"},
		{&l.Handshakes, gate.DefaultHandshakes, "unfinished handshakes"},
	} {
		if *f.value < 0 {
			return fmt.Errorf("make a relay: the limit of %s is negative", f.name)
		}
		if *f.value == 0 {
			*f.value = f.zero
		}
	}
	return nil
}

// Serve accepts connections from l, plain TCP or already TLS, until Close or
// Drain, and then returns nil. It closes l.
func (r *Relay) Serve(l net.Listener) error {
	if err := r.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	}
	return nil
}

// Handler serves every route of the relay.
func (r *Relay) Handler() http.Handler { return http.HandlerFunc(r.serve) }

// serve routes by hand: a ServeMux would redirect a path before its token was
// looked at.
func (r *Relay) serve(w http.ResponseWriter, req *http.Request) {
	r.gate.Arrived(req)
	path := req.URL.EscapedPath()
	switch kind := wire.RouteKindOf(path); {
	case kind != 0:
		if ref := r.serveSocket(w, req, kind); ref != nil {
			r.door.Refuse(w, ref)
		}
	case strings.HasPrefix(path, "/v1/"):
		r.api.ServeHTTP(w, req)
	case path == "/healthz":
		plain(w, http.StatusOK, "ok")
	case path == "/readyz":
		r.serveReady(w, req)
	case path == "/" || webapp.Serves(path):
		page.ServeHTTP(w, req)
	default:
		r.door.Refuse(w, gate.Refuse(http.StatusNotFound, wire.RefusalNotFound, "there is nothing at this path"))
	}
}

// serveSocket is a WebSocket route up to its path: syntax, then the token.
func (r *Relay) serveSocket(w http.ResponseWriter, req *http.Request, kind wire.RouteKind) *gate.Refusal {
	hs, ref := handshake.Parse(req)
	if ref != nil {
		return ref
	}
	t, ref := r.gate.Token(req)
	if ref != nil {
		return ref
	}
	if ref := r.door.Draining(); ref != nil {
		return ref
	}
	switch kind {
	case wire.RouteAgent:
		return r.controls.Serve(w, req, hs, t)
	case wire.RouteConnect:
		return r.serveConnect(w, req, hs, t)
	case wire.RouteAgentData:
		return r.serveAgentData(w, req, hs, t)
	}
	return r.serveChannel(w, req, hs, t)
}

// serveChannel is /v1/live/{channel}, its token verified.
func (r *Relay) serveChannel(w http.ResponseWriter, req *http.Request, hs handshake.Request, t engine.Token) *gate.Refusal {
	rt, ref := admit.Route(req)
	if ref != nil {
		return ref
	}
	if t.Kind != engine.KindDevice {
		return gate.NotAllowed()
	}
	if ref := r.overStreams(t); ref != nil {
		return ref
	}
	if !r.feeds.Has(rt.Channel) {
		return gate.Refuse(http.StatusNotFound, wire.RefusalNotFound, "this relay has no such channel")
	}
	if !r.door.Negotiated(w, req, hs) {
		return nil
	}
	r.gate.Touch(t, req)
	r.feeds.Serve(w, req, rt.Channel, t)
	return nil
}

func plain(w http.ResponseWriter, status int, line string) {
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(line + "\n")) // an error means that the peer has gone
}

// readyTimeout bounds /readyz: a balancer asks every few seconds.
const readyTimeout = 2 * time.Second

func (r *Relay) serveReady(w http.ResponseWriter, req *http.Request) {
	ctx, cancel := context.WithTimeout(req.Context(), readyTimeout)
	defer cancel()
	switch {
	case r.door.IsShut():
		plain(w, http.StatusServiceUnavailable, "not ready: draining")
	case r.store.Ping(ctx) != nil:
		plain(w, http.StatusServiceUnavailable, "not ready: the store does not answer")
	case r.router.Ping(ctx) != nil:
		plain(w, http.StatusServiceUnavailable, "not ready: the router does not answer")
	default:
		plain(w, http.StatusOK, "ready")
	}
}

// gauges is what the meter reads when it is asked.
func (r *Relay) gauges() meter.Gauges {
	parked := r.controls.Parked()
	return meter.Gauges{
		Sockets: map[[2]string]int{
			{axes.Control.String(), "epoll"}:     parked.Epoll,
			{axes.Control.String(), "goroutine"}: parked.Goroutine,
			{axes.Device.String(), "stream"}:     r.axes.Count(axes.Device),
			{axes.Agent.String(), "stream"}:      r.axes.Count(axes.Agent),
			{axes.Live.String(), "stream"}:       r.axes.Count(axes.Live),
		},
		Live:        r.feeds.Stats(),
		Waiting:     r.dials.Count(),
		ParkedBytes: int(parked.HeldBytes),
		Addresses:   r.gate.MostOrigins(),
	}
}

// tasks are the goroutines that Close waits for.
type tasks struct {
	closing sync.Once

	mu     sync.Mutex
	closed bool // nothing is added to wg any more
	wg     sync.WaitGroup
}

// wait ends the adding and waits.
func (t *tasks) wait() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.wg.Wait()
}

// background runs f in a goroutine that Close waits for. It is false, and f does
// not run, once Close waits: a request may still be in its handler then.
func (r *Relay) background(f func()) bool {
	r.tasks.mu.Lock()
	defer r.tasks.mu.Unlock()
	if !r.tasks.closed {
		r.tasks.wg.Go(f)
	}
	return !r.tasks.closed
}

// tick does what time alone brings about.
func (r *Relay) tick() {
	t := time.NewTicker(tickInterval)
	defer t.Stop()
	for n := 1; ; n++ {
		select {
		case <-r.ctx.Done():
			return
		case now := <-t.C:
			axes.EndAll(r.axes.Expired(now), wire.CloseUnauthorized, changes.ReasonExpired)
			if n%4 == 0 {
				r.gate.Sweep()
			}
			if r.gate.Due(now) {
				r.gate.Flush(r.ctx)
			}
		}
	}
}

// Close ends every connection with 1012 and everything that runs, and waits:
// for at most about two seconds on peers that do not hang up.
func (r *Relay) Close() error {
	r.tasks.closing.Do(func() {
		r.door.Shut()
		_ = r.server.Close() // ends Serve and requests; hijacked connections are ours
		for role := range axes.Roles {
			axes.EndAll(r.axes.OfRole(role), wire.CloseRestart, liveness.RestartReason(0))
		}
		ctx, cancel := context.WithTimeout(context.Background(), wire.DrainTimeout)
		defer cancel()
		_ = r.settle(ctx) // whoever stays is dropped now
		r.feeds.Close(ctx)
		r.cancel(errors.New("the relay is closing"))
		r.controls.Close()
		r.tasks.wait()
		flush, cancel := context.WithTimeout(context.Background(), wire.DrainTimeout)
		defer cancel()
		r.gate.Flush(flush)
	})
	return nil
}
