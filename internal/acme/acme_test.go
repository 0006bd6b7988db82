package acme

import (
	"crypto/tls"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// Certmagic keeps one limit of rate for each authority and account, for as
		// long as the process lives.
		goleak.IgnoreAnyFunction("github.com/caddyserver/certmagic.(*RingBufferRateLimiter).loop"),
		// The keeper of a lock that was given back ends at its next look, 5 s later.
		goleak.IgnoreAnyFunction("github.com/caddyserver/certmagic.keepLockfileFresh"))
}

// patience bounds every wait, on a machine that has other work too.
const patience = 60 * time.Second

// served is a TLS server with a Manager's certificate.
type served struct {
	*Manager
	addr  string
	close func()
}

func serve(t *testing.T, o Options) *served {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	m, err := New(o, ln.Addr())
	if err != nil {
		ln.Close()
		t.Fatal(err)
	}
	s := &http.Server{
		Handler:  http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "relay") }),
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Serve(tls.NewListener(ln, m.TLSConfig())) }) // close ends it and waits
	out := &served{Manager: m, addr: ln.Addr().String()}
	out.close = sync.OnceFunc(func() {
		m.Close()
		s.Close()
		wg.Wait()
	})
	t.Cleanup(out.close)
	if err := m.Manage(); err != nil {
		t.Fatal(err)
	}
	return out
}

// certificate waits for one that the authority signed, and gives its serial.
func (s *served) certificate(t *testing.T, a *authority, name string) string {
	t.Helper()
	for until := time.Now().Add(patience); ; {
		conn, err := tls.Dial("tcp", s.addr, &tls.Config{RootCAs: a.issued(), ServerName: name, NextProtos: []string{"h2", "http/1.1"}})
		if err == nil {
			defer conn.Close()
			if p := conn.ConnectionState().NegotiatedProtocol; p != "http/1.1" {
				t.Errorf("speaks %q", p)
			}
			return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
		}
		if time.Now().After(until) {
			t.Fatalf("no certificate: %v", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// TestCertificateByTLSALPN gets a certificate on the very listener that serves,
// keeps it private, and uses it again at the next start without asking.
func TestCertificateByTLSALPN(t *testing.T) {
	var s *served
	a := newAuthority(t, "tls-alpn-01", func() string { return s.addr })
	dir := filepath.Join(t.TempDir(), "acme")
	o := Options{Domain: "relay.test", Email: "ops@relay.test", CA: a.url("/directory"), Roots: a.roots(), Dir: dir}
	// Under a's lock the authority dials s.addr only after Manage.
	a.mu.Lock()
	s = serve(t, o)
	a.mu.Unlock()
	serial := s.certificate(t, a, "relay.test")
	a.mu.Lock()
	if a.orders != 1 || len(a.contact) != 1 || a.contact[0] != "mailto:ops@relay.test" {
		t.Errorf("%d orders, contact %q", a.orders, a.contact)
	}
	a.mu.Unlock()
	files := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s is %v", path, info.Mode())
		}
		if !d.IsDir() {
			files++
		}
		return nil
	})
	if err != nil || files < 3 {
		t.Errorf("%d files are kept, %v", files, err)
	}
	s.close()

	s = serve(t, o)
	if again := s.certificate(t, a, "relay.test"); again != serial {
		t.Error("the next start has another certificate")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.orders != 1 {
		t.Errorf("the authority was asked %d times", a.orders)
	}
}

// TestRenewal starts with a certificate that is nearly over: it is renewed, and
// the old one serves until then.
func TestRenewal(t *testing.T) {
	var s *served
	a := newAuthority(t, "tls-alpn-01", func() string { return s.addr })
	o := Options{Domain: "relay.test", CA: a.url("/directory"), Roots: a.roots(), Dir: t.TempDir()}
	a.life = 15 * time.Second // of 75 with its minute before: within the last third
	a.mu.Lock()
	s = serve(t, o)
	a.mu.Unlock()
	first := s.certificate(t, a, "relay.test")
	s.close()
	a.mu.Lock()
	a.life = 12 * time.Hour
	s = serve(t, o)
	a.mu.Unlock()
	for until := time.Now().Add(patience); s.certificate(t, a, "relay.test") == first; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("it is not renewed")
		}
	}
}

// TestCertificateByHTTP has an authority that offers HTTP-01 alone, which is
// answered where an address is given for it; everything else goes to https.
func TestCertificateByHTTP(t *testing.T) {
	var s *served
	a := newAuthority(t, "http-01", func() string { return s.plain.Addr().String() })
	a.mu.Lock()
	s = serve(t, Options{Domain: "relay.test", CA: a.url("/directory"), Roots: a.roots(), Dir: t.TempDir(), HTTPListen: "127.0.0.1:0"})
	a.mu.Unlock()
	s.certificate(t, a, "relay.test")
	client := &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Get("http://" + s.plain.Addr().String() + "/connect/mini?token=hf_secret")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if got := resp.Header.Get("Location"); resp.StatusCode != 308 || got != "https://relay.test/connect/mini" {
		t.Errorf("got %s to %q", resp.Status, got)
	}
	resp, err = client.Get("http://" + s.plain.Addr().String() + "/.well-known/acme-challenge/guess")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode == 200 {
		t.Errorf("a challenge that nobody made is answered: %s", resp.Status)
	}
}

// logged keeps what was logged.
type logged struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestRefusedOrderIsSaid wants one clear line, and an end in time though more
// attempts wait.
func TestRefusedOrderIsSaid(t *testing.T) {
	var s *served
	a := newAuthority(t, "tls-alpn-01", func() string { return s.addr })
	a.refuse = true
	out := &logged{}
	s = serve(t, Options{
		Domain: "relay.test", CA: a.url("/directory"), Roots: a.roots(), Dir: t.TempDir(),
		Log: slog.New(slog.NewTextHandler(out, nil)),
	})
	for until := time.Now().Add(patience); !strings.Contains(out.String(), "no certificate: the authority must reach this relay"); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("nothing is said:\n%s", out)
		}
	}
	began := time.Now()
	s.close()
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the end took %v", took)
	}
}

func TestCheck(t *testing.T) {
	good := Options{Domain: "relay.example", Dir: "d", Log: slog.Default()}
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Options){
		"no directory":     func(o *Options) { o.Dir = "" },
		"no log":           func(o *Options) { o.Log = nil },
		"no domain":        func(o *Options) { o.Domain = "" },
		"an address":       func(o *Options) { o.Domain = "192.0.2.1" },
		"a wildcard":       func(o *Options) { o.Domain = "*.relay.example" },
		"a URL":            func(o *Options) { o.Domain = "https://relay.example" },
		"a port":           func(o *Options) { o.Domain = "relay.example:443" },
		"one label":        func(o *Options) { o.Domain = "relay" },
		"two addresses":    func(o *Options) { o.Email = "a@relay.example,b@relay.example" },
		"no address":       func(o *Options) { o.Email = "ops" },
		"plain authority":  func(o *Options) { o.CA = "http://ca.example/directory" },
		"secret authority": func(o *Options) { o.CA = "https://user:secret@ca.example/" },
		"no port":          func(o *Options) { o.HTTPListen = "127.0.0.1" },
	} {
		o := good
		change(&o)
		err := o.Check()
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := New(good, &net.UnixAddr{}); err == nil {
		t.Error("a Unix socket is taken for TCP")
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	good.Dir, good.HTTPListen = t.TempDir(), ln.Addr().String()
	var op *net.OpError
	if _, err := New(good, ln.Addr()); !errors.As(err, &op) {
		t.Errorf("a taken port: %v", err)
	}
	if _, err := os.Stat(good.Dir); err != nil {
		t.Error(err)
	}
}
