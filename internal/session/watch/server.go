package watch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"holdfast/internal/session"
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
	// maxFollows bounds the control clients of one server. Each is a process of
	// about 3 MB, most of it shared; a quiet one costs no time.
	maxFollows = 100
	// silentRetry is the longest pause before a silent server is asked again.
	silentRetry = 15 * time.Second
)

// server is one tmux server that is watched.
type server struct {
	w      *Watcher
	tmux   *tmux.Server
	socket string
	poke   chan struct{} // something changed: list soon

	// The fields below are guarded by Watcher.mu.
	pid     int
	start   string // of the process, as proc tells it
	problem string
	silent  time.Time // since when it gives no answer
	deleted bool      // the socket file is gone
	ended   bool
	endedAt time.Time
	first   bool // belongs to the first look and has not answered
	follows map[string]*follow
}

// follow is one control client.
type follow struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// nudge asks for a list soon.
func (s *server) nudge() {
	select {
	case s.poke <- struct{}{}:
	default:
	}
}

// serve watches the server until it ends or ctx does.
func (s *server) serve(ctx context.Context) {
	outer := ctx
	ctx, cancel := context.WithCancel(ctx)
	// When the watcher ends the sessions go on; only the server's end ends them.
	defer func() {
		if outer.Err() == nil {
			s.gone()
		}
	}()
	defer s.unfollow()
	defer cancel()
	pause := time.Second
	for ctx.Err() == nil {
		err := s.watch(ctx)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, tmux.ErrGone) && !s.stillThere() {
			return
		}
		// Silent, or there and unreachable: nothing is known about its panes.
		s.mute(err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, silentRetry)
		if s.answers() {
			pause = time.Second
		}
	}
}

// stillThere says that the server's process lives although nobody can connect:
// its socket was deleted.
func (s *server) stillThere() bool {
	s.w.mu.Lock()
	pid, start := s.pid, s.start
	s.w.mu.Unlock()
	return pid != 0 && proc.Alive(pid, start)
}

func (s *server) answers() bool {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	return s.silent.IsZero()
}

// mute says that the server gives no answer.
func (s *server) mute(err error) {
	w := s.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if s.silent.IsZero() {
		s.silent = time.Now()
		s.problem = "it does not answer"
		if errors.Is(err, tmux.ErrGone) {
			s.problem = fmt.Sprintf("its socket file was deleted; kill -USR1 %d makes tmux put it back", s.pid)
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

// watch lists the server again and again; it returns with the reason why that
// no longer works.
func (s *server) watch(ctx context.Context) error {
	for ctx.Err() == nil {
		began := time.Now()
		info, err := s.tmux.Identify(ctx)
		if err != nil {
			return err
		}
		process, err := proc.Read(info.PID)
		s.w.mu.Lock()
		other := s.pid != 0 && (s.pid != info.PID || err == nil && s.start != process.Start)
		if !other {
			s.pid = info.PID
			if err == nil {
				s.start = process.Start
			}
		}
		s.w.mu.Unlock()
		if other {
			return tmux.ErrGone // another server took the socket: it is found anew
		}
		for ctx.Err() == nil && time.Since(began) < identifyEvery {
			l, err := s.tmux.List(ctx)
			if err != nil {
				return err
			}
			followed, all := s.listed(ctx, l)
			if !followed {
				if err := s.listUnfollowed(ctx, began); err != nil {
					return err
				}
				continue
			}
			every := listEvery
			if !all {
				every = time.Second
			}
			if !s.pauseForEvents(ctx, every) {
				return nil
			}
		}
	}
	return nil
}

// pauseForEvents waits until a list is worth its while.
func (s *server) pauseForEvents(ctx context.Context, every time.Duration) bool {
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
func (s *server) listUnfollowed(ctx context.Context, began time.Time) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return s.tmux.ListEvery(ctx, func(l tmux.Listing) {
		if followed, _ := s.listed(ctx, l); followed || time.Since(began) >= identifyEvery {
			cancel()
		}
	})
}

// listed takes in a list. followed says that a session of it is followed, all
// that every one is.
func (s *server) listed(ctx context.Context, l tmux.Listing) (followed, all bool) {
	w := s.w
	now := time.Now()
	looking := map[string]int{}
	activity := map[string]time.Time{}
	for _, c := range l.Clients {
		if c.Watcher {
			continue
		}
		looking[c.Session]++
		if c.Activity.After(activity[c.Session]) {
			activity[c.Session] = c.Activity
		}
	}
	tag := s.tmux.Tag()
	seen := map[session.ID]bool{}
	w.mu.Lock()
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
	w.mu.Unlock()
	return s.follow(ctx, l, looking)
}

// follow attaches control clients to the sessions where that changes nothing
// for the person, and ends those that are not wanted.
func (s *server) follow(ctx context.Context, l tmux.Listing, looking map[string]int) (followed, all bool) {
	info := s.tmux.Info()
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
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
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
func (s *server) startFollowLocked(ctx context.Context, id string) {
	ctx, cancel := context.WithCancel(ctx)
	f := &follow{cancel: cancel, done: make(chan struct{})}
	s.follows[id] = f
	// Ends with ctx, cancel or the session; unfollow waits for it.
	go func() {
		defer close(f.done)
		err := s.tmux.Follow(ctx, tmux.FollowOptions{
			Session: id,
			Output:  func(pane string, data []byte, lost bool) { s.output(id, pane, data, lost) },
			Change:  func(string) { s.nudge() },
			Started: s.w.rememberClient,
		})
		if err != nil && ctx.Err() == nil {
			s.w.log.Debug("a control client ended", "path", s.socket, "err", err)
			// One that cannot be attached is not tried again at once.
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
		cancel()
		s.w.mu.Lock()
		if s.follows[id] == f {
			delete(s.follows, id)
		}
		s.w.mu.Unlock()
		s.nudge()
	}()
}

// unfollow ends the control clients.
func (s *server) unfollow() {
	s.w.mu.Lock()
	var all []*follow
	for _, f := range s.follows {
		f.cancel()
		all = append(all, f)
	}
	s.w.mu.Unlock()
	for _, f := range all {
		<-f.done
	}
}

// output takes in raw bytes of a pane.
func (s *server) output(from, tmuxPane string, data []byte, lost bool) {
	w := s.w
	id := session.ID(s.tmux.Tag() + ":" + tmuxPane)
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.panes[id]
	if p == nil {
		s.nudge()
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
