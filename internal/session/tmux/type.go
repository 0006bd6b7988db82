package tmux

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// maxPaste bounds one paste, in bytes.
const maxPaste = 4 << 20

// Paste puts text into a pane as one paste: bracketed where the program asked
// for that, line breaks as they are, nothing pressed after it. The text travels
// on stdin, so its size is not that of a command line and it shows in no list
// of processes. The caller has taken control characters out of it.
func (s *Server) Paste(ctx context.Context, pane string, text []byte) error {
	if err := s.typing(pane); err != nil {
		return fmt.Errorf("paste: %w", err)
	}
	if len(text) > maxPaste {
		return fmt.Errorf("paste into pane %s: %d bytes, the limit is %d", pane, len(text), maxPaste)
	}
	if len(text) == 0 {
		return nil
	}
	// A buffer of its own name: the person's stack of buffers stays as it is,
	// and -d takes it away again.
	var tag [8]byte
	rand.Read(tag[:])
	name := "holdfast-" + hex.EncodeToString(tag[:])
	if _, err := s.start(ctx, strings.NewReader(string(text)), "load-buffer", "-b", name, "-"); err != nil {
		return fmt.Errorf("paste into pane %s of tmux server %s: %w", pane, s.socket, err)
	}
	if _, err := s.start(ctx, nil, "paste-buffer", "-p", "-r", "-d", "-b", name, "-t", pane); err != nil {
		// The text must not stay behind where the person's next paste finds it.
		s.start(context.WithoutCancel(ctx), nil, "delete-buffer", "-b", name)
		return fmt.Errorf("paste into pane %s of tmux server %s: %w", pane, s.socket, err)
	}
	return nil
}

var keyName = regexp.MustCompile(`^(?:[CMS]-){0,3}(?:[!-:<-~]|[A-Za-z][A-Za-z0-9]{1,15})$`)

// Keys presses keys by tmux's names: Enter, Escape, C-c, Up, BTab, y, 1. They
// are pressed at once and in order. In copy mode tmux eats them: see LeaveMode.
func (s *Server) Keys(ctx context.Context, pane string, keys ...string) error {
	if err := s.typing(pane); err != nil {
		return fmt.Errorf("press keys: %w", err)
	}
	for _, k := range keys {
		if !keyName.MatchString(k) {
			return fmt.Errorf("press keys in pane %s: %q is no name of a key", pane, cut(k, 40))
		}
	}
	if len(keys) == 0 {
		return nil
	}
	args := append([]string{"send-keys", "-t", pane, "--"}, keys...)
	if _, err := s.start(ctx, nil, args...); err != nil {
		return fmt.Errorf("press keys in pane %s of tmux server %s: %w", pane, s.socket, err)
	}
	return nil
}

// maxTyped bounds Type, in bytes.
const maxTyped = 4096

// Type types text as keys, for programs that read a secret or do not know
// paste. The bytes go in hexadecimal: nothing in them is a name or a separator.
func (s *Server) Type(ctx context.Context, pane string, text []byte) error {
	if err := s.typing(pane); err != nil {
		return fmt.Errorf("type: %w", err)
	}
	if len(text) > maxTyped {
		return fmt.Errorf("type into pane %s: %d bytes, the limit is %d", pane, len(text), maxTyped)
	}
	if len(text) == 0 {
		return nil
	}
	// The keys go as a command on stdin: a secret shows in no list of processes
	// and lies in no buffer. tmux does not say here when the pane is gone.
	if _, err := s.InMode(ctx, pane); err != nil {
		return fmt.Errorf("type: %w", err)
	}
	var line strings.Builder
	fmt.Fprintf(&line, "send-keys -t %s -H", pane)
	for _, b := range text {
		fmt.Fprintf(&line, " %02x", b)
	}
	line.WriteByte('\n')
	if _, err := s.start(ctx, strings.NewReader(line.String()), "source-file", "-"); err != nil {
		return fmt.Errorf("type into pane %s of tmux server %s: %w", pane, s.socket, err)
	}
	return nil
}

// typing checks what every typing method needs.
func (s *Server) typing(pane string) error {
	if !ValidPane(pane) {
		return fmt.Errorf("pane %q: %w", cut(pane, 40), ErrNoPane)
	}
	return nil
}

// LeaveMode ends copy mode and whatever else of tmux eats the pane's keys. It
// does nothing where none is on.
func (s *Server) LeaveMode(ctx context.Context, pane string) error {
	// Modes stack: a tree opened from copy mode leaves copy mode below.
	for range 4 {
		in, err := s.InMode(ctx, pane)
		if err != nil {
			return fmt.Errorf("leave copy mode: %w", err)
		}
		if !in {
			return nil
		}
		if _, err := s.start(ctx, nil, "copy-mode", "-q", "-t", pane); err != nil {
			return fmt.Errorf("leave copy mode of pane %s of tmux server %s: %w", pane, s.socket, err)
		}
	}
	return fmt.Errorf("leave copy mode of pane %s of tmux server %s: the pane stays in a mode of tmux", pane, s.socket)
}

// NewSessionOptions say what NewSession starts.
type NewSessionOptions struct {
	Name    string   // empty means one of tmux's choosing
	Dir     string   // required, absolute
	Command []string // argv; empty means the person's shell
	// Unset names variables that the new process must not inherit, such as
	// CLAUDECODE, which keeps a tool from starting.
	Unset      []string
	Cols, Rows int // zero means tmux's own default
	// StartServer allows starting a server at the socket when none runs there.
	// It lives as long as its sessions and belongs to whoever started it: under
	// systemd to the unit of this process.
	StartServer bool
}

var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,63}$`)

// NoFormat keeps tmux from expanding a text in the arguments that it takes for
// formats, such as -c and -s of new-session: "#(reboot)" is a directory's name
// too.
func NoFormat(s string) string { return strings.ReplaceAll(s, "#", "##") }

// NewSession starts a detached session on this server and returns its pane's
// id. It does not touch the server's own environment.
func (s *Server) NewSession(ctx context.Context, o NewSessionOptions) (pane string, err error) {
	if !filepath.IsAbs(o.Dir) || strings.ContainsAny(o.Dir, "\x00\n") {
		return "", fmt.Errorf("start a session in %q: the directory must be an absolute path", cut(o.Dir, 100))
	}
	if len(o.Name) > 256 || strings.ContainsAny(o.Name, "\x00\n") {
		return "", errors.New("start a session: the name is too long or holds a line break")
	}
	args := []string{"new-session", "-d", "-P", "-F", "#{pane_id}", "-c", NoFormat(o.Dir)}
	if o.Name != "" {
		args = append(args, "-s", NoFormat(o.Name))
	}
	if o.Cols > 0 && o.Rows > 0 {
		args = append(args, "-x", fmt.Sprint(min(o.Cols, 1000)), "-y", fmt.Sprint(min(o.Rows, 1000)))
	}
	// env takes the variables away from this process alone: an option or the
	// environment of the server would do it for everybody.
	for _, name := range o.Unset {
		if !variable.MatchString(name) {
			return "", fmt.Errorf("start a session: %q is no name of a variable", cut(name, 64))
		}
	}
	environ := slices.DeleteFunc(slices.Clone(s.environ), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(o.Unset, name)
	})
	// Without a command of its own the session runs what new-session runs for
	// the person: the default command or shell, as a login shell.
	if len(o.Command) > 0 {
		args = append(args, "--", "env")
		for _, name := range o.Unset {
			args = append(args, "-u", name)
		}
		args = append(args, o.Command...)
	}
	full := s.arguments(args...)
	if o.StartServer {
		full = append([]string{"-u", "-S", s.socket}, Literal(args)...)
	}
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	out, err := s.execute(ctx, nil, environ, full)
	if err != nil {
		return "", fmt.Errorf("start a session in %s on tmux server %s: %w", o.Dir, s.socket, err)
	}
	pane = strings.TrimSpace(string(out))
	if !ValidPane(pane) {
		return "", fmt.Errorf("start a session in %s on tmux server %s: answer %q is not understood", o.Dir, s.socket, cut(pane, 40))
	}
	return pane, nil
}

// KillPane ends a pane and what runs in it.
func (s *Server) KillPane(ctx context.Context, pane string) error {
	if err := s.typing(pane); err != nil {
		return fmt.Errorf("end: %w", err)
	}
	if _, err := s.start(ctx, nil, "kill-pane", "-t", pane); err != nil {
		return fmt.Errorf("end pane %s of tmux server %s: %w", pane, s.socket, err)
	}
	return nil
}
