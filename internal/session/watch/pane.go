package watch

import (
	"fmt"
	"strings"
	"time"

	"holdfast/internal/session"
	"holdfast/internal/session/conversation"
	"holdfast/internal/session/judge"
	"holdfast/internal/session/osc"
	"holdfast/internal/session/proc"
	"holdfast/internal/session/tmux"
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
	// restless is how often the screen of a program is read that never is quiet:
	// what stands in two such screens alike is believed.
	restless = 1500 * time.Millisecond
	// glance is how soon after the first output what runs is looked at: a command
	// line was entered, or a program ended.
	glance = 60 * time.Millisecond
	// glanceAgain is how often that is done until the output rests. A glance is one
	// read of a file.
	glanceAgain = 150 * time.Millisecond
	// launching is how long a program may be one that starts another in its group,
	// as npx does; it is looked at closely whenever it rests until then, and every
	// lookAgain afterwards.
	launching = 30 * time.Second
	lookAgain = 10 * time.Second
	// recheck is how often the foreground of a quiet terminal is asked for: one
	// read of a file.
	recheck = 5 * time.Second
	// confirm is how often a status that only was confirmed is told.
	confirm = 30 * time.Second
	// longCommand is what a command must take for its end to be worth telling:
	// shorter ones end under the eyes of the person who entered them.
	longCommand = 10 * time.Second
	maxName     = 256 // bytes of a name, the limit of the protocol
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

	scanner osc.Scanner
	heard   heard
	run     running
	sources sources

	shown  session.Session
	told   time.Time // when a change was last told
	before session.Status
	seen   time.Time
	since  time.Time // when it began to be watched, as remembered
	known  string    // what memory last kept of it, so as not to write it again
}

// heard is what the raw bytes said.
type heard struct {
	output   time.Time // of the last byte
	status   *judge.Signal
	program  int // the process that had the foreground when status was said
	progress *judge.Signal
	prompt   *judge.Signal // of the shell
	began    time.Time     // of the command that runs, by the shell's marks
	note     *session.Evidence
	parts    map[string]bool // parts of the program that work
}

// running is what the processes say.
type running struct {
	facts   proc.Facts
	ok      bool
	group   int
	since   time.Time // since when this program has the foreground
	looked  time.Time // when its processes were last looked at closely
	lasted  time.Duration
	ended   *judge.Signal // the tool that was here is gone
	endedAs proc.Facts
	left    sources // what it left behind: its conversation
	modes   proc.Modes
	reads   bool // the program sleeps in a read of the terminal
	secret  time.Time
	dir     string
}

// sources are the signals that examinations found.
type sources struct {
	registry, hook, transcript *judge.Signal
	sessionID                  string // as registry or hook tell it
	transcriptPath             string // as a hook tells it
	version                    string
	name                       string
	title                      string // of the conversation
	env                        map[string]string
	ref                        conversation.Ref
	located                    time.Time // when the transcript was last looked for
	screen                     *judge.Signal
	screenAt                   time.Time // when the screen was read
	trusted                    bool      // it rested, or said the same as the one before
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
		p.run, p.sources, p.heard = running{}, sources{}, heard{}
		p.dueLocked(now, needAll)
	case old.Dead != l.Dead:
		p.dueLocked(now, needProcess)
	case old.ID == "":
	case !p.followed() && (l.Output.After(old.Output) || l.CursorX != old.CursorX || l.CursorY != old.CursorY || l.History != old.History):
		// Nobody told of the output; the list has its time to the second.
		p.heard.output = now
		p.dueLocked(now, needProcess)
		p.dueLocked(now.Add(settle), needScreen)
	case old.InMode != l.InMode || old.Cols != l.Cols || old.Rows != l.Rows:
		p.dueLocked(now.Add(settle), needScreen)
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

func (p *pane) followed() bool { return p.server.follows[p.list.Session] != nil }

// outputLocked takes in raw bytes.
func (p *pane) outputLocked(data []byte, lost bool, now time.Time) {
	if lost {
		p.scanner.Reset()
	}
	quiet := now.Sub(p.heard.output)
	p.heard.output = now
	said := false
	p.scanner.Feed(data, func(e osc.Event) { said = p.hearLocked(e, now) || said })
	if quiet > glance {
		p.dueLocked(now.Add(glance), 0)
	}
	p.dueLocked(now.Add(settle), needScreen)
	if said && p.examined {
		p.judgeLocked()
	}
}

// hearLocked takes in what a program said; it reports whether that may change
// the status.
func (p *pane) hearLocked(e osc.Event, now time.Time) bool {
	h := &p.heard
	switch e.Kind {
	case osc.Status:
		if e.ID != "" {
			// A part of the program, such as a sub-agent: it makes nobody wait.
			if h.parts == nil {
				h.parts = map[string]bool{}
			}
			if delete(h.parts, e.ID); e.State == "working" && len(h.parts) < 64 {
				h.parts[e.ID] = true
			}
			return true
		}
		h.program = p.run.facts.PID
		h.status = statusSignal(e, now)
	case osc.Progress:
		h.progress = nil
		if e.State == "working" {
			h.progress = &judge.Signal{State: session.Working, Detail: "it shows progress (OSC 9;4)", At: now}
			if e.Progress >= 0 {
				h.progress.Detail = fmt.Sprintf("it shows progress, %d %% (OSC 9;4)", e.Progress)
			}
		}
	case osc.Prompt:
		p.promptLocked(e, now)
	case osc.Notify:
		h.note = &session.Evidence{Source: session.FromOSC, Detail: "notification: " + strings.TrimSpace(e.Title+" "+e.Text), At: now}
	case osc.Bell:
		h.note = &session.Evidence{Source: session.FromOSC, Detail: "bell", At: now}
	case osc.Cleared:
		h.status, h.progress, h.prompt, h.parts = nil, nil, nil, nil
	default:
		return false
	}
	return true
}

// statusSignal reads OSC 7501.
func statusSignal(e osc.Event, now time.Time) *judge.Signal {
	s := &judge.Signal{At: now}
	switch e.State {
	case "idle":
		s.State = session.Idle
	case "working":
		s.State = session.Working
	case "blocked":
		s.State = session.Waiting
		switch e.Ask {
		case "permission":
			s.Kind = session.Permission
		case "auth":
			s.Kind = session.Limit
		default:
			s.Kind = session.Question
		}
		title, text := e.Title, e.Text
		if title == "" {
			title, text = text, ""
		}
		if title != "" {
			s.Dialog = &session.Dialog{Title: title, Text: text}
		}
	case "done", "error":
		s.State = session.Done
	default:
		return nil
	}
	s.Detail = strings.TrimSpace("it says " + e.State + " (OSC 7501) " + e.Title + " " + e.Text)
	return s
}

// promptLocked reads the marks of a shell (OSC 133).
func (p *pane) promptLocked(e osc.Event, now time.Time) {
	h := &p.heard
	switch e.Mark {
	case osc.MarkPrompt:
		// Whoever said it works, or waits, is not there any more.
		if h.status != nil && (h.status.State == session.Working || h.status.State == session.Waiting) {
			h.status = nil
		}
		h.progress, h.parts = nil, nil
		if h.prompt == nil || h.prompt.State == session.Working {
			h.prompt = &judge.Signal{State: session.Idle, Plain: true, Detail: "the shell shows its prompt (OSC 133)", At: now}
		}
		p.dueLocked(now, needProcess)
	case osc.MarkRunning:
		h.began = now
		h.prompt = &judge.Signal{State: session.Working, Detail: "a command runs (OSC 133)", At: now}
		p.dueLocked(now.Add(glance), needProcess)
	case osc.MarkDone:
		s := &judge.Signal{State: session.Done, Detail: "the command ended (OSC 133)", At: now}
		if e.Code >= 0 {
			s.Detail = fmt.Sprintf("the command ended with code %d (OSC 133)", e.Code)
			if end := p.run.ended; end != nil && end.Code == nil && now.Sub(end.At) < 2*time.Second {
				code := e.Code
				end.Code = &code
			}
		}
		if h.began.IsZero() || now.Sub(h.began) < longCommand {
			s.State, s.Plain = session.Idle, true
		}
		h.began = time.Time{}
		h.prompt = s
		p.dueLocked(now, needProcess)
	}
}

// oscSignal is what the raw bytes say now.
func (p *pane) oscSignal() *judge.Signal {
	h := &p.heard
	if s := h.status; s != nil {
		// What works or waits ends with its process.
		lasting := s.State == session.Done || s.State == session.Idle
		if lasting || h.program == 0 || h.program == p.run.facts.PID {
			out := *s
			out.Tasks = len(h.parts) > 0
			return &out
		}
	}
	if h.progress != nil {
		return h.progress
	}
	if !p.run.facts.Known {
		// Of a tool's terminal the shell said only that a command runs.
		return h.prompt
	}
	return nil
}

// see notes that the person saw the pane.
func (p *pane) see(now time.Time) {
	if !now.After(p.seen) {
		return
	}
	p.seen = now
	if p.run.ended != nil && !p.list.Dead {
		// An end that was seen: the shell is what is there now.
		p.run.ended = nil
	}
	if p.examined {
		p.judgeLocked()
	}
	p.w.keepSoonLocked()
}

// facts are what the judge is asked with.
func (p *pane) facts(now time.Time) judge.Facts {
	screen := p.sources.screen
	if screen != nil && !p.heard.output.After(p.sources.screenAt) {
		// Nothing was drawn since: it still shows that.
		s := *screen
		s.Checked = now
		screen = &s
	}
	f := judge.Facts{
		Now: now, Silent: p.server.silent, Known: p.run.facts.Known,
		Registry: p.sources.registry, Hook: p.sources.hook, OSC: p.oscSignal(), Transcript: p.sources.transcript,
		Screen: screen, Settled: p.sources.trusted,
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
	f.Ended = p.run.ended
	if !p.run.secret.IsZero() {
		f.Terminal = &judge.Signal{State: session.Waiting, Kind: session.Password, At: p.run.secret, Checked: p.sources.screenAt,
			Detail: p.run.facts.Tool + " reads a line that is not shown"}
	}
	f.Running = p.runningSignal(now)
	return f
}

// runningSignal says what the foreground tells by itself.
func (p *pane) runningSignal(now time.Time) *judge.Signal {
	r := &p.run
	if !r.ok || r.facts.Known {
		return nil
	}
	name := r.facts.Tool
	if r.facts.Shell {
		// With its own line editor on, the shell reads a command. Without one, or
		// with a builtin that runs, the read of the terminal tells.
		switch {
		case !r.modes.Lines || plainShell(name) && r.reads:
			s := &judge.Signal{State: session.Idle, At: r.since, Checked: now, Detail: name + " is at its prompt", Plain: r.lasted < longCommand}
			return s
		case r.reads:
			return nil
		}
		return &judge.Signal{State: session.Working, At: r.since, Checked: now, Detail: name + " runs a command of its own"}
	}
	// A program with the whole screen, or one that reads the terminal, may wait
	// for somebody: nothing is known of it.
	if !r.modes.Lines || r.reads {
		return nil
	}
	at := r.since
	if r.facts.Started.After(at) {
		at = r.facts.Started
	}
	return &judge.Signal{State: session.Working, At: at, Checked: now, Detail: name + " runs in the foreground"}
}

// plainShell are shells that may run without a line editor.
func plainShell(name string) bool {
	return name == "sh" || name == "dash" || name == "ash" || name == "mksh" || name == "ksh"
}

// judgeLocked decides and tells when something changed.
func (p *pane) judgeLocked() {
	now := time.Now()
	st := judge.Judge(p.facts(now))
	if p.heard.note != nil && len(st.Evidence) < 7 && now.Sub(p.heard.note.At) < time.Hour {
		n := *p.heard.note
		n.Detail = cut(n.Detail, 200)
		st.Evidence = append(st.Evidence, n)
	}
	s := p.describe(st)
	old := p.shown
	p.before, p.shown = st, s
	if !p.examined {
		return
	}
	if same(old, s) && now.Sub(p.told) < confirm {
		return
	}
	p.told = now
	p.w.tellLocked(p.id, Change{Session: &s})
	p.w.rememberLocked(p)
}

// spinners are what tools turn in front of their title.
const spinners = " ✳✻✽✶✢✺·∗*◐◑◒◓⠁⠂⠄⡀⢀⠠⠐⠈⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏⠿⠾⠽⠻⠷⠯⠟"

// current is what a person would say is there: a tool that ended, until its end
// was seen, else what runs.
func (p *pane) current() (proc.Facts, sources) {
	if p.run.ended != nil && p.run.endedAs.Tool != "" {
		return p.run.endedAs, p.run.left
	}
	return p.run.facts, p.sources
}

// describe makes what is told of the pane.
func (p *pane) describe(st session.Status) session.Session {
	l := p.list
	facts, src := p.current()
	title := src.title
	if title == "" {
		title = src.name
	}
	if title == "" {
		title = l.Title
		if facts.Known {
			title = strings.TrimLeft(title, spinners)
		}
	}
	version := src.version
	if version == "" {
		version = facts.Version
	}
	dir := facts.Dir
	if dir == "" {
		dir = p.run.dir
	}
	return session.Session{
		ID: p.id, Name: cut(l.SessionName, maxName), Window: cut(l.WindowName, maxName),
		Index: fmt.Sprintf("%d.%d", l.WindowIndex, l.PaneIndex), Server: p.server.socket,
		Title: cut(osc.Clean([]byte(title), maxName), maxName), Tool: facts.Tool, Version: version, PID: facts.PID,
		Dir: cut(dir, 4096), Cols: l.Cols, Rows: l.Rows, Attached: p.attached, Conversation: !src.ref.IsZero(), Status: st,
	}
}

// same says that nothing changed that a person would notice.
func same(a, b session.Session) bool {
	plain := func(s session.Session) session.Session {
		s.Status.Confirmed, s.Status.Evidence, s.Status.Dialog, s.Status.ExitCode = time.Time{}, nil, nil, nil
		return s
	}
	x, y := plain(a), plain(b)
	if !x.Status.Since.Equal(y.Status.Since) {
		return false
	}
	x.Status.Since, y.Status.Since = time.Time{}, time.Time{}
	first := func(s session.Session) session.Evidence {
		if len(s.Status.Evidence) == 0 {
			return session.Evidence{}
		}
		e := s.Status.Evidence[0]
		e.At = time.Time{}
		if e.Source == session.FromScreen {
			e.Detail = "" // a spinner turns in it
		}
		return e
	}
	digest := func(s session.Session) string {
		if s.Status.Dialog == nil {
			return ""
		}
		return s.Status.Dialog.Digest
	}
	code := func(s session.Session) int {
		if s.Status.ExitCode == nil {
			return -1
		}
		return *s.Status.ExitCode
	}
	return x.ID == y.ID && x.Name == y.Name && x.Window == y.Window && x.Index == y.Index && x.Title == y.Title &&
		x.Tool == y.Tool && x.Version == y.Version && x.PID == y.PID && x.Dir == y.Dir && x.Cols == y.Cols && x.Rows == y.Rows &&
		x.Attached == y.Attached && x.Conversation == y.Conversation && x.Status.State == y.Status.State &&
		x.Status.Kind == y.Status.Kind && first(a) == first(b) && digest(a) == digest(b) && code(a) == code(b)
}

// goneLocked takes the pane out.
func (p *pane) goneLocked() {
	w := p.w
	delete(w.panes, p.id)
	for _, done := range p.waiting {
		close(done)
	}
	p.waiting = nil
	if p.run.facts.PID != 0 && w.exits != nil {
		w.exits.Remove(p.run.facts.PID)
	}
	if w.files != nil {
		w.files.set(string(p.id), nil)
	}
	if p.examined {
		w.tellLocked(p.id, Change{Gone: p.id})
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
