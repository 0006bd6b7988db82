package sessions

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

// where says which machines a command looks at.
type where struct {
	console.Connection
	Local bool `name:"local" help:"This computer's own sessions, without pairing."`
}

// source is a machine whose sessions can be reached.
type source struct {
	name    string // what the person calls it
	machine *client.Machine
	open    func(ctx context.Context, watch bool) (*link, error)
}

// link is an open connection to a source.
type link struct {
	*proto.Client
	why   func() error
	close func()
}

// sources are the machines that a command is about: the one called name, else
// all that this computer is paired with, else this computer itself.
func (w where) sources(a *console.App, name string) ([]source, error) {
	dir, err := a.Dir()
	if err != nil {
		return nil, err
	}
	store := client.NewStore(dir)
	if w.Local {
		if name != "" {
			return nil, &console.Failure{Code: console.ExitUsage, Err: errors.New("--local is this computer; leave the machine's name out")}
		}
		return []source{ownSource(a, dir)}, nil
	}
	if name != "" {
		m, err := store.Find(name)
		if err != nil {
			return nil, err
		}
		return []source{w.remote(a, store, m)}, nil
	}
	paired, err := store.All()
	if err != nil {
		return nil, err
	}
	if len(paired) == 0 {
		return []source{ownSource(a, dir)}, nil
	}
	var out []source
	for _, m := range paired {
		out = append(out, w.remote(a, store, m))
	}
	return out, nil
}

// program is what this program calls itself in a hello.
func program(a *console.App) string { return "holdfast " + a.Version }

func (w where) remote(a *console.App, store *client.Store, m client.Machine) source {
	dialer := a.Dialer(w.Connection)
	return source{name: m.Name, machine: &m, open: func(ctx context.Context, watch bool) (*link, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, openTimeout, fmt.Errorf("it did not answer within %d s", int(openTimeout.Seconds())))
		defer cancel()
		s, err := dialer.Sessions(ctx, store, m, proto.ClientOptions{Program: program(a), Watch: watch})
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = &client.Failure{Hop: "machine " + m.Name, Err: cause}
			}
			return nil, err
		}
		return &link{Client: s.Client, why: s.Why, close: func() { s.Close() }}, nil
	}}
}

// ownSource is this computer: through the agent that runs here, else by looking
// for itself.
func ownSource(a *console.App, dir state.Dir) source {
	return source{name: "", open: func(ctx context.Context, watch bool) (*link, error) {
		stream, err := ownStream(ctx, a, dir)
		if err != nil {
			return nil, err
		}
		c, err := proto.Open(ctx, stream, proto.ClientOptions{Program: program(a), Watch: watch})
		if err != nil {
			stream.Close()
			return nil, err
		}
		return &link{Client: c, why: c.Err, close: func() { c.Close(); stream.Close() }}, nil
	}}
}

// ownStream speaks the protocol with this computer.
func ownStream(ctx context.Context, a *console.App, dir state.Dir) (io.ReadWriteCloser, error) {
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

// named is a session of a machine, as it is listed.
type named struct {
	machine string // empty for this computer where nothing is paired
	session.Session
}

// found is what one machine said.
type found struct {
	source   source
	sessions []session.Session
	link     *link // open, where there is no err; its receiver closes it
	err      error
}

// collect asks all sources at the same time. None waits for another longer than
// the time limits.
func collect(ctx context.Context, sources []source) []found {
	out := make([]found, len(sources))
	var wg sync.WaitGroup
	for i, s := range sources {
		// Ends within the time limits or with ctx; waited for below.
		wg.Go(func() {
			out[i].source = s
			l, err := s.open(ctx, true)
			if err != nil {
				out[i].err = err
				return
			}
			ctx, cancel := context.WithTimeoutCause(ctx, listTimeout, errors.New("it did not list its sessions in time"))
			defer cancel()
			if out[i].sessions, out[i].err = l.Complete(ctx); out[i].err != nil {
				if why := l.why(); why != nil {
					out[i].err = why
				}
				l.close()
				return
			}
			out[i].link = l
		})
	}
	wg.Wait()
	return out
}

// hangUp closes the connections of all but one.
func hangUp(all []found, but *link) {
	var wg sync.WaitGroup
	for _, f := range all {
		if f.link != nil && f.link != but {
			wg.Go(f.link.close) // bounded by the connection's own end
		}
	}
	wg.Wait()
}
