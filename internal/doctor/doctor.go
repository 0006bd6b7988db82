// Package doctor finds out at which layer a device fails to reach a machine. It
// walks from the name look-up to the login, one question a layer, names the
// first that fails as the cause, and says since when and what to do.
//
// It mends nothing, stores nothing and prints nothing. What a caller will get
// wrong: a layer that passes proves this device's path at this moment; "held by
// the relay" is the relay's word, and only the dial-back behind it proves that
// a dial arrives.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"holdfast/internal/client"
	"holdfast/internal/pairing"
	"holdfast/internal/sshlink"
	"holdfast/internal/wire"
	"holdfast/internal/wsconn"
)

// Layer names one question, in the order in which they are asked.
type Layer string

// The layers.
const (
	DNS      Layer = "dns"
	TCP      Layer = "tcp"
	Proxy    Layer = "proxy" // only where one is used
	TLS      Layer = "tls"
	Upgrade  Layer = "upgrade"
	Ping     Layer = "protocol ping"
	Held     Layer = "held by the relay"
	DialBack Layer = "dial-back"
	Banner   Layer = "service banner"
	HostKey  Layer = "host key"
	Login    Layer = "login"
)

// layers is every layer that each walk reports, in order.
var layers = []Layer{DNS, TCP, TLS, Upgrade, Ping, Held, DialBack, Banner, HostKey, Login}

// Status is what came of a layer.
type Status string

// The statuses.
const (
	OK      Status = "ok"
	Failed  Status = "failed"
	Skipped Status = "skipped" // an earlier layer failed, or there is nothing to ask
)

// Check is one layer's answer. Detail is one line for a person.
type Check struct {
	Layer  Layer
	Status Status
	Took   time.Duration
	Detail string
}

// Report is the result of a walk.
type Report struct {
	Checks []Check
	// Cause is the layer that failed; empty if none did.
	Cause Layer
	// What happened there and what to do, one clause each.
	What, Do string
	// Since is when the relay first saw the failure, zero where it cannot know.
	Since time.Time
	// Skew is how far this computer's clock is ahead of the relay's, as far as
	// an HTTP date tells (to the second); zero where it is within a minute.
	Skew time.Duration
	// Denied says that asking again as things are is useless.
	Denied bool
}

// OK reports whether every layer passed.
func (r *Report) OK() bool { return r.Cause == "" }

// Options of Run.
type Options struct {
	Dialer client.Dialer
	// Target is what is to be reached; required.
	Target client.Target
	// User and HostKeys are for the login; without keys it is skipped.
	User     string
	HostKeys []pairing.Key
	// Key is this device's key; nil skips the login.
	Key *sshlink.Key
	// HTTP fetches the relay's date; nil skips the question about clocks.
	HTTP *http.Client
	// OnCheck hears each check as it is made; nil means nobody.
	OnCheck func(Check)
}

const (
	// pingTimeout is how long a protocol ping may take: more than any round
	// trip, less than a person waits.
	pingTimeout = 10 * time.Second
	// bannerTimeout holds the relay's 10 s for the dial-back, the agent's 5 s
	// for the service, and a slow service's first line.
	bannerTimeout = 20 * time.Second
	// skewLimit is what counts as a wrong clock: certificates and tokens are
	// valid for far longer, but a minute is what people set clocks to.
	skewLimit = time.Minute
)

// walk is one Run.
type walk struct {
	Options
	report Report
	done   map[Layer]bool
}

// Run walks all layers, at most about a minute. It stops at the first that
// fails, and at the end of ctx.
func Run(ctx context.Context, o Options) Report {
	w := &walk{Options: o, done: make(map[Layer]bool)}
	w.run(ctx)
	for _, l := range layers {
		if !w.done[l] {
			w.add(Check{Layer: l, Status: Skipped})
		}
	}
	w.skew(ctx)
	return w.report
}

// add reports a check, after those before it that there was nothing to ask of:
// an address needs no name, and plain http has no certificate.
func (w *walk) add(c Check) {
	for _, l := range layers[:max(slices.Index(layers, c.Layer), 0)] {
		if !w.done[l] {
			w.note(Check{Layer: l, Status: Skipped})
		}
	}
	w.note(c)
}

func (w *walk) note(c Check) {
	w.done[c.Layer] = true
	w.report.Checks = append(w.report.Checks, c)
	if w.OnCheck != nil {
		w.OnCheck(c)
	}
}

func (w *walk) ok(l Layer, took time.Duration, detail string) {
	w.add(Check{Layer: l, Status: OK, Took: took, Detail: detail})
}

// fail ends the walk at a layer.
func (w *walk) fail(l Layer, took time.Duration, err error) {
	f := client.Diagnose(err, w.Target)
	w.report.Cause, w.report.Denied = l, f.Denied
	w.report.What, w.report.Do = f.Err.Error(), f.Do
	w.add(Check{Layer: l, Status: Failed, Took: took, Detail: f.Err.Error()})
}

var hopLayers = map[wsconn.Hop]Layer{
	wsconn.HopDNS: DNS, wsconn.HopTCP: TCP, wsconn.HopProxy: Proxy, wsconn.HopTLS: TLS, wsconn.HopUpgrade: Upgrade,
}

func (w *walk) run(ctx context.Context) {
	s, ok := w.dial(ctx)
	if !ok {
		return
	}
	defer s.CloseNow()
	// The reader runs from here on: pings need one, and the banner comes when
	// the dial-back has worked. Both end with the stream and are awaited.
	type result struct {
		banner string
		err    error
		took   time.Duration
	}
	read := make(chan result, 1)
	opened := time.Now()
	go func() {
		ctx, cancel := context.WithTimeout(ctx, bannerTimeout)
		defer cancel()
		b, err := sshlink.ReadBanner(ctx, s)
		if over := s.Err(); err != nil && over != nil {
			err = over
		}
		read <- result{b, err, time.Since(opened)}
		_, _ = io.Copy(io.Discard, s) // the pong may come behind the banner
	}()
	if !w.ping(ctx, s) {
		return
	}
	if !w.held(ctx) {
		return
	}
	r := <-read
	var closed *wsconn.CloseError
	switch {
	case r.err == nil:
		w.ok(DialBack, r.took, "")
		w.ok(Banner, r.took, r.banner)
	case errors.As(r.err, &closed) && closed.Code == wire.CloseTryLater:
		w.fail(Held, r.took, r.err) // gone since the relay was asked
		return
	case errors.As(r.err, &closed) && closed.Code == wire.CloseNoDialBack:
		w.fail(DialBack, r.took, r.err)
		return
	case errors.As(r.err, &closed):
		w.ok(DialBack, r.took, "the machine answered")
		w.fail(Banner, r.took, r.err)
		return
	default:
		w.fail(Banner, r.took, fmt.Errorf("no SSH version line came: %w", r.err))
		return
	}
	s.CloseNow()
	w.login(ctx)
}

// dial reports every hop up to the upgrade.
func (w *walk) dial(ctx context.Context) (*wsconn.Stream, bool) {
	start := time.Now()
	var last Layer
	d := w.Dialer
	d.OnStage = func(h wsconn.Hop, took time.Duration, err error) {
		if last = hopLayers[h]; err == nil {
			w.ok(last, took, "")
		}
	}
	s, err := d.Stream(ctx, w.Target, false)
	if err == nil {
		return s, true
	}
	var failed *wsconn.DialError
	if errors.As(err, &failed) {
		last = hopLayers[failed.Hop]
	}
	if last == "" {
		last = DNS // the address itself cannot be
	}
	w.fail(last, time.Since(start), err)
	return nil, false
}

// ping asks the relay's WebSocket layer. A relay that waits for the machine may
// answer only when the dial is over, one way or the other.
func (w *walk) ping(ctx context.Context, s *wsconn.Stream) bool {
	ctx, cancel := context.WithTimeout(ctx, wire.DialTimeout+pingTimeout)
	defer cancel()
	start := time.Now()
	took, err := s.Ping(ctx)
	if err != nil && ctx.Err() == nil {
		<-s.Done() // the connection ended: its reader is about to say how
	}
	var closed *wsconn.CloseError
	switch {
	case err == nil:
		w.ok(Ping, took, "")
	case errors.As(s.Err(), &closed) && closed.Cause == nil:
		// A close frame came first: that is an answer too.
		w.ok(Ping, time.Since(start), "the relay answered with a close")
	default:
		w.fail(Ping, time.Since(start), err)
		return false
	}
	return true
}

// held asks the relay about the machine.
func (w *walk) held(ctx context.Context) bool {
	start := time.Now()
	api, err := w.Dialer.API(w.Target)
	if err != nil {
		w.fail(Held, 0, err)
		return false
	}
	defer api.Close()
	list, err := api.Machines(ctx)
	if err != nil {
		w.fail(Held, time.Since(start), err)
		return false
	}
	for _, m := range list.Machines {
		if m.Machine != w.Target.Machine {
			continue
		}
		if m.State == wire.StateOffline {
			detail := "no agent is connected for this machine"
			if m.ConnectedAt != nil {
				detail += fmt.Sprintf("; one last connected %s", m.ConnectedAt.Format(time.RFC3339))
			}
			w.fail(Held, time.Since(start), &client.Failure{
				Hop: "machine", Err: errors.New(detail),
				Do: "start holdfast up or holdfast agent on the machine, or look at its network with holdfast doctor there",
			})
			return false
		}
		if m.Since != nil {
			w.report.Since = *m.Since
		}
		detail := string(m.State)
		if m.Version != "" {
			detail += ", agent " + m.Version
		}
		w.ok(Held, time.Since(start), detail)
		return true
	}
	w.fail(Held, time.Since(start), &client.Failure{
		Hop: "relay", Err: errors.New("the account has no machine of this name"),
		Do: "holdfast machines lists what this computer may reach", Denied: true,
	})
	return false
}

// login proves the host key, then this device's key.
func (w *walk) login(ctx context.Context) {
	if w.Key == nil || len(w.HostKeys) == 0 {
		return
	}
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, bannerTimeout)
	defer cancel()
	s, err := w.Dialer.Stream(ctx, w.Target, false)
	if err != nil {
		w.fail(HostKey, time.Since(start), err)
		return
	}
	c, err := sshlink.Dial(ctx, s, sshlink.Options{User: w.User, HostKeys: w.HostKeys, Key: w.Key})
	var key *sshlink.HostKeyError
	switch {
	case err == nil:
		detail := "pinned " + c.HostKey().Fingerprint()
		if c.PostQuantum() {
			detail += ", key exchange safe against recording"
		}
		w.ok(HostKey, time.Since(start), detail)
		w.ok(Login, time.Since(start), "")
		c.Close()
	case errors.As(err, &key):
		w.fail(HostKey, time.Since(start), err)
	case errors.Is(err, sshlink.ErrDenied):
		w.ok(HostKey, time.Since(start), "")
		w.fail(Login, time.Since(start), err)
	default:
		w.fail(HostKey, time.Since(start), err)
	}
}

// skew compares this computer's clock with the relay's Date header. A clock that
// is off makes certificates and tokens look invalid.
func (w *walk) skew(ctx context.Context) {
	if w.HTTP == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(w.Target.Relay, "/")+"/healthz", nil)
	if err != nil {
		return
	}
	start := time.Now()
	resp, err := w.HTTP.Do(req)
	if err != nil {
		return // the walk has said what is wrong with the path
	}
	resp.Body.Close()
	date, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return
	}
	middle := start.Add(time.Since(start) / 2)
	if skew := middle.Sub(date); skew > skewLimit || skew < -skewLimit {
		w.report.Skew = skew.Round(time.Second)
	}
}
