package toolfile

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// soon fails where something waits that must not.
func soon(t *testing.T, what string, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); do() }() // a failure leaves it behind, and ends the test
	select {
	case <-done:
	case <-time.After(60 * time.Second):
		t.Fatalf("%s waits", what)
	}
}

func TestOnlyFilesAreOpened(t *testing.T) {
	dir, err := os.MkdirTemp("", "hf") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(
		os.WriteFile(at("file"), []byte("hello"), 0o600), os.Mkdir(at("dir"), 0o700), syscall.Mkfifo(at("fifo"), 0o600),
		os.Symlink(at("file"), at("link")), os.Symlink(at("loop"), at("loop")), os.Symlink(at("fifo"), at("link to fifo")),
	); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", at("socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for name, good := range map[string]bool{
		"file": true, "link": true, "dir": false, "fifo": false, "link to fifo": false, "socket": false, "loop": false, "missing": false,
	} {
		soon(t, name, func() {
			b, err := Read(at(name), 5)
			if (err == nil) != good || good && string(b) != "hello" {
				t.Errorf("%s: %q, %v", name, b, err)
			}
			if _, err := Dir(at(name), 10); (err == nil) != (name == "dir") {
				t.Errorf("%s as a directory: %v", name, err)
			}
		})
	}
	soon(t, "/dev/zero", func() {
		if _, err := Read("/dev/zero", 100); !errors.Is(err, ErrKind) {
			t.Errorf("a device: %v", err)
		}
	})
}

func TestALargeFileIsNotRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "large")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(5<<30), f.Close()); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	if _, err := Read(path, 1<<20); !errors.Is(err, ErrSize) {
		t.Errorf("5 GiB: %v", err)
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 1<<20 || time.Since(began) > 5*time.Second {
		t.Errorf("refusing it took %d bytes and %v", grown, time.Since(began))
	}
	if err := os.WriteFile(path, make([]byte, 101), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path, 100); !errors.Is(err, ErrSize) {
		t.Errorf("one byte too many: %v", err)
	}
}

func TestADirectoryIsReadUpToALimit(t *testing.T) {
	dir := t.TempDir()
	for i := range 3000 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%05d", i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for limit, want := range map[int]int{10: 10, 2000: 2000, 5000: 3000} {
		got, err := Dir(dir, limit)
		if err != nil || len(got) != want {
			t.Errorf("limit %d: %d entries, %v", limit, len(got), err)
		}
		for i := 1; i < len(got); i++ {
			if got[i-1].Name() >= got[i].Name() {
				t.Fatalf("limit %d: not sorted", limit)
			}
		}
	}
}
