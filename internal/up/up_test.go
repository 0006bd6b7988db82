package up

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast/internal/account"
	"holdfast/internal/engine"
	"holdfast/internal/local"
	"holdfast/internal/pairing"
	"holdfast/internal/state"
	"holdfast/internal/wire"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// Certmagic's keepers of locks end at their next look, 5 s later, and its
		// limit of rate lives as long as the process.
		goleak.IgnoreAnyFunction("github.com/caddyserver/certmagic.keepLockfileFresh"),
		goleak.IgnoreAnyFunction("github.com/caddyserver/certmagic.(*RingBufferRateLimiter).loop"))
}

func testDir(t *testing.T) state.Dir {
	t.Helper()
	dir, err := state.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

var quiet = slog.New(slog.DiscardHandler)

func TestMachineName(t *testing.T) {
	for in, want := range map[string]wire.MachineID{
		"mini": "mini", "Ann's MacBook Pro.local": "Ann-s-MacBook-Pro", "host.example.com": "host",
		"": "machine", "...": "machine", "-_-": "machine", "日本": "machine", "a_b-c": "a_b-c",
		strings.Repeat("x", 100): wire.MachineID(strings.Repeat("x", 64)),
	} {
		got := MachineName(in)
		if got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
		if _, err := wire.ParseMachineID(string(got)); err != nil {
			t.Errorf("%q: %v", in, err)
		}
	}
}

func TestSettleKeepsTheIdentity(t *testing.T) {
	dir := testDir(t)
	id, err := Settle(dir, "", "", "desk.local")
	if err != nil || id.Machine != "desk" {
		t.Fatalf("first: %+v, %v", id, err)
	}
	// The computer has been renamed since.
	if id, err = Settle(dir, "", "", "other"); err != nil || id.Machine != "desk" {
		t.Errorf("second: %+v, %v", id, err)
	}
	var other *MachineError
	if _, err = Settle(dir, "", "mini", "desk"); !errors.As(err, &other) || other.Have != "desk" {
		t.Errorf("another name: %v", err)
	}
	if id, err = Settle(dir, "https://relay.example", "desk", ""); err != nil || id.Relay != "https://relay.example" {
		t.Errorf("another relay: %+v, %v", id, err)
	}
	if id, err = LoadIdentity(dir); err != nil || id.Machine != "desk" || id.Relay != "https://relay.example" {
		t.Errorf("read back: %+v, %v", id, err)
	}
	if err := os.WriteFile(dir.Path(state.AgentFile), []byte(`{"machine":"a/b"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Settle(dir, "", "", "x"); err == nil {
		t.Error("a damaged identity is overwritten")
	}
}

// TestOwnToken makes a token once, and another where the first is no good.
func TestOwnToken(t *testing.T) {
	ctx := context.Background()
	dir := testDir(t)
	open := func(name string) engine.Store {
		store, err := engine.OpenSQLite(ctx, dir.Path(name), engine.SQLiteOptions{NoFollow: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { store.Close() })
		return store
	}
	store := open("one.db")
	get := func(store engine.Store, m wire.MachineID) wire.Token {
		t.Helper()
		token, err := OwnToken(ctx, dir, store, m)
		if err != nil {
			t.Fatal(err)
		}
		known, err := store.TokenByHash(ctx, token.Hash())
		if err != nil || known.Machine != m || known.Account != account.Owner || known.Kind != engine.KindAgent {
			t.Errorf("the store knows %+v, %v", known, err)
		}
		return token
	}
	first := get(store, "mini")
	if st, err := os.Stat(dir.Path(state.AgentTokenFile)); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the token's file: %v, %v", st, err)
	}
	if again := get(store, "mini"); again != first {
		t.Error("the second start has another token")
	}
	known, err := store.TokenByHash(ctx, first.Hash())
	if err != nil {
		t.Fatal(err)
	}
	if err := store.RevokeToken(ctx, account.Owner, known.ID); err != nil {
		t.Fatal(err)
	}
	second := get(store, "mini")
	if second == first {
		t.Error("a revoked token is used again")
	}
	// The store was lost.
	if third := get(open("two.db"), "mini"); third == second {
		t.Error("a token that the store does not know is used")
	}
	if err := os.WriteFile(dir.Path(state.AgentTokenFile), []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OwnToken(ctx, dir, store, "mini"); err == nil || strings.Contains(err.Error(), "garbage") {
		t.Errorf("a damaged token file: %v", err)
	}
}

func TestWhereARelayMayListen(t *testing.T) {
	public := &url.URL{Scheme: "https", Host: "relay.example"}
	start := func(o RelayOptions) error {
		o.StorePath, o.Log = filepath.Join(t.TempDir(), "relay.db"), quiet
		r, err := StartRelay(context.Background(), o)
		if err == nil {
			err = r.Close()
		}
		return err
	}
	for _, listen := range []string{":0", "0.0.0.0:0", "[::]:0", "192.0.2.1:0", "relay.example:0"} {
		if err := start(RelayOptions{Listen: listen}); !errors.Is(err, ErrInsecureListen) {
			t.Errorf("%s: %v", listen, err)
		}
	}
	for _, o := range []RelayOptions{
		{Listen: "127.0.0.1:0"}, {Listen: "localhost:0"},
		{Listen: "0.0.0.0:0", InsecureHTTP: true}, {Listen: "0.0.0.0:0", PublicURL: public},
	} {
		if err := start(o); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	var taken *ListenError
	if err := start(RelayOptions{Listen: ln.Addr().String()}); !errors.As(err, &taken) || strings.Count(err.Error(), ln.Addr().String()) != 1 {
		t.Errorf("a taken port: %v", err)
	}
}

// testCert writes a certificate for names, and gives the pool that trusts it.
func testCert(t *testing.T, names ...string) (certFile, keyFile string, pool *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	if err := os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600); err != nil {
		t.Fatal(err)
	}
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return certFile, keyFile, pool
}

// TestRelayAndAgent puts both together behind TLS: the agent gets in, a dial-back
// proves it, a link opens, and metrics are served where they are wanted.
func TestRelayAndAgent(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	dir := testDir(t)
	cert, key, pool := testCert(t, "*.wild.example", "relay.test")
	metrics, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := metrics.Addr().String()
	metrics.Close()
	r, err := StartRelay(ctx, RelayOptions{
		StorePath: dir.Path(state.StoreFile), Listen: "127.0.0.1:0", TLSCert: cert, TLSKey: key, MetricsListen: addr, Log: quiet,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Public.Scheme != "https" || r.Public.Hostname() != "relay.test" || r.Local.Hostname() != "127.0.0.1" {
		t.Errorf("devices reach it at %s, its own agent at %s", r.Public, r.Local)
	}
	token, err := OwnToken(ctx, dir, r.Store, "mini")
	if err != nil {
		t.Fatal(err)
	}
	a, err := StartAgent(AgentOptions{
		Dir: dir, Relay: r.Local, Public: r.Public, Machine: "mini", Home: t.TempDir(), Log: quiet,
		Token: func(context.Context) (wire.Token, error) { return token, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	for !a.Status().Proven {
		select {
		case <-ctx.Done():
			t.Fatalf("the agent does not get in: %+v", a.Status())
		case <-time.After(10 * time.Millisecond):
		}
	}
	info, err := a.Machine(ctx)
	if err != nil || info.State != wire.StateReachable {
		t.Errorf("the relay says %+v, %v", info, err)
	}
	answer, err := local.Ask(ctx, dir, local.Request{Op: local.OpPair})
	if err != nil || answer.Error != "" {
		t.Fatalf("pair: %+v, %v", answer, err)
	}
	link, err := pairing.ParseLink(answer.Link)
	if err != nil || link.Relay != r.Public.String() || link.Machine != "mini" || len(link.HostKeys) != 2 {
		t.Errorf("the link is for %v (%v)", link, err)
	}
	if left := time.Until(link.Expires); left > pairing.TTL || left < pairing.TTL-time.Minute {
		t.Errorf("the link is valid for %v", left)
	}
	if answer, err := local.Ask(ctx, dir, local.Request{Op: "strange"}); err != nil || answer.Error == "" {
		t.Errorf("a strange question: %+v, %v", answer, err)
	}
	if answer, err := local.Ask(ctx, dir, local.Request{Op: local.OpRevoke, Device: "d-nosuch"}); err != nil || answer.Error == "" {
		t.Errorf("a device that is not there was revoked: %+v, %v", answer, err)
	}

	// From outside, over TLS.
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: "relay.test"}, DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: transport}).Get("https://127.0.0.1:" + r.Listening.Port() + "/readyz")
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("readyz: %v, %v", resp, err)
	}
	resp.Body.Close()
	resp, err = (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get("http://" + addr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || !strings.Contains(string(b), "holdfast_") || strings.Contains(string(b), token.Secret()) {
		t.Errorf("metrics: %v\n%.300s", err, b)
	}
	a.Close()
	if err := r.Drain(); err != nil {
		t.Error(err)
	}
}

// TestOffline needs a directory of `up` on which nothing runs.
func TestOffline(t *testing.T) {
	ctx := context.Background()
	dir := testDir(t)
	if _, err := OpenOffline(ctx, dir, t.TempDir()); !errors.Is(err, state.ErrNotRunning) {
		t.Errorf("an empty directory: %v", err)
	}
	if _, err := Settle(dir, "", "mini", ""); err != nil {
		t.Fatal(err)
	}
	store, err := engine.OpenSQLite(ctx, dir.Path(state.StoreFile), engine.SQLiteOptions{NoFollow: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OwnToken(ctx, dir, store, "mini"); err != nil {
		t.Fatal(err)
	}
	store.Close()
	o, err := OpenOffline(ctx, dir, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenOffline(ctx, dir, t.TempDir()); !errors.Is(err, state.ErrLocked) {
		t.Errorf("a second time: %v", err)
	}
	if list, err := o.Devices(ctx); err != nil || len(list) != 0 {
		t.Errorf("devices: %v, %v", list, err)
	}
	if err := o.Revoke(ctx, "d-nosuch"); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("a device that is not there: %v", err)
	}
	if err := o.Close(); err != nil {
		t.Error(err)
	}
}
