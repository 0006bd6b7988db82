package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"time"

	"golang.org/x/net/http/httpproxy"

	"holdfast/internal/liveness"
	"holdfast/internal/sshlink"
	"holdfast/internal/wire"
	"holdfast/internal/wsconn"
)

// Dialer reaches machines through their relays. Its zero value uses no proxy,
// and plain http to this computer only.
type Dialer struct {
	// Proxy holds the values of HTTPS_PROXY, HTTP_PROXY and NO_PROXY.
	Proxy        *httpproxy.Config
	InsecureHTTP bool
	// Keepalive sends a ping this often, at least each 5 s; zero means each 15 s.
	// It goes on while nobody reads the stream, which is all that then tells the
	// relay that this side is alive.
	Keepalive time.Duration
	Log       *slog.Logger // may be nil
	// DialContext replaces net.Dialer; tests set it.
	DialContext func(ctx context.Context, network, addr string) (net.Conn, error)
	// OnStage hears how each hop of a stream's dial went; may be nil.
	OnStage func(hop wsconn.Hop, took time.Duration, err error)
}

// Target is one service of one machine.
type Target struct {
	Relay   string
	Token   wire.Token
	Machine wire.MachineID
	Service wire.ServiceName // empty: the machine's own sshd
	// Name is what the person calls the machine, for errors; empty means Machine.
	Name string
}

// Target is the target of a service of m.
func (m Machine) Target(service wire.ServiceName) (Target, error) {
	token, err := wire.ParseToken(m.Token)
	if err != nil {
		return Target{}, fmt.Errorf("the stored token of %q: %w", m.Name, err)
	}
	return Target{Relay: m.Relay, Token: token, Machine: m.Machine, Service: service, Name: m.Name}, nil
}

func (t Target) name() string {
	if t.Name != "" {
		return t.Name
	}
	return string(t.Machine)
}

// Stream opens a stream to t. typing says that a person may be typing on it.
// That it is open does not mean that the machine is there: the relay says so by
// how it closes. Every error, those of Read included, is for Diagnose.
func (d Dialer) Stream(ctx context.Context, t Target, typing bool) (*wsconn.Stream, error) {
	relay, err := ParseRelayURL(t.Relay, d.InsecureHTTP)
	if err != nil {
		return nil, err
	}
	cfg := liveness.Data()
	if d.Keepalive != 0 {
		if cfg, err = cfg.WithKeepalive(d.Keepalive); err != nil {
			return nil, err
		}
	}
	if typing {
		cfg = cfg.WithTyping()
	}
	return wsconn.DialStream(ctx, wsconn.Options{
		Relay: relay, Path: wire.ConnectPath(t.Machine, t.Service), Token: t.Token,
		Proxy: d.Proxy, InsecureHTTP: d.InsecureHTTP, Log: d.Log, OnStage: d.OnStage, DialContext: d.DialContext,
	}, wsconn.StreamOptions{Side: wsconn.DeviceSide, Base64Compat: true, Liveness: &cfg})
}

// API is the interface of the relay of t.
func (d Dialer) API(t Target) (*API, error) {
	relay, err := ParseRelayURL(t.Relay, d.InsecureHTTP)
	if err != nil {
		return nil, err
	}
	return NewAPI(APIOptions{Relay: relay, Token: t.Token, Proxy: d.Proxy})
}

// Failure is an error with the hop at which a stream failed and what to do.
type Failure struct {
	Hop    string // "relay relay.example", "machine mini", "sshd of mini"
	Err    error
	Do     string // one clause; may be empty
	Denied bool   // asking again as things are is useless
}

// Error is one line: the hop, what happened, what to do.
func (f *Failure) Error() string {
	if f.Do == "" {
		return f.Hop + ": " + f.Err.Error()
	}
	return f.Hop + ": " + f.Err.Error() + "; " + f.Do
}

func (f *Failure) Unwrap() error { return f.Err }

// What to do, where the same goes for several errors.
const (
	doPairAgain = "pair again: holdfast pair on the machine, holdfast join LINK here"
	doWait      = "try again in a moment"
	doUpdate    = "update holdfast on this computer or at the relay"
)

// Diagnose finds the hop in what ended a stream to t, and what to do.
func Diagnose(err error, t Target) *Failure {
	var f *Failure
	if errors.As(err, &f) {
		return f
	}
	relay := "relay"
	if u, parseErr := url.Parse(t.Relay); parseErr == nil && u.Host != "" {
		relay += " " + u.Host
	}
	atRelay := func(err error, do string, denied bool) *Failure {
		return &Failure{Hop: relay, Err: err, Do: do, Denied: denied}
	}
	var (
		refusal *wsconn.Refusal
		closed  *wsconn.CloseError
		dial    *wsconn.DialError
		hostKey *sshlink.HostKeyError
	)
	switch {
	case errors.As(err, &refusal):
		return diagnoseRefusal(refusal, atRelay)
	case errors.As(err, &dial):
		do := dial.Hint
		if do == "" {
			do = "check this computer's network and the relay's address"
		}
		return atRelay(fmt.Errorf("%s: %w", dial.Hop, dial.Err), do, false)
	case errors.Is(err, wsconn.ErrPlainHTTP):
		return atRelay(err, "", true)
	case errors.As(err, &hostKey):
		return &Failure{Hop: "host key of " + t.name(), Err: err, Denied: true}
	case errors.Is(err, sshlink.ErrDenied):
		return &Failure{Hop: serviceWords(t), Err: err, Do: doPairAgain, Denied: true}
	case errors.As(err, &closed):
		return diagnoseClose(closed, t, atRelay)
	case errors.Is(err, wsconn.ErrDead):
		return atRelay(err, "check this computer's network, then connect again", false)
	}
	return atRelay(err, "", false)
}

func serviceWords(t Target) string {
	if t.Service == "" {
		return "sshd of " + t.name()
	}
	return "service " + string(t.Service) + " of " + t.name()
}

func diagnoseRefusal(r *wsconn.Refusal, at func(error, string, bool) *Failure) *Failure {
	if !r.Believed() {
		return at(r, "something between here and the relay answered: a captive portal or a proxy", false)
	}
	switch r.Code {
	case wire.RefusalTokenMissing, wire.RefusalTokenUnknown, wire.RefusalTokenExpired, wire.RefusalTokenRevoked:
		return at(r, doPairAgain, true)
	case wire.RefusalNotAllowed:
		return at(r, "holdfast machines lists what this computer may reach", true)
	case wire.RefusalLimit:
		if r.RetryAfter > 0 {
			return at(r, fmt.Sprintf("try again in %d s", int(r.RetryAfter.Seconds())), false)
		}
		return at(r, doWait, false)
	case wire.RefusalVersion:
		return at(r, doUpdate, true)
	case wire.RefusalUnavailable:
		return at(r, doWait, false)
	case wire.RefusalSyntax:
		return at(r, "let the proxy in front of the relay pass Upgrade and Connection on, or update holdfast", false)
	}
	return at(r, "", false)
}

func diagnoseClose(c *wsconn.CloseError, t Target, at func(error, string, bool) *Failure) *Failure {
	switch c.Code {
	case wire.CloseTryLater:
		return &Failure{Hop: "machine " + t.name(), Err: c, Do: "start holdfast up or holdfast agent there, or check its network"}
	case wire.CloseNoDialBack:
		return &Failure{Hop: "machine " + t.name(), Err: c, Do: "its agent is connected but does not answer; look at its log"}
	case wire.CloseServiceRefused:
		return &Failure{Hop: serviceWords(t), Err: c, Do: "start that service on the machine, or use its built-in server with --service ssh"}
	case wire.CloseNotFound:
		return &Failure{Hop: serviceWords(t), Err: c, Do: "holdfast machines lists the machines and their services", Denied: true}
	case wire.CloseForbidden:
		return &Failure{Hop: serviceWords(t), Err: c, Do: "the machine does not allow it", Denied: true}
	case wire.CloseUnauthorized:
		return at(c, doPairAgain, true)
	case wire.CloseVersion:
		return at(c, doUpdate, true)
	case wire.ClosePolicy:
		return at(c, "", true)
	case wire.CloseLimit, wire.CloseRestart, wire.CloseGoingAway, wire.CloseInternal:
		return at(c, doWait, false)
	}
	return at(c, "connect again", false)
}
