// Package proc says what runs in the foreground of a terminal: which program,
// whether it is one of the coding tools, since when, and whether the terminal
// is set to read a secret. It reads what the system tells about processes of
// this user; it signals none and changes no terminal.
//
// What a caller will get wrong: a process id means something only together
// with its start (Process.Start), because ids are used again; the name of a
// program is what it calls itself, so tools are told by what is executed first;
// and on systems other than Linux less is known (no working directory, no
// programs behind a second terminal), which then is empty, not wrong.
package proc

import (
	"errors"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// ErrGone says that the process is not there.
var ErrGone = errors.New("no such process")

// A Process is one process as it was when it was read.
type Process struct {
	PID, Parent int
	Group       int    // its process group
	Terminal    uint64 // the device of its controlling terminal; 0 for none
	Foreground  int    // the group that the terminal's keys go to; -1 for none
	// Start tells the process from another with the same id: the system's own
	// word for its start, for comparing only.
	Start   string
	Started time.Time // to about 10 ms; zero where the system does not tell
	Name    string    // as the system cuts it: 15 bytes on Linux
	Args    []string  // empty where it may not be read
	Exe     string    // the file it executes; empty where it may not be read
	Zombie  bool      // ended, not yet reaped
}

// Facts are what is known of the foreground of a pane's terminal.
type Facts struct {
	Process
	// Tool is claude, codex, gemini, opencode, aider or another known tool;
	// otherwise the program's name.
	Tool string
	// Known says that Tool is a coding tool and not just a name.
	Known   bool
	Version string // of the tool, where its path tells
	// Shell says that an interactive shell is itself in the foreground.
	Shell bool
	Dir   string // its working directory; empty where it is not known
	// Behind is the first process of a terminal behind the pane's, as script and
	// sudo make one, and BehindGroup what has the foreground there; 0 for none.
	Behind, BehindGroup int
}

// shells are the programs at whose prompt a person types commands.
var shells = []string{"sh", "bash", "zsh", "fish", "dash", "ksh", "mksh", "tcsh", "csh", "ash", "nu", "xonsh", "pwsh", "elvish"}

// interpreters run a script that says more about what runs than they do.
var interpreters = regexp.MustCompile(`^(node|nodejs|bun|deno|python[0-9.]*|pypy[0-9.]*|ruby|perl|uv|uvx|npx|tsx)$`)

// Interpreted reports whether an interpreter runs the process: a script, which may
// be no more than the launcher of a tool.
func (p Process) Interpreted() bool { return interpreters.MatchString(filepath.Base(p.Exe)) }

// program is the name of what a process runs: the script of an interpreter,
// else the file.
func program(p Process) (name, script string, shellScript bool) {
	name = p.Name
	if len(p.Args) > 0 && p.Args[0] != "" {
		name = strings.TrimPrefix(filepath.Base(firstWord(p.Args[0])), "-")
	}
	// Whoever starts a shell or an interpreter may call it anything; a script that
	// names itself leaves nothing but that name.
	if exe := filepath.Base(p.Exe); len(p.Args) > 1 && !slices.Contains(shells, name) && (slices.Contains(shells, exe) || interpreters.MatchString(exe)) {
		name = exe
	}
	isShell := slices.Contains(shells, name)
	if !isShell && !interpreters.MatchString(name) {
		return name, "", false
	}
	for i := 1; i < len(p.Args); i++ {
		a := p.Args[i]
		switch {
		case a == "-m" && !isShell && i+1 < len(p.Args):
			return p.Args[i+1], p.Args[i+1], false
		case a == "-c" || a == "-e" || a == "--eval" || isShell && strings.HasPrefix(a, "-") && !strings.HasPrefix(a, "--") && strings.Contains(a, "c"):
			return name, "", isShell
		case a == "--rcfile" || a == "--init-file" || a == "-o" || a == "-O" || a == "--require" || a == "-r":
			i++
		case strings.HasPrefix(a, "-") || strings.HasPrefix(a, "+"):
		case a == "run" && !isShell:
		default:
			return filepath.Base(a), a, isShell
		}
	}
	return name, "", false
}

// firstWord is for programs that write their arguments over argv[0].
func firstWord(s string) string {
	if strings.HasPrefix(s, "/") {
		return s // a path may hold blanks
	}
	word, _, _ := strings.Cut(s, " ")
	return word
}

// interactive says that a process is a shell without a script or command.
func interactive(p Process) bool {
	name, script, commanded := program(p)
	return slices.Contains(shells, name) && script == "" && !commanded
}

var claudeVersion = regexp.MustCompile(`/claude/versions/([0-9][0-9A-Za-z.+-]{0,30})`)

// tool says which coding tool a process is. certain is false where only the
// name of a shell script says so: that is a wrapper, or a program of the same
// name.
func tool(p Process) (name, version string, certain bool) {
	prog, script, shellScript := program(p)
	path := filepath.ToSlash(script)
	if shellScript {
		switch prog {
		case "claude", "codex", "gemini", "opencode", "aider":
			return prog, "", false
		}
		return "", "", false
	}
	if m := claudeVersion.FindStringSubmatch(p.Exe); m != nil {
		return "claude", m[1], true
	}
	has := func(part string) bool { return strings.Contains(path, part) || strings.Contains(p.Exe, part) }
	exe := strings.TrimSuffix(filepath.Base(p.Exe), " (deleted)")
	switch {
	case has("@anthropic-ai/claude-code"), prog == "claude", exe == "claude":
		return "claude", "", true
	case exe == "codex-linux-sandbox", prog == "codex-linux-sandbox":
		return "", "", false // what it runs for the model is not the tool
	case has("@openai/codex"), prog == "codex", exe == "codex", strings.HasPrefix(exe, "codex-") && strings.Contains(exe, "-linux-"):
		return "codex", "", true
	// A browser of the Gemini network has the same name, and is no script.
	case has("@google/gemini-cli"), prog == "gemini" && script != "":
		return "gemini", "", true
	case has("opencode-ai"), prog == "opencode", exe == "opencode", exe == ".opencode":
		return "opencode", "", true
	case prog == "aider" || prog == "aider.main":
		return "aider", "", true
	case has("@sourcegraph/amp"):
		return "amp", "", true
	case prog == "cursor-agent":
		return "cursor", "", true
	case prog == "goose" && script == "":
		return "goose", "", true
	}
	return "", "", false
}

// second are programs that run another one behind a terminal of their own.
var second = []string{"script", "sudo", "su", "doas", "unbuffer", "expect", "asciinema", "dtach", "abduco", "rlwrap", "setarch"}

// identify chooses what a person would say runs: a tool in the foreground
// group, its leader first; a tool among the ancestors, which started what is in
// the foreground; else the leader.
func identify(group, ancestors []Process) Facts {
	f := Facts{Process: group[0]}
	for _, sure := range []bool{true, false} {
		for _, list := range [][]Process{group, ancestors} {
			for _, p := range list {
				if name, version, certain := tool(p); name != "" && certain == sure {
					p, version = launched(p, name, version, group)
					return Facts{Process: p, Tool: name, Version: version, Known: true}
				}
			}
		}
	}
	f.Tool, _, _ = program(f.Process)
	if len(f.Tool) > 64 {
		f.Tool = strings.ToValidUTF8(f.Tool[:64], "")
	}
	f.Shell = interactive(f.Process)
	return f
}

// launched steps from a script that only starts the tool's own binary to that
// binary: it is the one that names itself in its registry, opens its files and
// is gone when it is killed.
func launched(p Process, name, version string, group []Process) (Process, string) {
	if _, script, _ := program(p); script == "" {
		return p, version
	}
	for _, c := range group {
		if c.Parent != p.PID {
			continue
		}
		if n, v, certain := tool(c); n == name && certain {
			if _, script, _ := program(c); script == "" {
				return c, v
			}
		}
	}
	return p, version
}

// Modes are the modes of a terminal.
type Modes struct {
	Echo bool // what is typed is shown
	// Lines says that the terminal gathers lines: a program with its own line
	// editor or a full screen turns that off.
	Lines bool
}

// Secret says that lines are read and not shown, as a password is.
func (m Modes) Secret() bool { return m.Lines && !m.Echo }

// AsksSecret says that a program reads a line which is not shown. Scripts turn
// echo off for looks too, so what is known not to read the terminal asks nothing.
func (f Facts) AsksSecret(m Modes) bool {
	switch {
	case !m.Secret() || f.Known:
		return false
	case f.Shell:
		return Reads(f.PID)
	}
	return mayRead(f.Group)
}

// EditsLine says that a shell is at its prompt: its line editor has the terminal,
// and what stands there is what the person types.
func (f Facts) EditsLine(m Modes) bool { return f.Shell && !m.Lines }
