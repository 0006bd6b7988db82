package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestRelayComesBack kills the relay as kill -9 does and starts it again: the
// agent comes back by itself, and what the relay knew is still known.
func TestRelayComesBack(t *testing.T) {
	t.Parallel()
	s := newSplit(t)
	live := s.liveSSH("mini")
	s.relayProc.kill()
	if code := live.exited(60 * time.Second); code != 255 {
		t.Errorf("ssh through a relay that was killed ended with %d: %s", code, live.output())
	}
	r := s.laptop.holdfast("proxy", "mini")
	if r.code != 3 || r.stdout != "" || r.stderr == "" {
		t.Errorf("proxy without a relay: want exit code 3 and one line: %s", r)
	}
	u, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	s.relayProc = s.relay.start("relay", "--json", "--listen", u.Host)
	s.relayProc.event("listening")
	eventually(t, 60*time.Second, "the agent is back after the relay's restart", func() (bool, string) {
		r := s.sshRun("mini", "echo back")
		return r.code == 0 && r.stdout == "back\n", r.String()
	})
	s.agentProc.running()
}

// TestRelayStopsInOrder is a planned restart: agents are told, and come back.
func TestRelayStopsInOrder(t *testing.T) {
	t.Parallel()
	s := newSplit(t)
	u, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	s.relayProc.interrupt()
	s.relayProc = s.relay.start("relay", "--json", "--listen", u.Host)
	s.relayProc.event("listening")
	eventually(t, 60*time.Second, "the agent is back after the restart", func() (bool, string) {
		r := s.sshRun("mini.ssh", "echo back")
		return r.code == 0, r.String()
	})
}

// TestCaptivePortal puts something that answers 401 and 403 between agent and
// relay, without the relay's header. The agent does not believe it, and comes
// back once it is gone; a device says what is in the way.
func TestCaptivePortal(t *testing.T) {
	t.Parallel()
	s := newSplit(t)
	target, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	var captive atomic.Bool
	var refused atomic.Int64
	captive.Store(true)
	through := httputil.NewSingleHostReverseProxy(target)
	portal := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !captive.Load() {
			through.ServeHTTP(w, r)
			return
		}
		n := refused.Add(1)
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader([]int{http.StatusUnauthorized, http.StatusForbidden, http.StatusOK}[n%3])
		io.WriteString(w, "<html>Welcome to the hotel. Please log in.</html>")
	}))
	t.Cleanup(func() {
		portal.CloseClientConnections()
		portal.Close()
	})

	s.agentProc.interrupt()
	for i, arg := range s.agentArgs {
		if arg == s.url {
			s.agentArgs[i] = portal.URL
		}
	}
	s.agentProc = s.machine.start(s.agentArgs...)
	eventually(t, 60*time.Second, "the agent tries again after 401 and 403 that are not the relay's", func() (bool, string) {
		return refused.Load() >= 3, s.agentProc.output()
	})
	s.agentProc.running()
	captive.Store(false)
	eventually(t, 60*time.Second, "the agent is back once the portal is gone", func() (bool, string) {
		r := s.sshRun("mini", "echo back")
		return r.code == 0, r.String()
	})

	// The laptop behind the same portal.
	machines := filepath.Join(s.laptop.state, "machines.json")
	b, err := os.ReadFile(machines)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(machines, bytes.ReplaceAll(b, []byte(s.url), []byte(portal.URL)), 0o600); err != nil {
		t.Fatal(err)
	}
	captive.Store(true)
	for range 3 {
		r := s.laptop.holdfast("proxy", "mini")
		if r.code != 3 || r.stdout != "" || r.stderr == "" {
			t.Errorf("proxy behind a captive portal: want exit code 3, since the relay refused nothing: %s", r)
		}
	}
}

func TestTwoOnOneStateDirectory(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	for _, args := range [][]string{
		{"up", "--listen", "127.0.0.1:0", "--sshd", "off"},
		{"relay", "--listen", "127.0.0.1:0"},
	} {
		r := s.machine.holdfast(args...)
		if r.code != 1 || !strings.Contains(r.stderr, s.machine.state) {
			t.Errorf("a second holdfast %s on one state directory: want exit code 1 and the directory's name: %s", args[0], r)
		}
		if r.took > 20*time.Second {
			t.Errorf("it took %v to say so", r.took)
		}
	}
	s.up.running()
}

func TestTakenPort(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c := newComputer(t)
	for _, args := range [][]string{{"up", "--sshd", "off"}, {"relay"}} {
		r := c.holdfast(append(args, "--listen", ln.Addr().String())...)
		if r.code != 1 || !strings.Contains(r.stderr, ln.Addr().String()) || !strings.Contains(r.stderr, "hint:") {
			t.Errorf("holdfast %s on a taken port: want exit code 1, the address and a hint: %s", args[0], r)
		}
	}
}

// TestSecondStart keeps the identity: the same link's host keys, the same
// devices, and no new pairing needed.
func TestSecondStart(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	u, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	s.up.interrupt()
	start := time.Now()
	s.up = s.machine.start("up", "--json", "--listen", u.Host, "--sshd", "off")
	s.up.event("listening")
	e := s.up.event("machine")
	if e["machine"] != "mini" {
		t.Errorf("the machine is called %v after a restart, was mini", e["machine"])
	}
	t.Logf("second start took %v", time.Since(start).Round(time.Millisecond))
	eventually(t, 60*time.Second, "the paired laptop gets in after a restart", func() (bool, string) {
		r := s.sshRun("mini", "echo in")
		return r.code == 0, r.String()
	})
	// killed is no different
	s.up.kill()
	s.up = s.machine.start("up", "--json", "--listen", u.Host, "--sshd", "off")
	s.up.event("listening")
	eventually(t, 60*time.Second, "the paired laptop gets in after a kill", func() (bool, string) {
		r := s.sshRun("mini", "echo in")
		return r.code == 0, r.String()
	})
}

// TestTwoAgentsOneName starts a copy of the machine: the newest wins, the other
// stops with exit code 4 and says who won.
func TestTwoAgentsOneName(t *testing.T) {
	t.Parallel()
	s := newSplit(t)
	copied := newComputer(t)
	if err := os.CopyFS(copied.state, os.DirFS(s.machine.state)); err != nil {
		// The control socket cannot be copied; everything that matters can.
		t.Logf("copy: %v", err)
	}
	if err := os.Chmod(copied.state, 0o700); err != nil {
		t.Fatal(err)
	}
	second := copied.start(s.agentArgs...)
	second.event("machine")
	if code := s.agentProc.exited(60 * time.Second); code != 4 {
		t.Errorf("the agent that was replaced exits with %d, want 4: %s", code, s.agentProc.output())
	}
	if !strings.Contains(s.agentProc.output(), "instance") {
		t.Errorf("the agent that was replaced does not say by which instance: %s", s.agentProc.output())
	}
	second.running()
}

// TestServiceDown stops sshd: the default service says 4502 and never turns into
// another one; the built-in server still works.
func TestServiceDown(t *testing.T) {
	t.Parallel()
	s := newSite(t, true)
	if r := s.sshRun("mini", "true"); r.code != 0 {
		t.Fatalf("ssh: %s", r)
	}
	s.sshd.kill()
	r := s.laptop.holdfast("proxy", "mini")
	if r.code != 3 || r.stdout != "" || !strings.Contains(r.stderr, s.sshd.addr) {
		t.Errorf("proxy to a service that is down: want exit code 3 and its address: %s", r)
	}
	if r := s.laptop.holdfast("ssh", "mini", "true"); r.code != 255 {
		t.Errorf("holdfast ssh with sshd down: %s", r)
	}
	if r := s.sshRun("mini.ssh", "echo in"); r.code != 0 {
		t.Errorf("the built-in server with sshd down: %s", r)
	}
}

// TestRefusals asks the relay as a stranger would: status, header and one line.
func TestRefusals(t *testing.T) {
	t.Parallel()
	s := newSplit(t)
	device := s.deviceToken()
	get := func(path string, headers ...string) (*http.Response, string) {
		t.Helper()
		req, err := http.NewRequest("GET", s.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range map[string]string{"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="} {
			req.Header.Set(k, v)
		}
		for i := 0; i < len(headers); i += 2 {
			req.Header.Add(headers[i], headers[i+1])
		}
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatalf("GET %s: %v", path, err)
		}
		defer resp.Body.Close()
		b := make([]byte, 1000)
		n := 0
		if resp.StatusCode != http.StatusSwitchingProtocols {
			n, _ = io.ReadFull(resp.Body, b)
		}
		return resp, string(b[:n])
	}
	const auth = "Authorization"
	strange := "hf_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
	for _, c := range []struct {
		what, path string
		headers    []string
		status     int
		refusal    string
	}{
		{"no token", "/connect/mini", nil, 401, "token-missing"},
		{"unknown token", "/connect/mini", []string{auth, "Bearer " + strange}, 401, "token-unknown"},
		{"token of bad syntax", "/connect/mini", []string{auth, "Bearer nonsense"}, 400, "syntax"},
		{"two different tokens", "/connect/mini", []string{auth, "Bearer " + device, "Sec-WebSocket-Protocol", "holdfast.v1, holdfast.bearer." + strange}, 400, "syntax"},
		{"token in the query", "/connect/mini?token=" + strange, []string{auth, "Bearer " + device}, 400, "syntax"},
		{"token as another query value", "/connect/mini?x=" + strange, []string{auth, "Bearer " + device}, 400, "syntax"},
		{"syntax before authentication", "/connect/mini?token=x", nil, 400, "syntax"},
		{"path of bad syntax, no token", "/connect/-mini", nil, 401, "token-missing"},
		{"path of bad syntax", "/connect/-mini", []string{auth, "Bearer " + device}, 400, "path"},
		{"service of bad syntax", "/connect/mini?service=a%20b", []string{auth, "Bearer " + device}, 400, "path"},
		{"machine that is not there", "/connect/nosuch", []string{auth, "Bearer " + device}, 403, "not-allowed"},
		{"wrong kind of token", "/agent/mini", []string{auth, "Bearer " + device}, 403, "not-allowed"},
		{"agent token for another machine", "/agent/other", []string{auth, "Bearer " + s.agentToken}, 403, "not-allowed"},
		{"agent token as a device", "/connect/mini", []string{auth, "Bearer " + s.agentToken}, 403, "not-allowed"},
		{"connID that nobody made", "/agent-data/mini/n1.AAAAAAAAAAAAAAAAAAAAAA", []string{auth, "Bearer " + s.agentToken}, 404, "not-found"},
		{"version not spoken", "/connect/mini", []string{auth, "Bearer " + device, "Sec-WebSocket-Protocol", "holdfast.v9"}, 426, "version"},
	} {
		resp, body := get(c.path, c.headers...)
		if resp.StatusCode != c.status || resp.Header.Get("Holdfast-Refusal") != c.refusal {
			t.Errorf("%s: %d %q, want %d %q (%s)", c.what, resp.StatusCode, resp.Header.Get("Holdfast-Refusal"), c.status, c.refusal, body)
		}
		if line := strings.TrimSuffix(body, "\n"); line == "" || strings.Contains(line, "\n") || strings.Contains(body, "hf_A") {
			t.Errorf("%s: want one plain line without the token, got %q", c.what, body)
		}
	}
	// Another account's machine and one that does not exist answer alike.
	s.relay.must("account", "add", "stranger")
	r := s.relay.must("token", "create", "--account", "stranger", "--kind", "device", "--name", "x")
	stranger := tokenText.FindString(r.stdout)
	there, thereBody := get("/connect/mini", auth, "Bearer "+stranger)
	missing, missingBody := get("/connect/nosuch", auth, "Bearer "+stranger)
	if there.StatusCode != 403 || missing.StatusCode != 403 || strings.ReplaceAll(thereBody, "mini", "M") != strings.ReplaceAll(missingBody, "nosuch", "M") {
		t.Errorf("another account's machine answers %d %q, a missing one %d %q", there.StatusCode, thereBody, missing.StatusCode, missingBody)
	}
	// A browser cannot see a refused upgrade, so it is accepted and closed 4426.
	resp, _ := get("/connect/mini", auth, "Bearer "+device, "Origin", "https://app.example", "Sec-WebSocket-Protocol", "holdfast.v9, holdfast.bearer."+device)
	if resp.StatusCode != 101 || resp.Header.Get("Sec-WebSocket-Protocol") != "holdfast.v9" {
		t.Errorf("a browser with a strange version: %d, protocol %q", resp.StatusCode, resp.Header.Get("Sec-WebSocket-Protocol"))
	}
	resp, _ = get("/connect/mini", "Origin", "https://app.example", "Sec-WebSocket-Protocol", "holdfast.v1, holdfast.bearer."+device)
	if resp.StatusCode != 101 || resp.Header.Get("Sec-WebSocket-Protocol") != "holdfast.v1" {
		t.Errorf("a browser: %d, protocol %q", resp.StatusCode, resp.Header.Get("Sec-WebSocket-Protocol"))
	}
}

// TestJSONInterface asks /v1 as a page would.
func TestJSONInterface(t *testing.T) {
	t.Parallel()
	s := newSplit(t)
	ask := func(method, path, token string) (int, http.Header, map[string]any) {
		t.Helper()
		req, err := http.NewRequest(method, s.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		req.Header.Set("Origin", "https://app.example")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var m map[string]any
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		if len(b) > 0 && json.Unmarshal(b, &m) != nil {
			t.Errorf("%s %s: not a JSON object: %q", method, path, b)
		}
		return resp.StatusCode, resp.Header, m
	}
	device := s.deviceToken()
	status, header, m := ask("GET", "/v1/access?machine=mini", device)
	if status != 200 || m["account"] != "owner" || m["kind"] != "device" || m["machine"] != "mini" {
		t.Errorf("access: %d %v", status, m)
	}
	if header.Get("Access-Control-Allow-Origin") == "" || !strings.Contains(header.Get("Access-Control-Expose-Headers"), "Holdfast-Refusal") {
		t.Errorf("access: a page of another origin cannot read this: %v", header)
	}
	if status, header, m = ask("GET", "/v1/access", ""); status != 401 || header.Get("Content-Type") != "application/problem+json" || header.Get("Holdfast-Refusal") != "token-missing" || m["status"] != 401.0 || m["code"] != "token-missing" {
		t.Errorf("access without a token: %d %v %v", status, header, m)
	}
	if status, _, m = ask("GET", "/v1/access?machine=nosuch", device); status != 403 || m["code"] != "not-allowed" {
		t.Errorf("access to a machine that is not there: %d %v", status, m)
	}
	status, _, m = ask("GET", "/v1/machines", device)
	machines, _ := m["machines"].([]any)
	if status != 200 || len(machines) != 1 || machines[0].(map[string]any)["machine"] != "mini" {
		t.Errorf("machines: %d %v", status, m)
	}
	status, _, m = ask("GET", "/v1/devices", device)
	devices, _ := m["devices"].([]any)
	if status != 200 || len(devices) != 1 || devices[0].(map[string]any)["this"] != true {
		t.Errorf("devices: %d %v", status, m)
	}
	if status, _, _ = ask("POST", "/v1/pairings", device); status != 403 {
		t.Errorf("a device opens a pairing: %d, want 403", status)
	}
	if status, _, _ = ask("OPTIONS", "/v1/machines", ""); status != 200 && status != 204 {
		t.Errorf("a preflight without a token: %d", status)
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		resp, err := http.Get(s.url + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Errorf("%s: %s", path, resp.Status)
		}
	}
	if resp, err := http.Get(s.url + "/metrics"); err == nil {
		resp.Body.Close()
		if resp.StatusCode == 200 {
			t.Error("/metrics answers on the public listener")
		}
	}
}
