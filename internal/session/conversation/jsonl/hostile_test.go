package jsonl_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/session/conversation/claude"
	"holdfast/internal/session/conversation/item"
	"holdfast/internal/session/toolfile"
)

// within fails the test when f hangs; what f reports comes back.
func within(t *testing.T, f func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }() // ends with f, or with the process that has failed
	select {
	case err := <-done:
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("it hangs")
		return nil
	}
}

func record(uuid, parent, text string) string {
	return fmt.Sprintf(`{"parentUuid":"%s","isSidechain":false,"type":"user","uuid":"%s","timestamp":"2026-03-01T09:00:00.000Z","message":{"role":"user","content":"%s"}}`+"\n", parent, uuid, text)
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s.jsonl")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestWhatIsNoFileIsRefusedWithoutWaiting(t *testing.T) {
	path := write(t, record("a", "", "hello"))
	src, err := claude.Open(path, "")
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{path, filepath.Dir(path), "/dev/zero"} {
		if err := within(t, func() error { _, _, err := toolfile.Open(what); return err }); err == nil {
			t.Errorf("%s is opened", what)
		}
	}
	if err := within(t, func() error { _, err := src.Page("", 10); return err }); err == nil {
		t.Error("a FIFO in place of the transcript is read")
	}
}

// An id that is longer than a read of the file would be searched for a few bytes
// at a time.
func TestHugeIDsAreNotLookedFor(t *testing.T) {
	long := strings.Repeat("x", 600<<10)
	var b strings.Builder
	b.WriteString(record("first", "", "one"))
	for i := range 8 << 10 {
		b.WriteString(record(fmt.Sprintf("other-%d", i), "", strings.Repeat("y", 1000)))
	}
	b.WriteString(record("last", long, "two"))
	path := write(t, b.String())
	src, err := claude.Open(path, "")
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	var page item.Page
	if err := within(t, func() (err error) { page, err = src.Page("", 3); return err }); err != nil {
		t.Fatal(err)
	}
	if n := len(page.Items); n == 0 || page.Items[n-1].Text != "two" || page.Before == "" {
		t.Fatalf("got %d items, then %q", n, page.Before)
	}
	parts := strings.Split(string(page.Before), ".")
	parts[2] = base64.RawURLEncoding.EncodeToString([]byte(long))
	forged := item.Cursor(strings.Join(parts, "."))
	if err := within(t, func() error { _, err := src.Page(forged, 3); return err }); !errors.Is(err, item.ErrCursor) {
		t.Errorf("a cursor with a long id: %v", err)
	}
}
