package gemini

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"holdfast/internal/session/conversation/item"
	"holdfast/internal/session/conversation/jsonl"
)

// format decodes messages; lines says that each is a line of its own.
type format struct{ lines bool }

// Titles implements jsonl.Format.
func (format) Titles() []string { return []string{`"summary"`} }

// Queues implements jsonl.Format.
func (format) Queues() string { return "" }

// message is one message, or one of the records that are none.
type message struct {
	ID       string          `json:"id"`
	Time     string          `json:"timestamp"`
	Type     string          `json:"type"`
	Content  json.RawMessage `json:"content"`
	Display  json.RawMessage `json:"displayContent"`
	Calls    []call          `json:"toolCalls"`
	Thoughts []struct {
		Subject     string `json:"subject"`
		Description string `json:"description"`
	} `json:"thoughts"`
	Model  string          `json:"model"`
	Rewind string          `json:"$rewindTo"`
	Set    json.RawMessage `json:"$set"`
}

type call struct {
	ID      string          `json:"id"`
	Name    string          `json:"name"`
	Display string          `json:"displayName"`
	About   string          `json:"description"`
	Args    json.RawMessage `json:"args"`
	Result  json.RawMessage `json:"result"`
	Shown   json.RawMessage `json:"resultDisplay"`
	Status  string          `json:"status"`
	Agent   string          `json:"agentId"`
}

// part is a piece of content.
type part struct {
	Text   string `json:"text"`
	Inline *struct {
		MediaType string `json:"mimeType"`
		Data      string `json:"data"`
	} `json:"inlineData"`
	File *struct {
		MediaType string `json:"mimeType"`
		URI       string `json:"fileUri"`
	} `json:"fileData"`
	Response *struct {
		Response json.RawMessage `json:"response"`
	} `json:"functionResponse"`
}

func loose(data []byte, v any) bool {
	if len(data) == 0 {
		return false
	}
	err := json.Unmarshal(data, v)
	var wrong *json.UnmarshalTypeError
	return err == nil || errors.As(err, &wrong)
}

// Decode implements jsonl.Format. A record that takes back all from an id on has
// that id as its Parent.
func (f format) Decode(l *jsonl.Line) jsonl.Record {
	if l.Data[0] == '"' && !f.lines { // the title of a whole object
		var s string
		json.Unmarshal(l.Data, &s)
		return jsonl.Record{Title: jsonl.Title{Text: item.Line(l.Text(s), 200)}}
	}
	var m message
	if l.Data[0] != '{' || !loose(l.Data, &m) {
		return jsonl.Record{Bad: true}
	}
	rec := jsonl.Record{}
	if t, err := time.Parse(time.RFC3339, m.Time); err == nil {
		rec.Time = t.UTC()
	}
	switch {
	case m.Rewind != "":
		rec.Parent = m.Rewind
		return rec
	case len(m.Set) > 0:
		var set struct {
			Summary string `json:"summary"`
		}
		loose(m.Set, &set)
		rec.Title.Text = item.Line(l.Text(set.Summary), 200)
		return rec
	case m.Type == "":
		return rec // the head of a file of lines
	}
	if m.ID == "" || len(m.ID) > 128 {
		m.ID = fmt.Sprintf("@%d", l.Start)
	}
	rec.ID, rec.Message = m.ID, m.ID
	d := decoder{l, &rec, &m}
	d.message()
	return rec
}

type decoder struct {
	l   *jsonl.Line
	rec *jsonl.Record
	m   *message
}

func (d *decoder) add(kind item.Kind, suffix, text string, images []item.Image) {
	if strings.TrimSpace(d.l.Text(text)) == "" && len(images) == 0 {
		return
	}
	it := item.Item{ID: d.m.ID + suffix, Kind: kind, Body: d.l.Body(text), Images: images}
	if kind == item.Text || kind == item.Thinking {
		it.Model = item.Line(d.m.Model, 80)
	}
	d.rec.Items = append(d.rec.Items, it)
}

// limits are errors that hold until the person does something.
var limits = regexp.MustCompile(`(?i)quota|rate limit|resource.?exhausted|\b429\b|\b401\b|authenticat|log ?in`)

func (d *decoder) message() {
	text, images := d.content(d.m.Content)
	switch d.m.Type {
	case "user":
		if shown, _ := d.content(d.m.Display); shown != "" {
			text = shown
		}
		d.add(item.User, "", text, images)
		d.rec.Turn = jsonl.Turn{State: item.TurnWorking, Detail: "a message was sent"}
	case "gemini", "assistant", "model":
		for i, t := range d.m.Thoughts {
			d.add(item.Thinking, fmt.Sprintf(".t%d", i), strings.TrimSpace(t.Subject+"\n"+t.Description), nil)
		}
		d.add(item.Text, "", text, images)
		running := false
		for i := range d.m.Calls {
			running = d.call(i) || running
		}
		switch {
		case running:
			d.rec.Turn = jsonl.Turn{State: item.TurnWorking, Detail: "a tool runs"}
		case len(d.m.Calls) > 0:
			d.rec.Turn = jsonl.Turn{State: item.TurnWorking, Detail: "a tool has answered"}
			if last := d.m.Calls[len(d.m.Calls)-1].Status; last == "cancelled" {
				d.rec.Turn = jsonl.Turn{State: item.TurnInterrupted, Detail: "a tool call was cancelled"}
			}
		default:
			d.rec.Turn = jsonl.Turn{State: item.TurnDone, Detail: "the answer is complete"}
		}
	case "error":
		kind, state := item.Fault, item.TurnDone
		if limits.MatchString(d.l.Text(text)) {
			kind, state = item.Limit, item.TurnLimit
		}
		d.add(kind, "", text, nil)
		d.rec.Turn = jsonl.Turn{State: state, Detail: item.Line("error: "+d.l.Text(text), 200)}
	default: // info, warning, and what is not known
		low := strings.ToLower(d.l.Text(text))
		switch {
		case strings.HasPrefix(low, "request cancelled"):
			d.add(item.Interrupted, "", text, nil)
			d.rec.Turn = jsonl.Turn{State: item.TurnInterrupted, Detail: "interrupted by the person"}
		case strings.Contains(low, "chat history compressed"):
			d.add(item.Compaction, "", text, nil)
		default:
			d.add(item.Notice, "", text, images)
		}
	}
}

// content reads text that is a string, a part or a list of them.
func (d *decoder) content(raw json.RawMessage) (string, []item.Image) {
	if len(raw) == 0 {
		return "", nil
	}
	var s string
	if raw[0] == '"' {
		json.Unmarshal(raw, &s)
		return s, nil
	}
	var list []json.RawMessage
	if raw[0] == '{' {
		list = []json.RawMessage{raw}
	} else {
		loose(raw, &list)
	}
	var texts []string
	var images []item.Image
	for _, r := range list {
		if len(r) > 0 && r[0] == '"' {
			json.Unmarshal(r, &s)
			texts = append(texts, s)
			continue
		}
		var p part
		loose(r, &p)
		switch {
		case p.Text != "":
			texts = append(texts, p.Text)
		case p.Inline != nil:
			images = append(images, d.l.Image(p.Inline.MediaType, p.Inline.Data))
		case p.File != nil:
			images = append(images, item.Image{MediaType: item.Line(p.File.MediaType, 80), Name: item.Line(d.l.Text(p.File.URI), 200)})
		case p.Response != nil:
			var res struct {
				Output string `json:"output"`
				Error  string `json:"error"`
			}
			loose(p.Response.Response, &res)
			if t := res.Output + res.Error; t != "" {
				texts = append(texts, t)
			}
		}
	}
	return strings.Join(texts, ""), images
}

// call adds a tool call and says whether it still runs.
func (d *decoder) call(i int) bool {
	c := &d.m.Calls[i]
	id := c.ID
	if id == "" || len(id) > 128 {
		id = fmt.Sprintf("%s.c%d", d.m.ID, i)
	}
	t := &item.Tool{Name: item.Line(c.Name, 80), Agent: ""}
	var args struct {
		Command  string `json:"command"`
		Path     string `json:"file_path"`
		Absolute string `json:"absolute_path"`
		Dir      string `json:"path"`
		Pattern  string `json:"pattern"`
		Query    string `json:"query"`
		Prompt   string `json:"prompt"`
		Old      string `json:"old_string"`
		New      string `json:"new_string"`
		Content  string `json:"content"`
	}
	loose(c.Args, &args)
	for _, s := range []string{args.Command, args.Path, args.Absolute, args.Pattern, args.Query, args.Dir, args.Prompt, c.About} {
		if t.Title == "" {
			t.Title = item.Line(d.l.Text(s), 200)
		}
	}
	text, images := d.content(c.Result)
	switch {
	case c.Name == "run_shell_command":
		t.Input = d.l.Body(args.Command)
	case c.Name == "replace" || c.Name == "write_file":
		t.Diff = []item.Diff{d.diff(c.Name, args.Path, args.Old, args.New, args.Content)}
	case len(c.Args) > 2:
		t.Input = d.l.Body(string(c.Args))
	}
	running := false
	switch c.Status {
	case "success", "":
		t.Status = item.OK
	case "error":
		t.Status = item.Failed
	case "cancelled":
		t.Status = item.Cancelled
	default:
		t.Status, running = item.Running, true
	}
	t.Output = d.l.Body(text)
	var shown string
	if loose(c.Shown, &shown) && t.Output.Text == "" {
		t.Output = d.l.Body(shown)
	}
	kind := item.ToolCall
	if c.Agent != "" || strings.HasSuffix(c.Name, "_agent") {
		kind = item.Subagent
	}
	it := item.Item{ID: id, Kind: kind, Tool: t, Images: images}
	if at, err := time.Parse(time.RFC3339, d.m.Time); err == nil {
		it.Time = at.UTC()
	}
	d.rec.Items = append(d.rec.Items, it)
	return running
}

func (d *decoder) diff(name, path, before, after, content string) item.Diff {
	out := item.Diff{Path: item.Line(d.l.Text(path), 4096), Op: "update"}
	if name == "write_file" {
		out.Op, before, after = "add", "", content
	}
	var h item.Hunk
	for _, side := range []struct{ sign, text string }{{"-", before}, {"+", after}} {
		text := d.l.Text(side.text)
		out.Cut = out.Cut || text != side.text
		if text == "" {
			continue
		}
		for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
			h.Lines = append(h.Lines, side.sign+line)
			if side.sign == "+" {
				out.Added++
			} else {
				out.Removed++
			}
		}
	}
	if len(h.Lines) > 0 {
		out.Hunks = []item.Hunk{h}
	}
	item.TrimDiff(&out)
	return out
}
