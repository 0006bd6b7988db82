package reach

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync"
	"time"

	"holdfast/internal/wire"
	"holdfast/internal/wsconn/link"
)

// userAgent names us to proxies, some of which refuse requests without a name.
const userAgent = "holdfast"

// Attempt is one dial, from Begin to End. It is the http.RoundTripper of its
// one request.
type Attempt struct {
	o      *Options
	target *url.URL
	proxy  *url.URL
	outer  context.Context // the caller's
	ctx    context.Context // with the handshake's time limit and the trace
	cancel context.CancelFunc
	wrap   Wrap

	mu    sync.Mutex
	raw   *link.Meter // the TCP connection, once there is one
	over  bool        // the dial has ended: a connection that comes now is closed
	hop   Hop
	since time.Time
}

// Wrap takes over an upgraded connection, rwc over raw, and gives what the
// WebSocket code is to use instead.
type Wrap func(rwc io.ReadWriteCloser, raw *link.Meter) io.ReadWriteCloser

// hopError carries the hop of an error through net/http.
type hopError struct {
	hop Hop
	err error
}

func (e *hopError) Error() string { return e.err.Error() }
func (e *hopError) Unwrap() error { return e.err }

// Begin prepares a dial; End must follow. The error is a *DialError or wraps
// ErrPlainHTTP or wire.ErrSyntax.
func Begin(ctx context.Context, o *Options, wrap Wrap) (*Attempt, error) {
	target, err := o.target()
	if err != nil {
		return nil, err
	}
	proxy, err := o.proxyFor(target)
	if err != nil {
		return nil, &DialError{Hop: HopProxy, Host: hostPort(target), Err: err,
			Hint: "look at HTTPS_PROXY, HTTP_PROXY and NO_PROXY"}
	}
	timeout := o.HandshakeTimeout
	if timeout <= 0 {
		timeout = handshakeTimeout
	}
	a := &Attempt{o: o, target: target, proxy: proxy, outer: ctx, wrap: wrap}
	limited, cancel := context.WithTimeoutCause(ctx, timeout,
		fmt.Errorf("no answer within %v: %w", timeout, context.DeadlineExceeded))
	a.ctx, a.cancel = httptrace.WithClientTrace(limited, a.trace()), cancel
	return a, nil
}

// Context is what the request is to be made under.
func (a *Attempt) Context() context.Context { return a.ctx }

// URL is what to ask for. It holds no secret.
func (a *Attempt) URL() string { return a.target.String() }

// Client makes the request. It follows no redirect: that would carry the token
// along.
func (a *Attempt) Client() *http.Client {
	return &http.Client{
		Transport:     a,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Header is what the request carries beside the handshake's own headers.
func (a *Attempt) Header() http.Header {
	header := http.Header{"User-Agent": {userAgent}}
	for k, v := range a.o.Header {
		header[http.CanonicalHeaderKey(k)] = v
	}
	if !a.o.Token.IsZero() {
		header.Set("Authorization", "Bearer "+a.o.Token.Secret())
	}
	return header
}

// Subprotocols are those to offer.
func (a *Attempt) Subprotocols() []string {
	if a.o.Subprotocols == nil {
		return []string{wire.SubprotocolV1}
	}
	return a.o.Subprotocols
}

// End ends the dial with what the request gave; the answer may be nil. It
// returns nil for a nil error, a *DialError, or what wraps the cause of the
// caller's context. After an error nothing of the dial stays open.
func (a *Attempt) End(resp *http.Response, err error) error {
	defer a.cancel()
	switch {
	case err == nil:
	case a.outer.Err() != nil:
		err = fmt.Errorf("connect to %s: %w", hostPort(a.target), context.Cause(a.outer))
	default:
		if resp == nil && a.ctx.Err() != nil {
			err = context.Cause(a.ctx)
		}
		err = a.explain(resp, err)
	}
	a.finish(err)
	return err
}

// hostPort is u's host with the port that is dialled.
func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = "443"
		if plain(u) {
			port = "80"
		}
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// trace follows the hops that others walk for us.
func (a *Attempt) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		DNSStart: func(httptrace.DNSStartInfo) { a.enter(HopDNS) },
		DNSDone: func(i httptrace.DNSDoneInfo) {
			if i.Err == nil {
				a.enter(HopTCP)
			}
		},
		TLSHandshakeStart: func() { a.enter(HopTLS) },
		GotConn:           func(httptrace.GotConnInfo) { a.enter(HopUpgrade) },
	}
}

// enter ends the present hop well and begins the next one.
func (a *Attempt) enter(hop Hop) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.hop == hop || a.over {
		return
	}
	a.report(nil)
	a.hop, a.since = hop, time.Now()
}

// report is called with mu held.
func (a *Attempt) report(err error) {
	if a.hop != "" && a.o.OnStage != nil {
		a.o.OnStage(a.hop, time.Since(a.since), err)
	}
}

func (a *Attempt) at() Hop {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.hop == "" {
		return HopTCP
	}
	return a.hop
}

// finish ends the dial. After a failure nothing of it stays open.
func (a *Attempt) finish(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.report(err)
	a.over = true
	if err == nil {
		return
	}
	if a.raw != nil {
		a.raw.Close()
	}
}

// connect gives net/http its connection. It uses the dial's own context: that
// of net/http goes on after the request was given up.
func (a *Attempt) connect(_ context.Context, network, addr string) (net.Conn, error) {
	hop := addr
	if a.proxy != nil {
		hop = proxyAddr(a.proxy)
	}
	dial := a.o.DialContext
	if dial == nil {
		// No TCP keep-alive: the judge knows better, and a link that is to be
		// quiet (a control connection, a measurement of idle limits) must be.
		dial = (&net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: false}, KeepAlive: -1}).DialContext
	}
	a.mu.Lock()
	if a.hop == "" {
		a.hop, a.since = HopTCP, time.Now()
	}
	a.mu.Unlock()
	tcp, err := dial(a.ctx, network, hop)
	if err != nil {
		var dns *net.DNSError
		if errors.As(err, &dns) {
			return nil, &hopError{HopDNS, err}
		}
		return nil, &hopError{HopTCP, err}
	}
	raw := link.NewMeter(tcp)
	a.mu.Lock()
	a.raw = raw
	over := a.over
	a.mu.Unlock()
	if over {
		raw.Close()
		return nil, context.Canceled
	}
	if a.proxy == nil {
		return raw, nil
	}
	return a.throughProxy(a.ctx, a.proxy, raw, addr)
}

// RoundTrip makes the request and hands an upgraded connection to wrap.
func (a *Attempt) RoundTrip(req *http.Request) (*http.Response, error) {
	config := &tls.Config{}
	if a.o.TLS != nil {
		config = a.o.TLS.Clone()
	}
	if config.MinVersion == 0 {
		config.MinVersion = tls.VersionTLS12
	}
	config.NextProtos = []string{"http/1.1"}
	transport := &http.Transport{
		DialContext:            a.connect,
		TLSClientConfig:        config,
		TLSHandshakeTimeout:    handshakeTimeout,
		MaxResponseHeaderBytes: maxHeaderBytes,
		DisableCompression:     true,
		DisableKeepAlives:      true,
	}
	resp, err := transport.RoundTrip(req)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		return resp, err
	}
	rwc, ok := resp.Body.(io.ReadWriteCloser)
	if !ok {
		resp.Body.Close()
		return nil, errors.New("the connection cannot be written after the upgrade")
	}
	a.mu.Lock()
	raw := a.raw
	a.mu.Unlock()
	resp.Body = a.wrap(rwc, raw)
	return resp, nil
}
