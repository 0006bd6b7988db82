package watch

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast/internal/session"
	"holdfast/internal/session/proc"
	"holdfast/internal/session/watch/leftover"
	"holdfast/internal/session/watch/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func needTmux(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil {
		if os.Getenv("HOLDFAST_TEST_ALL") == "1" {
			t.Fatalf("tmux is needed: %v", err)
		}
		t.Skip("tmux is not installed")
	}
}

// place is a directory with a short name: a socket's path holds 107 bytes.
func place(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hf")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// server is a tmux server of a test.
type testServer struct {
	t      testing.TB
	socket string
}

func startServer(t testing.TB, socket, name, command string) testServer {
	t.Helper()
	needTmux(t)
	s := testServer{t, socket}
	s.run("-f", os.DevNull, "new-session", "-d", "-x", "100", "-y", "30", "-s", name, command)
	pid, _ := strconv.Atoi(s.run("display-message", "-p", "#{pid}"))
	t.Cleanup(func() {
		syscall.Kill(pid, syscall.SIGCONT)
		exec.Command("tmux", "-S", socket, "kill-server").Run()
		syscall.Kill(pid, syscall.SIGTERM)
		eventually(t, "the tmux server to end", func() bool { return !proc.Running(pid) })
	})
	return s
}

func (s testServer) run(args ...string) string {
	s.t.Helper()
	out, err := exec.Command("tmux", append([]string{"-u", "-S", s.socket}, args...)...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("tmux %v: %v: %s", args, err, out)
	}
	return strings.TrimSuffix(string(out), "\n")
}

func (s testServer) enter(pane, line string) {
	s.t.Helper()
	s.run("send-keys", "-t", pane, "-l", "--", line)
	s.run("send-keys", "-t", pane, "Enter")
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

// patience is for what other processes do on a loaded machine.
const patience = 60 * time.Second

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("waited %v for %s", patience, what)
}

// start runs a Watcher until the test or stop ends it.
func start(t testing.TB, o Options) (w *Watcher, stop func()) {
	t.Helper()
	if o.Home == "" {
		o.Home = t.TempDir()
	}
	if testing.Verbose() {
		o.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	w, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	ready, end := context.WithTimeout(context.Background(), patience)
	defer end()
	if err := w.Ready(ready); err != nil {
		t.Fatalf("the first look: %v", err)
	}
	return w, stop
}

// find is the session of that name, or the zero one.
func find(w *Watcher, name string) session.Session {
	for _, s := range w.Sessions() {
		if s.Name == name {
			return s
		}
	}
	return session.Session{}
}

// becomes waits for a state and says how long that took.
func becomes(t testing.TB, w *Watcher, name string, state session.State) (session.Session, time.Duration) {
	t.Helper()
	began := time.Now()
	for time.Since(began) < 20*time.Second {
		if s := find(w, name); s.Status.State == state {
			return s, time.Since(began)
		}
		time.Sleep(5 * time.Millisecond)
	}
	s := find(w, name)
	t.Fatalf("session %s is %+v, want %s", name, s.Status, state)
	return s, 0
}

const shell = `PS1='$ ' exec bash --norc --noprofile -i`

func TestShellCommandAndPrompts(t *testing.T) {
	dir := place(t)
	s := startServer(t, filepath.Join(dir, "s"), "sh", shell)
	w, _ := start(t, Options{Sockets: []string{s.socket}})
	got, _ := becomes(t, w, "sh", session.Idle)
	if got.Tool != "bash" || got.PID == 0 || got.Cols != 100 || got.Server != s.socket || got.Status.Evidence[0].Source == "" {
		t.Errorf("the shell: %+v", got)
	}
	s.enter("%0", "sleep 300")
	_, took := becomes(t, w, "sh", session.Working)
	eventually(t, "the command", func() bool { got = find(w, "sh"); return got.Tool == "sleep" })
	if got.Status.State != session.Working || got.Tool != "sleep" || got.Status.Evidence[0].Source != session.FromProcess {
		t.Errorf("a command: %+v", got)
	}
	t.Logf("working after %v", took)
	s.run("send-keys", "-t", "%0", "C-c")
	_, took = becomes(t, w, "sh", session.Idle)
	t.Logf("idle after %v", took)

	s.enter("%0", `read -p 'Overwrite? [y/N] ' x`)
	got, took = becomes(t, w, "sh", session.Waiting)
	if got.Status.Dialog == nil || len(got.Status.Dialog.Digest) < 16 || got.Status.Kind == session.Password {
		t.Errorf("a prompt: %+v", got.Status)
	}
	t.Logf("waiting after %v", took)
	first := got.Status.Since
	s.enter("%0", "n")
	becomes(t, w, "sh", session.Idle)
	s.enter("%0", `bash -c 'read -sp "Password: " x'`)
	got, took = becomes(t, w, "sh", session.Waiting)
	if got.Status.Kind != session.Password || !got.Status.Since.After(first) {
		t.Errorf("a password: %+v", got.Status)
	}
	t.Logf("password after %v", took)
}

func TestProgramsReportThemselves(t *testing.T) {
	dir := place(t)
	s := startServer(t, filepath.Join(dir, "s"), "a", `stty raw -echo; cat`)
	for _, name := range []string{"b", "c"} {
		s.run("new-session", "-d", "-s", name, `stty raw -echo; cat`)
	}
	w, _ := start(t, Options{Sockets: []string{s.socket}})
	if got := find(w, "b"); got.Status.State != session.Unknown {
		t.Errorf("a program of which nothing is known is %s", got.Status.State)
	}
	say := func(pane, text string) { s.run("send-keys", "-t", pane, "-l", "--", text) }
	eventually(t, "the clients", func() bool {
		say("%1", "\x1b]7501;state=working\x1b\\")
		return find(w, "b").Status.State == session.Working
	})
	say("%1", "\x1b]7501;state=blocked:kind=permission:title=UnVuIGl0\x1b\\")
	got, took := becomes(t, w, "b", session.Waiting)
	if got.Status.Kind != session.Permission || got.Status.Evidence[0].Source != session.FromOSC || got.Status.Dialog == nil || got.Status.Dialog.Title != "Run it" {
		t.Errorf("blocked: %+v", got.Status)
	}
	if took > time.Second {
		t.Errorf("that took %v", took)
	}
	say("%1", "\x1b]7501;state=working\a\x1b]7501;state=blocked:id=sub/1\a")
	if got, _ = becomes(t, w, "b", session.Working); got.Status.Dialog != nil {
		t.Errorf("working: %+v", got.Status)
	}
	say("%1", "\x1b]7501;state=done\a")
	becomes(t, w, "b", session.Done)
	if err := w.Seen(got.ID); err != nil {
		t.Fatal(err)
	}
	becomes(t, w, "b", session.Idle)
	if err := w.Seen("nope:%1"); !errors.Is(err, ErrNoSession) {
		t.Errorf("seen of nothing: %v", err)
	}
	if n := len(w.Sessions()); n != 3 {
		t.Errorf("%d sessions", n)
	}
	for _, other := range []string{"a", "c"} {
		if got := find(w, other); got.Status.State != session.Unknown || got.Attached != 0 {
			t.Errorf("%s: %+v", other, got)
		}
	}
}

func TestServersComeGoAndHang(t *testing.T) {
	base := place(t)
	dir := filepath.Join(base, "tmux-"+strconv.Itoa(os.Getuid()))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	needTmux(t)
	w, _ := start(t, Options{TmuxDirs: []string{base}})
	all, changes, cancel := w.Subscribe()
	defer cancel()
	_ = all
	began := time.Now()
	a := startServer(t, filepath.Join(dir, "work"), "hf-one", "cat")
	eventually(t, "the new server", func() bool { return find(w, "hf-one").ID != "" })
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("a new server took %v", took)
	}
	odd := startServer(t, filepath.Join(base, "odd place"), "hf-two", "cat")
	eventually(t, "the odd server", func() bool { return find(w, "hf-two").ID != "" })
	one, two := find(w, "hf-one"), find(w, "hf-two")
	if one.ID == two.ID || one.Server != a.socket || two.Server != odd.socket {
		t.Errorf("%+v and %+v", one, two)
	}
	// A server that hangs: unknown, not gone.
	pid, _ := strconv.Atoi(odd.run("display-message", "-p", "#{pid}"))
	syscall.Kill(pid, syscall.SIGSTOP)
	if err := w.Refresh(t.Context(), two.ID); err != nil {
		t.Errorf("refresh: %v", err)
	}
	eventually(t, "the hung server", func() bool {
		s := find(w, "hf-two")
		return s.Status.State == session.Unknown && len(s.Status.Evidence) > 0 && strings.Contains(s.Status.Evidence[0].Detail, "does not answer")
	})
	problem := ""
	for _, s := range w.Servers() {
		if s.Socket == odd.socket {
			problem = s.Problem
		}
	}
	if problem == "" {
		t.Error("the hung server has no problem")
	}
	syscall.Kill(pid, syscall.SIGCONT)
	eventually(t, "the server to answer", func() bool {
		s := find(w, "hf-two")
		return len(s.Status.Evidence) == 0 || !strings.Contains(s.Status.Evidence[0].Detail, "does not answer")
	})
	// One that ends takes its sessions along.
	a.run("kill-server")
	eventually(t, "the end to be told", func() bool {
		select {
		case c := <-changes:
			return c.Gone == one.ID
		default:
			return false
		}
	})
	if find(w, "hf-one").ID != "" {
		t.Error("the session of an ended server is listed")
	}
	startServer(t, a.socket, "hf-one", "cat")
	eventually(t, "the server that came back", func() bool { return find(w, "hf-one").ID != "" })
	if again := find(w, "hf-one"); again.ID == one.ID {
		t.Error("another server's pane has the same id")
	}
}

// A server that is started again at once, at the same socket, has panes with the
// same ids and processes of another kind.
func TestAnotherServerAtTheSocketIsAnother(t *testing.T) {
	socket := filepath.Join(place(t), "s")
	s := startServer(t, socket, "before", "cat")
	w, _ := start(t, Options{Sockets: []string{socket}})
	old, _ := becomes(t, w, "before", session.Unknown)
	handle, ok := w.Pane(old.ID)
	if !ok {
		t.Fatal("no handle")
	}
	out, err := exec.Command("sh", "-c", `tmux -S "$1" kill-server; until tmux -S "$1" -f /dev/null new-session -d -s after cat; do :; done`, "sh", s.socket).CombinedOutput()
	if err != nil {
		t.Fatalf("start it again: %v: %s", err, out)
	}
	if l, err := handle.Look(t.Context()); err == nil {
		t.Errorf("the handle of the old pane shows the new one: %+v", l)
	}
	eventually(t, "the new server", func() bool {
		for _, one := range w.Sessions() {
			if one.ID == old.ID && one.Name == "after" {
				t.Fatalf("the new pane has the old one's id %s", one.ID)
			}
		}
		return find(w, "after").ID != ""
	})
	eventually(t, "the old session to go", func() bool { return find(w, "before").ID == "" })
}

// A server that hangs, with more panes than are looked at at one time, holds up
// no other server.
func TestAHungServerHoldsUpNoOther(t *testing.T) {
	dir := place(t)
	hung := startServer(t, filepath.Join(dir, "hung"), "h0", shell)
	for i := 1; i < 20; i++ {
		hung.run("new-session", "-d", "-s", "h"+strconv.Itoa(i), shell)
	}
	good := startServer(t, filepath.Join(dir, "good"), "good", shell)
	w, _ := start(t, Options{Sockets: []string{hung.socket, good.socket}})
	becomes(t, w, "good", session.Idle)
	pid, _ := strconv.Atoi(hung.run("display-message", "-p", "#{pid}"))
	syscall.Kill(pid, syscall.SIGSTOP)
	for _, s := range w.Sessions() {
		if s.Server == hung.socket {
			go w.Refresh(t.Context(), s.ID) // ends with the test's context, or before
		}
	}
	good.enter("%0", "sleep 300")
	if _, took := becomes(t, w, "good", session.Working); took > 3*time.Second {
		t.Errorf("the other server's pane was working after %v", took)
	}
	good.run("send-keys", "-t", "%0", "C-c")
	if _, took := becomes(t, w, "good", session.Idle); took > 3*time.Second {
		t.Errorf("the other server's pane was idle after %v", took)
	}
	eventually(t, "the hung one to be unknown", func() bool {
		for _, s := range w.Sessions() {
			if s.Server == hung.socket && s.Status.State != session.Unknown {
				return false
			}
		}
		return true
	})
}

func TestNothingChangesForThePerson(t *testing.T) {
	dir := place(t)
	s := startServer(t, filepath.Join(dir, "s"), "one", shell)
	s.run("new-session", "-d", "-s", "two", "cat")
	s.run("pipe-pane", "-t", "%1", "cat >/dev/null")
	s.run("copy-mode", "-t", "%1")
	state := func() string {
		return s.run("show-options", "-g") + s.run("show-options", "-s") + s.run("show-environment", "-t", "one") +
			s.run("list-panes", "-a", "-F", "#{pane_id} #{pane_pipe} #{pane_in_mode} #{window_width}x#{window_height} #{history_size}") + s.run("list-buffers")
	}
	before := state()
	w, stop := start(t, Options{Sockets: []string{s.socket}})
	becomes(t, w, "one", session.Idle)
	if err := w.Refresh(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if after := state(); after != before {
		t.Errorf("watching changed\n%s\nto\n%s", before, after)
	}
	clients := func() []string { return ourClients(t, s.run("list-clients", "-F", "#{client_pid}")) }
	eventually(t, "a control client", func() bool { return len(clients()) > 0 })
	stop()
	if left := clients(); len(left) != 0 {
		t.Errorf("clients left: %s", left)
	}
	if after := state(); after != before {
		t.Errorf("having watched changed\n%s\nto\n%s", before, after)
	}
}

func TestFocusIsNotTakenFromAPersonWhoWorksThere(t *testing.T) {
	dir := place(t)
	s := startServer(t, filepath.Join(dir, "s"), "one", shell)
	s.run("set-option", "-s", "focus-events", "on")
	s.run("set-hook", "-g", "client-attached", "display-message hello")
	w, _ := start(t, Options{Sockets: []string{s.socket}})
	becomes(t, w, "one", session.Idle)
	s.enter("%0", "sleep 300")
	becomes(t, w, "one", session.Working)
	if out := ourClients(t, s.run("list-clients", "-F", "#{client_pid}")); len(out) != 0 {
		t.Errorf("a client was attached where a hook of the person runs: %s", out)
	}
}

func TestSeenOutlivesARestart(t *testing.T) {
	dir, state := place(t), t.TempDir()
	s := startServer(t, filepath.Join(dir, "s"), "a", `stty raw -echo; cat`)
	s.run("new-session", "-d", "-s", "b", `stty raw -echo; cat`)
	o := Options{Sockets: []string{s.socket}, StateDir: state}
	w, stop := start(t, o)
	for i, name := range []string{"a", "b"} {
		pane := "%" + strconv.Itoa(i)
		eventually(t, "the client", func() bool {
			s.run("send-keys", "-t", pane, "-l", "--", "\x1b]7501;state=working\a")
			return find(w, name).Status.State == session.Working
		})
		s.run("send-keys", "-t", pane, "-l", "--", "\x1b]7501;state=done\a")
		becomes(t, w, name, session.Done)
	}
	if err := w.Seen(find(w, "b").ID); err != nil {
		t.Fatal(err)
	}
	becomes(t, w, "b", session.Idle)
	idA, idB := find(w, "a").ID, find(w, "b").ID
	stop()
	if files, _ := filepath.Glob(filepath.Join(state, leftover.Prefix+"*")); len(files) != 0 {
		t.Errorf("notes of clients left: %v", files)
	}
	m, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if a := m.memory[idA]; a.State != session.Done {
		t.Errorf("remembered of a: %+v", a)
	}
	if b := m.memory[idB]; b.State != session.Idle || b.Seen.IsZero() {
		t.Errorf("remembered of b: %+v", b)
	}
	// A damaged file is begun anew.
	if err := os.WriteFile(filepath.Join(state, memory.File), []byte("{\"x\":"), 0o600); err != nil {
		t.Fatal(err)
	}
	if m, err = New(o); err != nil || len(m.memory) != 0 {
		t.Errorf("a damaged memory: %v, %v", m.memory, err)
	}
}
