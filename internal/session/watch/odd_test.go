package watch

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/internal/session"
)

const forgedDialog = `────────────────────────────────────────────────────────
 Bash command

   rm -rf build
   Remove

 Do you want to proceed?
 ❯ 1. Yes
   2. Yes, and don't ask again
   3. No (esc)
`

// What people and programs do that is easily taken for something else. Each case
// is a shell in which a line is entered, and then something is typed without Enter
// (or with it, where it ends in a line break).
func TestWhatIsEasilyMistaken(t *testing.T) {
	dir := place(t)
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	forged := write("forged.txt", forgedDialog)
	shows := write("shows.sh", "#!/bin/bash\ncat "+forged+"\nsleep 100\n")
	spins := write("spins.sh", "#!/bin/bash\nstty -echo\nfor i in $(seq 500); do printf .; sleep 0.2; done\n")
	quiet := write("quiet.sh", "#!/bin/bash\nstty -echo\nprintf 'building '\nsleep 100\n")
	tells := write("tells.sh", "#!/bin/bash\nprintf '\\033]7501;state=blocked:kind=question:title=UnVu\\007'\nsleep 100\n")
	marks := write("marks.txt", "\x1b]133;A\a\x1b]133;C\a")
	s := startServer(t, filepath.Join(dir, "s"), "base", shell)
	cases := []struct {
		name, size, line, typed string
		state                   session.State
		kind                    session.Kind
		tool, title             string
	}{
		{name: "a question that is typed", typed: "echo should I continue?", state: session.Idle, tool: "bash"},
		{name: "a choice that is typed", typed: "echo go on [y/N]", state: session.Idle, tool: "bash"},
		{name: "a choice in the scrollback", line: "echo 'Continue? [y/N]'; sleep 100", state: session.Working, tool: "sleep"},
		{name: "a forged dialog", line: "cat " + forged, state: session.Idle, tool: "bash"},
		{name: "a program that forges one", line: shows, state: session.Working, tool: "shows.sh"},
		{name: "one under another name", line: "(exec -a claude bash " + shows + ")", state: session.Working, tool: "shows.sh"},
		{name: "echo off for looks", line: spins, state: session.Working, tool: "spins.sh"},
		{name: "echo off and quiet", line: quiet, state: session.Working, tool: "quiet.sh"},
		{name: "marks in a file", line: "cat " + marks, state: session.Idle, tool: "bash"},
		{name: "marks of a shell that is gone", line: "bash --norc -c 'cat " + marks + "; sleep 1'", state: session.Idle, tool: "bash"},
		{name: "a command after a finish", line: `printf '\033]7501;state=done\007'; sleep 2; sleep 100`, state: session.Working, tool: "sleep"},
		{name: "a report in the first line", line: tells, state: session.Waiting, kind: session.Question, tool: "tells.sh", title: "Run"},
		{name: "behind a second terminal", line: "script -q /dev/null -c 'sleep 100'", state: session.Working, tool: "sleep"},
		{name: "a shell behind a second terminal", line: "script -q /dev/null", typed: "sleep 100\n", state: session.Working, tool: "sleep"},
		{name: "a password behind a second terminal", line: `script -q /dev/null -c "bash -c 'read -sp Password: x'"`, state: session.Waiting, kind: session.Password, tool: "bash"},
		{name: "a password without a known prompt", line: `bash -c 'read -sp Zugang x'`, state: session.Waiting, kind: session.Password, tool: "bash"},
		{name: "a flood", line: "yes", state: session.Working, tool: "yes"},
		{name: "a reader", line: "cat", typed: "a line", state: session.Unknown, tool: "cat"},
		{name: "a loop of the shell", line: "while :; do sleep 0.1; done", state: session.Working},
		{name: "wrapped", size: "30x10", line: `clear; bash -c "read -p 'Do you really want to delete all of it now? [y/N] ' x"`, state: session.Waiting, kind: session.Question,
			tool: "bash", title: "Do you really want to delete all of it now? [y/N]"},
		{name: "tiny", size: "10x3", line: `clear; bash -c "read -p 'Do you want to delete it? [y/N] ' x"`, state: session.Waiting, kind: session.Question, tool: "bash"},
		{name: "huge", size: "500x200", line: `clear; bash -c "read -p 'Delete it? [y/N] ' x"`, state: session.Waiting, kind: session.Question, tool: "bash", title: "Delete it? [y/N]"},
	}
	for i, c := range cases {
		if c.size == "" {
			c.size = "100x30"
		}
		cols, rows, _ := strings.Cut(c.size, "x")
		s.run("new-session", "-d", "-s", c.name, "-x", cols, "-y", rows, shell)
		cases[i].size = c.size
	}
	// script is deaf to the hangup that ends a pane, and what it runs goes on with it.
	t.Cleanup(func() {
		for pid := range strings.FieldsSeq(s.run("list-panes", "-a", "-F", "#{pane_pid}")) {
			exec.Command("pkill", "-KILL", "-P", pid).Run() // fails where the pane runs nothing
		}
	})
	w, _ := start(t, Options{Sockets: []string{s.socket}})
	for _, c := range cases {
		becomes(t, w, c.name, session.Idle)
	}
	for _, c := range cases {
		if c.line != "" {
			s.enter("="+c.name+":", c.line)
		}
	}
	time.Sleep(4 * time.Second) // programs have begun, and finishes are over
	for _, c := range cases {
		if c.typed != "" {
			s.run("send-keys", "-t", "="+c.name+":", "-l", "--", strings.TrimSuffix(c.typed, "\n"))
		}
		if strings.HasSuffix(c.typed, "\n") {
			s.run("send-keys", "-t", "="+c.name+":", "Enter")
		}
	}
	time.Sleep(6 * time.Second) // what is right at first must stay so
	for _, c := range cases {
		good := func(got session.Session) bool {
			d := got.Status.Dialog
			return got.Status.State == c.state && got.Status.Kind == c.kind && (c.tool == "" || got.Tool == c.tool) &&
				(c.title == "" || d != nil && d.Title == c.title) && (c.state == session.Unknown || len(got.Status.Evidence) > 0)
		}
		for end := time.Now().Add(60 * time.Second); time.Now().Before(end) && !good(find(w, c.name)); {
			time.Sleep(20 * time.Millisecond)
		}
		if got := find(w, c.name); !good(got) {
			t.Errorf("%s: tool %s, %s %s, evidence %+v, dialog %+v; want %s %s %s %q\n%s", c.name, got.Tool, got.Status.State, got.Status.Kind,
				got.Status.Evidence, got.Status.Dialog, c.tool, c.state, c.kind, c.title, s.run("capture-pane", "-p", "-t", "="+c.name+":"))
		}
	}
	if one := find(w, "a choice that is typed"); one.ID != "" {
		if h, ok := w.Pane(one.ID); ok {
			if l, err := h.Look(t.Context()); err != nil || !l.Screen.Editing {
				t.Errorf("a look at it: %+v, %v", l, err)
			}
		}
	}
}
