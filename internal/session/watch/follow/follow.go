// Package follow keeps up with one tmux server: it lists it again and again, soon
// after something changed and now and then without, and keeps a control client
// attached to each session where that changes nothing for the person.
//
// It keeps no list itself. What a caller will get wrong: the functions of Options
// are called from several goroutines and hold up what calls them; and a server
// that gives no answer is told as silent and goes on being asked, only its end
// ends Run.
package follow

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"holdfast/internal/session/proc"
	"holdfast/internal/session/tmux"
)

const (
	// listEvery is how often a server is listed when nothing happens there and
	// every session is followed: what no event tells shows by then.
	listEvery = 5 * time.Second
	// listSoon gathers a burst of notifications into one list.
	listSoon = 80 * time.Millisecond
	// listGap is the least time between two lists that notifications cause.
	listGap = 300 * time.Millisecond
	// identifyEvery is how often the server's options are read again.
	identifyEvery = 30 * time.Second
	// maxFollows bounds the control clients of one server. Each is three
	// descriptors, or from tmux 3.7 on a process of about 3 MB, most of it shared; a
	// quiet one costs no time.
	maxFollows = 100
	// ending is how long a server may take to end after its socket has gone, and
	// endingLook how often it is looked at meanwhile.
	ending     = 2 * time.Second
	endingLook = 50 * time.Millisecond
	// silentRetry is the longest pause before a silent server is asked again.
	silentRetry = 15 * time.Second
)

// Options of New; all are required.
type Options struct {
	Tmux *tmux.Server
	Log  *slog.Logger
	// Listed is told what a list found.
	Listed func(tmux.Listing)
	// Output is told what a pane wrote, and in which session that was heard; the
	// bytes are valid during the call. lost says that some before were skipped.
	Output func(session, pane string, data []byte, lost bool)
	// Silent is told that the server gives no answer. It is there: without its
	// socket, when err is tmux.ErrGone.
	Silent func(err error)
	// Started is told the process id of a client that was attached.
	Started func(pid int)
}

// Server is one tmux server that is followed.
type Server struct {
	o    Options
	poke chan struct{} // something changed: list soon

	// mu guards the fields below. No function of Options is called under it.
	mu      sync.Mutex
	pid     int
	start   string // of the process, as proc tells it
	follows map[string]*client
}

// client is one control client.
type client struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// New makes a Server; Run follows it.
func New(o Options) *Server {
	return &Server{o: o, poke: make(chan struct{}, 1), follows: map[string]*client{}}
}

// PID is the server's process; 0 before it has answered.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pid
}

// Follows says whether a client is attached to a session.
func (s *Server) Follows(session string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.follows[session] != nil
}

// Nudge asks for a list soon.
func (s *Server) Nudge() {
	select {
	case s.poke <- struct{}{}:
	default:
	}
}

// Run follows the server until it ends or ctx does, and returns when every client
// has ended.
func (s *Server) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer s.unfollow()
	defer cancel()
	pause := time.Second
	for ctx.Err() == nil {
		listed, err := s.watch(ctx)
		if errors.Is(err, tmux.ErrGone) && !s.stillThere(ctx) || ctx.Err() != nil {
			return
		}
		if listed {
			pause = time.Second
		}
		// Silent, or there and unreachable: nothing is known about its panes.
		s.o.Silent(err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, silentRetry)
	}
}

// stillThere says that the server's process lives although nobody can connect:
// its socket was deleted. One that is about to end has taken its socket away first.
func (s *Server) stillThere(ctx context.Context) bool {
	s.mu.Lock()
	pid, start := s.pid, s.start
	s.mu.Unlock()
	return pid != 0 && outlives(ctx, pid, start, ending)
}

// outlives says that a process is there after a time; it asks until then.
func outlives(ctx context.Context, pid int, start string, within time.Duration) bool {
	for end := time.Now().Add(within); ; {
		if !proc.Alive(pid, start) {
			return false
		}
		if time.Now().After(end) {
			return true
		}
		select {
		case <-ctx.Done():
			return true
		case <-time.After(endingLook):
		}
	}
}

// watch lists the server again and again; it returns with the reason why that
// no longer works, and whether it did.
func (s *Server) watch(ctx context.Context) (listed bool, err error) {
	for ctx.Err() == nil {
		began := time.Now()
		if err := s.identify(ctx); err != nil {
			return listed, err
		}
		for ctx.Err() == nil && time.Since(began) < identifyEvery {
			l, err := s.o.Tmux.List(ctx)
			if err != nil {
				return listed, err
			}
			listed = true
			followed, all := s.take(ctx, l)
			if !followed {
				if err := s.listUnfollowed(ctx, began); err != nil {
					return listed, err
				}
				continue
			}
			every := listEvery
			if !all {
				every = time.Second
			}
			if !s.pauseForEvents(ctx, every) {
				return listed, nil
			}
		}
	}
	return listed, nil
}

// identify asks the server who it is. Another one at the same socket is
// tmux.ErrGone: it is found anew.
func (s *Server) identify(ctx context.Context) error {
	info, err := s.o.Tmux.Identify(ctx)
	if err != nil {
		return err
	}
	process, err := proc.Read(info.PID)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pid != 0 && (s.pid != info.PID || err == nil && s.start != process.Start) {
		return tmux.ErrGone
	}
	s.pid = info.PID
	if err == nil {
		s.start = process.Start
	}
	return nil
}

// take hands on a list and attaches clients by it.
func (s *Server) take(ctx context.Context, l tmux.Listing) (followed, all bool) {
	s.o.Listed(l)
	return s.follow(ctx, l)
}

// pauseForEvents waits until a list is worth its while.
func (s *Server) pauseForEvents(ctx context.Context, every time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(listGap):
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(every):
		return true
	case <-s.poke:
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(listSoon):
		return true
	}
}

// listUnfollowed lists a server every second to which no client may be
// attached.
func (s *Server) listUnfollowed(ctx context.Context, began time.Time) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return s.o.Tmux.ListEvery(ctx, func(l tmux.Listing) {
		if followed, _ := s.take(ctx, l); followed || time.Since(began) >= identifyEvery {
			cancel()
		}
	})
}

// follow attaches control clients to the sessions where that changes nothing
// for the person, and ends those that are not wanted. followed says that one is
// followed, all that every one is.
func (s *Server) follow(ctx context.Context, l tmux.Listing) (followed, all bool) {
	info := s.o.Tmux.Info()
	looking := l.Looking()
	used := map[string]time.Time{}
	for _, p := range l.Panes {
		used[p.Session] = p.Used
	}
	var want []string
	all = true
	for id := range used {
		// A client of ours counts as one that has the focus. Where terminals tell
		// tmux of their focus, the program in a session at which somebody works
		// would not hear that the person went to another window.
		if info.Noticed || info.FocusEvents && looking[id] > 0 {
			all = false
			continue
		}
		want = append(want, id)
	}
	// tmux takes an attach for use: in the order of their last use the order
	// stays as it was, and "the session used last" means what it meant.
	slices.SortFunc(want, func(a, b string) int {
		if c := used[a].Compare(used[b]); c != 0 {
			return c
		}
		return number(a) - number(b)
	})
	if len(want) > maxFollows {
		want, all = want[len(want)-maxFollows:], false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, f := range s.follows {
		if !slices.Contains(want, id) {
			f.cancel()
		}
	}
	for _, id := range want {
		if s.follows[id] == nil && ctx.Err() == nil {
			s.startFollowLocked(ctx, id)
		}
	}
	return len(want) > 0 && info.PID != 0 && len(s.follows) > 0, all
}

// startFollowLocked attaches one control client.
func (s *Server) startFollowLocked(ctx context.Context, id string) {
	ctx, cancel := context.WithCancel(ctx)
	f := &client{cancel: cancel, done: make(chan struct{})}
	s.follows[id] = f
	// Ends with ctx, cancel or the session; unfollow waits for it.
	go func() {
		defer close(f.done)
		err := s.o.Tmux.Follow(ctx, tmux.FollowOptions{
			Session: id,
			Output:  func(pane string, data []byte, lost bool) { s.o.Output(id, pane, data, lost) },
			Change:  func(string) { s.Nudge() },
			Started: s.o.Started,
		})
		if err != nil && ctx.Err() == nil {
			s.o.Log.Debug("a control client ended", "path", s.o.Tmux.Socket(), "err", err)
			// One that cannot be attached is not tried again at once.
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
		cancel()
		s.mu.Lock()
		if s.follows[id] == f {
			delete(s.follows, id)
		}
		s.mu.Unlock()
		s.Nudge()
	}()
}

// unfollow ends the control clients.
func (s *Server) unfollow() {
	s.mu.Lock()
	var all []*client
	for _, f := range s.follows {
		f.cancel()
		all = append(all, f)
	}
	s.mu.Unlock()
	for _, f := range all {
		<-f.done
	}
}

// number is the number in an id of tmux.
func number(id string) int {
	n, _ := strconv.Atoi(id[min(1, len(id)):])
	return n
}
