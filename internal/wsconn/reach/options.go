// Package reach gets from this computer to a relay's answer: name, TCP, proxy,
// TLS and the HTTP answer to an upgrade. Where it does not get there it says at
// which hop, why, and what to do.
//
// It never follows a redirect, which would carry the token along, never reads
// the environment, and never puts a token or a proxy's password into an error.
// What a caller will get wrong: a 401 or 403 is the relay's only if
// Refusal.Believed says so.
package reach

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"golang.org/x/net/http/httpproxy"

	"holdfast/internal/wire"
)

const (
	// handshakeTimeout bounds a dial from the name look-up to the 101. At half,
	// a phone's first packets over a bad cell are called a failure; at double, a
	// mute edge costs 20 s of every attempt.
	handshakeTimeout = 10 * time.Second
	// maxHeaderBytes bounds an answer's header.
	maxHeaderBytes = 32 << 10
	// maxRetryAfter bounds the delay that an answer can ask for.
	maxRetryAfter = time.Hour
)

// Options say where and how to connect. They hold no secret but Token.
type Options struct {
	// Relay is the relay's base URL, required: https or wss, or http or ws on
	// loopback. It may have a path prefix, but no user, query or fragment.
	Relay *url.URL
	// Path is what wire's path functions give, required; it may have a query.
	Path string
	// Token is sent as Authorization: Bearer. Zero sends none.
	Token wire.Token
	// Subprotocols to offer; nil offers wire.SubprotocolV1.
	Subprotocols []string
	// Header is sent too: Holdfast-Instance and Holdfast-Attempt. May be nil.
	Header http.Header
	// Proxy holds the values of HTTPS_PROXY, HTTP_PROXY and NO_PROXY; nil uses
	// none.
	Proxy *httpproxy.Config
	// TLS is cloned for each dial; nil trusts the system's roots.
	TLS *tls.Config
	// HandshakeTimeout bounds the whole dial; zero means 10 s.
	HandshakeTimeout time.Duration
	// InsecureHTTP allows plain http and ws beyond loopback.
	InsecureHTTP bool
	// MaxMessageBytes bounds what a control connection reads in one message; zero
	// means wire.MaxControlBytes.
	MaxMessageBytes int
	// DialContext replaces net.Dialer, which looks names up anew for each dial
	// and races IPv6 and IPv4 (RFC 8305). Nil uses net.Dialer.
	DialContext func(ctx context.Context, network, addr string) (net.Conn, error)
	// OnStage hears how long each hop took and how it ended, one call at a time;
	// it must not block. May be nil.
	OnStage func(hop Hop, took time.Duration, err error)
	// Log may be nil.
	Log *slog.Logger
}

// CheckRelay says what is wrong with a relay's base URL, or nil: ErrPlainHTTP,
// or an error that wraps wire.ErrSyntax. It never repeats a user or password.
func CheckRelay(u *url.URL, insecureHTTP bool) error {
	if u == nil {
		return fmt.Errorf("relay URL is missing: %w", wire.ErrSyntax)
	}
	switch u.Scheme {
	case "https", "wss", "http", "ws":
	default:
		return fmt.Errorf("relay URL has scheme %q, want https: %w", u.Scheme, wire.ErrSyntax)
	}
	switch {
	case u.Hostname() == "":
		return fmt.Errorf("relay URL has no host: %w", wire.ErrSyntax)
	case u.User != nil:
		return fmt.Errorf("relay URL must not hold a user or password: %w", wire.ErrSyntax)
	case u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("relay URL must not have a query or fragment: %w", wire.ErrSyntax)
	}
	if plain(u) && !insecureHTTP && !IsLoopback(u.Hostname()) {
		return fmt.Errorf("relay %s: %w", u.Host, ErrPlainHTTP)
	}
	return nil
}

func plain(u *url.URL) bool { return u.Scheme == "http" || u.Scheme == "ws" }

// IsLoopback reports whether host is this computer by its name or address:
// localhost, names under it (RFC 6761), 127.0.0.0/8 and ::1.
func IsLoopback(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// target is the http or https URL of a dial.
func (o *Options) target() (*url.URL, error) {
	if err := CheckRelay(o.Relay, o.InsecureHTTP); err != nil {
		return nil, err
	}
	path, query, _ := strings.Cut(o.Path, "?")
	if !strings.HasPrefix(path, "/") {
		return nil, fmt.Errorf("path %q does not start with /: %w", path, wire.ErrSyntax)
	}
	u := &url.URL{Scheme: "https", Host: o.Relay.Host, RawQuery: query}
	if plain(o.Relay) {
		u.Scheme = "http"
	}
	u.Path = strings.TrimSuffix(o.Relay.Path, "/") + path
	return u, nil
}
