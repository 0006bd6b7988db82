// Package screen reads the bottom of a terminal screen: what the program there
// is doing, what it asks, which answers it offers, and what stands in its input
// box. It knows the screens of coding tools and the prompts of any script.
//
// It sees text only; it captures nothing, sends nothing and remembers nothing.
// What a caller will get wrong: the screen must have settled, because half a
// redraw reads as anything; it must be the live screen, not what copy mode
// shows; and a Reading without State says nothing about the program, it does
// not say that the program is idle.
package screen

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"strconv"
	"strings"

	"holdfast/internal/session"
)

// A Screen is what a terminal shows now.
type Screen struct {
	Lines            []string // plain text, one a row from the top, trailing blanks cut
	CursorX, CursorY int      // in cells and rows, from 0; CursorY below 0 where it is not known
	Cols, Rows       int
	Alternate        bool // the alternate screen is shown
	// Editing says that a shell's line editor has the terminal: the cursor's line is
	// what the person types, and asks nothing.
	Editing bool
	// Styled is optional: the same rows with their escape sequences, as tmux
	// capture-pane -e gives them. It tells a suggestion in an input box, which is
	// drawn faint, from text; without it the cursor's place must do. Plain makes
	// Lines of them.
	Styled []string
}

// A Reading is what a screen says.
type Reading struct {
	State  session.State // "" where the screen says nothing
	Kind   session.Kind  // with State Waiting
	Detail string        // what was seen, for a person; at most 200 bytes
	Dialog *session.Dialog
	// Answered counts, with a Dialog, the answers to earlier ones that the screen
	// shows; 0 where the tool shows none.
	Answered int
	// Composer is nil where no input box was recognised.
	Composer *Composer
	// BackgroundTasks counts work that goes on beside the turn, as the tool
	// says it.
	BackgroundTasks int
}

// A Composer is the input box of a tool.
type Composer struct {
	Text string // what stands in it; a placeholder does not
	Row  int    // of the screen, from 0, where its first line is
}

// Limits of what is read. A screen comes from a program that may be hostile.
const (
	maxLines   = 1000     // rows looked at, from the bottom; terminals have at most a few hundred
	maxLine    = 4096     // bytes of a row
	maxTitle   = 400      // bytes
	maxText    = 8 << 10  // bytes of Dialog.Text, the limit of the sessions protocol
	maxLabel   = 300      // bytes of an option's label
	maxOptions = 30       // options of a dialog
	maxDetail  = 200      // bytes
	maxInput   = 64 << 10 // bytes of Composer.Text
)

// Read says what the screen of a tool shows: claude, codex, gemini, opencode,
// aider, amp, cursor, goose or amazonq; any other name is read for the prompts
// that scripts use. Only the bottom block of the screen counts: what scrolled up
// and what a tool quotes says nothing. Dialog.Digest is left to Digest.
func Read(tool string, s Screen) Reading {
	v := newView(s)
	var r Reading
	switch tool {
	case "claude":
		r = readClaude(v)
	case "codex":
		r = readCodex(v)
	case "gemini":
		r = readGemini(v)
	case "opencode":
		r = readOpencode(v)
	case "aider":
		r = readAider(v)
	case "amp":
		r = readAmp(v)
	case "cursor", "cursor-agent":
		r = readCursor(v)
	case "goose":
		r = readGoose(v)
	case "amazonq", "q":
		r = readAmazonQ(v)
	default:
		r = readPrompt(v)
	}
	return r.bounded()
}

// bounded cuts every text of a Reading to its limit.
func (r Reading) bounded() Reading {
	r.Detail = cut(oneLine(r.Detail), maxDetail)
	if r.Composer != nil {
		r.Composer.Text = cut(r.Composer.Text, maxInput)
	}
	if d := r.Dialog; d != nil {
		d.Title = cut(oneLine(d.Title), maxTitle)
		d.Text = cut(d.Text, maxText)
		if len(d.Options) > maxOptions {
			d.Options = d.Options[:maxOptions]
		}
		for i := range d.Options {
			d.Options[i].Label = cut(oneLine(d.Options[i].Label), maxLabel)
			d.Options[i].Detail = cut(oneLine(d.Options[i].Detail), maxLabel)
		}
	}
	return r
}

// Digest names a dialog of one process in one pane: 32 characters of base64url,
// the first a letter, so that no command line takes it for a flag.
// mark tells dialogs with the same words apart: what changes between two of them
// and not while one is open. Without one the caller must see the dialog go.
func Digest(pane session.ID, pid int, tool, mark string, d *session.Dialog) string {
	if d == nil {
		return ""
	}
	h := sha256.New()
	part := func(s string) {
		var n [4]byte
		binary.BigEndian.PutUint32(n[:], uint32(len(s)))
		h.Write(n[:])
		h.Write([]byte(s))
	}
	part("holdfast dialog 1")
	part(string(pane))
	part(strconv.Itoa(pid))
	part(tool)
	part(mark)
	part(d.Title)
	part(d.Text)
	for _, o := range d.Options {
		part(o.ID)
		part(o.Label)
		// Keys that walk begin at the pointer: they change with it.
		part(strings.Join(o.Keys, " "))
	}
	return "d" + base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:23])[:31]
}

// waiting is a Reading of a dialog.
func waiting(kind session.Kind, detail string, d *session.Dialog) Reading {
	return Reading{State: session.Waiting, Kind: kind, Detail: detail, Dialog: d}
}

// lastWords is the end of a text, for a Detail.
func lastWords(s string) string {
	s = oneLine(s)
	if len(s) > 120 {
		s = "…" + strings.TrimSpace(cutFront(s, 118))
	}
	return s
}
