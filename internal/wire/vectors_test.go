package wire

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

// vectors reads the cases of testdata/vectors/wire, which other languages run
// too.
func vectors[T any](t testing.TB, name string) []T {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "testdata", "vectors", "wire", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		About string `json:"about"`
		Cases []T    `json:"cases"`
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&file); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if len(file.Cases) == 0 {
		t.Fatalf("%s: no cases", name)
	}
	return file.Cases
}

// input is a text, or bytes that are none.
type input struct {
	Name   string  `json:"name"`
	Text   *string `json:"text"`
	Base64 string  `json:"base64"`
}

func (in input) bytes(t testing.TB) []byte {
	t.Helper()
	if in.Text != nil {
		return []byte(*in.Text)
	}
	b, err := base64.StdEncoding.DecodeString(in.Base64)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestControlVectors(t *testing.T) {
	errs := map[string]error{"malformed": ErrMalformed, "unknownOp": ErrUnknownOp, "tooBig": ErrTooBig}
	for _, c := range vectors[struct {
		input
		Message *Message `json:"message"`
		Error   string   `json:"error"`
	}](t, "control") {
		t.Run(c.Name, func(t *testing.T) {
			got, err := DecodeControl(c.bytes(t))
			if c.Error != "" {
				if want := errs[c.Error]; want == nil || !errors.Is(err, want) {
					t.Errorf("error %v, want %s", err, c.Error)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, *c.Message) {
				t.Errorf("got  %+v\nwant %+v", got, *c.Message)
			}
			b, err := EncodeControl(got)
			if err != nil {
				t.Fatal(err)
			}
			if again, err := DecodeControl(b); err != nil || !reflect.DeepEqual(again, got) {
				t.Errorf("encoded and decoded again: %+v, %v", again, err)
			}
		})
	}
}

func TestCloseCodeVectors(t *testing.T) {
	names := map[string]CloseCode{
		"normal": CloseNormal, "goingAway": CloseGoingAway, "protocol": CloseProtocol,
		"unsupported": CloseUnsupported, "noStatus": CloseNoStatus, "abnormal": CloseAbnormal,
		"invalidData": CloseInvalidData, "policy": ClosePolicy, "tooBig": CloseTooBig,
		"internal": CloseInternal, "restart": CloseRestart, "tryLater": CloseTryLater,
		"handlerError": CloseHandlerError, "ended": CloseEnded, "noDialBack": CloseNoDialBack,
		"limit": CloseLimit, "unauthorized": CloseUnauthorized, "forbidden": CloseForbidden,
		"notFound": CloseNotFound, "replaced": CloseReplaced, "version": CloseVersion,
		"serviceRefused": CloseServiceRefused,
	}
	for _, c := range vectors[struct {
		Name string    `json:"name"`
		Code CloseCode `json:"code"`
	}](t, "closecodes") {
		if code, ok := names[c.Name]; !ok || code != c.Code {
			t.Errorf("%s is %d, want %d", c.Name, code, c.Code)
		}
		delete(names, c.Name)
	}
	for name := range names {
		t.Errorf("%s is in no vector", name)
	}
}

func TestSubprotocolVectors(t *testing.T) {
	for _, c := range vectors[struct {
		Name       string   `json:"name"`
		Offered    []string `json:"offered"`
		Origin     bool     `json:"origin"`
		Understood []string `json:"understood"`
		Protocol   string   `json:"protocol"`
		OK         bool     `json:"ok"`
	}](t, "subprotocol") {
		t.Run(c.Name, func(t *testing.T) {
			offered := Subprotocols(http.Header{"Sec-Websocket-Protocol": c.Offered})
			got := SelectSubprotocol(offered, c.Origin, c.Understood...)
			if want := (Selection{c.Protocol, c.OK}); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

func TestIDVectors(t *testing.T) {
	parse := map[string]func(string) (string, error){
		"machine":  func(s string) (string, error) { v, err := ParseMachineID(s); return string(v), err },
		"service":  func(s string) (string, error) { v, err := ParseServiceName(s); return string(v), err },
		"conn":     func(s string) (string, error) { v, err := ParseConnID(s); return string(v), err },
		"instance": func(s string) (string, error) { v, err := ParseInstance(s); return string(v), err },
		"attempt": func(s string) (string, error) {
			if n, err := ParseAttempt(s); err != nil || n == 0 {
				return "", err
			}
			return s, nil
		},
	}
	for _, c := range vectors[struct {
		Kind string `json:"kind"`
		Text string `json:"text"`
		OK   bool   `json:"ok"`
	}](t, "ids") {
		got, err := parse[c.Kind](c.Text)
		switch {
		case c.OK && (err != nil || got != c.Text):
			t.Errorf("%s %q: %q, %v", c.Kind, c.Text, got, err)
		case !c.OK && (!errors.Is(err, ErrSyntax) || got != ""):
			t.Errorf("%s %q: %q, %v; want refused", c.Kind, c.Text, got, err)
		}
	}
}

func TestTokenVectors(t *testing.T) {
	for _, c := range vectors[struct {
		Text string `json:"text"`
		OK   bool   `json:"ok"`
	}](t, "tokens") {
		got, err := ParseToken(c.Text)
		switch {
		case c.OK && (err != nil || got.Secret() != c.Text || got.IsZero()):
			t.Errorf("%q: %v", c.Text, err)
		case !c.OK && (!errors.Is(err, ErrSyntax) || !got.IsZero()):
			t.Errorf("%q: %v, want refused", c.Text, err)
		}
	}
}

func TestRequestTokenVectors(t *testing.T) {
	for _, c := range vectors[struct {
		Name          string   `json:"name"`
		Authorization []string `json:"authorization"`
		Protocols     []string `json:"protocols"`
		Query         string   `json:"query"`
		Token         string   `json:"token"`
		Error         string   `json:"error"`
	}](t, "requesttoken") {
		t.Run(c.Name, func(t *testing.T) {
			query, err := url.ParseQuery(c.Query)
			if err != nil {
				t.Fatal(err)
			}
			h := http.Header{"Authorization": c.Authorization, "Sec-Websocket-Protocol": c.Protocols}
			got, err := RequestToken(h, query)
			switch {
			case c.Error == "" && (err != nil || got.Secret() != c.Token):
				t.Errorf("got %q, %v", got.Secret(), err)
			case c.Error == "none" && err != ErrNoToken, c.Error == "syntax" && !errors.Is(err, ErrSyntax):
				t.Errorf("error %v, want %s", err, c.Error)
			}
		})
	}
}

func TestBase64Vectors(t *testing.T) {
	for _, c := range vectors[struct {
		Name  string `json:"name"`
		Text  string `json:"text"`
		Hex   string `json:"hex"`
		Error bool   `json:"error"`
	}](t, "base64") {
		t.Run(c.Name, func(t *testing.T) {
			want, err := hex.DecodeString(c.Hex)
			if err != nil {
				t.Fatal(err)
			}
			got, err := DecodeBase64([]byte("before "), []byte(c.Text))
			if c.Error {
				if !errors.Is(err, ErrSyntax) || string(got) != "before " {
					t.Errorf("got %q, %v; want refused", got, err)
				}
				return
			}
			if err != nil || string(got) != "before "+string(want) {
				t.Errorf("got %q, %v; want %q", got, err, want)
			}
			back, err := DecodeBase64(nil, EncodeBase64(nil, want))
			if err != nil || !bytes.Equal(back, want) {
				t.Errorf("encoded and decoded again: %q, %v", back, err)
			}
		})
	}
}

func TestReasonVectors(t *testing.T) {
	for _, c := range vectors[struct {
		input
		Clean string `json:"clean"`
	}](t, "reasons") {
		if got := CleanReason(string(c.bytes(t))); got != c.Clean {
			t.Errorf("%s: %q, want %q", c.Name, got, c.Clean)
		}
	}
}

func TestRouteVectors(t *testing.T) {
	kinds := map[string]RouteKind{
		"agent": RouteAgent, "connect": RouteConnect, "agentData": RouteAgentData, "live": RouteLive,
	}
	errs := map[string]error{"none": ErrNoRoute, "syntax": ErrSyntax}
	for _, c := range vectors[struct {
		Path  string `json:"path"`
		Route struct {
			Kind    string      `json:"kind"`
			Machine MachineID   `json:"machine"`
			Conn    ConnID      `json:"conn"`
			Service ServiceName `json:"service"`
			Channel string      `json:"channel"`
		} `json:"route"`
		Error string `json:"error"`
	}](t, "routes") {
		// As a server reads a request line.
		u, err := url.Parse("https://relay.example" + c.Path)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseRoute(u)
		if c.Error != "" {
			if !errors.Is(err, errs[c.Error]) || got != (Route{}) {
				t.Errorf("%s: %+v, %v; want %s", c.Path, got, err, c.Error)
			}
			continue
		}
		want := Route{kinds[c.Route.Kind], c.Route.Machine, c.Route.Conn, c.Route.Service, c.Route.Channel}
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", c.Path, got, err, want)
		}
	}
}

func TestCloseReasonVectors(t *testing.T) {
	for _, c := range vectors[struct {
		Reason string   `json:"reason"`
		Winner Instance `json:"winner"`
	}](t, "closereasons") {
		if got := ReplacedBy(c.Reason); got != c.Winner {
			t.Errorf("%q names %q, want %q", c.Reason, got, c.Winner)
		}
	}
}
