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
	"holdfast/internal/session/tmux"
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
type Change struct {
	Session *session.Session // not changed after it was sent
	Gone    session.ID
}

// A Server is one tmux server as Servers tells of it.
type Server struct {
	Socket  string
	PID     int    // 0 where it is not known
	Problem string // why its panes are not known; empty when they are
}

// Watcher watches. Run must be called for it to do anything.
type Watcher struct {
	o     Options
	log   *slog.Logger
	exits *proc.Exits
	files *files
	wake  chan struct{} // tells the scheduler that something is due
	slots chan struct{} // bounds the examinations at one time
	wg    sync.WaitGroup
	ready chan struct{} // closed when the first look is done
	spool spool

	mu       sync.Mutex
	running  bool
	panes    map[session.ID]*pane
	servers  map[string]*server // by socket
	pending  int                // servers of the first look that have not answered
	looked   bool               // the first look began
	readied  bool
	subs     map[*subscriber]struct{}
	memory   memory
	keepSoon bool
}

// examinations is how many panes are looked at at one time: each may wait for a
// tmux server that is slow. Half makes one slow server delay the others.
const examinations = 8

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
		o: o, log: o.Logger, wake: make(chan struct{}, 1), slots: make(chan struct{}, examinations),
		ready: make(chan struct{}), panes: map[session.ID]*pane{}, servers: map[string]*server{},
		subs: map[*subscriber]struct{}{},
	}
	if w.log == nil {
		w.log = slog.New(slog.DiscardHandler)
	}
	w.memory = w.recall()
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
	files, err := newFiles()
	if err != nil {
		// The zero ctx frees exits.
		done, cancel := context.WithCancel(ctx)
		cancel()
		exits.Run(done, func(int) {})
		return err
	}
	w.mu.Lock()
	w.exits, w.files = exits, files
	w.mu.Unlock()
	w.sweep()
	// Each ends with ctx; wg waits for them.
	w.wg.Go(func() { exits.Run(ctx, w.processEnded) })
	w.wg.Go(func() { files.run(ctx, w.fileChanged) })
	w.wg.Go(func() { w.schedule(ctx) })
	w.discover(ctx)
	w.wg.Wait()
	w.keep(true)
	w.mu.Lock()
	w.exits, w.files, w.running = nil, nil, false
	for s := range w.subs {
		s.end()
	}
	w.mu.Unlock()
	w.forgetClients()
	return nil
}

const (
	// lookEvery is how often new servers are looked for: a server that starts
	// shows within a second. It costs a read of a directory and of a table.
	lookEvery = 900 * time.Millisecond
	// retryEvery is how often a socket that does not answer is tried again.
	retryEvery = 5 * time.Second
)

// discover finds servers until ctx ends.
func (w *Watcher) discover(ctx context.Context) {
	d := tmux.NewDiscoverer(tmux.DiscoverOptions{Dirs: w.o.TmuxDirs})
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	refused := map[string]uint64{} // files at which nobody answered
	for {
		var found []tmux.Found
		if w.o.Sockets != nil {
			for _, s := range w.o.Sockets {
				if info, err := os.Lstat(s); err == nil {
					found = append(found, tmux.Found{Socket: s, File: uint64(info.ModTime().UnixNano())})
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
			if s.ended && !slices.ContainsFunc(found, func(f tmux.Found) bool { return f.Socket == path }) {
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

// found starts to watch a server, when that is new.
func (w *Watcher) found(ctx context.Context, f tmux.Found, refused map[string]uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.servers[f.Socket]
	if s != nil && !s.ended {
		s.deleted = f.Deleted
		return
	}
	if f.Deleted {
		if s == nil || s.problem == "" {
			problem := fmt.Sprintf("its socket file was deleted; kill -USR1 %d makes tmux put it back", f.PID)
			w.log.Warn("a tmux server cannot be reached", "path", f.Socket, "err", problem)
			w.servers[f.Socket] = &server{w: w, socket: f.Socket, pid: f.PID, ended: true, problem: problem}
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
	s = &server{w: w, tmux: t, socket: f.Socket, poke: make(chan struct{}, 1), follows: map[string]*follow{}}
	w.servers[f.Socket] = s
	if !w.looked {
		w.pending++
		s.first = true
	}
	// Ends with ctx or with the server; wg waits for it.
	w.wg.Go(func() { s.serve(ctx) })
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
		out = append(out, Server{Socket: path, PID: s.pid, Problem: s.problem})
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
	ref, q := src.ref, w.query(facts, src)
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
	s := &subscriber{out: make(chan Change), more: make(chan struct{}, 1), done: make(chan struct{}), changes: map[session.ID]Change{}}
	w.mu.Lock()
	all = w.sessionsLocked()
	w.subs[s] = struct{}{}
	w.mu.Unlock()
	// Ends with cancel or Run; the closed channel says that it has.
	go s.deliver()
	return all, s.out, func() {
		w.mu.Lock()
		delete(w.subs, s)
		w.mu.Unlock()
		s.end()
	}
}

// subscriber holds what one reader has not taken: at most one change a session.
type subscriber struct {
	out  chan Change
	more chan struct{}
	done chan struct{}
	once sync.Once

	mu      sync.Mutex
	changes map[session.ID]Change
	order   []session.ID
}

func (s *subscriber) end() { s.once.Do(func() { close(s.done) }) }

func (s *subscriber) put(id session.ID, c Change) {
	s.mu.Lock()
	if _, ok := s.changes[id]; !ok {
		s.order = append(s.order, id)
	}
	s.changes[id] = c
	s.mu.Unlock()
	select {
	case s.more <- struct{}{}:
	default:
	}
}

func (s *subscriber) deliver() {
	defer close(s.out)
	for {
		s.mu.Lock()
		var c Change
		ok := len(s.order) > 0
		if ok {
			c = s.changes[s.order[0]]
			delete(s.changes, s.order[0])
			s.order = s.order[1:]
		}
		s.mu.Unlock()
		if !ok {
			select {
			case <-s.more:
				continue
			case <-s.done:
				return
			}
		}
		select {
		case s.out <- c:
		case <-s.done:
			return
		}
	}
}

// tellLocked sends a change to everybody.
func (w *Watcher) tellLocked(id session.ID, c Change) {
	for s := range w.subs {
		s.put(id, c)
	}
}
