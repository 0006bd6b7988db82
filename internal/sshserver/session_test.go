package sshserver

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"
)

func TestExecStreamsAndStatus(t *testing.T) {
	m := newMachine(t, nil)
	c := m.pairedClient()
	out, errOut, err := m.run(c, "echo to-out; echo to-err >&2; exit 7")
	if out != "to-out\n" || errOut != "to-err\n" || exitStatus(t, err) != 7 {
		t.Errorf("got %q, %q, %v", out, errOut, err)
	}
	out, _, err = m.run(c, "pwd; echo $0; echo $HOME $USER $LOGNAME")
	want := fmt.Sprintf("%s\n%s\n%s %s %s\n", m.home, filepath.Base(m.account.Shell), m.home, m.User(), m.User())
	if err != nil || out != want {
		t.Errorf("got %q, %v, want %q", out, err, want)
	}
}

func TestExecOfAnEmptyCommand(t *testing.T) {
	m := newMachine(t, nil)
	if out, _, err := m.run(m.pairedClient(), ""); out != "" || err != nil {
		t.Errorf("got %q, %v, want nothing and no login shell", out, err)
	}
}

func TestExecReadsStdinToItsEnd(t *testing.T) {
	m := newMachine(t, nil)
	s := m.session(m.pairedClient())
	data := randomBytes(3 << 20)
	s.Stdin = bytes.NewReader(data)
	out, err := s.Output("sha256sum")
	must(t, err)
	if want := fmt.Sprintf("%x  -\n", sha256.Sum256(data)); string(out) != want {
		t.Errorf("hash is %q, want %q", out, want)
	}
}

func TestLargeOutput(t *testing.T) {
	m := newMachine(t, nil)
	s := m.session(m.pairedClient())
	out, err := s.StdoutPipe()
	must(t, err)
	must(t, s.Start("head -c 67108864 /dev/zero | tr '\\0' x"))
	h := sha256.New()
	n, err := io.Copy(h, out)
	must(t, err)
	must(t, s.Wait())
	want := sha256.New()
	for range 1024 {
		want.Write(bytes.Repeat([]byte("x"), 64<<10))
	}
	if n != 64<<20 || !bytes.Equal(h.Sum(nil), want.Sum(nil)) {
		t.Errorf("got %d bytes of another hash", n)
	}
}

func TestExitSignal(t *testing.T) {
	m := newMachine(t, nil)
	_, _, err := m.run(m.pairedClient(), "kill -TERM $$; sleep 60")
	var e *ssh.ExitError
	if !errors.As(err, &e) || e.Signal() != "TERM" {
		t.Errorf("error is %v, want the signal TERM", err)
	}
}

func TestSignalRequest(t *testing.T) {
	m := newMachine(t, nil)
	s := m.session(m.pairedClient())
	out, err := s.StdoutPipe()
	must(t, err)
	must(t, s.Start("trap 'echo caught; exit 3' USR1; echo ready; while :; do sleep 0.05; done"))
	readUntil(t, out, "ready\n")
	must(t, s.Signal(ssh.SIGUSR1))
	readUntil(t, out, "caught\n")
	if got := exitStatus(t, s.Wait()); got != 3 {
		t.Errorf("exit status is %d, want 3", got)
	}
}

func TestTheAgentsEnvironmentStaysWithTheAgent(t *testing.T) {
	m := newMachine(t, nil)
	out, _, err := m.run(m.pairedClient(), "env")
	must(t, err)
	if strings.Contains(out, "HOLDFAST") || strings.Contains(out, "hf_secret") {
		t.Errorf("the agent's environment got into a command: %s", out)
	}
	if !strings.Contains(out, "UTF-8") {
		t.Errorf("no UTF-8 locale in %s", out)
	}
	if strings.Contains(out, "MAIL=") || strings.Contains(out, "TERM=") {
		t.Errorf("MAIL, or TERM without a terminal, in %s", out)
	}
}

func TestEnvRequests(t *testing.T) {
	m := newMachine(t, nil)
	s := m.session(m.pairedClient())
	must(t, s.Setenv("LANG", "de_DE.UTF-8"))
	must(t, s.Setenv("LC_TIME", "C"))
	for _, name := range []string{"LD_PRELOAD", "PATH", "BASH_ENV", "LC_X=1", "HOME", ""} {
		if s.Setenv(name, "/tmp/evil") == nil {
			t.Errorf("%q was accepted", name)
		}
	}
	out, err := s.Output("echo $LANG $LC_TIME $LD_PRELOAD $BASH_ENV; env | grep -c evil")
	if got := string(out); got != "de_DE.UTF-8 C\n0\n" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestShellWithTerminal(t *testing.T) {
	m := newMachine(t, nil)
	s := m.session(m.pairedClient())
	must(t, s.RequestPty("xterm-256color", 31, 97, ssh.TerminalModes{ssh.ECHO: 0}))
	in, err := s.StdinPipe()
	must(t, err)
	out, err := s.StdoutPipe()
	must(t, err)
	must(t, s.Shell())
	say := func(line string) {
		t.Helper()
		_, err := io.WriteString(in, line+"\n")
		must(t, err)
	}
	say("PS1=; echo size $(stty size) $TERM $0 end; test -t 0 && echo is-tty; pwd")
	readUntil(t, out, "size 31 97 xterm-256color -"+filepath.Base(m.account.Shell)+" end\r\n")
	readUntil(t, out, "is-tty\r\n"+m.home)

	must(t, s.WindowChange(40, 120))
	say("stty size")
	readUntil(t, out, "40 120\r\n")

	// Ctrl-C reaches what runs in the foreground.
	say("sh -c 'echo started; exec sleep 1000'")
	readUntil(t, out, "started\r\n")
	_, err = in.Write([]byte{3})
	must(t, err)
	say("echo back; exit 5")
	readUntil(t, out, "back\r\n")
	if got := exitStatus(t, s.Wait()); got != 5 {
		t.Errorf("exit status is %d, want 5", got)
	}
}

func TestTerminalModes(t *testing.T) {
	m := newMachine(t, nil)
	s := m.session(m.pairedClient())
	must(t, s.RequestPty("xterm", 24, 80, ssh.TerminalModes{ssh.ECHO: 0, ssh.ONLCR: 0, ssh.VINTR: 24, ssh.VQUIT: 255, ssh.TTY_OP_OSPEED: 9600}))
	out, err := s.Output("stty -a")
	must(t, err)
	for _, want := range []string{" -echo ", "-onlcr", "intr = ^X", "quit = <undef>", "iutf8"} {
		if !strings.Contains(" "+string(out), want) || strings.Contains(string(out), "-iutf8") {
			t.Errorf("stty -a lacks %q: %s", want, out)
		}
	}
}

func TestOutputBeforeExitOfTerminalIsNotLost(t *testing.T) {
	m := newMachine(t, nil)
	c := m.pairedClient()
	for range 20 {
		s := m.session(c)
		must(t, s.RequestPty("xterm", 24, 80, ssh.TerminalModes{}))
		out, err := s.Output("seq 1 5000; exit 0")
		must(t, err)
		if !strings.HasSuffix(string(out), "\r\n5000\r\n") {
			t.Fatalf("output ends in %q", out[max(0, len(out)-40):])
		}
	}
}

func TestABackgroundJobDoesNotHoldTheTerminal(t *testing.T) {
	m := newMachine(t, nil)
	s := m.session(m.pairedClient())
	must(t, s.RequestPty("xterm", 24, 80, ssh.TerminalModes{}))
	began := time.Now()
	out, err := s.Output("trap '' HUP; sleep 30 & echo $!")
	must(t, err)
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("the session ended after %v", took)
	}
	killPrinted(t, string(out))
}

func killPrinted(t *testing.T, out string) {
	t.Helper()
	pid, err := strconv.Atoi(strings.TrimSpace(out))
	must(t, err)
	must(t, syscall.Kill(pid, syscall.SIGKILL))
}

func alive(pid int) bool {
	if err := syscall.Kill(pid, 0); err != nil {
		return false
	}
	// A zombie that nobody has collected yet is not running any more.
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || !strings.Contains(string(stat), ") Z ")
}

// startPrinting starts a command that prints process ids, n of them.
func startPrinting(t *testing.T, s *ssh.Session, line string, n int) []int {
	t.Helper()
	out, err := s.StdoutPipe()
	must(t, err)
	must(t, s.Start(line))
	var pids []int
	for range n {
		pid, err := strconv.Atoi(strings.TrimSpace(readUntil(t, out, "\n")))
		must(t, err)
		pids = append(pids, pid)
	}
	return pids
}

func TestNothingOutlivesTheConnection(t *testing.T) {
	tests := []struct {
		name string
		tty  bool
		line string
		n    int
	}{
		{"a command", false, "echo $$; exec sleep 1000", 1},
		{"children of it", false, "sleep 1000 & echo $!; sleep 1000 & echo $!; echo $$; wait", 3},
		{"one that ignores HUP", false, "trap '' HUP; sleep 1000 & echo $!; echo $$; while :; do sleep 1; done", 2},
		{"a stopped one", false, "sleep 1000 & echo $!; kill -STOP $!; echo $$; wait", 2},
		{"in a terminal", true, "sleep 1000 & echo $!; echo $$; wait", 2},
		{"in a terminal, in the foreground, ignoring HUP", true, "set -m; sh -c 'trap \"\" HUP; echo $$; while :; do sleep 1; done'", 1},
		{"a command whose output is held", false, "sleep 1000 & echo $!", 1},
	}
	for _, tt := range tests {
		for _, how := range []string{"channel", "connection"} {
			t.Run(tt.name+" by "+how, func(t *testing.T) {
				t.Parallel()
				m := newMachine(t, nil)
				c := m.pairedClient()
				s := m.session(c)
				if tt.tty {
					must(t, s.RequestPty("xterm", 24, 80, ssh.TerminalModes{}))
				}
				pids := startPrinting(t, s, tt.line, tt.n)
				if how == "channel" {
					s.Close()
				} else {
					c.Close()
				}
				for _, pid := range pids {
					eventually(t, fmt.Sprintf("process %d is gone", pid), func() bool { return !alive(pid) })
				}
			})
		}
	}
}

func TestWhatANormalEndLeavesBehindStays(t *testing.T) {
	m := newMachine(t, nil)
	c := m.pairedClient()
	out, _, err := m.run(c, "nohup sleep 300 >/dev/null 2>&1 </dev/null & echo $!")
	must(t, err)
	c.Close()
	c.Wait()
	m.Close()
	pid, err := strconv.Atoi(strings.TrimSpace(out))
	must(t, err)
	if !alive(pid) {
		t.Error("a job that was left for later was killed")
	}
	killPrinted(t, out)
}

func TestMovedAwayHome(t *testing.T) {
	m := newMachine(t, nil)
	must(t, os.Remove(m.home))
	out, _, err := m.run(m.pairedClient(), "pwd")
	must(t, err)
	if out != "/\n" {
		t.Errorf("started in %q, want /", out)
	}
	must(t, os.Mkdir(m.home, 0o700))
}

func TestSFTP(t *testing.T) {
	m := newMachine(t, nil)
	c, err := sftp.NewClient(m.pairedClient())
	must(t, err)
	defer c.Close()
	if wd, err := c.Getwd(); err != nil || wd != m.home {
		t.Errorf("starts in %q, %v, want %q", wd, err, m.home)
	}
	data := randomBytes(2 << 20)
	f, err := c.Create("sub file ä")
	must(t, err)
	_, err = f.ReadFrom(bytes.NewReader(data))
	must(t, err)
	must(t, f.Close())
	if got, err := os.ReadFile(filepath.Join(m.home, "sub file ä")); err != nil || !bytes.Equal(got, data) {
		t.Errorf("stored %d bytes, %v", len(got), err)
	}
	f, err = c.Open("sub file ä")
	must(t, err)
	got, err := io.ReadAll(f)
	must(t, err)
	must(t, f.Close())
	if !bytes.Equal(got, data) {
		t.Error("read back other bytes")
	}
}

func TestSFTPThatHangsDoesNotHoldTheServer(t *testing.T) {
	m := newMachine(t, nil)
	fifo := filepath.Join(m.home, "pipe")
	must(t, syscall.Mkfifo(fifo, 0o600))
	client := m.pairedClient()
	c, err := sftp.NewClient(client)
	must(t, err)
	opened := make(chan struct{})
	go func() { // ends with the connection
		c.Open("pipe")
		close(opened)
	}()
	_, err = c.Stat("pipe") // another operation goes on meanwhile
	must(t, err)
	began := time.Now()
	client.Close()
	m.Close()
	if took := time.Since(began); took > sftpGrace+15*time.Second {
		t.Errorf("Close took %v", took)
	}
	<-opened
	c.Close()
	// Let go of what was left behind, if it got as far as opening.
	if f, err := os.OpenFile(fifo, os.O_WRONLY|syscall.O_NONBLOCK, 0); err == nil {
		f.Close()
	}
}

func TestFurtherSubsystem(t *testing.T) {
	ended := make(chan struct{})
	m := newMachine(t, func(o *Options) {
		o.Subsystems = map[string]Subsystem{"sessions": func(ctx context.Context, rw io.ReadWriteCloser, d Device) {
			fmt.Fprintf(rw, "hello %s\n", d.Name)
			io.Copy(rw, rw)
			close(ended)
		}}
	})
	s := m.session(m.pairedClient())
	in, err := s.StdinPipe()
	must(t, err)
	out, err := s.StdoutPipe()
	must(t, err)
	must(t, s.RequestSubsystem("sessions"))
	readUntil(t, out, "hello laptop\n")
	io.WriteString(in, "echo")
	readUntil(t, out, "echo")
	s.Close()
	<-ended
}

func TestShellOffLeavesSubsystemsOnly(t *testing.T) {
	m := newMachine(t, func(o *Options) {
		o.ShellOff = true
		o.Subsystems = map[string]Subsystem{"sessions": func(_ context.Context, rw io.ReadWriteCloser, _ Device) {
			io.WriteString(rw, "here")
		}}
	})
	c := m.pairedClient()
	refusesAllButSubsystems(t, m, c)
	s := m.session(c)
	out, err := s.StdoutPipe()
	must(t, err)
	must(t, s.RequestSubsystem("sessions"))
	if got, err := io.ReadAll(out); string(got) != "here" || err != nil {
		t.Errorf("subsystem said %q, %v", got, err)
	}
}

// refusesAllButSubsystems tries every way to run something.
func refusesAllButSubsystems(t *testing.T, m *machine, c *ssh.Client) {
	t.Helper()
	try := func(what string, f func(s *ssh.Session) error) {
		t.Helper()
		s, err := c.NewSession()
		must(t, err)
		defer s.Close()
		if f(s) == nil {
			t.Errorf("%s was allowed", what)
		}
	}
	marker := filepath.Join(m.home, "marker")
	try("exec", func(s *ssh.Session) error { return s.Run("touch " + marker) })
	try("shell", func(s *ssh.Session) error { return s.Shell() })
	try("pty-req", func(s *ssh.Session) error { return s.RequestPty("xterm", 24, 80, nil) })
	try("env", func(s *ssh.Session) error { return s.Setenv("LANG", "C") })
	try("sftp", func(s *ssh.Session) error { return s.RequestSubsystem("sftp") })
	if _, err := c.Dial("tcp", m.addr); err == nil {
		t.Error("port forwarding was allowed")
	}
	if _, err := os.Lstat(marker); err == nil {
		t.Error("a command was run")
	}
}

func TestASessionStartsOneThing(t *testing.T) {
	m := newMachine(t, nil)
	c := m.pairedClient()
	ch, reqs, err := c.OpenChannel("session", nil)
	must(t, err)
	defer ch.Close()
	go ssh.DiscardRequests(reqs) // ends with the channel
	request := func(typ string, payload any) bool {
		t.Helper()
		ok, err := ch.SendRequest(typ, true, ssh.Marshal(payload))
		must(t, err)
		return ok
	}
	type line struct{ S string }
	if request("window-change", struct{ A, B, C, D uint32 }{80, 24, 0, 0}) || request("signal", line{"TERM"}) {
		t.Error("something was done to a command that does not run")
	}
	if request("exec", line{"bad\x00command"}) || request("exec", struct{ N uint32 }{9}) {
		t.Error("a malformed command was run")
	}
	if !request("exec", line{"sleep 1000"}) {
		t.Fatal("exec was refused")
	}
	for _, r := range []string{"exec", "subsystem", "shell"} {
		if request(r, line{"sftp"}) {
			t.Errorf("%s was accepted a second time", r)
		}
	}
	for _, r := range []string{"x11-req", "auth-agent-req@openssh.com", "break", "nonsense"} {
		if request(r, line{""}) {
			t.Errorf("%s was accepted", r)
		}
	}
	if request("signal", line{"NOSUCH"}) || !request("signal", line{"TERM"}) {
		t.Error("signal: an unknown name was accepted, or TERM was not")
	}
}
