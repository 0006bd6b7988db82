package claude

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"holdfast/internal/session/conversation/item"
	"holdfast/internal/session/conversation/jsonl"
)

// input is what the tools that come with Claude Code are called with.
type input struct {
	Command     string          `json:"command"`
	Description string          `json:"description"`
	FilePath    string          `json:"file_path"`
	Notebook    string          `json:"notebook_path"`
	Path        string          `json:"path"`
	Pattern     string          `json:"pattern"`
	URL         string          `json:"url"`
	Query       string          `json:"query"`
	Prompt      string          `json:"prompt"`
	Skill       string          `json:"skill"`
	Plan        string          `json:"plan"`
	Old         string          `json:"old_string"`
	New         string          `json:"new_string"`
	Content     string          `json:"content"`
	Edits       []edit          `json:"edits"`
	Todos       json.RawMessage `json:"todos"`
	Questions   []question      `json:"questions"`
}

type edit struct {
	Old string `json:"old_string"`
	New string `json:"new_string"`
}

type question struct {
	Question string `json:"question"`
	Header   string `json:"header"`
	Multi    bool   `json:"multiSelect"`
	Options  []struct {
		Label       string `json:"label"`
		Description string `json:"description"`
	} `json:"options"`
}

// maxTitle bounds the line that says what a call is about, in bytes.
const maxTitle = 200

// call decodes a call of a tool.
func (d *decoder) call(b block) {
	if b.ID == "" {
		b.ID = d.id(len(d.rec.Items))
	}
	var in input
	loose(b.Input, &in)
	it := item.Item{ID: b.ID, Kind: item.ToolCall}
	tool := &item.Tool{Name: item.Line(b.Name, 80), Status: item.Running}
	it.Tool = tool
	first := func(texts ...string) string {
		for _, t := range texts {
			if t = item.Line(d.l.Text(t), maxTitle); t != "" {
				return t
			}
		}
		return ""
	}
	switch b.Name {
	case "Bash":
		tool.Title, tool.Input = first(in.Command), d.l.Body(in.Command)
	case "Edit", "MultiEdit", "Write":
		tool.Title = first(in.FilePath)
		tool.Diff = []item.Diff{d.proposed(b.Name, &in)}
	case "Task", "Agent":
		it.Kind = item.Subagent
		tool.Title, tool.Input = first(in.Description, in.Prompt), d.l.Body(in.Prompt)
	case "AskUserQuestion":
		it.Kind, it.Tool = item.Ask, nil
		for _, q := range in.Questions {
			it.Questions = append(it.Questions, d.question(q))
		}
		if len(it.Questions) == 0 {
			it.Questions = []item.Question{{}}
		}
	case "ExitPlanMode":
		tool.Title, tool.Input = "plan", d.l.Body(in.Plan)
	case "TodoWrite":
		tool.Title, tool.Input = d.todos(in.Todos)
	default:
		tool.Title = first(in.Command, in.FilePath, in.Notebook, in.Pattern, in.URL, in.Query, in.Description, in.Skill, in.Path, in.Prompt)
		tool.Input = d.arguments(b.Input)
	}
	d.add(it)
}

func (d *decoder) question(q question) item.Question {
	out := item.Question{Header: item.Line(d.l.Text(q.Header), maxTitle), Text: d.l.Text(q.Question), Multi: q.Multi}
	for _, o := range q.Options {
		out.Options = append(out.Options, item.Choice{Label: d.l.Text(o.Label), Detail: d.l.Text(o.Description)})
	}
	return out
}

// todos shows a list of tasks as lines with their state.
func (d *decoder) todos(raw json.RawMessage) (string, item.Body) {
	var list []json.RawMessage
	loose(raw, &list)
	var b strings.Builder
	done := 0
	for _, r := range list {
		var t struct {
			Content string `json:"content"`
			Status  string `json:"status"`
		}
		if len(r) > 0 && r[0] == '"' {
			loose(r, &t.Content)
		} else {
			loose(r, &t)
		}
		box := "[ ]"
		switch t.Status {
		case "completed":
			box = "[x]"
			done++
		case "in_progress":
			box = "[>]"
		}
		fmt.Fprintf(&b, "%s %s\n", box, d.l.Text(t.Content))
	}
	return fmt.Sprintf("%d of %d done", done, len(list)), d.l.Body(strings.TrimSuffix(b.String(), "\n"))
}

// arguments shows what a tool is called with that is not known here.
func (d *decoder) arguments(raw json.RawMessage) item.Body {
	if s := bytes.TrimSpace(raw); len(s) == 0 || string(s) == "{}" || string(s) == "null" {
		return item.Body{}
	}
	// The marks of texts that were cut are taken out: an ellipsis says that
	// something is missing.
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return item.Body{}
	}
	v = d.clean(v)
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if enc.Encode(v) != nil {
		return item.Body{}
	}
	return d.l.Body(strings.TrimSuffix(b.String(), "\n"))
}

func (d *decoder) clean(v any) any {
	switch v := v.(type) {
	case string:
		if s := d.l.Text(v); s != v {
			return s + "…"
		}
	case []any:
		for i := range v {
			v[i] = d.clean(v[i])
		}
	case map[string]any:
		for _, k := range slices.Collect(maps.Keys(v)) {
			v[k] = d.clean(v[k])
		}
	}
	return v
}

// proposed makes a diff of what a call is going to change.
func (d *decoder) proposed(name string, in *input) item.Diff {
	out := item.Diff{Path: item.Line(d.l.Text(in.FilePath), 4096), Op: "update"}
	edits := in.Edits
	switch name {
	case "Write":
		out.Op = "add"
		edits = []edit{{New: in.Content}}
	case "Edit":
		edits = []edit{{in.Old, in.New}}
	}
	for _, e := range edits {
		var h item.Hunk
		out.Cut = out.Cut || d.l.Text(e.Old) != e.Old || d.l.Text(e.New) != e.New
		for _, line := range lines(d.l.Text(e.Old)) {
			h.Lines = append(h.Lines, "-"+line)
			out.Removed++
		}
		for _, line := range lines(d.l.Text(e.New)) {
			h.Lines = append(h.Lines, "+"+line)
			out.Added++
		}
		if len(h.Lines) > 0 {
			out.Hunks = append(out.Hunks, h)
		}
	}
	item.TrimDiff(&out)
	return out
}

func lines(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(s, "\n"), "\n")
}

// structured is what the tool notes about a result beside what the model sees.
type structured struct {
	Stdout      string `json:"stdout"`
	Stderr      string `json:"stderr"`
	Interrupted bool   `json:"interrupted"`
	FilePath    string `json:"filePath"`
	Kind        string `json:"type"`
	Patch       []struct {
		OldStart int      `json:"oldStart"`
		NewStart int      `json:"newStart"`
		Lines    []string `json:"lines"`
	} `json:"structuredPatch"`
	AgentID  string                     `json:"agentId"`
	Total    float64                    `json:"totalDurationMs"`
	Duration float64                    `json:"durationMs"`
	Answers  map[string]json.RawMessage `json:"answers"`
}

var exitCode = regexp.MustCompile(`^(?:Error: )?Exit code (\d{1,3})\b`)

// Texts by which Claude Code tells the model that the person said no.
var refusals = []string{
	"The user doesn't want to proceed with this tool use",
	"The user doesn't want to take this action right now",
	"The tool use was rejected",
	"Permission to use ",
}

// result decodes what a tool answered.
func (d *decoder) result(b block, single bool) {
	text, images := d.output(b.Content)
	var s structured
	if single && len(d.e.ToolResult) > 0 && d.e.ToolResult[0] == '{' {
		loose(d.e.ToolResult, &s)
	}
	if strings.TrimSpace(d.l.Text(text)) == "" && s.Stdout+s.Stderr != "" {
		text = strings.TrimSpace(s.Stdout + "\n" + s.Stderr)
		if s.Stderr == "" {
			text = s.Stdout
		}
	}
	body := d.l.Body(text)
	status := item.OK
	switch {
	case strings.HasPrefix(body.Text, "[Request interrupted by user") || s.Interrupted:
		status = item.Cancelled
	case b.IsError && rejected(body.Text):
		status = item.Rejected
	case b.IsError:
		status = item.Failed
	}
	took := int64(s.Total)
	if took == 0 {
		took = int64(s.Duration)
	}
	answers := map[string]string{}
	for q, a := range s.Answers {
		answers[d.l.Text(q)] = answerText(d.l, a)
	}
	var diff []item.Diff
	if len(s.Patch) > 0 {
		diff = []item.Diff{d.applied(&s)}
	}
	agent := ""
	if validAgent.MatchString(s.AgentID) {
		agent = s.AgentID
	}
	d.rec.Results = append(d.rec.Results, jsonl.Result{Call: b.Result, Join: func(it *item.Item) {
		it.Images = images
		for i := range it.Questions {
			q := &it.Questions[i]
			if q.Answer = answers[q.Text]; q.Answer == "" && len(answers) == 0 && status == item.OK {
				q.Answer = item.Line(body.Text, 2000)
			}
		}
		t := it.Tool
		if t == nil {
			return
		}
		t.Status, t.Output, t.Took = status, body, max(0, took)
		if len(diff) > 0 {
			if len(t.Diff) > 0 {
				diff[0].Op = t.Diff[0].Op
			}
			t.Diff = diff
		}
		if agent != "" {
			t.Agent = agent
		}
		if m := exitCode.FindStringSubmatch(body.Text); m != nil && status == item.Failed {
			n, _ := strconv.Atoi(m[1])
			t.ExitCode = &n
		}
	}})
}

func rejected(text string) bool {
	return slices.ContainsFunc(refusals, func(r string) bool { return strings.HasPrefix(text, r) })
}

func answerText(l *jsonl.Line, raw json.RawMessage) string {
	var one string
	if loose(raw, &one) && one != "" {
		return l.Text(one)
	}
	var many []string
	loose(raw, &many)
	for i := range many {
		many[i] = l.Text(many[i])
	}
	return strings.Join(many, ", ")
}

// output joins the texts of a result and collects its pictures.
func (d *decoder) output(raw json.RawMessage) (string, []item.Image) {
	var texts []string
	var images []item.Image
	for _, b := range blocks(raw) {
		switch b.Type {
		case "text":
			texts = append(texts, b.Text)
		case "image", "document":
			images = append(images, d.image(b))
		}
	}
	// A text that was cut must stand alone to be fetched whole: others after it
	// would hide where it goes on.
	for _, t := range texts[:max(0, len(texts)-1)] {
		if d.l.Text(t) != t {
			return t, images
		}
	}
	return strings.Join(texts, "\n"), images
}

// applied makes a diff of what a call has changed.
func (d *decoder) applied(s *structured) item.Diff {
	out := item.Diff{Path: item.Line(d.l.Text(s.FilePath), 4096), Op: "update"}
	for _, p := range s.Patch {
		h := item.Hunk{OldStart: p.OldStart, NewStart: p.NewStart}
		for _, line := range p.Lines {
			text := d.l.Text(line)
			out.Cut = out.Cut || text != line
			switch {
			case strings.HasPrefix(text, "+"):
				out.Added++
			case strings.HasPrefix(text, "-"):
				out.Removed++
			}
			h.Lines = append(h.Lines, text)
		}
		out.Hunks = append(out.Hunks, h)
	}
	item.TrimDiff(&out)
	return out
}
