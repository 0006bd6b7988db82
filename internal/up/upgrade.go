package up

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"

	"time"

	"holdfast/internal/account"
	"holdfast/internal/engine"
	"holdfast/internal/relay/handover"
	"holdfast/internal/wire"
)

// checkTimeout bounds how long a new program may take to say that it could take
// over: it reads its flags and nothing else.
const checkTimeout = 20 * time.Second

// maxAnswerBytes bounds what is read of it.
const maxAnswerBytes = 4 << 10

// UpgradeOptions are those of Relay.Upgrade.
type UpgradeOptions struct {
	// Path, Args (the program's own name first) and Environ are what the new
	// program is started with.
	Path          string
	Args, Environ []string
	// Machine is one whose agent runs in this very process and ends with it; empty
	// for none.
	Machine wire.MachineID
	Version string // of this program
}

// Upgrade replaces this process by a new program, which goes on with every socket
// of plain TCP. It returns only where that failed: everything is as before then,
// but for the sockets that could not have been handed over.
func (r *Relay) Upgrade(ctx context.Context, o UpgradeOptions) error {
	if !handover.Supported {
		return handover.ErrUnsupported
	}
	if err := check(ctx, o); err != nil {
		return err
	}
	for _, l := range r.listeners {
		l.pause()
	}
	before := r.relay.Sockets()
	state := r.relay.Freeze(ctx, engine.Key{Account: account.Owner, Machine: o.Machine})
	state.Program = o.Version
	state.Dropped = max(0, before-len(state.Controls)-2*len(state.Streams))
	err := r.exec(state, o)
	r.relay.Thaw()
	for _, l := range r.listeners {
		l.resume()
	}
	return err
}

func (r *Relay) exec(state *handover.State, o UpgradeOptions) error {
	for _, l := range r.listeners {
		fd, err := handover.FD(l.TCPListener)
		if err != nil {
			return err
		}
		state.Listeners = append(state.Listeners, handover.Listener{Addr: l.asked, FD: fd})
	}
	f, err := handover.File(state)
	if err != nil {
		return err
	}
	defer f.Close()
	fd, err := handover.FD(f)
	if err != nil {
		return err
	}
	keep := append(state.Descriptors(), fd)
	r.log.Info("sockets stand still", "controls", len(state.Controls), "streams", len(state.Streams), "took", time.Since(state.Began))
	if err = handover.Keep(keep, true); err == nil {
		err = handover.Exec(o.Path, o.Args, append(o.Environ, handover.EnvOf(fd)))
	}
	return errors.Join(err, handover.Keep(keep, false))
}

// check has the new program say that it could take over: it starts, it takes the
// flags, and it speaks this version of the state.
func check(ctx context.Context, o UpgradeOptions) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, o.Path)
	cmd.Args = o.Args
	cmd.Env = append(o.Environ, handover.Env+"="+handover.EnvCheck)
	cmd.WaitDelay = time.Second
	var out, errout limited
	cmd.Stdout, cmd.Stderr = &out, &errout
	if err := cmd.Run(); err != nil {
		if line, _, _ := bytes.Cut(bytes.TrimSpace(errout.b), []byte("\n")); len(line) > 0 {
			err = fmt.Errorf("%w: %s", err, line)
		}
		return fmt.Errorf("ask %s whether it can take over: %w", o.Path, err)
	}
	var a handover.Answer
	if err := json.Unmarshal(out.b, &a); err != nil {
		return fmt.Errorf("ask %s whether it can take over: it gave no answer that is understood", o.Path)
	}
	if a.Handover != handover.Version {
		return fmt.Errorf("%s %s hands over in version %d, this program in %d: restart instead", o.Path, a.Program, a.Handover, handover.Version)
	}
	return nil
}

// limited keeps the first bytes that are written to it.
type limited struct{ b []byte }

func (l *limited) Write(p []byte) (int, error) {
	l.b = append(l.b, p[:min(len(p), maxAnswerBytes-len(l.b))]...)
	return len(p), nil
}

// listener is one of the relay's, which can pause: who connects meanwhile waits in
// the kernel.
type listener struct {
	*net.TCPListener
	asked string // HOST:PORT

	mu      sync.Mutex
	resumed chan struct{} // not nil while paused
	closed  chan struct{}
	once    sync.Once
}

// listen takes over a listener of the former process, or opens one.
func (r *Relay) listen(from *handover.State, addr string) (*listener, error) {
	var l net.Listener
	var err error
	if i := inheritedListener(from, addr); i >= 0 {
		l, err = handover.NewListener(from.Listeners[i].FD)
		from.Listeners = append(from.Listeners[:i], from.Listeners[i+1:]...)
	} else {
		l, err = net.Listen("tcp", addr)
	}
	if err != nil {
		return nil, err
	}
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		l.Close()
		return nil, errors.New("the socket is not one of TCP")
	}
	out := &listener{TCPListener: tcp, asked: addr, closed: make(chan struct{})}
	r.listeners = append(r.listeners, out)
	return out, nil
}

func inheritedListener(from *handover.State, addr string) int {
	if from != nil {
		for i, l := range from.Listeners {
			if l.Addr == addr {
				return i
			}
		}
	}
	return -1
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.TCPListener.Accept()
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return c, err
		}
		l.mu.Lock()
		resumed := l.resumed
		l.mu.Unlock()
		if resumed == nil {
			continue
		}
		select {
		case <-resumed:
		case <-l.closed:
			return nil, net.ErrClosed
		}
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.TCPListener.Close()
}

func (l *listener) pause() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.resumed = make(chan struct{})
	l.SetDeadline(time.Unix(1, 0))
}

func (l *listener) resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.SetDeadline(time.Time{})
	close(l.resumed)
	l.resumed = nil
}

// Kept says what came over from the former process, and how long it stood still.
type Kept struct {
	From     string        `json:"from"` // its version
	Controls int           `json:"controls"`
	Streams  int           `json:"streams"`
	Dropped  int           `json:"dropped"` // sockets that were told to come back
	Pause    time.Duration `json:"-"`
}

// kept is set by StartRelay once everything serves.
func (r *Relay) noteKept(from *handover.State) {
	if from == nil {
		return
	}
	// What was listened on before and is not now.
	for _, l := range from.Listeners {
		handover.CloseAll([]int{l.FD})
	}
	r.Kept = &Kept{
		From: from.Program, Controls: len(from.Controls), Streams: len(from.Streams), Dropped: from.Dropped,
		Pause: time.Since(from.Began),
	}
	r.log.Info("went on where the former process stood", "controls", r.Kept.Controls, "streams", r.Kept.Streams, "dropped", r.Kept.Dropped, "took", r.Kept.Pause)
}
