package watch

import (
	"context"
	"errors"
	"strconv"
	"time"

	"holdfast/internal/session"
	"holdfast/internal/session/judge"
	"holdfast/internal/session/proc"
	"holdfast/internal/session/screen"
	"holdfast/internal/session/tmux"
	"holdfast/internal/session/watch/foreground"
	"holdfast/internal/session/watch/sources"
)

// schedule examines panes when they are due, until ctx ends.
func (w *Watcher) schedule(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		case <-timer.C:
		}
		now := time.Now()
		next := now.Add(time.Minute)
		var due []*pane
		w.mu.Lock()
		for _, p := range w.panes {
			if p.busy || p.due.IsZero() {
				continue
			}
			if p.due.After(now) {
				if p.due.Before(next) {
					next = p.due
				}
				continue
			}
			p.busy = true
			due = append(due, p)
		}
		keep := w.keepSoon
		w.mu.Unlock()
		for _, p := range due {
			// Ends after one examination, whose commands have deadlines; wg waits.
			w.wg.Go(func() {
				p.server.slots <- struct{}{}
				defer func() { <-p.server.slots }()
				p.examine(ctx)
			})
		}
		if keep {
			w.keep(false)
		}
		timer.Reset(time.Until(next))
	}
}

// processEnded is told that a process which was in some foreground ended.
func (w *Watcher) processEnded(pid int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.panes {
		if p.run.Facts.PID == pid {
			p.dueLocked(time.Now(), needProcess)
			p.server.follow.Nudge()
		}
	}
}

// fileChanged is told that a file changed on which the status of a pane rests.
func (w *Watcher) fileChanged(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.panes[session.ID(id)]; p != nil {
		p.dueLocked(time.Now().Add(fileSettle), needFiles)
	}
}

// fileSettle gathers the writes of one record.
const fileSettle = 30 * time.Millisecond

// examine looks at what is needed and judges. One at a time runs for a pane.
func (p *pane) examine(ctx context.Context) {
	w := p.w
	now := time.Now()
	w.mu.Lock()
	need := p.need
	list, run, prev := p.list, p.run, p.sources
	silent := !p.server.silent.IsZero()
	dialog := p.screen.Signal != nil && p.screen.Signal.Dialog != nil
	// A screen in motion is not read, unless it never rests.
	moving := now.Sub(p.heard.Output) < p.settle() && now.Sub(p.screen.at) < p.rest() && p.examined
	if moving {
		need &^= needScreen
	}
	p.due, p.need = time.Time{}, p.need&needScreen&^need
	w.mu.Unlock()

	l := foreground.Observe(foreground.Pane{
		PID: list.PID, TTY: list.TTY, Dead: list.Dead,
		Dir: func() string {
			dir, _ := p.server.tmux.Dir(ctx, list.ID)
			return dir
		},
	}, run, need&needProcess != 0, need&needScreen != 0, now)
	if l.Changed {
		need |= needFiles | needProcess
	}
	facts, running := l.Facts, run
	running.Take(l)
	var shown *tmux.Screen
	var reading screen.Reading
	var where spot
	if need&needScreen != 0 && !silent && !list.Dead {
		if s, err := p.server.tmux.Capture(ctx, list.ID, tmux.CaptureOptions{}); err == nil {
			shown, reading = &s, screen.Read(facts.Tool, screen.Screen{
				Lines: s.Lines, CursorX: s.CursorX, CursorY: s.CursorY, Cols: s.Cols, Rows: s.Rows, Alternate: s.Alternate,
				Editing: running.AtPrompt(),
			})
			dialog = reading.Dialog != nil
			where = spotOf(&s, reading, facts, list.TTY)
		}
	}
	if need&needScreen != 0 && facts.Known && (dialog || prev.Ref.How != "id") {
		need |= needFiles // which dialog it is; maybe its transcript is there by now
	}
	var found *sources.Sources
	if need&needFiles != 0 {
		if facts.PID != run.Facts.PID || facts.Start != run.Facts.Start {
			prev = sources.Sources{}
		}
		s := w.sources.Read(facts, list.ID, p.server.socket, prev, dialog)
		found = &s
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	p.busy = false
	// What became due during the examination was passed over.
	defer w.nudge()
	if w.panes[p.id] != p {
		return // gone meanwhile
	}
	p.runningLocked(l)
	if found != nil {
		p.filesLocked(*found, facts)
	}
	unread := p.screen.at.IsZero()
	if shown != nil {
		p.screenLocked(reading, where, now)
	}
	// A dialog that is found in motion is looked for once more before the first word:
	// a program may blink in its title for as long as it waits.
	first := !p.examined
	if first && unread && reading.Dialog != nil && !p.screen.trusted {
		p.dueLocked(now.Add(asked), needScreen)
		return
	}
	p.judgeLocked()
	if first {
		p.examined = true
		p.judgeLocked()
		w.readyLocked()
	}
	for _, done := range p.waiting {
		close(done)
	}
	p.waiting = nil
	switch {
	case p.need&needScreen != 0 || moving:
		// As soon as it may rest, or when a restless one is due.
		at := p.heard.Output.Add(p.settle())
		if last := p.screen.at.Add(p.rest()); last.Before(at) {
			at = last
		}
		p.dueLocked(at, needScreen)
	case now.Sub(p.heard.Output) < p.settle():
		// Drawn since, or read in motion: once more when it rests.
		p.dueLocked(p.heard.Output.Add(p.settle()), needScreen)
	}
	again := 0
	if p.run.Facts.Known && p.sources.Ref.IsZero() && now.Sub(p.heard.Output) < lateFile {
		again = needFiles
	}
	p.dueLocked(time.Now().Add(recheck), again)
	if need != 0 {
		// What the judge decides when nothing contradicts for a while.
		p.dueLocked(time.Now().Add(judge.Hold+glance), 0)
	}
	if now.Sub(p.heard.Output) < p.settle() {
		p.dueLocked(time.Now().Add(glanceAgain), 0)
	}
}

// rest is how often a screen in motion is read: more often while it showed a
// dialog, since that has to be retracted when it was answered.
func (p *pane) rest() time.Duration {
	if s := p.screen.Signal; s != nil && s.State == session.Waiting {
		return settle
	}
	return restless
}

// runningLocked takes in what runs in the foreground.
func (p *pane) runningLocked(l foreground.Look) {
	w := p.w
	if l.Closely && errors.Is(l.Err, proc.ErrGone) {
		p.server.follow.Nudge() // the pane is about to go, or to be marked dead
	}
	ended := p.run.Ended
	before, other := p.run.Take(l)
	if !other {
		return
	}
	now, facts := l.At, p.run.Facts
	if p.run.Ended != nil && p.run.Ended != ended {
		p.left = p.sources
	}
	if w.exits != nil {
		if before.PID != 0 {
			w.exits.Remove(before.PID)
		}
		if err := w.exits.Add(facts.PID); err != nil {
			p.dueLocked(now.Add(glance), needProcess)
		}
	}
	// What was said and shown was of the program before.
	if before.PID != facts.PID || before.Start != facts.Start {
		p.sources = sources.Sources{}
		if before.PID != 0 && before.Tool != facts.Tool {
			p.screen.Signal = nil
		}
		p.heard.Replaced(facts.PID, facts.Shell, now)
		p.dueLocked(now, needFiles)
		p.dueLocked(now.Add(glance), needScreen)
	}
}

// screenLocked takes in the screen that was read, and what it says.
func (p *pane) screenLocked(r screen.Reading, where spot, now time.Time) {
	facts := p.run.Facts
	resting := now.Sub(p.heard.Output) >= p.settle()
	if r.State == "" || facts.Shell && r.State != session.Waiting {
		if resting {
			p.screen.Signal = nil
		}
		p.screen.at, p.screen.trusted = now, resting
		return
	}
	sig := &judge.Signal{State: r.State, Kind: r.Kind, Detail: r.Detail, At: now, Checked: now, Tasks: r.BackgroundTasks > 0}
	if r.Dialog != nil {
		d := *r.Dialog
		d.Digest = screen.Digest(p.id, facts.PID, facts.Tool, mark(facts, p.sources.Mark, where), &d)
		sig.Dialog = &d
	}
	old := p.screen.Signal
	alike := old != nil && old.State == sig.State && old.Kind == sig.Kind && dialogDigest(old) == dialogDigest(sig)
	if alike {
		sig.At = old.At
	}
	// A screen that moves and shows the same as before: the motion is decoration.
	p.screen = shot{sig, now, resting || alike, where}
}

// fileMarks are the tools whose dialogs are told apart by their files: they draw
// anew in the same place. Of amp and cursor no file is read.
var fileMarks = map[string]bool{"claude": true, "codex": true, "gemini": true, "opencode": true, "amp": true, "cursor": true}

// A spot is what tells, beside words and files, which dialog a screen shows.
type spot struct {
	row      int    // of the cursor, from the first line of the scrollback
	answered int    // as in screen.Reading
	typed    string // as proc.Facts.Typed tells it
}

// spotOf is asked for after the screen was read: what was typed since makes it
// another's.
func spotOf(s *tmux.Screen, r screen.Reading, f proc.Facts, tty string) spot {
	at := spot{row: s.History + s.CursorY, answered: r.Answered}
	if r.Dialog != nil {
		at.typed = f.Typed(f.TTY(tty))
	}
	return at
}

// mark tells dialogs with the same words apart: by the files of a tool, and by the
// line that the question of any other program stands in, counted from the first
// of the scrollback. That is not enough where the screen is cleared in between, and
// Codex's files do not tell that one of two calls at once was allowed until it has
// run. But what asks again has taken an answer from the terminal, and Codex writes
// it above the next dialog, where there is room.
func mark(f proc.Facts, files string, at spot) string {
	if !f.Known || !fileMarks[f.Tool] {
		files = "line " + strconv.Itoa(at.row)
	}
	return files + " after " + strconv.Itoa(at.answered) + " " + at.typed
}

func dialogDigest(s *judge.Signal) string {
	if s == nil || s.Dialog == nil {
		return ""
	}
	return s.Dialog.Digest
}

// filesLocked takes in what the files said of a program.
func (p *pane) filesLocked(s sources.Sources, of proc.Facts) {
	if of.PID != p.run.Facts.PID || of.Start != p.run.Facts.Start {
		return
	}
	p.sources = s
	if p.w.files != nil {
		p.w.files.Set(string(p.id), p.w.sources.Paths(of, s))
	}
}
