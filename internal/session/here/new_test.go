package here

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/session"
	"holdfast/internal/session/proc"
	"holdfast/internal/session/proto"
)

// emptyDesk is a desk whose tmux server does not run yet: it is the one that
// tmux itself would choose. Its person has a login shell that knows one tool.
func emptyDesk(t *testing.T) *desk {
	t.Helper()
	d := bareDesk(t, filepath.Join("tmux-"+strconv.Itoa(os.Getuid()), "default"))
	dir := d.dir
	write := func(name, text string, mode os.FileMode) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	write("bin/aider", "#!/bin/sh\n{ pwd; env; } >\"$HOME/log\"\nsleep 1\n", 0o700)
	write(".profile", "PATH=\"$HOME/bin:$PATH\"\nPS1='ready> '\n", 0o600)
	environ := append(os.Environ(), "TMUX_TMPDIR="+dir, "HOME="+dir, "SHELL=/bin/sh", "ENV=", "CLAUDECODE=1", "TMUX=/nowhere,1,0")
	d.open(environ)
	return d
}

// make starts a session in a directory and waits until the device knows it.
func (d *desk) make(dir, command string) session.Session {
	d.t.Helper()
	var started proto.Started
	if err := d.device.Call(d.t.Context(), proto.OpNew, proto.New{Dir: dir, Command: command}, &started, nil); err != nil {
		d.t.Fatalf("new %q in %q: %v", command, dir, err)
	}
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		all, _ := d.device.Sessions()
		if i := slices.IndexFunc(all, func(s session.Session) bool { return s.ID == started.Session }); i >= 0 {
			return all[i]
		}
	}
	d.t.Fatalf("the session %s is not listed", started.Session)
	return session.Session{}
}

func TestANewSessionStartsAServerAndRunsTheTool(t *testing.T) {
	d := emptyDesk(t)
	var list proto.Commands
	if err := d.device.Call(t.Context(), proto.OpCommands, proto.On{}, &list, nil); err != nil {
		t.Fatal(err)
	}
	has := func(name string) bool {
		return slices.ContainsFunc(list.Commands, func(c proto.Command) bool { return c.Name == name })
	}
	if !has("aider") || !has("shell") || !slices.Contains(list.Dirs, d.dir) {
		t.Errorf("the list of commands: %+v", list)
	}
	work := filepath.Join(d.dir, "work")
	if err := os.Mkdir(work, 0o700); err != nil {
		t.Fatal(err)
	}
	s := d.make(work, "aider")
	if s.Name != "work" || s.Server != d.socket {
		t.Errorf("the session: %+v", s)
	}
	for end := time.Now().Add(patience); !strings.Contains(d.said(), "TMUX_PANE="); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the tool did not start:\n%s", d.tmux("capture-pane", "-p", "-t", "work"))
		}
	}
	said := d.said()
	if !strings.HasPrefix(said, work+"\n") || strings.Contains(said, "CLAUDECODE") || strings.Contains(said, "TMUX=/nowhere") {
		t.Errorf("the tool's directory and environment:\n%s", said)
	}
	// The shell stays when the tool has ended.
	d.until("work", "back at the shell", func(s session.Session) bool { return s.Tool == "sh" || s.Tool == "dash" })
	// A second one in the same directory has a name of its own.
	again := d.make("~/work", "shell")
	if again.Name != "work-2" || again.ID == s.ID {
		t.Errorf("the second session: %+v", again)
	}
	if third := d.make(work+"/../work", "shell"); third.Name != "work-3" {
		t.Errorf("the third session: %+v", third)
	}
	if home := d.make("", "shell"); home.Name != filepath.Base(d.dir) {
		t.Errorf("a session in the home directory: %+v", home)
	}
}

func TestANewSessionInADirectoryOfAnyName(t *testing.T) {
	d := emptyDesk(t)
	for name, want := range map[string]string{
		"with space":            "with space",
		"日本語 🙂":                 "日本語 🙂",
		"a.b:c":                 "a_b_c",
		"-n":                    "n",
		"=$5":                   "5",
		"#(touch ran)#{pid}":    "#(touch ran)#{pid}",
		"ends with;":            "ends with;",
		`quote'"$HOME`:          `quote'"$HOME`,
		strings.Repeat("x", 90): strings.Repeat("x", 60),
	} {
		dir := filepath.Join(d.dir, name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		s := d.make(dir, "shell")
		if s.Name != want {
			t.Errorf("in %q the session is called %q, want %q", name, s.Name, want)
		}
		cwd := d.tmux("display-message", "-p", "-t", strings.SplitN(string(s.ID), ":", 2)[1], "#{pane_current_path}")
		if cwd != dir {
			t.Errorf("in %q the directory is %q", dir, cwd)
		}
	}
	if ran, _ := filepath.Glob(filepath.Join(d.dir, "*", "ran")); len(ran) != 0 {
		t.Errorf("a directory's name was run as a command: %v", ran)
	}
}

func TestANewSessionThatCannotBe(t *testing.T) {
	d := emptyDesk(t)
	file := filepath.Join(d.dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		dir, command string
		code         proto.Code
	}{
		{filepath.Join(d.dir, "missing"), "shell", proto.CodeNoDir},
		{file, "shell", proto.CodeNoDir},
		{"relative", "shell", proto.CodeNoDir},
		{"~somebody/x", "shell", proto.CodeNoDir},
		{d.dir + "\x00", "shell", proto.CodeNoDir},
		{"~/a\nb", "shell", proto.CodeNoDir},
		{d.dir, "reboot", proto.CodeNoCommand},
		{d.dir, "sh -c x", proto.CodeNoCommand},
		{d.dir, "", proto.CodeNoCommand},
	} {
		err := d.device.Call(t.Context(), proto.OpNew, proto.New{Dir: c.dir, Command: c.command}, nil, nil)
		refused(t, err, c.code)
	}
	if _, err := os.Stat(d.socket); err == nil {
		t.Error("a refused request started a tmux server")
	}
}

func TestASessionEndsOnlyWhenConfirmed(t *testing.T) {
	d := emptyDesk(t)
	dir := filepath.Join(d.dir, "it's 🙂")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s := d.make(dir, "shell")
	d.make(d.dir, "shell") // keeps the server
	s = d.until(s.Name, "with its process", func(s session.Session) bool { return s.PID != 0 })
	for _, confirm := range []string{"", "it's", "IT'S 🙂", string(s.ID)} {
		err := d.device.Call(t.Context(), proto.OpEnd, proto.End{Session: s.ID, Confirm: confirm}, nil, nil)
		if e := refused(t, err, proto.CodeNotConfirmed); !strings.Contains(e.Message, s.Name) {
			t.Errorf("the refusal does not say the name: %v", e)
		}
	}
	if syscall.Kill(s.PID, 0) != nil {
		t.Fatal("the program ended without a confirmation")
	}
	if err := d.device.Call(t.Context(), proto.OpEnd, proto.End{Session: s.ID, Confirm: s.Name}, nil, nil); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); proc.Running(s.PID); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the program of an ended session goes on")
		}
	}
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		err := d.device.Call(t.Context(), proto.OpEnd, proto.End{Session: s.ID, Confirm: s.Name}, nil, nil)
		if err != nil {
			refused(t, err, proto.CodeNoSession)
			break
		}
		if time.Now().After(end) {
			t.Fatal("a session that ended can be ended again")
		}
	}
}

func TestANewSessionOnAServerThatHangs(t *testing.T) {
	d := emptyDesk(t)
	d.make(d.dir, "shell")
	pid, _ := strconv.Atoi(d.tmux("display-message", "-p", "#{pid}"))
	t.Cleanup(func() { syscall.Kill(pid, syscall.SIGCONT) })
	syscall.Kill(pid, syscall.SIGSTOP)
	began := time.Now()
	err := d.device.Call(t.Context(), proto.OpNew, proto.New{Dir: d.dir, Command: "shell"}, nil, nil)
	if e := refused(t, err, proto.CodeFailed); !strings.Contains(e.Message, "does not answer") {
		t.Errorf("the refusal: %v", e)
	}
	if took := time.Since(began); took > startTimeout+10*time.Second {
		t.Errorf("it took %v", took)
	}
}
