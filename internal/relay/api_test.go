package relay

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/engine"
	"holdfast/internal/pairing"
	"holdfast/internal/wire"
)

// deviceKey and otherKey are well-formed ed25519 keys.
var deviceKey, otherKey = keyOf("a device"), keyOf("another device")

func keyOf(seed string) string {
	public := ed25519.NewKeyFromSeed([]byte((seed + strings.Repeat(".", ed25519.SeedSize))[:ed25519.SeedSize])).Public().(ed25519.PublicKey)
	blob := append([]byte{0, 0, 0, 11}, "ssh-ed25519"...)
	blob = append(blob, 0, 0, 0, ed25519.PublicKeySize)
	return "ssh-ed25519 " + base64.StdEncoding.EncodeToString(append(blob, public...))
}

// call makes a /v1 request.
func (g *rig) call(method, path, token, body string, more ...string) (*http.Response, []byte) {
	g.t.Helper()
	req, err := http.NewRequestWithContext(g.ctx(), method, "http://"+g.addr+path, strings.NewReader(body))
	if err != nil {
		g.t.Fatal(err)
	}
	req.Header = header(token, more...)
	resp, err := g.client.Do(req)
	if err != nil {
		g.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	return resp, b
}

// decode wants a status and gives the body.
func decode[T any](g *rig, resp *http.Response, body []byte, status int) T {
	g.t.Helper()
	var v T
	if resp.StatusCode != status {
		g.t.Fatalf("%s: got %s %s", resp.Request.URL.Path, resp.Status, body)
	}
	if err := json.Unmarshal(body, &v); err != nil {
		g.t.Fatalf("%s: %v in %s", resp.Request.URL.Path, err, body)
	}
	return v
}

// redeem pairs a device with machine, past the API.
func (g *rig) redeem(machine wire.MachineID) wire.PairingRedeemed {
	g.t.Helper()
	s := pairing.NewSecret().RelaySecret()
	if _, err := g.accounts.OpenPairing(g.ctx(), engine.Key{Account: "ann", Machine: machine}, s.Hash(), time.Minute); err != nil {
		g.t.Fatal(err)
	}
	r, err := g.accounts.Redeem(g.ctx(), s, deviceKey, "laptop")
	if err != nil {
		g.t.Fatal(err)
	}
	return wire.PairingRedeemed{Token: r.Text.Secret(), Device: r.Device.ID, Account: string(r.Device.Account), Machine: r.Machine}
}

func TestAPIAccess(t *testing.T) {
	g := newRig(t)
	a := g.ready("mini")
	g.agentToken("idle")
	g.token("bob", engine.KindAgent, "other")
	device := g.tokenFor("ann", engine.KindDevice, "", time.Hour)
	for _, tt := range []struct {
		path, token string
		status      int
		code        wire.Refusal
	}{
		{"/v1/access", "", 401, wire.RefusalTokenMissing},
		{"/v1/access?machine=mini", unknownToken, 401, wire.RefusalTokenUnknown},
		{"/v1/access?machine=other", device.text, 403, wire.RefusalNotAllowed},
		{"/v1/access?machine=nowhere", device.text, 403, wire.RefusalNotAllowed},
		{"/v1/access?machine=", device.text, 400, wire.RefusalPath},
		{"/v1/access?machine=a&machine=b", device.text, 400, wire.RefusalPath},
		{"/v1/access?machine=idle", a.token.text, 403, wire.RefusalNotAllowed},
		{"/v1/access?token=x", device.text, 400, wire.RefusalSyntax},
		{"/v1/nothing", device.text, 404, wire.RefusalNotFound},
		{"/v1/devices/", device.text, 404, wire.RefusalNotFound},
	} {
		resp, b := g.call("GET", tt.path, tt.token, "", "Origin", "https://app.example")
		p := decode[wire.Problem](g, resp, b, tt.status)
		if p.Code != tt.code || p.Status != tt.status || p.Detail == "" || p.Title == "" ||
			resp.Header.Get(wire.HeaderRefusal) != string(tt.code) || resp.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: got %+v, %v", tt.path, p, resp.Header)
		}
		if resp.Header.Get("Access-Control-Allow-Origin") != "*" || resp.Header.Get("Access-Control-Allow-Credentials") != "" ||
			resp.Header.Get("Access-Control-Expose-Headers") != "Retry-After, Holdfast-Refusal" {
			t.Errorf("%s: CORS headers %v", tt.path, resp.Header)
		}
	}
	resp, b := g.call("GET", "/v1/access?machine=mini", device.text, "")
	if got := decode[wire.Access](g, resp, b, 200); got.Account != "ann" || got.Kind != "device" || got.Machine != "mini" || got.State != wire.StateConnected || got.Expires == nil {
		t.Errorf("got %+v", got)
	}
	resp, b = g.call("GET", "/v1/access?machine=idle", device.text, "")
	if got := decode[wire.Access](g, resp, b, 200); got.State != wire.StateOffline {
		t.Errorf("got %+v", got)
	}
	resp, b = g.call("GET", "/v1/access?machine=mini", a.token.text, "")
	if got := decode[wire.Access](g, resp, b, 200); got.Kind != "agent" {
		t.Errorf("got %+v", got)
	}
}

func TestAPIPreflight(t *testing.T) {
	g := newRig(t)
	for path, method := range map[string]string{
		"/v1/access?machine=mini": "GET", "/v1/machines": "GET", "/v1/devices/d1": "DELETE", "/v1/pairings": "POST", "/v1/pairings/redeem": "POST",
	} {
		resp, _ := g.call("OPTIONS", path, "", "", "Origin", "https://app.example",
			"Access-Control-Request-Method", method, "Access-Control-Request-Headers", "authorization")
		if resp.StatusCode != 204 || resp.Header.Get("Access-Control-Allow-Origin") != "*" ||
			!strings.Contains(resp.Header.Get("Access-Control-Allow-Methods"), method) ||
			!strings.Contains(resp.Header.Get("Access-Control-Allow-Headers"), "Authorization") {
			t.Errorf("%s: got %s %v", path, resp.Status, resp.Header)
		}
	}
	if resp, _ := g.call("PUT", "/v1/machines", g.deviceToken().text, ""); resp.StatusCode != 405 || resp.Header.Get("Allow") != "GET, OPTIONS" {
		t.Errorf("PUT: got %s %v", resp.Status, resp.Header)
	}
}

func TestAPIPairing(t *testing.T) {
	g := newRig(t)
	a := g.ready("mini")
	s := pairing.NewSecret().RelaySecret()
	sum := s.Hash()
	hash := base64.RawURLEncoding.EncodeToString(sum[:])

	open := func(token, body string) (*http.Response, []byte) { return g.call("POST", "/v1/pairings", token, body) }
	body := func(hash string, ttl int) string {
		b, _ := json.Marshal(wire.OpenPairing{Hash: hash, TTLSeconds: ttl})
		return string(b)
	}
	redeem := func(secret, key, name string) (*http.Response, []byte) {
		b, _ := json.Marshal(wire.RedeemPairing{Secret: secret, Key: key, Name: name})
		return g.call("POST", "/v1/pairings/redeem", "", string(b))
	}
	unbound := g.token("ann", engine.KindAgent, "")
	for _, tt := range []struct {
		name, token, body string
		status            int
	}{
		{"device token", g.deviceToken().text, body(hash, 300), 403},
		{"unbound agent", unbound.text, body(hash, 300), 403},
		{"too long", a.token.text, body(hash, 301), 400},
		{"no time", a.token.text, body(hash, 0), 400},
		{"negative", a.token.text, body(hash, -5), 400},
		{"short hash", a.token.text, body("abcd", 60), 400},
		{"long hash", a.token.text, body(hash+"A", 60), 400},
		{"hash with a line break", a.token.text, body(hash[:20]+"\n"+hash[20:], 60), 400},
		{"no JSON", a.token.text, "hello", 400},
		{"two values", a.token.text, body(hash, 60) + "{}", 400},
		{"too big", a.token.text, `{"hash":"` + strings.Repeat("A", wire.MaxAPIBodyBytes) + `"}`, 413},
		{"no token", "", body(hash, 60), 401},
	} {
		if resp, b := open(tt.token, tt.body); resp.StatusCode != tt.status {
			t.Errorf("%s: got %s %s", tt.name, resp.Status, b)
		}
	}
	if resp, _ := redeem(s.Text(), deviceKey, "laptop"); resp.StatusCode != 404 {
		t.Errorf("redeem before it is open: got %s", resp.Status)
	}
	resp, b := open(a.token.text, body(hash+"=", 300)) // padding is borne
	opened := decode[wire.PairingOpened](g, resp, b, 201)
	if left := time.Until(opened.Expires); left < 290*time.Second || left > 301*time.Second {
		t.Errorf("it expires in %v", left)
	}
	for name, tt := range map[string][3]string{
		"bad secret": {"xyz", deviceKey, "laptop"},
		"bad key":    {s.Text(), "ssh-rsa AAAA", "laptop"},
		"two lines":  {s.Text(), deviceKey + "\nssh-ed25519 AAAA", "laptop"},
		"no name":    {s.Text(), deviceKey, ""},
	} {
		if resp, b := redeem(tt[0], tt[1], tt[2]); resp.StatusCode != 400 {
			t.Errorf("%s: got %s %s", name, resp.Status, b)
		}
	}
	resp, b = redeem(s.Text(), deviceKey, "lap\x1btop")
	first := decode[wire.PairingRedeemed](g, resp, b, 200)
	if first.Account != "ann" || first.Machine != "mini" || first.Device == "" || !strings.HasPrefix(first.Token, "hf_") {
		t.Errorf("got account %q machine %q device %q", first.Account, first.Machine, first.Device)
	}
	dev, agt := g.pair(a, issued{text: first.Token})
	exchange(t, dev, agt, websocket.MessageBinary, []byte("in"))

	// The same key may repeat: its fresh token replaces the first.
	resp, b = redeem(s.Text(), deviceKey, "laptop")
	second := decode[wire.PairingRedeemed](g, resp, b, 200)
	if second.Device != first.Device || second.Token == first.Token {
		t.Error("a repeat made another device, or gave the same token")
	}
	wantClose(t, dev, wire.CloseUnauthorized, "")
	if resp, _ := redeem(s.Text(), otherKey, "thief"); resp.StatusCode != 404 {
		t.Errorf("another key: got %s", resp.Status)
	}

	resp, b = g.call("GET", "/v1/devices", second.Token, "")
	list := decode[wire.Devices](g, resp, b, 200).Devices
	if len(list) != 1 || list[0].ID != first.Device || list[0].Name != "laptop" || !list[0].This || list[0].Key != deviceKey {
		t.Errorf("devices: %+v", list)
	}
	if resp, _ := g.call("GET", "/v1/devices", a.token.text, ""); resp.StatusCode != 200 {
		t.Errorf("devices for the agent: got %s", resp.Status)
	}
	bobs := g.token("bob", engine.KindDevice, "")
	if resp, _ := g.call("DELETE", "/v1/devices/"+first.Device, bobs.text, ""); resp.StatusCode != 404 {
		t.Errorf("another account revokes: got %s", resp.Status)
	}
	if resp, _ := g.call("DELETE", "/v1/devices/"+first.Device, second.Token, ""); resp.StatusCode != 204 {
		t.Errorf("revoke: got %s", resp.Status)
	}
	if resp, _ := g.call("GET", "/v1/access", second.Token, ""); resp.StatusCode != 401 {
		t.Errorf("the revoked device's token: got %s", resp.Status)
	}
	if m := a.next(); m.Op != wire.OpRevoke || m.Key != deviceKey {
		t.Errorf("agent got %+v", m)
	}
	resp, b = g.call("GET", "/v1/devices", a.token.text, "")
	if list := decode[wire.Devices](g, resp, b, 200).Devices; list == nil || len(list) != 0 {
		t.Errorf("devices after revoking: %s", b)
	}

	other := pairing.NewSecret().RelaySecret()
	sum = other.Hash()
	hash = base64.RawURLEncoding.EncodeToString(sum[:])
	if resp, _ := open(a.token.text, body(hash, 60)); resp.StatusCode != 201 {
		t.Errorf("second link: got %s", resp.Status)
	}
	if resp, _ := open(a.token.text, body(hash, 60)); resp.StatusCode != 409 {
		t.Errorf("the same again: got %s", resp.Status)
	}
	for range 2 {
		if resp, _ := g.call("DELETE", "/v1/pairings/"+hash, a.token.text, ""); resp.StatusCode != 204 {
			t.Errorf("close: got %s", resp.Status)
		}
	}
	if resp, _ := redeem(other.Text(), deviceKey, "laptop"); resp.StatusCode != 404 {
		t.Errorf("closed link: got %s", resp.Status)
	}
	if log := g.log.String(); strings.Contains(log, s.Text()) || strings.Contains(log, "hf_") {
		t.Error("a secret is in the log")
	}
}

func TestGuessingPairingsIsLimited(t *testing.T) {
	g := newRig(t)
	g.agentToken("mini")
	limited := 0
	for range 25 {
		b, _ := json.Marshal(wire.RedeemPairing{Secret: pairing.NewSecret().RelaySecret().Text(), Key: deviceKey, Name: "x"})
		resp, _ := g.call("POST", "/v1/pairings/redeem", "", string(b))
		if resp.StatusCode == 429 {
			limited++
		}
	}
	if limited != 5 {
		t.Errorf("%d of 25 guesses were limited, want 5", limited)
	}
}

// machinesOf asks for the machines until f is content.
func (g *rig) machinesOf(token string, what string, f func(map[wire.MachineID]wire.MachineInfo) bool) {
	g.t.Helper()
	eventually(g.t, what, func() bool {
		resp, b := g.call("GET", "/v1/machines", token, "")
		got := map[wire.MachineID]wire.MachineInfo{}
		for _, m := range decode[wire.Machines](g, resp, b, 200).Machines {
			got[m.Machine] = m
		}
		return f(got)
	})
}

func TestMachinesAreProvenNotBelieved(t *testing.T) {
	g := newRig(t)
	device := g.deviceToken()
	g.agentToken("idle")
	good, mute, older, down := g.ready("good"), g.ready("mute"), g.ready("older"), g.ready("down")
	good.send(wire.Message{Op: wire.OpHello, Version: "9.9", Services: []wire.ServiceName{"web", "ssh"}})
	good.pong()
	go func() { // ends with the test's sockets
		m, err := good.read(time.Minute)
		if err == nil && m.Service == "ssh" {
			ws := good.dialBack(m)
			_ = ws.Write(g.ctx(), websocket.MessageBinary, []byte("SSH-2.0-test\r\n"))
		}
	}()
	go func() {
		m, err := older.read(time.Minute)
		if err == nil && m.Service == "" {
			ws := older.dialBack(m)
			_ = ws.Write(g.ctx(), websocket.MessageText, []byte(base64.StdEncoding.EncodeToString([]byte("hello\r\nSSH-2"))))
			_ = ws.Write(g.ctx(), websocket.MessageText, []byte(base64.StdEncoding.EncodeToString([]byte(".0-old\r\n"))))
		}
	}()
	go func() {
		m, err := down.read(time.Minute)
		if err == nil {
			down.send(wire.Message{Op: wire.OpRefuse, ConnID: m.ConnID, Code: 4502, Reason: "sshd is down"})
		}
	}()
	began := time.Now()
	g.machinesOf(device.text, "each machine's state", func(m map[wire.MachineID]wire.MachineInfo) bool {
		if len(m) != 5 {
			t.Fatalf("got %d machines", len(m))
		}
		if m["idle"].State != wire.StateOffline || m["mute"].State != wire.StateConnected {
			t.Fatalf("idle is %q, mute is %q", m["idle"].State, m["mute"].State)
		}
		return m["good"].State == wire.StateReachable && m["good"].Service == "ssh" && m["good"].Version == "9.9" &&
			m["good"].ProvenAt != nil && m["good"].ProvenAt.After(began.Add(-time.Second)) && m["good"].ConnectedAt != nil &&
			m["older"].State == wire.StateReachable && m["older"].Service == "" &&
			m["down"].State == wire.StateUnreachable && strings.Contains(m["down"].Reason, "sshd is down") && m["down"].Since != nil
	})
	if m := mute.next(); m.Op != wire.OpDial {
		t.Errorf("mute got %+v", m)
	}
	// A second look does not ask again: the next message is the pong.
	g.call("GET", "/v1/machines", device.text, "")
	good.pong()
	down.pong()
	_ = good.ws.CloseNow()
	g.machinesOf(device.text, "good is offline", func(m map[wire.MachineID]wire.MachineInfo) bool {
		return m["good"].State == wire.StateOffline && m["good"].ProvenAt != nil
	})
}

func TestMachineThatIsNoSSHServer(t *testing.T) {
	g := newRig(t)
	a := g.ready("mini")
	device := g.deviceToken()
	go func() { // ends with the test's sockets
		m, err := a.read(time.Minute)
		if err == nil {
			_ = a.dialBack(m).Write(g.ctx(), websocket.MessageBinary, []byte(strings.Repeat("HTTP/1.1 400 Bad Request\r\n", 400)))
		}
	}()
	g.machinesOf(device.text, "it is unreachable", func(m map[wire.MachineID]wire.MachineInfo) bool {
		return m["mini"].State == wire.StateUnreachable && strings.Contains(m["mini"].Reason, "not an SSH server")
	})
}

func TestOtherPaths(t *testing.T) {
	g := newRig(t)
	if resp, b := g.call("GET", "/", "", ""); resp.StatusCode != 200 || !strings.Contains(string(b), "holdfast join") ||
		!strings.Contains(resp.Header.Get("Content-Security-Policy"), "default-src 'none'") {
		t.Errorf("page: got %s %v", resp.Status, resp.Header)
	}
	for path, status := range map[string]int{
		"/healthz": 200, "/readyz": 200, "/metrics": 404, "/index.html": 404, "/agent": 404, "/connect": 404, "//agent/mini": 404, "/debug/pprof/": 404,
	} {
		if resp, _ := g.call("GET", path, "", ""); resp.StatusCode != status {
			t.Errorf("%s: got %s, want %d", path, resp.Status, status)
		}
	}
	must(t, g.router.Close())
	if resp, _ := g.call("GET", "/readyz", "", ""); resp.StatusCode != 503 {
		t.Errorf("readyz without router: got %s", resp.Status)
	}
}
