package reach

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/wire"
)

// Clean makes text of a peer safe to show: an answer that repeats our own
// token must not bring it into a log.
func (a *Attempt) Clean(s string) string {
	if secret := a.o.Token.Secret(); secret != "" {
		s = strings.ReplaceAll(s, secret, a.o.Token.String())
	}
	return safe(s)
}

func safe(s string) string { return wire.CleanReason(s) }

// explain turns what went wrong into an error that names the hop.
func (a *Attempt) explain(resp *http.Response, err error) error {
	out := &DialError{Hop: a.at(), Host: hostPort(a.target), Err: err}
	if resp != nil {
		out.Hop = HopUpgrade
		out.Err, out.Hint = a.answer(resp)
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
	if a.proxy != nil && (out.Hop == HopDNS || out.Hop == HopTCP || out.Hop == HopProxy) {
		out.Err = fmt.Errorf("via proxy %s: %w", proxyAddr(a.proxy), out.Err)
		out.Hint = "look at HTTPS_PROXY and NO_PROXY"
	}
	var proxyErr *ProxyError
	if errors.As(err, &proxyErr) {
		out.Hint = proxyErr.hint()
		return out
	}
	a.explainTLS(out)
	return out
}

// explainTLS names who signed a certificate that is not accepted, and a peer
// that does not speak TLS at all.
func (a *Attempt) explainTLS(out *DialError) {
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
func (a *Attempt) answer(resp *http.Response) (err error, hint string) {
	code := wire.Refusal(safe(resp.Header.Get(wire.HeaderRefusal)))
	if code == "" {
		if foreign := a.foreign(resp); foreign != nil {
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
		refusal.Line = a.Clean(line)
	}
	return refusal, ""
}

// foreign recognises answers that no relay gives.
func (a *Attempt) foreign(resp *http.Response) error {
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
