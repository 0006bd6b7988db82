// Package up puts relay and agent together into the processes that serve: the
// relay with its store, listeners and certificate; the agent with its identity,
// its SSH server and its pairing links; and both in one, for one person.
//
// It holds no protocol of its own and prints nothing. What a caller will get
// wrong: the state directory must be locked before anything here opens it, and
// the parts end in the reverse order of their start, the store last.
package up

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/acme"
	"holdfast/internal/engine"
	"holdfast/internal/local"
	"holdfast/internal/park"
	"holdfast/internal/relay"
	"holdfast/internal/relay/handover"
	"holdfast/internal/state"
	"holdfast/internal/wsconn"
)

// drainTimeout bounds an orderly end: the relay's own spread of its agents, and
// streams that need a moment to end.
const drainTimeout = 20 * time.Second

// ErrInsecureListen says that an address beyond loopback would speak plain http.
var ErrInsecureListen = errors.New("beyond this computer, plain http would show tokens to the network, and pages need https")

// RelayOptions are those of StartRelay.
type RelayOptions struct {
	StorePath string // required: the SQLite file
	// Dir, locked, gets the socket by which `token list` asks about streams; the
	// zero Dir means none.
	Dir    state.Dir
	Listen string // required: HOST:PORT, port 0 for any
	// PublicURL is where devices reach the relay; nil means where it listens.
	PublicURL *url.URL
	// TLSCert and TLSKey are files; both or none.
	TLSCert, TLSKey string
	// ACME gets the certificate instead; nil means not. Its Log is this one's.
	ACME *acme.Options
	// InsecureHTTP allows plain http beyond loopback.
	InsecureHTTP bool
	// MetricsListen serves /metrics and /debug/pprof there; empty means nowhere.
	MetricsListen  string
	TrustedProxies []netip.Prefix
	Limits         relay.Limits
	Keepalive      time.Duration // zero means the relay's own default
	// Inherited is what a former process has handed over; nil for nothing.
	Inherited *handover.State
	Log       *slog.Logger // required
}

// Relay is a relay that serves.
type Relay struct {
	Store engine.Store
	// Listening is where it listens, Public where devices reach it, and Local
	// where the agent of this very process does.
	Listening, Public, Local *url.URL
	// Metrics is where metrics and profiles are, nil for nowhere.
	Metrics net.Addr
	// Kept says what was taken over; nil without RelayOptions.Inherited.
	Kept *Kept

	listeners []*listener

	relay   *relay.Relay
	router  engine.Router
	log     *slog.Logger
	metrics *http.Server
	acme    *acme.Manager // nil without ACME
	socket  *local.Server // nil without a state directory
	wg      sync.WaitGroup
	failed  chan error // capacity 1
}

// StartRelay opens the store, listens and serves until Close.
func StartRelay(ctx context.Context, o RelayOptions) (_ *Relay, err error) {
	if o.Log == nil || o.StorePath == "" {
		return nil, errors.New("start relay: store and log are required")
	}
	if (o.TLSCert == "") != (o.TLSKey == "") {
		return nil, errors.New("start relay: a certificate needs its key, and a key its certificate")
	}
	if o.ACME != nil {
		if o.TLSCert != "" {
			return nil, errors.New("start relay: a certificate is either in files or gotten by ACME, not both")
		}
		o.ACME.Log = o.Log
		if err := o.ACME.Check(); err != nil {
			return nil, err
		}
	}
	host, _, err := net.SplitHostPort(o.Listen)
	if err != nil {
		return nil, &ListenError{Addr: o.Listen, Err: err}
	}
	behindTLS := o.PublicURL != nil && o.PublicURL.Scheme == "https"
	hasTLS := o.TLSCert != "" || o.ACME != nil
	if !hasTLS && !wsconn.IsLoopback(host) && !o.InsecureHTTP && !behindTLS {
		return nil, fmt.Errorf("listen on %s: %w", o.Listen, ErrInsecureListen)
	}
	r := &Relay{log: o.Log, failed: make(chan error, 1)}
	defer func() {
		if err != nil {
			r.Close()
		}
	}()
	var cert *tls.Certificate
	if o.TLSCert != "" {
		c, err := tls.LoadX509KeyPair(o.TLSCert, o.TLSKey)
		if err != nil {
			return nil, fmt.Errorf("load certificate %s: %w", o.TLSCert, err)
		}
		cert = &c
	}
	// The address first: a taken port is found before anything is made.
	ln, err := r.listen(o.Inherited, o.Listen)
	if err != nil {
		return nil, &ListenError{Addr: o.Listen, Err: err}
	}
	listeners := []net.Listener{ln}
	closeListeners := func() {
		for _, l := range listeners {
			l.Close()
		}
	}
	defer func() {
		if err != nil {
			closeListeners()
		}
	}()
	name := ""
	switch {
	case cert != nil:
		name = certName(cert)
	case o.ACME != nil:
		name = o.ACME.Domain
	}
	r.Listening = listenURL(ln.Addr(), hasTLS, name)
	r.Public = o.PublicURL
	switch {
	case r.Public != nil:
	case o.ACME != nil:
		// The authority has reached that name on 443, whatever leads from there.
		r.Public = &url.URL{Scheme: "https", Host: o.ACME.Domain}
	default:
		r.Public = r.Listening
	}
	r.Local = r.Listening
	if hasTLS || !wsconn.IsLoopback(r.Listening.Hostname()) {
		// The agent of this process comes in plain over loopback whatever the
		// world sees: it need not trust the certificate, and the public name need
		// not lead back here.
		inner, err := r.listen(o.Inherited, "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("listen for this computer's agent: %w", err)
		}
		listeners = append(listeners, inner)
		r.Local = &url.URL{Scheme: "http", Host: inner.Addr().String()}
	}
	if r.Store, err = engine.OpenSQLite(ctx, o.StorePath, engine.SQLiteOptions{Log: o.Log}); err != nil {
		return nil, err
	}
	registry := prometheus.NewRegistry()
	r.router = engine.NewMemoryRouter()
	if r.relay, err = relay.New(relay.Options{
		Store: r.Store, Router: r.router, Log: o.Log, Metrics: registry,
		TrustedProxies: o.TrustedProxies, Limits: o.Limits,
		Keepalive: o.Keepalive, ControlKeepalive: o.Keepalive, Inherited: o.Inherited,
	}); err != nil {
		return nil, err
	}
	if o.Dir != (state.Dir{}) {
		if r.socket, err = local.ServeRelay(o.Dir, r.answer, o.Log); err != nil {
			return nil, err
		}
	}
	if o.MetricsListen != "" {
		if err := r.serveMetrics(o.MetricsListen, registry); err != nil {
			return nil, err
		}
	}
	switch {
	case cert != nil:
		listeners[0] = park.NewListener(ln, &tls.Config{
			Certificates: []tls.Certificate{*cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		})
	case o.ACME != nil:
		if r.acme, err = acme.New(*o.ACME, ln.Addr()); err != nil {
			return nil, err
		}
		listeners[0] = park.NewListener(ln, r.acme.TLSConfig())
	}
	for _, l := range listeners {
		// Ended by relay.Close, which closes l; waited for by Close.
		r.wg.Go(func() {
			if err := r.relay.Serve(l); err != nil {
				r.fail(err)
			}
		})
	}
	if r.acme != nil {
		// Now that somebody answers where the authority will dial.
		if err := r.acme.Manage(); err != nil {
			return nil, err
		}
	}
	r.noteKept(o.Inherited)
	return r, nil
}

// ListenError says that an address cannot be listened on.
type ListenError struct {
	Addr string
	Err  error
}

func (e *ListenError) Error() string {
	// The cause repeats the address.
	cause := e.Err
	var op *net.OpError
	if errors.As(e.Err, &op) {
		cause = op.Err
	}
	return fmt.Sprintf("listen on %s: %v", e.Addr, cause)
}

func (e *ListenError) Unwrap() error { return e.Err }

// listenURL is the URL of a listener: with TLS and a name that name, for "all
// addresses" this computer's own.
func listenURL(addr net.Addr, hasTLS bool, name string) *url.URL {
	u := &url.URL{Scheme: "http", Host: addr.String()}
	host, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		return u
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() {
		host = outwardAddr()
	}
	if !hasTLS {
		u.Host = net.JoinHostPort(host, port)
		return u
	}
	u.Scheme = "https"
	if name != "" {
		host = name
	}
	u.Host = net.JoinHostPort(host, port)
	if port == "443" {
		u.Host = strings.TrimSuffix(u.Host, ":443")
	}
	return u
}

// certName is the first name of a certificate that names one host.
func certName(cert *tls.Certificate) string {
	leaf := cert.Leaf
	if leaf == nil && len(cert.Certificate) > 0 {
		var err error
		if leaf, err = x509.ParseCertificate(cert.Certificate[0]); err != nil {
			return ""
		}
	}
	if leaf == nil {
		return ""
	}
	for _, name := range leaf.DNSNames {
		if !strings.Contains(name, "*") {
			return name
		}
	}
	for _, ip := range leaf.IPAddresses {
		return ip.String()
	}
	return ""
}

// outwardAddr is an address of this computer that others may reach, or
// loopback: the first one that is up, IPv4 before IPv6.
func outwardAddr() string {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return "127.0.0.1"
	}
	found := "127.0.0.1"
	for _, a := range addrs {
		prefix, err := netip.ParsePrefix(a.String())
		if err != nil || !prefix.Addr().IsGlobalUnicast() {
			continue
		}
		if prefix.Addr().Is4() {
			return prefix.Addr().String()
		}
		if found == "127.0.0.1" {
			found = prefix.Addr().String()
		}
	}
	return found
}

func (r *Relay) fail(err error) {
	select {
	case r.failed <- err:
	default: // the first one ends the process
	}
}

// Failed gives the error that ended a listener, if one does.
func (r *Relay) Failed() <-chan error { return r.failed }

// Close ends the relay at once and closes its store.
func (r *Relay) Close() error {
	if r.socket != nil {
		r.socket.Close()
	}
	if r.acme != nil {
		r.acme.Close()
	}
	if r.relay != nil {
		r.relay.Close()
	}
	if r.metrics != nil {
		r.metrics.Close()
	}
	r.wg.Wait()
	var errs []error
	if r.router != nil {
		errs = append(errs, r.router.Close())
	}
	if r.Store != nil {
		errs = append(errs, r.Store.Close())
	}
	return errors.Join(errs...)
}

// Drain ends the relay in order: agents are told to come back, streams end with
// 1012, and the store is closed. The error also says where a peer had to be
// dropped.
func (r *Relay) Drain() error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), drainTimeout,
		fmt.Errorf("they did not end within %v, and were dropped", drainTimeout))
	defer cancel()
	drained := r.relay.Drain(ctx)
	return errors.Join(drained, r.Close())
}
