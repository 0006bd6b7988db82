package wsconn

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/net/http/httpproxy"

	"holdfast/internal/liveness"
	"holdfast/internal/wire"
)

// dialTo is one DialStream whose stream, if any, is closed.
func dialTo(t *testing.T, o Options) error {
	t.Helper()
	s, err := DialStream(t.Context(), o, StreamOptions{Side: DeviceSide, Liveness: dataConfig()})
	if err == nil {
		s.CloseNow()
		return nil
	}
	for _, secret := range []string{testToken.Secret(), "s3cret"} {
		if strings.Contains(err.Error()+HintOf(err), secret) {
			t.Errorf("a secret is in the error: %v", err)
		}
	}
	return err
}

func hopOf(t *testing.T, err error) Hop {
	t.Helper()
	var d *DialError
	if !errors.As(err, &d) {
		t.Fatalf("not a DialError: %v", err)
	}
	return d.Hop
}

func TestAnswersThatAreRefusals(t *testing.T) {
	tests := []struct {
		name   string
		status int
		header map[string]string
		body   string
		want   Refusal
	}{
		{"the relay's own", 401, map[string]string{wire.HeaderRefusal: "token-revoked"}, "token revoked\nmore", Refusal{Status: 401, Code: "token-revoked", Line: "token revoked"}},
		{"a captive portal's", 401, nil, "log in first", Refusal{Status: 401, Line: "log in first"}},
		{"a firewall's", 403, nil, "", Refusal{Status: 403}},
		{"a limit", 429, map[string]string{wire.HeaderRefusal: "limit", "Retry-After": "7"}, "slow down", Refusal{Status: 429, Code: "limit", Line: "slow down", RetryAfter: 7 * time.Second}},
		{"a limit for ever", 429, map[string]string{wire.HeaderRefusal: "limit", "Retry-After": "99999999"}, "", Refusal{Status: 429, Code: "limit", RetryAfter: time.Hour}},
		{"an echo of the token", 400, map[string]string{wire.HeaderRefusal: "syntax"}, "bad token " + testToken.Secret(), Refusal{Status: 400, Code: "syntax", Line: "bad token hf_redacted"}},
		{"control characters", 503, map[string]string{wire.HeaderRefusal: "unavailable"}, "a\x1b[31mb\u202ec", Refusal{Status: 503, Code: "unavailable", Line: "a[31mbc"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			relay := serve(t, func(w http.ResponseWriter, r *http.Request) {
				for k, v := range tt.header {
					w.Header().Set(k, v)
				}
				w.Header().Set("Content-Type", "text/plain")
				w.WriteHeader(tt.status)
				io.WriteString(w, tt.body)
			})
			err := dialTo(t, relay.options())
			var got *Refusal
			if !errors.As(err, &got) || *got != tt.want || hopOf(t, err) != HopUpgrade {
				t.Errorf("got %v (%+v), want %+v", err, got, tt.want)
			}
			if got != nil && got.Believed() != (tt.header[wire.HeaderRefusal] != "") {
				t.Errorf("Believed is %v", got.Believed())
			}
		})
	}
}

func TestAnswersThatNoRelayGives(t *testing.T) {
	tests := []struct {
		name    string
		handler http.HandlerFunc
		want    string
	}{
		{"a redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://portal.example/login?from="+testToken.Secret(), http.StatusFound)
		}, "answered 302, a redirect to portal.example"},
		{"a redirect to nowhere", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(307) }, "answered 307: a redirect to nowhere"},
		{"a page", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			io.WriteString(w, "<html>Welcome to the hotel")
		}, "answered 200 with a web page"},
		{"a gateway's page", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(502)
		}, "answered 502 with a web page"},
		{"no upgrade", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "ok") }, "takes the Upgrade header out"},
		{"an upgrade without the key's answer", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Upgrade", "websocket")
			w.Header().Set("Connection", "Upgrade")
			w.WriteHeader(http.StatusSwitchingProtocols)
		}, "not a WebSocket's"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				relay := serve(t, tt.handler)
				err := dialTo(t, relay.options())
				var got *NotRelayError
				if !errors.As(err, &got) || !strings.Contains(err.Error(), tt.want) || HintOf(err) == "" {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

// TestRedirectIsNotFollowed: following it would hand the token to its target.
func TestRedirectIsNotFollowed(t *testing.T) {
	var mu sync.Mutex
	var paths []string
	relay := serve(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		paths = append(paths, r.URL.Path)
		mu.Unlock()
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	})
	dialTo(t, relay.options())
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(paths, []string{"/connect/mini"}) {
		t.Errorf("asked for %v", paths)
	}
}

func TestRequestOfAStream(t *testing.T) {
	got := make(chan *http.Request, 1)
	relay := serveWS(t, func(c *websocket.Conn, r *http.Request) { got <- r })
	o := relay.options()
	o.Relay.Path = "/prefix/"
	o.Path = "/connect/mini?service=web"
	o.Header = http.Header{"holdfast-attempt": {"7"}}
	if err := dialTo(t, o); err != nil {
		t.Fatal(err)
	}
	r := <-got
	if r.URL.String() != "/prefix/connect/mini?service=web" || r.Header.Get("Authorization") != "Bearer "+testToken.Secret() ||
		r.Header.Get(wire.HeaderAttempt) != "7" || r.Header.Get("Sec-WebSocket-Protocol") != wire.SubprotocolV1 ||
		r.Header.Get("Sec-WebSocket-Extensions") != "" {
		t.Errorf("%s with %v", r.URL, r.Header)
	}
}

func TestHandshakeHasTenSeconds(t *testing.T) {
	for name, handler := range map[string]func(c net.Conn){
		"mute": func(c net.Conn) { io.Copy(io.Discard, c) },
		"trickle": func(c net.Conn) {
			c.Read(make([]byte, 1)) // an answer before the question is another fault
			trickle(c, "HTTP/1.1 101 Switching Protocols\r\nX: "+strings.Repeat("x", 100))
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				relay := serve(t, nil)
				l, err := relay.net.Listen("127.0.0.1:1")
				if err != nil {
					t.Fatal(err)
				}
				go func() {
					c, err := l.Accept()
					if err == nil {
						handler(c)
						c.Close()
					}
				}()
				o := relay.options()
				o.Relay = &url.URL{Scheme: "http", Host: "127.0.0.1:1"}
				start := time.Now()
				err = dialTo(t, o)
				within(t, "the dial", time.Since(start), liveness.HandshakeTimeout)
				if !errors.Is(err, context.DeadlineExceeded) || hopOf(t, err) != HopUpgrade || !strings.Contains(err.Error(), "no answer within 10s") {
					t.Errorf("got %v", err)
				}
				l.Close()
				time.Sleep(time.Hour) // the trickle ends
			})
		})
	}
}

// trickle writes one byte a second.
func trickle(c net.Conn, s string) {
	for i := range len(s) {
		if _, err := io.WriteString(c, s[i:i+1]); err != nil {
			return
		}
		time.Sleep(time.Second)
	}
}

func TestCancelledDialLeavesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		quit := make(chan struct{})
		relay := serve(t, func(http.ResponseWriter, *http.Request) { <-quit })
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("changed my mind")
		time.AfterFunc(time.Second, func() { cancel(why) })
		start := time.Now()
		_, err := DialStream(ctx, relay.options(), StreamOptions{Side: DeviceSide, Liveness: dataConfig()})
		if !errors.Is(err, why) {
			t.Errorf("got %v", err)
		}
		within(t, "the dial", time.Since(start), time.Second)
		close(quit)
	})
}

func TestPlainHTTPBeyondLoopback(t *testing.T) {
	tests := []struct {
		url      string
		insecure bool
		ok       bool
	}{
		{"http://localhost:1", false, true}, {"ws://127.0.0.1:1", false, true}, {"http://127.8.9.1", false, true},
		{"http://[::1]:7", false, true}, {"http://app.localhost", false, true}, {"http://[::ffff:127.0.0.1]", false, true},
		{"https://relay.example", false, true}, {"wss://192.0.2.1", false, true},
		{"http://relay.example", false, false}, {"ws://192.0.2.1", false, false}, {"http://localhost.example", false, false},
		{"http://0.0.0.0", false, false}, {"http://relay.example", true, true},
		{"ftp://relay.example", true, false}, {"https://", true, false}, {"https://a:b@relay.example", true, false},
		{"https://relay.example?x=1", true, false}, {"https://relay.example#x", true, false},
	}
	for _, tt := range tests {
		u, err := url.Parse(tt.url)
		if err != nil {
			t.Fatal(err)
		}
		if err := CheckRelay(u, tt.insecure); (err == nil) != tt.ok || err != nil && strings.Contains(err.Error(), "b@") {
			t.Errorf("%s, insecure %v: %v", tt.url, tt.insecure, err)
		}
	}
	if err := CheckRelay(nil, false); err == nil {
		t.Error("no URL is accepted")
	}
	err := dialTo(t, Options{Relay: &url.URL{Scheme: "http", Host: "relay.example"}, Path: "/x",
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			t.Error("dialled all the same")
			return nil, net.ErrClosed
		}})
	if !errors.Is(err, ErrPlainHTTP) {
		t.Errorf("got %v", err)
	}
}

// connectProxy is an HTTP CONNECT proxy on loopback that sends everything to
// one address, whatever is asked for.
type connectProxy struct {
	l      net.Listener
	target string
	auth   string // Proxy-Authorization it wants, if any
	scheme string // what it asks for by 407

	mu    sync.Mutex
	asked []string
	wg    sync.WaitGroup
}

func newProxy(t *testing.T, target string) *connectProxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &connectProxy{l: l, target: target, scheme: "Basic realm=\"x\""}
	p.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.serve(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.wg.Wait()
	})
	return p
}

func (p *connectProxy) serve(c net.Conn) {
	defer c.Close()
	br := bufio.NewReader(c)
	req, err := http.ReadRequest(br)
	if err != nil {
		return
	}
	p.mu.Lock()
	p.asked = append(p.asked, req.Method+" "+req.Host)
	p.mu.Unlock()
	if p.auth != "" && req.Header.Get("Proxy-Authorization") != p.auth {
		io.WriteString(c, "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: "+p.scheme+"\r\nContent-Length: 0\r\n\r\n")
		return
	}
	up, err := net.Dial("tcp", p.target)
	if err != nil {
		io.WriteString(c, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
		return
	}
	defer up.Close()
	io.WriteString(c, "HTTP/1.1 200 Connection established\r\n\r\n")
	p.wg.Go(func() {
		io.Copy(up, br)
		up.Close()
	})
	io.Copy(c, up)
}

func (p *connectProxy) requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.asked)
}

func wsServer(t *testing.T) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, err := websocket.Accept(w, r, nil); err == nil {
			echo(c, r)
			c.CloseNow()
		}
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(s.Close)
	return s
}

func TestConnectThroughTheProxyKeepsThePort(t *testing.T) {
	for _, scheme := range []string{"http", "https"} {
		t.Run(scheme, func(t *testing.T) {
			server := wsServer(t)
			o := Options{Path: "/connect/mini", Token: testToken, InsecureHTTP: true}
			if scheme == "https" {
				server.StartTLS()
				pool := x509.NewCertPool()
				pool.AddCert(server.Certificate())
				o.TLS = &tls.Config{RootCAs: pool}
			} else {
				server.Start()
			}
			proxy := newProxy(t, server.Listener.Addr().String())
			proxy.auth = "Basic " + base64.StdEncoding.EncodeToString([]byte("me:s3cret"))
			o.Relay = &url.URL{Scheme: scheme, Host: "example.com:8443"}
			u := "http://me:s3cret@" + proxy.l.Addr().String()
			o.Proxy = &httpproxy.Config{HTTPProxy: u, HTTPSProxy: u, NoProxy: "other.example"}
			s, err := DialStream(t.Context(), o, StreamOptions{Side: DeviceSide, Liveness: dataConfig()})
			if err != nil {
				t.Fatal(err)
			}
			io.WriteString(s, "hello")
			buf := make([]byte, 5)
			if _, err := io.ReadFull(s, buf); err != nil || string(buf) != "hello" {
				t.Errorf("echo: %q, %v", buf, err)
			}
			s.Close()
			if got := proxy.requests(); !slices.Equal(got, []string{"CONNECT example.com:8443"}) {
				t.Errorf("the proxy was asked %v", got)
			}
		})
	}
}

func TestWhatTheProxySaysIsExplained(t *testing.T) {
	proxy := newProxy(t, "127.0.0.1:1") // nothing listens there
	o := Options{Relay: &url.URL{Scheme: "https", Host: "relay.example"}, Path: "/x", Token: testToken}
	set := func(u string) {
		o.Proxy = &httpproxy.Config{HTTPSProxy: u}
	}
	addr := proxy.l.Addr().String()

	set("http://me:s3cret@" + addr)
	err := dialTo(t, o)
	var got *ProxyError
	if !errors.As(err, &got) || got.Status != 503 || hopOf(t, err) != HopProxy || !strings.Contains(HintOf(err), "NO_PROXY") {
		t.Errorf("503: %v", err)
	}

	proxy.auth = "Basic something"
	err = dialTo(t, o)
	if !errors.As(err, &got) || got.Status != 407 || !slices.Equal(got.Schemes, []string{"basic"}) ||
		!strings.Contains(HintOf(err), "HTTPS_PROXY=http://NAME:PASSWORD@"+addr) {
		t.Errorf("407: %v, hint %q", err, HintOf(err))
	}

	proxy.scheme = "NTLM"
	err = dialTo(t, o)
	if !errors.As(err, &got) || !slices.Equal(got.Schemes, []string{"ntlm"}) || !strings.Contains(HintOf(err), "cntlm") {
		t.Errorf("NTLM: %v, hint %q", err, HintOf(err))
	}

	set("http://me:s3cret@127.0.0.1:1")
	if err = dialTo(t, o); hopOf(t, err) != HopTCP || !strings.Contains(err.Error(), "via proxy 127.0.0.1:1") {
		t.Errorf("no proxy there: %v", err)
	}
	set("gopher://me:s3cret@proxy")
	if err = dialTo(t, o); hopOf(t, err) != HopProxy || HintOf(err) == "" {
		t.Errorf("strange scheme: %v", err)
	}
	set("http://me:s3cret@[")
	if err = dialTo(t, o); hopOf(t, err) != HopProxy {
		t.Errorf("no URL: %v", err)
	}
}

func TestSocksProxy(t *testing.T) {
	server := wsServer(t)
	server.Start()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan string, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		// RFC 1928: greeting, no authentication, CONNECT to a name.
		b := make([]byte, 3)
		io.ReadFull(c, b)
		c.Write([]byte{5, 0})
		io.ReadFull(c, b[:3])
		n := make([]byte, 2)
		io.ReadFull(c, n)
		name := make([]byte, int(n[1])+2)
		io.ReadFull(c, name)
		asked <- string(name[:n[1]])
		c.Write([]byte{5, 0, 0, 1, 0, 0, 0, 0, 0, 0})
		up, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Error(err)
			return
		}
		defer up.Close()
		wg.Go(func() { io.Copy(up, c); up.Close() })
		io.Copy(c, up)
	})
	o := Options{Relay: &url.URL{Scheme: "http", Host: "relay.example:8080"}, Path: "/x", InsecureHTTP: true,
		Proxy: &httpproxy.Config{HTTPProxy: "socks5://" + l.Addr().String()}}
	if err := dialTo(t, o); err != nil {
		t.Error(err)
	}
	if name := <-asked; name != "relay.example" {
		t.Errorf("asked for %q: the proxy looks names up", name)
	}
	l.Close()
	wg.Wait()
}

// signedBy makes a server certificate for names, signed by a root of that name.
func signedBy(t *testing.T, issuer string, names ...string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: issuer}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: names[0]}, DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, root, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func TestCertificateErrorsNameTheIssuer(t *testing.T) {
	server := wsServer(t)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{signedBy(t, "Corp Inspection CA", "relay.example")}}
	server.StartTLS()
	dialServer := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, server.Listener.Addr().String())
	}
	o := Options{Relay: &url.URL{Scheme: "https", Host: "relay.example"}, Path: "/x", Token: testToken, DialContext: dialServer}
	err := dialTo(t, o)
	var got *CertificateError
	if !errors.As(err, &got) || got.Issuer != "Corp Inspection CA" || hopOf(t, err) != HopTLS ||
		!strings.Contains(err.Error(), "Corp Inspection CA") || HintOf(err) == "" {
		t.Errorf("unknown issuer: %v", err)
	}

	// Known issuer, but years away: the clock is wrong.
	o.TLS = &tls.Config{Time: func() time.Time { return time.Now().Add(-10 * 365 * 24 * time.Hour) }}
	if err = dialTo(t, o); !errors.As(err, &got) || !got.ClockOff || !strings.Contains(HintOf(err), "clock") {
		t.Errorf("clock off: %v", err)
	}

	// Wrong name, right root.
	trusted := wsServer(t)
	trusted.StartTLS()
	pool := x509.NewCertPool()
	pool.AddCert(trusted.Certificate())
	o.TLS = &tls.Config{RootCAs: pool}
	o.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, trusted.Listener.Addr().String())
	}
	if err = dialTo(t, o); !errors.As(err, &got) || !strings.Contains(HintOf(err), "another name") {
		t.Errorf("wrong name: %v, hint %q", err, HintOf(err))
	}
	o.Relay.Host = "example.com" // what httptest's certificate is for
	if err = dialTo(t, o); err != nil {
		t.Errorf("right name: %v", err)
	}
}

func TestTLSToAPlainServer(t *testing.T) {
	server := wsServer(t)
	server.Start()
	o := Options{Relay: &url.URL{Scheme: "https", Host: server.Listener.Addr().String()}, Path: "/x"}
	err := dialTo(t, o)
	if hopOf(t, err) != HopTLS || !strings.Contains(err.Error(), "does not speak TLS") || HintOf(err) == "" {
		t.Errorf("got %v", err)
	}
}

func TestHopsOfAFailure(t *testing.T) {
	o := Options{Relay: &url.URL{Scheme: "https", Host: "127.0.0.1:1"}, Path: "/x", Token: testToken}
	if err := dialTo(t, o); hopOf(t, err) != HopTCP {
		t.Errorf("nobody listens: %v", err)
	}
	o.DialContext = func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "relay.example", IsNotFound: true}}
	}
	if err := dialTo(t, o); hopOf(t, err) != HopDNS {
		t.Errorf("no such name: %v", err)
	}
}

func TestStagesAreReported(t *testing.T) {
	server := wsServer(t)
	server.StartTLS()
	pool := x509.NewCertPool()
	pool.AddCert(server.Certificate())
	var hops []Hop
	o := Options{
		Relay: &url.URL{Scheme: "https", Host: server.Listener.Addr().String()}, Path: "/x",
		TLS: &tls.Config{RootCAs: pool},
		OnStage: func(hop Hop, took time.Duration, err error) {
			if took < 0 || err != nil {
				t.Errorf("%s: %v, %v", hop, took, err)
			}
			hops = append(hops, hop)
		},
	}
	if err := dialTo(t, o); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(hops, []Hop{HopTCP, HopTLS, HopUpgrade}) {
		t.Errorf("hops are %v", hops)
	}
}
