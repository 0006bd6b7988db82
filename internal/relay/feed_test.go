package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/engine"
	"holdfast/internal/relay/axes"
	"holdfast/internal/wire"
)

// feed is a device that follows its account.
type feed struct {
	t        *testing.T
	ws       *websocket.Conn
	machines map[wire.MachineID]wire.FeedMachine
	notices  []wire.NoticeInfo
	errors   []string
	whole    bool // a full state is complete
}

func (g *rig) follow(t *testing.T, token string) *feed {
	t.Helper()
	f := &feed{t: t, ws: g.mustOpen(wire.PathAccount, http.Header{}, wire.SubprotocolV1, wire.BearerPrefix+token)}
	f.until("the first state", func() bool { return f.whole && f.notices != nil })
	return f
}

// next takes one message.
func (f *feed) next(limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	_, b, err := f.ws.Read(ctx)
	if err != nil {
		return err
	}
	if len(b) > wire.MaxFeedBytes {
		f.t.Errorf("a message of %d bytes", len(b))
	}
	var m wire.FeedMessage
	if err := json.Unmarshal(b, &m); err != nil {
		f.t.Fatalf("%v in %s", err, b)
	}
	switch {
	case m.Error != nil:
		f.errors = append(f.errors, m.Error.Name)
	case m.Op == wire.FeedMachines:
		if m.Full {
			f.machines = map[wire.MachineID]wire.FeedMachine{}
		}
		f.whole = !m.More
		for _, one := range m.Machines {
			f.machines[one.Machine] = one
		}
		if time.Since(m.Now).Abs() > time.Minute {
			f.t.Errorf("now is %v", m.Now)
		}
	case m.Op == wire.FeedNotices:
		if f.notices = m.Notices; f.notices == nil {
			f.t.Errorf("no list of notices in %s", b)
		}
	default:
		f.t.Errorf("got %s", b)
	}
	return nil
}

func (f *feed) until(what string, ok func() bool) {
	f.t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); {
		if err := f.next(time.Until(end)); err != nil {
			f.t.Fatalf("until %s: %v; machines %+v, notices %+v", what, err, f.machines, f.notices)
		}
	}
}

func (f *feed) texts() string {
	var all []string
	for _, n := range f.notices {
		all = append(all, n.Text)
	}
	return strings.Join(all, ",")
}

func (f *feed) send(text string) {
	f.t.Helper()
	if err := f.ws.Write(context.Background(), websocket.MessageText, []byte(text)); err != nil {
		f.t.Fatal(err)
	}
}

// answer dials back to whatever the agent is asked for, with an SSH banner.
func (a *agent) answer(t *testing.T) {
	t.Helper()
	m := a.next()
	if m.Op != wire.OpDial {
		t.Fatalf("got %+v, want a dial", m)
	}
	ws := a.rig.mustOpen(wire.AgentDataPath(a.machine, m.ConnID), header(a.token.text), wire.SubprotocolV1)
	if err := ws.Write(context.Background(), websocket.MessageBinary, []byte("SSH-2.0-test\r\n")); err != nil {
		t.Fatal(err)
	}
}

func TestFeedTellsMachinesAsTheyAreAndAsTheyChange(t *testing.T) {
	g := newRig(t)
	g.agentToken("studio")
	a := g.ready("mini")
	a.send(wire.Message{Op: wire.OpHello, Version: "1.2.3", Presence: "AAEC"})
	a.pong()
	other := g.agent("mini", g.token("bob", engine.KindAgent, "mini"))
	other.pong()

	tok := g.deviceToken()
	f := g.follow(t, tok.text)
	if len(f.machines) != 2 || f.machines["studio"].State != wire.StateOffline || f.machines["mini"].State != wire.StateConnected {
		t.Fatalf("first state %+v", f.machines)
	}
	if m := f.machines["mini"]; m.Presence != "AAEC" || m.Version != "1.2.3" || m.ConnectedAt == nil {
		t.Errorf("mini is %+v", m)
	}
	a.answer(t)
	f.until("mini is reachable", func() bool { return f.machines["mini"].State == wire.StateReachable })
	if at := f.machines["mini"].ProvenAt; at == nil || time.Since(*at) > 20*time.Second {
		t.Errorf("proven at %v", at)
	}

	a.send(wire.Message{Op: wire.OpHello, Version: "1.2.4", Presence: "BBBB"})
	f.until("a new presence", func() bool { return f.machines["mini"].Presence == "BBBB" })
	_ = a.ws.CloseNow()
	f.until("mini is gone", func() bool { return f.machines["mini"].State == wire.StateOffline })
	if m := f.machines["mini"]; m.Presence != "" || m.ProvenAt == nil {
		t.Errorf("an offline machine: %+v", m)
	}
	g.ready("third") // made by its first connection
	f.until("a third machine", func() bool { return f.machines["third"].State == wire.StateConnected })

	if err := g.store.RemoveMachine(g.ctx(), engine.Key{Account: "ann", Machine: "studio"}); err != nil {
		t.Fatal(err)
	}
	f.until("studio is removed", func() bool { _, there := f.machines["studio"]; return !there && f.whole })
	if len(f.machines) != 2 {
		t.Errorf("machines %+v", f.machines)
	}
}

func TestFeedNotices(t *testing.T) {
	g := newRig(t)
	post := func(account engine.AccountID, text string) string {
		t.Helper()
		id, _, err := g.store.PostNotice(g.ctx(), engine.Notice{Account: account, Text: text})
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	first := post("ann", "first")
	phone, laptop := g.deviceToken(), g.deviceToken()
	p, l := g.follow(t, phone.text), g.follow(t, laptop.text)
	b := g.follow(t, g.token("bob", engine.KindDevice, "").text)
	if p.texts() != "first" || l.texts() != "first" || b.texts() != "" {
		t.Fatalf("unread %q, %q, %q", p.texts(), l.texts(), b.texts())
	}
	began := time.Now()
	second := post("", "for all")
	for _, f := range []*feed{p, l, b} {
		f.until("the second notice", func() bool { return strings.HasSuffix(f.texts(), "for all") })
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("a notice took %v", took)
	}

	// Read on the phone, so read on the laptop; and nobody else's.
	p.send(`{"op":"acknowledge","id":"` + first + `"}`)
	p.send(`{"op":"acknowledge","id":"` + first + `"}`)
	for _, f := range []*feed{p, l} {
		f.until("the first is read", func() bool { return f.texts() == "for all" })
	}
	resp, body := g.call(http.MethodGet, wire.PathNotices, laptop.text, "")
	list := decode[wire.Notices](g, resp, body, http.StatusOK).Notices
	if len(list) != 2 || list[0].ID != first || list[0].Read == nil || list[1].ID != second || list[1].Read != nil {
		t.Errorf("notices %+v", list)
	}
	for range 2 {
		if resp, body := g.call(http.MethodPost, wire.PathNotices+"/"+second+"/ack", laptop.text, ""); resp.StatusCode != http.StatusNoContent {
			t.Fatalf("acknowledge: %s %s", resp.Status, body)
		}
	}
	for _, f := range []*feed{p, l} {
		f.until("all is read", func() bool { return f.texts() == "" })
	}
	if b.texts() != "for all" {
		t.Errorf("bob has %q", b.texts())
	}

	// Nonsense changes nothing and ends nothing.
	p.errors = nil
	for _, text := range []string{`{"op":"acknowledge","id":"n-none"}`, `{"op":"acknowledge"}`, `{"op":"what"}`, `[]`, `not JSON`} {
		p.send(text)
	}
	p.until("five soft errors", func() bool { return len(p.errors) == 5 })
	p.send(`{"op":"acknowledge","id":"` + strings.Repeat("x", wire.MaxControlBytes) + `"}`)
	for {
		if err := p.next(5 * time.Second); err != nil {
			if websocket.CloseStatus(err) != 1009 {
				t.Errorf("too long: %v", err)
			}
			break
		}
	}
}

func TestNoticesAPI(t *testing.T) {
	g := newRig(t)
	tok := g.deviceToken()
	for i := range 120 {
		if _, _, err := g.store.PostNotice(g.ctx(), engine.Notice{Account: "ann", Text: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	seen, after := 0, ""
	for more := true; more; {
		resp, body := g.call(http.MethodGet, wire.PathNotices+"?unread=true&after="+after, tok.text, "")
		page := decode[wire.Notices](g, resp, body, http.StatusOK)
		for _, n := range page.Notices {
			if n.Text != fmt.Sprint(seen) {
				t.Fatalf("notice %d is %q", seen, n.Text)
			}
			seen, after = seen+1, n.ID
		}
		more = page.More
	}
	if seen != 120 {
		t.Errorf("%d notices", seen)
	}
	for _, c := range []struct {
		method, path, token string
		status              int
	}{
		{http.MethodGet, wire.PathNotices, g.agentToken("mini").text, http.StatusForbidden},
		{http.MethodPost, wire.PathNotices + "/" + after + "/ack", g.agentToken("mini").text, http.StatusForbidden},
		{http.MethodPost, wire.PathNotices + "/" + after + "/ack", g.token("bob", engine.KindDevice, "").text, http.StatusNotFound},
		{http.MethodPost, wire.PathNotices + "/" + after + "/ack", "", http.StatusUnauthorized},
		{http.MethodPost, wire.PathNotices + "/" + after, tok.text, http.StatusNotFound},
		{http.MethodPost, wire.PathNotices + "/a/b/ack", tok.text, http.StatusNotFound},
		{http.MethodPost, wire.PathNotices + "//ack", tok.text, http.StatusNotFound},
		{http.MethodGet, wire.PathNotices + "/" + after + "/ack", tok.text, http.StatusMethodNotAllowed},
		{http.MethodGet, wire.PathNotices + "?unread=maybe", tok.text, http.StatusBadRequest},
	} {
		if resp, body := g.call(c.method, c.path, c.token, ""); resp.StatusCode != c.status {
			t.Errorf("%s %s: %s %s, want %d", c.method, c.path, resp.Status, body, c.status)
		}
	}
}

func TestFeedEndsWithItsToken(t *testing.T) {
	g := newRig(t)
	g.loses(t, func(dev wire.PairingRedeemed) error { return g.store.RevokeDevice(g.ctx(), "ann", dev.Device) })
	g.loses(t, func(dev wire.PairingRedeemed) error {
		list, err := g.store.Tokens(g.ctx(), "ann")
		for _, t := range list {
			if t.Device == dev.Device && t.Revoked.IsZero() {
				return g.store.RevokeToken(g.ctx(), "ann", t.ID)
			}
		}
		return err
	})
	g.loses(t, func(wire.PairingRedeemed) error { return g.store.RemoveAccount(g.ctx(), "ann") })
}

// loses has a device of ann's and one of bob's follow, takes away what the
// former has, and wants it, and only it, closed.
func (g *rig) loses(t *testing.T, take func(wire.PairingRedeemed) error) {
	t.Helper()
	g.agentToken("mini")
	dev := g.redeem("mini")
	f := g.follow(t, dev.Token)
	tok := g.token("bob", engine.KindDevice, "")
	other := g.follow(t, tok.text)
	began := time.Now()
	if err := take(dev); err != nil {
		t.Fatal(err)
	}
	for {
		err := f.next(5 * time.Second)
		if err == nil {
			continue
		}
		if took := time.Since(began); websocket.CloseStatus(err) != 4401 || took > 2*time.Second {
			t.Errorf("closed %v after %v", err, took)
		}
		break
	}
	if _, _, err := g.store.PostNotice(g.ctx(), engine.Notice{Account: "bob", Text: "alive"}); err != nil {
		t.Fatal(err)
	}
	other.until("a notice", func() bool { return strings.HasSuffix(other.texts(), "alive") })
	_ = other.ws.CloseNow()
	eventually(t, "no connection is left", func() bool {
		return g.relay.axes.Count(axes.Live) == 0 && g.relay.axes.Streams(tok.ID) == 0
	})
}

func TestFeedRefusals(t *testing.T) {
	g := newRig(t, func(o *Options) { o.Limits.Streams = 2 })
	for _, path := range []string{wire.PathAccount, wire.PathProbe} {
		wantRefused(t, g, path, g.agentToken("mini").text, http.StatusForbidden)
		wantRefused(t, g, path, "", http.StatusUnauthorized)
	}
	tok := g.deviceToken()
	wantRefused(t, g, "/v1/live/none", tok.text, http.StatusNotFound)
	g.follow(t, tok.text)
	g.follow(t, tok.text)
	wantRefused(t, g, wire.PathAccount, tok.text, http.StatusTooManyRequests)
	g.follow(t, g.deviceToken().text)
}

func wantRefused(t *testing.T, g *rig, path, token string, status int) {
	t.Helper()
	_, resp, err := g.open(path, header(token))
	if err == nil || resp == nil || resp.StatusCode != status || resp.Header.Get(wire.HeaderRefusal) == "" {
		t.Errorf("%s: %v, want a refusal with %d", path, err, status)
	}
}

// An account with many machines comes in several messages, each of which a
// client can bound.
func TestFeedOfManyMachines(t *testing.T) {
	g := newRig(t)
	const n = 600
	for i := range n {
		g.agentToken(wire.MachineID(fmt.Sprintf("machine-with-a-rather-long-name-%04d", i)))
	}
	a := g.agent("machine-with-a-rather-long-name-0000", g.agentToken("machine-with-a-rather-long-name-0000"))
	a.send(wire.Message{Op: wire.OpHello, Presence: strings.Repeat("\"", 1_900)})
	a.pong()
	f := g.follow(t, g.deviceToken().text)
	if len(f.machines) != n || len(f.machines[a.machine].Presence) != 1_900 {
		t.Errorf("%d machines", len(f.machines))
	}
}

// failingMachines is a Store that cannot list machines when it is told so.
type failingMachines struct {
	engine.Store
	fail atomic.Bool
}

func (s *failingMachines) Machines(ctx context.Context, a engine.AccountID) ([]engine.Machine, error) {
	if s.fail.Load() {
		return nil, errors.New("the disk is on fire")
	}
	return s.Store.Machines(ctx, a)
}

// A store that fails makes what the device has stale, and says so; when it is
// back, the device has the present state.
func TestFeedOfAFailingStore(t *testing.T) {
	broken := &failingMachines{}
	g := newRig(t, func(o *Options) { broken.Store, o.Store = o.Store, broken })
	a := g.ready("mini")
	f := g.follow(t, g.deviceToken().text)
	broken.fail.Store(true)
	g.agentToken("other") // a change of the account
	f.until("stale", func() bool { return len(f.errors) > 0 })
	// Only now: a reading that began before the failure would tell of it.
	_ = a.ws.CloseNow()
	if f.errors[0] != "Unavailable" || f.machines["mini"].State == wire.StateOffline {
		t.Errorf("errors %v, mini is %s", f.errors, f.machines["mini"].State)
	}
	ws := g.mustOpen(wire.PathAccount, header(g.deviceToken().text))
	wantClose(t, ws, wire.CloseInternal, "store")
	broken.fail.Store(false)
	f.until("back", func() bool { return f.machines["mini"].State == wire.StateOffline })
}

// What was told is stale until the next machines: they come when the store is
// back, even where nothing has changed meanwhile.
func TestFeedIsFreshAgainAfterTheStoreFailed(t *testing.T) {
	broken := &failingMachines{}
	g := newRig(t, func(o *Options) { broken.Store, o.Store = o.Store, broken })
	g.ready("mini")
	f := g.follow(t, g.deviceToken().text)
	broken.fail.Store(true)
	if _, _, err := g.store.PostNotice(g.ctx(), engine.Notice{Text: "hi"}); err != nil {
		t.Fatal(err)
	}
	g.agentToken("other") // a change of the account
	f.until("stale", func() bool { return len(f.errors) > 0 })
	f.machines, f.whole = map[wire.MachineID]wire.FeedMachine{}, false
	broken.fail.Store(false)
	f.until("fresh again", func() bool { return f.whole && f.machines["mini"].Machine == "mini" })
}
