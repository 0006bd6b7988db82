// Package opencode reads the conversations of opencode from its store: a SQLite
// database, or in older versions a tree of JSON files. Both are opened for
// reading only; the database may be written to meanwhile.
//
// The store is not documented and changes: a message or part that is not
// understood shows nothing. It finds no conversations but by their directory;
// package conversation does the rest. What a caller will get wrong: one store
// holds the conversations of all projects, so a path alone names none.
package opencode

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/session/conversation/cut"
	"holdfast/internal/session/conversation/item"
)

// A Session is what the store tells about a conversation.
type Session struct {
	ID, Dir, Title   string
	Created, Updated time.Time
}

// key orders messages: by time, then by id.
type key struct {
	at int64 // milliseconds
	id string
}

// entry is a message as a store has it.
type entry struct {
	key
	data []byte
}

// piece is a part of a message.
type piece struct {
	id      string
	updated int64
	data    []byte
}

// store is one of the two kinds of keeping conversations.
type store interface {
	// newest lists up to n messages before a key, newest first; the zero key means
	// from the end.
	newest(session string, before key, n int) ([]entry, error)
	parts(session, message string) ([]piece, error)
	// part returns the JSON of one part.
	part(session, message, id string) ([]byte, error)
	session(id string) (Session, error)
	// since lists sessions that are no sub-agent's, updated since a time.
	since(at time.Time) ([]Session, error)
	stamp(session string) (string, error)
	close() error
}

// maxValue is the longest value that is looked at, in bytes: a part is read
// whole before it is shortened.
const maxValue = 64 << 20

// A Log is a conversation.
type Log struct {
	s       store
	session string
}

// validID is what names are in a store; they become part of paths.
var validID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$`)

// Open opens a session of the store at path, a database or a directory.
func Open(path, session string) (*Log, error) {
	if !validID.MatchString(session) {
		return nil, errors.New("a conversation of opencode is named by its session")
	}
	s, err := open(path)
	if err != nil {
		return nil, err
	}
	return &Log{s: s, session: session}, nil
}

func open(path string) (store, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return tree{path}, nil
	}
	return openDatabase(path)
}

// Sessions lists what the store at path tells of sessions that were updated since
// a time; sub-agents' are left out.
func Sessions(path string, since time.Time) ([]Session, error) {
	s, err := open(path)
	if err != nil {
		return nil, err
	}
	defer s.close()
	return s.since(since)
}

// Has says whether the store at path has a session.
func Has(path, session string) bool {
	if !validID.MatchString(session) {
		return false
	}
	s, err := open(path)
	if err != nil {
		return false
	}
	defer s.close()
	got, err := s.session(session)
	return err == nil && got.ID == session
}

// Close implements item.Source.
func (l *Log) Close() error { return l.s.close() }

// Stamp implements item.Source.
func (l *Log) Stamp() (string, error) { return l.s.stamp(l.session) }

func cursor(k key) item.Cursor { return item.Cursor(fmt.Sprintf("o.%d.%s", k.at, k.id)) }

func parseCursor(c item.Cursor) (key, error) {
	parts := strings.Split(string(c), ".")
	if len(parts) != 3 || parts[0] != "o" || parts[2] != "" && !validID.MatchString(parts[2]) {
		return key{}, item.ErrCursor
	}
	at, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil {
		return key{}, item.ErrCursor
	}
	return key{at, parts[2]}, nil
}

// Position implements what Tail asks for: the time of the newest change.
func (l *Log) Position(c item.Cursor) (int64, error) {
	k, err := parseCursor(c)
	return k.at, err
}

// Page implements item.Source.
func (l *Log) Page(before item.Cursor, limit int) (item.Page, error) {
	var at key
	if before != "" {
		var err error
		if at, err = parseCursor(before); err != nil {
			return item.Page{}, err
		}
		if at.id == "" {
			return item.Page{}, item.ErrCursor
		}
	}
	var page item.Page
	size, rev := 0, int64(0)
	more := true
	for len(page.Items) < limit && size < item.MaxPage {
		entries, err := l.s.newest(l.session, at, 1)
		if err != nil {
			return item.Page{}, err
		}
		if len(entries) == 0 {
			more = false
			break
		}
		items, bad, err := l.decode(&entries[0])
		if err != nil {
			return item.Page{}, err
		}
		at = entries[0].key
		page.Unreadable += bad
		for i := range items {
			items[i].Cursor = cursor(at)
			rev = max(rev, items[i].Rev)
			size += items[i].Weight()
		}
		page.Items = append(items, page.Items...)
	}
	if more {
		entries, err := l.s.newest(l.session, at, 1)
		if err != nil {
			return item.Page{}, err
		}
		if len(entries) > 0 {
			page.Before = cursor(at)
		}
	}
	if before == "" {
		page.After = cursor(key{at: rev})
		if s, err := l.s.session(l.session); err == nil {
			page.Title = item.Line(s.Title, 200)
		}
	}
	return page, nil
}

// Blob implements item.Source. A blob is named by message, part and place.
func (l *Log) Blob(id string, offset int64, n int) ([]byte, bool, error) {
	parts := strings.SplitN(id, "/", 3)
	if len(parts) != 3 || !validID.MatchString(parts[0]) || !validID.MatchString(parts[1]) {
		return nil, false, item.ErrBlob
	}
	data, err := l.s.part(l.session, parts[0], parts[1])
	if err != nil {
		return nil, false, err
	}
	return cut.ReadIn(data, parts[2], offset, n)
}

// Tail implements item.Source.
func (l *Log) Tail() (item.Tail, error) {
	out := item.Tail{State: item.TurnNone, SessionID: l.session}
	var err error
	if out.Stamp, err = l.Stamp(); err != nil {
		return out, err
	}
	if s, err := l.s.session(l.session); err == nil {
		out.Title, out.At = item.Line(s.Title, 200), s.Updated
	}
	entries, err := l.s.newest(l.session, key{}, 1)
	if err != nil || len(entries) == 0 {
		return out, err
	}
	var m info
	if line, err := cut.Shorten(entries[0].data); err != nil || !loose(line.Data, &m) {
		return out, nil
	}
	out.At = milliseconds(entries[0].at)
	if m.Time.Completed > 0 {
		out.At = milliseconds(int64(m.Time.Completed))
	}
	switch {
	case m.Role == "user":
		out.State, out.Detail = item.TurnWorking, "a message was sent"
	case m.Error.Name == "MessageAbortedError":
		out.State, out.Detail = item.TurnInterrupted, "interrupted by the person"
	case m.Error.Name != "":
		out.State, out.Detail = item.TurnDone, item.Line("error: "+m.Error.text(), 200)
		if m.Error.limit() {
			out.State = item.TurnLimit
		}
	case m.Time.Completed == 0:
		out.State, out.Detail = item.TurnWorking, "an answer is being written"
	case m.Finish == "tool-calls":
		out.State, out.Detail = item.TurnWorking, "a tool has answered"
	default:
		out.State, out.Detail = item.TurnDone, "the answer is complete"
	}
	return out, nil
}

func milliseconds(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

func loose(data []byte, v any) bool {
	if len(data) == 0 {
		return false
	}
	err := json.Unmarshal(data, v)
	var wrong *json.UnmarshalTypeError
	return err == nil || errors.As(err, &wrong)
}
