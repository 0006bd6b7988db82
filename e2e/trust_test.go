package e2e

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/crypto/ssh"
)

func asCloseError(err error, ce *websocket.CloseError) bool { return errors.As(err, ce) }

// newEvilSite is a site whose laptop reaches the relay through e only. Pairing
// is left to the caller, who gets the link.
func newEvilSite(t *testing.T) (s *site, e *evil, link string) {
	t.Helper()
	e = newEvil(t)
	s = &site{machine: newComputer(t), laptop: newComputer(t)}
	s.sshd = startSSHD(s.machine)
	s.up = s.machine.start("up", "--json", "--listen", "127.0.0.1:0", "--public-url", e.url(), "--name", "mini", "--sshd", s.sshd.addr)
	s.url = text(t, s.up.event("listening"), "url")
	e.set(func(e *evil) { e.upstream = s.url })
	return s, e, text(t, s.up.event("link"), "link")
}

// TestRelayReadsNothing pairs, works and copies through a relay that records,
// and looks in the record for what was said and for every secret.
func TestRelayReadsNothing(t *testing.T) {
	t.Parallel()
	s, e, link := newEvilSite(t)
	s.join(link)
	const said = "a sentence that nobody on the way may read"
	for _, host := range hosts {
		r := s.sshRun(host, "echo '"+said+"'; cat >/dev/null")
		if r.code != 0 || !strings.Contains(r.stdout, said) {
			t.Fatalf("ssh %s: %s", host, r)
		}
	}
	record := e.recorded()
	if !bytes.Contains(record, []byte("SSH-2.0-")) {
		t.Fatal("the record holds no SSH version line: the streams did not pass here")
	}
	secrets := map[string][]byte{"what was said": []byte(said)}
	_, fragment, _ := strings.Cut(link, "#")
	secrets["the link's fragment"] = []byte(fragment)
	for _, dir := range []string{s.machine.state, s.laptop.state} {
		for name, secret := range privateKeys(t, dir) {
			secrets[name] = secret
		}
	}
	if len(secrets) < 5 {
		t.Fatalf("only %d secrets to look for: no private keys in the state directories?", len(secrets))
	}
	for name, secret := range secrets {
		for form, b := range map[string][]byte{
			"itself":      secret,
			"base64":      []byte(base64.RawStdEncoding.EncodeToString(secret)),
			"base64url":   []byte(base64.RawURLEncoding.EncodeToString(secret)),
			"hexadecimal": []byte(hexOf(secret)),
		} {
			if bytes.Contains(record, b) {
				t.Errorf("the relay's record holds %s (%s)", name, form)
			}
		}
	}
}

func hexOf(b []byte) string {
	const digits = "0123456789abcdef"
	out := make([]byte, 0, 2*len(b))
	for _, c := range b {
		out = append(out, digits[c>>4], digits[c&15])
	}
	return string(out)
}

// privateKeys reads the secret halves of the OpenSSH keys in a state directory.
func privateKeys(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]byte{}
	for _, f := range files {
		if !f.Type().IsRegular() {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(b)
		if block == nil {
			continue
		}
		if info, err := f.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s/%s has mode %v, want 0600", filepath.Base(dir), f.Name(), info.Mode().Perm())
		}
		key, err := ssh.ParseRawPrivateKey(b)
		if err != nil {
			t.Fatalf("%s: %v", f.Name(), err)
		}
		found[f.Name()+"'s file"] = block.Bytes
		if k, ok := key.(*ed25519.PrivateKey); ok {
			found[f.Name()+"'s seed"] = k.Seed()
		}
	}
	return found
}

// TestTamperingRelay changes one bit on the way, in each direction and at
// several places of an established stream: the stream ends with an integrity
// error and delivers nothing wrong.
func TestTamperingRelay(t *testing.T) {
	t.Parallel()
	s, e, link := newEvilSite(t)
	s.join(link)
	source, want := blob(t, s.laptop.home, 1<<20)
	for _, host := range hosts {
		for _, at := range []int64{20_000, 300_000, 900_001} {
			e.flipAt(at, 0)
			r := s.sshRun(host, "cat '"+source+"'")
			checkTampered(t, host, "to the device", e, r)

			e.flipAt(0, at)
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			cmd := s.ssh(ctx, host, "cat >/dev/null; echo all of it")
			in, err := os.Open(source)
			if err != nil {
				t.Fatal(err)
			}
			cmd.Stdin = in
			r = runCmd(t, cmd)
			in.Close()
			cancel()
			checkTampered(t, host, "to the machine", e, r)
			if strings.Contains(r.stdout, "all of it") {
				t.Errorf("%s: the machine took a changed stream for whole", host)
			}
		}
		e.flipAt(0, 0)
		back := filepath.Join(t.TempDir(), "back")
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		r := runCmd(t, s.laptop.command(ctx, need(t, "scp"), "-F", s.config, host+":"+source, back))
		cancel()
		if r.code != 0 || hashOf(t, back) != want {
			t.Errorf("%s: untouched again, and yet: %s", host, r)
		}
	}
}

func checkTampered(t *testing.T, host, direction string, e *evil, r result) {
	t.Helper()
	if e.flips() == 0 {
		t.Errorf("%s, %s: no bit was changed", host, direction)
	}
	if r.code != 255 {
		t.Errorf("%s, %s: ssh exits with %d, want 255: %s", host, direction, r.code, r)
	}
	// OpenSSH names the broken integrity where it is the one to notice.
	if direction == "to the device" && !strings.Contains(r.stderr, "orrupted MAC") &&
		!strings.Contains(r.stderr, "message authentication code incorrect") && !strings.Contains(r.stderr, "Bad packet length") {
		t.Errorf("%s, %s: no integrity error: %s", host, direction, r)
	}
}

// wsNet is a WebSocket as a net.Conn, for an SSH library on this side.
func wsNet(ctx context.Context, ws *websocket.Conn) net.Conn {
	ws.SetReadLimit(-1)
	return websocket.NetConn(ctx, ws, websocket.MessageBinary)
}

func newSigner(t *testing.T) ssh.Signer {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

// TestRelayInTheMiddle is a relay that answers streams itself, as an SSH server
// with a key of its own: before pairing and after it. Both fingerprints are
// named, and no authentication is tried.
func TestRelayInTheMiddle(t *testing.T) {
	t.Parallel()
	s, e, link := newEvilSite(t)
	signer := newSigner(t)
	var streams, attempts atomic.Int64
	impostor := func(ws *websocket.Conn) {
		streams.Add(1)
		config := &ssh.ServerConfig{
			PublicKeyCallback: func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) {
				attempts.Add(1)
				return nil, nil
			},
			AuthLogCallback: func(_ ssh.ConnMetadata, method string, _ error) {
				attempts.Add(1)
			},
		}
		config.AddHostKey(signer)
		conn, _, _, err := ssh.NewServerConn(wsNet(context.Background(), ws), config)
		if err == nil {
			conn.Close()
		}
	}
	wrong := ssh.FingerprintSHA256(signer.PublicKey())

	t.Run("while pairing", func(t *testing.T) {
		e.set(func(e *evil) { e.hijack = impostor })
		r := s.laptop.holdfast("join", link)
		if r.code == 0 || !strings.Contains(r.stderr, wrong) || strings.Count(r.stderr, "SHA256:") < 2 {
			t.Errorf("join: want a failure that names both fingerprints, %s among them: %s", wrong, r)
		}
		if streams.Load() == 0 || attempts.Load() != 0 {
			t.Errorf("%d streams, %d authentication attempts; want some, and none", streams.Load(), attempts.Load())
		}
	})
	t.Run("after pairing", func(t *testing.T) {
		e.set(func(e *evil) { e.hijack = nil })
		// The same device may repeat until the link expires.
		s.join(link)
		e.set(func(e *evil) { e.hijack = impostor })
		streams.Store(0)
		for _, args := range [][]string{{"ssh", "mini", "true"}} {
			r := s.laptop.holdfast(args...)
			if r.code == 0 || !strings.Contains(r.stderr, wrong) {
				t.Errorf("holdfast %s: want a failure that names %s: %s", strings.Join(args, " "), wrong, r)
			}
			if !strings.Contains(r.stderr, s.sshd.hostKey) {
				t.Errorf("holdfast %s does not name the pinned key %s: %s", strings.Join(args, " "), s.sshd.hostKey, r)
			}
		}
		for _, host := range hosts {
			r := s.sshRun(host, "true")
			if r.code != 255 || !strings.Contains(r.stderr, wrong) {
				t.Errorf("ssh %s: want a failure that names %s: %s", host, wrong, r)
			}
		}
		if streams.Load() == 0 || attempts.Load() != 0 {
			t.Errorf("%d streams, %d authentication attempts; want some, and none", streams.Load(), attempts.Load())
		}
	})
}

// TestRecordedPairingIsWorthless lets a hostile relay use what it saw of a
// pairing: the relay secret, the device's token, the stream. None of it lets it
// pair, and none opens a shell.
func TestRecordedPairingIsWorthless(t *testing.T) {
	t.Parallel()
	s, e, link := newEvilSite(t)
	s.join(link)
	var seen struct{ Secret, Key, Name string }
	var given struct{ Token string }
	e.set(func(e *evil) {
		const path = "/v1/pairings/redeem"
		if json.Unmarshal(e.requests[path], &seen) != nil || json.Unmarshal(e.responses[path], &given) != nil {
			t.Fatalf("the pairing was not seen here: %q", e.requests)
		}
	})
	thief := newSigner(t)
	key := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(thief.PublicKey())))

	// The relay secret again, for a key of the thief's own: bound already.
	body, err := json.Marshal(map[string]string{"secret": seen.Secret, "key": key, "name": "thief"})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(s.url+"/v1/pairings/redeem", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusNotFound {
		t.Errorf("redeeming a bound link for another key: %s, want 404", resp.Status)
	}

	// The device's own token lets the thief knock, and no further: neither as an
	// unknown key that wants to pair, nor with a proof that it makes up.
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if got := tryPair(ctx, t, s.url, given.Token, thief, 1); got != "" {
		t.Errorf("the thief was paired: %s", got)
	}
	devices := s.machine.must("devices", "--json").stdout
	if strings.Contains(devices, strings.Fields(key)[1]) || strings.Contains(devices, "thief") {
		t.Errorf("the thief's key is among the devices: %s", devices)
	}
	authorized, err := os.ReadFile(filepath.Join(s.machine.home, ".ssh", "authorized_keys"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(authorized), strings.Fields(key)[1]) {
		t.Error("the thief's key is in authorized_keys")
	}
}

// tryPair knocks with a token and an unknown key and sends made-up proofs to
// the pair subsystem. It returns what was granted, empty for nothing.
func tryPair(ctx context.Context, t *testing.T, url, token string, signer ssh.Signer, times int) string {
	t.Helper()
	for range times {
		ws, _, err := websocket.Dial(ctx, wsURL(url)+"/connect/mini?service=ssh", bearer(token))
		if err != nil {
			t.Fatalf("the token does not even let one knock: %v", err)
		}
		config := &ssh.ClientConfig{
			User:            userName(),
			Auth:            []ssh.AuthMethod{ssh.PublicKeys(signer)},
			HostKeyCallback: ssh.InsecureIgnoreHostKey(), // the thief does not care
			Timeout:         10 * time.Second,
		}
		conn, channels, requests, err := ssh.NewClientConn(wsNet(ctx, ws), "mini", config)
		if err != nil {
			ws.CloseNow()
			continue // no link is open any more: the key is refused
		}
		client := ssh.NewClient(conn, channels, requests)
		granted := func() string {
			defer client.Close()
			if session, err := client.NewSession(); err == nil {
				if out, err := session.Output("id"); err == nil {
					return "a command ran: " + string(out)
				}
			}
			if _, err := client.Dial("tcp", "127.0.0.1:22"); err == nil {
				return "a port was forwarded"
			}
			session, err := client.NewSession()
			if err != nil {
				return ""
			}
			var proof [32]byte
			rand.Read(proof[:])
			session.Stdin = strings.NewReader(`{"v":1,"proof":"` + base64.RawURLEncoding.EncodeToString(proof[:]) + `","name":"thief"}` + "\n")
			var out bytes.Buffer
			session.Stdout = &out
			if err := session.RequestSubsystem("pair"); err != nil {
				return ""
			}
			session.Wait()
			var answer struct {
				OK   bool
				Code string
			}
			if json.Unmarshal(out.Bytes(), &answer) == nil && answer.OK {
				return out.String()
			}
			return ""
		}()
		if granted != "" {
			return granted
		}
	}
	return ""
}

// TestRelayThatRedeemsFirst takes the relay secret before the device gets to use
// it. It gets a token, cannot pair with it, closes the link with its fifth
// wrong proof, and the person is told.
func TestRelayThatRedeemsFirst(t *testing.T) {
	t.Parallel()
	s, e, link := newEvilSite(t)
	thief := newSigner(t)
	key := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(thief.PublicKey())))
	var token atomic.Value
	e.set(func(e *evil) {
		e.intercept = func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != "/v1/pairings/redeem" {
				return false
			}
			var m map[string]string
			if json.NewDecoder(r.Body).Decode(&m) != nil {
				return false
			}
			m["key"], m["name"] = key, "thief"
			body, _ := json.Marshal(m)
			resp, err := http.Post(s.url+r.URL.Path, "application/json", bytes.NewReader(body))
			if err != nil {
				return false
			}
			defer resp.Body.Close()
			var given struct{ Token string }
			if json.NewDecoder(resp.Body).Decode(&given) == nil && given.Token != "" {
				token.Store(given.Token)
			}
			// The device is told what the relay would tell it now.
			w.Header().Set("Holdfast-Refusal", "not-allowed")
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusForbidden)
			w.Write([]byte(`{"type":"about:blank","title":"Forbidden","status":403,"detail":"no such pairing","code":"not-allowed"}`))
			return true
		}
	})
	if r := s.laptop.holdfast("join", link); r.code == 0 || r.stderr == "" {
		t.Errorf("join through a relay that kept the secret: %s", r)
	}
	stolen, _ := token.Load().(string)
	if stolen == "" {
		t.Fatal("the relay got no token for the secret that it saw")
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if got := tryPair(ctx, t, s.url, stolen, thief, 6); got != "" {
		t.Errorf("the relay paired by itself: %s", got)
	}
	// The link is used up; another one works once the relay behaves.
	e.set(func(e *evil) { e.intercept = nil })
	s.join(linkText.FindString(s.machine.must("pair", "--json").stdout))
	if r := s.sshRun("mini.ssh", "echo in"); r.code != 0 || r.stdout != "in\n" {
		t.Errorf("after a new pairing: %s", r)
	}
}
