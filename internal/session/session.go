// Package session holds the words in which Holdfast speaks of what runs on a
// machine: a pane of a tmux server, the tool in it, and its status with the
// evidence for it. These types travel as JSON in the sessions protocol
// (docs/sessions.md), so a field is added and never renamed.
//
// It watches nothing and parses nothing; the packages below it do. What a caller
// will get wrong: the absence of evidence is Unknown, never Idle.
package session

import "time"

// A State says what a pane is doing.
type State string

// The states of a pane.
const (
	Waiting    State = "waiting"    // for the person; Status.Kind says for what
	Working    State = "working"    // a turn or a command runs
	Background State = "background" // the turn ended, work it started goes on
	Done       State = "done"       // finished, and no device has seen it yet
	Idle       State = "idle"       // at its prompt, nothing new
	Exited     State = "exited"     // the process ended; Status.ExitCode when known
	Unknown    State = "unknown"    // no evidence, or evidence that contradicts itself
)

// A Kind says what a Waiting pane waits for.
type Kind string

// The kinds of waiting.
const (
	Permission Kind = "permission" // may a tool do something
	Question   Kind = "question"   // a question with choices or free text
	Reply      Kind = "reply"      // the next instruction, asked for explicitly
	Password   Kind = "password"   // a secret; echo is off
	Limit      Kind = "limit"      // login, payment or rate limit
)

// A Source names where evidence came from, in the order of trust.
type Source string

// The sources of evidence, most trusted first.
const (
	FromProcess    Source = "process"    // the process or pane is gone
	FromRegistry   Source = "registry"   // the tool's own registry or event stream
	FromHook       Source = "hook"       // a hook that the person installed
	FromOSC        Source = "osc"        // OSC 7501, 133, 9, 99, 777, BEL
	FromTranscript Source = "transcript" // the tail of the tool's transcript
	FromScreen     Source = "screen"     // the bottom block of the settled screen
	FromTerminal   Source = "terminal"   // terminal modes: echo off, prompts of any script
)

// Evidence is one observation.
type Evidence struct {
	Source Source    `json:"source"`
	Detail string    `json:"detail,omitempty"` // for a person: what was seen, at most 200 bytes
	At     time.Time `json:"at"`
}

// Status is a State with the reason to believe it.
type Status struct {
	State     State      `json:"state"`
	Kind      Kind       `json:"kind,omitempty"`     // only with Waiting
	ExitCode  *int       `json:"exitCode,omitempty"` // only with Exited, when known
	Since     time.Time  `json:"since"`              // when this State (and Kind, and dialog) began
	Confirmed time.Time  `json:"confirmed"`          // when the evidence was last seen to hold
	Evidence  []Evidence `json:"evidence,omitempty"` // the deciding one first, then what agrees or was overruled
	Dialog    *Dialog    `json:"dialog,omitempty"`   // what is asked, when it can be read
}

// A Dialog is what a Waiting pane shows. An approval names its Digest and is
// refused when another dialog is there.
type Dialog struct {
	Digest  string   `json:"digest"`          // 16 to 64 characters of base64url over tool, pane, process and text
	Title   string   `json:"title,omitempty"` // the question in one line
	Text    string   `json:"text,omitempty"`  // what it is about: the command, the diff; at most 8 KiB
	Options []Option `json:"options,omitempty"`
}

// An Option is one answer that a dialog offers.
type Option struct {
	ID    string `json:"id"`             // stable within the dialog: "1", "2", "y", "n", "esc"
	Label string `json:"label"`          // the program's own words
	Role  Role   `json:"role,omitempty"` // what it means, where that is known
	// Detail is what the program says about it below the label.
	Detail string `json:"detail,omitempty"`
	// Selected says that the program's pointer is on it now.
	Selected bool `json:"selected,omitempty"`
	// Keys choose and confirm it on the screen that it was read from: tmux names
	// of keys, in order. They stay on the machine.
	Keys []string `json:"-"`
}

// A Role says what an Option means.
type Role string

// The roles of options.
const (
	Approve       Role = "approve"       // this once
	ApproveAlways Role = "approveAlways" // this and what is like it
	Deny          Role = "deny"
	FreeText      Role = "text" // takes an answer in the person's own words
)

// An ID names a pane of a machine for as long as the pane lives: a tag of its
// tmux server and the pane's own id, for example "k3f9:%12". It is of letters,
// digits, ":" and "%", at most 64 bytes, and never used again for another pane
// of that server.
type ID string

// A Session is one pane and what runs in it. Names come from the machine and
// may hold any character; they are cut at 256 bytes on a rune boundary.
type Session struct {
	ID      ID     `json:"id"`
	Name    string `json:"name"`             // of the tmux session
	Window  string `json:"window,omitempty"` // of the tmux window
	Index   string `json:"index,omitempty"`  // "window.pane", for people
	Server  string `json:"server"`           // the tmux server's socket, as one would name it with -S
	Title   string `json:"title,omitempty"`  // the pane's title, or the tool's name of the conversation
	Tool    string `json:"tool,omitempty"`   // claude, codex, gemini, opencode, aider; otherwise the program's name
	Version string `json:"version,omitempty"`
	PID     int    `json:"pid,omitempty"` // of the tool or foreground program
	Dir     string `json:"dir,omitempty"` // its working directory
	Cols    int    `json:"cols,omitempty"`
	Rows    int    `json:"rows,omitempty"`
	// Attached counts the clients that look at it outside Holdfast.
	Attached int `json:"attached,omitempty"`
	// Conversation says that a transcript is there to be paged; without one the
	// scrollback serves.
	Conversation bool   `json:"conversation,omitempty"`
	Status       Status `json:"status"`
}
