package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"holdfast/internal/wire"
	"holdfast/internal/wsconn"
)

func TestParseRelayURL(t *testing.T) {
	for in, want := range map[string]string{
		"https://relay.example":        "https://relay.example",
		"https://relay.example/":       "https://relay.example",
		"https://relay.example:8443/h": "https://relay.example:8443/h",
		"http://127.0.0.1:7700/":       "http://127.0.0.1:7700",
		"http://[::1]:7700":            "http://[::1]:7700",
		"http://localhost:7700":        "http://localhost:7700",
	} {
		if u, err := ParseRelayURL(in, false); err != nil || u.String() != want {
			t.Errorf("%s: %v, %v", in, u, err)
		}
	}
	secret := wire.NewToken().Secret()
	for _, in := range []string{
		"", "relay.example", "ftp://relay.example", "wss://relay.example", "https://", "https://ann:pw@relay.example",
		"https://relay.example?token=" + secret, "https://relay.example/#" + secret, "http://%zz/" + secret,
	} {
		u, err := ParseRelayURL(in, true)
		if err == nil {
			t.Errorf("%q is taken: %v", in, u)
		} else if strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "pw") {
			t.Errorf("the error repeats a secret: %v", err)
		}
	}
	if _, err := ParseRelayURL("http://relay.example", false); !errors.Is(err, wsconn.ErrPlainHTTP) {
		t.Errorf("plain http to another computer: %v", err)
	}
	if _, err := ParseRelayURL("http://relay.example", true); err != nil {
		t.Errorf("plain http that is meant: %v", err)
	}
}

func testAPI(t *testing.T, h http.HandlerFunc) (*API, wire.Token) {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	u, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	token := wire.NewToken()
	a, err := NewAPI(APIOptions{Relay: u, Token: token})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a, token
}

func TestAPIAsksAndReads(t *testing.T) {
	var token wire.Token
	var a *API
	a, token = testAPI(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.Method + " " + r.URL.RequestURI() {
		case "GET /v1/access?machine=mini":
			if got := r.Header.Get("Authorization"); got != "Bearer "+token.Secret() {
				t.Errorf("authorization is %q", got)
			}
			fmt.Fprint(w, `{"account":"owner","kind":"device","machine":"mini","later":1}`)
		case "DELETE /v1/devices/d%2F1":
			w.WriteHeader(http.StatusNoContent)
		case "POST /v1/pairings":
			w.WriteHeader(http.StatusCreated)
			fmt.Fprint(w, `{"expires":"2026-11-30T01:02:03Z"}`)
		default:
			t.Errorf("asked %s %s", r.Method, r.URL.RequestURI())
		}
	})
	ctx := context.Background()
	if got, err := a.Access(ctx, "mini"); err != nil || got.Account != "owner" || got.Machine != "mini" {
		t.Errorf("access: %+v, %v", got, err)
	}
	if err := a.RevokeDevice(ctx, "d/1"); err != nil {
		t.Errorf("revoke: %v", err)
	}
	if got, err := a.OpenPairing(ctx, [32]byte{1}, 5*time.Minute); err != nil || got.Expires.Second() != 3 {
		t.Errorf("open pairing: %+v, %v", got, err)
	}
}

// TestAPIRefusals are the relay's own words, and those of others.
func TestAPIRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(w http.ResponseWriter)
		denied bool
		want   string
	}{
		"revoked": {func(w http.ResponseWriter) {
			w.Header().Set("Holdfast-Refusal", "token-revoked")
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"title":"Unauthorized","detail":"this token was revoked\u001b[31m"}`)
		}, true, "this token was revoked[31m"},
		"a captive portal's 401": {func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, "<html>pay first</html>")
		}, false, "not from a Holdfast relay"},
		"a captive portal's page": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprint(w, "<html>pay first</html>")
		}, false, "not from a Holdfast relay"},
		"a redirect": {func(w http.ResponseWriter) {
			w.Header().Set("Location", "https://elsewhere.example/")
			w.WriteHeader(http.StatusFound)
		}, false, "redirects elsewhere"},
		"too much": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"account":"`+strings.Repeat("x", maxAnswerBytes)+`"}`)
		}, false, "more than"},
		"no JSON": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"account":`)
		}, false, "not understood"},
	} {
		a, token := testAPI(t, func(w http.ResponseWriter, r *http.Request) { c.answer(w) })
		_, err := a.Access(context.Background(), "")
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), token.Secret()) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var refused *RelayError
		if denied := errors.As(err, &refused) && refused.Denied(); denied != c.denied {
			t.Errorf("%s: denied is %v", name, denied)
		}
	}
}

func TestAPIRetryAfter(t *testing.T) {
	a, _ := testAPI(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Holdfast-Refusal", "limit")
		w.Header().Set("Retry-After", "999999999")
		w.WriteHeader(http.StatusTooManyRequests)
	})
	_, err := a.Machines(context.Background())
	var refused *RelayError
	if !errors.As(err, &refused) || refused.RetryAfter != time.Hour || refused.Denied() {
		t.Errorf("got %+v, %v", refused, err)
	}
}

// TestAPIErrorHidesTheURL keeps a pairing's hash out of the error of a request
// that finds nobody.
func TestAPIErrorHidesTheURL(t *testing.T) {
	a, err := NewAPI(APIOptions{Relay: &url.URL{Scheme: "http", Host: "127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	err = a.ClosePairing(context.Background(), [32]byte{1, 2, 3})
	if err == nil || strings.Contains(err.Error(), "AQID") || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("got %v", err)
	}
}

// TestDiagnose names the hop, and says whether asking again can help.
func TestDiagnose(t *testing.T) {
	target := Target{Relay: "https://relay.example", Machine: "mini"}
	for _, c := range []struct {
		err    error
		hop    string
		denied bool
	}{
		{&wsconn.CloseError{Code: wire.CloseTryLater, Reason: wire.ReasonOffline}, "machine mini", false},
		{&wsconn.CloseError{Code: wire.CloseNoDialBack}, "machine mini", false},
		{&wsconn.CloseError{Code: wire.CloseServiceRefused, Reason: "connection refused"}, "sshd of mini", false},
		{&wsconn.CloseError{Code: wire.CloseNotFound}, "sshd of mini", true},
		{&wsconn.CloseError{Code: wire.CloseForbidden}, "sshd of mini", true},
		{&wsconn.CloseError{Code: wire.CloseUnauthorized}, "relay relay.example", true},
		{&wsconn.CloseError{Code: wire.CloseRestart}, "relay relay.example", false},
		{&wsconn.CloseError{Code: wire.CloseAbnormal}, "relay relay.example", false},
		{&wsconn.CloseError{Code: wire.CloseLimit}, "relay relay.example", false},
		{&wsconn.DialError{Hop: wsconn.HopUpgrade, Err: &wsconn.Refusal{Status: 401, Code: wire.RefusalTokenRevoked}}, "relay relay.example", true},
		{&wsconn.DialError{Hop: wsconn.HopUpgrade, Err: &wsconn.Refusal{Status: 403, Code: wire.RefusalNotAllowed}}, "relay relay.example", true},
		{&wsconn.DialError{Hop: wsconn.HopUpgrade, Err: &wsconn.Refusal{Status: 401}}, "relay relay.example", false},
		{&wsconn.DialError{Hop: wsconn.HopUpgrade, Err: &wsconn.Refusal{Status: 503, Code: wire.RefusalUnavailable}}, "relay relay.example", false},
		{&wsconn.DialError{Hop: wsconn.HopDNS, Err: errors.New("no such host")}, "relay relay.example", false},
		{fmt.Errorf("read: %w", wsconn.ErrDead), "relay relay.example", false},
		{errors.New("something"), "relay relay.example", false},
	} {
		f := Diagnose(c.err, target)
		if f.Hop != c.hop || f.Denied != c.denied {
			t.Errorf("%v: hop %q, denied %v; want %q, %v", c.err, f.Hop, f.Denied, c.hop, c.denied)
		}
		if strings.Contains(f.Error(), "\n") || !strings.HasPrefix(f.Error(), f.Hop+": ") {
			t.Errorf("%v: not one line that begins with the hop: %q", c.err, f.Error())
		}
		if again := Diagnose(fmt.Errorf("pair: %w", f), target); again != f {
			t.Errorf("%v: diagnosed twice: %v", c.err, again)
		}
	}
}
