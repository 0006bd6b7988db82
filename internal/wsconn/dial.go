package wsconn

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/wire"
)

// userAgent names us to proxies, some of which refuse requests without a name.
const userAgent = "holdfast"

// dialing is one dial.
type dialing struct {
	o      *Options
	target *url.URL
	proxy  *url.URL
	ctx    context.Context

	mu    sync.Mutex
	raw   *meter // the TCP connection, once there is one
	over  bool   // the dial has ended: a connection that comes now is closed
	hop   Hop
	since time.Time

	link *link // set by RoundTrip, which the WebSocket code calls in Dial's goroutine
}

// hopError carries the hop of an error through net/http.
type hopError struct {
	hop Hop
	err error
}

func (e *hopError) Error() string { return e.err.Error() }
func (e *hopError) Unwrap() error { return e.err }

// dial connects and upgrades. Its error is a *DialError, ctx's cause, or one
// that wraps ErrPlainHTTP or wire.ErrSyntax.
func dial(ctx context.Context, o *Options) (*conn, error) {
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
	outer := ctx
	ctx, cancel := context.WithTimeoutCause(ctx, timeout,
		fmt.Errorf("no answer within %v: %w", timeout, context.DeadlineExceeded))
	defer cancel()

	d := &dialing{o: o, target: target, proxy: proxy}
	d.ctx = httptrace.WithClientTrace(ctx, d.trace())
	c, resp, err := d.upgrade()
	if err == nil {
		d.finish(nil)
		return c, nil
	}
	if outer.Err() != nil {
		err = context.Cause(outer)
		d.finish(err)
		return nil, fmt.Errorf("connect to %s: %w", hostPort(target), err)
	}
	if resp == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	failure := d.explain(resp, err)
	d.finish(failure)
	return nil, failure
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
func (d *dialing) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		DNSStart: func(httptrace.DNSStartInfo) { d.enter(HopDNS) },
		DNSDone: func(i httptrace.DNSDoneInfo) {
			if i.Err == nil {
				d.enter(HopTCP)
			}
		},
		TLSHandshakeStart: func() { d.enter(HopTLS) },
		GotConn:           func(httptrace.GotConnInfo) { d.enter(HopUpgrade) },
	}
}

// enter ends the present hop well and begins the next one.
func (d *dialing) enter(hop Hop) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hop == hop || d.over {
		return
	}
	d.report(nil)
	d.hop, d.since = hop, time.Now()
}

// report is called with mu held.
func (d *dialing) report(err error) {
	if d.hop != "" && d.o.OnStage != nil {
		d.o.OnStage(d.hop, time.Since(d.since), err)
	}
}

func (d *dialing) at() Hop {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hop == "" {
		return HopTCP
	}
	return d.hop
}

// finish ends the dial. After a failure nothing of it stays open.
func (d *dialing) finish(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.report(err)
	d.over = true
	if err == nil {
		return
	}
	if d.link != nil {
		d.link.abort()
	}
	if d.raw != nil {
		d.raw.Close()
	}
}

// connect gives net/http its connection. It uses the dial's own context: that
// of net/http goes on after the request was given up.
func (d *dialing) connect(_ context.Context, network, addr string) (net.Conn, error) {
	hop := addr
	if d.proxy != nil {
		hop = proxyAddr(d.proxy)
	}
	dial := d.o.DialContext
	if dial == nil {
		// No TCP keep-alive: the judge knows better, and a link that is to be
		// quiet (a control connection, a measurement of idle limits) must be.
		dial = (&net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: false}, KeepAlive: -1}).DialContext
	}
	d.mu.Lock()
	if d.hop == "" {
		d.hop, d.since = HopTCP, time.Now()
	}
	d.mu.Unlock()
	tcp, err := dial(d.ctx, network, hop)
	if err != nil {
		var dns *net.DNSError
		if errors.As(err, &dns) {
			return nil, &hopError{HopDNS, err}
		}
		return nil, &hopError{HopTCP, err}
	}
	raw := newMeter(tcp)
	d.mu.Lock()
	d.raw = raw
	over := d.over
	d.mu.Unlock()
	if over {
		raw.Close()
		return nil, context.Canceled
	}
	if d.proxy == nil {
		return raw, nil
	}
	return d.throughProxy(d.ctx, d.proxy, raw, addr)
}

// RoundTrip puts our link between the WebSocket code and the connection.
func (d *dialing) RoundTrip(req *http.Request) (*http.Response, error) {
	config := &tls.Config{}
	if d.o.TLS != nil {
		config = d.o.TLS.Clone()
	}
	if config.MinVersion == 0 {
		config.MinVersion = tls.VersionTLS12
	}
	config.NextProtos = []string{"http/1.1"}
	transport := &http.Transport{
		DialContext:            d.connect,
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
	d.mu.Lock()
	raw := d.raw
	d.mu.Unlock()
	d.link = newLink(rwc, raw)
	resp.Body = d.link
	return resp, nil
}

func (d *dialing) upgrade() (*conn, *http.Response, error) {
	c := &conn{clean: d.clean}
	header := http.Header{"User-Agent": {userAgent}}
	for k, v := range d.o.Header {
		header[http.CanonicalHeaderKey(k)] = v
	}
	if !d.o.Token.IsZero() {
		header.Set("Authorization", "Bearer "+d.o.Token.Secret())
	}
	subprotocols := d.o.Subprotocols
	if subprotocols == nil {
		subprotocols = []string{wire.SubprotocolV1}
	}
	ws, resp, err := websocket.Dial(d.ctx, d.target.String(), &websocket.DialOptions{
		HTTPClient: &http.Client{
			Transport: d,
			// A redirect is told, not followed: it would carry the token along.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		HTTPHeader:      header,
		Subprotocols:    subprotocols,
		CompressionMode: websocket.CompressionDisabled,
		OnPingReceived: func(context.Context, []byte) bool {
			c.pinged.Store(true)
			return c.link.roomForControl()
		},
	})
	if err != nil {
		return nil, resp, err
	}
	c.ws, c.link = ws, d.link
	c.version1 = ws.Subprotocol() != ""
	return c, resp, nil
}

// clean makes text of a peer safe to show: an answer that repeats our own
// token must not bring it into a log.
func (d *dialing) clean(s string) string {
	if secret := d.o.Token.Secret(); secret != "" {
		s = strings.ReplaceAll(s, secret, d.o.Token.String())
	}
	return safe(s)
}

func safe(s string) string { return wire.CleanReason(s) }

// explain turns what went wrong into an error that names the hop.
func (d *dialing) explain(resp *http.Response, err error) error {
	out := &DialError{Hop: d.at(), Host: hostPort(d.target), Err: err}
	if resp != nil {
		out.Hop = HopUpgrade
		out.Err, out.Hint = d.answer(resp)
		return out
	}
	var hop *hopError
	if errors.As(err, &hop) {
		out.Hop, out.Err = hop.hop, hop.err
	} else {
		// The text of a *url.Error and of the WebSocket code repeats the URL.
		var u *url.Error
		if errors.As(err, &u) {
			out.Err = u.Err
		}
	}
	if d.proxy != nil && (out.Hop == HopDNS || out.Hop == HopTCP || out.Hop == HopProxy) {
		out.Err = fmt.Errorf("via proxy %s: %w", proxyAddr(d.proxy), out.Err)
		out.Hint = "look at HTTPS_PROXY and NO_PROXY"
	}
	var proxyErr *ProxyError
	if errors.As(err, &proxyErr) {
		out.Hint = proxyErr.hint()
		return out
	}
	d.explainTLS(out)
	return out
}

// explainTLS names who signed a certificate that is not accepted, and a peer
// that does not speak TLS at all.
func (d *dialing) explainTLS(out *DialError) {
	var verify *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	switch {
	case errors.As(out.Err, &verify):
		out.Hop = HopTLS
		cert := &CertificateError{Err: verify.Err}
		if len(verify.UnverifiedCertificates) > 0 {
			cert.Issuer = safe(nameOf(verify.UnverifiedCertificates[0].Issuer.CommonName, verify.UnverifiedCertificates[0].Issuer.Organization))
			cert.Subject = safe(nameOf(verify.UnverifiedCertificates[0].Subject.CommonName, verify.UnverifiedCertificates[0].DNSNames))
		}
		var invalid x509.CertificateInvalidError
		var host x509.HostnameError
		switch {
		case errors.As(verify.Err, &invalid) && invalid.Reason == x509.Expired:
			cert.ClockOff = true
			out.Hint = "the certificate is not valid at this computer's time: look at the clock, then at the relay's certificate"
		case errors.As(verify.Err, &host):
			out.Hint = "the certificate is for another name: look at the relay's address"
		default:
			out.Hint = "if that issuer is a company or a security product, it opens TLS on this network: trust its root on this computer, or have the relay's host excepted"
		}
		out.Err = cert
	case errors.As(out.Err, &record), errors.Is(out.Err, http.ErrSchemeMismatch):
		out.Hop = HopTLS
		out.Err = errors.New("the other side does not speak TLS")
		out.Hint = "is it https? a plain http relay is reached as http://HOST:PORT"
	}
}

func nameOf(name string, others []string) string {
	if name == "" && len(others) > 0 {
		return others[0]
	}
	return name
}

// answer reads an HTTP answer that is no upgrade.
func (d *dialing) answer(resp *http.Response) (err error, hint string) {
	code := wire.Refusal(safe(resp.Header.Get(wire.HeaderRefusal)))
	if code == "" {
		if foreign := d.foreign(resp); foreign != nil {
			return foreign, "something between here and the relay answered: a captive portal, a proxy that does not pass WebSocket, or the address is not a relay's"
		}
	}
	refusal := &Refusal{
		Status:     resp.StatusCode,
		Code:       code,
		RetryAfter: retryAfter(resp.Header.Get("Retry-After"), time.Now()),
	}
	if resp.Body != nil {
		// The WebSocket code has read at most 1 KiB of it.
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
		line, _, _ := strings.Cut(string(body), "\n")
		refusal.Line = d.clean(line)
	}
	return refusal, ""
}

// foreign recognises answers that no relay gives.
func (d *dialing) foreign(resp *http.Response) error {
	status := resp.StatusCode
	switch {
	case status >= 300 && status < 400:
		e := &NotRelayError{Status: status, What: "a redirect to nowhere"}
		if u, err := resp.Location(); err == nil {
			e.Location = safe(u.Host)
		}
		return e
	case strings.Contains(strings.ToLower(resp.Header.Get("Content-Type")), "html"):
		return &NotRelayError{Status: status, HTML: true}
	case status == http.StatusSwitchingProtocols:
		return &NotRelayError{Status: status, What: "an upgrade that is not a WebSocket's (Upgrade or Sec-WebSocket-Accept is missing or wrong)"}
	case status < 300:
		return &NotRelayError{Status: status, What: "no upgrade; something on the way takes the Upgrade header out"}
	}
	return nil
}

// retryAfter reads seconds or a date, and believes an hour at most.
func retryAfter(v string, now time.Time) time.Duration {
	v = strings.TrimSpace(v)
	if v == "" {
		return 0
	}
	seconds, err := strconv.ParseUint(v, 10, 32)
	if errors.Is(err, strconv.ErrRange) {
		return maxRetryAfter
	}
	d := time.Duration(seconds) * time.Second
	if err != nil {
		at, err := http.ParseTime(v)
		if err != nil {
			return 0
		}
		d = at.Sub(now)
	}
	return min(max(d, 0), maxRetryAfter)
}
