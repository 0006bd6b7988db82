package tmux

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast/internal/session/proc"
)

// childEnv makes this test binary a process that asks the server at the socket
// that it names, until it is killed.
const childEnv = "HOLDFAST_TEST_ASKS"

func TestMain(m *testing.M) {
	if socket := os.Getenv(childEnv); socket != "" {
		asks(socket)
		return
	}
	goleak.VerifyTestMain(m)
}

// asks does what an agent does, all at once. It ends only when it is killed.
func asks(socket string) {
	ctx := context.Background()
	server := func() *Server {
		s, err := New(Options{Socket: socket})
		if err != nil {
			panic(err)
		}
		if _, err := s.Identify(ctx); err != nil {
			panic(err)
		}
		return s
	}
	// What follows answers its own commands; the other has a process for each.
	s, other := server(), server()
	for _, do := range []func(){
		func() { s.Follow(ctx, FollowOptions{Session: "$0"}) },
		func() { other.List(ctx) },
		func() { other.ListEvery(ctx, func(Listing) {}) },
		func() { other.Paste(ctx, "%0", []byte("x")) },
		func() { other.Capture(ctx, "%0", CaptureOptions{}) },
	} {
		// Ends with the process.
		go func() {
			for {
				do()
			}
		}()
	}
	select {}
}

// childrenOf are the processes that one has started: others may watch the same
// server.
func childrenOf(parent int) (pids []int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		b, _ := os.ReadFile(filepath.Join(d, "stat")) // one that is gone has none
		_, rest, _ := strings.Cut(string(b), ") ")
		if f := strings.Fields(rest); len(f) > 1 && f[1] == strconv.Itoa(parent) {
			pid, _ := strconv.Atoi(filepath.Base(d))
			pids = append(pids, pid)
		}
	}
	return pids
}

func TestNothingIsLeftOfAProcessThatWasKilledWhileItsServerHung(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("elsewhere what is left is ended at the next start")
	}
	s := testServer(t, "", "one")
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childEnv+"="+s.Socket())
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }() // ends with the child, which the test kills
	eventually(t, "its client", func() bool {
		return strings.Contains(tm(t, s, "list-clients", "-F", "#{client_pid}"), strconv.Itoa(child.Process.Pid))
	})
	if err := syscall.Kill(s.Info().PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var started []int
	eventually(t, "commands that wait", func() bool { started = childrenOf(child.Process.Pid); return len(started) >= 3 })
	child.Process.Kill()
	<-ended
	killed := time.Now()
	eventually(t, "what it started to end", func() bool {
		return !slices.ContainsFunc(started, proc.Running)
	})
	if took := time.Since(killed); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	syscall.Kill(s.Info().PID, syscall.SIGCONT)
	eventually(t, "the client to go", func() bool {
		return !strings.Contains(tm(t, s, "list-clients", "-F", "#{client_pid}"), strconv.Itoa(child.Process.Pid))
	})
}

// needTmux ends a test where tmux is missing: a bare go test may, a full run
// may not.
func needTmux(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil {
		if os.Getenv("HOLDFAST_TEST_ALL") == "1" {
			t.Fatalf("tmux is needed: %v", err)
		}
		t.Skip("tmux is not installed")
	}
}

// testServer starts a tmux server of its own with one session and ends it with
// the test.
func testServer(t testing.TB, socket, name string, command ...string) *Server {
	t.Helper()
	needTmux(t)
	if socket == "" {
		dir, err := os.MkdirTemp("", "hf")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		socket = filepath.Join(dir, "s")
	}
	if len(command) == 0 {
		command = []string{"cat"}
	}
	args := append([]string{"-u", "-S", socket, "-f", os.DevNull, "new-session", "-d", "-x", "100", "-y", "30", "-s", name, "--"}, command...)
	if out, err := exec.Command("tmux", args...).CombinedOutput(); err != nil {
		t.Fatalf("start tmux: %v: %s", err, out)
	}
	s, err := New(Options{Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	info, err := s.Identify(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		syscall.Kill(info.PID, syscall.SIGCONT)
		syscall.Kill(info.PID, syscall.SIGTERM)
		eventually(t, "the server to end", func() bool { return !proc.Running(info.PID) })
	})
	return s
}

func tm(t testing.TB, s *Server, args ...string) string {
	t.Helper()
	out, err := exec.Command("tmux", append([]string{"-u", "-S", s.Socket()}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("tmux %v: %v: %s", args, err, out)
	}
	return strings.TrimSuffix(string(out), "\n")
}

// patience is for what other processes do on a loaded machine.
const patience = 60 * time.Second

// eventually waits for what other processes do.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("waited %v for %s", patience, what)
}

// ourClients are the clients of a server that this process started: somebody
// else may watch it too.
func ourClients(t testing.TB, list string) (pids []string) {
	t.Helper()
	for pid := range strings.FieldsSeq(list) {
		out, _ := exec.Command("ps", "-o", "ppid=", "-p", pid).Output()
		if us := strconv.Itoa(os.Getpid()); pid == us || strings.TrimSpace(string(out)) == us {
			pids = append(pids, pid)
		}
	}
	return pids
}

func only(t *testing.T, s *Server) Pane {
	t.Helper()
	l, err := s.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Panes) != 1 {
		t.Fatalf("%d panes, want 1: %+v", len(l.Panes), l.Panes)
	}
	return l.Panes[0]
}

func text(t *testing.T, s *Server, pane string) string {
	t.Helper()
	screen, err := s.Capture(t.Context(), pane, CaptureOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimRight(strings.Join(screen.Lines, "\n"), "\n")
}

// recorder gathers what Follow reports.
type recorder struct {
	mu      sync.Mutex
	bytes   map[string]string
	changes []string
	lost    int
	pid     int
}

func (r *recorder) options(session string) FollowOptions {
	r.bytes = map[string]string{}
	return FollowOptions{
		Session: session,
		Output: func(pane string, data []byte, lost bool) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.bytes[pane] += string(data)
			if lost {
				r.lost++
			}
		},
		Change: func(name string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.changes = append(r.changes, name)
		},
		Started: func(pid int) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.pid = pid
		},
	}
}

func (r *recorder) saw(pane, what string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Contains(r.bytes[pane], what)
}

func (r *recorder) changed(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.changes, name)
}

// follow runs Follow until the test or stop ends it.
func follow(t *testing.T, s *Server, session string) (r *recorder, stop func() error) {
	t.Helper()
	r = &recorder{}
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- s.Follow(ctx, r.options(session)) }()
	stop = sync.OnceValue(func() error { cancel(); return <-result })
	t.Cleanup(func() { stop() })
	eventually(t, "the control client", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.run != nil
	})
	return r, stop
}

func TestListsPanesWithAnyName(t *testing.T) {
	s := testServer(t, "", `we "ird' $x 日本🙂 a.b:c`)
	tm(t, s, "rename-window", "-t", "$0", "tab\there 窓")
	tm(t, s, "select-pane", "-t", "%0", "-T", "title ✳ 'q'")
	for _, via := range []string{"process", "control client"} {
		if via == "control client" {
			follow(t, s, "$0")
		}
		p := only(t, s)
		if p.ID != "%0" || p.Session != "$0" || p.Window != "@0" || p.Cols != 100 || p.Rows != 30 || !p.Active || p.Dead || p.InMode || p.Piped {
			t.Errorf("via %s: %+v", via, p)
		}
		if p.SessionName != `we "ird' $x 日本🙂 a_b_c` || !strings.Contains(p.WindowName, "窓") || p.Title != "title ✳ 'q'" {
			t.Errorf("via %s: session %q, window %q, title %q", via, p.SessionName, p.WindowName, p.Title)
		}
		if _, err := os.Stat(p.TTY); err != nil || p.PID <= 1 {
			t.Errorf("via %s: tty %q, pid %d", via, p.TTY, p.PID)
		}
	}
}

func TestDeadPaneTellsItsCode(t *testing.T) {
	s := testServer(t, "", "base")
	tm(t, s, "set-option", "-g", "remain-on-exit", "on")
	tm(t, s, "new-window", "-d", "sh -c 'exit 7'")
	tm(t, s, "new-window", "-d", "sh -c 'kill -9 $$'")
	var codes []int
	eventually(t, "two dead panes", func() bool {
		l, err := s.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		codes = nil
		for _, p := range l.Panes {
			if p.Dead {
				codes = append(codes, p.DeadStatus)
			}
		}
		return len(codes) == 2
	})
	slices.Sort(codes)
	if last := codes[len(codes)-1]; !slices.Contains(codes, 7) || last != 137 && codes[0] != -1 {
		t.Errorf("codes %v, want 7 and 137 (or -1 where tmux does not tell signals)", codes)
	}
}

func TestCaptureIsTheLiveScreen(t *testing.T) {
	s := testServer(t, "", "s", "sh", "-c", `printf 'first\n日本🙂\033[31mred\033[0m\n'; seq 100; printf 'ask? '; cat`)
	eventually(t, "the prompt", func() bool { return strings.Contains(text(t, s, "%0"), "ask?") })
	for _, via := range []string{"process", "control client"} {
		if via == "control client" {
			follow(t, s, "$0")
		}
		screen, err := s.Capture(t.Context(), "%0", CaptureOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if screen.Cols != 100 || screen.Rows != 30 || screen.CursorX != 5 || screen.CursorY != len(screen.Lines)-1 || screen.Lines[screen.CursorY] != "ask?" {
			t.Errorf("via %s: cursor %d,%d of %dx%d on %q", via, screen.CursorX, screen.CursorY, screen.Cols, screen.Rows, screen.Lines)
		}
		full, err := s.Capture(t.Context(), "%0", CaptureOptions{Scrollback: 1000, Styled: true})
		if err != nil {
			t.Fatal(err)
		}
		if len(full.Lines) != full.History+30 && len(full.Lines) != 103 || full.Lines[0] != "first" || full.Lines[1] != "日本🙂\x1b[31mred" {
			t.Errorf("via %s: scrollback of %d lines begins %q", via, len(full.Lines), full.Lines[:2])
		}
	}
	tm(t, s, "copy-mode", "-t", "%0")
	tm(t, s, "send-keys", "-t", "%0", "-X", "history-top")
	screen, err := s.Capture(t.Context(), "%0", CaptureOptions{})
	if err != nil || !screen.InMode || screen.Lines[len(screen.Lines)-1] != "ask?" {
		t.Errorf("in copy mode: %+v, %v", screen, err)
	}
}

func TestMissingPaneIsSaid(t *testing.T) {
	s := testServer(t, "", "s")
	ctx := t.Context()
	for _, via := range []string{"process", "control client"} {
		if via == "control client" {
			follow(t, s, "$0")
		}
		_, capture := s.Capture(ctx, "%99", CaptureOptions{})
		_, _, size := s.Size(ctx, "%99")
		_, mode := s.InMode(ctx, "%99")
		for name, err := range map[string]error{
			"capture": capture, "size": size, "mode": mode,
			"paste": s.Paste(ctx, "%99", []byte("x")), "keys": s.Keys(ctx, "%99", "Enter"), "type": s.Type(ctx, "%99", []byte("x")),
			"leave": s.LeaveMode(ctx, "%99"), "kill": s.KillPane(ctx, "%99"), "no id": s.Keys(ctx, "s", "Enter"),
		} {
			if !errors.Is(err, ErrNoPane) {
				t.Errorf("%s via %s: %v, want ErrNoPane", name, via, err)
			}
		}
	}
	if out := tm(t, s, "list-buffers"); out != "" {
		t.Errorf("a refused paste left buffers: %s", out)
	}
}

func TestPasteReachesTheProgram(t *testing.T) {
	s := testServer(t, "", "s", "sh", "-c", `printf '\033[?2004h'; stty -echo -icanon; cat -v`)
	tm(t, s, "set-buffer", "of the person")
	long := strings.Repeat("日本語 ünï 🙂; ", 2000)
	for _, c := range []struct{ in, want string }{
		{"one;", "^[[200~one;^[[201~"},
		{"-x 'q' \"d\" $HOME #{pane_id} \\", "^[[200~-x 'q' \"d\" $HOME #{pane_id} \\^[[201~"},
		{"two\nlines\n", "^[[200~two\nlines\n^[[201~"},
	} {
		tm(t, s, "clear-history", "-t", "%0")
		if err := s.Paste(t.Context(), "%0", []byte(c.in)); err != nil {
			t.Fatal(err)
		}
		eventually(t, fmt.Sprintf("%q on the screen", c.want), func() bool { return strings.Contains(text(t, s, "%0"), c.want) })
	}
	if err := s.Paste(t.Context(), "%0", []byte(long)); err != nil {
		t.Fatal(err)
	}
	if err := s.Paste(t.Context(), "%0", make([]byte, maxPaste+1)); err == nil {
		t.Error("a paste over the limit was taken")
	}
	if out := tm(t, s, "list-buffers", "-F", "#{buffer_sample}"); out != "of the person" {
		t.Errorf("buffers %q, want the person's own alone", out)
	}
}

func TestKeysAndTyping(t *testing.T) {
	s := testServer(t, "", "s", "sh", "-c", `stty -echo -icanon -isig; cat -v`)
	eventually(t, "the program", func() bool { return only(t, s).PID > 0 })
	// stty is done when its echo is gone.
	if err := s.Keys(t.Context(), "%0", "Escape", "C-c", "y", "1", "BTab", "Up", "-"); err != nil {
		t.Fatal(err)
	}
	if err := s.Type(t.Context(), "%0", []byte("s3cr;et 'é")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the keys", func() bool {
		return strings.Contains(text(t, s, "%0"), "^[^Cy1^[[Z^[[A-s3cr;et 'M-CM-)")
	})
	for _, bad := range []string{"", "a b", "Enter;", "\n", "Enter Enter", "C-", "-X cancel", ";"} {
		if err := s.Keys(t.Context(), "%0", bad); err == nil {
			t.Errorf("key %q was pressed", bad)
		}
	}
	if err := s.Type(t.Context(), "%0", make([]byte, maxTyped+1)); err == nil {
		t.Error("typing over the limit was done")
	}
}

func TestLeaveMode(t *testing.T) {
	s := testServer(t, "", "s")
	tm(t, s, "copy-mode", "-t", "%0")
	if in, err := s.InMode(t.Context(), "%0"); !in || err != nil {
		t.Fatalf("in copy mode: %v, %v", in, err)
	}
	for range 2 {
		if err := s.LeaveMode(t.Context(), "%0"); err != nil {
			t.Fatal(err)
		}
		if in, err := s.InMode(t.Context(), "%0"); in || err != nil {
			t.Fatalf("after LeaveMode: %v, %v", in, err)
		}
	}
}

func TestNewSessionAndItsEnd(t *testing.T) {
	s := testServer(t, "", "base")
	tm(t, s, "set-environment", "-g", "CLAUDECODE", "1")
	dir := t.TempDir()
	pane, err := s.NewSession(t.Context(), NewSessionOptions{
		Name: "a #S;", Dir: dir, Unset: []string{"CLAUDECODE", "TMUX_X"},
		Command: []string{"sh", "-c", `echo "in $PWD with ${CLAUDECODE-none} $1"; cat`, "x", "two words;"},
	})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the command", func() bool {
		return strings.Contains(strings.ReplaceAll(text(t, s, pane), "\n", ""), "in "+dir+" with none two words;")
	})
	if got := tm(t, s, "show-environment", "-g", "CLAUDECODE"); got != "CLAUDECODE=1" {
		t.Errorf("the server's environment became %q", got)
	}
	l, err := s.List(t.Context())
	if err != nil || len(l.Panes) != 2 || l.Panes[0].SessionName != "a #S;" {
		t.Errorf("panes %+v, %v", l.Panes, err)
	}
	if err := s.KillPane(t.Context(), pane); err != nil {
		t.Fatal(err)
	}
	if p := only(t, s); p.ID != "%0" {
		t.Errorf("the pane left is %s", p.ID)
	}
	for _, bad := range []NewSessionOptions{{}, {Dir: "x"}, {Dir: "/", Name: "a\nb"}, {Dir: "/", Unset: []string{"a b"}}} {
		if _, err := s.NewSession(t.Context(), bad); err == nil {
			t.Errorf("%+v was started", bad)
		}
	}
}

func TestNewSessionStartsAServerWhenAllowed(t *testing.T) {
	needTmux(t)
	dir, err := os.MkdirTemp("", "hf")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	s, err := New(Options{Socket: filepath.Join(dir, "s"), Environ: append(os.Environ(), "CLAUDECODE=1")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.List(t.Context()); !errors.Is(err, ErrGone) {
		t.Errorf("list without a server: %v, want ErrGone", err)
	}
	pane, err := s.NewSession(t.Context(), NewSessionOptions{Dir: "/", StartServer: true, Unset: []string{"CLAUDECODE"}, Command: []string{"cat"}})
	if err != nil {
		t.Fatal(err)
	}
	info, err := s.Identify(t.Context())
	if err != nil || pane != "%0" {
		t.Fatal(pane, err)
	}
	if out, err := exec.Command("tmux", "-S", s.Socket(), "show-environment", "-g", "CLAUDECODE").CombinedOutput(); err == nil {
		t.Errorf("the server inherited %s", out)
	}
	if err := s.KillPane(t.Context(), pane); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the server to end", func() bool { return !proc.Running(info.PID) })
	if _, err := s.NewSession(t.Context(), NewSessionOptions{Dir: "/", Command: []string{"cat"}}); !errors.Is(err, ErrGone) {
		t.Errorf("without a server and StartServer: %v, want ErrGone", err)
	}
}

func TestFollowSeesRawBytesAndChangesNothing(t *testing.T) {
	s := testServer(t, "", "one", "sh", "-c", `echo start; read x; printf '\033]7501;state=blocked\033\\\033]9;hi\a back\\slash 日本\n'; cat`)
	tm(t, s, "set-environment", "-t", "$0", "MARK", "kept")
	tm(t, s, "pipe-pane", "-t", "%0", "cat >/dev/null")
	before := tm(t, s, "show-environment", "-t", "$0") + tm(t, s, "show-options", "-g") + tm(t, s, "show-options", "-s") +
		tm(t, s, "display-message", "-p", "-t", "%0", "#{window_width} #{window_height} #{pane_pipe}")
	r, stop := follow(t, s, "$0")
	if err := s.Keys(t.Context(), "%0", "Enter"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the sequences", func() bool {
		return r.saw("%0", "\x1b]7501;state=blocked\x1b\\\x1b]9;hi\a back\\slash 日本\r\n")
	})
	tm(t, s, "new-session", "-d", "-s", "two", "cat")
	tm(t, s, "copy-mode", "-t", "%0")
	eventually(t, "the notifications", func() bool { return r.changed("sessions-changed") && r.changed("pane-mode-changed") })
	l, err := s.List(t.Context())
	if err != nil || !slices.ContainsFunc(l.Clients, func(c Client) bool { return c.Watcher && (c.PID == r.pid || c.PID == os.Getpid()) }) {
		t.Errorf("clients %+v, %v; ours is %d or %d", l.Clients, err, os.Getpid(), r.pid)
	}
	after := tm(t, s, "show-environment", "-t", "$0") + tm(t, s, "show-options", "-g") + tm(t, s, "show-options", "-s") +
		tm(t, s, "display-message", "-p", "-t", "%0", "#{window_width} #{window_height} #{pane_pipe}")
	if before != after {
		t.Errorf("following changed something:\n%s\nbecame\n%s", before, after)
	}
	if err := stop(); err != nil {
		t.Errorf("Follow: %v", err)
	}
	if r.pid != 0 && syscall.Kill(r.pid, 0) == nil {
		t.Error("the control client is still there")
	}
	eventually(t, "our clients to go", func() bool { return len(ourClients(t, tm(t, s, "list-clients", "-F", "#{client_pid}"))) == 0 })
}

func TestFollowHoldsAFlood(t *testing.T) {
	s := testServer(t, "", "one", "sh", "-c", `read x; yes 'the quick brown fox jumps over the lazy dog' | head -c 8000000; echo; echo finished; cat`)
	r, _ := follow(t, s, "$0")
	if err := s.Keys(t.Context(), "%0", "Enter"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of the flood", func() bool { return strings.Contains(text(t, s, "%0"), "finished") })
	time.Sleep(2 * floodWindow) // what was held is let go
	if err := s.Paste(t.Context(), "%0", []byte("after it\n")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "output after the flood", func() bool { return r.saw("%0", "after it") })
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.bytes["%0"]); n > 6_000_000 || r.lost == 0 {
		t.Errorf("%d bytes of the flood were read, %d gaps were told", n, r.lost)
	}
}

func TestFollowEndsWithItsSession(t *testing.T) {
	s := testServer(t, "", "one")
	tm(t, s, "new-session", "-d", "-s", "two", "cat")
	for _, detach := range []string{"on", "off"} {
		tm(t, s, "set-option", "-g", "detach-on-destroy", detach)
		id := tm(t, s, "new-session", "-d", "-P", "-F", "#{session_id}", "cat")
		result := make(chan error, 1)
		r := &recorder{}
		go func() { result <- s.Follow(t.Context(), r.options(id)) }()
		eventually(t, "the control client", func() bool { return r.changed("session-changed") })
		tm(t, s, "kill-session", "-t", id)
		if err := <-result; err == nil {
			t.Errorf("detach-on-destroy %s: Follow ended without a reason", detach)
		}
		if l, err := s.List(t.Context()); err != nil || len(l.Panes) != 2 {
			t.Errorf("list after it: %+v, %v", l.Panes, err)
		}
	}
}

// tmux up to 3.6 crashes when a session begins or ends while its own client
// attaches in control mode.
func TestAttachingDoesNotEndTheServer(t *testing.T) {
	s := testServer(t, "", "one")
	pid := s.Info().PID
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for ctx.Err() == nil {
				once, end := context.WithTimeout(ctx, 20*time.Millisecond)
				_ = s.Follow(once, FollowOptions{Session: "$0"}) // it may be cut at any point
				end()
			}
		})
	}
	for i := range 150 {
		id := tm(t, s, "new-session", "-d", "-P", "-F", "#{session_id}", "cat")
		if i%2 == 0 {
			tm(t, s, "rename-session", "-t", id, "other")
		}
		tm(t, s, "kill-session", "-t", id)
	}
	cancel()
	all.Wait()
	if got := tm(t, s, "display-message", "-p", "#{pid}"); got != strconv.Itoa(pid) {
		t.Errorf("the server is process %s, it was %d", got, pid)
	}
}

func TestHungServerIsSilentNotGone(t *testing.T) {
	s := testServer(t, "", "one")
	r, stop := follow(t, s, "$0")
	if err := syscall.Kill(s.Info().PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	_, err := s.List(t.Context())
	if !errors.Is(err, ErrSilent) {
		t.Errorf("list through the control client: %v, want ErrSilent", err)
	}
	if err := stop(); err != nil {
		t.Errorf("Follow: %v", err)
	}
	if r.pid != 0 && syscall.Kill(r.pid, 0) == nil {
		t.Error("the control client of a hung server is still there")
	}
	if _, err = s.List(t.Context()); !errors.Is(err, ErrSilent) {
		t.Errorf("list by a process: %v, want ErrSilent", err)
	}
	if took := time.Since(began); took > 4*commandTimeout {
		t.Errorf("that took %v", took)
	}
	syscall.Kill(s.Info().PID, syscall.SIGCONT)
	if _, err = s.List(t.Context()); err != nil {
		t.Errorf("list after the server went on: %v", err)
	}
}

func TestListEvery(t *testing.T) {
	s := testServer(t, "", "one")
	ctx, cancel := context.WithCancel(t.Context())
	looks := make(chan Listing, 100)
	result := make(chan error, 1)
	go func() { result <- s.ListEvery(ctx, func(l Listing) { looks <- l }) }()
	if l := <-looks; len(l.Panes) != 1 {
		t.Errorf("first look: %+v", l)
	}
	tm(t, s, "new-session", "-d", "-s", "two", "cat")
	eventually(t, "the second session", func() bool { return len((<-looks).Panes) == 2 })
	if out := ourClients(t, tm(t, s, "list-clients", "-F", "#{client_pid}")); len(out) != 0 {
		t.Errorf("it attached: %s", out)
	}
	cancel()
	if err := <-result; err != nil {
		t.Errorf("ListEvery: %v", err)
	}
	// A server that ends says so.
	go func() { result <- s.ListEvery(t.Context(), func(l Listing) { looks <- l }) }()
	<-looks
	tm(t, s, "kill-server")
	if err := <-result; !errors.Is(err, ErrGone) {
		t.Errorf("after the server's end: %v, want ErrGone", err)
	}
}
