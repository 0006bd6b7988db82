package relay

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/engine"
	"holdfast/internal/wire"
)

// scene is two machines of ann and one of bob, each with a stream, so that a
// change shows what it closes and what it leaves alone.
type scene struct {
	*rig
	mini, maxi, bob    *agent
	tokA, tokB, tokBob issued
	devA, agtA         *websocket.Conn // tokA to mini
	devB, agtB         *websocket.Conn // tokB to maxi
	devBob, agtBob     *websocket.Conn // tokBob to bob's machine, also called mini
}

func newScene(t *testing.T) *scene {
	g := newRig(t)
	s := &scene{rig: g}
	s.mini, s.maxi = g.ready("mini"), g.ready("maxi")
	tok := g.token("bob", engine.KindAgent, "mini")
	s.bob = g.agent("mini", tok)
	s.bob.pong()
	s.tokA, s.tokB, s.tokBob = g.deviceToken(), g.deviceToken(), g.token("bob", engine.KindDevice, "")
	s.devA, s.agtA = g.pair(s.mini, s.tokA)
	s.devB, s.agtB = g.pair(s.maxi, s.tokB)
	s.devBob, s.agtBob = g.pair(s.bob, s.tokBob)
	return s
}

// within wants a socket to close with code within a second and slack.
func (s *scene) within(what string, ws *websocket.Conn, code wire.CloseCode) {
	s.t.Helper()
	began := time.Now()
	ce := closeOf(s.t, ws, 5*time.Second)
	if took := time.Since(began); took > 2*time.Second || ce.Code != websocket.StatusCode(code) {
		s.t.Errorf("%s: closed %d %q after %v, want %d within a second", what, ce.Code, ce.Reason, took, code)
	}
}

func (s *scene) streamLives(what string, dev, agt *websocket.Conn) {
	s.t.Helper()
	exchange(s.t.(*testing.T), dev, agt, websocket.MessageBinary, []byte(what))
}

func TestRevokedDeviceTokenClosesItsStreamsOnly(t *testing.T) {
	s := newScene(t)
	if err := s.store.RevokeToken(s.ctx(), "ann", s.tokA.ID); err != nil {
		t.Fatal(err)
	}
	s.within("the token's stream", s.devA, wire.CloseUnauthorized)
	// Nothing is wrong with the agent's token.
	s.within("the agent's leg of it", s.agtA, wire.CloseGoingAway)
	s.streamLives("another token's stream", s.devB, s.agtB)
	s.streamLives("another account's stream", s.devBob, s.agtBob)
	s.mini.pong()
	s.maxi.pong()
	s.bob.pong()
}

func TestRevokedAgentTokenClosesItsMachineOnly(t *testing.T) {
	s := newScene(t)
	if err := s.store.RevokeToken(s.ctx(), "ann", s.mini.token.ID); err != nil {
		t.Fatal(err)
	}
	s.within("the control connection", s.mini.ws, wire.CloseUnauthorized)
	s.within("the agent's leg", s.agtA, wire.CloseUnauthorized)
	// Nothing is wrong with the device's token: it must not be told to pair again.
	s.within("the device's leg", s.devA, wire.CloseGoingAway)
	s.streamLives("another machine's stream", s.devB, s.agtB)
	s.streamLives("another account's stream", s.devBob, s.agtBob)
	s.maxi.pong()
	s.bob.pong()
}

func TestRemovedMachine(t *testing.T) {
	s := newScene(t)
	if err := s.store.RemoveMachine(s.ctx(), engine.Key{Account: "ann", Machine: "mini"}); err != nil {
		t.Fatal(err)
	}
	s.within("the control connection", s.mini.ws, wire.CloseNotFound)
	s.within("the device's leg", s.devA, wire.CloseNotFound)
	closeOf(t, s.agtA, 5*time.Second)
	s.streamLives("another machine's stream", s.devB, s.agtB)
	s.streamLives("a machine of that name of another account", s.devBob, s.agtBob)
	s.maxi.pong()
	s.bob.pong()
}

func TestRemovedAccount(t *testing.T) {
	s := newScene(t)
	if err := s.store.RemoveAccount(s.ctx(), "ann"); err != nil {
		t.Fatal(err)
	}
	for what, ws := range map[string]*websocket.Conn{
		"mini": s.mini.ws, "maxi": s.maxi.ws, "device a": s.devA, "device b": s.devB, "agent a": s.agtA, "agent b": s.agtB,
	} {
		s.within(what, ws, wire.CloseUnauthorized)
	}
	s.streamLives("another account's stream", s.devBob, s.agtBob)
	s.bob.pong()
}

func TestRevokedDevice(t *testing.T) {
	s := newScene(t)
	dev := s.redeem("mini")
	ws, agt := s.pair(s.mini, issued{text: dev.Token})
	if err := s.store.RevokeDevice(s.ctx(), "ann", dev.Device); err != nil {
		t.Fatal(err)
	}
	s.within("the device's stream", ws, wire.CloseUnauthorized)
	closeOf(t, agt, 5*time.Second)
	s.streamLives("another token's stream", s.devA, s.agtA)
	for _, a := range []*agent{s.mini, s.maxi} {
		if m := a.next(); m.Op != wire.OpRevoke || m.Device != dev.Device {
			t.Errorf("%s got %+v", a.machine, m)
		}
	}
	s.bob.pong() // and got no revoke
}

func TestExpiryClosesLikeRevocation(t *testing.T) {
	g := newRig(t)
	a := g.ready("mini")
	soon := g.tokenFor("ann", engine.KindDevice, "", 1500*time.Millisecond)
	dev, agt := g.pair(a, soon)
	stays, other := g.pair(a, g.deviceToken())
	wantClose(t, dev, wire.CloseUnauthorized, "expired")
	closeOf(t, agt, 5*time.Second)
	exchange(t, stays, other, websocket.MessageBinary, []byte("x"))
	if late := time.Since(soon.Expires); late < 0 || late > 2*time.Second {
		t.Errorf("closed %v after the expiry", late)
	}
}

func TestWaitingDialIsClosedToo(t *testing.T) {
	g := newRig(t)
	a := g.ready("mini")
	tok := g.deviceToken()
	dev := g.device("mini", tok, "")
	m := a.next()
	if err := g.store.RevokeToken(g.ctx(), "ann", tok.ID); err != nil {
		t.Fatal(err)
	}
	wantClose(t, dev, wire.CloseUnauthorized, "revoked")
	if got := a.dataStatus("mini", a.token, m.ConnID); got != 404 {
		t.Errorf("connection id: got %d", got)
	}
}

// betweenStore does something right after a token was looked up or a machine
// claimed: the moment between the check and the registry.
type betweenStore struct {
	engine.Store
	after func() // run once
}

func (s *betweenStore) once() {
	if f := s.after; f != nil {
		s.after = nil
		f()
	}
}

func (s *betweenStore) Machine(ctx context.Context, k engine.Key) (engine.Machine, error) {
	m, err := s.Store.Machine(ctx, k)
	s.once()
	return m, err
}

func (s *betweenStore) Claim(ctx context.Context, k engine.Key, i wire.Instance, n uint64) (uint64, error) {
	e, err := s.Store.Claim(ctx, k, i, n)
	s.once()
	return e, err
}

// Changes are not seen at all, so that only the second check can find out.
func (s *betweenStore) Changes(ctx context.Context, after int64) ([]engine.Change, error) {
	if after < 0 {
		return s.Store.Changes(ctx, after)
	}
	return nil, nil
}

func TestRevocationInBetweenIsNotMissed(t *testing.T) {
	var store *betweenStore
	g := newRig(t, func(o *Options) {
		store = &betweenStore{Store: o.Store}
		o.Store = store
	})
	tok := g.agentToken("mini")
	store.after = func() { must(t, g.store.RevokeToken(g.ctx(), "ann", tok.ID)) }
	wantClose(t, g.agent("mini", tok).ws, wire.CloseUnauthorized, "revoked")
	eventually(t, "the name is free", func() bool {
		held, err := g.relay.prover.Held(g.ctx(), engine.Key{Account: "ann", Machine: "mini"})
		return err == nil && !held
	})

	a := g.ready("mini")
	device := g.deviceToken()
	store.after = func() { must(t, g.store.RevokeToken(g.ctx(), "ann", device.ID)) }
	wantClose(t, g.device("mini", device, ""), wire.CloseUnauthorized, "revoked")
	a.pong() // and it was never asked to dial

	store.after = func() { must(t, g.store.RemoveMachine(g.ctx(), engine.Key{Account: "ann", Machine: "mini"})) }
	b := g.agent("mini", a.token)
	if ce := closeOf(t, b.ws, 5*time.Second); ce.Code != 4401 && ce.Code != 4404 {
		t.Errorf("closed %d %q", ce.Code, ce.Reason)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// prunedStore has lost the part of its log that the relay has not read.
type prunedStore struct {
	engine.Store
	pruned bool
}

func (s *prunedStore) Changes(ctx context.Context, after int64) ([]engine.Change, error) {
	if s.pruned && after >= 0 {
		s.pruned = false
		return nil, engine.ErrPruned
	}
	return s.Store.Changes(ctx, after)
}

func TestPrunedLogAsksEverythingAgain(t *testing.T) {
	var store *prunedStore
	g := newRig(t, func(o *Options) {
		store = &prunedStore{Store: o.Store}
		o.Store = store
	})
	a := g.ready("mini")
	tok := g.deviceToken()
	dev, _ := g.pair(a, tok)
	stays, agt := g.pair(a, g.deviceToken())
	store.pruned = true
	must(t, g.store.RevokeToken(g.ctx(), "ann", tok.ID))
	wantClose(t, dev, wire.CloseUnauthorized, "revoked")
	exchange(t, stays, agt, websocket.MessageBinary, []byte("x"))
	a.pong()
}

// brokenLog fails for a while; nothing is lost.
type brokenLog struct {
	engine.Store
	failures int
}

func (s *brokenLog) Changes(ctx context.Context, after int64) ([]engine.Change, error) {
	if after >= 0 && s.failures > 0 {
		s.failures--
		return nil, errors.New("locked")
	}
	return s.Store.Changes(ctx, after)
}

func TestFailingLogIsReadAgain(t *testing.T) {
	var store *brokenLog
	g := newRig(t, func(o *Options) {
		store = &brokenLog{Store: o.Store, failures: 3}
		o.Store = store
	})
	a := g.ready("mini")
	tok := g.deviceToken()
	dev, _ := g.pair(a, tok)
	must(t, g.store.RevokeToken(g.ctx(), "ann", tok.ID))
	wantClose(t, dev, wire.CloseUnauthorized, "revoked")
}

func TestLastUseIsNoted(t *testing.T) {
	g := newRig(t)
	a := g.ready("mini")
	g.relay.gate.Flush(g.ctx())
	tok, err := g.store.TokenByHash(g.ctx(), a.token.Hash)
	if err != nil || tok.Used.IsZero() || tok.From != "127.0.0.1" {
		t.Errorf("noted %v from %q, %v", tok.Used, tok.From, err)
	}
}
