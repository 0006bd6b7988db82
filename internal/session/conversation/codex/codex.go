// Package codex reads the rollout files of Codex: one JSON record a line, in the
// order of what happened. Most of what is said stands in a file two or three
// times, once as the model's interface has it and again as events; each is shown
// once.
//
// The format is undocumented and changes: an unknown record shows nothing, and
// every field is optional. It finds no transcripts; package conversation does.
// What a caller will get wrong: approvals that are asked are in no record, the
// arguments of a call are JSON within a JSON string, and a sub-agent's
// conversation is a file of its own.
package codex

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"holdfast/internal/session/conversation/item"
	"holdfast/internal/session/conversation/jsonl"
)

// A Log is a transcript.
type Log struct{ *jsonl.Reader }

// id is the end of a rollout's name.
var id = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// SessionID is the name of the session that a rollout is of, by its path.
func SessionID(path string) string {
	return id.FindString(strings.TrimSuffix(filepath.Base(path), ".jsonl"))
}

// Find finds the rollout of a session below a directory of sessions, which has
// directories for years, months and days; or directly in one of archived ones.
func Find(root, session string) (string, bool) {
	if id.FindString(session) != session {
		return "", false
	}
	for _, pattern := range []string{"*/*/*/rollout-*-" + session + ".jsonl", "rollout-*-" + session + ".jsonl"} {
		if found, err := filepath.Glob(filepath.Join(escape(root), pattern)); err == nil && len(found) == 1 {
			return found[0], true
		}
	}
	return "", false
}

// escape makes a path match itself.
func escape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// Open opens the rollout at path, or that of a sub-agent of it.
func Open(path, agent string) (*Log, error) {
	if agent != "" {
		// .../sessions/2026/01/02/rollout-….jsonl
		sub, ok := Find(filepath.Join(filepath.Dir(path), "..", "..", ".."), agent)
		if !ok {
			return nil, fmt.Errorf("find the rollout of sub-agent: %w", fs.ErrNotExist)
		}
		path = sub
	}
	r, err := jsonl.Open(path, format{})
	if err != nil {
		return nil, err
	}
	return &Log{r}, nil
}

// Tail implements item.Source.
func (l *Log) Tail() (item.Tail, error) {
	if err := l.Refresh(); err != nil {
		return item.Tail{}, err
	}
	t, err := l.Ending()
	t.SessionID = SessionID(l.Path())
	return t, err
}

// About reads what the first records tell of a rollout.
func About(path string) (dir string, started time.Time, subagent bool, err error) {
	r, err := jsonl.Open(path, aboutFormat{})
	if err != nil {
		return "", time.Time{}, false, err
	}
	defer r.Close()
	rec, err := r.First(20, func(rec *jsonl.Record) bool { return rec.Message != "" })
	if rec == nil || err != nil {
		return "", time.Time{}, false, err
	}
	return rec.Message, rec.Time, rec.Side, nil
}

// aboutFormat reads directories only, as the Message of a record.
type aboutFormat struct{ format }

func (aboutFormat) Decode(l *jsonl.Line) jsonl.Record {
	e, ok := parse(l)
	if !ok {
		return jsonl.Record{}
	}
	var meta struct {
		CWD    string          `json:"cwd"`
		Source json.RawMessage `json:"source"`
		Time   string          `json:"timestamp"`
	}
	loose(e.Payload, &meta)
	var source struct {
		Sub json.RawMessage `json:"subagent"`
	}
	loose(meta.Source, &source)
	rec := jsonl.Record{Message: meta.CWD, Time: e.time(), Side: len(source.Sub) > 0}
	if t, err := time.Parse(time.RFC3339, meta.Time); err == nil {
		rec.Time = t.UTC()
	}
	return rec
}

type envelope struct {
	Timestamp string          `json:"timestamp"`
	Type      string          `json:"type"`
	Payload   json.RawMessage `json:"payload"`
}

func (e *envelope) time() time.Time {
	t, err := time.Parse(time.RFC3339, e.Timestamp)
	if err != nil {
		return time.Time{}
	}
	return t.UTC()
}

// loose decodes JSON and lets fields of another type than expected be.
func loose(data []byte, v any) bool {
	if len(data) == 0 {
		return false
	}
	err := json.Unmarshal(data, v)
	var wrong *json.UnmarshalTypeError
	return err == nil || errors.As(err, &wrong)
}

// bare are the types of the model's interface, which the oldest files hold
// without an envelope.
var bare = map[string]bool{
	"message": true, "reasoning": true, "function_call": true, "function_call_output": true, "custom_tool_call": true,
	"custom_tool_call_output": true, "local_shell_call": true, "web_search_call": true,
}

func parse(l *jsonl.Line) (*envelope, bool) {
	var e envelope
	if len(l.Data) == 0 || l.Data[0] != '{' || !loose(l.Data, &e) {
		return nil, false
	}
	if len(e.Payload) == 0 && bare[e.Type] {
		e.Type, e.Payload = "response_item", l.Data
	}
	return &e, true
}

type format struct{}

// Titles implements jsonl.Format.
func (format) Titles() []string { return []string{`"thread_name_updated"`} }

// Queues implements jsonl.Format.
func (format) Queues() string { return "" }

// Decode implements jsonl.Format.
func (format) Decode(l *jsonl.Line) jsonl.Record {
	e, ok := parse(l)
	if !ok {
		return jsonl.Record{Bad: true}
	}
	rec := jsonl.Record{Time: e.time()}
	d := decoder{l: l, rec: &rec}
	switch e.Type {
	case "response_item":
		d.response(e.Payload)
	case "event_msg":
		d.event(e.Payload)
	case "compacted":
		var c struct {
			Message string `json:"message"`
		}
		loose(e.Payload, &c)
		d.compaction(c.Message, 0)
	}
	return rec
}
