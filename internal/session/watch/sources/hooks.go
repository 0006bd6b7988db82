package sources

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
func (r *Reader) hookPaths() []string {
	if r.o.StateDir == "" {
		return nil
	}
	return []string{hooks.SpoolDir(r.o.StateDir) + "/"}
}

// hookEvents are the newest events, the newest first.
func (r *Reader) hookEvents() []hooks.Event {
	if r.o.StateDir == "" {
		return nil
	}
	info, err := os.Stat(hooks.SpoolDir(r.o.StateDir))
	if err != nil {
		return nil
	}
	r.spool.mu.Lock()
	defer r.spool.mu.Unlock()
	// A file that is replaced within the clock's grain leaves the time as it was.
	if info.ModTime().Equal(r.spool.changed) && time.Since(info.ModTime()) > time.Second {
		return r.spool.events
	}
	events, err := hooks.Events(r.o.StateDir)
	if err != nil {
		r.o.Log.Warn("what hooks told cannot be read", "err", err)
		return nil
	}
	r.spool.events, r.spool.changed = events, info.ModTime()
	return events
}

// hookSignal takes in what hooks said about a program in this pane. A tool that
// this one started has the same pane in its environment, so the process decides.
func (r *Reader) hookSignal(s *Sources, f proc.Facts, pane, socket string) {
	for _, e := range r.hookEvents() {
		if e.Tool != f.Tool || e.Pane != pane || len(e.PIDs) > 0 && !slices.Contains(e.PIDs, f.PID) ||
			e.Socket != "" && !sameFile(e.Socket, socket) || e.At.Before(f.Started) {
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
		s.Hook = &judge.Signal{State: e.State, Kind: e.Kind, At: e.At, Detail: "its hook told " + e.Detail, Tasks: e.Tasks > 0}
		// Codex asks its hook before it decides by itself whether to ask the person:
		// only the screen tells that it did.
		if f.Tool == "codex" && e.State == session.Waiting && e.Kind == session.Permission {
			s.Hook.State, s.Hook.Kind = session.Working, ""
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
