package state

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, path string) Dir {
	t.Helper()
	d, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestOpenMakesThePrivateDirectory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b")
	d := open(t, path)
	for _, p := range []string{path, filepath.Dir(path)} {
		st, err := os.Stat(p)
		if err != nil {
			t.Fatal(err)
		}
		if st.Mode().Perm() != 0o700 {
			t.Errorf("%s has mode %04o, want 0700", p, st.Mode().Perm())
		}
	}
	if d.Path("") != path || d.Path("x") != filepath.Join(path, "x") {
		t.Errorf("paths are %q and %q", d.Path(""), d.Path("x"))
	}
	if open(t, path) != d {
		t.Error("opening it again gives another directory")
	}
}

func TestOpenRefusesWhatOthersCanWrite(t *testing.T) {
	path := t.TempDir()
	if err := os.Chmod(path, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a directory that everybody can write to: %v", err)
	}
	if _, err := Open(""); err == nil {
		t.Error("an empty path is taken")
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(file); err == nil {
		t.Error("a file is taken for a directory")
	}
}

func TestLockIsForOne(t *testing.T) {
	d := open(t, t.TempDir())
	release, err := d.Lock("up")
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.Lock("relay")
	if !errors.Is(err, ErrLocked) {
		t.Fatalf("a second lock: %v", err)
	}
	var held *LockedError
	if !errors.As(err, &held) || held.PID != os.Getpid() || held.Command != "up" || !strings.Contains(err.Error(), d.Path("")) {
		t.Errorf("it does not say who has the directory: %v", err)
	}
	release()
	again, err := d.Lock("agent")
	if err != nil {
		t.Fatalf("after the release: %v", err)
	}
	again()
}

func TestGuardLetsOneIn(t *testing.T) {
	d := open(t, t.TempDir())
	path := d.Path("count")
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			err := d.Guard("count", func() error {
				b, err := os.ReadFile(path)
				if err != nil && !errors.Is(err, fs.ErrNotExist) {
					return err
				}
				return WriteFile(path, append(b, 'x'), 0o600)
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	b, err := ReadFile(path, 100)
	if err != nil || len(b) != 20 {
		t.Errorf("%d of 20 changes are left (%v)", len(b), err)
	}
}

func TestWriteFileReplacesWhole(t *testing.T) {
	dir := t.TempDir()
	path, elsewhere := filepath.Join(dir, "f"), filepath.Join(dir, "elsewhere")
	if err := os.WriteFile(elsewhere, []byte("keep"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, path); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(path, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	st, err := os.Lstat(path)
	if err != nil || st.Mode() != 0o600 {
		t.Errorf("mode is %v (%v), want a file of 0600", st.Mode(), err)
	}
	if b, _ := os.ReadFile(elsewhere); string(b) != "keep" {
		t.Errorf("the link was followed: %q", b)
	}
	if err := WriteFile(filepath.Join(dir, "no", "such"), nil, 0o600); err == nil {
		t.Error("a directory that is not there is no error")
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("something was left behind: %v (%v)", entries, err)
	}
}

func TestReadFileIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, make([]byte, 11), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := ReadFile(path, 11); err != nil || len(b) != 11 {
		t.Errorf("at the limit: %d bytes, %v", len(b), err)
	}
	if _, err := ReadFile(path, 10); !errors.Is(err, ErrTooBig) {
		t.Errorf("over the limit: %v", err)
	}
	if _, err := ReadFile(path+"x", 10); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// TestSocketInAnyDirectory listens where a socket's address has no room for the
// path.
func TestSocketInAnyDirectory(t *testing.T) {
	for _, name := range []string{"short", strings.Repeat("long", 40)} {
		d := open(t, filepath.Join(t.TempDir(), name))
		if _, err := d.Dial(context.Background(), ControlSocket); !errors.Is(err, ErrNotRunning) {
			t.Errorf("%.8s: nobody listens: %v", name, err)
		}
		// A socket that a killed process left behind is no obstacle.
		if err := os.WriteFile(d.Path(ControlSocket), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		ln, err := d.Listen(ControlSocket)
		if err != nil {
			t.Fatal(err)
		}
		st, err := os.Lstat(d.Path(ControlSocket))
		if err != nil || st.Mode().Perm() != 0o600 || st.Mode().Type() != fs.ModeSocket {
			t.Errorf("%.8s: %v (%v), want a socket of 0600", name, st.Mode(), err)
		}
		done := make(chan error, 1)
		go func() { // ends with the one connection, waited for by done
			conn, err := ln.Accept()
			if err == nil {
				_, err = io.WriteString(conn, "hello")
				conn.Close()
			}
			done <- err
		}()
		conn, err := d.Dial(context.Background(), ControlSocket)
		if err != nil {
			t.Fatalf("%.8s: %v", name, err)
		}
		if b, err := io.ReadAll(conn); err != nil || string(b) != "hello" {
			t.Errorf("%.8s: read %q, %v", name, b, err)
		}
		conn.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := ln.Close(); err != nil {
			t.Error(err)
		}
		if d.Has(ControlSocket) {
			t.Errorf("%.8s: the socket is still there after Close", name)
		}
	}
}
