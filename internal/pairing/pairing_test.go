package pairing

import (
	"crypto/ecdh"
	"crypto/rand"
	"strings"
	"testing"
	"time"
)

func testEd25519(t testing.TB, fill byte) Key {
	t.Helper()
	k, err := ed25519Key([]byte(strings.Repeat(string(rune(fill)), ed25519Bytes)))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func testP256(t testing.TB) Key {
	t.Helper()
	priv, err := ecdh.P256().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	k, err := p256Key(priv.PublicKey().Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func testLink(t testing.TB) Link {
	return Link{
		Relay:    "https://relay.example:7700",
		Machine:  "mini",
		HostKeys: []Key{testEd25519(t, 'a'), testP256(t)},
		Secret:   NewSecret(),
		Expires:  time.Unix(1_800_000_000, 0).UTC(),
	}
}

func TestLinkComesBack(t *testing.T) {
	want := testLink(t)
	text, err := want.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseLink(text)
	if err != nil {
		t.Fatal(err)
	}
	again, err := got.Encode()
	if err != nil || again != text {
		t.Errorf("encoded again: %q, %v; want %q", again, err, text)
	}
	if got.Relay != want.Relay || got.Machine != want.Machine || got.Secret != want.Secret ||
		!got.Expires.Equal(want.Expires) || len(got.HostKeys) != 2 || got.HostKeys[0] != want.HostKeys[0] ||
		got.HostKeys[1] != want.HostKeys[1] {
		t.Errorf("got %+v, want %+v", got, want)
	}
	t.Logf("%d bytes", len(text))
}
