// Package foreground keeps which program has the terminal of a pane, since when,
// and which one ended before it.
//
// Observe looks, Running.Take takes in what was found: between the two no lock
// need be held. What a caller will get wrong: the terminal's group may stay the
// same while another program runs in it, so Observe must be told to look closely
// now and then; and an end that the person has seen is taken back by the caller.
package foreground

import (
	"slices"
	"time"

	"holdfast/internal/session"
	"holdfast/internal/session/judge"
	"holdfast/internal/session/proc"
	"holdfast/internal/session/watch/heard"
)

const (
	// launching is how long a program may be one that starts another in its group,
	// as npx does; it is looked at closely whenever it rests until then, and every
	// lookAgain afterwards.
	launching = 30 * time.Second
	lookAgain = 10 * time.Second
	// young is how long a program is looked at closely each time: what started it
	// may execute another in its place.
	young = 600 * time.Millisecond
)

// Running is what the processes of one pane say. Its zero value knows nothing.
type Running struct {
	Facts   proc.Facts
	OK      bool // Facts are of something
	Dir     string
	Since   time.Time     // since when this program has the foreground
	Ended   *judge.Signal // the tool that was here is gone
	EndedAs proc.Facts

	group    int
	looked   time.Time // when its processes were last looked at closely
	lasted   time.Duration
	modes    proc.Modes
	modesOK  bool      // modes are of the terminal that Facts has
	reads    bool      // the program sleeps in a read of the terminal
	secret   time.Time // since when a line is read that is not shown
	prompted time.Time // when the shell was last seen at its prompt
}

// Pane is what Observe must know of a pane.
type Pane struct {
	PID  int    // of the process that the pane started
	TTY  string // /dev/pts/4
	Dead bool
	// Dir asks another for the directory of what runs, where the system does not
	// tell; its answer may be empty.
	Dir func() string
}

// Look is what was found, before it is taken in.
type Look struct {
	At time.Time
	// Closely says that the processes were read, Changed that the foreground is
	// another group's.
	Closely, Changed bool
	Facts            proc.Facts
	Err              error

	group   int
	dir     string
	modes   proc.Modes
	modesOK bool
	reads   bool
	secret  bool
}

// Observe looks at a pane's processes. r is what is known; closely asks for the
// processes although the terminal's group is the same, settled says that the
// screen is about to be read.
func Observe(p Pane, r Running, closely, settled bool, now time.Time) Look {
	l := Look{At: now}
	l.group, l.Err = proc.ForegroundGroup(p.PID)
	l.Changed = l.Err != nil || l.group != r.group || !r.OK
	if !l.Changed && (now.Sub(r.Since) < young || settled || now.Sub(r.looked) >= lookAgain) && r.replaced(now) {
		closely = true
	}
	if !l.Changed && r.Facts.Behind != 0 {
		group, err := proc.ForegroundGroup(r.Facts.Behind)
		closely = closely || err != nil || group != r.Facts.BehindGroup
	}
	if l.Changed || closely {
		l.Closely = true
		if !p.Dead && l.Err == nil {
			l.Facts, l.Err = proc.Foreground(p.PID)
			if l.Err == nil && l.Facts.Dir == "" {
				l.dir = p.Dir()
			}
		}
	}
	if !l.Closely || l.Err != nil {
		l.Facts = r.Facts
	}
	// A tool's own line editor tells nothing by the modes.
	if !l.Facts.Known && !p.Dead {
		if m, err := proc.Terminal(l.Facts.TTY(p.TTY)); err == nil {
			l.modes, l.modesOK, l.reads = m, true, proc.Reads(l.Facts.PID)
			l.secret = l.Facts.AsksSecret(m)
		}
	}
	return l
}

// replaced says that what runs may be another program although the terminal
// gives its keys to the same group: one that was executed in its place, or a
// tool that a launcher has started by now.
func (r Running) replaced(now time.Time) bool {
	if (!r.Facts.Known && !r.Facts.Shell || r.Facts.Interpreted()) && (now.Sub(r.Since) < launching || now.Sub(r.looked) >= lookAgain) {
		return true
	}
	p, err := proc.Read(r.Facts.PID)
	return err != nil || p.Start != r.Facts.Start || p.Exe != r.Facts.Exe || !slices.Equal(p.Args, r.Facts.Args)
}

// Take takes in what was found. other says that another program runs now, and
// the facts are of the one before it, where something was known of one.
func (r *Running) Take(l Look) (before proc.Facts, other bool) {
	if l.Closely {
		before, other = r.takeProcess(l)
	}
	if r.Facts.Known {
		r.secret = time.Time{}
	}
	r.modesOK = l.modesOK
	if l.modesOK {
		r.modes, r.reads = l.modes, l.reads
		switch {
		case !l.secret:
			r.secret = time.Time{}
		case r.secret.IsZero():
			r.secret = l.At
		}
		if r.AtPrompt() {
			r.prompted = l.At
		}
	}
	return before, other
}

// AtPrompt says that the shell's line editor has the terminal: what stands in the
// line is what the person types.
func (r Running) AtPrompt() bool { return r.OK && r.modesOK && r.Facts.EditsLine(r.modes) }

func (r *Running) takeProcess(l Look) (before proc.Facts, other bool) {
	if l.Err != nil {
		if r.OK && !proc.Alive(r.Facts.PID, r.Facts.Start) {
			r.OK = false
		}
		return proc.Facts{}, false
	}
	old, was := r.Facts, r.OK
	r.Facts, r.OK, r.group, r.Dir, r.looked = l.Facts, true, l.group, l.dir, l.At
	if was && old.PID == l.Facts.PID && old.Start == l.Facts.Start && old.Tool == l.Facts.Tool {
		return proc.Facts{}, false
	}
	r.lasted = l.At.Sub(r.Since)
	r.Since = l.At
	if !was {
		r.lasted = 0
		r.Since = l.Facts.Started
	}
	if old.Shell {
		r.lasted = 0
	}
	switch {
	case l.Facts.Known || !l.Facts.Shell:
		r.Ended = nil // something else runs
	case was && old.Known && ended(old):
		r.EndedAs = old
		r.Ended = &judge.Signal{State: session.Exited, At: l.At, Detail: old.Tool + " ended, the shell is back"}
	}
	if !was {
		old = proc.Facts{}
	}
	return old, true
}

// ended says that a program is gone, or was left by what started it. One that is
// stopped (Ctrl-Z) is neither.
func ended(f proc.Facts) bool {
	p, err := proc.Read(f.PID)
	return err != nil || p.Start != f.Start || p.Zombie || p.Parent != f.Parent
}

// Secret says since when a line is read that is not shown; nil when none is.
// checked is when that was last looked at.
func (r Running) Secret(checked time.Time) *judge.Signal {
	if r.secret.IsZero() {
		return nil
	}
	return &judge.Signal{State: session.Waiting, Kind: session.Password, At: r.secret, Checked: checked,
		Detail: r.Facts.Tool + " reads a line that is not shown"}
}

// Signal says what the foreground tells by itself. prints says that it prints so
// much that it waits for nobody: a write to the terminal may sleep where a read
// does.
func (r Running) Signal(now time.Time, prints bool) *judge.Signal {
	if !r.OK || r.Facts.Known || !r.modesOK {
		return nil
	}
	name := r.Facts.Tool
	if r.Facts.Shell {
		// With its own line editor on, the shell reads a command. Without one, or
		// with a builtin that runs, the read of the terminal tells.
		switch {
		case r.AtPrompt():
			return &judge.Signal{State: session.Idle, At: r.Since, Checked: r.prompted, Detail: name + " is at its prompt", Plain: r.lasted < heard.LongCommand}
		case plainShell(name) && r.reads:
			return &judge.Signal{State: session.Idle, At: r.Since, Checked: now, Detail: name + " is at its prompt", Plain: r.lasted < heard.LongCommand}
		case r.reads:
			return nil
		}
		return &judge.Signal{State: session.Working, At: r.Since, Checked: now, Detail: name + " runs a command of its own"}
	}
	// A program with the whole screen, or one that reads the terminal, may wait
	// for somebody: nothing is known of it.
	if !r.modes.Lines || r.reads && !prints {
		return nil
	}
	at := r.Since
	if r.Facts.Started.After(at) {
		at = r.Facts.Started
	}
	return &judge.Signal{State: session.Working, At: at, Checked: now, Detail: name + " runs in the foreground"}
}

// plainShell are shells that may run without a line editor.
func plainShell(name string) bool {
	return name == "sh" || name == "dash" || name == "ash" || name == "mksh" || name == "ksh"
}
