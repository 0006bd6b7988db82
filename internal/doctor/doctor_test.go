package doctor_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"holdfast/internal/account"
	"holdfast/internal/client"
	"holdfast/internal/doctor"
	"holdfast/internal/engine"
	"holdfast/internal/pairing"
	"holdfast/internal/sshlink"
	"holdfast/internal/state"
	"holdfast/internal/up"
	"holdfast/internal/wire"
)

// rig is a relay, a machine and a paired computer, all real.
type rig struct {
	relay   *up.Relay
	agent   *up.Agent
	machine client.Machine
	key     *sshlink.Key
	link    pairing.Link
}

func newRig(t *testing.T) *rig {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	dir := t.TempDir()
	open := func(name string) state.Dir {
		d, err := state.Open(dir + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	here := open("machine")
	r := &rig{}
	var err error
	r.relay, err = up.StartRelay(t.Context(), up.RelayOptions{StorePath: here.Path(state.StoreFile), Listen: "127.0.0.1:0", Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.relay.Close() })
	token, err := up.OwnToken(t.Context(), here, r.relay.Store, "mini")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir+"/home", 0o700); err != nil {
		t.Fatal(err)
	}
	r.agent, err = up.StartAgent(up.AgentOptions{
		Dir: here, Relay: r.relay.Local, Public: r.relay.Public, Machine: "mini", Home: dir + "/home", Log: log,
		Token: func(context.Context) (wire.Token, error) { return token, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.agent.Close() })
	r.wait(t, func() bool { return r.agent.Status().Proven })
	text, _, err := r.agent.OpenLink(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	link, err := pairing.ParseLink(text)
	if err != nil {
		t.Fatal(err)
	}
	r.link = link
	there := open("laptop")
	joined, err := client.Join(t.Context(), client.JoinOptions{Dir: there, Link: link, Device: "laptop"})
	if err != nil {
		t.Fatal(err)
	}
	r.machine = joined.Machine
	if r.key, err = sshlink.LoadKey(there.Path(state.DeviceKeyFile)); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) wait(t *testing.T, ok func() bool) {
	t.Helper()
	for range 1000 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("it did not come within 10 s")
}

// options reach the machine's built-in server through a relay's URL.
func (r *rig) options(t *testing.T, relay string) doctor.Options {
	t.Helper()
	target, err := r.machine.Target(wire.ServiceSSH)
	if err != nil {
		t.Fatal(err)
	}
	target.Relay = relay
	o := doctor.Options{Target: target, User: r.machine.User, Key: r.key, HTTP: http.DefaultClient}
	for _, line := range r.machine.HostKeys {
		k, err := pairing.ParseKey(line)
		if err != nil {
			t.Fatal(err)
		}
		o.HostKeys = append(o.HostKeys, k)
	}
	return o
}

// want runs a walk and checks that exactly one layer failed, those before it
// passed and those behind it were not asked.
func want(t *testing.T, o doctor.Options, cause doctor.Layer, words ...string) doctor.Report {
	t.Helper()
	var heard int
	o.OnCheck = func(doctor.Check) { heard++ }
	r := doctor.Run(t.Context(), o)
	if r.Cause != cause {
		t.Errorf("cause %q, want %q: %+v", r.Cause, cause, r)
	}
	if heard != len(r.Checks) {
		t.Errorf("heard %d checks of %d", heard, len(r.Checks))
	}
	expect := doctor.OK
	for _, c := range r.Checks {
		if c.Layer == cause {
			expect = doctor.Skipped
			if c.Status != doctor.Failed {
				t.Errorf("%s is %s", c.Layer, c.Status)
			}
			continue
		}
		// Plain http to an address has no name and no certificate to ask about.
		if c.Status != expect && !(c.Status == doctor.Skipped && (c.Layer == doctor.DNS || c.Layer == doctor.TLS)) {
			t.Errorf("%s is %s, want %s", c.Layer, c.Status, expect)
		}
	}
	for _, w := range words {
		if !strings.Contains(r.What+" / "+r.Do, w) {
			t.Errorf("says %q, do %q; want %q in it", r.What, r.Do, w)
		}
	}
	if cause != "" && r.Do == "" {
		t.Errorf("%s: nothing to do: %q", cause, r.What)
	}
	return r
}

func TestEveryLayerPasses(t *testing.T) {
	r := newRig(t)
	report := want(t, r.options(t, r.relay.Public.String()), "")
	var seen []string
	for _, c := range report.Checks {
		seen = append(seen, string(c.Layer))
		if c.Layer == doctor.Banner && !strings.HasPrefix(c.Detail, "SSH-2.0-") {
			t.Errorf("banner %q", c.Detail)
		}
	}
	if !report.OK() || report.Skew != 0 {
		t.Errorf("report %+v", report)
	}
	t.Log(strings.Join(seen, ", "))
}

func TestMachineIsAway(t *testing.T) {
	r := newRig(t)
	r.agent.Close()
	o := r.options(t, r.relay.Public.String())
	want(t, o, doctor.Held, "no agent is connected", "start holdfast")
}

func TestServiceIsDown(t *testing.T) {
	r := newRig(t)
	o := r.options(t, r.relay.Public.String())
	o.Target.Service = "" // this machine offers no sshd
	want(t, o, doctor.Banner)
	o.Target.Service = "nothing"
	want(t, o, doctor.Banner)
}

func TestWrongHostKey(t *testing.T) {
	r := newRig(t)
	other, err := sshlink.LoadOrCreateKey(t.TempDir()+"/key", pairing.TypeEd25519)
	if err != nil {
		t.Fatal(err)
	}
	o := r.options(t, r.relay.Public.String())
	o.HostKeys = []pairing.Key{other.Public()}
	report := doctor.Run(t.Context(), o)
	if report.Cause != doctor.HostKey || !report.Denied || !strings.Contains(report.What, other.Public().Fingerprint()) {
		t.Errorf("report %+v", report)
	}
}

func TestUnknownKeyIsDeniedAtLogin(t *testing.T) {
	r := newRig(t)
	other, err := sshlink.LoadOrCreateKey(t.TempDir()+"/key", pairing.TypeEd25519)
	if err != nil {
		t.Fatal(err)
	}
	// A link that is open lets an unknown key as far as pairing: five wrong
	// proofs close it.
	o := r.options(t, r.relay.Public.String())
	wrong := r.link
	wrong.Secret = pairing.NewSecret()
	for range pairing.MaxProofs {
		conn, err := o.Dialer.Stream(t.Context(), o.Target, false)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := sshlink.Pair(t.Context(), conn, wrong, other, "stranger"); err == nil {
			t.Fatal("a wrong secret paired")
		}
	}
	o.Key = other
	report := want(t, o, doctor.Login)
	if !report.Denied {
		t.Error("a denied key can be tried again")
	}
}

func TestRevokedToken(t *testing.T) {
	r := newRig(t)
	if err := r.relay.Store.RevokeDevice(t.Context(), account.Owner, r.machine.Device); err != nil {
		t.Fatal(err)
	}
	report := want(t, r.options(t, r.relay.Public.String()), doctor.Upgrade, "pair again")
	if !report.Denied {
		t.Error("a revoked token can be tried again")
	}
}

func TestNobodyListens(t *testing.T) {
	r := newRig(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	want(t, r.options(t, "http://"+l.Addr().String()), doctor.TCP)
}

func TestUnknownName(t *testing.T) {
	r := newRig(t)
	o := r.options(t, "https://relay.invalid") // reserved: it never resolves (RFC 2606)
	report := doctor.Run(t.Context(), o)
	if report.Cause != doctor.DNS {
		t.Errorf("report %+v", report)
	}
}

func TestUnknownIssuerIsNamed(t *testing.T) {
	r := newRig(t)
	srv := httptest.NewUnstartedServer(http.NotFoundHandler())
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	srv.StartTLS()
	defer srv.Close()
	want(t, r.options(t, srv.URL), doctor.TLS, "Acme Co") // who httptest's certificate says it is of
}

func TestProxyWithoutUpgrade(t *testing.T) {
	r := newRig(t)
	// A reverse proxy that forwards requests and drops the hop-by-hop headers,
	// as one that was not configured for WebSockets does.
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		req.Header.Del("Upgrade")
		req.Header.Del("Connection")
		httputil.NewSingleHostReverseProxy(r.relay.Local).ServeHTTP(w, req)
	}))
	defer proxy.Close()
	want(t, r.options(t, proxy.URL), doctor.Upgrade)
}

func TestCaptivePortal(t *testing.T) {
	r := newRig(t)
	for name, h := range map[string]http.HandlerFunc{
		"a page": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			io.WriteString(w, "<html>please log in</html>")
		},
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://portal.test/", http.StatusFound)
		},
		"a 401": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) },
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(h)
			defer srv.Close()
			report := want(t, r.options(t, srv.URL), doctor.Upgrade)
			if report.Denied {
				t.Error("a stranger's answer was believed")
			}
		})
	}
}

func TestClockIsOff(t *testing.T) {
	r := newRig(t)
	u, err := url.Parse(r.relay.Public.String())
	if err != nil {
		t.Fatal(err)
	}
	// What the relay would say if this computer's clock were 7 minutes ahead.
	proxy := httputil.NewSingleHostReverseProxy(u)
	proxy.ModifyResponse = func(resp *http.Response) error {
		resp.Header.Set("Date", time.Now().Add(-7*time.Minute).UTC().Format(http.TimeFormat))
		return nil
	}
	srv := httptest.NewServer(proxy)
	defer srv.Close()
	report := want(t, r.options(t, srv.URL), "")
	if report.Skew < 6*time.Minute || report.Skew > 8*time.Minute {
		t.Errorf("skew %v, want about 7m", report.Skew)
	}
}

func TestDialBackDoesNotCome(t *testing.T) {
	r := newRig(t)
	r.agent.Close()
	// An agent that takes the name and answers no dial.
	token := wire.NewToken()
	if err := r.relay.Store.AddToken(t.Context(), engine.Token{ID: "t-mute", Hash: token.Hash(), Account: account.Owner, Kind: engine.KindAgent, Name: "mute", Machine: "mini", Created: time.Now()}); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", r.relay.Local.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, "GET /agent/mini HTTP/1.1\r\nHost: relay\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"+
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nAuthorization: Bearer "+token.Secret()+"\r\n\r\n")
	go io.Copy(io.Discard, c) // ends with c
	o := r.options(t, r.relay.Public.String())
	api, err := o.Dialer.API(o.Target)
	if err != nil {
		t.Fatal(err)
	}
	defer api.Close()
	r.wait(t, func() bool {
		a, err := api.Access(t.Context(), "mini")
		return err == nil && a.State != wire.StateOffline
	})
	want(t, o, doctor.DialBack)
}
