package here

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"holdfast/internal/session"
	"holdfast/internal/session/proto"
	"holdfast/internal/session/tmux"
)

// appearTime is how long a new session may take to be seen by the watcher: that
// of a new server takes a second, on a machine that is busy some.
const appearTime = 10 * time.Second

// startTimeout bounds tmux's own start of a session.
const startTimeout = 10 * time.Second

// shellTime bounds a login shell that is asked for programs: some take two
// seconds to read what their owner wrote.
const shellTime = 5 * time.Second

// maxDirs bounds the directories that are offered.
const maxDirs = 50

// command is one that a session can be started with.
type command struct {
	proto.Command
	program string // looked for on the person's PATH; empty is their shell
}

// commands is the list: the tools that are known, and a shell.
var commands = []command{
	{proto.Command{Name: "claude", Label: "Claude Code"}, "claude"},
	{proto.Command{Name: "codex", Label: "Codex"}, "codex"},
	{proto.Command{Name: "gemini", Label: "Gemini CLI"}, "gemini"},
	{proto.Command{Name: "opencode", Label: "opencode"}, "opencode"},
	{proto.Command{Name: "aider", Label: "aider"}, "aider"},
	{proto.Command{Name: "shell", Label: "Shell"}, ""},
}

// unset are variables that a new session must not inherit: they say that a
// program runs inside of tmux or of a tool, which keeps some from starting.
var unset = []string{
	"TMUX", "TMUX_PANE", "CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_SSE_PORT", "CODEX_SANDBOX",
	"CODEX_SANDBOX_NETWORK_DISABLED", "GEMINI_CLI", "OPENCODE", "STY",
}

// starter starts and ends sessions.
type starter struct{ h *Here }

func (s starter) Commands(ctx context.Context) (proto.Commands, error) {
	out := proto.Commands{Dirs: []string{s.h.o.Home}}
	installed := s.h.installed(ctx)
	for _, c := range commands {
		if c.program == "" || installed[c.program] {
			out.Commands = append(out.Commands, c.Command)
		}
	}
	s.h.ready()
	for _, one := range s.h.watch.Sessions() {
		if one.Dir != "" && !slices.Contains(out.Dirs, one.Dir) && len(out.Dirs) < maxDirs {
			out.Dirs = append(out.Dirs, one.Dir)
		}
	}
	return out, nil
}

// installed says which programs of the list are there: on this process's PATH,
// or on that of the person's login shell, which a service does not have.
func (h *Here) installed(ctx context.Context) map[string]bool {
	out := map[string]bool{}
	var ask []string
	for _, c := range commands {
		if c.program == "" {
			continue
		}
		if _, err := exec.LookPath(c.program); err == nil {
			out[c.program] = true
		} else {
			ask = append(ask, c.program)
		}
	}
	if len(ask) == 0 {
		return out
	}
	ctx, cancel := context.WithTimeout(ctx, shellTime)
	defer cancel()
	const mark = "holdfast-has:"
	var script strings.Builder
	for _, p := range ask {
		fmt.Fprintf(&script, "command -v %s >/dev/null 2>&1 && echo %s%s\n", p, mark, p)
	}
	cmd := exec.CommandContext(ctx, h.shell(), "-l", "-c", script.String())
	cmd.Env, cmd.Dir, cmd.WaitDelay = h.cleanEnviron(), h.o.Home, time.Second
	said, _ := cmd.Output() // what a shell that fails has said is still true
	for line := range strings.Lines(string(said)) {
		if p, ok := strings.CutPrefix(strings.TrimSpace(line), mark); ok && slices.Contains(ask, p) {
			out[p] = true
		}
	}
	return out
}

// shell is the person's shell.
func (h *Here) shell() string {
	for _, v := range h.o.Environ {
		if s, ok := strings.CutPrefix(v, "SHELL="); ok && filepath.IsAbs(s) {
			return s
		}
	}
	return "/bin/sh"
}

func (h *Here) cleanEnviron() []string {
	return slices.DeleteFunc(slices.Clone(h.o.Environ), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(unset, name)
	})
}

// directory checks the directory of a new session.
func (h *Here) directory(dir string) (string, error) {
	switch {
	case dir == "~" || dir == "":
		dir = h.o.Home
	case strings.HasPrefix(dir, "~/"):
		dir = filepath.Join(h.o.Home, dir[2:])
	}
	if !filepath.IsAbs(dir) || strings.ContainsAny(dir, "\x00\n") {
		return "", proto.Errorf(proto.CodeNoDir, "the directory must be an absolute path, or begin with ~/")
	}
	dir = filepath.Clean(dir)
	st, err := os.Stat(dir)
	if err != nil {
		return "", &proto.Error{Code: proto.CodeNoDir, Message: fmt.Sprintf("the directory cannot be used: %v", errors.Unwrap(err))}
	}
	if !st.IsDir() {
		return "", proto.Errorf(proto.CodeNoDir, "that is a file, not a directory")
	}
	return dir, nil
}

func (s starter) New(ctx context.Context, r proto.New) (proto.Started, error) {
	dir, err := s.h.directory(r.Dir)
	if err != nil {
		return proto.Started{}, err
	}
	i := slices.IndexFunc(commands, func(c command) bool { return c.Name == r.Command })
	if i < 0 || commands[i].program != "" && !s.h.installed(ctx)[commands[i].program] {
		return proto.Started{}, proto.Errorf(proto.CodeNoCommand, "the machine has no command %q to start", proto.Cut(r.Command, 64))
	}
	socket, pane, err := s.h.start(ctx, dir, commands[i].program)
	if err != nil {
		return proto.Started{}, err
	}
	id, err := s.h.appears(ctx, socket, pane)
	return proto.Started{Session: id}, err
}

// start runs tmux, which starts its server where none runs. What it runs is the
// person's login shell, so that it has their PATH, and that shell stays when the
// tool has ended. Numbers name the session where its directory's name is taken.
func (h *Here) start(ctx context.Context, dir, program string) (socket, pane string, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	path, err := exec.LookPath("tmux")
	if err != nil {
		return "", "", proto.Errorf(proto.CodeFailed, "tmux is not installed on the machine")
	}
	shell := h.shell()
	argv := []string{"env"}
	for _, name := range unset {
		if name != "TMUX" && name != "TMUX_PANE" { // tmux's own, of the new pane
			argv = append(argv, "-u", name)
		}
	}
	argv = append(argv, shell, "-l")
	if program != "" {
		argv = append(argv, "-c", program+`; exec "$0" -l`, shell)
	}
	var words []string
	for _, w := range argv {
		words = append(words, quote(w))
	}
	name := sessionName(dir)
	for try := range 20 {
		args := []string{"-u", "new-session", "-d", "-P", "-F", "#{socket_path}\n#{pane_id}", "-c", tmux.NoFormat(dir)}
		if name != "" && try < 19 {
			n := name
			if try > 0 {
				n = fmt.Sprintf("%s-%d", name, try+1)
			}
			args = append(args, "-s", tmux.NoFormat(n))
		}
		cmd := exec.CommandContext(ctx, path, tmux.Literal(append(args, strings.Join(words, " ")))...)
		cmd.Env, cmd.Dir, cmd.WaitDelay = h.cleanEnviron(), dir, time.Second
		out, err := cmd.CombinedOutput()
		if err == nil {
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			if len(lines) != 2 || !tmux.ValidPane(lines[1]) {
				return "", "", errors.New("tmux started a session and did not say which")
			}
			return lines[0], lines[1], nil
		}
		if ctx.Err() != nil {
			return "", "", proto.Errorf(proto.CodeFailed, "tmux on the machine does not answer, so no session was started that is known of")
		}
		if !strings.Contains(string(out), "duplicate session") {
			return "", "", fmt.Errorf("start a session: %w: %s", err, proto.Cut(strings.TrimSpace(string(out)), 200))
		}
	}
	return "", "", errors.New("start a session: its name is taken")
}

// sessionName names a session after its directory.
func sessionName(dir string) string {
	name := strings.Map(func(r rune) rune {
		if r == '.' || r == ':' || r < 0x20 || r == 0x7f {
			return '_'
		}
		return r
	}, filepath.Base(dir))
	name = strings.TrimLeft(name, "-=$@%")
	if name == "/" || name == "" {
		return ""
	}
	return proto.Cut(name, 60)
}

// quote is a word for the shell that tmux starts.
func quote(w string) string { return "'" + strings.ReplaceAll(w, "'", `'\''`) + "'" }

// appears waits until the watcher has seen a new pane.
func (h *Here) appears(ctx context.Context, socket, pane string) (session.ID, error) {
	ctx, cancel := context.WithTimeout(ctx, appearTime)
	defer cancel()
	all, changes, stop := h.watch.Subscribe()
	defer stop()
	is := func(id session.ID) bool {
		server, target, err := h.server(id)
		return err == nil && target == pane && sameFile(server.Socket(), socket)
	}
	for _, one := range all {
		if is(one.ID) {
			return one.ID, nil
		}
	}
	for {
		select {
		case e, ok := <-changes:
			if !ok {
				return "", errors.New("the session was started, and is watched no more")
			}
			if e.Session != nil && is(e.Session.ID) {
				return e.Session.ID, nil
			}
		case <-ctx.Done():
			return "", errors.New("the session was started, and its tmux server does not list it yet")
		}
	}
}

func sameFile(a, b string) bool {
	if a == b {
		return true
	}
	x, err1 := os.Stat(a)
	y, err2 := os.Stat(b)
	return err1 == nil && err2 == nil && os.SameFile(x, y)
}

func (s starter) End(ctx context.Context, r proto.End) error {
	p, there := s.h.find(r.Session)
	one, ok := s.h.watch.Session(r.Session)
	if !ok || !there {
		return errNoSession
	}
	if r.Confirm == "" || r.Confirm != one.Name {
		return proto.Errorf(proto.CodeNotConfirmed, "to end a session, confirm it by its name, which is %q", one.Name)
	}
	return noSession(p.End(ctx))
}

func (s starter) Attach(_ context.Context, r proto.On) (proto.Attach, error) {
	server, target, err := s.h.server(r.Session)
	if err != nil {
		return proto.Attach{}, err
	}
	path, err := exec.LookPath("tmux")
	if err != nil {
		return proto.Attach{}, proto.Errorf(proto.CodeFailed, "tmux is not installed on the machine")
	}
	args := func(flags ...string) []string {
		return slices.Concat([]string{path, "-u", "-S", server.Socket(), "attach-session"}, flags, []string{"-t", target})
	}
	return proto.Attach{Args: args("-f", "ignore-size"), Fit: args()}, nil
}
