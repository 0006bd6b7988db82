// Package acme gets the relay's TLS certificate from a certificate authority and
// renews it (RFC 8555, by certmagic): by TLS-ALPN-01 on the relay's own listener,
// and by HTTP-01 where an address for plain http is given.
//
// It never answers anything but challenges and redirections, and keeps keys and
// certificates nowhere but in its directory. What a caller will get wrong: the
// listener must be accepting, with TLSConfig, before Manage is called, because
// the authority dials it; and certificates come later than Manage returns, so
// the first handshakes may fail.
package acme

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
)

// LetsEncrypt is the directory that is asked if no other is named.
const LetsEncrypt = certmagic.LetsEncryptProductionCA

// httpTimeout bounds a request to the plain http listener: a challenge is one
// small GET by the authority.
const httpTimeout = 10 * time.Second

// maxHTTPHeaderBytes bounds such a request's header.
const maxHTTPHeaderBytes = 8 << 10

// Options of New.
type Options struct {
	// Domain is the name that the certificate is for; required. Naming it says
	// that the authority's terms are agreed to.
	Domain string
	// Email is what the authority may write to; empty gives none.
	Email string
	// CA is the https URL of the authority's directory; empty means LetsEncrypt.
	CA string
	// Roots are trusted when the authority is asked; nil means the system's.
	Roots *x509.CertPool
	// Dir holds account, keys and certificates; required. It is made 0700.
	Dir string
	// HTTPListen is the address of a plain http listener, for HTTP-01 and to
	// redirect everything else to https; empty means none.
	HTTPListen string
	Log        *slog.Logger // required
}

// Check reports what is wrong with o, before anything is opened.
func (o Options) Check() error {
	switch {
	case o.Dir == "" || o.Log == nil:
		return errors.New("get a certificate: directory and log are required")
	case !validDomain(o.Domain):
		return fmt.Errorf("get a certificate for %q: want the name of a host, such as relay.example", o.Domain)
	case strings.ContainsAny(o.Email, " \t\r\n,") || o.Email != "" && !strings.Contains(o.Email, "@"):
		return fmt.Errorf("get a certificate: %q is no address for mail", o.Email)
	}
	if o.CA != "" {
		if u, err := url.Parse(o.CA); err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil {
			return errors.New("get a certificate: the authority must be an https URL without user, such as " + LetsEncrypt)
		}
	}
	if o.HTTPListen != "" {
		if _, _, err := net.SplitHostPort(o.HTTPListen); err != nil {
			return fmt.Errorf("get a certificate: listen on %q: want HOST:PORT", o.HTTPListen)
		}
	}
	return nil
}

// domain is a host's name of at least two labels: authorities give nothing to a
// wildcard by these challenges, and nothing to an address.
var domain = regexp.MustCompile(`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z][a-z0-9-]{0,61}[a-z0-9]$`)

func validDomain(s string) bool { return len(s) <= 253 && domain.MatchString(s) }

// Manager keeps one certificate. It is safe for concurrent use.
type Manager struct {
	domain string
	cache  *certmagic.Cache
	config *certmagic.Config
	http   *http.Server // nil for none
	plain  net.Listener

	cancel context.CancelFunc
	ctx    context.Context
	wg     sync.WaitGroup
}

// New prepares a Manager for the relay that listens on addr. It asks nobody yet.
// Close ends it.
func New(o Options, addr net.Addr) (*Manager, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return nil, fmt.Errorf("get a certificate: the relay listens on %s, which is not TCP", addr)
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("get a certificate: %w", err)
	}
	m := &Manager{domain: o.Domain}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	if o.HTTPListen != "" {
		ln, err := net.Listen("tcp", o.HTTPListen)
		if err != nil {
			m.cancel()
			return nil, fmt.Errorf("listen for the authority: %w", err)
		}
		m.plain = ln
	}
	log := bridge(o.Log, m.ctx.Done())
	m.cache = certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return m.config, nil },
		Logger:           log,
	})
	m.config = certmagic.New(m.cache, certmagic.Config{
		Storage: &certmagic.FileStorage{Path: o.Dir},
		Logger:  log,
		OnEvent: func(_ context.Context, event string, data map[string]any) error {
			if m.ctx.Err() == nil {
				report(o.Log, o.Domain, event, data)
			}
			return nil
		},
		// One name: whoever names another, or none, sees whose relay it is.
		DefaultServerName: o.Domain, FallbackServerName: o.Domain,
	})
	template := certmagic.ACMEIssuer{
		CA: LetsEncrypt, Email: o.Email, Agreed: true, TrustedRoots: o.Roots, Logger: log,
		// The solver finds that somebody listens there, and leaves it to them:
		// the relay's own listener answers, by TLSConfig.
		AltTLSALPNPort: tcp.Port, ListenHost: listenHost(tcp),
		DisableHTTPChallenge: m.plain == nil,
	}
	if o.CA != "" {
		template.CA = o.CA
	}
	if m.plain != nil {
		template.AltHTTPPort = m.plain.Addr().(*net.TCPAddr).Port
	}
	issuer := certmagic.NewACMEIssuer(m.config, template)
	m.config.Issuers = []certmagic.Issuer{issuer}
	if m.plain != nil {
		m.http = &http.Server{
			Handler:        issuer.HTTPChallengeHandler(http.HandlerFunc(m.redirect)),
			ReadTimeout:    httpTimeout,
			WriteTimeout:   httpTimeout,
			MaxHeaderBytes: maxHTTPHeaderBytes,
			ErrorLog:       slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
		}
		// Ended and waited for by Close.
		m.wg.Go(func() {
			if err := m.http.Serve(m.plain); !errors.Is(err, http.ErrServerClosed) {
				o.Log.Error("serve challenges", "err", err)
			}
		})
	}
	return m, nil
}

// listenHost is the host of an address as a listener is given it.
func listenHost(a *net.TCPAddr) string {
	if a.IP == nil || a.IP.IsUnspecified() {
		return ""
	}
	return a.IP.String()
}

// TLSConfig is what the relay's listener serves: the certificate, and the
// authority's challenges. It speaks HTTP/1.1 alone.
func (m *Manager) TLSConfig() *tls.Config {
	return &tls.Config{
		GetCertificate: m.config.GetCertificate,
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"http/1.1", "acme-tls/1"},
	}
}

// Manage loads the certificate, or begins to get it, and keeps it renewed until
// Close. Failures are logged and tried again, for weeks.
func (m *Manager) Manage() error {
	if err := m.config.ManageAsync(m.ctx, []string{m.domain}); err != nil {
		return fmt.Errorf("get a certificate for %s: %w", m.domain, err)
	}
	return nil
}

// Close ends renewal and the plain http listener.
func (m *Manager) Close() {
	m.cancel()
	if m.http != nil {
		m.http.Close()
	}
	m.cache.Stop()
	m.wg.Wait()
}

// redirect sends whoever comes in plain to https. Nothing of the request is kept
// but its path: a token in a query would be repeated.
func (m *Manager) redirect(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Connection", "close")
	http.Redirect(w, r, "https://"+m.domain+r.URL.EscapedPath(), http.StatusPermanentRedirect)
}

// report tells in one line each what became of a certificate.
func report(log *slog.Logger, domain, event string, data map[string]any) {
	switch event {
	case "cert_obtained":
		renewed, _ := data["renewal"].(bool)
		log.Info("certificate obtained", "domain", domain, "renewed", renewed)
	case "cert_failed":
		err, _ := data["error"].(error)
		log.Error("no certificate: the authority must reach this relay under that name on port 443; it is tried again", "domain", domain, "err", err)
	}
}
