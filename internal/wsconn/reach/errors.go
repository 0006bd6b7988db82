package reach

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"holdfast/internal/wire"
)

// Hop names the layer of a path at which a dial failed, in the order in which
// a dial meets them.
type Hop string

// The hops of a dial.
const (
	HopDNS     Hop = "dns"     // looking the name up
	HopTCP     Hop = "tcp"     // connecting to the relay, or to the proxy
	HopProxy   Hop = "proxy"   // what the HTTP proxy said
	HopTLS     Hop = "tls"     // handshake and certificate
	HopUpgrade Hop = "upgrade" // the HTTP answer to the upgrade
)

// ErrPlainHTTP says that the relay's URL is plain http or ws to a host that
// is not this computer, where a token would travel readable.
var ErrPlainHTTP = errors.New("plain http beyond this computer would send the token readable; use https, or allow it with --insecure-http")

// DialError says at which hop a dial failed and, where there is something to
// do, what. It never holds a token. errors.As finds the more exact *Refusal,
// *CertificateError, *ProxyError and *NotRelayError inside.
type DialError struct {
	Hop  Hop
	Host string // host:port that was dialled
	Hint string // what to do, one sentence; may be empty
	Err  error
}

func (e *DialError) Error() string {
	return fmt.Sprintf("connect to %s: %s: %v", e.Host, e.Hop, e.Err)
}

func (e *DialError) Unwrap() error { return e.Err }

// HintOf returns what err advises, or "".
func HintOf(err error) string {
	var d *DialError
	if errors.As(err, &d) {
		return d.Hint
	}
	return ""
}

// Refusal is an HTTP answer other than 101 that may be the relay's.
type Refusal struct {
	Status int
	// Code is the Holdfast-Refusal header; empty where the answer carries none.
	Code wire.Refusal
	// Line is the first line of the body, made safe to show.
	Line string
	// RetryAfter is zero where the answer names no delay, else at most an hour.
	RetryAfter time.Duration
}

// Believed reports whether the answer is the relay's own. A captive portal or a
// firewall says 401 and 403 too, and knows nothing of tokens.
func (e *Refusal) Believed() bool { return e.Code != "" }

func (e *Refusal) Error() string {
	s := fmt.Sprintf("refused with %d", e.Status)
	if e.Code != "" {
		s += " " + string(e.Code)
	}
	if e.Line != "" {
		s += ": " + e.Line
	}
	if !e.Believed() {
		s += " (not said by a relay of ours)"
	}
	return s
}

// NotRelayError is an answer that no relay gives: a redirect, a page, a 200
// where an upgrade was asked for, an upgrade that is none.
type NotRelayError struct {
	Status   int
	Location string // host of a redirect, without path and query
	HTML     bool
	What     string
}

func (e *NotRelayError) Error() string {
	if e.Location != "" {
		return fmt.Sprintf("answered %d, a redirect to %s", e.Status, e.Location)
	}
	if e.HTML {
		return fmt.Sprintf("answered %d with a web page", e.Status)
	}
	return fmt.Sprintf("answered %d: %s", e.Status, e.What)
}

// CertificateError is a certificate that does not lead to a root this computer
// trusts, or is not for the host. Issuer names who signed it: where it is a
// company's or a product's name, something on the way opens TLS.
type CertificateError struct {
	Issuer  string
	Subject string
	// ClockOff says that the certificate is not valid at this computer's time:
	// expired, or the clock is wrong.
	ClockOff bool
	Err      error
}

func (e *CertificateError) Error() string {
	if e.Issuer == "" {
		return "certificate not accepted: " + e.Err.Error()
	}
	return fmt.Sprintf("certificate issued by %q not accepted: %v", e.Issuer, e.Err)
}

func (e *CertificateError) Unwrap() error { return e.Err }

// ProxyError is what the HTTP proxy said instead of 200.
type ProxyError struct {
	Proxy  string // host:port; never the user and password of its URL
	Status int
	// Schemes are those of Proxy-Authenticate, lower case: basic, ntlm, …
	Schemes []string
}

func (e *ProxyError) Error() string {
	s := fmt.Sprintf("proxy %s answered CONNECT with %d", e.Proxy, e.Status)
	if len(e.Schemes) > 0 {
		s += " (asks for " + strings.Join(e.Schemes, ", ") + ")"
	}
	return s
}
