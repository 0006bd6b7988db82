package gate

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"holdfast/internal/engine"
	"holdfast/internal/wire"
)

func TestWindows(t *testing.T) {
	w := NewWindows[string](3, time.Minute)
	at := time.Now()
	for i := range 3 {
		if wait, full := w.Full("a", at); full || wait != 0 {
			t.Fatalf("full after %d", i)
		}
		if _, ok := w.Take("a", at.Add(time.Duration(i)*time.Second)); !ok {
			t.Fatalf("refused at %d", i)
		}
	}
	if wait, ok := w.Take("a", at.Add(10*time.Second)); ok || wait != 50*time.Second {
		t.Errorf("the fourth: ok %v, wait %v", ok, wait)
	}
	if wait, full := w.Full("a", at.Add(10*time.Second)); !full || wait != 50*time.Second {
		t.Errorf("full %v, wait %v", full, wait)
	}
	if _, ok := w.Take("b", at); !ok {
		t.Error("another key was refused")
	}
	if _, ok := w.Take("a", at.Add(time.Minute)); !ok {
		t.Error("the window does not end")
	}
}

func TestWindowsAreBounded(t *testing.T) {
	w := NewWindows[int](1, time.Minute)
	at := time.Now()
	for i := range maxWindows + 3000 {
		w.Take(i, at)
	}
	if n := len(w.windows); n > maxWindows {
		t.Errorf("it remembers %d keys", n)
	}
	w.Take(-1, at.Add(time.Hour))
	for i := range maxWindows {
		w.Take(i, at.Add(time.Hour))
	}
	if n := len(w.windows); n > maxWindows {
		t.Errorf("it remembers %d keys", n)
	}
}

func newGate(t *testing.T, change ...func(*Options)) *Gate {
	t.Helper()
	store, err := engine.OpenSQLite(context.Background(), engine.InMemory, engine.SQLiteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	o := Options{Store: store, Log: slog.New(slog.DiscardHandler)}
	for _, f := range change {
		f(&o)
	}
	g, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestClient(t *testing.T) {
	g := newGate(t, func(o *Options) {
		o.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	})
	for _, tt := range []struct {
		peer string
		xff  []string
		want string
	}{
		{"192.0.2.7:1234", nil, "192.0.2.7"},
		{"192.0.2.7:1234", []string{"198.51.100.1"}, "192.0.2.7"},
		{"10.0.0.1:1", []string{"198.51.100.1"}, "198.51.100.1"},
		{"10.0.0.1:1", []string{"203.0.113.5, 198.51.100.1", "10.9.9.9"}, "198.51.100.1"},
		{"10.0.0.1:1", []string{"junk, 10.1.1.1"}, "10.1.1.1"},
		{"10.0.0.1:1", []string{"junk"}, "10.0.0.1"},
		{"10.0.0.1:1", nil, "10.0.0.1"},
		{"[fd00::1]:1", []string{"[2001:db8::5]:443"}, "2001:db8::5"},
		{"[::ffff:10.0.0.1]:1", []string{"::ffff:198.51.100.1"}, "198.51.100.1"},
		{"@", nil, "invalid IP"},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = tt.peer
		r.Header["X-Forwarded-For"] = tt.xff
		if got := g.Client(r).String(); got != tt.want {
			t.Errorf("%s via %q: got %s, want %s", tt.xff, tt.peer, got, tt.want)
		}
	}
}

func TestNewRefusesNonsense(t *testing.T) {
	store := newGate(t).store
	for i, o := range []Options{
		{}, {Store: store}, {Log: slog.Default()},
		{Store: store, Log: slog.Default(), Failures: -1}, {Store: store, Log: slog.Default(), Handshakes: -1},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("options %d were accepted", i)
		}
	}
}

func TestRefusalForms(t *testing.T) {
	ref := TooMany(1500*time.Millisecond, "slow down")
	w := httptest.NewRecorder()
	ref.WriteLine(w)
	if w.Code != 429 || w.Header().Get("Retry-After") != "2" || w.Body.String() != "slow down\n" || w.Header().Get(wire.HeaderRefusal) != "limit" {
		t.Errorf("line: %d %v %q", w.Code, w.Header(), w.Body)
	}
	w = httptest.NewRecorder()
	Refuse(http.StatusUnauthorized, wire.RefusalTokenUnknown, "who?").WriteProblem(w)
	if w.Code != 401 || w.Header().Get("WWW-Authenticate") != "Bearer" || !strings.Contains(w.Body.String(), `"code":"token-unknown"`) {
		t.Errorf("problem: %d %v %q", w.Code, w.Header(), w.Body)
	}
}

// fakeConn is a connection of an address that notes its end.
type fakeConn struct {
	net.Conn
	from   string
	closed bool
}

func (c *fakeConn) RemoteAddr() net.Addr { return fakeAddr(c.from) }
func (c *fakeConn) Close() error         { c.closed = true; return nil }

type fakeAddr string

func (fakeAddr) Network() string  { return "tcp" }
func (a fakeAddr) String() string { return string(a) }

func TestStalledHandshakes(t *testing.T) {
	g := newGate(t, func(o *Options) {
		o.Handshakes = 5
		o.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	})
	open := func(from string) (*fakeConn, *http.Request) {
		c := &fakeConn{from: from}
		r := httptest.NewRequest("GET", "/", nil)
		return c, r.WithContext(g.ConnContext(context.Background(), c))
	}
	var stalled []*fakeConn
	for i := range 8 {
		c, _ := open(fmt.Sprintf("192.0.2.1:%d", i))
		stalled = append(stalled, c)
	}
	arrived, r := open("192.0.2.1:99")
	g.Arrived(r)
	other, _ := open("192.0.2.2:1")
	proxied, _ := open("10.0.0.1:1")
	g.Sweep()
	for i, c := range stalled {
		if c.closed {
			t.Errorf("handshake %d had no time", i)
		}
	}
	for h := g.pending.byAddr[netip.MustParseAddr("192.0.2.1")].first; h != nil; h = h.next {
		h.since = h.since.Add(-handshakeGrace)
	}
	g.Sweep()
	for i, c := range stalled {
		if c.closed != (i < 3) {
			t.Errorf("handshake %d: closed %v", i, c.closed)
		}
	}
	if arrived.closed || other.closed || proxied.closed {
		t.Error("a connection that is not stalled was closed")
	}
	for _, c := range append(stalled, arrived, other, proxied) {
		g.ConnState(c, http.StateClosed)
	}
	if len(g.pending.conns)+len(g.pending.byAddr) != 0 {
		t.Errorf("%d connections and %d addresses are left", len(g.pending.conns), len(g.pending.byAddr))
	}
}
