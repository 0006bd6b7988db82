package enginetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"holdfast/internal/engine"
	"holdfast/internal/wire"
)

// OpenStore gives a fresh, empty store that runs on the given clock and is
// closed when the test ends.
type OpenStore func(t *testing.T, now func() time.Time) engine.Store

// StoreConformance is what a relay counts on in a Store.
func StoreConformance(t *testing.T, open OpenStore) {
	for _, c := range []struct {
		name string
		test func(*testing.T, engine.Store, *Clock)
	}{
		{"Accounts", testAccounts},
		{"RemovedAccountLeavesNothing", testRemoveAccount},
		{"Tokens", testTokens},
		{"TokenRefusals", testTokenRefusals},
		{"RevokeToken", testRevokeToken},
		{"BindToken", testBindToken},
		{"BindTokenRace", testBindRace},
		{"TouchTokens", testTouchTokens},
		{"Machines", testMachines},
		{"Claim", testClaim},
		{"ClaimNamesItsReason", testClaimReasons},
		{"ClaimUnderClockSteps", testClaimClock},
		{"ClaimRace", testClaimRace},
		{"ClaimBoundsWhatItRemembers", testClaimBound},
		{"Pairing", testPairing},
		{"PairingRefusals", testPairingRefusals},
		{"PairingBound", testPairingBound},
		{"PairingRace", testPairingRace},
		{"PairingOfRevokedDevice", testPairingRevoked},
		{"Revocations", testRevocations},
		{"Changes", testChanges},
		{"ChangesArePruned", testPruned},
		{"WakeFollowsEveryChange", testWake},
		{"CancelledWriteLeavesNothing", testCancelled},
		{"ManyWritersAtOnce", testManyWriters},
		{"Closed", testClosed},
	} {
		t.Run(c.name, func(t *testing.T) {
			clock := NewClock()
			c.test(t, open(t, clock.Now), clock)
		})
	}
}

func testAccounts(t *testing.T, s engine.Store, clock *Clock) {
	ctx := t.Context()
	must(t, s.Ping(ctx))
	must(t, s.AddAccount(ctx, "zoe"))
	must(t, s.AddAccount(ctx, "anna"))
	wantErr(t, s.AddAccount(ctx, "anna"), engine.ErrExists)
	for _, bad := range []engine.AccountID{"", ".x", "a b", "a/b"} {
		wantErr(t, s.AddAccount(ctx, bad), wire.ErrSyntax)
	}
	got, err := s.Accounts(ctx)
	must(t, err)
	if len(got) != 2 || got[0].ID != "anna" || got[1].ID != "zoe" || !got[0].Created.Equal(clock.Now()) {
		t.Errorf("accounts %+v", got)
	}
	wantErr(t, s.RemoveAccount(ctx, "nobody"), engine.ErrNotFound)
}

func testRemoveAccount(t *testing.T, s engine.Store, clock *Clock) {
	ctx := t.Context()
	owner(t, s)
	must(t, s.AddAccount(ctx, "other"))
	must(t, s.AddToken(ctx, agentToken("t-other", "other", "mini")))
	pair(t, s, clock, "p1")
	_, _, err := redeem(ctx, s, "p1", "d1", "key one", "t1")
	must(t, err)
	must(t, s.RemoveAccount(ctx, "owner"))

	for _, id := range []string{"t-mini", "t1"} {
		_, err := s.TokenByHash(ctx, hashOf(id))
		wantErr(t, err, engine.ErrNotFound)
	}
	_, err = s.Machine(ctx, mini)
	wantErr(t, err, engine.ErrNotFound)
	_, err = s.Claim(ctx, mini, "instance-a", 1)
	wantErr(t, err, engine.ErrNotFound)
	_, _, err = redeem(ctx, s, "p1", "d1", "key one", "t2")
	wantErr(t, err, engine.ErrNotFound)
	if d, err := s.Devices(ctx, "owner"); err != nil || len(d) != 0 {
		t.Errorf("devices %v, %v", d, err)
	}
	if _, err := s.TokenByHash(ctx, hashOf("t-other")); err != nil {
		t.Errorf("the other account's token: %v", err)
	}
	if _, err := s.Machine(ctx, engine.Key{Account: "other", Machine: "mini"}); err != nil {
		t.Errorf("the other account's machine of the same name: %v", err)
	}
	// The name may be taken again, and starts empty.
	must(t, s.AddAccount(ctx, "owner"))
	if m, err := s.Machines(ctx, "owner"); err != nil || len(m) != 0 {
		t.Errorf("machines of the new account %v, %v", m, err)
	}
}

func testTokens(t *testing.T, s engine.Store, clock *Clock) {
	ctx := t.Context()
	owner(t, s)
	clock.Add(time.Second)
	want := engine.Token{
		ID: "t-phone", Hash: hashOf("t-phone"), Account: "owner", Kind: engine.KindDevice,
		Name: "Anna's phone ☎", Device: "d1", Created: clock.Now(), Expires: clock.Now().Add(time.Hour),
	}
	must(t, s.AddToken(ctx, want))
	got, err := s.TokenByHash(ctx, want.Hash)
	must(t, err)
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	list, err := s.Tokens(ctx, "owner")
	must(t, err)
	if len(list) != 2 || list[0].ID != "t-mini" || list[1] != want {
		t.Errorf("list %+v", list)
	}
	// Expired tokens are found too.
	clock.Add(2 * time.Hour)
	if _, err := s.TokenByHash(ctx, want.Hash); err != nil {
		t.Errorf("expired token: %v", err)
	}
	if list, err := s.Tokens(ctx, "nobody"); err != nil || len(list) != 0 {
		t.Errorf("tokens of nobody: %v, %v", list, err)
	}
}

func testTokenRefusals(t *testing.T, s engine.Store, _ *Clock) {
	ctx := t.Context()
	owner(t, s)
	sameHash := deviceToken("t-2", "owner")
	sameHash.Hash = hashOf("t-mini")
	bound := deviceToken("t-3", "owner")
	bound.Machine = "mini"
	strange := deviceToken("t-4", "owner")
	strange.Kind = "root"
	for _, c := range []struct {
		name  string
		token engine.Token
		want  error
	}{
		{"no account", deviceToken("t-1", "nobody"), engine.ErrNotFound},
		{"same id", deviceToken("t-mini", "owner"), engine.ErrExists},
		{"same hash", sameHash, engine.ErrExists},
		{"device token with a machine", bound, wire.ErrSyntax},
		{"unknown kind", strange, wire.ErrSyntax},
		{"bad machine", agentToken("t-5", "owner", "a b"), wire.ErrSyntax},
	} {
		t.Run(c.name, func(t *testing.T) { wantErr(t, s.AddToken(ctx, c.token), c.want) })
	}
	// What was refused left nothing: neither a token nor its machine.
	if list, err := s.Tokens(ctx, "owner"); err != nil || len(list) != 1 {
		t.Errorf("tokens %v, %v", list, err)
	}
	_, err := s.TokenByHash(ctx, hashOf("never"))
	wantErr(t, err, engine.ErrNotFound)
}

func testRevokeToken(t *testing.T, s engine.Store, clock *Clock) {
	ctx := t.Context()
	owner(t, s)
	must(t, s.AddAccount(ctx, "other"))
	wantErr(t, s.RevokeToken(ctx, "other", "t-mini"), engine.ErrNotFound)
	wantErr(t, s.RevokeToken(ctx, "owner", "t-none"), engine.ErrNotFound)
	must(t, s.RevokeToken(ctx, "owner", "t-mini"))
	at := clock.Now()
	clock.Add(time.Minute)
	must(t, s.RevokeToken(ctx, "owner", "t-mini"))
	got, err := s.TokenByHash(ctx, hashOf("t-mini"))
	must(t, err)
	if !got.Revoked.Equal(at) {
		t.Errorf("revoked %v, want the first time %v", got.Revoked, at)
	}
	all, err := s.Changes(ctx, 0)
	must(t, err)
	if len(all) != 1 || all[0].Kind != engine.ChangeToken || all[0].Account != "owner" ||
		all[0].Token != "t-mini" || all[0].Machine != "mini" {
		t.Errorf("changes %+v, want the one", all)
	}
}

func testBindToken(t *testing.T, s engine.Store, _ *Clock) {
	ctx := t.Context()
	owner(t, s)
	must(t, s.AddToken(ctx, agentToken("t-free", "owner", "")))
	must(t, s.AddToken(ctx, deviceToken("t-phone", "owner")))

	must(t, s.BindToken(ctx, "t-free", "maxi"))
	must(t, s.BindToken(ctx, "t-free", "maxi"))
	wantErr(t, s.BindToken(ctx, "t-free", "mini"), engine.ErrBoundElsewhere)
	wantErr(t, s.BindToken(ctx, "t-none", "mini"), engine.ErrNotFound)
	wantErr(t, s.BindToken(ctx, "t-phone", "mini"), engine.ErrNotFound)
	got, err := s.TokenByHash(ctx, hashOf("t-free"))
	must(t, err)
	if got.Machine != "maxi" {
		t.Errorf("bound to %q", got.Machine)
	}
	if _, err := s.Machine(ctx, engine.Key{Account: "owner", Machine: "maxi"}); err != nil {
		t.Errorf("binding made no machine: %v", err)
	}
	// A second token of a machine that is there already.
	must(t, s.AddToken(ctx, agentToken("t-new", "owner", "")))
	must(t, s.BindToken(ctx, "t-new", "mini"))

	must(t, s.AddToken(ctx, agentToken("t-bad", "owner", "")))
	wantErr(t, s.BindToken(ctx, "t-bad", "a b"), wire.ErrSyntax)
	wantErr(t, s.BindToken(ctx, "t-bad", ""), wire.ErrSyntax)
}

func testBindRace(t *testing.T, s engine.Store, _ *Clock) {
	ctx := t.Context()
	owner(t, s)
	must(t, s.AddToken(ctx, agentToken("t-free", "owner", "")))
	var wg sync.WaitGroup
	var mu sync.Mutex
	won := map[wire.MachineID]bool{}
	for i := range 8 {
		m := wire.MachineID(fmt.Sprintf("m%d", i))
		wg.Go(func() {
			err := s.BindToken(ctx, "t-free", m)
			if err != nil && !errors.Is(err, engine.ErrBoundElsewhere) {
				t.Errorf("bind to %s: %v", m, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won[m] = true
			}
		})
	}
	wg.Wait()
	if len(won) != 1 {
		t.Errorf("bound to %v, want exactly one", won)
	}
	if m, err := s.Machines(ctx, "owner"); err != nil || len(m) != 2 {
		t.Errorf("machines %v, %v: want mini and the winner", m, err)
	}
}

func testTouchTokens(t *testing.T, s engine.Store, clock *Clock) {
	ctx := t.Context()
	owner(t, s)
	pair(t, s, clock, "p1")
	_, _, err := redeem(ctx, s, "p1", "d1", "key one", "t1")
	must(t, err)
	at := clock.Now().Add(time.Minute)
	must(t, s.TouchTokens(ctx, nil))
	must(t, s.TouchTokens(ctx, map[string]engine.Use{
		"t1": {At: at, From: "192.0.2.7"}, "t-none": {At: at},
	}))
	must(t, s.TouchTokens(ctx, map[string]engine.Use{"t1": {At: at.Add(-time.Second), From: "192.0.2.8"}}))
	got, err := s.TokenByHash(ctx, hashOf("t1"))
	must(t, err)
	if !got.Used.Equal(at) || got.From != "192.0.2.7" {
		t.Errorf("used %v from %q, want the newest %v", got.Used, got.From, at)
	}
	devices, err := s.Devices(ctx, "owner")
	must(t, err)
	if len(devices) != 1 || !devices[0].Used.Equal(at) {
		t.Errorf("devices %+v", devices)
	}
	if c, err := s.Changes(ctx, 0); err != nil || len(c) != 0 {
		t.Errorf("a use is no change: %v, %v", c, err)
	}
}

func testMachines(t *testing.T, s engine.Store, clock *Clock) {
	ctx := t.Context()
	owner(t, s)
	must(t, s.AddToken(ctx, agentToken("t-alpha", "owner", "alpha")))
	got, err := s.Machines(ctx, "owner")
	must(t, err)
	if len(got) != 2 || got[0].Machine != "alpha" || got[1].Key != mini || got[1].Epoch != 0 || !got[1].Seen.IsZero() ||
		!got[1].Created.Equal(clock.Now()) {
		t.Errorf("machines %+v", got)
	}
	clock.Add(time.Second)
	if _, err := s.Claim(ctx, mini, "instance-a", 7); err != nil {
		t.Fatal(err)
	}
	m, err := s.Machine(ctx, mini)
	must(t, err)
	if m.Epoch != 1 || m.Instance != "instance-a" || m.Attempt != 7 || !m.Seen.Equal(clock.Now()) {
		t.Errorf("machine %+v", m)
	}

	must(t, s.RemoveMachine(ctx, mini))
	wantErr(t, s.RemoveMachine(ctx, mini), engine.ErrNotFound)
	_, err = s.Machine(ctx, mini)
	wantErr(t, err, engine.ErrNotFound)
	wantErr(t, s.BindToken(ctx, "t-mini", "mini"), engine.ErrNotFound)
	tok, err := s.TokenByHash(ctx, hashOf("t-mini"))
	must(t, err)
	if tok.Revoked.IsZero() {
		t.Error("the removed machine's token is still good")
	}
	if tok, err := s.TokenByHash(ctx, hashOf("t-alpha")); err != nil || !tok.Revoked.IsZero() {
		t.Errorf("another machine's token: %+v, %v", tok, err)
	}
	all, err := s.Changes(ctx, 0)
	must(t, err)
	if len(all) != 1 || all[0].Kind != engine.ChangeMachine || all[0].Machine != "mini" || all[0].Account != "owner" {
		t.Errorf("changes %+v", all)
	}
}

// claim is one step of a Claim table.
type claim struct {
	after    time.Duration
	instance wire.Instance
	attempt  uint64
	err      error
}

func runClaims(t *testing.T, s engine.Store, clock *Clock, steps []claim) {
	t.Helper()
	var last uint64
	for i, c := range steps {
		clock.Add(c.after)
		epoch, err := s.Claim(t.Context(), mini, c.instance, c.attempt)
		switch {
		case c.err != nil:
			if !errors.Is(err, c.err) {
				t.Errorf("step %d %+v: error %v", i, c, err)
			}
		case err != nil:
			t.Errorf("step %d %+v: %v", i, c, err)
		case epoch <= last:
			t.Errorf("step %d %+v: epoch %d after %d", i, c, epoch, last)
		default:
			last = epoch
		}
	}
}

func testClaim(t *testing.T, s engine.Store, clock *Clock) {
	owner(t, s)
	runClaims(t, s, clock, []claim{
		{0, "instance-a", 1, nil},
		{0, "instance-a", 3, nil},
		{0, "instance-a", 2, engine.ErrStaleAttempt},
		{0, "instance-a", 3, nil}, // newest wins unless it is lower
		{time.Second, "instance-b", 1, nil},
		{0, "instance-a", 4, engine.ErrReplaced},
		{wire.ReplacedHold - time.Second, "instance-a", 5, engine.ErrReplaced},
		{0, "instance-b", 2, nil},
		{2 * time.Second, "instance-a", 6, nil}, // the hour is over
		{0, "instance-b", 3, engine.ErrReplaced},
		// An agent of an older version has no instance: it simply replaces.
		{0, "", 0, nil},
		{0, "", 0, nil},
		{0, "instance-a", 7, engine.ErrReplaced},
		{0, "instance-c", 1, nil},
		{0, "", 0, nil},
	})
}

func testClaimReasons(t *testing.T, s engine.Store, clock *Clock) {
	owner(t, s)
	_, err := s.Claim(t.Context(), engine.Key{Account: "owner", Machine: "none"}, "instance-a", 1)
	wantErr(t, err, engine.ErrNotFound)
	_, err = s.Claim(t.Context(), mini, "instance-a", 1<<63)
	wantErr(t, err, wire.ErrSyntax)
	runClaims(t, s, clock, []claim{{0, "instance-a", 9, nil}, {0, "instance-b", 1, nil}})
	// Replaced comes before stale: to an instance that another replaced, its own
	// attempts say nothing.
	_, err = s.Claim(t.Context(), mini, "instance-a", 1)
	wantErr(t, err, engine.ErrReplaced)
	m, err := s.Machine(t.Context(), mini)
	must(t, err)
	if m.Instance != "instance-b" || m.Epoch != 2 {
		t.Errorf("a refused claim changed the machine: %+v", m)
	}
}

func testClaimClock(t *testing.T, s engine.Store, clock *Clock) {
	owner(t, s)
	runClaims(t, s, clock, []claim{
		{0, "instance-a", 1, nil},
		{0, "instance-b", 1, nil},
		{-time.Minute, "instance-a", 2, engine.ErrReplaced},
		// A year back: the ban must not last a year.
		{-365 * 24 * time.Hour, "instance-a", 3, nil},
	})
}

func testClaimRace(t *testing.T, s engine.Store, _ *Clock) {
	ctx := t.Context()
	owner(t, s)
	const n = 32
	var wg sync.WaitGroup
	epochs := make([]uint64, n)
	for i := range n {
		wg.Go(func() {
			epoch, err := s.Claim(ctx, mini, "instance-a", uint64(i+1))
			if err != nil && !errors.Is(err, engine.ErrStaleAttempt) {
				t.Errorf("attempt %d: %v", i+1, err)
			}
			epochs[i] = epoch
		})
	}
	wg.Wait()
	m, err := s.Machine(ctx, mini)
	must(t, err)
	if m.Attempt != n || epochs[n-1] != m.Epoch {
		t.Errorf("machine %+v after the highest attempt got epoch %d", m, epochs[n-1])
	}
	// Among those that won, a higher attempt has a higher epoch.
	won := slices.DeleteFunc(epochs, func(e uint64) bool { return e == 0 })
	if !slices.IsSorted(won) || len(slices.Compact(slices.Clone(won))) != len(won) {
		t.Errorf("epochs by attempt: %v", won)
	}
}

func testClaimBound(t *testing.T, s engine.Store, clock *Clock) {
	ctx := t.Context()
	owner(t, s)
	for i := range 200 {
		clock.Add(time.Second)
		if _, err := s.Claim(ctx, mini, wire.Instance(fmt.Sprintf("instance-%d", i)), 1); err != nil {
			t.Fatal(err)
		}
	}
	// The newest of the replaced are remembered, the oldest need not be.
	for i := 199 - 60; i < 199; i++ {
		_, err := s.Claim(ctx, mini, wire.Instance(fmt.Sprintf("instance-%d", i)), 2)
		wantErr(t, err, engine.ErrReplaced)
	}
}

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

func testChanges(t *testing.T, s engine.Store, _ *Clock) {
	ctx := t.Context()
	if c, err := s.Changes(ctx, -1); err != nil || len(c) != 0 {
		t.Errorf("an empty log: %v, %v", c, err)
	}
	for i := range 5 {
		id := engine.AccountID(fmt.Sprintf("a%d", i))
		must(t, s.AddAccount(ctx, id))
		must(t, s.RemoveAccount(ctx, id))
	}
	all, err := s.Changes(ctx, 0)
	must(t, err)
	if len(all) != 5 {
		t.Fatalf("changes %+v", all)
	}
	for i, c := range all {
		if c.Kind != engine.ChangeAccount || c.Account != engine.AccountID(fmt.Sprintf("a%d", i)) || i > 0 && c.Seq != all[i-1].Seq+1 {
			t.Errorf("change %d: %+v", i, c)
		}
	}
	last, err := s.Changes(ctx, -1)
	must(t, err)
	if len(last) != 1 || last[0] != all[4] {
		t.Errorf("newest %+v", last)
	}
	rest, err := s.Changes(ctx, all[2].Seq)
	must(t, err)
	if len(rest) != 2 || rest[0] != all[3] {
		t.Errorf("rest %+v", rest)
	}
	if none, err := s.Changes(ctx, all[4].Seq); err != nil || len(none) != 0 {
		t.Errorf("after the newest: %v, %v", none, err)
	}
}

func testPruned(t *testing.T, s engine.Store, _ *Clock) {
	ctx := t.Context()
	// Concurrent, so that changes share transactions.
	const n, workers = 5_200, 20
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			id := engine.AccountID(fmt.Sprintf("a%d", w))
			for range n / workers {
				if err := errors.Join(s.AddAccount(ctx, id), s.RemoveAccount(ctx, id)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	last, err := s.Changes(ctx, -1)
	must(t, err)
	if len(last) != 1 || last[0].Seq != n {
		t.Fatalf("newest %+v, want number %d", last, n)
	}
	_, err = s.Changes(ctx, 0)
	wantErr(t, err, engine.ErrPruned)
	seq, read := last[0].Seq-4_000, 0
	for {
		c, err := s.Changes(ctx, seq)
		must(t, err)
		if len(c) == 0 {
			break
		}
		if len(c) > 1_000 {
			t.Errorf("%d changes in one answer", len(c))
		}
		read += len(c)
		seq = c[len(c)-1].Seq
	}
	if read != 4_000 {
		t.Errorf("read %d changes of the newest 4,000", read)
	}
}

// woken drains Wake and reports whether it was signalled, at most d later.
func woken(s engine.Store, d time.Duration) bool {
	select {
	case <-s.Wake():
		return true
	case <-time.After(d):
		return false
	}
}

func testWake(t *testing.T, s engine.Store, clock *Clock) {
	ctx := t.Context()
	owner(t, s)
	must(t, s.AddToken(ctx, deviceToken("t-1", "owner")))
	pair(t, s, clock, "p1")
	_, _, err := redeem(ctx, s, "p1", "d1", "key one", "t1")
	must(t, err)
	for _, c := range []struct {
		name   string
		change func() error
	}{
		{"repeated redemption", func() error {
			_, _, err := redeem(ctx, s, "p1", "d1", "key one", "t2")
			return err
		}},
		{"revoke token", func() error { return s.RevokeToken(ctx, "owner", "t-1") }},
		{"revoke device", func() error { return s.RevokeDevice(ctx, "owner", "d1") }},
		{"remove machine", func() error { return s.RemoveMachine(ctx, mini) }},
		{"remove account", func() error { return s.RemoveAccount(ctx, "owner") }},
	} {
		for woken(s, 0) {
		}
		must(t, c.change())
		if !woken(s, 2*time.Second) {
			t.Errorf("%s: not woken", c.name)
		}
	}
}

func testCancelled(t *testing.T, s engine.Store, _ *Clock) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("the relay stops")
	cancel(cause)
	wantErr(t, s.AddAccount(ctx, "owner"), cause)
	if a, err := s.Accounts(t.Context()); err != nil || len(a) != 0 {
		t.Errorf("accounts %v, %v", a, err)
	}
	// Whatever the moment of the cancellation, an error means that nothing
	// changed and nil that it did.
	for i := range 200 {
		id := engine.AccountID(fmt.Sprintf("a%d", i))
		ctx, cancel := context.WithCancel(t.Context())
		go cancel() // ends at once
		err := s.AddAccount(ctx, id)
		there := s.RemoveAccount(t.Context(), id) == nil
		if there != (err == nil) {
			t.Fatalf("account %s: error %v, there %v", id, err, there)
		}
	}
}

func testManyWriters(t *testing.T, s engine.Store, _ *Clock) {
	ctx := t.Context()
	owner(t, s)
	const writers, each = 16, 25
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				id := fmt.Sprintf("t-%d-%d", w, i)
				if err := s.AddToken(ctx, deviceToken(id, "owner")); err != nil {
					t.Error(err)
				}
				// One that fails, in the same transaction as others' good ones.
				wantErr(t, s.AddToken(ctx, deviceToken(id, "owner")), engine.ErrExists)
				if _, err := s.TokenByHash(ctx, hashOf(id)); err != nil {
					t.Errorf("what was just written: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if list, err := s.Tokens(ctx, "owner"); err != nil || len(list) != writers*each+1 {
		t.Errorf("%d tokens, %v", len(list), err)
	}
}

func testClosed(t *testing.T, s engine.Store, _ *Clock) {
	must(t, s.AddAccount(t.Context(), "owner"))
	must(t, s.Close())
	must(t, s.Close())
	if err := s.AddAccount(t.Context(), "other"); err == nil {
		t.Error("a closed store takes an account")
	}
	if _, err := s.Accounts(t.Context()); err == nil {
		t.Error("a closed store answers")
	}
	if err := s.Ping(t.Context()); err == nil {
		t.Error("a closed store answers a ping")
	}
}
