package account

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"holdfast/internal/engine"
	"holdfast/internal/engine/enginetest"
	"holdfast/internal/pairing"
	"holdfast/internal/wire"
)

// Keys of testdata/vectors/pairing/keys.json; nobody has their private halves.
const (
	phoneKey  = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDxO5qfSRLUgeoyYGGVjGoh9EGzNS0ZJ1g/D7xox/AAE"
	laptopKey = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBEViHfl+PuFVz5dKbg+CQaLAvM6nzv/ZoFiavWy6lNrADebLOOZmHmcI00jiVM4KVOBSUwlvue+Z08qJEwOfN5k="
)

var mini = engine.Key{Account: Owner, Machine: "mini"}

// failing is a store that fails on demand, or pretends that names are taken.
type failing struct {
	engine.Store
	err   error
	taken int
}

func (f *failing) TokenByHash(ctx context.Context, hash [32]byte) (engine.Token, error) {
	if f.err != nil {
		return engine.Token{}, f.err
	}
	return f.Store.TokenByHash(ctx, hash)
}

func (f *failing) AddToken(ctx context.Context, t engine.Token) error {
	if f.taken > 0 {
		f.taken--
		return engine.ErrExists
	}
	return f.Store.AddToken(ctx, t)
}

func (f *failing) RedeemPairing(ctx context.Context, hash [32]byte, d engine.Device, t engine.Token) (engine.Device, engine.Pairing, error) {
	if f.err != nil {
		return engine.Device{}, engine.Pairing{}, f.err
	}
	if f.taken > 0 {
		f.taken--
		return engine.Device{}, engine.Pairing{}, engine.ErrExists
	}
	return f.Store.RedeemPairing(ctx, hash, d, t)
}

func fresh(t *testing.T) (*Accounts, *failing, *enginetest.Clock) {
	t.Helper()
	clock := enginetest.NewClock()
	store, err := engine.OpenSQLite(t.Context(), engine.InMemory, engine.SQLiteOptions{Now: clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	f := &failing{Store: store}
	a, err := New(Options{Store: f, Now: clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Create(t.Context(), string(Owner)); err != nil {
		t.Fatal(err)
	}
	return a, f, clock
}

func issue(t *testing.T, a *Accounts, r Request) Issued {
	t.Helper()
	got, err := a.Issue(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func wantErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error %v, want %v", err, want)
	}
}

func TestNewNeedsAStore(t *testing.T) {
	if _, err := New(Options{}); err == nil {
		t.Error("made without a store")
	}
}

func TestCreate(t *testing.T) {
	a, _, _ := fresh(t)
	_, err := a.Create(t.Context(), string(Owner))
	wantErr(t, err, engine.ErrExists)
	for _, bad := range []string{"", ".x", "a b", "a/b", strings.Repeat("a", 65), "é", "a\x1b[2J"} {
		_, err := a.Create(t.Context(), bad)
		wantErr(t, err, wire.ErrSyntax)
		if strings.Contains(err.Error(), "\x1b") {
			t.Errorf("the error repeats what moves the cursor: %q", err)
		}
	}
	if id, err := a.Create(t.Context(), "Club-2.contest"); err != nil || id != "Club-2.contest" {
		t.Errorf("%q, %v", id, err)
	}
}

func TestIssueAndVerify(t *testing.T) {
	a, _, clock := fresh(t)
	agent := issue(t, a, Request{Account: Owner, Kind: engine.KindAgent, Name: " mini's  agent\n", Machine: "mini"})
	device := issue(t, a, Request{Account: Owner, Kind: engine.KindDevice, Name: "phone", Lifetime: time.Hour})
	for _, i := range []Issued{agent, device} {
		got, err := a.Verify(t.Context(), i.Text.Hash())
		if err != nil || got != i.Token || got.Hash != i.Text.Hash() || got.ID == "" {
			t.Errorf("got %+v, %v; want %+v", got, err, i.Token)
		}
		if text := fmt.Sprintf("%+v %v", i, i); strings.Contains(text, i.Text.Secret()) {
			t.Error("what was issued prints its token")
		}
	}
	if agent.Token.Name != "mini's agent" || agent.Token.Machine != "mini" || !agent.Token.Expires.IsZero() {
		t.Errorf("agent token %+v", agent.Token)
	}

	text := wire.NewToken()
	given := issue(t, a, Request{Account: Owner, Kind: engine.KindAgent, Name: "mini", Text: text})
	if given.Text != text || given.Token.Hash != text.Hash() {
		t.Error("the text that was given is not the token's")
	}
	if _, err := a.Issue(t.Context(), Request{Account: Owner, Kind: engine.KindAgent, Name: "mini", Text: text}); !errors.Is(err, engine.ErrExists) {
		t.Errorf("the same text twice: %v", err)
	}

	for _, text := range []wire.Token{{}, wire.NewToken()} {
		got, err := a.Verify(t.Context(), text.Hash())
		wantErr(t, err, ErrUnknown)
		if got != (engine.Token{}) {
			t.Errorf("an unknown token is %+v", got)
		}
	}

	clock.Add(time.Hour - time.Microsecond)
	if _, err := a.Verify(t.Context(), device.Text.Hash()); err != nil {
		t.Errorf("just before it expires: %v", err)
	}
	clock.Add(time.Microsecond)
	got, err := a.Verify(t.Context(), device.Text.Hash())
	wantErr(t, err, ErrExpired)
	if got.ID != device.Token.ID {
		t.Errorf("the expired token is %+v", got)
	}

	if err := a.Revoke(t.Context(), Owner, device.Token.ID); err != nil {
		t.Fatal(err)
	}
	_, err = a.Verify(t.Context(), device.Text.Hash())
	wantErr(t, err, ErrRevoked) // what somebody did comes before what time did
	wantErr(t, a.Revoke(t.Context(), Owner, "t-none"), engine.ErrNotFound)
	if _, err := a.Verify(t.Context(), agent.Text.Hash()); err != nil {
		t.Errorf("another token: %v", err)
	}
}

// A store that fails is 503: it must never look like a bad token, which would
// make agents stop.
func TestStoreFailureIsNoRefusal(t *testing.T) {
	a, store, _ := fresh(t)
	tok := issue(t, a, Request{Account: Owner, Kind: engine.KindDevice, Name: "phone"})
	store.err = errors.New("disk is on fire")
	_, err := a.Verify(t.Context(), tok.Text.Hash())
	wantErr(t, err, store.err)
	for _, no := range []error{ErrUnknown, ErrExpired, ErrRevoked, ErrNoPairing} {
		if errors.Is(err, no) {
			t.Errorf("%v is %v", err, no)
		}
	}
	_, err = a.Redeem(t.Context(), pairing.NewSecret().RelaySecret(), phoneKey, "phone")
	wantErr(t, err, store.err)
	if errors.Is(err, ErrNoPairing) {
		t.Errorf("%v is %v", err, ErrNoPairing)
	}
}

func TestIssueRefuses(t *testing.T) {
	a, _, _ := fresh(t)
	good := Request{Account: Owner, Kind: engine.KindAgent, Name: "x"}
	for name, c := range map[string]struct {
		change func(*Request)
		want   error
	}{
		"no account":             {func(r *Request) { r.Account = "nobody" }, engine.ErrNotFound},
		"no name":                {func(r *Request) { r.Name = "" }, ErrName},
		"invisible name":         {func(r *Request) { r.Name = " \u200b\n" }, ErrName},
		"no kind":                {func(r *Request) { r.Kind = "" }, wire.ErrSyntax},
		"unknown kind":           {func(r *Request) { r.Kind = "admin" }, wire.ErrSyntax},
		"bad machine":            {func(r *Request) { r.Machine = "a/b" }, wire.ErrSyntax},
		"device with a machine":  {func(r *Request) { r.Kind, r.Machine = engine.KindDevice, "mini" }, wire.ErrSyntax},
		"lifetime in the past":   {func(r *Request) { r.Lifetime = -time.Second }, wire.ErrSyntax},
		"nothing wrong with it":  {func(*Request) {}, nil},
		"device, nothing wrong":  {func(r *Request) { r.Kind = engine.KindDevice }, nil},
		"a very long name, cut":  {func(r *Request) { r.Name = strings.Repeat("é", 500) }, nil},
		"a name of other script": {func(r *Request) { r.Name = "アンナの電話" }, nil},
	} {
		r := good
		c.change(&r)
		got, err := a.Issue(t.Context(), r)
		if c.want == nil && (err != nil || len(got.Token.Name) > wire.MaxNameBytes || got.Token.Name == "") {
			t.Errorf("%s: %+v, %v", name, got.Token, err)
		}
		if c.want != nil && (!errors.Is(err, c.want) || !got.Text.IsZero()) {
			t.Errorf("%s: error %v, want %v", name, err, c.want)
		}
	}
}

func TestTakenIdentifierIsTriedAgain(t *testing.T) {
	a, store, _ := fresh(t)
	store.taken = maxIDTries - 1
	tok := issue(t, a, Request{Account: Owner, Kind: engine.KindAgent, Name: "x", Machine: "mini"})
	if _, err := a.Verify(t.Context(), tok.Text.Hash()); err != nil {
		t.Error(err)
	}
	store.taken = maxIDTries
	_, err := a.Issue(t.Context(), Request{Account: Owner, Kind: engine.KindAgent, Name: "x"})
	wantErr(t, err, engine.ErrExists)

	s := pairing.NewSecret().RelaySecret()
	if _, err := a.OpenPairing(t.Context(), mini, s.Hash(), time.Minute); err != nil {
		t.Fatal(err)
	}
	store.taken = maxIDTries - 1
	if _, err := a.Redeem(t.Context(), s, phoneKey, "phone"); err != nil {
		t.Error(err)
	}
	store.taken = maxIDTries
	_, err = a.Redeem(t.Context(), s, phoneKey, "phone")
	wantErr(t, err, engine.ErrExists)
}

func TestIDs(t *testing.T) {
	seen := map[string]bool{}
	for range 2000 {
		id := NewID("d")
		if len(id) != 11 || id[0] != 'd' || strings.ContainsAny(id[1:], "ilo1") || seen[id] {
			t.Fatalf("id %q", id)
		}
		if _, err := wire.ParseMachineID(id); err != nil {
			t.Fatalf("id %q is no word of a command line or a path: %v", id, err)
		}
		seen[id] = true
	}
}

func TestPairing(t *testing.T) {
	a, store, clock := fresh(t)
	issue(t, a, Request{Account: Owner, Kind: engine.KindAgent, Name: "mini", Machine: "mini"})
	s := pairing.NewSecret()

	for _, ttl := range []time.Duration{0, -time.Second, time.Millisecond, wire.MaxPairingTTL + 1} {
		_, err := a.OpenPairing(t.Context(), mini, s.RelaySecret().Hash(), ttl)
		wantErr(t, err, ErrTTL)
	}
	_, err := a.OpenPairing(t.Context(), engine.Key{Account: Owner, Machine: "none"}, s.RelaySecret().Hash(), time.Minute)
	wantErr(t, err, engine.ErrNotFound)
	expires, err := a.OpenPairing(t.Context(), mini, s.RelaySecret().Hash(), wire.MaxPairingTTL)
	if err != nil || !expires.Equal(clock.Now().Add(wire.MaxPairingTTL)) {
		t.Fatalf("%v, %v", expires, err)
	}
	_, err = a.OpenPairing(t.Context(), mini, s.RelaySecret().Hash(), time.Minute)
	wantErr(t, err, engine.ErrExists)

	got, err := a.Redeem(t.Context(), s.RelaySecret(), phoneKey+" anna@phone", " Anna's\tphone ")
	if err != nil {
		t.Fatal(err)
	}
	if got.Machine != "mini" || got.Device.Account != Owner || got.Device.Key != phoneKey || got.Device.Name != "Anna's phone" {
		t.Errorf("redeemed %+v", got)
	}
	tok, err := a.Verify(t.Context(), got.Text.Hash())
	if err != nil || tok.Kind != engine.KindDevice || tok.Device != got.Device.ID || tok.Account != Owner {
		t.Errorf("token %+v, %v", tok, err)
	}

	again, err := a.Redeem(t.Context(), s.RelaySecret(), phoneKey, "Anna's phone")
	if err != nil || again.Device.ID != got.Device.ID || again.Text == got.Text {
		t.Fatalf("repeated: %+v, %v", again, err)
	}
	_, err = a.Verify(t.Context(), got.Text.Hash())
	wantErr(t, err, ErrRevoked)
	if _, err := a.Verify(t.Context(), again.Text.Hash()); err != nil {
		t.Error(err)
	}

	for name, redeem := range map[string]func() (Redeemed, error){
		"another key": func() (Redeemed, error) { return a.Redeem(t.Context(), s.RelaySecret(), laptopKey, "laptop") },
		"another secret": func() (Redeemed, error) {
			return a.Redeem(t.Context(), pairing.NewSecret().RelaySecret(), phoneKey, "phone")
		},
		"no secret": func() (Redeemed, error) { return a.Redeem(t.Context(), pairing.RelaySecret{}, phoneKey, "phone") },
		"after its time": func() (Redeemed, error) {
			clock.Add(wire.MaxPairingTTL)
			defer clock.Add(-wire.MaxPairingTTL)
			return a.Redeem(t.Context(), s.RelaySecret(), phoneKey, "phone")
		},
	} {
		if got, err := redeem(); !errors.Is(err, ErrNoPairing) || !got.Text.IsZero() {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for name, c := range map[string][2]string{
		"no key":           {"", "phone"},
		"an RSA key":       {"ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAAQ==", "phone"},
		"a key of options": {`command="x" ` + phoneKey, "phone"},
		"a cut key":        {phoneKey[:60], "phone"},
		"no name":          {phoneKey, "\x00"},
	} {
		if _, err := a.Redeem(t.Context(), s.RelaySecret(), c[0], c[1]); !errors.Is(err, wire.ErrSyntax) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if d, err := store.Devices(t.Context(), Owner); err != nil || len(d) != 1 {
		t.Errorf("devices %+v, %v", d, err)
	}
	// The tries above took nothing from the device.
	if _, err := a.Verify(t.Context(), again.Text.Hash()); err != nil {
		t.Error(err)
	}
}

func TestState(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct {
		token engine.Token
		want  error
	}{
		{engine.Token{}, nil},
		{engine.Token{Expires: now.Add(time.Second)}, nil},
		{engine.Token{Expires: now}, ErrExpired},
		{engine.Token{Expires: now.Add(-time.Hour), Revoked: now}, ErrRevoked},
	} {
		if got := State(tt.token, now); got != tt.want {
			t.Errorf("%+v: %v, want %v", tt.token, got, tt.want)
		}
	}
}
