package opencode

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"holdfast/internal/session/conversation/cut"
	"holdfast/internal/session/conversation/item"
)

// info is what is known of a message beside its parts.
type info struct {
	Role string `json:"role"`
	Time struct {
		Created   float64 `json:"created"`
		Completed float64 `json:"completed"`
	} `json:"time"`
	Model   string          `json:"modelID"`
	Finish  string          `json:"finish"`
	Error   failure         `json:"error"`
	Summary json.RawMessage `json:"summary"`
}

type failure struct {
	Name string `json:"name"`
	Data struct {
		Message string `json:"message"`
		Status  int    `json:"statusCode"`
	} `json:"data"`
}

func (f *failure) text() string {
	if f.Data.Message != "" {
		return f.Data.Message
	}
	return f.Name
}

var quota = regexp.MustCompile(`(?i)quota|rate limit|credit|usage limit`)

// limit says whether the failure holds until the person does something.
func (f *failure) limit() bool {
	switch f.Data.Status {
	case 401, 402, 403, 429:
		return true
	}
	return f.Name == "ProviderAuthError" || quota.MatchString(f.Data.Message)
}

// part is a piece of a message.
type part struct {
	Type        string `json:"type"`
	Text        string `json:"text"`
	Synthetic   bool   `json:"synthetic"`
	Ignored     bool   `json:"ignored"`
	Tool        string `json:"tool"`
	Call        string `json:"callID"`
	State       state  `json:"state"`
	MediaType   string `json:"mime"`
	Name        string `json:"filename"`
	URL         string `json:"url"`
	Description string `json:"description"`
	Prompt      string `json:"prompt"`
	Time        struct {
		Start float64 `json:"start"`
	} `json:"time"`
}

type state struct {
	Status   string          `json:"status"`
	Input    json.RawMessage `json:"input"`
	Output   string          `json:"output"`
	Title    string          `json:"title"`
	Error    string          `json:"error"`
	Metadata struct {
		Exit    *int   `json:"exit"`
		Diff    string `json:"diff"`
		Session string `json:"sessionId"`
	} `json:"metadata"`
	Time struct {
		Start float64 `json:"start"`
		End   float64 `json:"end"`
	} `json:"time"`
	Attachments []struct {
		MediaType string `json:"mime"`
		URL       string `json:"url"`
	} `json:"attachments"`
}

// decode makes items of a message; bad counts what could not be understood.
func (l *Log) decode(e *entry) (items []item.Item, bad int, err error) {
	line, err := cut.Shorten(e.data)
	var m info
	if err != nil || !loose(line.Data, &m) || m.Role == "" {
		return nil, 1, nil
	}
	pieces, err := l.s.parts(l.session, e.id)
	if err != nil {
		return nil, 0, err
	}
	d := decoder{message: e.id, info: &m, rev: e.at}
	for _, p := range pieces {
		d.rev = max(e.at, p.updated)
		if !d.part(p) {
			bad++
		}
	}
	d.finish(line)
	for i := range d.items {
		it := &d.items[i]
		it.Message = e.id
		if it.Time.IsZero() {
			it.Time = milliseconds(e.at)
		}
	}
	return d.items, bad, nil
}

type decoder struct {
	message string
	info    *info
	rev     int64
	items   []item.Item
	user    int // 1 + the index of the item with what the person wrote
}

func (d *decoder) add(it item.Item) {
	it.Rev = d.rev
	d.items = append(d.items, it)
}

func (d *decoder) part(p piece) bool {
	l, err := cut.Shorten(p.data)
	var v part
	if err != nil || !loose(l.Data, &v) {
		return false
	}
	l.Blobs = d.message + "/" + p.id + "/"
	it := item.Item{ID: p.id}
	if v.Time.Start > 0 {
		it.Time = milliseconds(int64(v.Time.Start))
	}
	switch v.Type {
	case "text":
		if v.Synthetic || v.Ignored || strings.TrimSpace(l.Text(v.Text)) == "" {
			return true
		}
		it.Kind, it.Body = item.Text, l.Body(v.Text)
		if d.info.Role == "user" {
			it.Kind = item.User
		} else {
			it.Model = item.Line(d.info.Model, 80)
			var summed bool
			if json.Unmarshal(d.info.Summary, &summed) == nil && summed {
				it.Kind = item.Compaction
			}
		}
		d.add(it)
		if it.Kind == item.User && d.user == 0 {
			d.user = len(d.items)
		}
	case "reasoning":
		if strings.TrimSpace(l.Text(v.Text)) != "" {
			it.Kind, it.Body = item.Thinking, l.Body(v.Text)
			d.add(it)
		}
	case "file":
		img := l.Image(v.MediaType, v.URL)
		if v.MediaType != "" {
			img.MediaType = item.Line(v.MediaType, 80)
		}
		if v.Name != "" {
			img.Name = item.Line(l.Text(v.Name), 200)
		}
		if d.user > 0 {
			d.items[d.user-1].Images = append(d.items[d.user-1].Images, img)
			return true
		}
		it.Kind, it.Images = item.Picture, []item.Image{img}
		d.add(it)
	case "tool":
		d.tool(l, &v, it)
	case "subtask":
		it.Kind, it.Tool = item.Subagent, &item.Tool{Name: "subtask", Status: item.OK, Title: item.Line(l.Text(v.Description), 200), Input: l.Body(v.Prompt)}
		d.add(it)
	case "compaction":
		it.Kind, it.Body = item.Compaction, item.NewBody("compacted")
		d.add(it)
	}
	return true
}

func (d *decoder) tool(l *cut.Line, v *part, it item.Item) {
	it.Kind = item.ToolCall
	t := &item.Tool{Name: item.Line(v.Tool, 80), Status: item.Running, ExitCode: v.State.Metadata.Exit}
	it.Tool = t
	var in struct {
		Command     string `json:"command"`
		Path        string `json:"filePath"`
		Pattern     string `json:"pattern"`
		Query       string `json:"query"`
		URL         string `json:"url"`
		Description string `json:"description"`
		Prompt      string `json:"prompt"`
		Questions   []struct {
			Header   string `json:"header"`
			Question string `json:"question"`
			Options  []struct {
				Label       string `json:"label"`
				Description string `json:"description"`
			} `json:"options"`
		} `json:"questions"`
	}
	loose(v.State.Input, &in)
	for _, s := range []string{in.Command, in.Path, in.Pattern, in.Query, in.URL, v.State.Title, in.Description} {
		if t.Title == "" {
			t.Title = item.Line(l.Text(s), 200)
		}
	}
	switch v.State.Status {
	case "completed":
		t.Status = item.OK
		if t.ExitCode != nil && *t.ExitCode != 0 {
			t.Status = item.Failed
		}
	case "error":
		t.Status = item.Failed
		low := strings.ToLower(l.Text(v.State.Error))
		switch {
		case strings.Contains(low, "rejected permission"), strings.Contains(low, "permission denied by user"), strings.Contains(low, "user rejected"):
			t.Status = item.Rejected
		case strings.Contains(low, "aborted"):
			t.Status = item.Cancelled
		}
	}
	switch v.Tool {
	case "bash":
		t.Input = l.Body(in.Command)
	case "task":
		it.Kind, t.Input = item.Subagent, l.Body(in.Prompt)
		if s := v.State.Metadata.Session; validID.MatchString(s) {
			t.Agent = s
		}
	case "question":
		it.Kind = item.Ask
		for _, q := range in.Questions {
			out := item.Question{Header: item.Line(q.Header, 200), Text: l.Text(q.Question)}
			for _, o := range q.Options {
				out.Options = append(out.Options, item.Choice{Label: l.Text(o.Label), Detail: l.Text(o.Description)})
			}
			if t.Status == item.OK {
				out.Answer = item.Line(l.Text(v.State.Output), 2000)
			}
			it.Questions = append(it.Questions, out)
		}
	default:
		if len(v.State.Input) > 2 && v.State.Metadata.Diff == "" {
			t.Input = l.Body(string(v.State.Input))
		}
	}
	if v.State.Metadata.Diff != "" {
		t.Diff = []item.Diff{item.ParseUnified(l.Text(v.State.Metadata.Diff), item.Line(l.Text(in.Path), 4096))}
		t.Diff[0].Cut = t.Diff[0].Cut || l.Text(v.State.Metadata.Diff) != v.State.Metadata.Diff
	}
	t.Output = l.Body(v.State.Output)
	if v.State.Error != "" {
		t.Output = l.Body(v.State.Error)
	}
	if v.State.Time.End > v.State.Time.Start {
		t.Took = int64(v.State.Time.End - v.State.Time.Start)
	}
	if v.State.Time.Start > 0 {
		it.Time = milliseconds(int64(v.State.Time.Start))
	}
	for _, a := range v.State.Attachments {
		img := l.Image(a.MediaType, a.URL)
		if a.MediaType != "" {
			img.MediaType = item.Line(a.MediaType, 80)
		}
		it.Images = append(it.Images, img)
	}
	d.add(it)
}

// finish adds how the message ended.
func (d *decoder) finish(l *cut.Line) {
	f := &d.info.Error
	if f.Name == "" {
		return
	}
	it := item.Item{ID: fmt.Sprintf("%s.error", d.message), Kind: item.Fault, Body: item.NewBody(l.Text(f.text()))}
	switch {
	case f.Name == "MessageAbortedError":
		it.Kind, it.Body = item.Interrupted, item.NewBody("interrupted")
	case f.limit():
		it.Kind = item.Limit
	}
	d.add(it)
}
