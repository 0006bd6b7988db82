// Package osc finds what a program tells its terminal about itself in the raw
// bytes that it writes: OSC 7501 (program status), 9 and 9;4 (notification and
// progress), 99 and 777 (notifications), 133 (shell prompt marks), 0 and 2
// (titles), BEL and the full reset. The passthrough wrapping of tmux is taken
// off. Bytes go in, events come out; it draws nothing and keeps no screen.
//
// What a caller will get wrong: a sequence may be cut anywhere between two
// chunks, so each pane has its own Scanner and every byte goes through it in
// order; after bytes were skipped, Reset is called. A BEL that ends an OSC is
// not a bell. Every text in an Event is of the program, so it is untrusted: it
// is cut and freed of control and direction characters here, and still may say
// anything.
package osc

import "bytes"

// A Kind says what an Event is.
type Kind uint8

// The kinds of events.
const (
	Status   Kind = iota + 1 // OSC 7501: State, App, ID, Title, Text, Progress
	Progress                 // OSC 9;4: State and Progress
	Notify                   // OSC 9, 99 or 777: Title and Text
	Prompt                   // OSC 133: Mark, and Code with MarkDone
	Title                    // OSC 0 or 2: Text
	Bell                     // BEL outside of any sequence
	Cleared                  // RIS: whatever was reported is void
	Query                    // the program asks whether OSC 7501 is understood
)

// A Mark is the letter of an OSC 133 sequence.
type Mark byte

// The marks of a shell's prompt.
const (
	MarkPrompt  Mark = 'A' // the prompt begins: the shell is idle
	MarkInput   Mark = 'B' // the prompt ended, typing begins
	MarkRunning Mark = 'C' // the command line was accepted and runs
	MarkDone    Mark = 'D' // the command ended; Code when it said so
)

// An Event is one thing a program said.
type Event struct {
	Kind     Kind
	State    string // of Status: idle, working, blocked, done, error or clear; of Progress: working, error, paused or clear
	Ask      string // of Status blocked: permission, question or auth
	App      string
	ID       string // of Status: the record, "" for the program itself, "a/b" for a part of it
	Title    string
	Text     string
	Progress int // percent; -1 when it was not said
	Mark     Mark
	Code     int // exit code; -1 when it was not said
}

const (
	// maxSequence is the longest sequence that is kept, in bytes: the limit of
	// OSC 7501. A longer one is read to its end and dropped.
	maxSequence = 4096
	// maxWrapped bounds a passthrough sequence of tmux, in which every ESC is
	// doubled.
	maxWrapped = 2*maxSequence + 64
)

type state uint8

const (
	ground state = iota
	escape
	osc    // within ESC ]
	oscEsc // ESC within it: ST when a backslash follows
	dcs    // within ESC P: kept only while it can be tmux's wrapping
	dcsEsc
	skip // within ESC X, ESC ^ or ESC _: strings that mean nothing here
	skipEsc
)

// A Scanner reads the bytes of one pane. The zero value is ready. It is not
// safe for use by two goroutines at once.
type Scanner struct {
	state  state
	buf    []byte
	over   bool // buf was full: the sequence is dropped at its end
	nested bool // reads what was wrapped: no wrapping within it
	inner  *Scanner
	// notes gathers the chunks of OSC 99 notifications by their id.
	notes map[string]*note
}

// Reset forgets a sequence that was begun. It is called when bytes were lost.
func (s *Scanner) Reset() {
	s.state, s.buf, s.over = ground, s.buf[:0], false
	s.notes = nil
}

// Feed reads the next bytes and calls emit for each event, in order. emit must
// not call the Scanner.
func (s *Scanner) Feed(p []byte, emit func(Event)) {
	for len(p) > 0 {
		if s.state == ground {
			i := bytes.IndexAny(p, "\x1b\a")
			if i < 0 {
				return
			}
			if p[i] == '\a' {
				emit(Event{Kind: Bell, Progress: -1, Code: -1})
			} else {
				s.state = escape
			}
			p = p[i+1:]
			continue
		}
		s.step(p[0], emit)
		p = p[1:]
	}
}

func (s *Scanner) begin(next state) {
	s.state, s.buf, s.over = next, s.buf[:0], false
}

func (s *Scanner) keep(c byte, limit int) {
	if len(s.buf) >= limit {
		s.over = true
		return
	}
	s.buf = append(s.buf, c)
}

func (s *Scanner) step(c byte, emit func(Event)) {
	// CAN and SUB abort any sequence (ECMA-48), except within a wrapping, whose
	// content is passed on as it is.
	if (c == 0x18 || c == 0x1a) && s.state != dcs && s.state != dcsEsc {
		s.state = ground
		return
	}
	switch s.state {
	case escape:
		s.afterEscape(c, emit)
	case osc:
		switch c {
		case '\a':
			s.end(emit)
		case 0x1b:
			s.state = oscEsc
		default:
			s.keep(c, maxSequence)
		}
	case oscEsc:
		if c == '\\' {
			s.end(emit)
			return
		}
		// Any other sequence ends the string without effect.
		s.afterEscape(c, emit)
	case dcs:
		if c == 0x1b {
			s.state = dcsEsc
			return
		}
		s.keep(c, maxWrapped)
	case dcsEsc:
		switch c {
		case '\\':
			s.unwrap(emit)
		case 0x1b:
			s.keep(0x1b, maxWrapped)
			s.state = dcs
		default:
			// A lone ESC within the wrapping belongs to its content.
			s.keep(0x1b, maxWrapped)
			s.keep(c, maxWrapped)
			s.state = dcs
		}
	case skip:
		switch c {
		case 0x1b:
			s.state = skipEsc
		}
	case skipEsc:
		switch c {
		case '\\':
			s.state = ground
		case 0x1b:
		default:
			s.state = skip
		}
	}
}

// afterEscape acts on the byte that follows ESC.
func (s *Scanner) afterEscape(c byte, emit func(Event)) {
	switch c {
	case ']':
		s.begin(osc)
	case 'P':
		if s.nested {
			s.begin(skip)
			return
		}
		s.begin(dcs)
	case 'X', '^', '_':
		s.begin(skip)
	case 'k':
		// tmux's and screen's window name: a string like an OSC, ended by ST.
		s.begin(skip)
	case 0x1b:
		s.state = escape
	case 'c':
		s.state = ground
		s.notes = nil
		emit(Event{Kind: Cleared, Progress: -1, Code: -1})
	default:
		s.state = ground
	}
}

// end reads the OSC that is complete.
func (s *Scanner) end(emit func(Event)) {
	s.state = ground
	if s.over {
		return
	}
	s.read(s.buf, emit)
}

// unwrap reads what tmux would have passed through: the doubled ESC are single
// already.
func (s *Scanner) unwrap(emit func(Event)) {
	s.state = ground
	content, ok := bytes.CutPrefix(s.buf, []byte("tmux;"))
	if !ok || s.over {
		return
	}
	if s.inner == nil {
		s.inner = &Scanner{nested: true}
	}
	s.inner.begin(ground)
	s.inner.notes = s.notes
	s.inner.Feed(content, emit)
	s.notes = s.inner.notes
}
