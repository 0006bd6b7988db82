// Package here is the sessions of this machine as devices get them: it puts the
// watcher, what acts, the conversations and the uploaded files behind the
// sessions protocol.
//
// It judges nothing and parses nothing. What a caller will get wrong: one Here
// watches for everybody on a machine, since two would each ask every tmux
// server; and Serve must get a stream that SSH or the owner's own socket
// protects, for whoever speaks on it can type into every session.
package here

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"holdfast/internal/session"
	"holdfast/internal/session/act"
	"holdfast/internal/session/act/journal"
	"holdfast/internal/session/proto/answer"
	"holdfast/internal/session/push"
	"holdfast/internal/session/watch"
	"holdfast/internal/state"
	"holdfast/internal/webpush"
)

// Options of New.
type Options struct {
	// StateDir is where uploaded files and what was seen are kept, Home the home
	// directory of the user whose sessions these are; both required.
	StateDir string
	Home     string
	// Environ is the environment of this process.
	Environ []string
	// Sockets, where it is not nil, are the only tmux sockets to watch.
	Sockets []string
	// Machine is the machine's name for the hello; empty where it has none.
	Machine string
	// Program is name and version of this program.
	Program string
	// Push has devices called through their browsers' push services when a
	// session begins to wait; nil means that none are.
	Push *PushOptions
	Log  *slog.Logger // required
}

// Here serves the sessions of this machine.
type Here struct {
	o       Options
	ctx     context.Context // ends with Close
	watch   *watch.Watcher
	actor   *act.Actor
	uploads *act.Uploads
	looks   looks
	logs    logs
	push    *push.Pusher // nil where nobody is called, and then sender too
	sender  *webpush.Client
	backend answer.Backend

	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// New begins to watch.
func New(o Options) (*Here, error) {
	if o.StateDir == "" || o.Home == "" || o.Log == nil {
		return nil, errors.New("serve the sessions of this machine: state directory, home and log are required")
	}
	w, err := watch.New(watch.Options{StateDir: o.StateDir, Home: o.Home, TmuxDirs: tmuxDirs(o.Environ), Sockets: o.Sockets, Logger: o.Log})
	if err != nil {
		return nil, err
	}
	h := &Here{o: o, watch: w, uploads: act.NewUploads(filepath.Join(o.StateDir, state.UploadsDir))}
	if err := os.MkdirAll(o.StateDir, 0o700); err != nil {
		return nil, err
	}
	actions, err := journal.Open(filepath.Join(o.StateDir, state.ActionsFile))
	if err != nil {
		return nil, err
	}
	h.actor, err = act.New(act.Options{
		Journal: actions, Log: o.Log,
		Pane: func(id session.ID) (act.Pane, bool) {
			p, ok := h.find(id)
			return pane{p}, ok
		},
		Session: w.Session,
		Changed: h.touched,
	})
	if err != nil {
		return nil, err
	}
	h.backend = answer.Backend{
		Sessions: sessions{h}, Actions: h.actor, Conversations: conversations{h},
		Files: files{h.uploads}, Starter: starter{h}, Looks: &h.looks,
	}
	if o.Push != nil {
		// A damaged file takes the calls away, not the sessions.
		if err := h.callers(*o.Push); err != nil {
			o.Log.Error("devices are not notified", "err", err)
		}
	}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.call()
	// Ended and waited for by Close.
	h.wg.Go(func() {
		if err := w.Run(h.ctx); err != nil && h.ctx.Err() == nil {
			o.Log.Error("sessions are watched no more", "err", err)
		}
	})
	return h, nil
}

// tmuxDirs are the directories that TMUX_TMPDIR names.
func tmuxDirs(environ []string) []string {
	for _, v := range environ {
		if dir, ok := strings.CutPrefix(v, "TMUX_TMPDIR="); ok && filepath.IsAbs(dir) {
			return []string{dir}
		}
	}
	return nil
}

// Serve speaks the protocol on a stream until the stream or ctx ends. device
// names who is at the other end.
func (h *Here) Serve(ctx context.Context, stream io.ReadWriteCloser, device string) error {
	return answer.Serve(ctx, stream, answer.Options{
		Machine: h.o.Machine, Program: h.o.Program, Device: device, Backend: h.backend, Log: h.o.Log,
	})
}

// Close ends the watching. Who is still served is told that it ends.
func (h *Here) Close() {
	h.actor.Close()
	h.cancel()
	h.wg.Wait()
	h.logs.close()
}

// sessions are what runs, as devices may see it.
type sessions struct{ h *Here }

func (s sessions) Subscribe(context.Context) ([]session.Session, <-chan answer.Event, func()) {
	s.h.ready()
	all, changes, cancel := s.h.watch.Subscribe()
	out := make([]session.Session, len(all))
	for i, one := range all {
		out[i] = s.h.actor.Outward(one)
	}
	events := make(chan answer.Event)
	over := make(chan struct{})
	// Ends when the watcher ends or with cancel; nobody waits, it holds nothing.
	go func() {
		defer close(events)
		for c := range changes {
			e := answer.Event{Gone: c.Gone}
			if c.Session != nil {
				one := s.h.actor.Outward(*c.Session)
				e.Session = &one
			} else {
				s.h.actor.Forget(c.Gone)
				s.h.logs.forget(c.Gone)
			}
			select {
			case events <- e:
			case <-over:
				return
			}
		}
	}()
	var once sync.Once
	return out, events, func() { once.Do(func() { close(over); cancel() }) }
}

func (s sessions) Refresh(ctx context.Context, id session.ID) error {
	s.h.ready()
	return noSession(s.h.watch.Refresh(ctx, id))
}

func (s sessions) Seen(id session.ID) error {
	if _, ok := s.h.find(id); !ok {
		return errNoSession
	}
	return noSession(s.h.watch.Seen(id))
}

// files adapts Uploads.
type files struct{ u *act.Uploads }

func (f files) Create(name string) (answer.File, error) {
	file, err := f.u.Create(name)
	if err != nil {
		return nil, err
	}
	return file, nil
}
