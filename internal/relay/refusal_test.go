package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"holdfast/internal/engine"
	"holdfast/internal/wire"
)

const unknownToken = "hf_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"

// upgradeHeaders are those of a good handshake.
func upgradeHeaders(token string, more ...string) []string {
	h := []string{"Upgrade", "websocket", "Connection", "Upgrade", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", rawKey}
	if token != "" {
		h = append(h, "Authorization", "Bearer "+token)
	}
	return append(h, more...)
}

// without leaves a header out.
func without(h []string, name string) []string {
	var out []string
	for i := 0; i < len(h); i += 2 {
		if h[i] != name {
			out = append(out, h[i], h[i+1])
		}
	}
	return out
}

func TestRefusals(t *testing.T) {
	// A table of failures is not the place to meet the limit of an address.
	g := newRig(t, func(o *Options) { o.Limits.Failures = 1000 })
	agentTok, device := g.agentToken("mini"), g.deviceToken()
	g.token("bob", engine.KindAgent, "other")
	revoked := g.deviceToken()
	if err := g.accounts.Revoke(g.ctx(), "ann", revoked.ID); err != nil {
		t.Fatal(err)
	}
	expired := g.tokenFor("ann", engine.KindDevice, "", time.Nanosecond)
	live := g.ready("live")
	connID := string(wire.NewConnID("n"))
	bad := strings.Repeat("m", 65)

	tests := []struct {
		name    string
		path    string
		headers []string
		status  int
		code    wire.Refusal
	}{
		// Syntax, whatever else is wrong.
		{"no connection header", "/connect/mini", without(upgradeHeaders(unknownToken), "Connection"), 400, wire.RefusalSyntax},
		{"no key", "/connect/mini", without(upgradeHeaders(""), "Sec-WebSocket-Key"), 400, wire.RefusalSyntax},
		{"short key", "/connect/mini", append(without(upgradeHeaders(""), "Sec-WebSocket-Key"), "Sec-WebSocket-Key", "c2hvcnQ="), 400, wire.RefusalSyntax},
		{"two keys", "/connect/mini", upgradeHeaders(unknownToken, "Sec-WebSocket-Key", rawKey), 400, wire.RefusalSyntax},
		{"old version", "/connect/mini", append(without(upgradeHeaders(""), "Sec-WebSocket-Version"), "Sec-WebSocket-Version", "8"), 400, wire.RefusalSyntax},
		{"subprotocol is no token", "/connect/mini", upgradeHeaders(unknownToken, "Sec-WebSocket-Protocol", "holdfast.v1, b{d"), 400, wire.RefusalSyntax},
		{"malformed token", "/connect/mini", upgradeHeaders("hf_not/base64"), 400, wire.RefusalSyntax},
		{"token without prefix", "/connect/mini", upgradeHeaders("secret"), 400, wire.RefusalSyntax},
		{"token too long", "/connect/mini", upgradeHeaders("hf_" + strings.Repeat("A", 400)), 400, wire.RefusalSyntax},
		{"two tokens", "/connect/mini", upgradeHeaders(device.text, "Authorization", "Bearer "+unknownToken), 400, wire.RefusalSyntax},
		{"two tokens, one as subprotocol", "/connect/mini", upgradeHeaders(device.text, "Sec-WebSocket-Protocol", "holdfast.v1, holdfast.bearer."+unknownToken), 400, wire.RefusalSyntax},
		{"token in the query", "/connect/mini?token=x", upgradeHeaders(device.text), 400, wire.RefusalSyntax},
		{"access_token in the query", "/connect/mini?access_token=x", upgradeHeaders(device.text), 400, wire.RefusalSyntax},
		{"Bearer in the query", "/connect/mini?Bearer=x", upgradeHeaders(device.text), 400, wire.RefusalSyntax},
		{"token as a query value", "/connect/mini?x=" + unknownToken, upgradeHeaders(device.text), 400, wire.RefusalSyntax},
		{"token as a query key", "/connect/mini?" + unknownToken, upgradeHeaders(device.text), 400, wire.RefusalSyntax},
		{"token behind a semicolon", "/connect/mini?x;token=" + unknownToken, upgradeHeaders(device.text), 400, wire.RefusalSyntax},
		{"token in a bad escape", "/connect/mini?x=%zz" + unknownToken, upgradeHeaders(device.text), 400, wire.RefusalSyntax},
		{"malformed instance", "/agent/mini", upgradeHeaders(agentTok.text, wire.HeaderInstance, "sp{ce"), 400, wire.RefusalSyntax},
		{"two instances", "/agent/mini", upgradeHeaders(agentTok.text, wire.HeaderInstance, "instance-0123456789", wire.HeaderInstance, "instance-9876543210"), 400, wire.RefusalSyntax},
		{"attempt zero", "/agent/mini", upgradeHeaders(agentTok.text, wire.HeaderInstance, "instance-0123456789", wire.HeaderAttempt, "0"), 400, wire.RefusalSyntax},
		{"attempt is no number", "/agent/mini", upgradeHeaders(agentTok.text, wire.HeaderAttempt, "-1"), 400, wire.RefusalSyntax},
		{"instance before token", "/agent/mini", upgradeHeaders("", wire.HeaderInstance, "!"), 400, wire.RefusalSyntax},
		// The token, before the path.
		{"no token", "/connect/mini", upgradeHeaders(""), 401, wire.RefusalTokenMissing},
		{"no token, bad path", "/connect/!", upgradeHeaders(""), 401, wire.RefusalTokenMissing},
		{"other scheme", "/connect/mini", upgradeHeaders("", "Authorization", "Basic aGY6aGY="), 401, wire.RefusalTokenMissing},
		{"unknown token", "/connect/mini", upgradeHeaders(unknownToken), 401, wire.RefusalTokenUnknown},
		{"unknown token, bad path", "/agent/" + bad, upgradeHeaders(unknownToken), 401, wire.RefusalTokenUnknown},
		{"expired token", "/connect/mini", upgradeHeaders(expired.text), 401, wire.RefusalTokenExpired},
		{"revoked token", "/connect/mini", upgradeHeaders(revoked.text), 401, wire.RefusalTokenRevoked},
		{"no token, no upgrade", "/agent/mini", nil, 401, wire.RefusalTokenMissing},
		// The path.
		{"empty machine", "/connect/", upgradeHeaders(device.text), 400, wire.RefusalPath},
		{"long machine", "/connect/" + bad, upgradeHeaders(device.text), 400, wire.RefusalPath},
		{"machine starts with a dot", "/connect/.mini", upgradeHeaders(device.text), 400, wire.RefusalPath},
		{"escaped machine", "/connect/m%69ni", upgradeHeaders(device.text), 400, wire.RefusalPath},
		{"two segments", "/connect/mini/x", upgradeHeaders(device.text), 400, wire.RefusalPath},
		{"bad service", "/connect/mini?service=a/b", upgradeHeaders(device.text), 400, wire.RefusalPath},
		{"empty service", "/connect/mini?service=", upgradeHeaders(device.text), 400, wire.RefusalPath},
		{"two services", "/connect/mini?service=a&service=b", upgradeHeaders(device.text), 400, wire.RefusalPath},
		{"no connection id", "/agent-data/mini", upgradeHeaders(agentTok.text), 400, wire.RefusalPath},
		{"bad connection id", "/agent-data/mini/x!z", upgradeHeaders(agentTok.text), 400, wire.RefusalPath},
		{"bad path before wrong kind", "/agent/-", upgradeHeaders(device.text), 400, wire.RefusalPath},
		// What the token may do.
		{"machine of another account", "/connect/other", upgradeHeaders(device.text), 403, wire.RefusalNotAllowed},
		{"machine that does not exist", "/connect/nowhere", upgradeHeaders(device.text), 403, wire.RefusalNotAllowed},
		{"agent token for connect", "/connect/mini", upgradeHeaders(agentTok.text), 403, wire.RefusalNotAllowed},
		{"device token for agent", "/agent/mini", upgradeHeaders(device.text), 403, wire.RefusalNotAllowed},
		{"device token for agent-data", "/agent-data/mini/" + connID, upgradeHeaders(device.text), 403, wire.RefusalNotAllowed},
		{"agent of another machine", "/agent/live", upgradeHeaders(agentTok.text), 403, wire.RefusalNotAllowed},
		{"agent-data of another machine", "/agent-data/live/" + connID, upgradeHeaders(agentTok.text), 403, wire.RefusalNotAllowed},
		{"not allowed before version", "/connect/nowhere", upgradeHeaders(device.text, "Sec-WebSocket-Protocol", "holdfast.v9"), 403, wire.RefusalNotAllowed},
		// Connection ids.
		{"unknown connection id", "/agent-data/live/" + connID, upgradeHeaders(live.token.text), 404, wire.RefusalNotFound},
		{"unknown connection id before version", "/agent-data/live/" + connID, upgradeHeaders(live.token.text, "Sec-WebSocket-Protocol", "holdfast.v9"), 404, wire.RefusalNotFound},
		// Versions.
		{"strange version", "/connect/mini", upgradeHeaders(device.text, "Sec-WebSocket-Protocol", "holdfast.v9"), 426, wire.RefusalVersion},
		{"resume alone", "/connect/mini", upgradeHeaders(device.text, "Sec-WebSocket-Protocol", "holdfast.resume.v1"), 426, wire.RefusalVersion},
		{"strange version of an agent", "/agent/mini", upgradeHeaders(agentTok.text, "Sec-WebSocket-Protocol", "holdfast.v2"), 426, wire.RefusalVersion},
		{"no upgrade with a good token", "/connect/mini", []string{"Authorization", "Bearer " + device.text}, 400, wire.RefusalSyntax},
		// Elsewhere.
		{"no such path", "/agents/mini", upgradeHeaders(agentTok.text), 404, wire.RefusalNotFound},
		{"no such channel", "/v1/live/feed", upgradeHeaders(device.text), 404, wire.RefusalNotFound},
		{"channel without token", "/v1/live/feed", upgradeHeaders(""), 401, wire.RefusalTokenMissing},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			conn, resp := g.rawRequest("GET", tt.path, tt.headers...)
			defer conn.Close()
			if resp.StatusCode != tt.status || resp.Header.Get(wire.HeaderRefusal) != string(tt.code) {
				t.Fatalf("got %d %q, want %d %q", resp.StatusCode, resp.Header.Get(wire.HeaderRefusal), tt.status, tt.code)
			}
			body := bodyOf(resp)
			if strings.Count(body, "\n") != 1 || !strings.HasSuffix(body, "\n") || len(body) < 10 {
				t.Errorf("body is not one plain line: %q", body)
			}
			if strings.Contains(body, "hf_A") || strings.Contains(body, device.text) {
				t.Errorf("body repeats a token: %q", body)
			}
		})
	}
	t.Run("403 tells nothing", func(t *testing.T) {
		bodies := map[string]bool{}
		for _, path := range []string{"/connect/other", "/connect/nowhere"} {
			_, resp := g.rawRequest("GET", path, upgradeHeaders(device.text)...)
			bodies[fmt.Sprint(bodyOf(resp), resp.Header.Get("Content-Length"))] = true
		}
		if len(bodies) != 1 {
			t.Errorf("the answers differ: %v", bodies)
		}
	})
	t.Run("426 names both versions", func(t *testing.T) {
		_, resp := g.rawRequest("GET", "/connect/mini", upgradeHeaders(device.text, "Sec-WebSocket-Protocol", "holdfast.v9")...)
		if body := bodyOf(resp); !strings.Contains(body, "holdfast.v1") || !strings.Contains(body, "holdfast.v9") {
			t.Errorf("body %q", body)
		}
	})
	if log := g.log.String(); strings.Contains(log, "hf_") || strings.Contains(log, device.text) {
		t.Errorf("a token is in the log: %s", log)
	}
}

func TestOtherMethodsAreSyntax(t *testing.T) {
	g := newRig(t)
	_, resp := g.rawRequest("POST", "/connect/mini", upgradeHeaders(g.deviceToken().text, "Content-Length", "0")...)
	if resp.StatusCode != 400 {
		t.Errorf("POST: got %s", resp.Status)
	}
}

func TestSelectedSubprotocol(t *testing.T) {
	g := newRig(t)
	g.ready("mini")
	device := g.deviceToken()
	for _, tt := range []struct{ offered, selected string }{
		{"", ""},
		{"holdfast.v1", "holdfast.v1"},
		{"holdfast.resume.v1, holdfast.v1", "holdfast.v1"},
		{"holdfast.v9, holdfast.v1", "holdfast.v1"},
		{"chat", ""},
		{"holdfast.v1, holdfast.bearer." + device.text, "holdfast.v1"},
		{"holdfast.bearer." + device.text + ", holdfast.v1", "holdfast.v1"},
	} {
		headers := upgradeHeaders(device.text)
		if tt.offered != "" {
			headers = append(headers, "Sec-WebSocket-Protocol", tt.offered)
		}
		if strings.Contains(tt.offered, "bearer") {
			headers = without(headers, "Authorization")
		}
		conn, resp := g.rawRequest("GET", "/connect/mini", headers...)
		if got := resp.Header.Get("Sec-WebSocket-Protocol"); resp.StatusCode != 101 || got != tt.selected {
			t.Errorf("offered %q: got %s, selected %q", tt.offered, resp.Status, got)
		}
		_ = conn.Close()
	}
}

func TestBrowserLearnsVersionByCloseCode(t *testing.T) {
	g := newRig(t)
	g.ready("mini")
	device := g.deviceToken()
	conn, resp := g.rawRequest("GET", "/connect/mini", without(upgradeHeaders(device.text, "Origin", "https://app.example",
		"Sec-WebSocket-Protocol", "holdfast.bearer."+device.text+", holdfast.v7, holdfast.resume.v3"), "Authorization")...)
	if resp.StatusCode != 101 || resp.Header.Get("Sec-WebSocket-Protocol") != "holdfast.v7" {
		t.Fatalf("got %s, %q", resp.Status, resp.Header.Get("Sec-WebSocket-Protocol"))
	}
	code, reason, err := closeCode(conn)
	if err != nil || code != uint16(wire.CloseVersion) || !strings.Contains(reason, "holdfast.v1") || !strings.Contains(reason, "holdfast.v7") {
		t.Errorf("closed %d %q %v", code, reason, err)
	}
	if strings.Contains(reason, "hf_") {
		t.Errorf("the reason holds a token: %q", reason)
	}
}

func TestFailedAuthenticationsOfAnAddress(t *testing.T) {
	g := newRig(t)
	g.ready("mini")
	device := g.deviceToken()
	try := func(token string) *http.Response {
		_, resp := g.rawRequest("GET", "/connect/mini", upgradeHeaders(token)...)
		return resp
	}
	for i := range 20 {
		if resp := try(unknownToken); resp.StatusCode != 401 {
			t.Fatalf("failure %d: got %s", i+1, resp.Status)
		}
	}
	resp := try(unknownToken)
	if resp.StatusCode != 429 || resp.Header.Get("Retry-After") == "" || resp.Header.Get(wire.HeaderRefusal) != string(wire.RefusalLimit) {
		t.Errorf("failure 21: got %s, %v", resp.Status, resp.Header)
	}
	if resp := try(device.text); resp.StatusCode != 101 {
		t.Errorf("a good token was refused for its address: %s", resp.Status)
	}
}

func TestForwardedAddressCountsBehindAProxy(t *testing.T) {
	g := newRig(t, func(o *Options) {
		o.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
		o.Limits.Failures = 1
	})
	try := func(forwarded string) int {
		_, resp := g.rawRequest("GET", "/connect/mini", upgradeHeaders(unknownToken, "X-Forwarded-For", forwarded)...)
		return resp.StatusCode
	}
	for _, tt := range []struct {
		forwarded string
		status    int
	}{
		{"192.0.2.1", 401}, {"192.0.2.1", 429}, {"192.0.2.2", 401},
		{"192.0.2.9, 192.0.2.1", 429},              // what stands left is the client's own word
		{"192.0.2.3, 127.0.0.9", 401},              // one proxy behind another
		{"192.0.2.3", 429},                         // the same client
		{"2001:db8::1", 401}, {"2001:db8::2", 429}, // one subscriber's /64
	} {
		if got := try(tt.forwarded); got != tt.status {
			t.Errorf("X-Forwarded-For %q: got %d, want %d", tt.forwarded, got, tt.status)
		}
	}
}

func TestForwardedAddressIsNotBelievedOtherwise(t *testing.T) {
	g := newRig(t, func(o *Options) { o.Limits.Failures = 1 })
	for i, want := range []int{401, 429} {
		_, resp := g.rawRequest("GET", "/connect/mini", upgradeHeaders(unknownToken, "X-Forwarded-For", fmt.Sprintf("192.0.2.%d", i))...)
		if resp.StatusCode != want {
			t.Errorf("request %d: got %s, want %d", i, resp.Status, want)
		}
	}
}

// failingStore fails where it is told to.
type failingStore struct {
	engine.Store
	tokens, machines, claim bool
}

var errStore = errors.New("disk on fire")

func (s *failingStore) TokenByHash(ctx context.Context, h [32]byte) (engine.Token, error) {
	if s.tokens {
		return engine.Token{}, errStore
	}
	return s.Store.TokenByHash(ctx, h)
}

func (s *failingStore) Machine(ctx context.Context, k engine.Key) (engine.Machine, error) {
	if s.machines {
		return engine.Machine{}, errStore
	}
	return s.Store.Machine(ctx, k)
}

func (s *failingStore) Claim(ctx context.Context, k engine.Key, i wire.Instance, n uint64) (uint64, error) {
	if s.claim {
		return 0, errStore
	}
	return s.Store.Claim(ctx, k, i, n)
}

func (s *failingStore) Ping(context.Context) error {
	if s.tokens {
		return errStore
	}
	return nil
}

func TestFailingStoreIs503(t *testing.T) {
	var store *failingStore
	g := newRig(t, func(o *Options) {
		store = &failingStore{Store: o.Store}
		o.Store = store
	})
	tok, device := g.agentToken("mini"), g.deviceToken()
	check := func(path, token string) {
		t.Helper()
		_, resp := g.rawRequest("GET", path, upgradeHeaders(token)...)
		body := bodyOf(resp)
		if resp.StatusCode != 503 || resp.Header.Get(wire.HeaderRefusal) != string(wire.RefusalUnavailable) || resp.Header.Get("Retry-After") == "" {
			t.Errorf("%s: got %s %q", path, resp.Status, body)
		}
		if strings.Contains(body, "fire") {
			t.Errorf("%s: the answer tells the store's error: %q", path, body)
		}
	}
	store.tokens = true
	check("/agent/mini", tok.text)
	check("/connect/mini", unknownToken)
	if resp, _ := g.call("GET", "/readyz", "", ""); resp.StatusCode != 503 {
		t.Errorf("readyz: got %s", resp.Status)
	}
	if resp, _ := g.call("GET", "/healthz", "", ""); resp.StatusCode != 200 {
		t.Errorf("healthz: got %s", resp.Status)
	}
	store.tokens, store.machines = false, true
	check("/connect/mini", device.text)
	store.machines, store.claim = false, true
	check("/agent/mini", tok.text)
	if resp, _ := g.call("GET", "/readyz", "", ""); resp.StatusCode != 200 {
		t.Errorf("readyz: got %s", resp.Status)
	}
}

func TestStreamLimitsOfAToken(t *testing.T) {
	g := newRig(t, func(o *Options) { o.Limits.Streams = 2 })
	a := g.ready("mini")
	device, other := g.deviceToken(), g.deviceToken()
	first, _ := g.pair(a, device)
	g.pair(a, device)
	_, resp := g.rawRequest("GET", "/connect/mini", upgradeHeaders(device.text)...)
	if resp.StatusCode != 429 || resp.Header.Get("Retry-After") == "" {
		t.Fatalf("third stream: got %s", resp.Status)
	}
	if resp, _ := g.call("GET", "/v1/access?machine=mini", device.text, ""); resp.StatusCode != 429 {
		t.Errorf("access says %s, so a page could not learn of the limit", resp.Status)
	}
	g.pair(a, other) // another token has its own
	_ = first.CloseNow()
	eventually(t, "a place is free", func() bool { return g.relay.axes.Streams(device.ID) == 1 })
	g.pair(a, device)
}

func TestNewStreamsASecond(t *testing.T) {
	g := newRig(t, func(o *Options) { o.Limits.NewStreams = 3 })
	device := g.deviceToken()
	g.agentToken("mini") // makes the machine
	limited := false
	for range 8 {
		_, resp := g.rawRequest("GET", "/connect/mini", upgradeHeaders(device.text)...)
		limited = limited || resp.StatusCode == 429
	}
	if !limited {
		t.Error("eight streams in an instant and no 429")
	}
}

func TestUnfinishedHandshakesOfAnAddress(t *testing.T) {
	g := newRig(t, func(o *Options) { o.Limits.Handshakes = 10 })
	g.agentToken("mini")
	device := g.deviceToken()
	closed := make(chan struct{}, 30)
	for range 30 {
		conn, err := g.dialer(g.ctx(), "tcp", g.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "GET /connect/mini HTTP/1.1\r\nHost: re"); err != nil {
			t.Fatal(err)
		}
		go func() { // ends when either side closes conn
			_, _ = io.Copy(io.Discard, conn)
			closed <- struct{}{}
		}()
	}
	_, resp := g.rawRequest("GET", "/connect/mini", upgradeHeaders(device.text)...)
	if resp.StatusCode != 101 {
		t.Errorf("a good token was refused for its address: %s", resp.Status)
	}
	began := time.Now()
	for range 20 {
		select {
		case <-closed:
		case <-time.After(8 * time.Second):
			t.Fatal("stalled handshakes stay open")
		}
	}
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("it took %v", took)
	}
}
