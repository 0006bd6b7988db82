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
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/session/conversation/item"
)

// A Line is one record of a file, shortened.
type Line struct {
	Start, End int64 // in the file, newline included
	Data       []byte

	// Blobs comes before the names of blobs, for lines that are not of one file.
	Blobs string

	mark string
	cuts []cut
}

// Shorten makes a Line of a value that is in memory already; the places of its
// cuts are within data. An error says that it is too large to be looked at.
func Shorten(data []byte) (*Line, error) {
	s := shortener{mark: newMark(), out: make([]byte, 0, min(len(data), 32<<10))}
	if err := s.run(bytes.NewReader(data), 0, make([]byte, 4<<10)); err != nil {
		return nil, err
	}
	return &Line{End: int64(len(data)), Data: s.out, mark: s.mark, cuts: s.cuts}, nil
}

// ReadIn reads a blob of a value that Shorten was given, by its name without what
// Blobs put before it.
func ReadIn(data []byte, id string, offset int64, n int) (piece []byte, end bool, err error) {
	kind, c, err := parseBlob(id)
	if err != nil {
		return nil, false, err
	}
	if c.start+c.length >= int64(len(data)) || data[c.start-1] != '"' || data[c.start+c.length] != '"' {
		return nil, false, item.ErrBlob
	}
	return ReadString(bytes.NewReader(data[c.start:c.start+c.length]), kind == 'b', offset, n)
}

// Body makes a body of a string that was decoded from the line.
func (l *Line) Body(s string) item.Body {
	s, c, ok := l.cutOf(s)
	b := item.NewBody(s)
	if ok {
		b.Blob, b.Bytes = l.Blobs+blobID('t', c), c.length
	} else if len(s) > item.MaxText {
		// Only text that was put together from several strings is longer.
		b.Bytes = int64(len(s))
		b.Text = item.CutRunes(s, item.MaxText)
	}
	return b
}

// Text returns a string of the line without the mark of a cut.
func (l *Line) Text(s string) string {
	s, _, _ = l.cutOf(s)
	return s
}

// Image makes a picture of base64 data, or of a data URL, in the line.
func (l *Line) Image(mediaType, data string) item.Image {
	s, c, cutOff := l.cutOf(data)
	img := item.Image{MediaType: item.Line(mediaType, 80)}
	if !cutOff {
		// Too short to have been cut: no picture, or a name.
		img.Name = item.Line(s, 200)
		return img
	}
	head := 0
	if strings.HasPrefix(s, "data:") {
		kind, _, _ := strings.Cut(strings.TrimPrefix(s, "data:"), ";")
		if i := strings.IndexByte(s, ','); i >= 0 {
			head = i + 1
		}
		img.MediaType = item.Line(kind, 80)
	} else if strings.Contains(s, "://") {
		img.Name = item.Line(s, 200)
		return img
	}
	img.Blob, img.Bytes = l.Blobs+blobID('b', c), max(0, c.length-int64(head))*3/4
	return img
}

func (l *Line) cutOf(s string) (string, cut, bool) {
	if i := strings.LastIndex(s, l.mark); i >= 0 && l.mark != "" {
		n, err := strconv.Atoi(s[i+len(l.mark):])
		if err == nil && n >= 0 && n < len(l.cuts) {
			return s[:i], l.cuts[n], true
		}
	}
	return s, cut{}, false
}

// newMark makes what ends a cut string. It is of letters and digits, so that it
// passes through JSON and any further encoding of it unchanged.
func newMark() string {
	var b [12]byte
	rand.Read(b[:])
	return "\u2026" + base64.RawURLEncoding.EncodeToString(b[:]) + "."
}

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
