package watch

import (
	"context"
	"errors"
	"slices"
	"time"

	"holdfast/internal/session"
	"holdfast/internal/session/judge"
	"holdfast/internal/session/proc"
	"holdfast/internal/session/screen"
	"holdfast/internal/session/tmux"
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
				w.slots <- struct{}{}
				defer func() { <-w.slots }()
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
		if p.run.facts.PID == pid {
			p.dueLocked(time.Now(), needProcess)
			p.server.nudge()
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

// look is what an examination found, before it is taken in.
type look struct {
	at      time.Time
	process bool
	facts   proc.Facts
	group   int
	err     error
	modes   proc.Modes
	modesOK bool
	reads   bool
	dir     string
	screen  *tmux.Screen
	files   *sources
}

// replaced says that what runs may be another program although the terminal
// gives its keys to the same group: one that was executed in its place, or a
// tool that a launcher has started by now.
func replaced(r running, now time.Time) bool {
	if (!r.facts.Known && !r.facts.Shell || r.facts.Interpreted()) && (now.Sub(r.since) < launching || now.Sub(r.looked) >= lookAgain) {
		return true
	}
	p, err := proc.Read(r.facts.PID)
	return err != nil || p.Start != r.facts.Start || p.Exe != r.facts.Exe || !slices.Equal(p.Args, r.facts.Args)
}

// examine looks at what is needed and judges. One at a time runs for a pane.
func (p *pane) examine(ctx context.Context) {
	w := p.w
	now := time.Now()
	w.mu.Lock()
	need := p.need
	list, run, prev := p.list, p.run, p.sources
	silent := !p.server.silent.IsZero()
	// A screen in motion is not read, unless it never rests.
	moving := now.Sub(p.heard.output) < settle && now.Sub(p.sources.screenAt) < p.rest() && p.examined
	if moving {
		need &^= needScreen
	}
	p.due, p.need = time.Time{}, p.need&needScreen&^need
	w.mu.Unlock()

	var l look
	l.at = now
	l.group, l.err = proc.ForegroundGroup(list.PID)
	changed := l.err != nil || l.group != run.group || !run.ok
	young := now.Sub(run.since) < settle
	if !changed && (young || need&needScreen != 0 || now.Sub(run.looked) >= lookAgain) && replaced(run, now) {
		need |= needProcess
	}
	if changed || need&needProcess != 0 {
		l.process = true
		if !list.Dead && l.err == nil {
			l.facts, l.err = proc.Foreground(list.PID)
			if l.err == nil && l.facts.Dir == "" {
				l.dir, _ = p.server.tmux.Dir(ctx, list.ID)
			}
		}
		if changed {
			need |= needFiles | needProcess
		}
	}
	facts := run.facts
	if l.process && l.err == nil {
		facts = l.facts
	}
	// A tool's own line editor tells nothing by the modes.
	if !facts.Known && !list.Dead {
		if m, err := proc.Terminal(list.TTY); err == nil {
			l.modes, l.modesOK, l.reads = m, true, proc.Reads(facts.PID)
		}
	}
	if need&needScreen != 0 && !silent && !list.Dead {
		if s, err := p.server.tmux.Capture(ctx, list.ID, tmux.CaptureOptions{}); err == nil {
			l.screen = &s
		}
	}
	if need&needScreen != 0 && facts.Known && prev.ref.How != "id" {
		need |= needFiles // maybe its transcript is there by now
	}
	if need&needFiles != 0 {
		if facts.PID != run.facts.PID || facts.Start != run.facts.Start {
			prev = sources{}
		}
		l.files = p.readFiles(facts, list.ID, prev)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	p.busy = false
	// What became due during the examination was passed over.
	defer w.nudge()
	if w.panes[p.id] != p {
		return // gone meanwhile
	}
	if l.process {
		p.processLocked(l)
	}
	if p.run.facts.Known {
		p.run.secret = time.Time{}
	}
	if l.modesOK {
		p.run.modes, p.run.reads = l.modes, l.reads
		switch {
		case !l.modes.Secret() || p.run.facts.Known || p.run.facts.Shell && !l.reads:
			p.run.secret = time.Time{}
		case p.run.secret.IsZero():
			p.run.secret = now
		}
	}
	if l.screen != nil {
		p.screenLocked(l.screen, now)
	}
	if l.files != nil {
		p.filesLocked(l.files, facts)
	}
	first := !p.examined
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
		at := p.heard.output.Add(settle)
		if last := p.sources.screenAt.Add(p.rest()); last.Before(at) {
			at = last
		}
		p.dueLocked(at, needScreen)
	case now.Sub(p.heard.output) < settle:
		// Drawn since, or read in motion: once more when it rests.
		p.dueLocked(p.heard.output.Add(settle), needScreen)
	}
	p.dueLocked(time.Now().Add(recheck), 0)
	if need != 0 {
		// What the judge decides when nothing contradicts for a while.
		p.dueLocked(time.Now().Add(judge.Hold+glance), 0)
	}
	if now.Sub(p.heard.output) < settle {
		p.dueLocked(time.Now().Add(glanceAgain), 0)
	}
}

// rest is how often a screen in motion is read: more often while it showed a
// dialog, since that has to be retracted when it was answered.
func (p *pane) rest() time.Duration {
	if s := p.sources.screen; s != nil && s.State == session.Waiting {
		return settle
	}
	return restless
}

// processLocked takes in what runs in the foreground.
func (p *pane) processLocked(l look) {
	w, r := p.w, &p.run
	now := l.at
	if l.err != nil {
		if errors.Is(l.err, proc.ErrGone) {
			p.server.nudge() // the pane is about to go, or to be marked dead
		}
		if r.ok && !proc.Alive(r.facts.PID, r.facts.Start) {
			r.ok = false
		}
		return
	}
	old, was := r.facts, r.ok
	r.facts, r.ok, r.group, r.dir, r.looked = l.facts, true, l.group, l.dir, now
	same := was && old.PID == l.facts.PID && old.Start == l.facts.Start && old.Tool == l.facts.Tool
	if same {
		return
	}
	r.lasted = now.Sub(r.since)
	r.since = now
	if !was {
		r.lasted = 0
		r.since = l.facts.Started
	}
	if old.Shell {
		r.lasted = 0
	}
	switch {
	case l.facts.Known || !l.facts.Shell:
		r.ended = nil // something else runs
	case was && old.Known && ended(old):
		r.endedAs, r.left = old, p.sources
		r.ended = &judge.Signal{State: session.Exited, At: now, Detail: old.Tool + " ended, the shell is back"}
	}
	if w.exits != nil {
		if was {
			w.exits.Remove(old.PID)
		}
		if err := w.exits.Add(l.facts.PID); err != nil {
			p.dueLocked(now.Add(glance), needProcess)
		}
	}
	// What was said and shown was of the program before.
	if old.PID != l.facts.PID || old.Start != l.facts.Start {
		p.sources = sources{screen: p.sources.screen, screenAt: p.sources.screenAt, trusted: p.sources.trusted}
		if was && old.Tool != l.facts.Tool {
			p.sources.screen = nil
		}
		p.heard.progress = nil
		p.dueLocked(now, needFiles)
		p.dueLocked(now.Add(glance), needScreen)
	}
}

// ended says that a program is gone, or was left by what started it. One that is
// stopped (Ctrl-Z) is neither.
func ended(f proc.Facts) bool {
	p, err := proc.Read(f.PID)
	return err != nil || p.Start != f.Start || p.Zombie || p.Parent != f.Parent
}

// screenLocked takes in the screen that was read.
func (p *pane) screenLocked(s *tmux.Screen, now time.Time) {
	facts := p.run.facts
	r := screen.Read(facts.Tool, screen.Screen{
		Lines: s.Lines, CursorX: s.CursorX, CursorY: s.CursorY, Cols: s.Cols, Rows: s.Rows, Alternate: s.Alternate,
	})
	resting := now.Sub(p.heard.output) >= settle
	if r.State == "" || facts.Shell && r.State != session.Waiting {
		if resting {
			p.sources.screen = nil
		}
		p.sources.screenAt, p.sources.trusted = now, resting
		return
	}
	sig := &judge.Signal{State: r.State, Kind: r.Kind, Detail: r.Detail, At: now, Checked: now, Tasks: r.BackgroundTasks > 0}
	if r.Dialog != nil {
		d := *r.Dialog
		d.Digest = screen.Digest(p.id, facts.PID, facts.Tool, &d)
		sig.Dialog = &d
	}
	old := p.sources.screen
	alike := old != nil && old.State == sig.State && old.Kind == sig.Kind && dialogDigest(old) == dialogDigest(sig)
	if alike {
		sig.At = old.At
	}
	// A screen that moves and shows the same as before: the motion is decoration.
	p.sources.screen, p.sources.screenAt, p.sources.trusted = sig, now, resting || alike
}

func dialogDigest(s *judge.Signal) string {
	if s == nil || s.Dialog == nil {
		return ""
	}
	return s.Dialog.Digest
}

// filesLocked takes in what the files said of a program.
func (p *pane) filesLocked(f *sources, of proc.Facts) {
	if of.PID != p.run.facts.PID || of.Start != p.run.facts.Start {
		return
	}
	f.screen, f.screenAt, f.trusted = p.sources.screen, p.sources.screenAt, p.sources.trusted
	p.sources = *f
	if p.w.files != nil {
		p.w.files.set(string(p.id), p.paths())
	}
}
