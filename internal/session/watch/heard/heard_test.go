package heard

import (
	"testing"
	"time"

	"holdfast/internal/session"
)

const (
	theShell = 10
	program  = 20
)

func TestWhoSaidIt(t *testing.T) {
	began := time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name, said string
		foreground int // whom the bytes were heard of
		after      time.Duration
		next       int // has the foreground after that
		shell      bool
		want       session.State // "" for nothing
	}{
		{"said before it was seen", "working", theShell, 100 * time.Millisecond, program, false, session.Working},
		{"asked before it was seen", "blocked", theShell, 100 * time.Millisecond, program, false, session.Waiting},
		{"said by what ran before", "working", program, time.Minute, 30, false, ""},
		{"finished, and the shell is back", "done", program, time.Minute, theShell, true, session.Done},
		{"finished, and another program runs", "done", theShell, time.Minute, program, false, ""},
		{"idle, and another program runs", "idle", theShell, time.Minute, program, false, ""},
		{"asked, and the shell is back", "blocked", program, time.Second, theShell, true, ""},
		{"asked, and the shell is back at once", "blocked", program, time.Millisecond, theShell, true, ""},
	} {
		var h Heard
		h.Feed([]byte("\x1b]7501;state="+c.said+"\a"), false, c.foreground, began)
		h.Replaced(c.next, c.shell, began.Add(c.after))
		got := session.State("")
		if s := h.Signal(c.next, false); s != nil {
			got = s.State
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// A sequence may be cut anywhere.
func TestCutAnywhere(t *testing.T) {
	whole := []byte("x\x1b]7501;state=blocked:kind=permission:title=UnVu\x1b\\y\x1bPtmux;\x1b\x1b]7501;state=working\a\x1b\\")
	for cut := range whole {
		var h Heard
		now := time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)
		h.Feed(whole[:cut], false, program, now)
		h.Feed(whole[cut:], false, program, now)
		if s := h.Signal(program, false); s == nil || s.State != session.Working {
			t.Errorf("cut at %d: %+v", cut, s)
		}
	}
	var h Heard
	for i := range whole {
		h.Feed(whole[i:i+1], false, program, time.Now())
	}
	if s := h.Signal(program, false); s == nil || s.State != session.Working {
		t.Errorf("byte by byte: %+v", s)
	}
}
