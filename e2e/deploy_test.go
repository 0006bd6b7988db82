package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// behind is a relay, an agent and a laptop that all meet at a reverse proxy.
type behind struct {
	*site
	agent *process
	relay *computer
}

// newBehind starts a relay that says it is at the proxy's address, the proxy by
// start, which gets that address and the relay's, and an agent called mini.
func newBehind(t *testing.T, start func(proxy, relay string), agentArgs ...string) *behind {
	t.Helper()
	proxy, upstream := freeAddr(t), freeAddr(t)
	b := &behind{site: &site{machine: newComputer(t), laptop: newComputer(t), url: "http://" + proxy}, relay: newComputer(t)}
	b.relay.start("relay", "--json", "--listen", upstream, "--public-url", b.url, "--trusted-proxy", "127.0.0.1/32").event("listening")
	start(proxy, upstream)
	eventually(t, 60*time.Second, "the proxy answers for the relay", func() (bool, string) {
		resp, err := http.Get(b.url + "/healthz")
		if err != nil {
			return false, err.Error()
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK, resp.Status
	})
	b.relay.must("account", "add", "owner")
	token := b.relay.must("token", "create", "--account", "owner", "--kind", "agent", "--name", "mini", "--machine", "mini").stdout
	file := filepath.Join(b.machine.home, "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	b.agent = b.machine.start(append([]string{"agent", "--json", "--relay", b.url, "--token-file", file, "--machine", "mini", "--sshd", "off"}, agentArgs...)...)
	b.agent.event("machine")
	link := b.machine.must("pair", "--json").stdout
	b.join(linkText.FindString(link))
	return b
}

// attempts is how many control connections the agent has made.
func (b *behind) attempts(t *testing.T) int {
	t.Helper()
	for _, l := range jsonLines(t, b.machine.holdfast("doctor", "--json").stdout) {
		if a, ok := l["agent"].(map[string]any); ok {
			return int(a["attempt"].(float64))
		}
	}
	t.Fatal("doctor says nothing of the agent")
	return 0
}

// works logs in, moves data both ways, and asks for a refusal by address.
func (b *behind) works(t *testing.T) {
	t.Helper()
	if r := b.sshRun("mini", "echo hello; exit 9"); r.code != 9 || r.stdout != "hello\n" {
		t.Errorf("ssh: %s", r)
	}
	path, hash := blob(t, b.laptop.home, 20<<20)
	in, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	back := filepath.Join(b.laptop.home, "back")
	out, err := os.Create(back)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := b.ssh(ctx, "mini", "cat")
	cmd.Stdin, cmd.Stdout = in, out
	if r := runCmd(t, cmd); r.code != 0 || hashOf(t, back) != hash {
		t.Errorf("20 MB there and back: %s", r)
	}
}

// deployed reads one of the files that operators copy.
func deployed(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "deploy", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// replace is strings.Replace of something that must be there.
func replace(t *testing.T, text, old, new string) string {
	t.Helper()
	if !strings.Contains(text, old) {
		t.Fatalf("%q is not in the file", old)
	}
	return strings.ReplaceAll(text, old, new)
}

// startNginx runs the nginx file of deploy/, with plain http, other addresses
// and another idle limit.
func startNginx(t *testing.T, proxy, relay string, idle time.Duration) {
	t.Helper()
	nginx := need(t, "nginx")
	dir := t.TempDir()
	conf := deployed(t, "nginx/holdfast.conf")
	conf = replace(t, conf, "listen 443 ssl;", "listen "+proxy+";")
	conf = regexp.MustCompile(`(?m)^\s*ssl_certificate.*$`).ReplaceAllString(conf, "")
	conf = replace(t, conf, "127.0.0.1:7700;", relay+";")
	if idle > 0 {
		conf = replace(t, conf, "timeout 75s;", fmt.Sprintf("timeout %ds;", int(idle.Seconds())))
	}
	site := filepath.Join(dir, "site.conf")
	main := fmt.Sprintf("worker_processes 1;\nerror_log stderr;\npid %s/pid;\nevents { worker_connections 500; }\nhttp {\n access_log off;\n", dir)
	for _, d := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		main += fmt.Sprintf(" %s_temp_path %s/%s;\n", d, dir, d)
	}
	main += " include " + site + ";\n}\n"
	if os.Geteuid() == 0 {
		main = "user " + userName() + ";\n" + main
	}
	for name, text := range map[string]string{site: conf, filepath.Join(dir, "nginx.conf"): main} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := newComputer(t)
	cmd := c.command(context.Background(), nginx, "-p", dir, "-c", filepath.Join(dir, "nginx.conf"), "-g", "daemon off;")
	p := startProcess(t, cmd)
	// Killed, its master would leave a worker behind.
	t.Cleanup(func() {
		p.cmd.Process.Signal(os.Interrupt)
		p.exited(60 * time.Second)
	})
}

func TestBehindNginx(t *testing.T) {
	t.Parallel()
	b := newBehind(t, func(proxy, relay string) { startNginx(t, proxy, relay, 0) })
	b.works(t)
	if n := b.attempts(t); n != 1 {
		t.Errorf("the agent connected %d times", n)
	}
}

// TestNginxIdleLimit: a proxy that cuts after 8 s without a word of the relay
// costs an agent its control connection, which it makes anew; with --keepalive
// below the limit it keeps it, and a quiet stream as well.
func TestNginxIdleLimit(t *testing.T) {
	t.Parallel()
	const idle = 8 * time.Second
	t.Run("without a keepalive the agent comes back", func(t *testing.T) {
		t.Parallel()
		b := newBehind(t, func(proxy, relay string) { startNginx(t, proxy, relay, idle) })
		eventually(t, 60*time.Second, "the agent has connected again", func() (bool, string) {
			n := b.attempts(t)
			return n >= 2, fmt.Sprint(n)
		})
		eventually(t, 60*time.Second, "the machine can be reached again", func() (bool, string) {
			r := b.laptop.holdfast("ssh", "mini", "echo hello")
			return r.stdout == "hello\n", r.String()
		})
	})
	t.Run("with a keepalive nothing is cut", func(t *testing.T) {
		t.Parallel()
		b := newBehind(t, func(proxy, relay string) { startNginx(t, proxy, relay, idle) }, "--keepalive", "5s")
		r := b.laptop.holdfast("ssh", "--keepalive", "5s", "mini", "sleep 25; echo still here")
		if r.code != 0 || r.stdout != "still here\n" {
			t.Errorf("a stream that was quiet for 25 s: %s", r)
		}
		if n := b.attempts(t); n != 1 {
			t.Errorf("the agent connected %d times in 25 s", n)
		}
	})
}

func TestBehindCaddy(t *testing.T) {
	t.Parallel()
	b := newBehind(t, func(proxy, relay string) {
		caddy := need(t, "caddy")
		c := newComputer(t)
		conf := deployed(t, "caddy/Caddyfile")
		conf = replace(t, conf, "relay.example {", "http://"+proxy+" {\n\tbind 127.0.0.1")
		conf = replace(t, conf, "reverse_proxy 127.0.0.1:7700", "reverse_proxy "+relay)
		file := filepath.Join(c.home, "Caddyfile")
		if err := os.WriteFile(file, []byte("{\n\tadmin off\n\tauto_https off\n}\n"+conf), 0o600); err != nil {
			t.Fatal(err)
		}
		startProcess(t, c.command(context.Background(), caddy, "run", "--adapter", "caddyfile", "--config", file))
	})
	b.works(t)
	if n := b.attempts(t); n != 1 {
		t.Errorf("the agent connected %d times", n)
	}
}

// TestTrustedProxyCountsByAddress: behind a proxy that says for whom it asks,
// one stranger's failures refuse nobody else.
func TestTrustedProxyCountsByAddress(t *testing.T) {
	t.Parallel()
	c := newComputer(t)
	p := c.start("relay", "--json", "--listen", "127.0.0.1:0", "--trusted-proxy", "127.0.0.1/32")
	url := text(t, p.event("listening"), "url")
	ask := func(from string) int {
		req, err := http.NewRequest(http.MethodGet, url+"/v1/access", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer hf_unknown")
		req.Header.Set("X-Forwarded-For", from)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	for range 20 {
		if got := ask("192.0.2.1"); got != http.StatusUnauthorized {
			t.Fatalf("a failure within the limit: %d", got)
		}
	}
	if got := ask("192.0.2.1"); got != http.StatusTooManyRequests {
		t.Errorf("the 21st failure of an address in a minute: %d", got)
	}
	if got := ask("192.0.2.2"); got != http.StatusUnauthorized {
		t.Errorf("another address: %d", got)
	}
}

// TestDashboardAndAlertsNameRealMetrics reads every metric of ours that the
// files name from a running relay that has done one of each thing.
func TestDashboardAndAlertsNameRealMetrics(t *testing.T) {
	metrics := freeAddr(t)
	s := newSite(t, false, "--metrics-listen", metrics)
	if r := s.laptop.holdfast("ssh", "mini", "true"); r.code != 0 {
		t.Fatalf("ssh: %s", r)
	}
	resp, err := http.Get(s.url + "/v1/access") // one refusal
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	s.laptop.must("machines") // one proof
	if resp, err = http.Get("http://" + metrics + "/metrics"); err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	exported := string(body)
	// Vectors that only trouble fills have no sample yet.
	rare := map[string]bool{"holdfast_relay_control_dropped_total": true, "holdfast_relay_closes_total": true}
	for _, file := range []string{"grafana/holdfast-relay.json", "prometheus/alerts.yml"} {
		text := deployed(t, file)
		if strings.HasSuffix(file, ".json") && !json.Valid([]byte(text)) {
			t.Errorf("%s is not JSON", file)
		}
		names := regexp.MustCompile(`holdfast_relay_[a-z_]+`).FindAllString(text, -1)
		if len(names) == 0 {
			t.Errorf("%s names no metric", file)
		}
		for _, name := range names {
			if !strings.Contains(exported, "\n"+name) && !rare[name] {
				t.Errorf("%s names %s, which the relay does not export", file, name)
			}
		}
	}
	// The metrics are not on the public port.
	if resp, err := http.Get(s.url + "/metrics"); err != nil || resp.StatusCode != http.StatusNotFound {
		t.Errorf("/metrics on the public port: %v %v", resp, err)
	}
}

// TestUnitsAreWellFormed lets systemd read the units where it is installed; it
// is not where tests usually run, so the least is checked by hand.
func TestUnitsAreWellFormed(t *testing.T) {
	for _, name := range []string{"systemd/holdfast-relay.service", "systemd/holdfast-agent.service"} {
		unit := deployed(t, name)
		for _, want := range []string{"[Unit]", "[Service]", "ExecStart=", "[Install]"} {
			if !strings.Contains(unit, want) {
				t.Errorf("%s lacks %s", name, want)
			}
		}
	}
	if !strings.Contains(deployed(t, "systemd/holdfast-agent.service"), "RestartPreventExitStatus=4") {
		t.Error("an agent that was replaced would be started again")
	}
	// Every flag that the files give exists.
	c := newComputer(t)
	for command, file := range map[string]string{"relay": "systemd/holdfast-relay.service", "agent": "systemd/holdfast-agent.service"} {
		help := c.must("help", command).stdout
		for _, line := range strings.Split(deployed(t, file), "\n") {
			if !strings.HasPrefix(line, "ExecStart=") {
				continue
			}
			for _, flag := range regexp.MustCompile(`--[a-z-]+`).FindAllString(line, -1) {
				if !strings.Contains(help, flag) {
					t.Errorf("%s gives %s, which holdfast %s does not know", file, flag, command)
				}
			}
		}
	}
}
