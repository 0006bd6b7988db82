// Package item holds the one model of a conversation that every tool's
// transcript is turned into: a flat list of items, oldest first, each with an id
// that stays the same however often the transcript is read. It travels as JSON
// to the command line and to pages (docs/conversation.md), so a field is added
// and never renamed.
//
// It reads no file and knows no tool. What a caller will get wrong: texts come
// from programs and from what they fetched, so they may hold any character,
// terminal escapes and bidirectional overrides included; print them through
// Plain. And an item may be sent again with the same id, when a tool call gets
// its result: the newer one replaces the older.
package item

import (
	"errors"
	"time"
)

// A Kind says what an item is.
type Kind string

// The kinds of items. A reader that meets another one shows its text.
const (
	User        Kind = "user"        // what the person wrote; starts a turn
	Queued      Kind = "queued"      // written while the tool was busy, not yet taken up
	Text        Kind = "text"        // what the tool answered
	Thinking    Kind = "thinking"    // reasoning, to be shown folded
	ToolCall    Kind = "tool"        // a call with its result, in Tool
	Subagent    Kind = "subagent"    // a call that runs an agent of its own; Tool.Agent opens it
	Ask         Kind = "question"    // the tool asked the person, in Questions
	Picture     Kind = "image"       // a picture outside a tool's result, in Images
	Fault       Kind = "error"       // the tool or its service failed
	Limit       Kind = "limit"       // a usage, payment or login limit stopped the tool
	Compaction  Kind = "compaction"  // what came before was summed up; Text is the summary
	Interrupted Kind = "interrupted" // the person stopped the turn
	Command     Kind = "command"     // a command of the tool's own ("/model") or of its shell ("!ls"), with what it printed
	Notice      Kind = "notice"      // something the tool wants noticed
)

// A Cursor is a place in a conversation. It is opaque: at most 256 bytes of
// letters, digits and punctuation, good for the same conversation only, also
// after a restart of this process. ErrCursor answers one that no longer fits.
type Cursor string

// maxCursor bounds a cursor that comes from a peer, in bytes.
const maxCursor = 256

// Valid says whether c could have come from here at all.
func (c Cursor) Valid() bool {
	if len(c) > maxCursor {
		return false
	}
	for i := range len(c) {
		if c[i] <= ' ' || c[i] > '~' {
			return false
		}
	}
	return true
}

// Limits of what one item and one page carry.
const (
	// MaxText is what one text of an item holds at most, in bytes; the rest is
	// fetched by its Blob. Half of it cuts ordinary tool output, double makes a
	// page of a hundred cut texts heavier than a phone's first screen should be.
	MaxText = 16 << 10
	// MaxItems is the largest page.
	MaxItems = 500
	// MaxPage is the Weight at which a page ends early, so that with its last
	// message it stays well below a line of the sessions protocol (1 MiB).
	MaxPage = 256 << 10
	// MaxPiece is the most that one request for a blob returns, in bytes.
	MaxPiece = 256 << 10
	// MaxHunkLines bounds the lines of a diff in an item.
	MaxHunkLines = 400
)

// Errors that every reader of transcripts shares.
var (
	ErrCursor = errors.New("the place is no longer in this conversation: it was cut short or replaced; read it again from the end")
	ErrBlob   = errors.New("no such piece of this conversation")
)

// An Item is one thing that was said or done.
type Item struct {
	ID     string    `json:"id"`
	Kind   Kind      `json:"kind"`
	Time   time.Time `json:"time,omitzero"`
	Cursor Cursor    `json:"cursor"` // a page before it ends just above this item's message
	// Message joins the items of one message; they are never split over pages.
	Message string `json:"message,omitempty"`
	Body
	Tool      *Tool      `json:"tool,omitempty"`
	Questions []Question `json:"questions,omitempty"`
	Images    []Image    `json:"images,omitempty"`
	// Pending says of Queued that it still waits.
	Pending bool `json:"pending,omitempty"`
	// Model is the name of the model that wrote a text, when told.
	Model string `json:"model,omitempty"`

	// Rev is where the newest part of the item stands: a position in the file or
	// a time. It says what changed since a cursor and is not sent.
	Rev int64 `json:"-"`
}

// A Body is a text, whole or cut.
type Body struct {
	Text string `json:"text,omitempty"`
	// Blob names the whole text where Text is only its beginning; Bytes is its
	// size as stored, escapes counted, so a little more than what will come.
	Blob  string `json:"blob,omitempty"`
	Bytes int64  `json:"bytes,omitempty"`
	// Control says that Text holds control or bidirectional characters that
	// could make it look other than it is.
	Control bool `json:"control,omitempty"`
}

// A Status says how a tool call went.
type Status string

// The states of a tool call.
const (
	Running   Status = "running" // no result is recorded yet; after a crash it stays so
	OK        Status = "ok"
	Failed    Status = "failed"
	Rejected  Status = "rejected" // the person said no
	Cancelled Status = "cancelled"
)

// A Tool is one call of a tool, joined with its result.
type Tool struct {
	Name   string `json:"name"`
	Title  string `json:"title,omitempty"` // one line: the command, the file, the pattern
	Status Status `json:"status"`
	Input  Body   `json:"input,omitzero"`
	Output Body   `json:"output,omitzero"`
	Diff   []Diff `json:"diff,omitempty"`
	// ExitCode is set when the tool's transcript tells it.
	ExitCode *int `json:"exitCode,omitempty"`
	// Agent names the conversation of a sub-agent, for Log.Agent.
	Agent string `json:"agent,omitempty"`
	// Took is how long the call ran, in milliseconds, when told.
	Took int64 `json:"tookMs,omitempty"`
}

// A Diff is a change of one file.
type Diff struct {
	Path    string `json:"path"`
	Op      string `json:"op,omitempty"` // add, update, delete, move
	To      string `json:"to,omitempty"` // the new path of a move
	Added   int    `json:"added"`
	Removed int    `json:"removed"`
	Hunks   []Hunk `json:"hunks,omitempty"`
	Cut     bool   `json:"cut,omitempty"` // Hunks holds only the beginning
}

// A Hunk is a piece of a Diff; each line begins with " ", "+" or "-". Line
// numbers are 0 where they are not known.
type Hunk struct {
	OldStart int      `json:"oldStart,omitempty"`
	NewStart int      `json:"newStart,omitempty"`
	Lines    []string `json:"lines"`
}

// A Question is asked by a tool, with the answer once it is there.
type Question struct {
	Header  string   `json:"header,omitempty"`
	Text    string   `json:"text"`
	Options []Choice `json:"options,omitempty"`
	Multi   bool     `json:"multi,omitempty"`
	Answer  string   `json:"answer,omitempty"`
}

// A Choice is one answer that a question offers.
type Choice struct {
	Label  string `json:"label"`
	Detail string `json:"detail,omitempty"`
}

// An Image is a picture; its bytes come by Blob.
type Image struct {
	MediaType string `json:"mediaType,omitempty"`
	Bytes     int64  `json:"bytes,omitempty"` // of the picture, about
	Blob      string `json:"blob,omitempty"`
	Name      string `json:"name,omitempty"` // a path or URL, when that is all there is
}

// A Page is a stretch of a conversation, oldest item first.
type Page struct {
	Items []Item `json:"items"`
	// Before asks for the page above; empty at the beginning of the conversation.
	Before Cursor `json:"before,omitempty"`
	// After is where the transcript ended when the page was read; Tail goes on
	// from it. Set on the newest page only.
	After Cursor `json:"after,omitempty"`
	Title string `json:"title,omitempty"` // the tool's own name of the conversation
	// Unreadable counts records in this stretch that could not be understood.
	Unreadable int `json:"unreadable,omitempty"`
}

// A Change is what happened to a conversation since a cursor.
type Change struct {
	// Reset says to throw away what is there and show Items instead: the
	// transcript was replaced, cut short or rewound, or more came than is sent.
	Reset bool   `json:"reset,omitempty"`
	Items []Item `json:"items"` // new ones, and those that changed, by id
	// Before is set with Reset, and as in Page.
	Before Cursor `json:"before,omitempty"`
	After  Cursor `json:"after,omitempty"`
	Title  string `json:"title,omitempty"`
	// Gone says that the transcript is not there any more; it may come back.
	Gone bool `json:"gone,omitempty"`
}

// A Turning says what the end of a transcript shows.
type Turning string

// What the end of a transcript can show. A permission asked is in no transcript.
const (
	TurnWorking     Turning = "working"     // a turn began and did not end
	TurnDone        Turning = "done"        // the last turn ended
	TurnInterrupted Turning = "interrupted" // the person stopped it
	TurnLimit       Turning = "limit"       // a limit or a login stopped it
	TurnNone        Turning = "none"        // nothing can be said
)

// A Tail is the end of a transcript in a few words.
type Tail struct {
	State     Turning   `json:"state"`
	At        time.Time `json:"at,omitzero"` // of the deciding record, or of the file
	Detail    string    `json:"detail,omitempty"`
	Title     string    `json:"title,omitempty"`
	SessionID string    `json:"sessionId,omitempty"`
	// Stamp changes whenever the file does.
	Stamp string `json:"-"`
}

// A Source is an open transcript. Methods may be called one at a time only.
type Source interface {
	// Page returns at most limit items that end before a cursor, the newest ones
	// for an empty cursor. It may return a few more so as not to split a message,
	// and fewer, even none, with Before set, when little is to be shown there.
	Page(before Cursor, limit int) (Page, error)
	// Blob returns up to n bytes of a blob from offset, and whether it ends there.
	Blob(id string, offset int64, n int) (piece []byte, end bool, err error)
	// Tail reads the end of the transcript.
	Tail() (Tail, error)
	// Stamp tells cheaply whether anything changed.
	Stamp() (string, error)
	Close() error
}
