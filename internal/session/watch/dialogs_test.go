package watch

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"holdfast/internal/session"
	"holdfast/internal/session/judge"
	"holdfast/internal/session/screen"
)

// asks starts a script in a pane and returns its session as it waits.
func asks(t *testing.T, script string) (testServer, *Watcher, session.Session) {
	t.Helper()
	dir := place(t)
	path := filepath.Join(dir, "asks.sh")
	if err := os.WriteFile(path, []byte("#!/bin/bash\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	s := startServer(t, filepath.Join(dir, "s"), "asks", "exec "+path)
	w, _ := start(t, Options{Sockets: []string{s.socket}})
	got, _ := becomes(t, w, "asks", session.Waiting)
	if got.Status.Dialog == nil {
		t.Fatalf("no dialog: %+v", got.Status)
	}
	return s, w, got
}

// digestNow is what a tap is compared with.
func digestNow(t *testing.T, w *Watcher, id session.ID) string {
	t.Helper()
	h, ok := w.Pane(id)
	if !ok {
		t.Fatal("no pane")
	}
	l, err := h.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return screen.Digest(id, l.PID, l.Tool, l.Mark, screen.Read(l.Tool, l.Screen).Dialog)
}

// A script that clears the screen has each question in the same line.
func TestTheSameQuestionInTheSameLine(t *testing.T) {
	s, w, got := asks(t, `for i in 1 2 3 4; do clear; read -rp "Delete it? [y/N] " a; done; sleep 100`)
	seen := map[string]int{}
	for i := range 3 {
		other, stop := start(t, Options{Sockets: []string{s.socket}})
		// The same for who has watched all along, for who looks at the pane later, and for
		// a tap; on a busy machine there are moments between two questions.
		var digest string
		agreed := func() bool {
			d, o := find(w, "asks").Status.Dialog, find(other, "asks").Status.Dialog
			if d == nil || o == nil {
				return false
			}
			digest = d.Digest
			_, before := seen[digest]
			return !before && o.Digest == digest && digestNow(t, w, got.ID) == digest
		}
		eventually(t, fmt.Sprintf("question %d, with a digest of its own", i), agreed)
		first := digest
		// What answers nothing changes nothing.
		s.run("send-keys", "-t", "%0", "y", "BSpace")
		s.run("resize-window", "-t", "asks:", "-x", "100", "-y", strconv.Itoa(20+i))
		eventually(t, fmt.Sprintf("question %d, still the same for all", i), agreed)
		if digest != first {
			t.Errorf("question %d was %s, and is %s after nothing", i, first, digest)
		}
		seen[digest] = i
		stop()
		s.run("send-keys", "-t", "%0", "y", "Enter")
	}
}

// What waits is told to wait by the very first word, also where something is drawn
// while that look is taken: a title that blinks goes on for as long as it waits.
func TestTheFirstWordOfWhatMoves(t *testing.T) {
	_, w, got := asks(t, `read -rp "Delete it? [y/N] " a`)
	w.mu.Lock()
	p := w.panes[got.ID]
	p.examined, p.screen, p.before = false, shot{}, session.Status{State: session.Unknown}
	p.heard.Output = time.Now().Add(time.Hour)
	// The file of a tool that asks says still that it works.
	p.sources.Transcript = &judge.Signal{State: session.Working, At: time.Now().Add(-time.Minute)}
	p.need = 0
	p.dueLocked(time.Now(), needScreen)
	w.mu.Unlock()
	var first session.Status
	eventually(t, "the first word", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		first = p.shown.Status
		return p.examined
	})
	if first.State != session.Waiting || first.Dialog == nil || first.Dialog.Digest != got.Status.Dialog.Digest {
		t.Errorf("%+v", first)
	}
}
