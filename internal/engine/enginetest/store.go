package enginetest

import (
	"errors"
	"fmt"
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
		{"Notices", testNotices},
		{"NoticeRefusals", testNoticeRefusals},
		{"NoticeBounds", testNoticeBounds},
		{"NoticeChanges", testNoticeChanges},
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
