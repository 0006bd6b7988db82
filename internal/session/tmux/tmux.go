// Package tmux speaks with tmux servers that are there: it lists their panes,
// follows what happens in them, reads screens and types into panes. It resizes
// nothing, changes no option, takes no pane's pipe, starts no server (NewSession
// starts a session on one that runs), and judges nothing.
//
// What a caller will get wrong: a server that does not answer is not dead, it
// is ErrSilent, and nothing is known about its panes; names are for people, so
// everything is addressed by id ($1, @2, %3); and an id means something on its
// own server only, for as long as that server runs.
package tmux

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"holdfast/internal/session/tmux/child"
)

var (
	// ErrGone says that no server answers at the socket: it ended.
	ErrGone = errors.New("no tmux server runs there")
	// ErrSilent says that the server is there and did not answer in time. What
	// it knows is unknown, not gone.
	ErrSilent = errors.New("the tmux server does not answer")
	// ErrNoPane says that the pane, window or session is not there.
	ErrNoPane = errors.New("no such tmux pane")
)

const (
	// commandTimeout bounds one command. tmux answers within milliseconds; on a
	// machine that swaps, a second is usual. At half of it such a machine's
	// sessions turn unknown now and then; at double a hung server is noticed late.
	commandTimeout = 4 * time.Second
	// maxOutput bounds what one command may print: a list of 2,000 panes or a
	// scrollback of 50,000 lines.
	maxOutput = 32 << 20
)

// Options tell New how to reach a server.
type Options struct {
	Socket string // required: the socket's path, as for tmux -S
	// Program is the tmux to run; empty means the one in PATH.
	Program string
	// Environ is what tmux is started with; nil means that of this process.
	// TMUX and TMUX_PANE are taken out.
	Environ []string
}

// Server is one tmux server. Its methods may be used from any goroutine; each
// has its own deadline within that of its context.
type Server struct {
	socket  string
	program string
	environ []string

	mu   sync.Mutex
	info Info
	run  runner // a control client that runs commands, when there is one
}

// runner runs one command without starting a process. The arguments hold no
// line break.
type runner interface {
	command(ctx context.Context, args ...string) ([]byte, error)
}

// Info says which server it is.
type Info struct {
	PID         int
	Started     int64 // seconds since 1970
	Version     string
	FocusEvents bool // the server asks terminals whether they have the focus
	// Noticed says that attaching a client has effects on this server: it runs a
	// hook of the person, or keeps sessions from ending with their last client.
	Noticed bool
}

// New makes a Server; it does not connect.
func New(o Options) (*Server, error) {
	if o.Socket == "" {
		return nil, errors.New("open tmux server: Options.Socket is empty")
	}
	program := o.Program
	if program == "" {
		program = "tmux"
	}
	if _, err := exec.LookPath(program); err != nil {
		return nil, fmt.Errorf("open tmux server %s: %w", o.Socket, err)
	}
	environ := o.Environ
	if environ == nil {
		environ = new(exec.Cmd).Environ()
	}
	environ = slices.DeleteFunc(slices.Clone(environ), func(v string) bool {
		return strings.HasPrefix(v, "TMUX=") || strings.HasPrefix(v, "TMUX_PANE=")
	})
	return &Server{socket: o.Socket, program: program, environ: environ}, nil
}

// Socket is the path that -S would name.
func (s *Server) Socket() string { return s.socket }

// Info is what Identify found; the zero Info before.
func (s *Server) Info() Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.info
}

// Tag names this very server, for session ids: another server at the same
// socket has another tag. It is empty before Identify.
func (s *Server) Tag() string {
	i := s.Info()
	if i.PID == 0 {
		return ""
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d\x00%d", s.socket, i.PID, i.Started))
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:5]))
}

// Identify asks the server who it is.
func (s *Server) Identify(ctx context.Context) (Info, error) {
	out, err := s.command(ctx, "display-message", "-p", "#{pid}\t#{start_time}\t#{version}", ";", "show-options", "-sq", "focus-events",
		";", "show-options", "-gq", "destroy-unattached", ";", "show-hooks", "-g")
	if err != nil {
		return Info{}, fmt.Errorf("ask tmux server %s who it is: %w", s.socket, err)
	}
	first, rest, _ := strings.Cut(string(out), "\n")
	fields := strings.Split(first, "\t")
	if len(fields) != 3 {
		return Info{}, fmt.Errorf("ask tmux server %s who it is: answer %q is not understood", s.socket, cut(first, 80))
	}
	i := Info{Version: fields[2]}
	for line := range strings.SplitSeq(rest, "\n") {
		name, value, _ := strings.Cut(line, " ")
		name, _, hook := strings.Cut(name, "[")
		switch name {
		case "focus-events":
			i.FocusEvents = value == "on"
		case "destroy-unattached":
			i.Noticed = i.Noticed || value != "off" && value != ""
		case "client-attached", "client-session-changed", "client-detached":
			i.Noticed = i.Noticed || hook
		}
	}
	if i.PID, err = strconv.Atoi(fields[0]); err != nil {
		return Info{}, fmt.Errorf("ask tmux server %s who it is: answer %q is not understood", s.socket, cut(first, 80))
	}
	i.Started, _ = strconv.ParseInt(fields[1], 10, 64)
	s.mu.Lock()
	s.info = i
	s.mu.Unlock()
	return i, nil
}

var versionNumber = regexp.MustCompile(`^(?:next-)?(\d+)\.(\d+)`)

// atLeast compares the version of the server. An unreadable one (master) is
// taken as new.
func (i Info) atLeast(major, minor int) bool {
	m := versionNumber.FindStringSubmatch(i.Version)
	if m == nil {
		return i.Version != ""
	}
	a, _ := strconv.Atoi(m[1])
	b, _ := strconv.Atoi(m[2])
	return a > major || a == major && b >= minor
}

func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}

// viaRunner sets the control client that runs commands from now on; nil for
// none.
func (s *Server) viaRunner(r runner) {
	s.mu.Lock()
	s.run = r
	s.mu.Unlock()
}

// command runs one command or several with ";" between them, through a control
// client when there is one, which costs no process.
func (s *Server) command(ctx context.Context, args ...string) ([]byte, error) {
	s.mu.Lock()
	r := s.run
	s.mu.Unlock()
	if r != nil && !slices.ContainsFunc(args, func(a string) bool { return strings.ContainsAny(a, "\r\n\x00") }) {
		out, err := r.command(ctx, args...)
		// A client that ended while it was asked says nothing about the server,
		// nor does one that may not ask.
		if !errors.Is(err, errClientEnded) && (err == nil || !strings.Contains(err.Error(), "read-only")) {
			return out, err
		}
	}
	return s.start(ctx, nil, args...)
}

// start runs tmux as a process of its own.
func (s *Server) start(ctx context.Context, stdin io.Reader, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	return s.execute(ctx, stdin, s.environ, s.arguments(args...))
}

// execute runs tmux with exactly these arguments.
func (s *Server) execute(ctx context.Context, stdin io.Reader, environ, args []string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, s.program, args...)
	cmd.Env, cmd.Stdin = environ, stdin
	child.With(cmd)
	// A killed tmux leaves nobody who holds the pipes; the delay is for a kernel
	// that is slow to reap it.
	cmd.WaitDelay = time.Second
	var out, problem limited
	out.limit, problem.limit = maxOutput, 4<<10
	cmd.Stdout, cmd.Stderr = &out, &problem
	err := cmd.Run()
	if ctx.Err() != nil {
		if cause := context.Cause(ctx); !errors.Is(cause, context.DeadlineExceeded) {
			return nil, cause
		}
		return nil, ErrSilent
	}
	if err != nil {
		return nil, failure(problem.String(), err)
	}
	if out.over {
		return nil, fmt.Errorf("tmux printed more than %d bytes", maxOutput)
	}
	return out.Bytes(), nil
}

// arguments puts -S before a command. -N, where the server knows it, keeps tmux
// from starting a server when this one has just ended.
func (s *Server) arguments(args ...string) []string {
	out := []string{"-u", "-S", s.socket}
	if s.Info().atLeast(3, 2) {
		out = append(out, "-N")
	}
	return append(out, Literal(args)...)
}

// Literal keeps tmux from taking a semicolon at an argument's end for the end
// of the command; one that is alone stays what it is.
func Literal(args []string) []string {
	out := slices.Clone(args)
	for i, a := range out {
		if a != ";" && strings.HasSuffix(a, ";") {
			out[i] = strings.TrimSuffix(a, ";") + `\;`
		}
	}
	return out
}

// failure turns what tmux said into an error. Its words are stable for these
// three; no exit code tells them apart.
func failure(said string, err error) error {
	said = strings.TrimSpace(strings.ToValidUTF8(said, ""))
	switch {
	case strings.HasPrefix(said, "no server running"), strings.HasPrefix(said, "error connecting to"),
		strings.HasPrefix(said, "server exited"), strings.HasPrefix(said, "lost server"):
		return ErrGone
	case strings.HasPrefix(said, "can't find"), strings.HasPrefix(said, "no such"):
		return fmt.Errorf("%w: %s", ErrNoPane, cut(said, 200))
	case said == "":
		return err
	}
	return errors.New(cut(said, 300))
}

// limited keeps the first bytes that are written to it.
type limited struct {
	bytes.Buffer
	limit int
	over  bool
}

func (l *limited) Write(p []byte) (int, error) {
	if room := l.limit - l.Len(); len(p) > room {
		l.over = true
		l.Buffer.Write(p[:room])
		return len(p), nil
	}
	return l.Buffer.Write(p)
}
