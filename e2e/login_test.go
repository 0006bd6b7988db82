package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Both services of a machine are held to the same: its own sshd (host mini) and
// the built-in server (host mini.ssh).
var hosts = []string{"mini", "mini.ssh"}

func TestLogin(t *testing.T) {
	t.Parallel()
	s := newSite(t, true)
	for _, host := range hosts {
		t.Run(host, func(t *testing.T) {
			if r := s.sshRun(host, "echo out; echo err >&2; exit 7"); r.code != 7 || r.stdout != "out\n" || !strings.Contains(r.stderr, "err\n") {
				t.Errorf("ssh %s: want exit code 7, out and err: %s", host, r)
			}
			if r := s.sshRun(host, "id -un"); strings.TrimSpace(r.stdout) != userName() {
				t.Errorf("ssh %s runs as %q, want %q: %s", host, strings.TrimSpace(r.stdout), userName(), r)
			}
			if r := s.sshRun(host, "kill -TERM $$"); r.code == 0 {
				t.Errorf("ssh %s: a command that a signal ended exits with 0", host)
			}
			// With a terminal: size, and a shell that takes what is typed.
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			cmd := s.ssh(ctx, "-tt", host)
			cmd.Stdin = strings.NewReader("test -t 0 && echo term''inal; echo $((6*7))x; exit 5\n")
			if r := runCmd(t, cmd); r.code != 5 || !strings.Contains(r.stdout, "terminal") || !strings.Contains(r.stdout, "42x") {
				t.Errorf("ssh -tt %s: %s", host, r)
			}
		})
	}
	t.Run("holdfast ssh", func(t *testing.T) {
		if r := s.laptop.holdfast("ssh", "mini", "echo hello; exit 9"); r.code != 9 || r.stdout != "hello\n" {
			t.Errorf("holdfast ssh: %s", r)
		}
		if r := s.laptop.holdfast("ssh", "nosuch", "true"); r.code == 0 || !strings.Contains(r.stderr, "nosuch") {
			t.Errorf("holdfast ssh to a machine that is not paired: %s", r)
		}
	})
}

// TestBuiltInServerAlone is a machine without any sshd.
func TestBuiltInServerAlone(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	if r := s.laptop.holdfast("ssh", "mini", "echo hello; exit 9"); r.code != 9 || r.stdout != "hello\n" {
		t.Errorf("holdfast ssh: %s", r)
	}
	if r := s.sshRun("mini", "echo hello"); r.code != 0 || r.stdout != "hello\n" {
		t.Errorf("ssh: %s", r)
	}
}

// TestPinnedKeyIsUsed reads from ssh -v which host key was compared with what.
func TestPinnedKeyIsUsed(t *testing.T) {
	t.Parallel()
	s := newSite(t, true)
	r := s.sshRun("-v", "mini", "true")
	if r.code != 0 {
		t.Fatalf("ssh -v: %s", r)
	}
	for _, want := range []string{
		s.sshd.hostKey,
		"mini.holdfast' is known and matches the ",
		filepath.Join(s.laptop.state, "known_hosts"),
		filepath.Join(s.laptop.state, "device_key"),
	} {
		if !strings.Contains(r.stderr, want) {
			t.Errorf("ssh -v does not say %q", want)
		}
	}
	if r := s.sshRun("-v", "mini.ssh", "true"); r.code != 0 || !strings.Contains(r.stderr, "mini.ssh.holdfast' is known and matches the ") {
		t.Errorf("ssh -v to the built-in server: %s", r)
	}
	if r := s.sshRun("-v", "mini.ssh", "true"); !strings.Contains(r.stderr, "kex: algorithm: mlkem768x25519-sha256") &&
		strings.Contains(s.sshRun("-Q", "kex").stdout, "mlkem768x25519-sha256") {
		t.Errorf("ssh knows mlkem768x25519-sha256 and the built-in server did not use it: %s", r)
	}
}

// blob writes size random bytes to a file and returns its path and hash.
func blob(t *testing.T, dir string, size int) (path, hash string) {
	t.Helper()
	path = filepath.Join(dir, fmt.Sprintf("blob-%d", size))
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sum := sha256.New()
	source := rand.NewChaCha8([32]byte{byte(size)})
	if _, err := io.Copy(io.MultiWriter(f, sum), io.LimitReader(source, int64(size))); err != nil {
		t.Fatal(err)
	}
	return path, hex.EncodeToString(sum.Sum(nil))
}

func hashOf(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// TestTransfers moves 100 MB each way through each service and compares hashes,
// then the same file with scp and sftp.
func TestTransfers(t *testing.T) {
	t.Parallel()
	const size = 100 << 20
	s := newSite(t, true)
	source, want := blob(t, s.laptop.home, size)
	for _, host := range hosts {
		t.Run(host, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			dir := t.TempDir()
			far := filepath.Join(dir, "far")

			up := s.ssh(ctx, host, "cat > '"+far+"'")
			in, err := os.Open(source)
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			up.Stdin = in
			if r := runCmd(t, up); r.code != 0 || hashOf(t, far) != want {
				t.Errorf("to the machine: hashes differ: %s", r)
			}

			down := s.ssh(ctx, host, "cat '"+source+"'")
			sum := sha256.New()
			down.Stdout = sum
			if r := runCmd(t, down); r.code != 0 || hex.EncodeToString(sum.Sum(nil)) != want {
				t.Errorf("from the machine: hashes differ: %s", r)
			}

			both := s.ssh(ctx, host, "cat")
			if _, err := in.Seek(0, io.SeekStart); err != nil {
				t.Fatal(err)
			}
			both.Stdin = in
			sum.Reset()
			both.Stdout = sum
			if r := runCmd(t, both); r.code != 0 || hex.EncodeToString(sum.Sum(nil)) != want {
				t.Errorf("both ways at once: hashes differ: %s", r)
			}

			scp := need(t, "scp")
			copied := filepath.Join(dir, "copied")
			if r := runCmd(t, s.laptop.command(ctx, scp, "-F", s.config, source, host+":"+copied)); r.code != 0 || hashOf(t, copied) != want {
				t.Errorf("scp to the machine: %s", r)
			}
			back := filepath.Join(dir, "back")
			if r := runCmd(t, s.laptop.command(ctx, scp, "-F", s.config, host+":"+copied, back)); r.code != 0 || hashOf(t, back) != want {
				t.Errorf("scp from the machine: %s", r)
			}

			sftp := s.laptop.command(ctx, need(t, "sftp"), "-F", s.config, "-b", "-", host)
			again := filepath.Join(dir, "again")
			sftp.Stdin = strings.NewReader(fmt.Sprintf("mkdir %[1]s/d\nput %[2]s %[1]s/d/x\nrename %[1]s/d/x %[1]s/d/y\nget %[1]s/d/y %[3]s\nchmod 600 %[1]s/d/y\nls -l %[1]s/d\nrm %[1]s/d/y\nrmdir %[1]s/d\n", dir, source, again))
			if r := runCmd(t, sftp); r.code != 0 || hashOf(t, again) != want || !strings.Contains(r.stdout, "-rw-------") {
				t.Errorf("sftp: %s", r)
			}
			if _, err := os.Stat(filepath.Join(dir, "d")); err == nil {
				t.Error("sftp left its directory behind")
			}
		})
	}
}

func TestFiftyConnectionsAtOnce(t *testing.T) {
	s := newSite(t, true)
	for i, host := range hosts {
		n := 50
		// Each is an ssh, a proxy and what the server starts: half a minute of two
		// processors for fifty.
		if i > 0 && os.Getenv("HOLDFAST_LONG") != "1" {
			n = 15
		}
		t.Run(host, func(t *testing.T) {
			var wg sync.WaitGroup
			for i := range n {
				// Each goroutine ends with its command, which has a time limit.
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(context.Background(), limit)
					defer cancel()
					cmd := s.ssh(ctx, host, fmt.Sprintf("cat; echo from %d", i))
					cmd.Stdin = strings.NewReader(strings.Repeat("x", 1000*i))
					want := strings.Repeat("x", 1000*i) + fmt.Sprintf("from %d\n", i)
					if r := runCmd(t, cmd); r.code != 0 || r.stdout != want {
						t.Errorf("connection %d: %s", i, r)
					}
				})
			}
			wg.Wait()
		})
	}
}

// prompt is how soon "at once" must be on a busy machine: five seconds of quiet
// after one side has ended are part of the protocol.
const prompt = 20 * time.Second

// TestEndsPromptly ends a connection from each side and wants everybody to
// notice: ssh, and the proxy that it runs.
func TestEndsPromptly(t *testing.T) {
	s := newSite(t, true)

	t.Run("command ends while the input stays open", func(t *testing.T) {
		for _, host := range hosts {
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			cmd := s.ssh(ctx, host, "echo done")
			in, hold := io.Pipe()
			defer hold.Close()
			cmd.Stdin = in
			cmd.WaitDelay = time.Second
			start := time.Now()
			var out bytes.Buffer
			cmd.Stdout = &out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			state, err := cmd.Process.Wait()
			in.Close()
			cmd.Wait()
			if err != nil || !state.Success() || out.String() != "done\n" {
				t.Errorf("ssh %s: %v, %q", host, state, out.String())
			}
			if took := time.Since(start); took > prompt {
				t.Errorf("ssh %s took %v to end", host, took)
			}
		}
	})

	t.Run("the machine's side is killed", func(t *testing.T) {
		// The shell's parent is the server's process for this connection.
		r := s.sshRun("mini", "kill -9 $PPID; sleep 60")
		if r.code == 0 || r.took > prompt {
			t.Errorf("ssh: %s", r)
		}
	})

	t.Run("ssh is killed and its proxy follows", func(t *testing.T) {
		marker := filepath.Join(t.TempDir(), "pid")
		// A proxy command that leaves its process id behind.
		config, err := os.ReadFile(s.config)
		if err != nil {
			t.Fatal(err)
		}
		noted := strings.ReplaceAll(string(config), "ProxyCommand ", `ProxyCommand /bin/sh -c 'echo $$ > "`+marker+`"; exec "$@"' sh `)
		path := filepath.Join(t.TempDir(), "config")
		if err := os.WriteFile(path, []byte(noted), 0o600); err != nil {
			t.Fatal(err)
		}
		p := startProcess(t, s.laptop.command(context.Background(), need(t, "ssh"), "-F", path, "mini", "echo ready; sleep 60"))
		select {
		case line := <-p.lines:
			if line != "ready" {
				t.Fatalf("ssh printed %q", line)
			}
		case <-time.After(limit):
			t.Fatalf("no answer: %s", p.output())
		}
		b, err := os.ReadFile(marker)
		if err != nil {
			t.Fatal(err)
		}
		pid := strings.TrimSpace(string(b))
		if !alive(pid) {
			t.Fatalf("process %s, the proxy, is not there", pid)
		}
		p.kill()
		eventually(t, prompt, "the proxy ends after ssh was killed", func() (bool, string) { return !alive(pid), "it runs" })
	})

	t.Run("proxy alone", func(t *testing.T) {
		cmd := s.laptop.command(context.Background(), binary, s.laptop.hf("proxy", "mini")...)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		p := startProcess(t, cmd)
		select {
		case line := <-p.lines:
			if !strings.HasPrefix(line, "SSH-2.0-") {
				t.Fatalf("proxy printed %q first", line)
			}
		case <-time.After(limit):
			t.Fatalf("no banner: %s", p.output())
		}
		in.Close()
		if code := p.exited(prompt); code != 0 {
			t.Errorf("proxy whose input ended exits with %d: %s", code, p.output())
		}
	})

	t.Run("proxy writes only stream bytes to its output", func(t *testing.T) {
		r := s.laptop.holdfast("proxy", "mini", "--service", "nosuch")
		if r.stdout != "" || r.code != 3 && r.code != 4 || strings.Count(strings.TrimSpace(r.stderr), "\n") != 0 || r.stderr == "" {
			t.Errorf("proxy to a service that is not there: want one line on stderr and exit code 3 or 4: %s", r)
		}
	})
}

// alive tells whether a process exists and is no zombie.
func alive(pid string) bool {
	b, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		if _, statErr := os.Stat("/proc/self"); statErr != nil {
			return pidExists(pid)
		}
		return false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z")
}

// pidExists is alive for systems without /proc.
func pidExists(pid string) bool {
	n, err := strconv.Atoi(pid)
	return err == nil && syscall.Kill(n, 0) == nil
}
