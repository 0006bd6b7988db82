package enginetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"holdfast/internal/engine"
	"holdfast/internal/wire"
)

func pair(t testing.TB, s engine.Store, clock *Clock, name string) engine.Pairing {
	t.Helper()
	p := engine.Pairing{Hash: hashOf(name), Account: "owner", Machine: "mini", Expires: clock.Now().Add(wire.MaxPairingTTL)}
	must(t, s.AddPairing(t.Context(), p))
	return p
}

func redeem(ctx context.Context, s engine.Store, pairing, device, key, token string) (engine.Device, engine.Pairing, error) {
	return s.RedeemPairing(ctx, hashOf(pairing), engine.Device{ID: device, Name: "name of " + device, Key: key},
		engine.Token{ID: token, Hash: hashOf(token), Kind: engine.KindDevice, Name: token})
}

func testPairing(t *testing.T, s engine.Store, clock *Clock) {
	ctx := t.Context()
	owner(t, s)
	want := pair(t, s, clock, "p1")
	d, p, err := redeem(ctx, s, "p1", "d1", "key one", "t1")
	must(t, err)
	if p != want {
		t.Errorf("pairing %+v, want %+v", p, want)
	}
	if d.ID != "d1" || d.Account != "owner" || d.Key != "key one" || d.Name != "name of d1" || !d.Created.Equal(clock.Now()) {
		t.Errorf("device %+v", d)
	}
	tok, err := s.TokenByHash(ctx, hashOf("t1"))
	must(t, err)
	if tok.Account != "owner" || tok.Device != "d1" || tok.Kind != engine.KindDevice || !tok.Revoked.IsZero() {
		t.Errorf("token %+v", tok)
	}

	// The same key again: a fresh token, the first one revoked, one device.
	d, _, err = redeem(ctx, s, "p1", "d2", "key one", "t2")
	must(t, err)
	if d.ID != "d1" || d.Name != "name of d2" {
		t.Errorf("device after a repeat %+v", d)
	}
	if tok, err := s.TokenByHash(ctx, hashOf("t1")); err != nil || tok.Revoked.IsZero() {
		t.Errorf("first token %+v, %v: want revoked", tok, err)
	}
	if tok, err := s.TokenByHash(ctx, hashOf("t2")); err != nil || !tok.Revoked.IsZero() || tok.Device != "d1" {
		t.Errorf("second token %+v, %v", tok, err)
	}
	changes, err := s.Changes(ctx, 0)
	must(t, err)
	if len(changes) != 1 || changes[0].Kind != engine.ChangeToken || changes[0].Token != "t1" {
		t.Errorf("changes %+v: want the first token's end", changes)
	}

	// Another link for the same key renews the device and leaves its tokens.
	pair(t, s, clock, "p2")
	d, _, err = redeem(ctx, s, "p2", "d3", "key one", "t3")
	must(t, err)
	if d.ID != "d1" {
		t.Errorf("device of a second link %+v", d)
	}
	if tok, err := s.TokenByHash(ctx, hashOf("t2")); err != nil || !tok.Revoked.IsZero() {
		t.Errorf("token of the first link %+v, %v: want good", tok, err)
	}
	if all, err := s.Devices(ctx, "owner"); err != nil || len(all) != 1 {
		t.Errorf("devices %+v, %v", all, err)
	}
}

func testPairingRefusals(t *testing.T, s engine.Store, clock *Clock) {
	ctx := t.Context()
	owner(t, s)
	p := pair(t, s, clock, "p1")
	wantErr(t, s.AddPairing(ctx, p), engine.ErrExists)
	p.Hash, p.Machine = hashOf("p2"), "none"
	wantErr(t, s.AddPairing(ctx, p), engine.ErrNotFound)

	_, _, err := redeem(ctx, s, "unknown", "d1", "key one", "t1")
	wantErr(t, err, engine.ErrNotFound)
	_, _, err = redeem(ctx, s, "p1", "d1", "key one", "t1")
	must(t, err)
	_, _, err = redeem(ctx, s, "p1", "d2", "key two", "t2")
	wantErr(t, err, engine.ErrNotFound)
	if all, err := s.Devices(ctx, "owner"); err != nil || len(all) != 1 {
		t.Errorf("a refused key left a device: %+v, %v", all, err)
	}
	// An identifier that is taken changes nothing either.
	_, _, err = redeem(ctx, s, "p1", "d1", "key one", "t-mini")
	wantErr(t, err, engine.ErrExists)
	if tok, err := s.TokenByHash(ctx, hashOf("t1")); err != nil || !tok.Revoked.IsZero() {
		t.Errorf("token %+v, %v: a failed repeat must not revoke it", tok, err)
	}

	clock.Add(wire.MaxPairingTTL)
	_, _, err = redeem(ctx, s, "p1", "d1", "key one", "t3")
	wantErr(t, err, engine.ErrNotFound)

	pair(t, s, clock, "p3")
	must(t, s.RemovePairing(ctx, hashOf("p3")))
	wantErr(t, s.RemovePairing(ctx, hashOf("p3")), engine.ErrNotFound)
	_, _, err = redeem(ctx, s, "p3", "d4", "key four", "t4")
	wantErr(t, err, engine.ErrNotFound)
}

func testPairingBound(t *testing.T, s engine.Store, clock *Clock) {
	ctx := t.Context()
	owner(t, s)
	for i := range 40 {
		clock.Add(time.Second)
		pair(t, s, clock, fmt.Sprintf("p%d", i))
	}
	_, _, err := redeem(ctx, s, "p0", "d0", "key 0", "t0")
	wantErr(t, err, engine.ErrNotFound)
	for _, i := range []int{24, 39} {
		_, _, err := redeem(ctx, s, fmt.Sprintf("p%d", i), fmt.Sprintf("d%d", i), fmt.Sprintf("key %d", i), fmt.Sprintf("t%d", i))
		if err != nil {
			t.Errorf("one of the newest links, %d: %v", i, err)
		}
	}
}

func testPairingRace(t *testing.T, s engine.Store, clock *Clock) {
	ctx := t.Context()
	owner(t, s)
	pair(t, s, clock, "p1")
	var wg sync.WaitGroup
	var mu sync.Mutex
	var won []string
	for i := range 8 {
		wg.Go(func() {
			d, _, err := redeem(ctx, s, "p1", fmt.Sprintf("d%d", i), fmt.Sprintf("key %d", i), fmt.Sprintf("t%d", i))
			if err != nil && !errors.Is(err, engine.ErrNotFound) {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won = append(won, d.ID)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 {
		t.Errorf("the link belongs to %v, want exactly one", won)
	}
}

// A device that was revoked while its link was open must not use the link to
// come back.
func testPairingRevoked(t *testing.T, s engine.Store, clock *Clock) {
	ctx := t.Context()
	owner(t, s)
	pair(t, s, clock, "p1")
	d, _, err := redeem(ctx, s, "p1", "d1", "key one", "t1")
	must(t, err)
	must(t, s.RevokeDevice(ctx, "owner", d.ID))
	_, _, err = redeem(ctx, s, "p1", "d2", "key one", "t2")
	wantErr(t, err, engine.ErrNotFound)

	// A new link is a person's decision: the key becomes a new device, and what
	// this machine had still to remove is taken back.
	pair(t, s, clock, "p2")
	d, _, err = redeem(ctx, s, "p2", "d3", "key one", "t3")
	must(t, err)
	if d.ID != "d3" {
		t.Errorf("device %+v, want a new one", d)
	}
	if r, err := s.Revocations(ctx, mini); err != nil || len(r) != 0 {
		t.Errorf("revocations %v, %v", r, err)
	}

	// The same for a token that was revoked alone.
	pair(t, s, clock, "p3")
	_, _, err = redeem(ctx, s, "p3", "d4", "key four", "t4")
	must(t, err)
	must(t, s.RevokeToken(ctx, "owner", "t4"))
	_, _, err = redeem(ctx, s, "p3", "d5", "key four", "t5")
	wantErr(t, err, engine.ErrNotFound)
}

func testRevocations(t *testing.T, s engine.Store, clock *Clock) {
	ctx := t.Context()
	owner(t, s)
	must(t, s.AddAccount(ctx, "other"))
	must(t, s.AddToken(ctx, agentToken("t-other", "other", "mini")))
	must(t, s.AddToken(ctx, agentToken("t-maxi", "owner", "maxi")))
	pair(t, s, clock, "p1")
	_, _, err := redeem(ctx, s, "p1", "d1", "key one", "t1")
	must(t, err)

	wantErr(t, s.RevokeDevice(ctx, "other", "d1"), engine.ErrNotFound)
	wantErr(t, s.RevokeDevice(ctx, "owner", "none"), engine.ErrNotFound)
	must(t, s.RevokeDevice(ctx, "owner", "d1"))
	at := clock.Now()
	clock.Add(time.Second)
	must(t, s.RevokeDevice(ctx, "owner", "d1"))

	if tok, err := s.TokenByHash(ctx, hashOf("t1")); err != nil || !tok.Revoked.Equal(at) {
		t.Errorf("token %+v, %v", tok, err)
	}
	if d, err := s.Devices(ctx, "owner"); err != nil || len(d) != 1 || !d[0].Revoked.Equal(at) {
		t.Errorf("devices %+v, %v", d, err)
	}
	changes, err := s.Changes(ctx, 0)
	must(t, err)
	if len(changes) != 1 || changes[0].Kind != engine.ChangeDevice || changes[0].Device != "d1" || changes[0].Account != "owner" {
		t.Errorf("changes %+v", changes)
	}
	want := engine.Revocation{Device: "d1", Key: "key one"}
	maxi := engine.Key{Account: "owner", Machine: "maxi"}
	for _, k := range []engine.Key{mini, maxi} {
		if r, err := s.Revocations(ctx, k); err != nil || len(r) != 1 || r[0] != want {
			t.Errorf("revocations for %s: %v, %v", k, r, err)
		}
	}
	if r, err := s.Revocations(ctx, engine.Key{Account: "other", Machine: "mini"}); err != nil || len(r) != 0 {
		t.Errorf("revocations of another account: %v, %v", r, err)
	}
	must(t, s.AckRevocation(ctx, mini, want))
	must(t, s.AckRevocation(ctx, mini, want))
	if r, err := s.Revocations(ctx, mini); err != nil || len(r) != 0 {
		t.Errorf("after the acknowledgement: %v, %v", r, err)
	}
	if r, err := s.Revocations(ctx, maxi); err != nil || len(r) != 1 {
		t.Errorf("one machine acknowledged for another: %v, %v", r, err)
	}
}
