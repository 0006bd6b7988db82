// Package serve holds the commands that serve until a signal: up, relay, agent,
// and the installation of the agent as a service.
//
// What they put together is package up's; here are flags, events and exit codes.
// What a caller will get wrong: the state directory is locked before anything in
// it is opened, and what was started first ends last.
package serve

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"os/signal"
	"syscall"

	"holdfast/internal/acme"
	"holdfast/internal/cli/admin"
	"holdfast/internal/client"
	"holdfast/internal/console"
	"holdfast/internal/relay"
	"holdfast/internal/state"
	"holdfast/internal/up"
)

// relayFlags are the flags of a relay, alone or in `up`.
type relayFlags struct {
	PublicURL     string         `name:"public-url" env:"HOLDFAST_PUBLIC_URL" placeholder:"URL" help:"Where devices reach the relay, if that is not where it listens."`
	TLSCert       string         `name:"tls-cert" env:"HOLDFAST_TLS_CERT" placeholder:"FILE" type:"path" help:"Certificate (PEM, with its chain)."`
	TLSKey        string         `name:"tls-key" env:"HOLDFAST_TLS_KEY" placeholder:"FILE" type:"path" help:"Key of the certificate (PEM)."`
	ACMEDomain    string         `name:"acme-domain" env:"HOLDFAST_ACME_DOMAIN" placeholder:"D" help:"Get and renew a certificate for this name (Let's Encrypt, unless --acme-ca); its port 443 must lead here."`
	ACMEEmail     string         `name:"acme-email" env:"HOLDFAST_ACME_EMAIL" placeholder:"ADDR" help:"Where the certificate authority may write to."`
	ACMECA        string         `name:"acme-ca" env:"HOLDFAST_ACME_CA" placeholder:"URL" help:"Directory of another certificate authority."`
	ACMERoot      string         `name:"acme-root" env:"HOLDFAST_ACME_ROOT" placeholder:"FILE" type:"path" help:"Roots (PEM) to trust when that authority is asked."`
	ACMEHTTP      string         `name:"acme-http" env:"HOLDFAST_ACME_HTTP" placeholder:"ADDR" help:"Serve HTTP challenges and redirects to https there, such as :80 (default: nowhere)."`
	TrustedProxy  []netip.Prefix `name:"trusted-proxy" env:"HOLDFAST_TRUSTED_PROXY" placeholder:"CIDR" help:"Believe X-Forwarded-For from these addresses."`
	MetricsListen string         `name:"metrics-listen" env:"HOLDFAST_METRICS_LISTEN" placeholder:"ADDR" help:"Serve Prometheus metrics and profiles on this address (default: nowhere)."`
	MaxStreams    int            `name:"max-streams" env:"HOLDFAST_MAX_STREAMS" placeholder:"N" help:"Open streams a token (default 1000)."`
	MaxNewStreams int            `name:"max-new-streams" env:"HOLDFAST_MAX_NEW_STREAMS" placeholder:"N" help:"New streams a second and token (default 200)."`
	MaxFailures   int            `name:"max-auth-failures" env:"HOLDFAST_MAX_AUTH_FAILURES" placeholder:"N" help:"Failed authentications a minute and address (default 20)."`
	MaxHandshakes int            `name:"max-handshakes" env:"HOLDFAST_MAX_HANDSHAKES" placeholder:"N" help:"Unfinished handshakes an address (default 100)."`
}

// options are up's, with what comes from elsewhere left empty.
func (f relayFlags) options(listen string, dir state.Dir, c console.Connection, log *slog.Logger) (up.RelayOptions, error) {
	o := up.RelayOptions{
		Listen: listen, Dir: dir, TLSCert: f.TLSCert, TLSKey: f.TLSKey,
		InsecureHTTP: c.InsecureHTTP, MetricsListen: f.MetricsListen, TrustedProxies: f.TrustedProxy,
		Limits: relay.Limits{
			Streams: f.MaxStreams, NewStreams: f.MaxNewStreams,
			Failures: f.MaxFailures, Handshakes: f.MaxHandshakes,
		},
		Keepalive: c.Keepalive, Log: log,
	}
	if f.MaxStreams < 0 || f.MaxNewStreams < 0 || f.MaxFailures < 0 || f.MaxHandshakes < 0 {
		return o, &console.Failure{Code: console.ExitUsage, Err: errors.New("a limit (--max-streams, --max-new-streams, --max-auth-failures, --max-handshakes) is negative")}
	}
	if (f.TLSCert == "") != (f.TLSKey == "") {
		return o, &console.Failure{Code: console.ExitUsage, Err: errors.New("--tls-cert and --tls-key belong together: give both")}
	}
	a, err := f.acme(dir)
	if err != nil {
		return o, err
	}
	o.ACME = a
	if f.PublicURL != "" {
		u, err := parsePublicURL(f.PublicURL, c.InsecureHTTP)
		if err != nil {
			return o, err
		}
		o.PublicURL = u
	}
	return o, nil
}

// acmeDir is below the state directory.
const acmeDir = "acme"

// maxRootBytes bounds a file of roots: the system's own bundle has a quarter.
const maxRootBytes = 1 << 20

// acme are the options for a certificate of one's own, nil for none.
func (f relayFlags) acme(dir state.Dir) (*acme.Options, error) {
	usage := func(format string, args ...any) error {
		return &console.Failure{Code: console.ExitUsage, Err: fmt.Errorf(format, args...)}
	}
	if f.ACMEDomain == "" {
		if f.ACMEEmail != "" || f.ACMECA != "" || f.ACMERoot != "" || f.ACMEHTTP != "" {
			return nil, usage("--acme-email, --acme-ca, --acme-root and --acme-http need --acme-domain")
		}
		return nil, nil
	}
	if f.TLSCert != "" || f.TLSKey != "" {
		return nil, usage("--acme-domain gets a certificate, --tls-cert and --tls-key have one: give one of the two")
	}
	o := &acme.Options{
		Domain: f.ACMEDomain, Email: f.ACMEEmail, CA: f.ACMECA, HTTPListen: f.ACMEHTTP,
		Dir: dir.Path(acmeDir), Log: slog.New(slog.DiscardHandler),
	}
	if err := o.Check(); err != nil {
		return nil, &console.Failure{Code: console.ExitUsage, Err: err}
	}
	if f.ACMERoot != "" {
		b, err := state.ReadFile(f.ACMERoot, maxRootBytes)
		if err != nil {
			return nil, fmt.Errorf("read roots: %w", err)
		}
		o.Roots = x509.NewCertPool()
		if !o.Roots.AppendCertsFromPEM(b) {
			return nil, usage("--acme-root %s: no certificate in it", f.ACMERoot)
		}
	}
	return o, nil
}

func parsePublicURL(s string, insecure bool) (*url.URL, error) {
	u, err := client.ParseRelayURL(s, insecure)
	if err != nil {
		return nil, &console.Failure{Code: console.ExitUsage, Err: fmt.Errorf("--public-url: %w", err), Hint: "give an https URL without query, such as https://relay.example"}
	}
	return u, nil
}

// explainListen adds hints to what can go wrong before anything is served.
func explainListen(err error) error {
	var le *up.ListenError
	switch {
	case errors.As(err, &le) && !errors.Is(err, syscall.EADDRINUSE):
		return &console.Failure{Code: console.ExitUsage, Err: err, Hint: "--listen takes HOST:PORT, an address of this computer and a port up to 65535; below 1024 a program needs the right to it"}
	case errors.As(err, &le):
		return &console.Failure{Code: console.ExitFailed, Err: err, Hint: "another program, perhaps another holdfast, has that address; stop it, or choose another with --listen"}
	case errors.Is(err, up.ErrInsecureListen):
		return &console.Failure{Code: console.ExitUsage, Err: err, Hint: "give --acme-domain, or --tls-cert and --tls-key; or an https --public-url if something in front does TLS; or --insecure-http if the network is yours alone"}
	}
	return err
}

// surviveReaders keeps a process that serves alive when whoever reads its output
// has gone: that is an error of a write then, and no signal. Notify and not
// Ignore, since what is ignored stays so in every shell that is started.
func surviveReaders() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// emit prints an event. A reader that has gone is no error.
func emit(a *console.App, event any) error {
	if err := a.Emit(event); !errors.Is(err, syscall.EPIPE) {
		return err
	}
	return nil
}

// listening is the first event of every process that has a relay.
type listeningEvent struct {
	Event string `json:"event"` // "listening"
	URL   string `json:"url"`
	// PublicURL is where devices reach it, if that is elsewhere.
	PublicURL string `json:"publicUrl,omitempty"`
}

func newListeningEvent(r *up.Relay) listeningEvent {
	e := listeningEvent{Event: "listening", URL: r.Listening.String()}
	if public := r.Public.String(); public != e.URL {
		e.PublicURL = public
	}
	return e
}

// Relay runs the relay alone, or upgrades one that runs. The flags stand here, so
// that its own help shows them.
type Relay struct {
	console.Connection
	admin.StoreFlag
	relayFlags
	Listen  string       `name:"listen" env:"HOLDFAST_LISTEN" default:"127.0.0.1:7700" placeholder:"ADDR" help:"Address to listen on (default ${default})."`
	Run     relayRun     `cmd:"" default:"withargs" hidden:"" help:"Run the relay."`
	Upgrade relayUpgrade `cmd:"" help:"Have the running relay go on as the program that is installed now, without dropping connections."`
}

type relayRun struct{}

// Run serves until a signal.
func (*relayRun) Run(ctx context.Context, a *console.App, c *Relay) error {
	surviveReaders()
	dir, err := a.Dir()
	if err != nil {
		return err
	}
	log := a.Logger(slog.LevelInfo)
	o, err := c.options(c.Listen, dir, c.Connection, log)
	if err != nil {
		return err
	}
	if o.StorePath, err = c.StoreFlag.Path(dir); err != nil {
		return err
	}
	upgrades := newUpgrades(a, dir, log)
	if done, err := upgrades.inherit(&o); done || err != nil {
		return err
	}
	unlock, err := upgrades.lock("relay")
	if err != nil {
		return err
	}
	defer unlock()
	r, err := up.StartRelay(ctx, o)
	if err != nil {
		return explainListen(err)
	}
	upgrades.serves(r, "")
	if r.Kept != nil {
		err = upgrades.tell(r.Kept)
	} else if a.JSON {
		err = emit(a, newListeningEvent(r))
	} else {
		a.Say("listening on %s", r.Listening)
		if r.Public.String() != r.Listening.String() {
			a.Say("devices reach it at %s", r.Public)
		}
		c.firstSteps(ctx, a, r, dir)
	}
	if err != nil {
		return errors.Join(err, r.Close())
	}
	for {
		select {
		case <-ctx.Done():
			log.Info("stopping")
			return r.Drain()
		case err := <-r.Failed():
			return errors.Join(err, r.Close())
		case <-upgrades.asked:
			upgrades.try(ctx)
		}
	}
}

// firstSteps says how the first machine gets here, as long as there is no account.
func (c *Relay) firstSteps(ctx context.Context, a *console.App, r *up.Relay, dir state.Dir) {
	accounts, err := r.Store.Accounts(ctx)
	if err != nil || len(accounts) > 0 {
		return
	}
	a.Say("\nNo account yet. To let the first machine in:\n\n  %s\n  %s > agent.token\n\nand on the machine, with that file:\n\n  holdfast up --relay %s --token-file agent.token",
		a.Words("account", "add", "me"),
		a.Words("token", "create", "--account", "me", "--kind", "agent", "--name", "mini"), r.Public)
}
