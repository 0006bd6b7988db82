// Package source reaches the sessions of machines for commands: through relays,
// through the agent of this computer, or by looking for itself. It finds the one
// session that a person names, follows all, and puts them into words.
//
// It prints nothing. What a caller will get wrong: what comes from a machine is
// text of programs there, and goes to a terminal through Plain or Block only.
package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/client"
	"holdfast/internal/console"
	"holdfast/internal/local"
	"holdfast/internal/session"
	"holdfast/internal/session/here"
	"holdfast/internal/session/proto"
	"holdfast/internal/state"
)

const (
	// openTimeout bounds the way to one machine. A relay says at once that a
	// machine is offline; a bad mobile link needs six round trips. Twice would
	// make a list wait for the one machine that is away.
	openTimeout = 12 * time.Second
	// listTimeout bounds the list of a machine that is there: looking at its tmux
	// servers for the first time takes it a second.
	listTimeout = 8 * time.Second
)

// Flags say which machines a command looks at.
type Flags struct {
	console.Connection
	Local bool `name:"local" help:"This computer's own sessions, without pairing."`
}

// A Source is a machine whose sessions can be reached.
type Source struct {
	Name    string          // what the person calls it; empty is this computer
	Machine *client.Machine // nil for this computer
	// Open connects; watch asks for the sessions.
	Open func(ctx context.Context, watch bool) (*Link, error)
}

// A Link is an open connection to a Source.
type Link struct {
	*proto.Client
	Why   func() error // why it ended, for a person
	Close func()
}

// Sources are the machines that a command is about: the one called name, else
// all that this computer is paired with, else this computer itself.
func (w Flags) Sources(a *console.App, name string) ([]Source, error) {
	dir, err := a.Dir()
	if err != nil {
		return nil, err
	}
	store := client.NewStore(dir)
	if w.Local {
		if name != "" {
			return nil, &console.Failure{Code: console.ExitUsage, Err: errors.New("--local is this computer; leave the machine's name out")}
		}
		return []Source{ownSource(a, dir)}, nil
	}
	if name != "" {
		m, err := store.Find(name)
		if err != nil {
			return nil, err
		}
		return []Source{w.remote(a, store, m)}, nil
	}
	paired, err := store.All()
	if err != nil {
		return nil, err
	}
	if len(paired) == 0 {
		return []Source{ownSource(a, dir)}, nil
	}
	var out []Source
	for _, m := range paired {
		out = append(out, w.remote(a, store, m))
	}
	return out, nil
}

// program is what this program calls itself in a hello.
func program(a *console.App) string { return "holdfast " + a.Version }

func (w Flags) remote(a *console.App, store *client.Store, m client.Machine) Source {
	dialer := a.Dialer(w.Connection)
	return Source{Name: m.Name, Machine: &m, Open: func(ctx context.Context, watch bool) (*Link, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, openTimeout, fmt.Errorf("it did not answer within %d s", int(openTimeout.Seconds())))
		defer cancel()
		s, err := dialer.Sessions(ctx, store, m, proto.ClientOptions{Program: program(a), Watch: watch})
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = &client.Failure{Hop: "machine " + m.Name, Err: cause}
			}
			return nil, err
		}
		return &Link{Client: s.Client, Why: s.Why, Close: func() { s.Close() }}, nil
	}}
}

// ownSource is this computer: through the agent that runs here, else by looking
// for itself.
func ownSource(a *console.App, dir state.Dir) Source {
	return Source{Name: "", Open: func(ctx context.Context, watch bool) (*Link, error) {
		stream, err := Own(ctx, a, dir)
		if err != nil {
			return nil, err
		}
		c, err := proto.Open(ctx, stream, proto.ClientOptions{Program: program(a), Watch: watch})
		if err != nil {
			stream.Close()
			return nil, err
		}
		return &Link{Client: c, Why: c.Err, Close: func() { c.Close(); stream.Close() }}, nil
	}}
}

// Own speaks the protocol with this computer.
func Own(ctx context.Context, a *console.App, dir state.Dir) (io.ReadWriteCloser, error) {
	stream, answer, err := local.Open(ctx, dir, local.Request{Op: local.OpSessions, Device: "this computer"})
	switch {
	case errors.Is(err, state.ErrNotRunning):
		return startOwn(a, dir)
	case err != nil:
		return nil, err
	case answer.Error != "":
		return nil, &console.Failure{Code: console.ExitFailed, Err: errors.New(answer.Error), Hint: answer.Hint}
	}
	return stream, nil
}

// ownServer is a machine's side that runs in this process.
type ownServer struct {
	*net.UnixConn
	here   *here.Here
	cancel context.CancelFunc
	wg     sync.WaitGroup
	once   sync.Once
}

func startOwn(a *console.App, dir state.Dir) (io.ReadWriteCloser, error) {
	home, err := a.Home()
	if err != nil {
		return nil, fmt.Errorf("find the home directory: %w", err)
	}
	h, err := here.New(here.Options{
		StateDir: dir.Path(""), Home: home, Environ: a.Environ, Program: program(a), Log: a.Logger(slog.LevelError),
	})
	if err != nil {
		return nil, err
	}
	ours, theirs, err := socketPair()
	if err != nil {
		h.Close()
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &ownServer{UnixConn: ours, here: h, cancel: cancel}
	// Ends with the pair or Close, which waits.
	s.wg.Go(func() { h.Serve(ctx, theirs, "this computer") })
	return s, nil
}

// socketPair is two ends of a connection of which each can end alone, as those
// of the agent's own socket can.
func socketPair() (a, b *net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a pair of sockets: %w", err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		unix.CloseOnExec(fd)
		f := os.NewFile(uintptr(fd), "socketpair")
		c, err2 := net.FileConn(f) // a duplicate
		f.Close()
		if err2 != nil {
			err = err2
			continue
		}
		ends[i] = c.(*net.UnixConn)
	}
	if err != nil {
		for _, c := range ends {
			if c != nil {
				c.Close()
			}
		}
		return nil, nil, fmt.Errorf("make a pair of sockets: %w", err)
	}
	return ends[0], ends[1], nil
}

// Close ends the connection and what runs behind it.
func (s *ownServer) Close() error {
	err := s.UnixConn.Close()
	s.once.Do(func() {
		s.cancel()
		s.wg.Wait()
		s.here.Close()
	})
	return err
}

// Named is a session of a machine, as it is listed.
type Named struct {
	Machine string // empty for this computer where nothing is paired
	session.Session
}

// Found is what one machine said.
type Found struct {
	Source   Source
	Sessions []session.Session
	Link     *Link // open, where there is no err; its receiver closes it
	Err      error
}

// Collect asks all sources at the same time. None waits for another longer than
// the time limits.
func Collect(ctx context.Context, sources []Source) []Found {
	out := make([]Found, len(sources))
	var wg sync.WaitGroup
	for i, s := range sources {
		// Ends within the time limits or with ctx; waited for below.
		wg.Go(func() {
			out[i].Source = s
			l, err := s.Open(ctx, true)
			if err != nil {
				out[i].Err = err
				return
			}
			ctx, cancel := context.WithTimeoutCause(ctx, listTimeout, errors.New("it did not list its sessions in time"))
			defer cancel()
			if out[i].Sessions, out[i].Err = l.Complete(ctx); out[i].Err != nil {
				if why := l.Why(); why != nil {
					out[i].Err = why
				}
				l.Close()
				return
			}
			out[i].Link = l
		})
	}
	wg.Wait()
	return out
}

// HangUp closes the connections of all but one.
func HangUp(all []Found, but *Link) {
	var wg sync.WaitGroup
	for _, f := range all {
		if f.Link != nil && f.Link != but {
			wg.Go(f.Link.Close) // bounded by the connection's own end
		}
	}
	wg.Wait()
}
