package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func userName() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return os.Getenv("USER")
}

// sshd is a running OpenSSH server of the test's own.
type sshd struct {
	*process
	addr    string
	hostKey string // fingerprint of its ed25519 key, SHA256:…
}

// startSSHD runs the system's sshd on a port that the system chooses, with host
// keys of its own, for the authorized_keys of c's home. It runs as whoever runs
// the test, root or not.
func startSSHD(c *computer) *sshd {
	t := c.t
	t.Helper()
	program := need(t, "sshd")
	keygen := need(t, "ssh-keygen")
	if os.Geteuid() == 0 {
		// Debian's sshd wants its empty directory, which its service makes.
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
			t.Fatal(err)
		}
	}
	dir := filepath.Join(c.home, "sshd")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"ed25519", "ecdsa"} {
		if out, err := exec.Command(keygen, "-q", "-t", kind, "-N", "", "-f", filepath.Join(dir, kind)).CombinedOutput(); err != nil {
			t.Fatalf("ssh-keygen: %v\n%s", err, out)
		}
	}
	out, err := exec.Command(keygen, "-l", "-E", "sha256", "-f", filepath.Join(dir, "ed25519.pub")).Output()
	if err != nil {
		t.Fatal(err)
	}
	fingerprint := strings.Fields(string(out))[1]

	// sshd cannot be asked for a free port, so one is looked for beforehand and
	// another taken if somebody was quicker.
	for range 5 {
		addr := freeAddr(t)
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			t.Fatal(err)
		}
		config := filepath.Join(dir, "sshd_config")
		text := fmt.Sprintf(`ListenAddress %s
Port %s
HostKey %s
HostKey %s
AuthorizedKeysFile %s
PidFile none
# Temporary directories lie below one that everybody may write to.
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PubkeyAuthentication yes
PermitRootLogin yes
MaxStartups 200
MaxSessions 100
UseDNS no
Subsystem sftp internal-sftp
LogLevel VERBOSE
`, host, port, filepath.Join(dir, "ed25519"), filepath.Join(dir, "ecdsa"), filepath.Join(c.home, ".ssh", "authorized_keys"))
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s := &sshd{addr: addr, hostKey: fingerprint}
		s.process = startProcess(t, c.command(context.Background(), program, "-D", "-e", "-f", config))
		if s.up() {
			return s
		}
	}
	t.Fatal("sshd did not start")
	return nil
}

// up waits until sshd answers or has ended.
func (s *sshd) up() bool {
	for range 2400 { // a minute
		select {
		case <-s.done:
			return false
		default:
		}
		if conn, err := net.Dial("tcp", s.addr); err == nil {
			conn.Close()
			return true
		}
		time.Sleep(25 * time.Millisecond)
	}
	return false
}

// site is the usual scene: a machine with relay and agent, and a laptop that is
// paired with it.
type site struct {
	machine *computer
	laptop  *computer
	sshd    *sshd // nil where the machine has none
	up      *process
	url     string
	// config is the laptop's OpenSSH configuration, as ssh-config writes it.
	config string
}

// newSite brings a machine called mini up, with an sshd or without, and pairs a
// laptop with it.
func newSite(t *testing.T, withSSHD bool, upArgs ...string) *site {
	t.Helper()
	s := &site{machine: newComputer(t), laptop: newComputer(t)}
	sshdAddr := "off"
	if withSSHD {
		s.sshd = startSSHD(s.machine)
		sshdAddr = s.sshd.addr
	}
	args := append([]string{"up", "--json", "--listen", "127.0.0.1:0", "--name", "mini", "--sshd", sshdAddr}, upArgs...)
	s.up = s.machine.start(args...)
	s.url = text(t, s.up.event("listening"), "url")
	link := text(t, s.up.event("link"), "link")
	s.join(link)
	return s
}

func (s *site) join(link string) result {
	s.laptop.t.Helper()
	r := s.laptop.must("join", link)
	s.writeConfig()
	return r
}

// writeConfig stores what ssh-config says in a file for ssh -F.
func (s *site) writeConfig() {
	t := s.laptop.t
	t.Helper()
	s.config = filepath.Join(s.laptop.home, "ssh_config")
	if err := os.WriteFile(s.config, []byte(s.laptop.must("ssh-config").stdout), 0o600); err != nil {
		t.Fatal(err)
	}
}

// ssh prepares the system's ssh with the written configuration: the machine's
// name is mini for its default service, mini.ssh for the built-in server.
func (s *site) ssh(ctx context.Context, args ...string) *exec.Cmd {
	s.laptop.t.Helper()
	return s.laptop.command(ctx, need(s.laptop.t, "ssh"), append([]string{"-F", s.config}, args...)...)
}

// sshRun runs the system's ssh to its end.
func (s *site) sshRun(args ...string) result {
	s.laptop.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return runCmd(s.laptop.t, s.ssh(ctx, args...))
}
