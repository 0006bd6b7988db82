// Package claude reads the transcripts of Claude Code: one JSON record a line in
// a file of the session's name, sub-agents in files beside it. Records form a
// tree; the branch that leads to the newest one is the conversation.
//
// The format is undocumented and changes: an unknown record shows nothing, and
// every field is optional. It finds no transcripts; package conversation does.
// What a caller will get wrong: one message of the model is several records, a
// permission that is asked is in none of them, and the last record of a turn may
// be written after the tool said that the turn ended.
package claude

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"holdfast/internal/session/conversation/item"
	"holdfast/internal/session/conversation/jsonl"
)

// A Log is a transcript.
type Log struct{ *jsonl.Reader }

// validAgent is what a sub-agent's name may be: part of a file name.
var validAgent = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)

// Open opens the transcript at path, or that of a sub-agent of it.
func Open(path, agent string) (*Log, error) {
	if agent == "" {
		return open(path, false)
	}
	if !validAgent.MatchString(agent) {
		return nil, errors.New("no such sub-agent")
	}
	name := "agent-" + agent + ".jsonl"
	l, err := open(filepath.Join(strings.TrimSuffix(path, ".jsonl"), "subagents", name), true)
	if err != nil {
		// Older versions kept them beside the session.
		if beside, err2 := open(filepath.Join(filepath.Dir(path), name), true); err2 == nil {
			return beside, nil
		}
	}
	return l, err
}

func open(path string, side bool) (*Log, error) {
	r, err := jsonl.Open(path, format{})
	if err != nil {
		return nil, err
	}
	r.Tree, r.Side = true, side
	return &Log{r}, nil
}

// Tail implements item.Source.
func (l *Log) Tail() (item.Tail, error) {
	if err := l.Refresh(); err != nil {
		return item.Tail{}, err
	}
	t, err := l.Ending()
	t.SessionID = strings.TrimSuffix(filepath.Base(l.Path()), ".jsonl")
	return t, err
}

// About reads what the first records tell: the directory in which the tool was
// started and when. Empty when they do not say.
func About(path string) (dir string, started time.Time, err error) {
	r, err := jsonl.Open(path, aboutFormat{})
	if err != nil {
		return "", time.Time{}, err
	}
	defer r.Close()
	rec, err := r.First(50, func(rec *jsonl.Record) bool { return rec.Message != "" })
	if rec == nil || err != nil {
		return "", time.Time{}, err
	}
	return rec.Message, rec.Time, nil
}

// aboutFormat reads directories only, as the Message of a record.
type aboutFormat struct{ format }

func (aboutFormat) Decode(l *jsonl.Line) jsonl.Record {
	e, ok := parse(l)
	if !ok {
		return jsonl.Record{}
	}
	return jsonl.Record{Message: e.CWD, Time: e.time()}
}

// envelope is what surrounds every record.
type envelope struct {
	Type        string          `json:"type"`
	UUID        string          `json:"uuid"`
	Parent      string          `json:"parentUuid"`
	Logical     string          `json:"logicalParentUuid"`
	Side        bool            `json:"isSidechain"`
	Meta        bool            `json:"isMeta"`
	Summary     bool            `json:"isCompactSummary"`
	OnlyVisible bool            `json:"isVisibleInTranscriptOnly"`
	Timestamp   string          `json:"timestamp"`
	CWD         string          `json:"cwd"`
	Message     json.RawMessage `json:"message"`
	ToolResult  json.RawMessage `json:"toolUseResult"`
	APIError    bool            `json:"isApiErrorMessage"`
	rest
}

// rest is what only some types of records have.
type rest struct {
	Error       json.RawMessage `json:"error"`
	Subtype     string          `json:"subtype"`
	Level       string          `json:"level"`
	Content     json.RawMessage `json:"content"`
	Compact     json.RawMessage `json:"compactMetadata"`
	Attachment  json.RawMessage `json:"attachment"`
	Operation   string          `json:"operation"`
	SummaryText string          `json:"summary"`
	CustomTitle string          `json:"customTitle"`
	AITitle     string          `json:"aiTitle"`
	AgentName   string          `json:"agentName"`
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
	err := json.Unmarshal(data, v)
	var wrong *json.UnmarshalTypeError
	return err == nil || errors.As(err, &wrong)
}

func parse(l *jsonl.Line) (*envelope, bool) {
	var e envelope
	if len(l.Data) == 0 || l.Data[0] != '{' || !loose(l.Data, &e) {
		return nil, false
	}
	return &e, true
}

type format struct{}

// Titles implements jsonl.Format.
func (format) Titles() []string {
	return []string{`"custom-title"`, `"agent-name"`, `"ai-title"`, `"leafUuid"`}
}

// Queues implements jsonl.Format.
func (format) Queues() string { return `"queue-operation"` }

// The ranks of titles: what the person chose is better than what a model did.
const (
	rankSummary = iota
	rankMade
	rankChosen
)

// Decode implements jsonl.Format.
func (format) Decode(l *jsonl.Line) jsonl.Record {
	e, ok := parse(l)
	if !ok {
		return jsonl.Record{Bad: true}
	}
	rec := jsonl.Record{Time: e.time(), Side: e.Side}
	if len(e.UUID) <= 64 {
		rec.ID, rec.Parent = e.UUID, e.Parent
		if rec.Parent == "" {
			rec.Parent = e.Logical
		}
		if len(rec.Parent) > 64 {
			rec.Parent = ""
		}
	}
	d := decoder{l: l, e: e, rec: &rec}
	switch e.Type {
	case "user":
		d.user()
	case "assistant":
		d.assistant()
	case "system":
		d.system()
	case "attachment":
		d.attachment()
	case "queue-operation":
		d.queue()
	case "summary":
		rec.Title = jsonl.Title{Text: item.Line(l.Text(e.SummaryText), 200), Rank: rankSummary}
	case "custom-title":
		rec.Title = jsonl.Title{Text: item.Line(l.Text(e.CustomTitle), 200), Rank: rankChosen}
	case "agent-name":
		rec.Title = jsonl.Title{Text: item.Line(l.Text(e.AgentName), 200), Rank: rankChosen}
	case "ai-title":
		rec.Title = jsonl.Title{Text: item.Line(l.Text(e.AITitle), 200), Rank: rankMade}
	}
	return rec
}
