package relay

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"holdfast/internal/account"
	"holdfast/internal/engine"
	"holdfast/internal/wire"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// Idle connections of http.DefaultTransport's kind, which the rig closes in
		// its own time.
		goleak.IgnoreTopFunction("net/http.(*persistConn).readLoop"),
		goleak.IgnoreTopFunction("net/http.(*persistConn).writeLoop"))
}

// rig is a relay with its store, and the tokens of two accounts.
type rig struct {
	t        testing.TB
	store    engine.Store
	router   engine.Router
	relay    *Relay
	accounts *account.Accounts
	addr     string
	client   *http.Client
	dialer   func(ctx context.Context, network, addr string) (net.Conn, error)
	log      *logBuffer
}

// ctx bounds every step of a test.
func (g *rig) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	g.t.Cleanup(cancel)
	return ctx
}

type logBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// newRig starts a relay on loopback with an account "ann" that has a machine
// "mini", and an account "bob".
func newRig(t testing.TB, change ...func(*Options)) *rig {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return newRigOn(t, l, (&net.Dialer{}).DialContext, change...)
}

func newRigOn(t testing.TB, l net.Listener, dial func(context.Context, string, string) (net.Conn, error), change ...func(*Options)) *rig {
	t.Helper()
	store, err := engine.OpenSQLite(context.Background(), engine.InMemory, engine.SQLiteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	g := &rig{t: t, store: store, router: engine.NewMemoryRouter(), addr: l.Addr().String(), dialer: dial, log: &logBuffer{}}
	if g.accounts, err = account.New(account.Options{Store: store}); err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DialContext: dial}
	g.client = &http.Client{Transport: transport}
	o := Options{Store: store, Router: g.router, Log: slog.New(slog.NewTextHandler(g.log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	for _, f := range change {
		f(&o)
	}
	if g.relay, err = New(o); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- g.relay.Serve(l) }() // Close ends it; the cleanup waits
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		if err := g.relay.Close(); err != nil {
			t.Errorf("close the relay: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		if err := errors.Join(g.router.Close(), g.store.Close()); err != nil {
			t.Errorf("close router and store: %v", err)
		}
		if os.Getenv("HOLDFAST_TEST_LOG") != "" {
			t.Log(g.log)
		}
	})
	for _, a := range []string{"ann", "bob"} {
		if _, err := g.accounts.Create(context.Background(), a); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

// issued is a token of a test.
type issued struct {
	text string
	engine.Token
}

func (g *rig) token(acc engine.AccountID, kind engine.TokenKind, machine wire.MachineID) issued {
	g.t.Helper()
	return g.tokenFor(acc, kind, machine, 0)
}

func (g *rig) tokenFor(acc engine.AccountID, kind engine.TokenKind, machine wire.MachineID, life time.Duration) issued {
	g.t.Helper()
	i, err := g.accounts.Issue(context.Background(), account.Request{Account: acc, Kind: kind, Name: "test", Machine: machine, Lifetime: life})
	if err != nil {
		g.t.Fatal(err)
	}
	return issued{i.Text.Secret(), i.Token}
}

func (g *rig) agentToken(machine wire.MachineID) issued {
	g.t.Helper()
	return g.token("ann", engine.KindAgent, machine)
}

func (g *rig) deviceToken() issued {
	g.t.Helper()
	return g.token("ann", engine.KindDevice, "")
}

// header makes request headers: name, value, name, value.
func header(token string, more ...string) http.Header {
	h := http.Header{}
	if token != "" {
		h.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i < len(more); i += 2 {
		h.Add(more[i], more[i+1])
	}
	return h
}

func (g *rig) open(path string, h http.Header, protocols ...string) (*websocket.Conn, *http.Response, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	ws, resp, err := websocket.Dial(ctx, "ws://"+g.addr+path, &websocket.DialOptions{
		HTTPClient: g.client, HTTPHeader: h, Subprotocols: protocols, CompressionMode: websocket.CompressionDisabled,
	})
	if err == nil {
		ws.SetReadLimit(-1)
		g.t.Cleanup(func() { _ = ws.CloseNow() })
	}
	return ws, resp, err
}

func (g *rig) mustOpen(path string, h http.Header, protocols ...string) *websocket.Conn {
	g.t.Helper()
	ws, resp, err := g.open(path, h, protocols...)
	if err != nil {
		g.t.Fatalf("open %s: %v (%s)", path, err, bodyOf(resp))
	}
	return ws
}

func bodyOf(resp *http.Response) string {
	if resp == nil || resp.Body == nil {
		return ""
	}
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	return string(b)
}

// agent is a machine's control connection, played by the test.
type agent struct {
	t       testing.TB
	rig     *rig
	machine wire.MachineID
	token   issued
	ws      *websocket.Conn
}

func (g *rig) agent(machine wire.MachineID, tok issued, more ...string) *agent {
	g.t.Helper()
	ws := g.mustOpen(wire.AgentPath(machine), header(tok.text, more...), wire.SubprotocolV1)
	return &agent{g.t, g, machine, tok, ws}
}

// ready is an agent that has had its pong: the relay has done all of its joining.
func (g *rig) ready(machine wire.MachineID, more ...string) *agent {
	g.t.Helper()
	a := g.agent(machine, g.agentToken(machine), more...)
	a.pong()
	return a
}

func (a *agent) send(v any) {
	a.t.Helper()
	b, ok := v.([]byte)
	if !ok {
		var err error
		if b, err = json.Marshal(v); err != nil {
			a.t.Fatal(err)
		}
	}
	if err := a.ws.Write(a.rig.ctx(), websocket.MessageText, b); err != nil {
		a.t.Fatalf("agent writes: %v", err)
	}
}

// next reads the next control message.
func (a *agent) next() wire.Message {
	a.t.Helper()
	m, err := a.read(20 * time.Second)
	if err != nil {
		a.t.Fatalf("agent reads: %v", err)
	}
	return m
}

func (a *agent) read(limit time.Duration) (wire.Message, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	typ, b, err := a.ws.Read(ctx)
	if err != nil {
		return wire.Message{}, err
	}
	if typ != websocket.MessageText {
		return wire.Message{}, errors.New("not text")
	}
	return wire.DecodeControl(b)
}

// pong does one application round trip.
func (a *agent) pong() {
	a.t.Helper()
	a.send(wire.Message{Op: wire.OpPing})
	if m := a.next(); m.Op != wire.OpPong {
		a.t.Fatalf("after ping: got %+v", m)
	}
}

// dialBack answers a dial.
func (a *agent) dialBack(m wire.Message) *websocket.Conn {
	a.t.Helper()
	if m.Op != wire.OpDial {
		a.t.Fatalf("want a dial, got %+v", m)
	}
	return a.rig.mustOpen(wire.AgentDataPath(a.machine, m.ConnID), header(a.token.text), m.Proto)
}

// closeOf reads until the peer closes and gives its close frame.
func closeOf(t testing.TB, ws *websocket.Conn, limit time.Duration) websocket.CloseError {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for {
		_, _, err := ws.Read(ctx)
		var ce websocket.CloseError
		if errors.As(err, &ce) {
			return ce
		}
		if err != nil {
			t.Fatalf("want a close frame, got %v", err)
		}
	}
}

func wantClose(t testing.TB, ws *websocket.Conn, code wire.CloseCode, reason string) {
	t.Helper()
	ce := closeOf(t, ws, 20*time.Second)
	if ce.Code != websocket.StatusCode(code) || !strings.Contains(ce.Reason, reason) {
		t.Errorf("closed %d %q, want %d with %q", ce.Code, ce.Reason, code, reason)
	}
}

// device opens a stream.
func (g *rig) device(machine wire.MachineID, tok issued, service wire.ServiceName) *websocket.Conn {
	g.t.Helper()
	return g.mustOpen(wire.ConnectPath(machine, service), header(tok.text), wire.SubprotocolV1)
}

// pair opens a stream through a.
func (g *rig) pair(a *agent, tok issued) (dev, agt *websocket.Conn) {
	g.t.Helper()
	dev = g.device(a.machine, tok, "")
	return dev, a.dialBack(a.next())
}

// metric reads a counter or gauge of the relay, or a histogram's count, by name
// and label values; several that match are added up.
func (g *rig) metric(name string, values ...string) float64 {
	g.t.Helper()
	reg := prometheus.NewRegistry()
	if err := reg.Register(g.relay.meter); err != nil {
		g.t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		g.t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
	metrics:
		for _, m := range f.GetMetric() {
			var has []string
			for _, l := range m.GetLabel() {
				has = append(has, l.GetValue())
			}
			for _, want := range values {
				if !slices.Contains(has, want) {
					continue metrics
				}
			}
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

// eventually waits for a condition that has no event to wait for.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for until := time.Now().Add(20 * time.Second); time.Now().Before(until); {
		if f() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("never: %s", what)
}

var keyOfMini = engine.Key{Account: "ann", Machine: "mini"}
