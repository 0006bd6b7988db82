package reach

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/client"
	"holdfast/internal/console"
	"holdfast/internal/netwatch"
	"holdfast/internal/wsconn"
)

// farewell is how long a proxy whose ssh has gone still waits for the relay's
// answer to its close frame. OpenSSH waits for its ProxyCommand to end, so twice
// as long would be felt; half is less than a round trip of a bad phone link.
const farewell = 300 * time.Millisecond

// Proxy connects standard input and output to a machine.
type Proxy struct {
	console.Connection
	Service string `name:"service" placeholder:"NAME" help:"Service of the machine (default: its own sshd)."`
	Machine string `arg:"" help:"Machine, as holdfast machines lists it."`
}

// Help is shown by --help.
func (*Proxy) Help() string {
	return "Writes nothing but the stream to standard output. Ends with 3 where the machine cannot be reached, " +
		"4 where this is not permitted, after one line on standard error."
}

// Run joins standard input and output to the machine.
func (c *Proxy) Run(ctx context.Context, a *console.App) error {
	// A stopped ssh under Ctrl-Z must not stop its proxy: the path would look
	// dead to the relay. A closed stdout is an error of write, not a death.
	signal.Ignore(syscall.SIGTSTP, syscall.SIGPIPE)

	err := c.run(ctx, a)
	if err == nil || ctx.Err() != nil {
		return nil // who sent the signal knows why
	}
	var usage *console.Failure
	if errors.As(err, &usage) && usage.Code == console.ExitUsage {
		return err
	}
	// One line, with what to do, and one of two codes: the caller is a program.
	f := console.Explain(err)
	out := &console.Failure{Code: f.Code, Err: f.Err}
	if f.Hint != "" {
		out.Err = errors.New(f.Err.Error() + "; " + f.Hint)
	}
	switch {
	case errors.Is(err, client.ErrUnknownMachine):
		out.Code = console.ExitDenied
	case out.Code != console.ExitDenied:
		out.Code = console.ExitUnreachable
	}
	return out
}

func (c *Proxy) run(ctx context.Context, a *console.App) error {
	service, err := parseService(c.Service)
	if err != nil {
		return err
	}
	dir, err := a.Dir()
	if err != nil {
		return err
	}
	m, err := client.NewStore(dir).Find(c.Machine)
	if err != nil {
		return err
	}
	target, err := m.Target(service)
	if err != nil {
		return err
	}
	stream, err := a.Dialer(c.Connection).Stream(ctx, target, true)
	if err != nil {
		return client.Diagnose(err, target)
	}
	ctx, gone := context.WithCancelCause(ctx)
	defer gone(nil)
	stop := watchClosed(a.Out, func() { gone(wsconn.ErrLocal) })
	defer stop()

	// Ends with the stream or ctx; the process does not wait for it.
	go client.Watch(ctx, stream, netwatch.Options{})

	joined := make(chan error, 1)
	// Ends with either side or ctx; after that nobody may be left to wait for.
	out := &stdio{in: a.In, out: a.Out}
	go func() { joined <- wsconn.Join(ctx, stream, out) }()
	select {
	case err = <-joined:
	case <-ctx.Done():
		select {
		case err = <-joined:
		case <-time.After(farewell):
			return nil
		}
	}
	if lost := out.lost.Load(); lost != nil {
		return fmt.Errorf("write to standard output: %w", *lost)
	}
	if err == nil || errors.Is(err, wsconn.ErrLocal) || ctx.Err() != nil {
		return nil
	}
	return client.Diagnose(err, target)
}

// stdio is standard input and output as one end of a stream.
type stdio struct {
	in, out *os.File
	// lost is an error of a write that means lost bytes, a full disk say, and not
	// a reader who has read enough.
	lost atomic.Pointer[error]
}

func (s *stdio) Read(p []byte) (int, error) { return s.in.Read(p) }

func (s *stdio) Write(p []byte) (int, error) {
	n, err := s.out.Write(p)
	if err != nil && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, os.ErrClosed) {
		s.lost.Store(&err)
	}
	return n, err
}

// Close leaves the output open: it is being watched, and the process ends next.
func (s *stdio) Close() error { return s.in.Close() }

// watchClosed calls gone when the reader at the far end of a pipe or socket has
// gone, though nothing is being written: a stream that is quiet would else
// outlive it. Nothing happens for files and terminals. The returned stop ends
// the watching and waits for it.
func watchClosed(f *os.File, gone func()) (stop func()) {
	wake, woken, err := os.Pipe()
	if err != nil {
		return func() {} // a write will notice
	}
	fds := []unix.PollFd{{Fd: int32(f.Fd())}, {Fd: int32(wake.Fd())}}
	var wg sync.WaitGroup
	// Ended by stop, which closes woken, or by the far end; stop waits.
	wg.Go(func() {
		for {
			_, err := unix.Poll(fds, -1)
			if err == unix.EINTR {
				continue
			}
			if err == nil && fds[1].Revents == 0 && fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0 {
				gone()
			}
			return
		}
	})
	return func() {
		woken.Close()
		wg.Wait()
		wake.Close()
	}
}
