// Package judge decides what a pane is doing from what was observed of it. It
// observes nothing itself: facts and times in, a status with its evidence out.
// docs/status.md states each rule with its reason; the rules are numbered as
// there.
//
// What a caller will get wrong: a Signal that is no longer true must be taken
// out of the Facts, the judge cannot know; the time of a Signal is when its
// source said it, not when it was read; and the status before must be handed in
// again, because "finished" is a matter of what came before.
package judge

import (
	"slices"
	"strings"
	"time"

	"holdfast/internal/session"
)

const (
	// slack is how much later than another source's word a screen must have been
	// read to be believed against it. A tool writes its registry and draws its
	// screen within some tens of milliseconds of one another; at half, a slow
	// redraw flips the status, at double a dialog shows half a second later.
	slack = 500 * time.Millisecond
	// silence is how long a settled screen must contradict a hook or transcript
	// that says "working": Esc tells neither. Idle within 2 s of Esc is promised.
	silence = 1500 * time.Millisecond
	// Hold is how long a pane stays "background" after its tool went idle: the end
	// of background work is a message to the model, which begins the next turn a
	// tenth of a second or so later. At half, a slow machine tells of a finish
	// twice; at double, the real one is late.
	Hold = 1500 * time.Millisecond
	// maxEvidence bounds Status.Evidence: one for each source.
	maxEvidence = 7
	maxDetail   = 200 // bytes of Evidence.Detail, the limit of the protocol
)

// A Signal is what one source says now.
type Signal struct {
	State  session.State
	Kind   session.Kind // with Waiting, where it is known
	Detail string
	At     time.Time // when the source said so
	// Checked is when it was last seen to hold; zero means At.
	Checked time.Time
	Dialog  *session.Dialog // with its digest
	Code    *int            // with Exited
	// Plain says that an Idle is nothing to tell anybody: the person pressed Esc,
	// or a command ended that took no time.
	Plain bool
	// Tasks says that work goes on beside the turn.
	Tasks bool
}

func (s *Signal) checked() time.Time {
	if s.Checked.IsZero() {
		return s.At
	}
	return s.Checked
}

// Facts are what is known of one pane.
type Facts struct {
	Now time.Time
	// Ended says that the pane's process, or the tool in it, is gone.
	Ended *Signal
	// Silent is since when the tmux server gives no answer; zero when it does.
	Silent time.Time
	// Known says that the program is a coding tool whose screens are known.
	Known bool

	Registry, Hook, OSC, Transcript, Screen, Terminal *Signal
	// Running is what the foreground of the terminal says: a shell at its prompt
	// is Idle, a command that runs is Working.
	Running *Signal
	// Settled says that nothing was drawn since Screen was read.
	Settled bool

	Before session.Status
	// Watched is since when somebody looks at this pane's facts: what finished
	// before that was not missed.
	Watched time.Time
	// Seen is when the person last saw the pane; zero means never.
	Seen time.Time
}

// signal is a Signal with the name of its source.
type signal struct {
	*Signal
	from session.Source
}

// Judge decides.
func Judge(f Facts) session.Status {
	all := f.signals()
	chosen := f.choose(all)
	st := session.Status{State: session.Unknown, Confirmed: f.Now}
	if chosen.Signal != nil {
		st.State, st.Kind = chosen.State, chosen.Kind
		st.Confirmed = chosen.checked()
		if chosen.State == session.Exited {
			st.ExitCode = chosen.Code
		}
	}
	f.finish(&st, chosen)
	if st.State == session.Waiting {
		f.dialog(&st, chosen)
	} else {
		st.Kind = ""
	}
	st.Evidence = evidence(chosen, all)
	f.since(&st, chosen)
	return st
}

// signals lists what the sources say, most trusted first.
func (f Facts) signals() []signal {
	var out []signal
	for _, s := range []signal{
		{f.Ended, session.FromProcess}, {f.Registry, session.FromRegistry}, {f.Hook, session.FromHook},
		{f.OSC, session.FromOSC}, {f.Transcript, session.FromTranscript}, {f.Screen, session.FromScreen},
		{f.Terminal, session.FromTerminal}, {f.Running, session.FromProcess},
	} {
		if s.Signal != nil && s.State != "" {
			out = append(out, s)
		}
	}
	return out
}

// choose finds the signal that decides; nil when there is none.
func (f Facts) choose(all []signal) signal {
	if f.Ended != nil { // rule 1
		return signal{f.Ended, session.FromProcess}
	}
	if !f.Silent.IsZero() { // rule 2
		return signal{&Signal{State: session.Unknown, At: f.Silent, Detail: "the tmux server does not answer"}, session.FromProcess}
	}
	if len(all) == 0 {
		return signal{}
	}
	best := all[0] // rule 3: the most trusted source that says anything
	screen := f.Screen
	if screen != nil && screen.State == "" {
		screen = nil
	}
	// shown says that the screen was read after a signal was given, and is what
	// is there now.
	shown := func(after time.Time, by time.Duration) bool {
		return screen != nil && f.Settled && screen.checked().Sub(after) >= by
	}
	switch {
	case f.Terminal != nil && f.Terminal.State == session.Waiting && f.Terminal.Kind == session.Password && !f.Known: // rule 4
		if screen != nil && screen.State == session.Waiting && screen.Kind == session.Password {
			return signal{screen, session.FromScreen}
		}
		return signal{f.Terminal, session.FromTerminal}
	case best.State != session.Waiting && shown(best.At, slack) && screen.State == session.Waiting: // rule 5
		return signal{screen, session.FromScreen}
	case best.State == session.Waiting && best.from == session.FromHook && shown(best.At, slack) && screen.State != session.Waiting: // rule 6
		return f.without(all, best, session.FromHook)
	case best.State == session.Working && best.from == session.FromHook && f.turnEnded(best): // rule 7
		return signal{f.Transcript, session.FromTranscript}
	case best.State == session.Working && best.from == session.FromRegistry && f.interrupted(best): // rule 7
		return signal{f.Transcript, session.FromTranscript}
	case best.State == session.Working && (best.from == session.FromHook || best.from == session.FromTranscript) &&
		shown(best.At, silence) && screen.State == session.Idle: // rule 8
		return signal{screen, session.FromScreen}
	case best.from == session.FromTranscript && best.State != session.Working && screen != nil &&
		screen.State == session.Working && screen.checked().Sub(best.At) >= slack: // rule 9
		return signal{screen, session.FromScreen}
	case best.from == session.FromHook && best.State != session.Working && screen != nil &&
		screen.State == session.Working && screen.At.Sub(best.At) >= silence: // rule 9
		return signal{screen, session.FromScreen}
	case best.from == session.FromOSC && (best.State == session.Idle || best.State == session.Done) &&
		f.Running != nil && f.Running.State == session.Working && f.Running.At.After(best.At): // rule 10
		return signal{f.Running, session.FromProcess}
	case best.from == session.FromOSC && best.State == session.Working &&
		f.Running != nil && f.Running.State == session.Idle && f.Running.checked().After(best.At): // rule 10
		return signal{f.Running, session.FromProcess}
	}
	return best
}

// without chooses as if a source had said nothing.
func (f Facts) without(all []signal, not signal, from session.Source) signal {
	if from == session.FromHook {
		f.Hook = nil
	}
	rest := slices.DeleteFunc(slices.Clone(all), func(s signal) bool { return s.Signal == not.Signal })
	return f.choose(rest)
}

// turnEnded says that the transcript saw the turn's end after the hook spoke.
func (f Facts) turnEnded(hook signal) bool {
	t := f.Transcript
	return t != nil && t.At.After(hook.At) && (t.State == session.Idle || t.State == session.Done || t.State == session.Waiting)
}

// interrupted says that the transcript holds an interruption that is newer.
func (f Facts) interrupted(registry signal) bool {
	t := f.Transcript
	return t != nil && t.Plain && t.State == session.Idle && t.At.After(registry.At)
}

// finish turns the end of a turn into done, background or idle.
func (f Facts) finish(st *session.Status, chosen signal) {
	if chosen.Signal == nil || st.State != session.Idle && st.State != session.Done {
		return
	}
	// Rule 11: work beside the turn, told by anybody.
	for _, s := range []*Signal{chosen.Signal, f.Registry, f.Hook, f.Screen} {
		if s != nil && s.Tasks && (s != f.Hook || !s.At.Before(chosen.At)) {
			st.State = session.Background
			return
		}
	}
	// Rule 13: the end of work beside the turn makes the tool speak again.
	if f.Before.State == session.Background && f.Now.Sub(chosen.At) < Hold && chosen.At.After(f.Before.Since) {
		st.State = session.Background
		return
	}
	// Rule 12: what ended unseen is done.
	ended, told := chosen.At, chosen.State == session.Done
	st.State = session.Idle
	if chosen.Plain {
		return
	}
	if t := f.Transcript; t != nil {
		switch {
		case t.State == session.Done:
			ended, told = t.At, true
		case t.State == session.Working, t.Plain:
			// At its prompt, and the turn has no end: the person stopped it.
			return
		}
	}
	switch {
	case !ended.After(f.Seen):
	case told:
		if !ended.Before(f.Watched) {
			st.State = session.Done
		}
	case f.Before.State == session.Working || f.Before.State == session.Background,
		f.Before.State == session.Done && f.Before.Since.After(f.Seen):
		st.State = session.Done
	}
}

// dialog adds what is asked, when the screen shows it.
func (f Facts) dialog(st *session.Status, chosen signal) {
	st.Dialog = chosen.Dialog
	if s := f.Screen; s != nil && s.State == session.Waiting && f.Settled && (chosen.Signal == s || !s.checked().Before(chosen.At)) {
		if st.Dialog == nil {
			st.Dialog = s.Dialog
		}
		// The dialog tells better than a word in a file what is asked.
		if s.Kind != "" && (st.Kind == "" || chosen.from == session.FromRegistry || chosen.from == session.FromHook) {
			st.Kind = s.Kind
		}
	}
	if st.Kind == "" {
		st.Kind = session.Question
	}
}

// since keeps the beginning of a status that goes on.
func (f Facts) since(st *session.Status, chosen signal) {
	b := f.Before
	// A dialog that was read a moment after it was told of is the same waiting.
	alike := digest(b) == digest(*st) || digest(b) == "" || digest(*st) == ""
	if b.State == st.State && b.Kind == st.Kind && alike && !b.Since.IsZero() {
		// A second turn that ended is another end.
		if st.State != session.Done || !chosen.At.After(b.Since) {
			st.Since = b.Since
			return
		}
	}
	st.Since = f.Now
	if chosen.Signal != nil && !chosen.At.IsZero() && chosen.At.Before(f.Now) && (b.Since.IsZero() || chosen.At.After(b.Since)) {
		st.Since = chosen.At
	}
}

func digest(s session.Status) string {
	if s.Dialog == nil {
		return ""
	}
	return s.Dialog.Digest
}

// evidence puts the deciding observation first, then the others.
func evidence(chosen signal, all []signal) []session.Evidence {
	var out []session.Evidence
	add := func(s signal) {
		if len(out) < maxEvidence {
			out = append(out, session.Evidence{Source: s.from, Detail: cut(s.Detail), At: s.At})
		}
	}
	if chosen.Signal != nil {
		add(chosen)
	}
	for _, s := range all {
		if s.Signal != chosen.Signal {
			add(s)
		}
	}
	return out
}

func cut(s string) string {
	if len(s) <= maxDetail {
		return s
	}
	return strings.ToValidUTF8(s[:maxDetail-len("…")], "") + "…"
}
