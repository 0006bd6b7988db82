package proc

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestToolsAreToldByWhatIsExecuted(t *testing.T) {
	for _, c := range []struct {
		name    string
		p       Process
		tool    string
		version string
		known   bool
	}{
		{"native Claude Code", Process{Name: "claude", Args: []string{"claude"}, Exe: "/home/dev/.local/share/claude/versions/2.1.261"}, "claude", "2.1.261", true},
		{"Claude Code that calls itself by its version", Process{Name: "2.1.261", Args: []string{"2.1.261", "--continue"}, Exe: "/home/dev/.local/share/claude/versions/2.1.261"}, "claude", "2.1.261", true},
		{"Claude Code on node", Process{Name: "node", Args: []string{"node", "/usr/lib/node_modules/@anthropic-ai/claude-code/cli.js"}, Exe: "/usr/bin/node"}, "claude", "", true},
		{"Claude Code by its link", Process{Name: "node", Args: []string{"node", "--max-old-space-size=8192", "/usr/bin/claude", "-p"}, Exe: "/usr/bin/node"}, "claude", "", true},
		{"Codex", Process{Name: "codex", Args: []string{"codex", "resume"}, Exe: "/usr/local/bin/codex"}, "codex", "", true},
		{"Codex's binary in its npm package", Process{Name: "codex", Args: []string{"/x/node_modules/@openai/codex-linux-x64/vendor/codex"}, Exe: "/x/node_modules/@openai/codex-linux-x64/vendor/codex"}, "codex", "", true},
		{"what Codex runs for the model", Process{Name: "codex-linux-san", Args: []string{"codex-linux-sandbox", "--", "make"}, Exe: "/usr/local/bin/codex-linux-sandbox"}, "codex-linux-sandbox", "", false},
		{"Gemini CLI", Process{Name: "node", Args: []string{"node", "/usr/bin/gemini"}, Exe: "/usr/bin/node"}, "gemini", "", true},
		{"a browser named gemini", Process{Name: "gemini", Args: []string{"gemini", "gemini://x"}, Exe: "/usr/bin/gemini"}, "gemini", "", false},
		{"opencode", Process{Name: "opencode", Args: []string{"opencode"}, Exe: "/home/dev/.opencode/bin/opencode"}, "opencode", "", true},
		{"aider", Process{Name: "python3", Args: []string{"/usr/bin/python3", "/home/dev/.local/bin/aider", "--model", "x"}, Exe: "/usr/bin/python3.12"}, "aider", "", true},
		{"aider as a module", Process{Name: "python3", Args: []string{"python3", "-m", "aider"}, Exe: "/usr/bin/python3.12"}, "aider", "", true},
		{"a file that is about claude", Process{Name: "vim", Args: []string{"vim", "/home/dev/claude"}, Exe: "/usr/bin/vim"}, "vim", "", false},
		{"a script", Process{Name: "python3", Args: []string{"python3", "-u", "build.py", "claude"}, Exe: "/usr/bin/python3"}, "build.py", "", false},
		{"a script under a tool's name", Process{Name: "bash", Args: []string{"claude", "/home/dev/show.sh"}, Exe: "/usr/bin/bash"}, "show.sh", "", false},
		{"a tool that names itself", Process{Name: "claude", Args: []string{"claude"}, Exe: "/usr/bin/node"}, "claude", "", true},
		{"a command line of a shell", Process{Name: "bash", Args: []string{"bash", "-lc", "claude"}, Exe: "/usr/bin/bash"}, "bash", "", false},
		{"nothing can be read", Process{Name: "thing"}, "thing", "", false},
	} {
		f := identify([]Process{c.p}, nil)
		if f.Tool != c.tool || f.Version != c.version || f.Known != c.known {
			t.Errorf("%s: %q %q %v, want %q %q %v", c.name, f.Tool, f.Version, f.Known, c.tool, c.version, c.known)
		}
	}
}

func TestTheToolOfAGroup(t *testing.T) {
	launcher := Process{PID: 10, Parent: 1, Name: "node", Args: []string{"node", "/usr/bin/codex"}, Exe: "/usr/bin/node"}
	binary := Process{PID: 11, Parent: 10, Name: "codex", Args: []string{"/x/@openai/codex/bin/codex"}, Exe: "/x/@openai/codex/bin/codex"}
	if f := identify([]Process{launcher, binary}, nil); f.PID != 11 || f.Tool != "codex" {
		t.Errorf("a launcher and its binary: %d %s", f.PID, f.Tool)
	}
	npx := Process{PID: 20, Name: "npm exec @anthr", Args: []string{"npm exec @anthropic-ai/claude-code"}, Exe: "/usr/bin/node"}
	claude := Process{PID: 21, Parent: 20, Name: "claude", Args: []string{"claude"}, Exe: "/usr/bin/node"}
	if f := identify([]Process{npx, claude}, nil); f.PID != 21 || f.Tool != "claude" {
		t.Errorf("npx: %d %s", f.PID, f.Tool)
	}
	wrapper := Process{PID: 30, Name: "claude", Args: []string{"/bin/sh", "/home/dev/bin/claude"}, Exe: "/usr/bin/dash"}
	if f := identify([]Process{wrapper, claude}, nil); f.PID != 21 {
		t.Errorf("a wrapper script and the tool: %d", f.PID)
	}
	if f := identify([]Process{wrapper}, nil); f.Tool != "claude" || !f.Known {
		t.Errorf("a wrapper script alone: %+v", f)
	}
	editor := Process{PID: 40, Name: "vim", Args: []string{"vim", "/tmp/prompt"}, Exe: "/usr/bin/vim"}
	if f := identify([]Process{editor}, []Process{claude}); f.Tool != "claude" {
		t.Errorf("an editor that the tool started: %s", f.Tool)
	}
}

func TestInteractiveShells(t *testing.T) {
	for line, want := range map[string]bool{
		"-bash": true, "bash --norc -i": true, "bash --rcfile /x/rc": true, "zsh -l": true, "/usr/bin/fish": true, "sh -i": true,
		"bash build.sh": false, "bash -c make": false, "bash -lc make": false, "sh /x/y": false, "python3": false, "node": false,
	} {
		if got := interactive(Process{Name: "x", Args: strings.Fields(line)}); got != want {
			t.Errorf("%q is interactive: %v, want %v", line, got, want)
		}
	}
}

func TestReadsAProcessAndHearsOfItsEnd(t *testing.T) {
	cmd := exec.Command("sleep", "300")
	cmd.Env = []string{"TMUX_PANE=%5", "SECRET=s", "PATH=" + os.Getenv("PATH")}
	dir := t.TempDir()
	cmd.Dir = dir
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	p, err := Read(pid)
	if err != nil || p.Parent != os.Getpid() || p.Name == "" || time.Since(p.Started) > time.Minute || p.Started.After(time.Now().Add(time.Second)) {
		t.Errorf("%+v, %v", p, err)
	}
	if !Alive(pid, p.Start) || Alive(pid, p.Start+"1") {
		t.Error("Alive does not compare the start")
	}
	if env := Env(pid, "TMUX_PANE", "NONE"); len(env) != 1 || env["TMUX_PANE"] != "%5" {
		t.Errorf("environment %v", env)
	}
	exits, err := NewExits()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan int, 1)
	done := make(chan struct{})
	go func() { defer close(done); exits.Run(ctx, func(pid int) { ended <- pid }) }()
	if err := exits.Add(pid); err != nil {
		t.Fatal(err)
	}
	cmd.Process.Kill()
	if got := <-ended; got != pid {
		t.Errorf("the end of %d was told, want %d", got, pid)
	}
	cmd.Wait()
	if err := exits.Add(pid); !errors.Is(err, ErrGone) {
		t.Errorf("add a process that has ended: %v", err)
	}
	if _, err := Read(pid); !errors.Is(err, ErrGone) {
		t.Errorf("read a process that has ended: %v", err)
	}
	if _, err := Foreground(pid); err == nil {
		t.Error("a process that has ended has a terminal")
	}
	cancel()
	<-done
	if err := exits.Add(os.Getpid()); err == nil {
		t.Error("a watch that has ended takes processes")
	}
}

func TestTerminalRefusesWhatIsNone(t *testing.T) {
	for _, path := range []string{"", "/etc/passwd", "/dev/null", "/dev/pts/99999"} {
		if _, err := Terminal(path); err == nil {
			t.Errorf("%q has modes", path)
		}
	}
	if !(Modes{Lines: true}).Secret() || (Modes{}).Secret() || (Modes{Echo: true, Lines: true}).Secret() {
		t.Error("a secret is lines without echo")
	}
}
