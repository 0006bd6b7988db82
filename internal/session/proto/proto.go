// Package proto is the protocol in which devices see and answer the sessions of
// a machine: JSON lines over a stream that SSH protects (docs/sessions.md). It
// holds the messages, their limits, the machine's side (Serve) and the device's
// (Client).
//
// It watches nothing and types nothing: what it offers, a Backend does. It never
// runs on a stream that a relay can read.
//
// What a caller will get wrong: reopening is synchronising. A client keeps no
// list of what it has heard before a connection ended; the new one begins with
// all sessions. And an answer "unconfirmed" is no error: the text was typed, and
// nobody saw the program take it.
package proto

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"holdfast/internal/session"
)

// Subsystem is the name under which SSH servers offer the protocol.
const Subsystem = "sessions"

// Version is the version of the protocol that this package speaks.
const Version = 1

// Limits. Those that a client must know travel in the hello.
const (
	// MaxLineBytes bounds one line in either direction, its end not counted. An
	// answer carries a page of a conversation; half would cut long diffs, twice
	// costs a phone 2 MB for a line it shows a screenful of.
	MaxLineBytes = 1 << 20
	// MaxRequests is how many requests of one connection may be open at once. A
	// phone has a page, a search, a picture and a reply in flight; each costs up
	// to a line of memory.
	MaxRequests = 16
	// MaxFollows is how many conversations one connection follows: a phone shows
	// one, a desktop two panes.
	MaxFollows = 4
	// MaxTextBytes bounds a reply. A pasted log file has a tenth of it.
	MaxTextBytes = 256 << 10
	// MaxUploadBytes bounds a file that goes to the machine: a phone's photograph
	// has 3 to 12 MB.
	MaxUploadBytes = 32 << 20
	// MaxPieceBytes bounds one piece of a file or blob before its base64, which
	// must fit into a line.
	MaxPieceBytes = 512 << 10
	// MaxUploads is how many files one connection uploads at once.
	MaxUploads = 4
	// MaxKeys bounds the keys of one request.
	MaxKeys = 32
	// MaxNameBytes bounds names: of a file, a command, a device, a client.
	MaxNameBytes = 256
	// MaxPathBytes bounds a path, as Linux does.
	MaxPathBytes = 4096
	// MaxCursorBytes bounds a cursor, and the name of a blob or sub-agent.
	MaxCursorBytes = 1 << 10
	// MaxQueryBytes bounds what is searched for.
	MaxQueryBytes = 256
	// MaxPage bounds the items of one page; MaxLines the lines of one piece of
	// scrollback.
	MaxPage  = 200
	MaxLines = 2000
	// MaxIDs bounds a list of sessions in a request.
	MaxIDs = 256
	// MaxID is the largest id of a request: what JavaScript counts exactly.
	MaxID = 1<<53 - 1
	// MaxKeyBytes bounds the key by which a reply is made at most once, and the
	// name of a view.
	MaxKeyBytes = 64

	// MaxViews bounds the views of a device that look at once: the tabs of a
	// person who never closes one. Of more, those that looked last count.
	MaxViews = 16

	// LeaseTime is how long a look lasts. A client renews it at two thirds.
	LeaseTime = 30 * time.Second
	// MinChangeInterval keeps changes of one session to ten a second.
	MinChangeInterval = 100 * time.Millisecond
)

// An Op names a message.
type Op string

// Ops of both sides.
const OpHello Op = "hello"

// Ops of the machine.
const (
	OpSnapshot Op = "snapshot" // all sessions, in one or more messages
	OpChange   Op = "change"   // one session as it is now
	OpGone     Op = "gone"     // one session is there no more
	OpAnswer   Op = "answer"   // a request was done
	OpError    Op = "error"    // a request was refused or failed
	OpReceipt  Op = "receipt"  // how far a reply got
	OpItems    Op = "items"    // what a followed conversation gained
	OpBye      Op = "bye"      // the connection ends, and why
)

// Ops of the device: requests.
const (
	OpPing         Op = "ping"
	OpRefresh      Op = "refresh"
	OpSeen         Op = "seen"
	OpLook         Op = "look"
	OpConversation Op = "conversation"
	OpFollow       Op = "follow"
	OpUnfollow     Op = "unfollow"
	OpSearch       Op = "search"
	OpBlob         Op = "blob"
	OpScrollback   Op = "scrollback"
	OpReply        Op = "reply"
	OpApprove      Op = "approve"
	OpKeys         Op = "keys"
	OpUpload       Op = "upload"
	OpPiece        Op = "piece"
	OpCommands     Op = "commands"
	OpNew          Op = "new"
	OpEnd          Op = "end"
	OpAttach       Op = "attach"

	OpPushSubscribe   Op = "push-subscribe"
	OpPushUnsubscribe Op = "push-unsubscribe"
	OpPushTest        Op = "push-test"
	OpPushState       Op = "push-state"
)

// A Code says why a request was refused.
type Code string

// The codes. A client that meets another treats it like CodeFailed.
const (
	CodeSyntax        Code = "syntax"         // the message is not understood
	CodeUnknownOp     Code = "unknown-op"     // this machine does not know, or not offer, the request
	CodeBusy          Code = "busy"           // too many requests are open
	CodeLimit         Code = "limit"          // something is larger than allowed
	CodeNoSession     Code = "no-session"     // there is no such session, or no longer
	CodeDialogChanged Code = "dialog-changed" // another dialog, or none, is there; Error.Dialog
	CodeDialogOpen    Code = "dialog-open"    // a dialog is there that text would answer by accident; Error.Dialog
	CodeNoOption      Code = "no-option"      // the dialog does not offer that
	CodeComposer      Code = "composer"       // something stands in the input box; Error.Text
	CodeNoComposer    Code = "no-composer"    // the tool shows no input box now
	CodeNotPassword   Code = "not-password"   // a secret was sent and nothing asks for one
	CodePassword      Code = "password"       // a password is asked for and the text was not marked secret
	CodeKeyUsed       Code = "key-used"       // the key was used for another reply
	CodeNotConfirmed  Code = "not-confirmed"  // ending a session was not confirmed by its name
	CodeNoCommand     Code = "no-command"     // the machine's list has no such command
	CodeNoDir         Code = "no-dir"         // the directory is not there
	CodeNotFound      Code = "not-found"      // no conversation, blob, follow or upload of that name
	CodeUnclear       Code = "unclear"        // the machine cannot tell which conversation is this session's
	CodeFailed        Code = "failed"         // it was tried and did not work
)

// Codes of bye.
const (
	ByeSlow    Code = "slow"    // the reader is too slow; reopen
	ByeSyntax  Code = "syntax"  // a line is too long or no hello came
	ByeVersion Code = "version" // no common version
	ByeEnding  Code = "ending"  // the machine's side ends; reopen later
)

// Error is a refusal. It is what Call returns, and what a Backend returns to
// choose the code; any other error of a Backend becomes CodeFailed.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"` // for a person; at most 1 KiB
	// Dialog is what is asked now, with CodeDialogChanged (nil where nothing is)
	// and CodeDialogOpen.
	Dialog *session.Dialog `json:"dialog,omitempty"`
	// Text stands in the input box, with CodeComposer.
	Text string `json:"text,omitempty"`
}

func (e *Error) Error() string { return e.Message }

// Errorf makes an Error.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// CodeOf is the code of an error, CodeFailed where it has none.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return CodeFailed
}

// Hello is the first message of either side.
type Hello struct {
	Op      Op  `json:"op"`
	Version int `json:"version"` // the highest one that the sender speaks
	// Program is name and version of the sender's program.
	Program string `json:"program,omitempty"`
	// Features of the machine are the requests that it offers, and what else is
	// named in docs/sessions.md.
	Features []string `json:"features,omitempty"`
	// Machine, Limits and Now are the machine's.
	Machine string     `json:"machine,omitempty"`
	Limits  *Limits    `json:"limits,omitempty"`
	Now     *time.Time `json:"now,omitempty"`
	// Watch is the device's: false asks for no sessions at all, for a client that
	// has one request to make. Nothing means true.
	Watch *bool `json:"watch,omitempty"`
}

// Limits are those that a client must keep to.
type Limits struct {
	LineBytes   int `json:"lineBytes"`
	Requests    int `json:"requests"`
	Follows     int `json:"follows"`
	TextBytes   int `json:"textBytes"`
	UploadBytes int `json:"uploadBytes"`
	PieceBytes  int `json:"pieceBytes"`
	Page        int `json:"page"`
	LeaseMS     int `json:"leaseMs"`
}

// DefaultLimits are those of this package.
func DefaultLimits() *Limits {
	return &Limits{
		LineBytes: MaxLineBytes, Requests: MaxRequests, Follows: MaxFollows, TextBytes: MaxTextBytes,
		UploadBytes: MaxUploadBytes, PieceBytes: MaxPieceBytes, Page: MaxPage, LeaseMS: int(LeaseTime / time.Millisecond),
	}
}

// Snapshot lists sessions; the last one has no More.
type Snapshot struct {
	Op       Op                `json:"op"`
	Sessions []session.Session `json:"sessions"`
	More     bool              `json:"more,omitempty"`
}

// Change is one session as it is now.
type Change struct {
	Op      Op              `json:"op"`
	Session session.Session `json:"session"`
}

// Gone names a session that is there no more.
type Gone struct {
	Op      Op         `json:"op"`
	Session session.ID `json:"session"`
}

// Answer ends a request; Result depends on the request.
type Answer struct {
	Op     Op              `json:"op"`
	ID     int64           `json:"id"`
	Result json.RawMessage `json:"result"`
}

// Refusal ends a request. An ID of zero means that it could not be read.
type Refusal struct {
	Op Op    `json:"op"`
	ID int64 `json:"id"`
	Error
}

// Receipt tells how far a reply or an approval got.
type Receipt struct {
	Op    Op    `json:"op"`
	ID    int64 `json:"id"`
	State Stage `json:"state"`
}

// Items is what a followed conversation gained; ID is the follow's.
type Items struct {
	Op     Op              `json:"op"`
	ID     int64           `json:"id"`
	Result json.RawMessage `json:"result"`
}

// Bye ends the connection.
type Bye struct {
	Op      Op     `json:"op"`
	Code    Code   `json:"code"`
	Message string `json:"message"`
}

// A Stage is how far a reply got. It only rises.
type Stage string

// The stages; accepted and unconfirmed are final.
const (
	Sent        Stage = "sent"        // the machine has it
	Typed       Stage = "typed"       // it stands at the program
	Accepted    Stage = "accepted"    // the program was seen to take it
	Unconfirmed Stage = "unconfirmed" // it was typed, and nothing was seen
)

// Outcome is what came of a reply, an approval or keys.
type Outcome struct {
	State Stage `json:"state"` // accepted or unconfirmed
	// Evidence says, with accepted, what was seen; Reason, with unconfirmed, what
	// was not, and what to do.
	Evidence string `json:"evidence,omitempty"`
	Reason   string `json:"reason,omitempty"`
	// Dialog is what is asked next, where something is.
	Dialog *session.Dialog `json:"dialog,omitempty"`
}
