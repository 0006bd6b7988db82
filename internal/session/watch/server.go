package watch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast/internal/session"
	"holdfast/internal/session/tmux"
	"holdfast/internal/session/tmux/discover"
	"holdfast/internal/session/watch/follow"
)

const (
	// lookEvery is how often new servers are looked for: a server that starts
	// shows within a second. It costs a read of a directory and of a table.
	lookEvery = 900 * time.Millisecond
	// retryEvery is how often a socket that does not answer is tried again.
	retryEvery = 5 * time.Second
)

// examinations is how many panes of one server are looked at at one time. Each
// may wait for a server that hangs, which must not hold up the panes of others.
const examinations = 4

// server is one tmux server that is watched. Its fields below are guarded by
// Watcher.mu.
type server struct {
	w      *Watcher
	tmux   *tmux.Server
	socket string
	follow *follow.Server // nil where its socket was never there
	slots  chan struct{}  // bounds the examinations at one time

	pid     int // where its socket was never there
	problem string
	silent  time.Time // since when it gives no answer
	ended   bool
	endedAt time.Time
	first   bool // belongs to the first look and has not answered
}

// found starts to watch a server, when that is new.
func (w *Watcher) found(ctx context.Context, f discover.Found, refused map[string]uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.servers[f.Socket]
	if s != nil && !s.ended {
		return
	}
	if f.Deleted {
		if s == nil || s.problem == "" {
			s = &server{w: w, socket: f.Socket, pid: f.PID, ended: true, problem: deleted(f.PID)}
			w.log.Warn("a tmux server cannot be reached", "path", f.Socket, "err", s.problem)
			w.servers[f.Socket] = s
		}
		return
	}
	if s != nil && s.ended && s.problem == "" {
		// It ended: another file or a listener makes it another server.
		if !f.Certain && refused[f.Socket] == f.File {
			return
		}
		if time.Since(s.endedAt) < retryEvery && refused[f.Socket] == f.File {
			return
		}
	}
	refused[f.Socket] = f.File
	t, err := tmux.New(tmux.Options{Socket: f.Socket, Program: w.o.Tmux})
	if err != nil {
		return // no tmux program yet
	}
	s = &server{w: w, tmux: t, socket: f.Socket, slots: make(chan struct{}, examinations)}
	s.follow = follow.New(follow.Options{
		Tmux: t, Log: w.log, Listed: s.listed, Output: s.output, Silent: s.mute, Started: w.notes.Add,
	})
	w.servers[f.Socket] = s
	if !w.looked {
		w.pending++
		s.first = true
	}
	// Ends with ctx or with the server; wg waits for it.
	w.wg.Go(func() {
		s.follow.Run(ctx)
		// When the watcher ends the sessions go on; only the server's end ends them.
		if ctx.Err() == nil {
			s.gone()
		}
	})
}

// deleted says what to do about a socket that was deleted.
func deleted(pid int) string {
	return fmt.Sprintf("its socket file was deleted; kill -USR1 %d makes tmux put it back", pid)
}

// mute says that the server gives no answer.
func (s *server) mute(err error) {
	w := s.w
	pid := s.follow.PID()
	w.mu.Lock()
	defer w.mu.Unlock()
	if s.silent.IsZero() {
		s.silent = time.Now()
		s.problem = "it does not answer"
		if errors.Is(err, tmux.ErrGone) {
			s.problem = deleted(pid)
		}
		w.log.Warn("a tmux server gives no answer", "path", s.socket, "err", err)
		for _, p := range w.panes {
			if p.server == s {
				p.judgeLocked()
			}
		}
	}
	s.answeredLocked()
}

// answeredLocked takes the server out of those that the first look waits for.
func (s *server) answeredLocked() {
	if s.first {
		s.first = false
		s.w.pending--
	}
	s.w.readyLocked()
}

// listed takes in a list.
func (s *server) listed(l tmux.Listing) {
	w := s.w
	now := time.Now()
	looking := l.Looking()
	activity := map[string]time.Time{}
	for _, c := range l.Clients {
		if !c.Watcher && c.Activity.After(activity[c.Session]) {
			activity[c.Session] = c.Activity
		}
	}
	tag := s.tmux.Tag()
	seen := map[session.ID]bool{}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !s.silent.IsZero() {
		s.silent, s.problem = time.Time{}, ""
		w.log.Info("a tmux server answers again", "path", s.socket)
	}
	for _, item := range l.Panes {
		id := session.ID(tag + ":" + item.ID)
		seen[id] = true
		p := w.panes[id]
		if p == nil {
			p = newPane(s, id, now)
			w.panes[id] = p
		}
		p.listedLocked(item, looking[item.Session], activity[item.Session], now)
	}
	for id, p := range w.panes {
		if p.server == s && !seen[id] {
			p.goneLocked()
		}
	}
	s.answeredLocked()
}

// output takes in raw bytes of a pane.
func (s *server) output(from, tmuxPane string, data []byte, lost bool) {
	w := s.w
	id := session.ID(s.tmux.Tag() + ":" + tmuxPane)
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.panes[id]
	if p == nil {
		s.follow.Nudge()
		return
	}
	if p.list.Session != from {
		return // a pane that two sessions share is heard once
	}
	p.outputLocked(data, lost, time.Now())
}

// gone takes the server and its panes out.
func (s *server) gone() {
	w := s.w
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.panes {
		if p.server == s {
			p.goneLocked()
		}
	}
	s.ended, s.endedAt, s.problem = true, time.Now(), ""
	s.answeredLocked()
}
