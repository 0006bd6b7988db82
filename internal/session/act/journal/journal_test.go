package journal

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/session"
	"holdfast/internal/session/proto"
)

func open(t *testing.T, path string) *Journal {
	t.Helper()
	j, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// begin wants to know whether an action was begun before, and what came of it.
func begin(t *testing.T, j *Journal, key string, found bool, state proto.Stage) {
	t.Helper()
	a, ok, err := j.Begin(key, []byte(key), time.Now())
	if err != nil || ok != found {
		t.Fatalf("begin %s: found %v, %v; want %v", key, ok, err, found)
	}
	if found && (!bytes.Equal(a.Print, []byte(key)) || (a.Outcome == nil) != (state == "") || a.Outcome != nil && a.Outcome.State != state) {
		t.Fatalf("begin %s: before it was %+v, want %q", key, a, state)
	}
}

func TestWhatWasBegunIsKnownToTheNext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	a := open(t, path)
	begin(t, a, "done", false, "")
	begin(t, a, "cut off", false, "")
	begin(t, a, "refused", false, "")
	if err := a.End("done", &proto.Outcome{State: proto.Accepted, Evidence: "seen", Dialog: &session.Dialog{Digest: "of then"}}); err != nil {
		t.Fatal(err)
	}
	if err := a.End("refused", nil); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := a.Answered("k:%1"); err != nil {
			t.Fatal(err)
		}
	}
	b := open(t, path)
	begin(t, b, "done", true, proto.Accepted)
	begin(t, b, "cut off", true, "")
	begin(t, b, "refused", false, "")
	if n := b.Answers("k:%1"); n != 2 || b.Answers("k:%2") != 0 {
		t.Errorf("%d answers", n)
	}
	if !bytes.Equal(a.Salt(), b.Salt()) || len(a.Salt()) < 16 {
		t.Error("the digests of one are not those of the other")
	}
	// Both go on, and see what the other does.
	begin(t, a, "refused", true, "")
	begin(t, a, "new", false, "")
	begin(t, b, "new", true, "")
	if err := b.Answered("k:%2"); err != nil || a.Answers("k:%2") != 1 {
		t.Errorf("the other's answer: %v, %d", err, a.Answers("k:%2"))
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v, %v", info.Mode(), err)
	}
	if text, _ := os.ReadFile(path); bytes.Contains(text, []byte("of then")) {
		t.Error("a dialog is kept")
	}
	// A day later the key is free.
	if _, found, err := b.Begin("done", nil, time.Now().Add(KeepTime+time.Minute)); found || err != nil {
		t.Errorf("a day later: %v, %v", found, err)
	}
}

func TestOnlyOneOfManyBegins(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	var wg sync.WaitGroup
	var mu sync.Mutex
	begun := map[string]int{}
	for range 8 {
		wg.Go(func() {
			j, err := Open(path)
			if err != nil {
				t.Error(err)
				return
			}
			for i := range 50 {
				key := fmt.Sprint("k", i)
				if _, found, err := j.Begin(key, nil, time.Now()); err != nil {
					t.Error(err)
				} else if !found {
					mu.Lock()
					begun[key]++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	for key, n := range begun {
		if n != 1 {
			t.Errorf("%s was begun %d times", key, n)
		}
	}
	if len(begun) != 50 {
		t.Errorf("%d keys were begun", len(begun))
	}
}

func TestALineThatWasCutOffSpoilsNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	a := open(t, path)
	begin(t, a, "one", false, "")
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(f, "\x00\x00{not}\n%s\n{\"key\":\"tw", strings.Repeat("long", 100_000))
	f.Close()
	b := open(t, path)
	begin(t, b, "one", true, "")
	begin(t, b, "two", false, "")
	begin(t, open(t, path), "two", true, "")
}

func TestTheFileStaysSmall(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	j := open(t, path)
	reason := strings.Repeat("why ", 100)
	largest := int64(0)
	for i := range 6000 {
		key := fmt.Sprint("k", i)
		begin(t, j, key, false, "")
		if err := j.End(key, &proto.Outcome{State: proto.Unconfirmed, Reason: reason}); err != nil {
			t.Fatal(err)
		}
		if i%100 == 0 {
			if err := j.Answered(session.ID(fmt.Sprint("p", i))); err != nil {
				t.Fatal(err)
			}
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			largest = max(largest, info.Size())
		}
	}
	if largest > 2*rewriteAt {
		t.Errorf("the file had %d bytes", largest)
	}
	begin(t, j, "k5999", true, proto.Unconfirmed)
	begin(t, open(t, path), "k5999", true, proto.Unconfirmed)
	if n := j.Answers("p5900"); n != 1 {
		t.Errorf("%d answers", n)
	}
}

func TestWhatIsNoFileIsRefused(t *testing.T) {
	dir := t.TempDir()
	fifo, link, sub := filepath.Join(dir, "fifo"), filepath.Join(dir, "link"), filepath.Join(dir, "sub")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "target"), link); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(sub, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, link, sub, filepath.Join(dir, "missing", "j")} {
		if _, err := Open(path); err == nil {
			t.Errorf("%s was opened", path)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "target")); err == nil {
		t.Error("a link was followed")
	}
}
