package here

import (
	"context"
	"errors"
	"time"

	"holdfast/internal/session"
	"holdfast/internal/session/act"
	"holdfast/internal/session/proto"
	"holdfast/internal/session/tmux"
	"holdfast/internal/session/watch"
)

const (
	// readyTime is how long a device waits for the first look at every tmux
	// server. One that hangs must not keep the others' sessions from it.
	readyTime = 3 * time.Second
	// emptyTime is how long where nothing is known by then: no session is what a
	// person would read in it. A server that gives no answer is known as such before,
	// and whoever asks waits for 8 s.
	emptyTime = 7 * time.Second
	// freshTime bounds the look at a session after something was done there.
	freshTime = 3 * time.Second
)

// errNoSession is what a device hears of a session that is gone.
var errNoSession = &proto.Error{Code: proto.CodeNoSession, Message: "there is no such session any more"}

// noSession gives the word of the packages below for a pane that is gone its
// code.
func noSession(err error) error {
	if errors.Is(err, tmux.ErrNoPane) || errors.Is(err, tmux.ErrGone) || errors.Is(err, watch.ErrNoSession) {
		return errNoSession
	}
	return err
}

// touched has a session judged again, which nobody waits for.
func (h *Here) touched(id session.ID) {
	// Ends within freshTime; Close waits.
	h.wg.Go(func() {
		ctx, cancel := context.WithTimeout(h.ctx, freshTime)
		defer cancel()
		if err := h.watch.Refresh(ctx, id); err != nil && !errors.Is(err, watch.ErrNoSession) && ctx.Err() == nil {
			h.o.Log.Debug("a session was not looked at again", "err", err)
		}
	})
}

// pane is a watch.Handle as package act needs it.
type pane struct{ *watch.Handle }

// Look reads the pane now.
func (p pane) Look(ctx context.Context) (act.Look, error) {
	l, err := p.Handle.Look(ctx)
	if err != nil {
		return act.Look{}, noSession(err)
	}
	return act.Look{Tool: l.Tool, PID: l.PID, Screen: l.Screen, InMode: l.InMode, Dead: l.Dead, Secret: l.Secret, Mark: l.Mark}, nil
}

// LeaveMode ends copy mode.
func (p pane) LeaveMode(ctx context.Context) error { return noSession(p.Handle.LeaveMode(ctx)) }

// Paste puts text in as one paste.
func (p pane) Paste(ctx context.Context, text []byte) error {
	return noSession(p.Handle.Paste(ctx, text))
}

// Type types text as keys.
func (p pane) Type(ctx context.Context, text []byte) error {
	return noSession(p.Handle.Type(ctx, text))
}

// Keys presses keys.
func (p pane) Keys(ctx context.Context, keys ...string) error {
	return noSession(p.Handle.Keys(ctx, keys...))
}

// ready waits for the first look at every tmux server, for a while: a process
// that has only just begun knows no session yet.
func (h *Here) ready() {
	waitReady(h.ctx, h.watch.Ready, func() bool { return len(h.watch.Sessions()) > 0 })
}

// waitReady waits for ready, for readyTime, and for emptyTime where nothing is known
// by then. What is known in the end is all.
func waitReady(ctx context.Context, ready func(context.Context) error, known func() bool) {
	for _, limit := range []time.Duration{readyTime, emptyTime - readyTime} {
		limited, cancel := context.WithTimeout(ctx, limit)
		err := ready(limited)
		cancel()
		if err == nil || known() {
			return
		}
	}
}

// find finds a pane.
func (h *Here) find(id session.ID) (*watch.Handle, bool) {
	p, ok := h.watch.Pane(id)
	if !ok {
		h.ready()
		p, ok = h.watch.Pane(id)
	}
	return p, ok
}

// server is the tmux server of a session, and the pane's id there.
func (h *Here) server(id session.ID) (*tmux.Server, string, error) {
	p, ok := h.find(id)
	if !ok {
		return nil, "", errNoSession
	}
	server, target := p.Server()
	return server, target, nil
}
