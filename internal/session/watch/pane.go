package watch

import (
	"fmt"
	"strings"
	"time"

	"holdfast/internal/session"
	"holdfast/internal/session/judge"
	"holdfast/internal/session/osc"
	"holdfast/internal/session/proc"
	"holdfast/internal/session/screen"
	"holdfast/internal/session/tmux"
	"holdfast/internal/session/watch/feed"
	"holdfast/internal/session/watch/foreground"
	"holdfast/internal/session/watch/heard"
	"holdfast/internal/session/watch/memory"
	"holdfast/internal/session/watch/sources"
)

// What an examination looks at.
const (
	needProcess = 1 << iota // what runs in the foreground
	needScreen              // the settled screen and the terminal's modes
	needFiles               // registry, hooks and transcript
	needAll     = needProcess | needScreen | needFiles
)

const (
	// settle is how long a screen must be quiet before it is read. Tools redraw
	// their spinner every 100 to 200 ms; at half, a slow redraw is read in its
	// middle, at double a dialog shows more than a second late.
	settle = 600 * time.Millisecond
	// asked is the same where a question is likely: a program of no spinner stopped
	// within a line, or the tool itself says that it waits. It outlasts the pauses
	// within what one program prints; a half-drawn question is read again when the
	// rest is drawn.
	asked = 250 * time.Millisecond
	// restless is how often the screen of a program is read that never is quiet:
	// what stands in two such screens alike is believed.
	restless = 1500 * time.Millisecond
	// glance is how soon after the first output what runs is looked at: a command
	// line was entered, or a program ended.
	glance = 60 * time.Millisecond
	// glanceAgain is how often that is done until the output rests. A glance is one
	// read of a file.
	glanceAgain = 150 * time.Millisecond
	// recheck is how often the foreground of a quiet terminal is asked for: one
	// read of a file.
	recheck = 5 * time.Second
	// lateFile is how long after a tool's last output its transcript is looked
	// for: tools write it a while after they have answered, and no file of its
	// that is there yet tells of it.
	lateFile = time.Minute
	// confirm is how often a status that only was confirmed is told.
	confirm = 30 * time.Second
	// codeWithin is how soon after a tool's end its shell tells the exit code.
	codeWithin = 2 * time.Second
	maxName    = 256 // bytes of a name, the limit of the protocol
)

// pane is one pane. Its fields are guarded by Watcher.mu, except while one is
// examined: see examine.
type pane struct {
	w      *Watcher
	id     session.ID
	server *server

	list     tmux.Pane
	attached int

	due      time.Time // when to examine it next
	need     int
	busy     bool // an examination runs
	examined bool // at least once
	waiting  []chan struct{}

	heard   heard.Heard
	run     foreground.Running
	sources sources.Sources
	left    sources.Sources // of the tool that ended: its conversation
	screen  shot

	shown  session.Session
	told   time.Time // when a change was last told
	before session.Status
	seen   time.Time
	since  time.Time // when it began to be watched, as remembered
}

// shot is what the screen said when it was read.
type shot struct {
	*judge.Signal
	at      time.Time
	trusted bool // it rested, or said the same as the one before
	spot
}

func newPane(s *server, id session.ID, now time.Time) *pane {
	p := &pane{w: s.w, id: id, server: s, since: now, before: session.Status{State: session.Unknown}}
	if m, ok := s.w.memory[id]; ok {
		p.before, p.seen, p.since = session.Status{State: m.State, Since: m.Since}, m.Seen, m.Watched
	}
	p.dueLocked(now, needAll)
	return p
}

// dueLocked asks for an examination at a time, or earlier.
func (p *pane) dueLocked(at time.Time, need int) {
	p.need |= need
	if p.due.IsZero() || at.Before(p.due) {
		p.due = at
		p.w.nudge()
	}
}

// nudge has schedule look at every pane again.
func (w *Watcher) nudge() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// listedLocked takes in what the server lists.
func (p *pane) listedLocked(l tmux.Pane, attached int, activity, now time.Time) {
	old := p.list
	p.list, p.attached = l, attached
	switch {
	case old.PID != 0 && old.PID != l.PID:
		// The pane was respawned: what was known is of another process.
		p.run, p.sources, p.heard, p.screen = foreground.Running{}, sources.Sources{}, heard.Heard{}, shot{}
		p.dueLocked(now, needAll)
	case old.Dead != l.Dead:
		p.dueLocked(now, needProcess)
	case old.ID == "":
	case !p.followed() && (l.Output.After(old.Output) || l.CursorX != old.CursorX || l.CursorY != old.CursorY || l.History != old.History):
		// Nobody told of the output; the list has its time to the second.
		p.heard.Output = now
		p.dueLocked(now, needProcess)
		p.dueLocked(now.Add(p.settle()), needScreen)
	case old.InMode != l.InMode || old.Cols != l.Cols || old.Rows != l.Rows:
		p.dueLocked(now.Add(p.settle()), needScreen)
	}
	// A key pressed at the desktop while the pane is what is shown there: it was
	// seen. Both times are to the second.
	if p.shown.Status.State == session.Done && attached > 0 && l.Active && activity.After(p.shown.Status.Since) {
		p.see(activity)
	}
	if p.examined {
		p.judgeLocked()
	}
}

func (p *pane) followed() bool { return p.server.follow.Follows(p.list.Session) }

// outputLocked takes in raw bytes.
func (p *pane) outputLocked(data []byte, lost bool, now time.Time) {
	quiet := now.Sub(p.heard.Output)
	news := p.heard.Feed(data, lost, p.run.Facts.PID, now)
	if end := p.run.Ended; news.Code != nil && end != nil && end.Code == nil && now.Sub(end.At) < codeWithin {
		end.Code = news.Code
	}
	if !news.Look.IsZero() {
		p.dueLocked(news.Look, needProcess)
	}
	if quiet > glance {
		p.dueLocked(now.Add(glance), 0)
	}
	p.dueLocked(now.Add(p.settle()), needScreen)
	if news.Said && p.examined {
		p.judgeLocked()
	}
}

// settle is how long the screen must be quiet before it is read.
func (p *pane) settle() time.Duration {
	said := p.heard.Signal(p.run.Facts.PID, p.run.Facts.Known)
	switch {
	case !p.run.Facts.Known && p.heard.Open,
		said != nil && said.State == session.Waiting,
		p.sources.Registry != nil && p.sources.Registry.State == session.Waiting:
		return asked
	}
	return settle
}

// see notes that the person saw the pane.
func (p *pane) see(now time.Time) {
	if !now.After(p.seen) {
		return
	}
	p.seen = now
	if p.run.Ended != nil && !p.list.Dead {
		// An end that was seen: the shell is what is there now.
		p.run.Ended = nil
	}
	if p.examined {
		p.judgeLocked()
	}
	p.w.keepSoonLocked()
}

// facts are what the judge is asked with.
func (p *pane) facts(now time.Time) judge.Facts {
	shown := p.screen.Signal
	if shown != nil {
		s := *shown
		if !p.heard.Output.After(p.screen.at) {
			s.Checked = now // nothing was drawn since: it still shows that
		}
		if s.Dialog != nil {
			// The tool may have written down since which dialog it is.
			d, f := *s.Dialog, p.run.Facts
			d.Digest = screen.Digest(p.id, f.PID, f.Tool, mark(f, p.sources.Mark, p.screen.spot), &d)
			s.Dialog = &d
		}
		shown = &s
	}
	f := judge.Facts{
		Now: now, Silent: p.server.silent, Known: p.run.Facts.Known,
		Registry: p.sources.Registry, Hook: p.sources.Hook, OSC: p.heard.Signal(p.run.Facts.PID, p.run.Facts.Known),
		Transcript: p.sources.Transcript, Screen: shown, Settled: p.screen.trusted,
		Before: p.before, Watched: p.since, Seen: p.seen,
	}
	if p.list.Dead {
		s := &judge.Signal{State: session.Exited, At: p.list.Output, Detail: "the process of the pane ended"}
		if c := p.list.DeadStatus; c >= 0 {
			s.Code = &c
		}
		f.Ended = s
		return f
	}
	f.Ended = p.run.Ended
	f.Terminal = p.run.Secret(p.screen.at)
	f.Running = p.run.Signal(now, p.heard.Busy(now))
	return f
}

// judgeLocked decides and tells when something changed.
func (p *pane) judgeLocked() {
	now := time.Now()
	st := judge.Judge(p.facts(now))
	if n := p.heard.Note(now); n != nil && len(st.Evidence) < 7 {
		n.Detail = cut(n.Detail, 200)
		st.Evidence = append(st.Evidence, *n)
	}
	s := p.describe(st)
	old := p.shown
	p.before, p.shown = st, s
	if !p.examined {
		return
	}
	if feed.Same(old, s) && now.Sub(p.told) < confirm {
		return
	}
	p.told = now
	p.w.feed.Put(p.id, Change{Session: &s})
	if p.w.memory.Note(p.id, memory.Pane{State: s.Status.State, Since: s.Status.Since, Seen: p.seen, Watched: p.since, Kept: now}) {
		p.w.keepSoonLocked()
	}
}

// spinners are what tools turn in front of their title.
const spinners = " ✳✻✽✶✢✺·∗*◐◑◒◓⠁⠂⠄⡀⢀⠠⠐⠈⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏⠿⠾⠽⠻⠷⠯⠟"

// current is what a person would say is there: a tool that ended, until its end
// was seen, else what runs.
func (p *pane) current() (proc.Facts, sources.Sources) {
	if p.run.Ended != nil && p.run.EndedAs.Tool != "" {
		return p.run.EndedAs, p.left
	}
	return p.run.Facts, p.sources
}

// describe makes what is told of the pane.
func (p *pane) describe(st session.Status) session.Session {
	l := p.list
	facts, src := p.current()
	title := src.Title
	if title == "" {
		title = src.Name
	}
	if title == "" {
		title = l.Title
		if facts.Known {
			title = strings.TrimLeft(title, spinners)
		}
	}
	version := src.Version
	if version == "" {
		version = facts.Version
	}
	dir := facts.Dir
	if dir == "" {
		dir = p.run.Dir
	}
	return session.Session{
		ID: p.id, Name: cut(l.SessionName, maxName), Window: cut(l.WindowName, maxName),
		Index: fmt.Sprintf("%d.%d", l.WindowIndex, l.PaneIndex), Server: p.server.socket,
		Title: cut(osc.Clean([]byte(title), maxName), maxName), Tool: facts.Tool, Version: version, PID: facts.PID,
		Dir: cut(dir, 4096), Cols: l.Cols, Rows: l.Rows, Attached: p.attached, Conversation: !src.Ref.IsZero(), Status: st,
	}
}

func (w *Watcher) keepSoonLocked() {
	w.keepSoon = true
	w.nudge()
}

// goneLocked takes the pane out.
func (p *pane) goneLocked() {
	w := p.w
	delete(w.panes, p.id)
	for _, done := range p.waiting {
		close(done)
	}
	p.waiting = nil
	if p.run.Facts.PID != 0 && w.exits != nil {
		w.exits.Remove(p.run.Facts.PID)
	}
	if w.files != nil {
		w.files.Set(string(p.id), nil)
	}
	if p.examined {
		w.feed.Put(p.id, Change{Gone: p.id})
	}
	w.readyLocked()
}

// cut cuts a text at a number of bytes, between runes.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}
