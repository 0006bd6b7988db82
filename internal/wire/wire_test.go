package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"
)

// A token must not come out of any formatter, whatever it is wrapped in.
func TestTokenNeverPrints(t *testing.T) {
	tok := NewToken()
	type exported struct{ Token Token }
	type hidden struct{ token Token }
	values := []any{tok, &tok, exported{tok}, hidden{tok}, &hidden{tok}, []Token{tok}, map[string]hidden{"x": {tok}}, []any{tok}}
	secret := tok.Secret()[len(tokenPrefix):]
	for _, v := range values {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%e", "%p"} {
			if out := fmt.Sprintf(verb, v); strings.Contains(out, secret) || strings.Contains(out, fmt.Sprintf("%x", secret)) {
				t.Errorf("%s of %T prints the token", verb, v)
			}
		}
		if b, err := json.Marshal(v); err == nil && bytes.Contains(b, []byte(secret)) {
			t.Errorf("the JSON of %T holds the token", v)
		}
		var log bytes.Buffer
		slog.New(slog.NewTextHandler(&log, nil)).Info("x", "v", v)
		slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "v", v)
		if strings.Contains(log.String(), secret) {
			t.Errorf("a log of %T holds the token", v)
		}
	}
	if got := tok.String(); got != "hf_redacted" {
		t.Errorf("a token prints as %q", got)
	}
}

func TestTokenErrorsHoldNoToken(t *testing.T) {
	const secret = "hf_0123456789abcdef!"
	_, err := ParseToken(secret)
	if err == nil || strings.Contains(err.Error(), "0123456789") {
		t.Errorf("error %v", err)
	}
	_, err = RequestToken(map[string][]string{"Authorization": {"Bearer " + secret}}, url.Values{"q": {secret}})
	if err == nil || strings.Contains(err.Error(), "0123456789") {
		t.Errorf("error %v", err)
	}
}

func TestZeroToken(t *testing.T) {
	var z Token
	if !z.IsZero() || z.Secret() != "" || z.String() != "hf_redacted" {
		t.Errorf("zero token: %q, %v", z.Secret(), z)
	}
	if NewToken() == NewToken() {
		t.Error("two new tokens are one")
	}
	a, err := ParseToken("hf_abc")
	b, err2 := ParseToken("hf_" + strings.Clone("abc"))
	if err != nil || err2 != nil || a != b || a.Hash() != b.Hash() {
		t.Error("two tokens of one text differ")
	}
}

func TestNewIDsParse(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		c, in := NewConnID("n1"), NewInstance()
		if _, err := ParseConnID(string(c)); err != nil || seen[string(c)] {
			t.Fatalf("%s: %v", c, err)
		}
		if _, err := ParseInstance(string(in)); err != nil || seen[string(in)] {
			t.Fatalf("%s: %v", in, err)
		}
		seen[string(c)], seen[string(in)] = true, true
		if tok, err := ParseToken(NewToken().Secret()); err != nil || tok.IsZero() {
			t.Fatal(err)
		}
	}
}

func TestPathsParse(t *testing.T) {
	const m MachineID = "Mac-mini.local"
	c := NewConnID("n1")
	for path, want := range map[string]Route{
		AgentPath(m):          {Kind: RouteAgent, Machine: m},
		ConnectPath(m, ""):    {Kind: RouteConnect, Machine: m},
		ConnectPath(m, "ssh"): {Kind: RouteConnect, Machine: m, Service: "ssh"},
		AgentDataPath(m, c):   {Kind: RouteAgentData, Machine: m, Conn: c},
	} {
		u, err := url.Parse("https://relay.example" + path)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := ParseRoute(u); err != nil || got != want {
			t.Errorf("%s: %+v, %v", path, got, err)
		}
	}
}

func TestEncodeControlBounds(t *testing.T) {
	m := Message{Op: OpHello, Presence: strings.Repeat("a", MaxControlBytes)}
	if b, err := EncodeControl(m); !errors.Is(err, ErrTooBig) || b != nil {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	m.Presence = m.Presence[:MaxControlBytes-len(`{"op":"hello","presence":""}`)]
	b, err := EncodeControl(m)
	if err != nil || len(b) != MaxControlBytes {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	if _, err := DecodeControl(b); err != nil {
		t.Error(err)
	}
}

func TestRefuseCode(t *testing.T) {
	for from, want := range map[CloseCode]CloseCode{
		CloseForbidden: CloseForbidden, CloseNotFound: CloseNotFound, CloseServiceRefused: CloseServiceRefused,
		// An agent may not make a device believe that its token is bad.
		CloseUnauthorized: CloseServiceRefused, CloseReplaced: CloseServiceRefused, CloseNormal: CloseServiceRefused, 0: CloseServiceRefused,
	} {
		if got := RefuseCode(from); got != want {
			t.Errorf("%d becomes %d, want %d", from, got, want)
		}
	}
}

func TestReasonsComeBack(t *testing.T) {
	longest := Instance(strings.Repeat("a", maxInstanceBytes))
	for _, in := range []Instance{NewInstance(), longest, ""} {
		reason := ReplacedReason(in)
		if got := ReplacedBy(reason); got != in || len(reason) > MaxReasonBytes || CleanReason(reason) != reason {
			t.Errorf("%q names %q, want %q", reason, got, in)
		}
	}
}

func FuzzDecodeControl(f *testing.F) {
	for _, c := range vectors[struct {
		input
		Message json.RawMessage `json:"message"`
		Error   string          `json:"error"`
	}](f, "control") {
		f.Add(c.bytes(f))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := DecodeControl(b)
		if err != nil {
			if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrTooBig) && !errors.Is(err, ErrUnknownOp) {
				t.Fatalf("strange error %v", err)
			}
			if len(b) > MaxControlBytes != errors.Is(err, ErrTooBig) {
				t.Fatalf("%d bytes: %v", len(b), err)
			}
			return
		}
		out, err := EncodeControl(m)
		if errors.Is(err, ErrTooBig) {
			return // escapes are longer than what they stand for
		}
		if err != nil {
			t.Fatal(err)
		}
		again, err := DecodeControl(out)
		if err != nil || fmt.Sprint(again) != fmt.Sprint(m) {
			t.Fatalf("%s: %+v, %v; want %+v", out, again, err, m)
		}
	})
}

func FuzzParseRoute(f *testing.F) {
	for _, c := range vectors[struct {
		Path  string          `json:"path"`
		Route json.RawMessage `json:"route"`
		Error string          `json:"error"`
	}](f, "routes") {
		f.Add(c.Path)
	}
	f.Fuzz(func(t *testing.T, s string) {
		u, err := url.ParseRequestURI(s)
		if err != nil {
			return
		}
		r, err := ParseRoute(u)
		if err != nil {
			if r != (Route{}) || !errors.Is(err, ErrNoRoute) && !errors.Is(err, ErrSyntax) {
				t.Fatalf("%q: %+v, %v", s, r, err)
			}
			return
		}
		if r.Kind != RouteKindOf(u.EscapedPath()) {
			t.Fatalf("%q: kind %d", s, r.Kind)
		}
		var path string
		switch r.Kind {
		case RouteAgent:
			path = AgentPath(r.Machine)
		case RouteConnect:
			path = ConnectPath(r.Machine, "")
		case RouteAgentData:
			path = AgentDataPath(r.Machine, r.Conn)
		case RouteLive:
			path = livePath + r.Channel
		}
		// One spelling for each route: a proxy's rules cannot be walked round.
		if path != u.EscapedPath() {
			t.Fatalf("%q is taken for %q", s, path)
		}
	})
}

func FuzzRequestToken(f *testing.F) {
	for _, c := range vectors[struct {
		Name          string   `json:"name"`
		Authorization []string `json:"authorization"`
		Protocols     []string `json:"protocols"`
		Query         string   `json:"query"`
		Token         string   `json:"token"`
		Error         string   `json:"error"`
	}](f, "requesttoken") {
		f.Add(strings.Join(c.Authorization, "\n"), strings.Join(c.Protocols, "\n"), c.Query)
	}
	f.Fuzz(func(t *testing.T, auth, protocols, rawQuery string) {
		query, err := url.ParseQuery(rawQuery)
		if err != nil {
			return
		}
		h := map[string][]string{
			"Authorization":          strings.Split(auth, "\n"),
			"Sec-Websocket-Protocol": strings.Split(protocols, "\n"),
		}
		tok, err := RequestToken(h, query)
		if err != nil {
			if !tok.IsZero() || !errors.Is(err, ErrNoToken) && !errors.Is(err, ErrSyntax) {
				t.Fatalf("%v, %v", tok, err)
			}
			return
		}
		if _, err := ParseToken(tok.Secret()); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(auth+protocols, tok.Secret()) || strings.Contains(rawQuery, tok.Secret()) && len(tok.Secret()) > 20 {
			t.Fatalf("a token out of nowhere, or one that is in the query too")
		}
		// What is echoed never holds a token.
		if s := SelectSubprotocol(Subprotocols(h), true, SubprotocolV1); strings.HasPrefix(s.Protocol, BearerPrefix) {
			t.Fatalf("would echo %q", s.Protocol)
		}
	})
}

func FuzzDecodeBase64(f *testing.F) {
	for _, c := range vectors[struct {
		Name  string `json:"name"`
		Text  string `json:"text"`
		Hex   string `json:"hex"`
		Error bool   `json:"error"`
	}](f, "base64") {
		f.Add([]byte(c.Text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		before := []byte("before")
		got, err := DecodeBase64(before, text)
		if !bytes.HasPrefix(got, before) {
			t.Fatalf("lost what was there: %q", got)
		}
		if err != nil {
			if len(got) != len(before) || !errors.Is(err, ErrSyntax) {
				t.Fatalf("%q, %v", got, err)
			}
			return
		}
		plain := strings.NewReplacer("\r", "", "\n", "").Replace(string(text))
		if back := EncodeBase64(nil, got[len(before):]); string(back) != plain {
			t.Fatalf("%q decodes to what encodes as %q", text, back)
		}
	})
}

func FuzzCleanReason(f *testing.F) {
	for _, c := range vectors[struct {
		input
		Clean string `json:"clean"`
	}](f, "reasons") {
		f.Add(string(c.bytes(f)))
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := CleanReason(s)
		if len(got) > MaxReasonBytes || !utf8.ValidString(got) || CleanReason(got) != got {
			t.Fatalf("%q becomes %q", s, got)
		}
		if i := strings.IndexFunc(got, func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u202e' }); i >= 0 {
			t.Fatalf("%q keeps what moves the cursor", got)
		}
	})
}

// A code that is none must not keep the device waiting for the time-out of its dial.
func TestRefuseWithACodeThatIsNone(t *testing.T) {
	for _, code := range []string{"65536", "4502000000", "-1", "4502.5", "1e300"} {
		m, err := DecodeControl([]byte(`{"op":"refuse","connId":"a.b","code":` + code + `,"reason":"no"}`))
		if err != nil || m.ConnID != "a.b" || m.Reason != "no" || RefuseCode(m.Code) != CloseServiceRefused {
			t.Errorf("code %s: %+v, %v", code, m, err)
		}
	}
	for _, code := range []string{`"4502"`, `[4502]`, `true`} {
		if m, err := DecodeControl([]byte(`{"op":"refuse","connId":"a.b","code":` + code + `}`)); !errors.Is(err, ErrMalformed) {
			t.Errorf("code %s: %+v, %v", code, m, err)
		}
	}
}
