package discover

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast/internal/session/proc"
	"holdfast/internal/session/tmux"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testServer starts a tmux server of its own and ends it with the test.
func testServer(t testing.TB, socket, name string) *tmux.Server {
	t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil {
		if os.Getenv("HOLDFAST_TEST_ALL") == "1" {
			t.Fatalf("tmux is needed: %v", err)
		}
		t.Skip("tmux is not installed")
	}
	if out, err := exec.Command("tmux", "-u", "-S", socket, "-f", os.DevNull, "new-session", "-d", "-s", name, "cat").CombinedOutput(); err != nil {
		t.Fatalf("start tmux: %v: %s", err, out)
	}
	s, err := tmux.New(tmux.Options{Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	info, err := s.Identify(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		syscall.Kill(info.PID, syscall.SIGTERM)
		eventually(t, "the server to end", func() bool { return !proc.Running(info.PID) })
	})
	return s
}

// eventually waits for what other processes do.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("waited 60 s for %s", what)
}

func TestDiscover(t *testing.T) {
	base, err := os.MkdirTemp("", "hf")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(base)
	dir := filepath.Join(base, "tmux-"+strconv.Itoa(os.Getuid()))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	d := New(Options{Dirs: []string{base}})
	find := func(path string) (Found, bool) {
		for _, f := range d.Look() {
			if f.Socket == path {
				return f, true
			}
		}
		return Found{}, false
	}
	usual, odd := filepath.Join(dir, "default"), filepath.Join(base, "elsewhere socket")
	if _, ok := find(usual); ok {
		t.Error("found before it was there")
	}
	a := testServer(t, usual, "a")
	b := testServer(t, odd, "b")
	for _, s := range []*tmux.Server{a, b} {
		f, ok := find(s.Socket())
		if !ok || !f.Certain || f.Deleted || f.PID != 0 && f.PID != s.Info().PID {
			t.Errorf("%s: %+v, %v", s.Socket(), f, ok)
		}
	}
	if err := os.Remove(odd); err != nil {
		t.Fatal(err)
	}
	if f, ok := find(odd); !ok || !f.Deleted || f.PID != b.Info().PID {
		t.Errorf("a deleted socket: %+v, %v", f, ok)
	}
	syscall.Kill(b.Info().PID, syscall.SIGUSR1)
	eventually(t, "tmux to put its socket back", func() bool { f, ok := find(odd); return ok && !f.Deleted })
	if out, err := exec.Command("tmux", "-S", usual, "kill-server").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	eventually(t, "the ended server to be uncertain", func() bool { f, _ := find(usual); return !f.Certain })
	if a.Tag() == b.Tag() || len(a.Tag()) != 8 {
		t.Errorf("tags %q and %q", a.Tag(), b.Tag())
	}
}
