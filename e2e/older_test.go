package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"

	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// split is a site whose relay and agent are processes of their own.
type split struct {
	*site
	relay      *computer
	relayProc  *process
	agentProc  *process
	agentToken string
	agentArgs  []string
}

var (
	tokenText = regexp.MustCompile(`hf_[A-Za-z0-9_-]+`)
	linkText  = regexp.MustCompile(`https?://[^\s"]+/#[A-Za-z0-9._-]+`)
)

// newSplit starts a relay and, with a token made on the relay's computer, an
// agent called mini in front of a real sshd, and pairs a laptop.
func newSplit(t *testing.T) *split {
	t.Helper()
	return newSplitOn(t, newComputer(t), nil)
}

// newSplitOn is newSplit with flags of the relay and an environment of machine
// and laptop.
func newSplitOn(t *testing.T, relay *computer, relayArgs []string, vars ...string) *split {
	t.Helper()
	s := &split{site: &site{machine: newComputer(t), laptop: newComputer(t)}, relay: relay}
	s.machine.vars, s.laptop.vars = vars, vars
	s.sshd = startSSHD(s.machine)
	s.relayProc = s.relay.start(append([]string{"relay", "--json", "--listen", "127.0.0.1:0"}, relayArgs...)...)
	s.url = text(t, s.relayProc.event("listening"), "url")
	s.relay.must("account", "add", "owner")
	s.agentToken = s.createToken("agent", "--machine", "mini")
	file := filepath.Join(s.machine.home, "token")
	if err := os.WriteFile(file, []byte(s.agentToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.agentArgs = []string{"agent", "--json", "--relay", s.url, "--token-file", file, "--machine", "mini", "--sshd", s.sshd.addr}
	s.agentProc = s.machine.start(s.agentArgs...)
	s.agentProc.event("machine")
	s.join(s.pairLink())
	return s
}

// createToken makes a token on the relay's computer, beside the running relay.
func (s *split) createToken(kind string, more ...string) string {
	t := s.laptop.t
	t.Helper()
	r := s.relay.must(append([]string{"token", "create", "--account", "owner", "--kind", kind, "--name", kind + "-token"}, more...)...)
	token := tokenText.FindString(r.stdout)
	if token == "" {
		t.Fatalf("token create printed no token: %s", r)
	}
	return token
}

// pairLink opens a pairing link on the machine.
func (s *split) pairLink() string {
	s.laptop.t.Helper()
	return pairLinkOf(s.laptop.t, s.machine)
}

func pairLinkOf(t *testing.T, machine *computer) string {
	t.Helper()
	var r result
	eventually(t, 60*time.Second, "holdfast pair prints a link", func() (bool, string) {
		r = machine.holdfast("pair", "--json")
		return r.code == 0 && linkText.MatchString(r.stdout), r.String()
	})
	return linkText.FindString(r.stdout)
}

func bearer(token string) *websocket.DialOptions {
	return &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + token}}}
}

func wsURL(url string) string { return "ws" + strings.TrimPrefix(url, "http") }

// oldAgent plays an agent from before version 1: no instance, no hello, no
// heartbeat, base64 in text frames.
type oldAgent struct {
	url, token, service string
	dials               atomic.Int64
	texts, binaries     atomic.Int64 // frames from devices
}

// run serves until ctx ends; connected is closed when the relay has accepted it.
func (a *oldAgent) run(ctx context.Context, t *testing.T, connected chan<- struct{}) {
	control, _, err := websocket.Dial(ctx, wsURL(a.url)+"/agent/mini", bearer(a.token))
	if err != nil {
		t.Errorf("older agent: %v", err)
		close(connected)
		return
	}
	defer control.CloseNow()
	close(connected)
	for {
		kind, b, err := control.Read(ctx)
		if err != nil {
			return
		}
		var m struct{ Op, ConnID string }
		if kind != websocket.MessageText || json.Unmarshal(b, &m) != nil {
			t.Errorf("older agent: control message %q", b)
			continue
		}
		if m.Op != "dial" {
			continue
		}
		a.dials.Add(1)
		// Ends with the stream, or with ctx.
		go a.serve(ctx, t, m.ConnID)
	}
}

func (a *oldAgent) serve(ctx context.Context, t *testing.T, connID string) {
	service, err := net.Dial("tcp", a.service)
	if err != nil {
		t.Errorf("older agent: %v", err)
		return
	}
	defer service.Close()
	ws, _, err := websocket.Dial(ctx, wsURL(a.url)+"/agent-data/mini/"+connID, bearer(a.token))
	if err != nil {
		t.Errorf("older agent: dial back: %v", err)
		return
	}
	defer ws.CloseNow()
	bridgeText(ctx, ws, service, &a.texts, &a.binaries)
}

// bridgeText joins a WebSocket, on which it writes base64 only, with a TCP
// connection, until either ends. It reads both forms and counts them.
func bridgeText(ctx context.Context, ws *websocket.Conn, tcp net.Conn, texts, binaries *atomic.Int64) {
	ws.SetReadLimit(-1)
	done := make(chan struct{})
	// Ends when tcp or ws ends; the other half closes both.
	go func() {
		defer close(done)
		defer tcp.Close()
		for {
			kind, b, err := ws.Read(ctx)
			if err != nil {
				return
			}
			if kind == websocket.MessageText {
				texts.Add(1)
				raw, err := base64.StdEncoding.DecodeString(string(b))
				if err != nil {
					return
				}
				b = raw
			} else {
				binaries.Add(1)
			}
			if _, err := tcp.Write(b); err != nil {
				return
			}
		}
	}()
	buf := make([]byte, 16<<10)
	for {
		n, err := tcp.Read(buf)
		if n > 0 {
			if ws.Write(ctx, websocket.MessageText, []byte(base64.StdEncoding.EncodeToString(buf[:n]))) != nil {
				break
			}
		}
		if err != nil {
			break
		}
	}
	ws.Close(websocket.StatusNormalClosure, "")
	tcp.Close()
	<-done
}

// oldDevice plays a device from before version 1, for one ssh at a time: it
// listens on loopback and carries each connection as base64 in text frames.
type oldDevice struct {
	url, token      string
	ln              net.Listener
	texts, binaries atomic.Int64 // frames from agents
}

func (d *oldDevice) run(ctx context.Context, t *testing.T) {
	for {
		conn, err := d.ln.Accept()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				t.Errorf("older device: %v", err)
			}
			return
		}
		// Ends with the stream, or with ctx.
		go func() {
			defer conn.Close()
			ws, _, err := websocket.Dial(ctx, wsURL(d.url)+"/connect/mini", bearer(d.token))
			if err != nil {
				t.Errorf("older device: %v", err)
				return
			}
			defer ws.CloseNow()
			bridgeText(ctx, ws, conn, &d.texts, &d.binaries)
		}()
	}
}

// deviceToken reads the laptop's token, as pairing stored it.
func (s *site) deviceToken() string {
	t := s.laptop.t
	t.Helper()
	b, err := os.ReadFile(filepath.Join(s.laptop.state, "machines.json"))
	if err != nil {
		t.Fatal(err)
	}
	token := tokenText.FindString(string(b))
	if token == "" {
		t.Fatal("machines.json holds no token")
	}
	return token
}

// TestOlderPeers carries SSH through the relay between an agent and a device of
// which each is of today or from before version 1.
func TestOlderPeers(t *testing.T) {
	t.Parallel()
	const size = 3 << 20
	s := newSplit(t)
	source, want := blob(t, s.laptop.home, size)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)

	// exchange sends a file there and back and compares.
	exchange := func(t *testing.T, args ...string) {
		t.Helper()
		in, err := os.Open(source)
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		cmdCtx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		back := filepath.Join(t.TempDir(), "back")
		out, err := os.Create(back)
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		cmd := s.ssh(cmdCtx, append(args, "mini", "cat; exit 3")...)
		cmd.Stdin, cmd.Stdout = in, out
		if r := runCmd(t, cmd); r.code != 3 || hashOf(t, back) != want {
			t.Errorf("want the file back and exit code 3: %s", r)
		}
	}

	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	device := &oldDevice{url: s.url, token: s.deviceToken(), ln: ln}
	// Ends when the listener is closed.
	go device.run(ctx, t)
	_, port, err := net.SplitHostPort(ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	throughOldDevice := []string{"-o", "ProxyCommand=none", "-o", "Hostname=127.0.0.1", "-p", port}

	t.Run("new agent, new device", func(t *testing.T) { exchange(t) })
	t.Run("new agent, old device", func(t *testing.T) {
		exchange(t, throughOldDevice...)
		if device.texts.Load() == 0 || device.binaries.Load() != 0 {
			t.Errorf("the agent answered text with %d text and %d binary frames, want text only", device.texts.Load(), device.binaries.Load())
		}
	})

	s.agentProc.interrupt()
	agent := &oldAgent{url: s.url, token: s.agentToken, service: s.sshd.addr}
	connected := make(chan struct{})
	// Ends with ctx.
	go agent.run(ctx, t, connected)
	<-connected

	t.Run("old agent, new device", func(t *testing.T) {
		exchange(t)
		if agent.texts.Load() != 0 || agent.binaries.Load() == 0 {
			t.Errorf("the device sent %d text and %d binary frames, want binary only", agent.texts.Load(), agent.binaries.Load())
		}
	})
	t.Run("old agent, old device", func(t *testing.T) {
		device.texts.Store(0)
		exchange(t, throughOldDevice...)
		if device.texts.Load() == 0 || device.binaries.Load() != 0 {
			t.Errorf("the older device got %d text and %d binary frames", device.texts.Load(), device.binaries.Load())
		}
	})
	if agent.dials.Load() == 0 {
		t.Error("the older agent was never dialled")
	}
}

// TestBadBase64EndsItsStreamOnly sends text that is no base64 to a new agent.
func TestBadBase64EndsItsStreamOnly(t *testing.T) {
	t.Parallel()
	s := newSplit(t)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	dial := func() *websocket.Conn {
		ws, _, err := websocket.Dial(ctx, wsURL(s.url)+"/connect/mini", bearer(s.deviceToken()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ws.CloseNow() })
		return ws
	}
	good, bad := dial(), dial()
	if _, b, err := good.Read(ctx); err != nil || len(b) == 0 {
		t.Fatalf("no banner: %v", err)
	}
	if err := bad.Write(ctx, websocket.MessageText, []byte("this is no base64!")); err != nil {
		t.Fatal(err)
	}
	for {
		if _, _, err := bad.Read(ctx); err != nil {
			if websocket.CloseStatus(err) != 1007 {
				t.Errorf("bad base64: %v, want close 1007", err)
			}
			break
		}
	}
	// Empty text means nothing, and the other stream lives on.
	if err := good.Write(ctx, websocket.MessageText, nil); err != nil {
		t.Fatal(err)
	}
	if err := good.Write(ctx, websocket.MessageText, []byte(base64.StdEncoding.EncodeToString([]byte("SSH-2.0-test\r\n")))); err != nil {
		t.Fatal(err)
	}
	if _, b, err := good.Read(ctx); err != nil || len(b) == 0 {
		t.Errorf("the other stream ended too: %v", err)
	}
}
