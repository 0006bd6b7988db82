package reach

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/proxy"
)

// proxyFor finds the proxy for target, or nil.
func (o *Options) proxyFor(target *url.URL) (*url.URL, error) {
	if o.Proxy == nil {
		return nil, nil
	}
	// A value that cannot be parsed would be passed over in silence, and the
	// person would wonder why the direct path is blocked.
	for _, v := range []string{o.Proxy.HTTPSProxy, o.Proxy.HTTPProxy} {
		if err := checkProxy(v); err != nil {
			return nil, err
		}
	}
	return o.Proxy.ProxyFunc()(target)
}

func checkProxy(value string) error {
	if value == "" {
		return nil
	}
	if !strings.Contains(value, "://") {
		value = "http://" + value
	}
	u, err := url.Parse(value)
	if err != nil || u.Host == "" {
		return errors.New("the proxy setting is not a URL: write http://HOST:PORT") // value may hold a password
	}
	switch u.Scheme {
	case "http", "https", "socks5", "socks5h":
		return nil
	}
	return fmt.Errorf("the proxy setting has scheme %q: http, https and socks5 are understood", u.Scheme)
}

func proxyAddr(u *url.URL) string {
	port := u.Port()
	if port == "" {
		switch u.Scheme {
		case "https":
			port = "443"
		case "socks5", "socks5h":
			port = "1080"
		default:
			port = "80"
		}
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// throughProxy makes conn, a connection to the proxy p, one to addr.
func (a *Attempt) throughProxy(ctx context.Context, p *url.URL, conn net.Conn, addr string) (net.Conn, error) {
	a.enter(HopProxy)
	var err error
	switch p.Scheme {
	case "socks5", "socks5h":
		conn, err = socks(ctx, p, conn, addr)
	case "https":
		config := &tls.Config{}
		if a.o.TLS != nil {
			config = a.o.TLS.Clone()
		}
		config.ServerName = p.Hostname()
		config.NextProtos = []string{"http/1.1"}
		secure := tls.Client(conn, config)
		if err = secure.HandshakeContext(ctx); err == nil {
			conn, err = secure, connect(ctx, p, secure, addr)
		}
	default:
		err = connect(ctx, p, conn, addr)
	}
	if err != nil {
		return nil, &hopError{HopProxy, err}
	}
	return conn, nil
}

// connect sends CONNECT and reads the answer.
func connect(ctx context.Context, p *url.URL, conn net.Conn, addr string) error {
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()

	req := &http.Request{
		Method: http.MethodConnect,
		URL:    &url.URL{Opaque: addr},
		Host:   addr,
		Header: http.Header{"User-Agent": {userAgent}},
	}
	if p.User != nil {
		password, _ := p.User.Password()
		basic := base64.StdEncoding.EncodeToString([]byte(p.User.Username() + ":" + password))
		req.Header.Set("Proxy-Authorization", "Basic "+basic)
	}
	if err := req.Write(conn); err != nil {
		return fmt.Errorf("send CONNECT: %w", err)
	}
	br := bufio.NewReader(io.LimitReader(conn, maxHeaderBytes))
	resp, err := http.ReadResponse(br, req)
	if err != nil {
		return fmt.Errorf("read the answer to CONNECT: %w", err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return &ProxyError{Proxy: proxyAddr(p), Status: resp.StatusCode, Schemes: authSchemes(resp.Header)}
	}
	if br.Buffered() > 0 {
		// Nobody speaks before we do, on TLS and on HTTP.
		return errors.New("the proxy sent bytes after its answer to CONNECT")
	}
	if !stop() {
		return context.Cause(ctx)
	}
	return nil
}

func authSchemes(h http.Header) []string {
	var out []string
	for _, v := range h.Values("Proxy-Authenticate") {
		scheme, _, _ := strings.Cut(strings.TrimSpace(v), " ")
		scheme = strings.ToLower(scheme)
		if scheme != "" && len(scheme) <= 32 && len(out) < 8 && !slices.Contains(out, scheme) {
			out = append(out, safe(scheme))
		}
	}
	return out
}

// already hands out a connection that exists: the SOCKS code wants to dial.
type already struct{ net.Conn }

func (a already) Dial(string, string) (net.Conn, error) { return a.Conn, nil }
func (a already) DialContext(context.Context, string, string) (net.Conn, error) {
	return a.Conn, nil
}

func socks(ctx context.Context, p *url.URL, conn net.Conn, addr string) (net.Conn, error) {
	var auth *proxy.Auth
	if p.User != nil {
		password, _ := p.User.Password()
		auth = &proxy.Auth{User: p.User.Username(), Password: password}
	}
	d, err := proxy.SOCKS5("tcp", proxyAddr(p), auth, already{conn})
	if err != nil {
		return nil, err
	}
	if c, ok := d.(proxy.ContextDialer); ok {
		return c.DialContext(ctx, "tcp", addr)
	}
	return d.Dial("tcp", addr)
}

// hintFor says what a person can do about the proxy's answer.
func (e *ProxyError) hint() string {
	switch {
	case e.Status != http.StatusProxyAuthRequired:
		return "ask whoever runs the proxy to allow CONNECT to this host and port, or list the host in NO_PROXY if it can be reached directly"
	case len(e.Schemes) > 0 && !slices.Contains(e.Schemes, "basic"):
		return "this proxy wants " + strings.Join(e.Schemes, " or ") + ", which needs a local helper such as cntlm or px: run one and point HTTPS_PROXY at it"
	default:
		return "the proxy wants a name and a password: set HTTPS_PROXY=http://NAME:PASSWORD@" + e.Proxy
	}
}
