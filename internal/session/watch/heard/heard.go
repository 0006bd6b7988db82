// Package heard keeps what the program in a pane tells its terminal: OSC 7501,
// progress, a shell's marks, notifications and bells.
//
// It does no I/O and decides nothing. What a caller will get wrong: what works or
// waits is said by a process and ends with it, so every call names the one that
// has the foreground; and a Heard is not safe for use by two goroutines at once.
package heard

import (
	"fmt"
	"strings"
	"time"

	"holdfast/internal/session"
	"holdfast/internal/session/judge"
	"holdfast/internal/session/osc"
)

const (
	// LongCommand is what a command must take for its end to be worth telling:
	// shorter ones end under the eyes of the person who entered them.
	LongCommand = 10 * time.Second
	// begins is how soon after a shell's mark its command has the foreground.
	begins = 60 * time.Millisecond
	// unseen is how long a program may have the foreground before that is noticed;
	// scripts say what they do in their first line.
	unseen = 500 * time.Millisecond
	// muchBytes within a second are more than the echo of what somebody types.
	muchBytes = 2 << 10
	// busyFor outlasts the second for which a flood is held (package tmux).
	busyFor = 2500 * time.Millisecond
	// maxParts bounds the parts of a program that tell of themselves.
	maxParts = 64
)

// Heard is what one pane said. The zero Heard has heard nothing.
type Heard struct {
	Output time.Time // of the last byte; its owner may set it where it hears no bytes
	// Open says that the last bytes ended within a line, as a question does.
	Open bool

	scanner  osc.Scanner
	status   *judge.Signal
	program  int // the process that had the foreground when status was said
	progress *judge.Signal
	prompt   *judge.Signal // of the shell
	began    time.Time     // of the command that runs, by the shell's marks
	note     *session.Evidence
	parts    map[string]bool // parts of the program that work

	window  time.Time // since when counted bytes are counted
	counted int
	busy    time.Time // when much was last printed
}

// News is what bytes changed.
type News struct {
	Said bool // the status may be another
	// Look is when what runs in the foreground should be looked at; zero means
	// that nothing tells of a change there.
	Look time.Time
	// Code is the exit code of a command that ended.
	Code *int
}

// Feed takes in raw bytes. lost says that bytes before these were skipped,
// program is the process that has the foreground.
func (h *Heard) Feed(data []byte, lost bool, program int, now time.Time) News {
	if lost {
		h.scanner.Reset()
	}
	h.Output = now
	if len(data) > 0 {
		h.Open = data[len(data)-1] != '\n'
	}
	if now.Sub(h.window) >= time.Second {
		h.window, h.counted = now, 0
	}
	if h.counted += len(data); h.counted >= muchBytes {
		h.busy = now
	}
	var n News
	h.scanner.Feed(data, func(e osc.Event) { h.hear(e, program, now, &n) })
	return n
}

func (h *Heard) hear(e osc.Event, program int, now time.Time, n *News) {
	switch e.Kind {
	case osc.Status:
		if e.ID != "" {
			// A part of the program, such as a sub-agent: it makes nobody wait.
			if h.parts == nil {
				h.parts = map[string]bool{}
			}
			if delete(h.parts, e.ID); e.State == "working" && len(h.parts) < maxParts {
				h.parts[e.ID] = true
			}
			break
		}
		h.program = program
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
		h.mark(e, now, n)
	case osc.Notify:
		h.note = &session.Evidence{Source: session.FromOSC, Detail: "notification: " + strings.TrimSpace(e.Title+" "+e.Text), At: now}
	case osc.Bell:
		h.note = &session.Evidence{Source: session.FromOSC, Detail: "bell", At: now}
	case osc.Cleared:
		h.status, h.progress, h.prompt, h.parts = nil, nil, nil, nil
	default:
		return
	}
	n.Said = true
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

// mark reads the marks of a shell (OSC 133).
func (h *Heard) mark(e osc.Event, now time.Time, n *News) {
	n.Look = now
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
	case osc.MarkRunning:
		h.began = now
		h.prompt = &judge.Signal{State: session.Working, Detail: "a command runs (OSC 133)", At: now}
		n.Look = now.Add(begins)
	case osc.MarkDone:
		s := &judge.Signal{State: session.Done, Detail: "the command ended (OSC 133)", At: now}
		if e.Code >= 0 {
			s.Detail = fmt.Sprintf("the command ended with code %d (OSC 133)", e.Code)
			code := e.Code
			n.Code = &code
		}
		if h.began.IsZero() || now.Sub(h.began) < LongCommand {
			s.State, s.Plain = session.Idle, true
		}
		h.began = time.Time{}
		h.prompt = s
	}
}

// Signal is what was said and holds now, of a program; known says that it is a
// coding tool.
func (h *Heard) Signal(program int, known bool) *judge.Signal {
	if s := h.status; s != nil {
		// What works or waits ends with its process.
		lasting := s.State == session.Done || s.State == session.Idle
		if lasting || h.program == 0 || h.program == program {
			out := *s
			out.Tasks = len(h.parts) > 0
			return &out
		}
	}
	if h.progress != nil {
		return h.progress
	}
	if !known {
		// Of a tool's terminal the shell said only that a command runs.
		return h.prompt
	}
	return nil
}

// Busy says that the program prints more than a person types: it works, and waits
// for nobody.
func (h *Heard) Busy(now time.Time) bool { return !h.busy.IsZero() && now.Sub(h.busy) < busyFor }

// Note is the last notification or bell, nil where there was none lately.
func (h *Heard) Note(now time.Time) *session.Evidence {
	if h.note == nil || now.Sub(h.note.At) >= time.Hour {
		return nil
	}
	n := *h.note
	return &n
}

// Replaced says that another program has the foreground: what the last one was
// doing is over, and unless a shell is back, so is what it ended with. What was
// said a moment ago was said by the new one, before it was seen.
func (h *Heard) Replaced(program int, shell bool, now time.Time) {
	h.progress = nil
	switch {
	case h.status == nil || shell:
	case now.Sub(h.status.At) < unseen:
		h.program = program
	default:
		h.status, h.parts = nil, nil
	}
}
