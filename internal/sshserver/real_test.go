package sshserver

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/internal/pairing"
	"holdfast/internal/sshlink"
)

// openSSH runs OpenSSH's clients against the machine.
type openSSH struct {
	*machine
	config string
	known  string
}

// newOpenSSH writes a configuration as `ssh-config` would: pinned host key,
// the device's key, and nothing else.
func newOpenSSH(t *testing.T, m *machine, extra ...string) *openSSH {
	t.Helper()
	tool(t, "ssh")
	dir := t.TempDir()
	_, key := m.pairedKey("openssh")
	c := &openSSH{machine: m, config: filepath.Join(dir, "config"), known: filepath.Join(dir, "known_hosts")}
	host, port, err := net.SplitHostPort(m.addr)
	must(t, err)
	pins := m.o.HostKeys.Public()[:1]
	must(t, os.WriteFile(c.known, []byte("mini.ssh.holdfast "+pins[0].Line()+"\n"), 0o600))
	lines := append([]string{
		"Host mini", "HostName " + host, "Port " + port, "User anybody", "IdentityFile " + key, "IdentitiesOnly yes",
		"IdentityAgent none", "UserKnownHostsFile " + c.known, "GlobalKnownHostsFile /dev/null", "HostKeyAlias mini.ssh.holdfast",
		"StrictHostKeyChecking yes", "PasswordAuthentication no", "BatchMode yes",
	}, extra...)
	if !strings.Contains(strings.Join(extra, "\n"), "HostKeyAlgorithms") {
		lines = append(lines, "HostKeyAlgorithms "+strings.Join(sshlink.HostKeyAlgorithms(pins), ","))
	}
	must(t, os.WriteFile(c.config, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	return c
}

func (c *openSSH) command(name string, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	c.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, tool(c.t, name), append([]string{"-F", c.config}, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + c.home, "LANG=C.UTF-8"}
	return cmd
}

func (c *openSSH) output(name string, args ...string) (string, string, error) {
	cmd := c.command(name, args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	return out.String(), errOut.String(), err
}

func exitCode(err error) int {
	if err == nil {
		return 0
	}
	if e, ok := err.(*exec.ExitError); ok {
		return e.ExitCode()
	}
	return -1
}

func TestOpenSSHExec(t *testing.T) {
	c := newOpenSSH(t, newMachine(t, nil))
	for _, code := range []int{0, 1, 42, 255} {
		out, errOut, err := c.output("ssh", "mini", fmt.Sprintf("echo out; echo err >&2; exit %d", code))
		if out != "out\n" || errOut != "err\n" || exitCode(err) != code {
			t.Errorf("exit %d: %q, %q, %v", code, out, errOut, err)
		}
	}
	// A command that dies by a signal is 255 and said so.
	_, errOut, err := c.output("ssh", "-v", "mini", "kill -KILL $$")
	if exitCode(err) != 255 || !strings.Contains(errOut, "exit-signal") {
		t.Errorf("a killed command: %v, %s", err, errOut)
	}
}

func TestOpenSSHLargeTransfers(t *testing.T) {
	c := newOpenSSH(t, newMachine(t, nil))
	const size = 32 << 20
	data := randomBytes(size)
	want := fmt.Sprintf("%x", sha256.Sum256(data))
	cmd := c.command("ssh", "mini", "tee copy | sha256sum >&2; sha256sum < copy >&2; cat copy")
	var errOut bytes.Buffer
	h := sha256.New()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(data), h, &errOut
	must(t, cmd.Run())
	if got := fmt.Sprintf("%x", h.Sum(nil)); got != want || strings.Count(errOut.String(), want) != 2 {
		t.Errorf("hashes differ: %s came back, there it was %s", got, &errOut)
	}
}

func TestOpenSSHTerminal(t *testing.T) {
	c := newOpenSSH(t, newMachine(t, nil))
	cmd := c.command("ssh", "-tt", "mini")
	cmd.Env = append(cmd.Env, "TERM=screen-256color")
	cmd.Stdin = strings.NewReader("echo on $TERM; tty; exit 9\n")
	out, err := cmd.Output()
	if exitCode(err) != 9 || !strings.Contains(string(out), "on screen-256color\r\n/dev/pts/") {
		t.Errorf("got %q, %v", out, err)
	}
}

func TestOpenSSHFiles(t *testing.T) {
	m := newMachine(t, nil)
	c := newOpenSSH(t, m)
	dir := t.TempDir()
	data := randomBytes(5 << 20)
	local := filepath.Join(dir, "local")
	must(t, os.WriteFile(local, data, 0o640))
	same := func(what, path string) {
		t.Helper()
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%s: %d bytes, %v", what, len(got), err)
		}
	}
	batch := filepath.Join(dir, "batch")
	must(t, os.WriteFile(batch, []byte(fmt.Sprintf("mkdir d\nput -p %s d/put\nget d/put %s/got\nrename d/put d/renamed\nls -l d\nchmod 600 d/renamed\n", local, dir)), 0o600))
	if out, errOut, err := c.output("sftp", "-b", batch, "mini"); err != nil || !strings.Contains(out, "renamed") {
		t.Errorf("sftp: %q, %q, %v", out, errOut, err)
	}
	same("sftp put", filepath.Join(m.home, "d/renamed"))
	same("sftp get", filepath.Join(dir, "got"))
	for _, mode := range []string{"-s", "-O"} { // over SFTP, and the old protocol over a command
		if _, errOut, err := c.output("scp", mode, "-q", local, "mini:up"+mode); err != nil {
			t.Fatalf("scp %s up: %v, %s", mode, err, errOut)
		}
		if _, errOut, err := c.output("scp", mode, "-q", "mini:up"+mode, filepath.Join(dir, "down"+mode)); err != nil {
			t.Fatalf("scp %s down: %v, %s", mode, err, errOut)
		}
		same("scp "+mode, filepath.Join(dir, "down"+mode))
	}
}

func TestOpenSSHForwarding(t *testing.T) {
	m := newMachine(t, nil)
	c := newOpenSSH(t, m)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	go func() { // ends when the listener closes
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			io.Copy(conn, conn)
			conn.Close()
		}
	}()
	cmd := c.command("ssh", "-W", l.Addr().String(), "mini")
	cmd.Stdin = strings.NewReader("through and back")
	if out, err := cmd.Output(); string(out) != "through and back" || err != nil {
		t.Errorf("-W to loopback: %q, %v", out, err)
	}
	if _, errOut, err := c.output("ssh", "-W", "192.0.2.1:80", "mini"); err == nil || !strings.Contains(errOut, "administratively prohibited") {
		t.Errorf("-W elsewhere: %v, %q", err, errOut)
	}
	if _, errOut, err := c.output("ssh", "-o", "ExitOnForwardFailure=yes", "-R", "0:127.0.0.1:1", "mini", "true"); err == nil || !strings.Contains(errOut, "remote port forwarding failed") {
		t.Errorf("-R: %v, %q", err, errOut)
	}
	// Agent and X11 are refused without a word; the command runs.
	if out, _, err := c.output("ssh", "-A", "-X", "mini", "echo ${SSH_AUTH_SOCK-none} ${DISPLAY-none}"); out != "none none\n" || err != nil {
		t.Errorf("-A -X: %q, %v", out, err)
	}
}

func TestOpenSSHStopsAtAnotherHostKey(t *testing.T) {
	m := newMachine(t, nil)
	c := newOpenSSH(t, m)
	other, _ := newDeviceKey(t)
	must(t, os.WriteFile(c.known, []byte("mini.ssh.holdfast "+other.Public().Line()+"\n"), 0o600))
	_, errOut, err := c.output("ssh", "mini", "true")
	if err == nil || !strings.Contains(errOut, "Host key verification failed") {
		t.Errorf("%v, %s", err, errOut)
	}
	if strings.Contains(m.log.String(), "paired=true") {
		t.Error("it authenticated all the same")
	}
}

func TestOpenSSHShowsThePinnedKeyAndKeepsAlive(t *testing.T) {
	m := newMachine(t, nil)
	c := newOpenSSH(t, m, "ServerAliveInterval 1", "ServerAliveCountMax 1")
	out, errOut, err := c.output("ssh", "-vv", "mini", "sleep 3.5; echo alive")
	if out != "alive\n" || err != nil || !strings.Contains(errOut, m.o.HostKeys.Public()[0].Fingerprint()) {
		t.Errorf("%q, %v, %s", out, err, errOut)
	}
}

func TestOpenSSHLearnsProvedHostKeys(t *testing.T) {
	m := newMachine(t, func(o *Options) {
		dir := t.TempDir()
		_, err := LoadOrCreateHostKeys(dir)
		must(t, err)
		_, err = sshlink.LoadOrCreateKey(filepath.Join(dir, "host_ed25519.next"), pairing.TypeEd25519)
		must(t, err)
		o.HostKeys, err = LoadOrCreateHostKeys(dir)
		must(t, err)
	})
	c := newOpenSSH(t, m, "UpdateHostKeys yes", "HostKeyAlgorithms ssh-ed25519,ecdsa-sha2-nistp256")
	if _, errOut, err := c.output("ssh", "mini", "sleep 1"); err != nil {
		t.Fatalf("%v, %s", err, errOut)
	}
	known, err := os.ReadFile(c.known)
	must(t, err)
	for _, k := range m.o.HostKeys.announced() {
		if !strings.Contains(string(known), k.Public().Line()) {
			t.Errorf("known_hosts lacks %s: %s", k.Public(), known)
		}
	}
}

func TestOpenSSHMultiplexed(t *testing.T) {
	m := newMachine(t, nil)
	dir, err := os.MkdirTemp("/tmp", "hf") // a socket's path is at most 104 bytes long
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := newOpenSSH(t, m, "ControlPath "+dir+"/s")
	master := c.command("ssh", "-M", "-N", "mini")
	must(t, master.Start())
	eventually(t, "the master is there", func() bool { return c.command("ssh", "-O", "check", "mini").Run() == nil })
	for i := range 15 {
		if out, errOut, err := c.output("ssh", "mini", fmt.Sprint("echo ", i)); out != fmt.Sprint(i, "\n") || err != nil {
			t.Errorf("%d: %q, %q, %v", i, out, errOut, err)
		}
	}
	c.output("ssh", "-O", "exit", "mini")
	master.Wait()
	if n := strings.Count(m.log.String(), `msg="ssh connection" `); n != 1 {
		t.Errorf("%d connections, want one for all sessions", n)
	}
}

// sshd is a real one on a loopback port.
type sshd struct {
	addr string
	keys []pairing.Key
}

func startSSHD(t *testing.T, extra ...string) sshd {
	t.Helper()
	path := tool(t, "sshd")
	if os.Getuid() == 0 {
		must(t, os.MkdirAll("/run/sshd", 0o755)) // where root's sshd separates its privileges
	}
	dir := t.TempDir()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	host, port, err := net.SplitHostPort(l.Addr().String())
	must(t, err)
	s := sshd{addr: l.Addr().String()}
	lines := append(extra, "ListenAddress "+host, "Port "+port, "PidFile none", "UsePAM no", "StrictModes no",
		"PermitRootLogin prohibit-password", "MaxStartups 100")
	for _, typ := range []string{"ed25519", "ecdsa", "rsa"} {
		file := filepath.Join(dir, typ)
		out, err := exec.Command(tool(t, "ssh-keygen"), "-q", "-N", "", "-t", typ, "-f", file).CombinedOutput()
		if err != nil {
			t.Fatalf("ssh-keygen: %v, %s", err, out)
		}
		line, err := os.ReadFile(file + ".pub")
		must(t, err)
		k, err := pairing.ParseKey(strings.TrimSpace(string(line)))
		must(t, err)
		s.keys = append(s.keys, k)
		lines = append(lines, "HostKey "+file)
	}
	config := filepath.Join(dir, "config")
	must(t, os.WriteFile(config, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	l.Close()
	cmd := exec.Command(path, "-D", "-e", "-f", config)
	log := &lockedBuffer{}
	cmd.Stderr = log
	must(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Log("sshd:", log)
		}
	})
	eventually(t, "sshd listens", func() bool {
		c, err := net.Dial("tcp", s.addr)
		if err != nil {
			return false
		}
		c.Close()
		return true
	})
	return s
}

// login tries the machine's sshd with a device's key, as `join` does.
func (s sshd) login(t *testing.T, user string, pins []pairing.Key, k *sshlink.Key) error {
	t.Helper()
	conn, err := net.Dial("tcp", s.addr)
	must(t, err)
	return sshlink.CheckLogin(context.Background(), conn, sshlink.Options{User: user, HostKeys: pins, Key: k})
}

func TestPairInstallsTheKeyForSSHD(t *testing.T) {
	home := t.TempDir()
	file := filepath.Join(home, ".ssh", "authorized_keys")
	d := startSSHD(t, "AuthorizedKeysFile "+file)
	m := newMachine(t, func(o *Options) { o.Home, o.SSHD = home, d.addr })
	k, _ := newDeviceKey(t)
	r, err := m.pair(m.link(), k, "my phone")
	must(t, err)
	if r.SSHD == nil || !r.SSHD.Installed || r.SSHD.Note != "" || len(r.SSHD.Keys) != 3 {
		t.Fatalf("response is %+v", r.SSHD)
	}
	var pins []pairing.Key
	for i, line := range r.SSHD.Keys {
		key, err := pairing.ParseKey(line)
		must(t, err)
		if key != d.keys[i] {
			t.Errorf("host key %d is %s, want %s", i, key, d.keys[i])
		}
		pins = append(pins, key)
	}
	want := k.Public().Line() + " # holdfast device relaysid my phone\n"
	if got, err := os.ReadFile(file); string(got) != want {
		t.Errorf("authorized_keys is %q, %v, want %q", got, err, want)
	}
	for i := range pins {
		if err := d.login(t, r.User, pins[i:i+1], k); err != nil {
			t.Errorf("login with only pin %d: %v", i, err)
		}
	}
	stranger, _ := newDeviceKey(t)
	if err := d.login(t, r.User, pins, stranger); err == nil || !strings.Contains(err.Error(), sshlink.ErrDenied.Error()) {
		t.Errorf("another key: %v", err)
	}
	must(t, m.Revoke("", k.Public().Line()))
	if got, err := os.ReadFile(file); len(got) != 0 || err != nil {
		t.Errorf("after revoking authorized_keys is %q, %v", got, err)
	}
	if err := d.login(t, r.User, pins, k); err == nil {
		t.Error("sshd lets the revoked key in")
	}
}

func TestPairSaysWhenSSHDDoesNotReadTheFile(t *testing.T) {
	d := startSSHD(t, "AuthorizedKeysFile /nonexistent/keys")
	m := newMachine(t, func(o *Options) { o.SSHD = d.addr })
	k, _ := newDeviceKey(t)
	r, err := m.pair(m.link(), k, "phone")
	must(t, err)
	if r.SSHD.Installed || len(r.SSHD.Keys) != 3 || !strings.Contains(r.SSHD.Note, "AuthorizedKeysFile") {
		t.Errorf("response is %+v", r.SSHD)
	}
}

func TestPairWithALinkedAuthorizedKeys(t *testing.T) {
	d := startSSHD(t)
	m := newMachine(t, func(o *Options) { o.SSHD = d.addr })
	elsewhere := filepath.Join(t.TempDir(), "keys")
	must(t, os.WriteFile(elsewhere, nil, 0o600))
	must(t, os.Mkdir(filepath.Join(m.home, ".ssh"), 0o700))
	must(t, os.Symlink(elsewhere, filepath.Join(m.home, ".ssh", "authorized_keys")))
	k, _ := newDeviceKey(t)
	r, err := m.pair(m.link(), k, "phone")
	must(t, err)
	if r.SSHD.Installed || !strings.Contains(r.SSHD.Note, "symbolic link") {
		t.Errorf("response is %+v", r.SSHD)
	}
	if got, err := os.ReadFile(elsewhere); len(got) != 0 || err != nil {
		t.Errorf("the link was followed: %q, %v", got, err)
	}
	// What was never written needs no taking out.
	must(t, m.Revoke("", k.Public().Line()))
	if err := os.WriteFile(elsewhere, []byte(k.Public().Line()+" # holdfast device x y\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if m.Revoke("", k.Public().Line()) == nil {
		t.Error("a line behind the link is left, and nobody is told")
	}
}

func TestPairWithoutAnSSHDThatAnswers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	addr := l.Addr().String()
	l.Close()
	m := newMachine(t, func(o *Options) { o.SSHD = addr })
	k, _ := newDeviceKey(t)
	r, err := m.pair(m.link(), k, "phone")
	must(t, err)
	if r.SSHD.Installed || len(r.SSHD.Keys) != 0 || !strings.Contains(r.SSHD.Note, addr) {
		t.Errorf("response is %+v", r.SSHD)
	}
}
