// Package aider reads aider's chat history: one Markdown file in the directory
// of the work, in which lines that begin with "#### " are the person's, those that
// begin with "> " the tool's own, and all others the model's.
//
// It finds no transcripts; package conversation does. What a caller will get
// wrong: the file holds every conversation that was ever had there, one after the
// other, without times but at the beginning of each; and a person's line can be
// imitated by a model's answer.
package aider

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/session/conversation/item"
	"holdfast/internal/session/conversation/jsonl"
	"holdfast/internal/session/conversation/segment"
	"holdfast/internal/session/toolfile"
)

// Name is that of the file.
const Name = ".aider.chat.history.md"

// A Log is a chat history.
type Log struct {
	path  string
	f     *os.File
	stamp string
	list  []segment.Segment
	size  int64
}

// Classes of lines, as the ID of a segment.
const (
	start     = "#" // a conversation began
	person    = "u"
	tool      = ">"
	assistant = "a"
)

// gen is the same for all: a history is only appended to.
const gen = "m"

// Open opens the history at path.
func Open(path string) (*Log, error) {
	f, _, err := toolfile.Open(path)
	if err != nil {
		return nil, err
	}
	return &Log{path: path, f: f}, nil
}

// Close implements item.Source.
func (l *Log) Close() error { return l.f.Close() }

// Stamp implements item.Source.
func (l *Log) Stamp() (string, error) { return jsonl.Stamp(l.path) }

// Position implements what Tail asks for.
func (l *Log) Position(c item.Cursor) (int64, error) { return segment.Position(c, gen) }

// Page implements item.Source.
func (l *Log) Page(before item.Cursor, limit int) (item.Page, error) {
	if err := l.index(); err != nil {
		return item.Page{}, err
	}
	page, err := segment.Page(l.list, gen, before, limit, l.decode)
	if before == "" && err == nil {
		page.After = segment.End(gen, l.size)
	}
	return page, err
}

// maxHistory is how much of a history is read, from its end, in bytes: it holds
// years of work and is read from there to here whenever it is opened.
const maxHistory = 256 << 20

// index divides the file into runs of lines of one class.
func (l *Log) index() error {
	stamp, err := l.Stamp()
	if err != nil || stamp == l.stamp {
		return err
	}
	f, size, err := toolfile.Open(l.path)
	if err != nil {
		return err
	}
	l.f.Close()
	l.f = f
	var s splitter
	from := max(0, size-maxHistory)
	s.skip = from > 0
	buf := make([]byte, 128<<10)
	for at := from; at < size; {
		n, err := f.ReadAt(buf, at)
		s.feed(buf[:n], at)
		at += int64(n)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	l.list, l.size, l.stamp = segment.Trim(s.end(size)), size, stamp
	return nil
}

// A splitter finds runs of lines. It keeps the first bytes of a line only.
type splitter struct {
	skip bool // the line that is being read began before the part that is read
	head []byte
	at   int64 // of the line
	list []segment.Segment
	text bool // the line has something on it
	open bool // a line has begun
}

func (s *splitter) feed(b []byte, at int64) {
	for len(b) > 0 {
		if !s.open {
			s.open, s.at, s.head, s.text = true, at, s.head[:0], false
		}
		i := bytes.IndexByte(b, '\n')
		line := b
		if i >= 0 {
			line = b[:i]
		}
		if room := 32 - len(s.head); room > 0 {
			s.head = append(s.head, line[:min(room, len(line))]...)
		}
		s.text = s.text || len(bytes.TrimSpace(line)) > 0
		if i < 0 {
			return
		}
		s.line(at + int64(i) + 1)
		at += int64(i) + 1
		b = b[i+1:]
	}
}

// line ends a line at end.
func (s *splitter) line(end int64) {
	s.open = false
	if s.skip {
		s.skip = false
		return
	}
	class := assistant
	head := string(s.head)
	switch {
	case strings.HasPrefix(head, "# aider chat started at"):
		class = start
	case strings.HasPrefix(head, "#### "), head == "####":
		class = person
	case strings.HasPrefix(head, "> "), head == ">":
		class = tool
	}
	last := len(s.list) - 1
	switch {
	case !s.text:
		// A blank line is part of the model's text; elsewhere it ends a run.
		if last >= 0 && s.list[last].ID == assistant {
			s.list[last].End = end
		}
	case last >= 0 && s.list[last].ID == class && class != start && (class == assistant || s.list[last].End == s.at):
		s.list[last].End = end
	default:
		s.list = append(s.list, segment.Segment{ID: class, At: s.at, Start: s.at, End: end})
		if len(s.list) > 2*segment.Max {
			s.list = segment.Trim(s.list)
		}
	}
}

func (s *splitter) end(size int64) []segment.Segment {
	if s.open {
		s.line(size)
	}
	return s.list
}

// decode makes an item of a run.
func (l *Log) decode(s segment.Segment) ([]item.Item, error) {
	whole := s.End - s.Start
	b := make([]byte, min(whole, item.MaxText))
	n, err := l.f.ReadAt(b, s.Start)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	text := bare(s.ID, string(bytes.ToValidUTF8(b[:n], nil)))
	if text == "" {
		return nil, nil
	}
	it := item.Item{ID: fmt.Sprintf("@%d", s.Start), Body: item.NewBody(text), Rev: s.End}
	if whole > int64(n) {
		it.Blob, it.Bytes = fmt.Sprintf("%s%d-%d", s.ID, s.Start, whole), whole
	}
	switch s.ID {
	case person:
		it.Kind = item.User
	case assistant:
		it.Kind = item.Text
	case start:
		it.Kind = item.Notice
		if t, err := time.ParseInLocation(time.DateTime, strings.TrimSpace(strings.TrimPrefix(text, "aider chat started at")), time.Local); err == nil {
			it.Time = t.UTC()
		}
	default:
		it.Kind = item.Notice
		if fault.MatchString(text) {
			it.Kind = item.Fault
		}
		if stopped.MatchString(text) {
			it.Kind = item.Interrupted
		}
	}
	return []item.Item{it}, nil
}

var (
	fault   = regexp.MustCompile(`(?m)^(?:litellm\.\w+|\w*Error: |The API provider|Model .* has hit a token limit)`)
	stopped = regexp.MustCompile(`(?m)^\^C`)
)

// bare takes the marks of a class from its lines.
func bare(class, text string) string {
	mark := map[string]string{start: "# ", person: "####", tool: ">"}[class]
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i, line := range lines {
		if mark != "" {
			line = strings.TrimPrefix(strings.TrimPrefix(line, mark), " ")
		}
		// Two blanks at the end are Markdown's line break.
		lines[i] = strings.TrimRight(line, " \r")
	}
	return strings.TrimSpace(strings.Join(lines, "\n"))
}

// Blob implements item.Source. Marks of lines are left as they are.
func (l *Log) Blob(id string, offset int64, n int) ([]byte, bool, error) {
	if id == "" || !strings.Contains(start+person+tool+assistant, id[:1]) {
		return nil, false, item.ErrBlob
	}
	a, b, ok := strings.Cut(id[1:], "-")
	from, err1 := strconv.ParseInt(a, 10, 64)
	size, err2 := strconv.ParseInt(b, 10, 64)
	if !ok || err1 != nil || err2 != nil || from < 0 || size < 0 || size > maxHistory {
		return nil, false, item.ErrBlob
	}
	if offset >= size {
		return nil, true, nil
	}
	buf := make([]byte, min(int64(n), size-offset))
	m, err := l.f.ReadAt(buf, from+offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, false, err
	}
	return buf[:m], offset+int64(m) >= size || m == 0, nil
}

// Tail implements item.Source.
func (l *Log) Tail() (item.Tail, error) {
	out := item.Tail{State: item.TurnNone}
	if err := l.index(); err != nil {
		return out, err
	}
	out.Stamp = l.stamp
	if info, err := l.f.Stat(); err == nil {
		out.At = info.ModTime()
	}
	for _, s := range slices.Backward(l.list) {
		if s.ID != tool {
			return l.ending(s, out), nil
		}
		items, err := l.decode(s)
		if err != nil {
			return out, err
		}
		if len(items) == 1 && items[0].Kind == item.Interrupted {
			out.State, out.Detail = item.TurnInterrupted, "interrupted by the person"
			return out, nil
		}
	}
	return out, nil
}

// ending says what a run that is not the tool's own tells of the turn.
func (l *Log) ending(s segment.Segment, out item.Tail) item.Tail {
	switch s.ID {
	case person:
		out.State, out.Detail = item.TurnWorking, "a message was sent"
	case assistant:
		// An answer is written when it is complete; edits may still follow.
		out.State, out.Detail = item.TurnDone, "the answer is complete"
	}
	return out
}

// Find looks for the history of a directory: there, and above it up to the top of
// its git repository, where aider keeps it.
func Find(dir string) (string, bool) {
	for range 64 {
		path := filepath.Join(dir, Name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, true
		}
		if _, err := os.Stat(filepath.Join(dir, ".git")); err == nil {
			return "", false
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", false
		}
		dir = up
	}
	return "", false
}
