// Package watch keeps the list of what runs on this machine: every pane of every
// tmux server of this user, the tool in it, and its status with the evidence. It
// gathers what the packages below session observe and lets judge decide.
//
// It types nothing by itself (a Handle does, when it is told to), resizes
// nothing, changes no option of a server, and keeps no screen after reading it.
//
// What a caller will get wrong: Sessions is empty until the first look is done,
// see Ready; a change is told when something a person would notice changed, not
// each time that evidence was confirmed; and a session that is gone and comes
// back has another id.
package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"holdfast/internal/session"
	"holdfast/internal/session/conversation"
	"holdfast/internal/session/proc"
	"holdfast/internal/session/tmux/discover"
	"holdfast/internal/session/watch/feed"
	"holdfast/internal/session/watch/files"
	"holdfast/internal/session/watch/leftover"
	"holdfast/internal/session/watch/memory"
	"holdfast/internal/session/watch/sources"
)

// ErrNoSession says that no session has that id, or no longer.
var ErrNoSession = errors.New("no such session")

// Options of New.
type Options struct {
	// StateDir is where what was seen is kept over a restart, and where hooks
	// spool their events; empty means that neither is.
	StateDir string
	// Home is the person's home directory, under which tools keep their files;
	// empty means that of this process.
	Home string
	// TmuxDirs are directories as TMUX_TMPDIR names them, beside /tmp. Servers
	// elsewhere are found by the system's list of sockets.
	TmuxDirs []string
	// Sockets, where it is not nil, are the only tmux sockets to watch.
	Sockets []string
	// Tmux is the program; empty means the one in PATH. Without one nothing is
	// found, and that is not an error: it may be installed later.
	Tmux string
	// Logger is told what goes wrong; nil means silence.
	Logger *slog.Logger
}

// A Change is a session as it is now, or the id of one that is gone.
type Change = feed.Change

// A Server is one tmux server as Servers tells of it.
type Server struct {
	Socket  string
	PID     int    // 0 where it is not known
	Problem string // why its panes are not known; empty when they are
}

// Watcher watches. Run must be called for it to do anything.
type Watcher struct {
	o       Options
	log     *slog.Logger
	exits   *proc.Exits
	files   *files.Files
	wake    chan struct{} // tells the scheduler that something is due
	slots   chan struct{} // bounds the examinations at one time
	wg      sync.WaitGroup
	ready   chan struct{} // closed when the first look is done
	sources *sources.Reader
	notes   *leftover.Notes
	feed    feed.Feed

	mu       sync.Mutex
	running  bool
	panes    map[session.ID]*pane
	servers  map[string]*server // by socket
	pending  int                // servers of the first look that have not answered
	looked   bool               // the first look began
	readied  bool
	memory   memory.Memory
	keepSoon bool
}

// New makes a Watcher.
func New(o Options) (*Watcher, error) {
	if o.Home == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, fmt.Errorf("watch sessions: %w", err)
		}
		o.Home = home
	}
	for _, p := range append([]string{o.Home}, o.Sockets...) {
		if !filepath.IsAbs(p) {
			return nil, fmt.Errorf("watch sessions: %q is not an absolute path", p)
		}
	}
	w := &Watcher{
		o: o, log: o.Logger, wake: make(chan struct{}, 1),
		ready: make(chan struct{}), panes: map[session.ID]*pane{}, servers: map[string]*server{},
	}
	if w.log == nil {
		w.log = slog.New(slog.DiscardHandler)
	}
	w.notes = leftover.New(o.StateDir, w.log)
	w.sources = sources.New(sources.Options{StateDir: o.StateDir, Home: o.Home, Log: w.log})
	var err error
	if w.memory, err = memory.Load(o.StateDir); err != nil {
		w.log.Warn("which sessions were seen cannot be read and is begun anew", "path", o.StateDir, "err", err)
	}
	return w, nil
}

// Run watches until ctx ends and returns then, when everything that it started
// has ended.
func (w *Watcher) Run(ctx context.Context) error {
	w.mu.Lock()
	if w.running {
		w.mu.Unlock()
		return errors.New("watch sessions: already running")
	}
	w.running = true
	w.mu.Unlock()
	exits, err := proc.NewExits()
	if err != nil {
		return err
	}
	changes, err := files.New()
	if err != nil {
		// The zero ctx frees exits.
		done, cancel := context.WithCancel(ctx)
		cancel()
		exits.Run(done, func(int) {})
		return err
	}
	w.mu.Lock()
	w.exits, w.files = exits, changes
	w.mu.Unlock()
	w.notes.Sweep()
	// Each ends with ctx; wg waits for them.
	w.wg.Go(func() { exits.Run(ctx, w.processEnded) })
	w.wg.Go(func() { changes.Run(ctx, w.fileChanged) })
	w.wg.Go(func() { w.schedule(ctx) })
	w.discover(ctx)
	w.wg.Wait()
	w.keep(true)
	w.mu.Lock()
	w.exits, w.files, w.running = nil, nil, false
	w.mu.Unlock()
	w.feed.End()
	w.notes.Forget()
	return nil
}

// discover finds servers until ctx ends.
func (w *Watcher) discover(ctx context.Context) {
	d := discover.New(discover.Options{Dirs: w.o.TmuxDirs})
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	refused := map[string]uint64{} // files at which nobody answered
	for {
		var found []discover.Found
		if w.o.Sockets != nil {
			for _, s := range w.o.Sockets {
				if info, err := os.Lstat(s); err == nil {
					found = append(found, discover.Found{Socket: s, File: uint64(info.ModTime().UnixNano())})
				}
			}
		} else {
			found = d.Look()
		}
		for _, f := range found {
			w.found(ctx, f, refused)
		}
		w.mu.Lock()
		w.looked = true
		w.readyLocked()
		// What was said about a socket that is no longer there is forgotten.
		for path, s := range w.servers {
			if s.ended && !slices.ContainsFunc(found, func(f discover.Found) bool { return f.Socket == path }) {
				delete(w.servers, path)
			}
		}
		w.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// readyLocked tells that the first look is done: every server found answered
// and every pane of it was judged once.
func (w *Watcher) readyLocked() {
	if w.readied || !w.looked || w.pending > 0 {
		return
	}
	for _, p := range w.panes {
		if !p.examined {
			return
		}
	}
	w.readied = true
	close(w.ready)
}

// Ready waits until the first look at every server is done.
func (w *Watcher) Ready(ctx context.Context) error {
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Sessions lists what runs now, in the order of servers, sessions and windows.
func (w *Watcher) Sessions() []session.Session {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sessionsLocked()
}

func (w *Watcher) sessionsLocked() []session.Session {
	all := slices.Collect(maps.Values(w.panes))
	slices.SortFunc(all, func(a, b *pane) int {
		if c := strings.Compare(a.server.socket, b.server.socket); c != 0 {
			return c
		}
		for _, c := range []int{
			number(a.list.Session) - number(b.list.Session), a.list.WindowIndex - b.list.WindowIndex,
			a.list.PaneIndex - b.list.PaneIndex,
		} {
			if c != 0 {
				return c
			}
		}
		return strings.Compare(string(a.id), string(b.id))
	})
	out := make([]session.Session, 0, len(all))
	for _, p := range all {
		if p.examined {
			out = append(out, p.shown)
		}
	}
	return out
}

// number is the number in an id of tmux.
func number(id string) int {
	n := 0
	for _, c := range id {
		if c >= '0' && c <= '9' && n < 1<<40 {
			n = n*10 + int(c-'0')
		}
	}
	return n
}

// Session is one session as it is now.
func (w *Watcher) Session(id session.ID) (session.Session, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.panes[id]
	if p == nil || !p.examined {
		return session.Session{}, false
	}
	return p.shown, true
}

// Servers lists the tmux servers and what is wrong with them.
func (w *Watcher) Servers() []Server {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []Server
	for path, s := range w.servers {
		if s.ended && s.problem == "" {
			continue
		}
		pid := s.pid
		if s.follow != nil {
			pid = s.follow.PID()
		}
		out = append(out, Server{Socket: path, PID: pid, Problem: s.problem})
	}
	slices.SortFunc(out, func(a, b Server) int { return strings.Compare(a.Socket, b.Socket) })
	return out
}

// Seen notes that the person has seen a session as it is now.
func (w *Watcher) Seen(id session.ID) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.panes[id]
	if p == nil {
		return fmt.Errorf("note session %s as seen: %w", id, ErrNoSession)
	}
	p.see(time.Now())
	return nil
}

// Refresh looks at a session again, or at all where id is empty, and returns
// when that is done.
func (w *Watcher) Refresh(ctx context.Context, id session.ID) error {
	w.mu.Lock()
	var wait []chan struct{}
	for _, p := range w.panes {
		if id != "" && p.id != id {
			continue
		}
		done := make(chan struct{})
		p.waiting = append(p.waiting, done)
		p.dueLocked(time.Now(), needAll)
		wait = append(wait, done)
	}
	running := w.running
	w.mu.Unlock()
	if len(wait) == 0 && id != "" {
		return fmt.Errorf("look at session %s: %w", id, ErrNoSession)
	}
	if !running {
		return errors.New("look at sessions: the watcher does not run")
	}
	for _, done := range wait {
		select {
		case <-done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// Conversation says where the transcript of a session is. The errors are those
// of conversation.Locate, and ErrNoSession.
func (w *Watcher) Conversation(id session.ID) (conversation.Ref, error) {
	w.mu.Lock()
	p := w.panes[id]
	if p == nil {
		w.mu.Unlock()
		return conversation.Ref{}, fmt.Errorf("find the conversation of session %s: %w", id, ErrNoSession)
	}
	facts, src := p.current()
	ref, q := src.Ref, w.sources.Query(facts, src)
	w.mu.Unlock()
	if !ref.IsZero() {
		return ref, nil
	}
	return conversation.Locate(q)
}

// Subscribe gives all sessions and then what changes, until cancel or the end of
// Run, which close the channel. A slow reader gets fewer changes, the newest of
// each session, and misses none.
func (w *Watcher) Subscribe() (all []session.Session, changes <-chan Change, cancel func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	changes, cancel = w.feed.Subscribe()
	return w.sessionsLocked(), changes, cancel
}

// keep writes the memory, when something in it changed.
func (w *Watcher) keep(always bool) {
	w.mu.Lock()
	if w.o.StateDir == "" || !w.keepSoon && !always {
		w.keepSoon = false
		w.mu.Unlock()
		return
	}
	w.keepSoon = false
	now := time.Now()
	for id, p := range w.panes {
		if m, ok := w.memory[id]; ok {
			m.Kept, m.Seen = now, p.seen
			w.memory[id] = m
		}
	}
	b, err := w.memory.Encode(now)
	w.mu.Unlock()
	if err == nil {
		err = memory.Write(w.o.StateDir, b)
	}
	if err != nil {
		w.log.Warn("which sessions were seen cannot be kept", "path", w.o.StateDir, "err", err)
	}
}
