package watch

import (
	"context"
	"fmt"
	"time"

	"holdfast/internal/session"
	"holdfast/internal/session/proc"
	"holdfast/internal/session/screen"
	"holdfast/internal/session/tmux"
	"holdfast/internal/session/watch/sources"
)

// A Handle acts on one pane. It stays what it is for as long as the pane lives;
// after that every method says that the pane is gone.
type Handle struct {
	w      *Watcher
	id     session.ID
	server *tmux.Server
	pane   string
}

// Look is what a pane shows at one moment.
type Look struct {
	Tool   string
	PID    int
	Screen screen.Screen
	InMode bool // copy mode eats keys
	Dead   bool // the process ended
	Secret bool // echo is off and lines are read: a password is asked for
	// Mark tells dialogs with the same words apart, see screen.Digest; empty where
	// the screen shows none.
	Mark string
}

// Pane finds the pane of a session.
func (w *Watcher) Pane(id session.ID) (*Handle, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.panes[id]
	if p == nil {
		return nil, false
	}
	return &Handle{w: w, id: id, server: p.server.tmux, pane: p.list.ID}, true
}

// Server is the tmux server and the pane's id on it, for what a Handle does not
// offer.
func (h *Handle) Server() (*tmux.Server, string) { return h.server, h.pane }

// Look reads the pane now, its program and its screen, without waiting for it
// to settle.
func (h *Handle) Look(ctx context.Context) (Look, error) {
	h.w.mu.Lock()
	p := h.w.panes[h.id]
	if p == nil {
		h.w.mu.Unlock()
		return Look{}, fmt.Errorf("look at session %s: %w", h.id, ErrNoSession)
	}
	list, src, of := p.list, p.sources, p.run.Facts
	h.w.mu.Unlock()
	l, editing := Look{Dead: list.Dead}, false
	var facts proc.Facts
	if !l.Dead {
		if f, err := proc.Foreground(list.PID); err == nil {
			l.Tool, l.PID, facts = f.Tool, f.PID, f
			if m, err := proc.Terminal(f.TTY(list.TTY)); err == nil {
				l.Secret, editing = f.AsksSecret(m), f.EditsLine(m)
			}
		}
	}
	s, err := h.server.Capture(ctx, h.pane, tmux.CaptureOptions{})
	if err != nil {
		return Look{}, err
	}
	l.InMode = s.InMode
	l.Screen = screen.Screen{Lines: s.Lines, CursorX: s.CursorX, CursorY: s.CursorY, Cols: s.Cols, Rows: s.Rows, Alternate: s.Alternate, Editing: editing}
	// Only a dialog has a mark, and an action looks many times without one: no file
	// is read for those. It is read after the screen, so that a dialog which went
	// meanwhile has another.
	if r := screen.Read(l.Tool, l.Screen); r.Dialog != nil {
		if facts.PID != of.PID || facts.Start != of.Start {
			src = sources.Sources{} // of a program that was there before
		}
		src = h.w.sources.Read(facts, h.pane, h.server.Socket(), src, true)
		l.Mark = mark(facts, src.Mark, spotOf(&s, r, facts, list.TTY))
	}
	return l, nil
}

// LeaveMode ends copy mode.
func (h *Handle) LeaveMode(ctx context.Context) error { return h.server.LeaveMode(ctx, h.pane) }

// Paste puts text in as one paste, bracketed where the program asked for that.
func (h *Handle) Paste(ctx context.Context, text []byte) error {
	return h.acted(h.server.Paste(ctx, h.pane, text))
}

// Type types text as keys, visible in no list of processes.
func (h *Handle) Type(ctx context.Context, text []byte) error {
	return h.acted(h.server.Type(ctx, h.pane, text))
}

// Keys presses keys by tmux's names, in order.
func (h *Handle) Keys(ctx context.Context, keys ...string) error {
	return h.acted(h.server.Keys(ctx, h.pane, keys...))
}

// Scrollback reads the last lines of the pane, with their colours.
func (h *Handle) Scrollback(ctx context.Context, lines int) (tmux.Screen, error) {
	return h.server.Capture(ctx, h.pane, tmux.CaptureOptions{Styled: true, Joined: true, Scrollback: lines})
}

// End ends the pane and what runs in it.
func (h *Handle) End(ctx context.Context) error {
	err := h.server.KillPane(ctx, h.pane)
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	if p := h.w.panes[h.id]; p != nil {
		p.server.follow.Nudge()
	}
	return err
}

// acted has the pane looked at soon after something was done there.
func (h *Handle) acted(err error) error {
	if err != nil {
		return err
	}
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	if p := h.w.panes[h.id]; p != nil {
		p.dueLocked(time.Now().Add(glance), needProcess)
		p.dueLocked(time.Now().Add(p.settle()), needScreen)
	}
	return nil
}
