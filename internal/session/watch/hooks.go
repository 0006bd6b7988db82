package watch

import (
	"os"
	"slices"
	"sync"
	"time"

	"holdfast/internal/session"
	"holdfast/internal/session/hooks"
	"holdfast/internal/session/judge"
	"holdfast/internal/session/proc"
)

// spool keeps what hooks told, read again when the directory changed: every pane
// asks for it.
type spool struct {
	mu      sync.Mutex
	changed time.Time
	events  []hooks.Event
}

// hookPaths are where hooks spool what they are told.
func (w *Watcher) hookPaths() []string {
	if w.o.StateDir == "" {
		return nil
	}
	return []string{hooks.SpoolDir(w.o.StateDir) + "/"}
}

// hookEvents are the newest events, the newest first.
func (w *Watcher) hookEvents() []hooks.Event {
	if w.o.StateDir == "" {
		return nil
	}
	info, err := os.Stat(hooks.SpoolDir(w.o.StateDir))
	if err != nil {
		return nil
	}
	w.spool.mu.Lock()
	defer w.spool.mu.Unlock()
	// A file that is replaced within the clock's grain leaves the time as it was.
	if info.ModTime().Equal(w.spool.changed) && time.Since(info.ModTime()) > time.Second {
		return w.spool.events
	}
	events, err := hooks.Events(w.o.StateDir)
	if err != nil {
		w.log.Warn("what hooks told cannot be read", "err", err)
		return nil
	}
	w.spool.events, w.spool.changed = events, info.ModTime()
	return events
}

// hookSignal takes in what hooks said about a program in this pane. A tool that
// this one started has the same pane in its environment, so the process decides.
func (p *pane) hookSignal(s *sources, f proc.Facts, pane string) {
	for _, e := range p.w.hookEvents() {
		if e.Tool != f.Tool || e.Pane != pane || len(e.PIDs) > 0 && !slices.Contains(e.PIDs, f.PID) ||
			e.Socket != "" && !sameFile(e.Socket, p.server.socket) || e.At.Before(f.Started) {
			continue
		}
		if s.sessionID == "" {
			s.sessionID = e.SessionID
		}
		if s.sessionID == e.SessionID {
			s.transcriptPath = e.Transcript
		}
		if e.State == session.Exited {
			return // the process tells that
		}
		s.hook = &judge.Signal{State: e.State, Kind: e.Kind, At: e.At, Detail: "its hook told " + e.Detail, Tasks: e.Tasks > 0}
		// Codex asks its hook before it decides by itself whether to ask the person:
		// only the screen tells that it did.
		if f.Tool == "codex" && e.State == session.Waiting && e.Kind == session.Permission {
			s.hook.State, s.hook.Kind = session.Working, ""
		}
		return
	}
}

func sameFile(a, b string) bool {
	if a == b {
		return true
	}
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}
