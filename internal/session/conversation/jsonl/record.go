// Package jsonl pages transcripts that are files of JSON records, one a line,
// backwards from their end: in memory that depends on neither the size of the
// file nor that of its longest line. A Format says what a record means; this
// package knows about lines, places, branches and joins.
//
// It reads only, and holds no more than a page, one shortened record and a
// buffer. What a caller will get wrong: what a page holds must depend on the
// file alone and not on where the page began, so everything that joins records
// (a call and its result, two copies of one message) is looked up within a fixed
// distance instead of being remembered from the page before.
package jsonl

import (
	"time"

	"holdfast/internal/session/conversation/cut"
	"holdfast/internal/session/conversation/item"
)

// A Line is one record of a file, shortened.
type Line = cut.Line

// A Record is what a Format makes of a Line. The zero Record is one that shows
// nothing and is skipped.
type Record struct {
	Start, End int64
	Time       time.Time

	// ID and Parent make records a tree; a record without ID is outside of it and
	// shown where it stands.
	ID, Parent string
	// Side says that the record belongs to a sub-agent's conversation.
	Side bool
	// Message joins records of one message.
	Message string
	// Boundary says that the record ends what came before it (a compaction), after
	// which some of it may be written again.
	Boundary bool
	// Summary says that the record holds the text of the compaction.
	Summary bool
	// Undo takes back this many turns before the record.
	Undo int
	// Prompt says that the record begins a turn, for Undo.
	Prompt bool

	Items   []item.Item
	Results []Result
	// Twin is the same for records that say the same thing; within twins of near
	// records the one with the lowest Rank is shown.
	Twin string
	Rank int

	// Queue says what happened to the queue of messages.
	Queue Queue
	// Turn says what the record tells about the turn, for the end of the file.
	Turn  Turn
	Title Title
	// Bad says that the line could not be understood.
	Bad bool
}

// A Turn is what the last record that says something about it tells.
type Turn struct {
	State  item.Turning // empty: says nothing
	Detail string
}

// A Title is a name of the conversation. Of two the one with the higher rank is
// shown, then the later one.
type Title struct {
	Text string
	Rank int
}

// A Queue says what a record did to the queue of messages that wait.
type Queue uint8

// What a record can do to the queue.
const (
	Untouched Queue = iota
	Enqueued
	Taken
)

// A Result completes a call elsewhere in the file.
type Result struct {
	Call string
	// Join puts the result into the call's item.
	Join func(*item.Item)
}

// A Format tells what the lines of a tool's transcripts mean.
type Format interface {
	// Decode never fails: a line that says nothing yields a zero Record, one that
	// cannot be read a Bad one.
	Decode(l *Line) Record
	// Titles are strings of which one is in every record that holds a title.
	Titles() []string
	// Queues is a string that is in every record with a Queue; empty when there
	// are none.
	Queues() string
}
