package shell

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/creack/pty"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func account(t *testing.T) Account {
	t.Helper()
	a, err := Current(t.TempDir(), []string{"PATH=" + os.Getenv("PATH")})
	must(t, err)
	a.Shell = "/bin/sh"
	return a
}

func TestCurrentPicksTheShell(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "myshell")
	must(t, os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755))
	plain := filepath.Join(dir, "plain")
	must(t, os.WriteFile(plain, nil, 0o644))
	old := passwd
	defer func() { passwd = old }()
	uid := os.Getuid()
	tests := []struct{ file, env, want string }{
		{fmt.Sprintf("other:x:%d:0::/:/bin/false\nme:x:%d:0:Me,,,:/home/me:%s\n", uid+1, uid, script), "", script},
		{fmt.Sprintf("me:x:%d:0::/home/me:%s\n", uid, plain), script, script}, // cannot be run
		{fmt.Sprintf("me:x:%d:0::/home/me:/nonexistent\n", uid), "relative/sh", fallbackShell},
		{fmt.Sprintf("#me:x:%d:0::/home/me:%s\nme:%d:too:few\n", uid, plain, uid), "", ""},
	}
	for i, tt := range tests {
		passwd = filepath.Join(dir, fmt.Sprint("passwd", i))
		must(t, os.WriteFile(passwd, []byte(tt.file), 0o644))
		a, err := Current("", []string{"SHELL=" + tt.env})
		must(t, err)
		if tt.want == "" { // asked the directory service
			if !runnable(a.Shell) {
				t.Errorf("%d: shell is %q", i, a.Shell)
			}
		} else if a.Shell != tt.want {
			t.Errorf("%d: shell is %q, want %q", i, a.Shell, tt.want)
		}
	}
	if _, err := Current("relative", nil); err == nil {
		t.Error("a relative home is no error")
	}
}

func TestEnvironment(t *testing.T) {
	utf8 := "LANG=C.UTF-8"
	if runtime.GOOS == "darwin" {
		utf8 = "LC_CTYPE=UTF-8"
	}
	tests := []struct {
		name             string
		agent, requested []string
		has, lacks       []string
	}{
		{"nothing", nil, nil, []string{utf8, "PATH=" + fallbackPath, "TERM=xterm", "HOME=/h", "USER=u", "LOGNAME=u", "SHELL=/bin/sh"}, nil},
		{"agent's language", []string{"LANG=fr_FR.UTF-8"}, nil, []string{"LANG=fr_FR.UTF-8"}, []string{utf8}},
		{"device's language wins", []string{"LANG=fr_FR.UTF-8"}, []string{"LANG=ja_JP.UTF-8"}, []string{"LANG=ja_JP.UTF-8"}, []string{"LANG=fr_FR.UTF-8"}},
		{"chosen C stays", nil, []string{"LC_ALL=C"}, []string{"LC_ALL=C"}, []string{utf8}},
		{"empty is filled", nil, []string{"LANG=", "LC_ALL="}, []string{utf8}, []string{"LC_ALL="}},
		{"secrets and loaders stay out", []string{"HOLDFAST_TOKEN=x", "LD_PRELOAD=x", "SSH_AUTH_SOCK=x", "TMUX=x", "BASH_ENV=x"}, nil, nil,
			[]string{"HOLDFAST_TOKEN=x", "LD_PRELOAD=x", "SSH_AUTH_SOCK=x", "TMUX=x", "BASH_ENV=x"}},
		{"where services are", []string{"XDG_RUNTIME_DIR=/run/user/1", "TMUX_TMPDIR=/t", "TZ=UTC", "PATH=/p"}, nil,
			[]string{"XDG_RUNTIME_DIR=/run/user/1", "TMUX_TMPDIR=/t", "TZ=UTC", "PATH=/p"}, nil},
	}
	for _, tt := range tests {
		a, err := Current("/h", tt.agent)
		must(t, err)
		a.Name, a.Shell = "u", "/bin/sh"
		env := a.environ(tt.requested, "xterm")
		for _, want := range tt.has {
			if !slices.Contains(env, want) {
				t.Errorf("%s: %v lacks %s", tt.name, env, want)
			}
		}
		for _, not := range tt.lacks {
			if slices.Contains(env, not) {
				t.Errorf("%s: %v has %s", tt.name, env, not)
			}
		}
	}
	a, err := Current("/h", nil)
	must(t, err)
	if env := strings.Join(a.environ(nil, ""), "\n"); strings.Contains(env, "TERM=") {
		t.Error("TERM without a terminal")
	}
}

func TestAcceptEnv(t *testing.T) {
	for v, want := range map[[2]string]bool{
		{"LANG", "C"}: true, {"LC_ALL", "de_DE.UTF-8"}: true, {"LC_IDENTIFICATION", ""}: true,
		{"PATH", "/evil"}: false, {"LD_PRELOAD", "x"}: false, {"LANGUAGE", "de"}: false, {"", ""}: false,
		{"LC_X=Y", "z"}: false, {"LANG", "a\x00b"}: false, {"LANG", "a\nb"}: false,
		{"LC_" + strings.Repeat("X", 100), "C"}: false, {"LANG", strings.Repeat("x", 1000)}: false,
	} {
		if got := AcceptEnv(v[0], v[1]); got != want {
			t.Errorf("%q: %v, want %v", v, got, want)
		}
	}
}

func TestProcess(t *testing.T) {
	p, err := Start(account(t), Command{Line: "cat; echo err >&2; exit 4"})
	must(t, err)
	go func() { // ends with the write
		io.WriteString(p.Stdin, "through")
		p.Stdin.Close()
	}()
	out, err := io.ReadAll(p.Stdout)
	must(t, err)
	errOut, err := io.ReadAll(p.Stderr)
	must(t, err)
	<-p.Exited()
	if string(out) != "through" || string(errOut) != "err\n" || p.Exit() != (Exit{Code: 4}) {
		t.Errorf("got %q, %q, %+v", out, errOut, p.Exit())
	}
	if p.Signal("TERM") || p.Signal("NOSUCH") {
		t.Error("something that ended was signalled")
	}
	must(t, p.Resize(Size{1, 1, 1, 1})) // without a terminal, nothing
	p.Release()
	p.Close()
}

func TestExitBySignal(t *testing.T) {
	for line, want := range map[string]string{"kill -INT $$": "INT", "kill -KILL $$": "KILL", "kill -STKFLT $$ 2>/dev/null || kill -XCPU $$": ""} {
		p, err := Start(account(t), Command{Line: line})
		must(t, err)
		<-p.Exited()
		got := p.Exit()
		if want != "" && got.Signal != want || want == "" && !strings.HasSuffix(got.Signal, "@openssh.com") {
			t.Errorf("%s: %+v", line, got)
		}
		p.Close()
	}
}

// A real-time signal has no name, and any command may end by one.
func TestExitBySignalWithoutName(t *testing.T) {
	for s, want := range map[syscall.Signal]string{40: "40@openssh.com", unix.SIGXCPU: "XCPU@openssh.com"} {
		if got := signalName(s); got != want {
			t.Errorf("signal %d: %q, want %q", int(s), got, want)
		}
	}
}

func TestAShellThatCannotBeRun(t *testing.T) {
	a := account(t)
	a.Shell = "/nonexistent/sh"
	before := openFiles(t)
	for _, tty := range []*TTY{nil, {Term: "xterm"}} {
		if _, err := Start(a, Command{Login: true, TTY: tty}); err == nil {
			t.Error("no error")
		}
	}
	if after := openFiles(t); after > before {
		t.Errorf("%d files stayed open", after-before)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	runtime.GC()
	entries, err := os.ReadDir("/dev/fd")
	must(t, err)
	return len(entries)
}

func TestNoFileStaysOpen(t *testing.T) {
	a := account(t)
	run := func(tty *TTY) {
		p, err := Start(a, Command{Line: "true", TTY: tty})
		must(t, err)
		io.Copy(io.Discard, p.Stdout)
		<-p.Exited()
		p.Release()
	}
	run(nil)
	run(&TTY{})
	before := openFiles(t)
	for range 10 {
		run(nil)
		run(&TTY{})
	}
	if after := openFiles(t); after > before {
		t.Errorf("%d files stayed open", after-before)
	}
}

func TestSizes(t *testing.T) {
	for _, tt := range []struct {
		size Size
		want string
	}{{Size{Cols: 100, Rows: 30}, "30 100"}, {Size{}, "24 80"}, {Size{Cols: 1 << 31, Rows: 70_000}, "65535 65535"}} {
		p, err := Start(account(t), Command{Line: "stty size", TTY: &TTY{Size: tt.size}})
		must(t, err)
		out, err := io.ReadAll(p.Stdout)
		must(t, err)
		if got := strings.TrimSpace(string(out)); got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.size, got, tt.want)
		}
		<-p.Exited()
		p.Release()
	}
}

func TestModesAreReadSafely(t *testing.T) {
	var start unix.Termios
	start.Lflag = unix.ECHO | unix.ICANON
	for name, tt := range map[string]struct {
		modes []byte
		echo  bool
	}{
		"none":            {nil, true},
		"echo off":        {[]byte{53, 0, 0, 0, 0, 0}, false},
		"end before it":   {[]byte{0, 53, 0, 0, 0, 0}, true},
		"cut off":         {[]byte{53, 0, 0}, true},
		"unknown first":   {[]byte{99, 0, 0, 0, 1, 53, 0, 0, 0, 0}, false},
		"unparsed before": {[]byte{160, 53, 0, 0, 0, 0}, true},
		"endless":         {bytes.Repeat([]byte{99, 0, 0, 0, 1}, 100_000), true},
	} {
		got := start
		applyModes(&got, tt.modes)
		if echo := got.Lflag&unix.ECHO != 0; echo != tt.echo {
			t.Errorf("%s: echo is %v", name, echo)
		}
	}
	got := start
	applyModes(&got, []byte{1, 0, 0, 0, 24, 5, 0, 0, 0, 255, 36, 0, 0, 0, 9})
	if got.Cc[unix.VINTR] != 24 || got.Cc[unix.VEOF] != disabledCc || got.Iflag&unix.ICRNL == 0 {
		t.Errorf("got %+v", got)
	}
}

func FuzzModes(f *testing.F) {
	f.Add([]byte{53, 0, 0, 0, 0, 1, 0, 0, 0, 3, 0})
	f.Fuzz(func(t *testing.T, modes []byte) {
		var termios unix.Termios
		applyModes(&termios, modes)
		if termios.Ispeed != 0 || termios.Ospeed != 0 || termios.Cflag&unix.CSIZE != 0 {
			t.Errorf("speed or character size were changed: %+v", termios)
		}
	})
}

// TestCommandsHearWhatTheAgentIgnores runs itself the way `nohup holdfast up &`
// in a script would: INT and HUP are ignored from the start.
func TestCommandsHearWhatTheAgentIgnores(t *testing.T) {
	if os.Getenv("HOLDFAST_TEST_DEAF") == "1" {
		for _, s := range []string{"INT", "HUP"} {
			p, err := Start(account(t), Command{Line: "exec sleep 60"})
			must(t, err)
			eventually(t, func() bool {
				cmd, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.cmd.Process.Pid))
				return runtime.GOOS != "linux" || strings.HasPrefix(string(cmd), "sleep")
			})
			if !p.Signal(s) {
				t.Error("could not be signalled")
			}
			select {
			case <-p.Exited():
				if p.Exit().Signal != s {
					t.Errorf("ended with %+v, want %s", p.Exit(), s)
				}
			case <-time.After(60 * time.Second):
				t.Errorf("a command does not hear %s", s)
			}
			p.Close()
		}
		return
	}
	cmd := exec.Command("/bin/sh", "-c", `trap "" INT HUP; exec "$0" -test.run='^TestCommandsHearWhatTheAgentIgnores$'`, os.Args[0])
	cmd.Env = append(os.Environ(), "HOLDFAST_TEST_DEAF=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not within 20 s")
		}
	}
}

func TestCloseWaitsForTheGroup(t *testing.T) {
	p, err := Start(account(t), Command{Line: "trap '' HUP; sleep 1000 & echo started; wait; sleep 1000"})
	must(t, err)
	b := make([]byte, 8)
	_, err = io.ReadFull(p.Stdout, b)
	must(t, err)
	began := time.Now()
	p.Close()
	if took := time.Since(began); took < killGrace || took > killGrace+10*time.Second {
		t.Errorf("Close took %v, want the grace of %v", took, killGrace)
	}
	eventually(t, func() bool { return syscall.Kill(-p.cmd.Process.Pid, 0) == syscall.ESRCH })
}

// What a program prints is handed on in pieces larger than a terminal's own
// reads, and whole; a few bytes wait for nothing that follows them.
func TestFloodIsGathered(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("terminals of other systems know no deadlines")
	}
	// 4,095 at a time would be 98. A machine that is busy with other things gives
	// the writer no time now and then, for longer than it is waited for.
	const enough = 70
	fewest := math.MaxInt
	for try := 0; try < 10 && fewest > enough; try++ {
		fewest = min(fewest, readFlood(t))
	}
	if fewest > enough {
		t.Errorf("%d reads", fewest)
	}
}

// readFlood reads 400 KB that a command writes to its terminal and reports in
// how many reads.
func readFlood(t *testing.T) (reads int) {
	const want = 400_000
	p, err := Start(account(t), Command{TTY: &TTY{Size: Size{Cols: 80, Rows: 24}}, Line: fmt.Sprintf("stty -opost; head -c %d /dev/zero | tr '\\0' x", want)})
	must(t, err)
	defer p.Close()
	b := make([]byte, 32<<10)
	total := 0
	for {
		n, err := p.Stdout.Read(b)
		if strings.Trim(string(b[:n]), "x") != "" {
			t.Fatalf("read %q", b[:n])
		}
		if n > gathered {
			t.Fatalf("%d bytes at once, of at most %d", n, gathered)
		}
		total += n
		reads++
		if err != nil {
			break
		}
	}
	if total != want {
		t.Errorf("%d bytes of %d", total, want)
	}
	return reads
}

// slowTerminal gives one piece a read and then nothing until its deadline.
type slowTerminal struct {
	pieces [][]byte
	asked  int           // deadlines that were set
	wait   time.Duration // to the last of them
}

func (s *slowTerminal) Read(b []byte) (int, error) {
	if len(s.pieces) == 0 {
		return 0, os.ErrDeadlineExceeded
	}
	n := copy(b, s.pieces[0])
	s.pieces = s.pieces[1:]
	return n, nil
}

func (s *slowTerminal) SetReadDeadline(at time.Time) error {
	if !at.IsZero() {
		s.asked++
		s.wait = time.Until(at)
	}
	return nil
}

func TestAnEchoIsNotGathered(t *testing.T) {
	term := &slowTerminal{pieces: [][]byte{[]byte("x"), bytes.Repeat([]byte("y"), 4095), bytes.Repeat([]byte("z"), 4095), []byte("end")}}
	o := &outputMeter{r: term}
	b := make([]byte, 32<<10)
	if n, err := o.Read(b); n != 1 || err != nil || term.asked != 0 {
		t.Errorf("an echo: %d bytes, %v, waited %d times", n, err, term.asked)
	}
	if n, err := o.Read(b); n != 2*4095+3 || err != nil || term.asked != 1 {
		t.Errorf("a flood: %d bytes, %v, waited %d times", n, err, term.asked)
	}
}

// In a flood more is waited for, until it is over.
func TestALongFloodIsGatheredLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		term := &slowTerminal{}
		o := &outputMeter{r: term}
		b := make([]byte, 32<<10)
		read := func(piece int) time.Duration {
			term.pieces = [][]byte{make([]byte, piece)}
			o.Read(b)
			return term.wait
		}
		const piece = 12 << 10
		for came := 0; came < flood; came += piece {
			if wait := read(piece); wait != gather {
				t.Fatalf("after %d bytes: %v", came, wait)
			}
		}
		for range 3 { // also in the span after it
			if wait := read(piece); wait != gatherFlood {
				t.Errorf("in a flood: %v", wait)
			}
			time.Sleep(floodSpan / 2)
		}
		time.Sleep(2 * floodSpan)
		if wait := read(piece); wait != gather {
			t.Errorf("after it: %v", wait)
		}
		// A program that redraws its screen of 10 KB thirty times a second is none.
		for range 100 {
			if wait := read(3 << 10); wait != gather {
				t.Fatalf("redrawing: %v", wait)
			}
			time.Sleep(floodSpan / 10)
		}
	})
}

// What a shell wrote last is read although the reader had waited for long when
// the shell ended, and has not got to run since.
func TestLastOutputIsAwaited(t *testing.T) {
	exited := time.Now()
	o := &outputMeter{waiting: exited.Add(-time.Hour)}
	if o.quiet(exited) {
		t.Error("quiet at the very moment of the end")
	}
	if !o.quiet(exited.Add(-quietAfterExit)) {
		t.Error("not quiet although nothing came since the end")
	}
	if o.waiting = time.Now(); o.quiet(exited.Add(-quietAfterExit)) {
		t.Error("quiet although something was just read")
	}
	if o.waiting = (time.Time{}); o.quiet(exited.Add(-time.Hour)) {
		t.Error("quiet although nobody reads")
	}

	master, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	defer tty.Close()
	if readable(master) {
		t.Error("a new terminal has something to read")
	}
	if _, err := tty.WriteString("last"); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(60 * time.Second); !readable(master); {
		if time.Now().After(end) {
			t.Fatal("what was written is not there")
		}
	}
	if _, err := master.Read(make([]byte, 10)); err != nil || readable(master) {
		t.Error("something is left after it was read", err)
	}
	tty.Close()
	if readable(master) {
		t.Error("a terminal that ended has something to read")
	}
}
