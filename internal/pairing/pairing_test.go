package pairing

import (
	"bytes"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"holdfast/internal/wire"
)

// vectors reads the cases of testdata/vectors/pairing, which other languages
// run too.
func vectors[T any](t testing.TB, name string) []T {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "testdata", "vectors", "pairing", name+".json"))
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

func mustHex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func mustKey(t testing.TB, line string) Key {
	t.Helper()
	k, err := ParseDeviceKey(line)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

type linkCase struct {
	Name      string         `json:"name"`
	Link      string         `json:"link"`
	Relay     string         `json:"relay"`
	Machine   wire.MachineID `json:"machine"`
	HostKeys  []string       `json:"hostKeys"`
	SecretHex string         `json:"secretHex"`
	Expires   int64          `json:"expires"`
	Canonical bool           `json:"canonical"`
	Error     string         `json:"error"`
}

func (c linkCase) fields(t testing.TB) Link {
	t.Helper()
	l := Link{
		Relay: c.Relay, Machine: c.Machine, Expires: time.Unix(c.Expires, 0).UTC(),
		Secret: secretOf([secretBytes]byte(mustHex(t, c.SecretHex))),
	}
	for _, line := range c.HostKeys {
		l.HostKeys = append(l.HostKeys, mustKey(t, line))
	}
	return l
}

func TestLinkVectors(t *testing.T) {
	errs := map[string]error{"notLink": ErrNotLink, "cutOff": ErrCutOff, "damaged": ErrDamaged, "version": ErrVersion}
	for _, c := range vectors[linkCase](t, "link") {
		t.Run(c.Name, func(t *testing.T) {
			got, err := ParseLink(c.Link)
			if c.Error != "" {
				if want := errs[c.Error]; want == nil || !errors.Is(err, want) || !reflect.DeepEqual(got, Link{}) {
					t.Errorf("%+v, %v; want %s", got, err, c.Error)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := c.fields(t)
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v, want %+v", got, want)
			}
			text, err := want.Encode()
			if err != nil || (text == c.Link) != c.Canonical {
				t.Errorf("encoded: %q, %v", text, err)
			}
			fragment, err := want.Fragment()
			if err != nil || len(c.HostKeys) <= 2 && len(fragment) >= 450 {
				t.Errorf("a fragment of %d bytes does not fit a QR code: %v", len(fragment), err)
			}
			if strings.Trim(fragment, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.") != "" {
				t.Errorf("fragment %q needs escapes or quotes", fragment)
			}
		})
	}
}

// Every prefix of a link is cut off, or no link yet: never "damaged", which
// would send a person looking for a typing mistake, and never good.
func TestEveryPrefixIsCutOff(t *testing.T) {
	link := vectors[linkCase](t, "link")[0].Link
	for n := range len(link) {
		_, err := ParseLink(link[:n])
		if want := ErrCutOff; n > len("https://r") && !errors.Is(err, want) || err == nil {
			t.Errorf("%d of %d characters: %v", n, len(link), err)
		}
	}
}

func TestNoSingleSlipPasses(t *testing.T) {
	c := vectors[linkCase](t, "link")[0]
	at := strings.Index(c.Link, "#") + 1 + len(fragmentV1)
	for i := at; i < len(c.Link); i++ {
		for _, r := range "Az09-_" {
			if rune(c.Link[i]) == r {
				continue
			}
			if _, err := ParseLink(c.Link[:i] + string(r) + c.Link[i+1:]); err == nil {
				t.Errorf("%q in place of %q at %d passes", r, c.Link[i], i)
			}
		}
	}
}

func TestLinkRefusesBadFields(t *testing.T) {
	good := vectors[linkCase](t, "link")[0].fields(t)
	rsa := Key{kind: "ssh-rsa", blob: "\x00\x00\x00\x07ssh-rsaxx"}
	for name, change := range map[string]func(*Link){
		"no relay":         func(l *Link) { l.Relay = "" },
		"slash":            func(l *Link) { l.Relay += "/" },
		"long relay":       func(l *Link) { l.Relay = "https://" + strings.Repeat("r", maxRelayBytes) },
		"no machine":       func(l *Link) { l.Machine = "" },
		"bad machine":      func(l *Link) { l.Machine = "a/b" },
		"no keys":          func(l *Link) { l.HostKeys = nil },
		"an RSA key":       func(l *Link) { l.HostKeys = []Key{rsa} },
		"no key":           func(l *Link) { l.HostKeys = []Key{{}} },
		"too many keys":    func(l *Link) { l.HostKeys = slicesOf(l.HostKeys[0], maxHostKeys+1) },
		"no secret":        func(l *Link) { l.Secret = Secret{} },
		"zero secret":      func(l *Link) { l.Secret = secretOf([secretBytes]byte{}) },
		"no expiry":        func(l *Link) { l.Expires = time.Time{} },
		"far expiry":       func(l *Link) { l.Expires = time.Unix(1<<32, 0) },
		"before the epoch": func(l *Link) { l.Expires = time.Unix(-1, 0) },
	} {
		l := good
		change(&l)
		if text, err := l.Encode(); err == nil || text != "" {
			t.Errorf("%s: encoded", name)
		}
	}
}

func slicesOf(k Key, n int) (out []Key) {
	for range n {
		out = append(out, k)
	}
	return out
}

func TestExpired(t *testing.T) {
	l := Link{Expires: time.Unix(1000, 0)}
	for at, want := range map[int64]bool{0: false, 999: false, 1000: true, 1001: true} {
		if got := l.Expired(time.Unix(at, 0)); got != want {
			t.Errorf("at %d: %v", at, got)
		}
	}
}

// Neither the link nor its secrets come out of a formatter or an error.
func TestSecretsNeverPrint(t *testing.T) {
	l := vectors[linkCase](t, "link")[0].fields(t)
	s := l.Secret.bytes()
	relay := l.Secret.RelaySecret()
	raw, err := base64.RawURLEncoding.DecodeString(relay.Text())
	if err != nil {
		t.Fatal(err)
	}
	var secrets []string
	for _, b := range [][]byte{s[:], raw} {
		secrets = append(secrets, string(b), hex.EncodeToString(b), base64.RawURLEncoding.EncodeToString(b),
			strings.Trim(fmt.Sprint(b), "[]"), fmt.Sprintf("%q", b))
	}
	type hidden struct {
		link  Link
		relay RelaySecret
	}
	for _, v := range []any{l, &l, l.Secret, relay, []any{l.Secret, relay}, hidden{l, relay}, &hidden{l, relay}} {
		out := ""
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%c"} {
			out += fmt.Sprintf(verb, v)
		}
		var log bytes.Buffer
		slog.New(slog.NewTextHandler(&log, nil)).Info("x", "v", v)
		slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "v", v)
		out += log.String()
		for _, secret := range secrets {
			if strings.Contains(out, secret) {
				t.Errorf("%T prints a secret: %q", v, secret)
			}
		}
	}
	text, err := l.Encode()
	if err != nil {
		t.Fatal(err)
	}
	_, err = ParseLink(text + "!")
	if err == nil || strings.Contains(err.Error(), text[30:60]) {
		t.Errorf("an error repeats the link: %v", err)
	}
	if _, err := ParseRelaySecret(relay.Text() + "x"); err == nil || strings.Contains(err.Error(), relay.Text()) {
		t.Errorf("an error repeats the relay secret: %v", err)
	}
}

func TestDeriveVectors(t *testing.T) {
	proofs := map[Proof]string{}
	for _, c := range vectors[struct {
		Name         string         `json:"name"`
		SecretHex    string         `json:"secretHex"`
		RelaySecret  string         `json:"relaySecret"`
		RelayHash    string         `json:"relayHash"`
		SessionIDHex string         `json:"sessionIdHex"`
		DeviceKey    string         `json:"deviceKey"`
		HostKey      string         `json:"hostKey"`
		Machine      wire.MachineID `json:"machine"`
		Proof        string         `json:"proof"`
	}](t, "derive") {
		t.Run(c.Name, func(t *testing.T) {
			s := secretOf([secretBytes]byte(mustHex(t, c.SecretHex)))
			r := s.RelaySecret()
			if r.Text() != c.RelaySecret || FormatHash(r.Hash()) != c.RelayHash {
				t.Errorf("relay secret %s with hash %s", r.Text(), FormatHash(r.Hash()))
			}
			if back, err := ParseRelaySecret(c.RelaySecret); err != nil || back != r {
				t.Errorf("relay secret does not come back: %v", err)
			}
			if back, err := ParseHash(c.RelayHash); err != nil || back != r.Hash() {
				t.Errorf("relay hash does not come back: %v", err)
			}
			b := Binding{
				SessionID: mustHex(t, c.SessionIDHex), DeviceKey: mustKey(t, c.DeviceKey).Blob(),
				HostKey: mustKey(t, c.HostKey).Blob(), Machine: c.Machine,
			}
			p := s.Prove(b)
			if text, err := p.MarshalText(); err != nil || string(text) != c.Proof {
				t.Errorf("proof %s, want %s", text, c.Proof)
			}
			if !s.Verify(p, b) {
				t.Error("its own proof is refused")
			}
			if other, ok := proofs[p]; ok {
				t.Errorf("the same proof as %q", other)
			}
			proofs[p] = c.Name
		})
	}
}

func TestProofIsBoundToAll(t *testing.T) {
	s := NewSecret()
	b := Binding{SessionID: []byte("session"), DeviceKey: []byte("device"), HostKey: []byte("host"), Machine: "mini"}
	p := s.Prove(b)
	for name, other := range map[string]Binding{
		"session": {[]byte("sessioN"), b.DeviceKey, b.HostKey, b.Machine},
		"device":  {b.SessionID, []byte("devicE"), b.HostKey, b.Machine},
		"host":    {b.SessionID, b.DeviceKey, []byte("hosT"), b.Machine},
		"machine": {b.SessionID, b.DeviceKey, b.HostKey, "minI"},
		// Without lengths these would be the same bytes.
		"borders":    {[]byte("sessiondev"), []byte("ice"), b.HostKey, b.Machine},
		"order":      {b.DeviceKey, b.SessionID, b.HostKey, b.Machine},
		"no session": {nil, b.DeviceKey, b.HostKey, b.Machine},
		"no device":  {b.SessionID, nil, b.HostKey, b.Machine},
		"no host":    {b.SessionID, b.DeviceKey, nil, b.Machine},
		"no machine": {b.SessionID, b.DeviceKey, b.HostKey, ""},
	} {
		if s.Verify(p, other) || s.Verify(s.Prove(other), b) {
			t.Errorf("%s: passes", name)
		}
		if strings.HasPrefix(name, "no ") && s.Verify(s.Prove(other), other) {
			t.Errorf("%s: an empty part passes", name)
		}
	}
	if NewSecret().Verify(p, b) || (Secret{}).Verify((Secret{}).Prove(b), b) || s.Verify(Proof{}, b) {
		t.Error("another secret, or none, passes")
	}
	p[31] ^= 1
	if s.Verify(p, b) {
		t.Error("a proof with a flipped bit passes")
	}
}

func TestKeyVectors(t *testing.T) {
	for _, c := range vectors[struct {
		Name        string `json:"name"`
		Line        string `json:"line"`
		Type        string `json:"type"`
		Fingerprint string `json:"fingerprint"`
		BlobHex     string `json:"blobHex"`
		Device      bool   `json:"device"`
		Error       bool   `json:"error"`
	}](t, "keys") {
		t.Run(c.Name, func(t *testing.T) {
			k, err := ParseKey(c.Line)
			if c.Error {
				if !errors.Is(err, ErrKey) || !errors.Is(err, wire.ErrSyntax) || !k.IsZero() {
					t.Errorf("%v, %v; want refused", k, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if k.Type() != c.Type || k.Fingerprint() != c.Fingerprint || hex.EncodeToString(k.Blob()) != c.BlobHex {
				t.Errorf("got %s %x", k, k.Blob())
			}
			if again, err := ParseKey(k.Line()); err != nil || again != k {
				t.Errorf("its line is read as %v, %v", again, err)
			}
			if again, err := ParseKeyBlob(k.Blob()); err != nil || again != k {
				t.Errorf("its blob is read as %v, %v", again, err)
			}
			_, err = ParseDeviceKey(c.Line)
			if c.Device != (err == nil) || !c.Device && !errors.Is(err, ErrKeyType) {
				t.Errorf("as a device's key: %v", err)
			}
		})
	}
}

func TestFreshP256KeyPasses(t *testing.T) {
	priv, err := ecdh.P256().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	k, err := p256Key(priv.PublicKey().Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(k.raw(), priv.PublicKey().Bytes()) || !k.own() {
		t.Errorf("key %v", k)
	}
}

func TestSubsystemVectors(t *testing.T) {
	for _, c := range vectors[struct {
		Name  string          `json:"name"`
		Kind  string          `json:"kind"`
		Line  string          `json:"line"`
		Value json.RawMessage `json:"value"`
		Error bool            `json:"error"`
	}](t, "subsystem") {
		t.Run(c.Name, func(t *testing.T) {
			if c.Kind == "request" {
				got, err := ReadRequest(strings.NewReader(c.Line + "\n"))
				compare(t, got, err, c.Value, c.Error)
			} else {
				got, err := ReadResponse(strings.NewReader(c.Line + "\n"))
				compare(t, got, err, c.Value, c.Error)
			}
		})
	}
}

func compare[T any](t *testing.T, got T, err error, value json.RawMessage, refused bool) {
	t.Helper()
	if refused {
		if !errors.Is(err, ErrLine) {
			t.Errorf("%+v, %v; want refused", got, err)
		}
		return
	}
	var want T
	if jerr := json.Unmarshal(value, &want); jerr != nil {
		t.Fatal(jerr)
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v, %v\nwant %+v", got, err, want)
	}
}

func TestSubsystemLinesComeBack(t *testing.T) {
	q := Request{V: 1, Proof: NewSecret().Prove(Binding{SessionID: []byte("x")}), Name: "laptop"}
	var b bytes.Buffer
	if err := WriteRequest(&b, Request{Proof: q.Proof, Name: q.Name}); err != nil {
		t.Fatal(err)
	}
	if strings.Count(b.String(), "\n") != 1 || !strings.HasSuffix(b.String(), "\n") {
		t.Errorf("not one line: %q", b.String())
	}
	// However the channel cuts it.
	if got, err := ReadRequest(iotest.OneByteReader(&b)); err != nil || got != q {
		t.Errorf("request %+v, %v", got, err)
	}
	for _, p := range []Response{
		{OK: true, Machine: "mini", User: "anna", Shell: true, SSHD: &SSHD{Keys: []string{}, Note: "sshd is off"}},
		{Code: CodeBound, Message: "another device uses this link"},
	} {
		if err := WriteResponse(&b, p); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadResponse(iotest.DataErrReader(&b)); err != nil || !reflect.DeepEqual(got, p) {
			t.Errorf("response %+v, %v", got, err)
		}
		b.Reset()
	}
	silent := &SSHD{Note: "no sshd answers"}
	if err := WriteResponse(&b, Response{OK: true, Machine: "mini", User: "anna", SSHD: silent}); err != nil || !strings.Contains(b.String(), `"keys":[]`) {
		t.Errorf("no host keys are no list: %q, %v", b.String(), err)
	}
	if silent.Keys != nil {
		t.Error("the caller's value was changed")
	}
	b.Reset()
	long := Response{OK: true, Message: strings.Repeat("x", maxLineBytes)}
	if err := WriteResponse(&b, long); !errors.Is(err, ErrLine) || b.Len() != 0 {
		t.Errorf("a line that no reader takes was written: %v", err)
	}
}

// endless counts what was taken from it.
type endless struct{ taken int }

func (e *endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	e.taken += len(p)
	return len(p), nil
}

func TestLinesAreBounded(t *testing.T) {
	var e endless
	if _, err := ReadRequest(&e); !errors.Is(err, ErrLine) || e.taken > maxLineBytes {
		t.Errorf("%v after %d bytes", err, e.taken)
	}
	for text, want := range map[string]error{"": ErrLine, `{"v":1`: ErrLine} {
		if _, err := ReadRequest(strings.NewReader(text)); !errors.Is(err, want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	broken := errors.New("channel broke")
	if _, err := ReadResponse(io.MultiReader(strings.NewReader(`{"ok"`), iotest.ErrReader(broken))); !errors.Is(err, broken) {
		t.Errorf("%v, want the channel's own error", err)
	}
}

func FuzzParseLink(f *testing.F) {
	for _, c := range vectors[linkCase](f, "link") {
		f.Add(c.Link)
	}
	f.Fuzz(func(t *testing.T, text string) {
		l, err := ParseLink(text)
		if err != nil {
			return
		}
		again, err := l.Encode()
		if err != nil {
			t.Fatalf("%q is read but cannot be written: %v", text, err)
		}
		if back, err := ParseLink(again); err != nil || !reflect.DeepEqual(back, l) {
			t.Fatalf("%+v, %v; want %+v", back, err, l)
		}
	})
}

func FuzzParseKey(f *testing.F) {
	for _, c := range vectors[map[string]any](f, "keys") {
		f.Add(c["line"].(string))
	}
	f.Fuzz(func(t *testing.T, line string) {
		k, err := ParseKey(line)
		if err != nil {
			return
		}
		// Its line goes into files that others read line by line, word by word.
		if strings.Count(k.Line(), " ") != 1 || strings.ContainsAny(k.Line(), "\r\n\t\x00\"") {
			t.Fatalf("line %q", k.Line())
		}
		if again, err := ParseKey(k.Line()); err != nil || again != k {
			t.Fatalf("%v, %v", again, err)
		}
	})
}

func FuzzReadResponse(f *testing.F) {
	for _, c := range vectors[map[string]any](f, "subsystem") {
		f.Add([]byte(c["line"].(string) + "\n"))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ReadResponse(bytes.NewReader(b))
		if err != nil || !p.OK {
			return
		}
		if strings.ContainsAny(p.User, " \r\n\t\"") || p.SSHD != nil && len(p.SSHD.Keys) > maxSSHDKeys {
			t.Fatalf("response %+v", p)
		}
	})
}
