// Package gemini reads the chats of Gemini CLI: in older versions one JSON object
// a file that is written anew with every message, in newer ones a record a line,
// of which later ones replace earlier ones of the same id or take back all from
// one id on.
//
// The format changes: an unknown record shows nothing, and every field is
// optional. It finds no transcripts; package conversation does. What a caller
// will get wrong: a tool's result is in the message that called it, so a message
// changes long after it was written.
package gemini

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"holdfast/internal/session/conversation/item"
	"holdfast/internal/session/conversation/jsonl"
	"holdfast/internal/session/conversation/segment"
)

// A Log is a chat.
type Log struct {
	*jsonl.Reader
	lines bool // a record a line
	gen   string

	list  []segment.Segment
	upTo  int64 // the list covers the file to here
	stamp string
	title string
}

// Open opens the chat at path.
func Open(path string) (*Log, error) {
	r, err := jsonl.Open(path, format{lines: strings.HasSuffix(path, ".jsonl")})
	if err != nil {
		return nil, err
	}
	h := fnv.New32a()
	h.Write([]byte(filepath.Base(path)))
	return &Log{Reader: r, lines: strings.HasSuffix(path, ".jsonl"), gen: fmt.Sprintf("g%08x", h.Sum32())}, nil
}

// Page implements item.Source.
func (l *Log) Page(before item.Cursor, limit int) (item.Page, error) {
	if err := l.index(); err != nil {
		return item.Page{}, err
	}
	page, err := segment.Page(l.list, l.gen, before, limit, func(s segment.Segment) ([]item.Item, error) {
		rec, err := l.At(s.Start, s.End)
		if err != nil {
			return nil, err
		}
		return slices.Clone(rec.Items), nil
	})
	if before == "" && err == nil {
		page.After = segment.End(l.gen, l.upTo)
		page.Title = l.title
	}
	return page, err
}

// Position implements what Tail asks for.
func (l *Log) Position(c item.Cursor) (int64, error) {
	if !l.lines {
		return 0, item.ErrCursor // places move when the file is written anew
	}
	return segment.Position(c, l.gen)
}

// index reads what was added to the file, or all of it when it was replaced.
func (l *Log) index() error {
	stamp, err := l.Stamp()
	if err != nil {
		return err
	}
	if stamp == l.stamp {
		return nil
	}
	if err := l.Refresh(); err != nil {
		return err
	}
	l.Forget()
	if !l.lines || l.Size() < l.upTo || !sameFile(l.stamp, stamp) {
		l.list, l.upTo = nil, 0
	}
	if l.lines {
		err = l.indexLines()
	} else {
		err = l.indexObject()
	}
	if err == nil {
		l.stamp = stamp
	}
	return err
}

// sameFile compares the part of two stamps that names the file.
func sameFile(a, b string) bool {
	x, _, _ := strings.Cut(a, ".")
	y, _, _ := strings.Cut(b, ".")
	return x == y
}

func (l *Log) indexLines() error {
	at := map[string]int{}
	for i, s := range l.list {
		at[s.ID] = i
	}
	upTo, err := l.Lines(l.upTo, func(rec *jsonl.Record) error {
		switch {
		case rec.Title.Text != "":
			l.title = rec.Title.Text
		case rec.Parent != "": // back to before this id
			if i, ok := at[rec.Parent]; ok && i < len(l.list) && l.list[i].ID == rec.Parent {
				for _, s := range l.list[i:] {
					delete(at, s.ID)
				}
				l.list = l.list[:i]
			}
		case rec.ID != "":
			if i, ok := at[rec.ID]; ok {
				l.list[i].Start, l.list[i].End = rec.Start, rec.End
				return nil
			}
			if len(l.list) > 2*segment.Max {
				l.list = segment.Trim(l.list)
				clear(at)
				for i, s := range l.list {
					at[s.ID] = i
				}
			}
			at[rec.ID] = len(l.list)
			l.list = append(l.list, segment.Segment{ID: rec.ID, At: rec.Start, Start: rec.Start, End: rec.End})
		}
		return nil
	})
	l.upTo = upTo
	l.list = segment.Trim(l.list)
	return err
}

// indexObject finds the elements of the object's messages.
func (l *Log) indexObject() error {
	var s scanner
	err := l.Bytes(func(piece []byte, at int64) error {
		for i, c := range piece {
			s.step(c, at+int64(i))
		}
		return nil
	})
	if err != nil {
		return err
	}
	l.list, l.upTo = segment.Trim(s.found), l.Size()
	if s.summary != (segment.Segment{}) {
		if rec, err := l.At(s.summary.Start, s.summary.End); err == nil {
			l.title = rec.Title.Text
		}
	}
	return nil
}

// Tail implements item.Source.
func (l *Log) Tail() (item.Tail, error) {
	if err := l.Refresh(); err != nil {
		return item.Tail{}, err
	}
	if l.lines {
		t, err := l.Ending()
		return t, err
	}
	if err := l.index(); err != nil {
		return item.Tail{}, err
	}
	out := item.Tail{State: item.TurnNone, Title: l.title, Stamp: l.stamp}
	at, err := l.ModTime()
	if err != nil {
		return out, err
	}
	out.At = at
	for i, s := range slices.Backward(l.list) {
		if len(l.list)-i > 20 {
			break
		}
		rec, err := l.At(s.Start, s.End)
		if err != nil {
			return out, err
		}
		if rec.Turn.State != "" {
			out.State, out.Detail = rec.Turn.State, rec.Turn.Detail
			if !rec.Time.IsZero() {
				out.At = rec.Time
			}
			break
		}
	}
	return out, nil
}

// About reads what the head of a chat tells.
func About(path string) (session, project string, started time.Time, err error) {
	r, err := jsonl.Open(path, format{})
	if err != nil {
		return "", "", time.Time{}, err
	}
	defer r.Close()
	var h header
	stop := errors.New("enough")
	err = r.Bytes(func(piece []byte, _ int64) error {
		// The head stands before the messages; what follows is cut off and made
		// whole again.
		head := string(piece[:min(len(piece), 8<<10)])
		if i := strings.Index(head, `"messages"`); i >= 0 {
			head = strings.TrimRight(head[:i], " \t\r\n,") + "}"
		} else if line, _, ok := strings.Cut(head, "\n"); ok && strings.HasSuffix(strings.TrimSpace(line), "}") {
			head = line
		}
		json.Unmarshal([]byte(head), &h)
		return stop
	})
	if err != nil && !errors.Is(err, stop) {
		return "", "", time.Time{}, err
	}
	started, _ = time.Parse(time.RFC3339, h.Start)
	return h.Session, h.Project, started, nil
}

type header struct {
	Session string `json:"sessionId"`
	Project string `json:"projectHash"`
	Start   string `json:"startTime"`
}
