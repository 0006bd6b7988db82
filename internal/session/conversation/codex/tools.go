package codex

import (
	"encoding/json"
	"regexp"
	"strconv"
	"strings"

	"holdfast/internal/session/conversation/item"
	"holdfast/internal/session/conversation/jsonl"
)

// maxTitle bounds the line that says what a call is about, in bytes.
const maxTitle = 200

// arguments is what the tools that come with Codex are called with.
type arguments struct {
	Cmd       json.RawMessage `json:"cmd"`
	Command   json.RawMessage `json:"command"`
	Input     string          `json:"input"`
	Path      string          `json:"path"`
	Query     string          `json:"query"`
	Message   string          `json:"message"`
	Chars     string          `json:"chars"`
	Prompt    string          `json:"prompt"`
	Task      string          `json:"task_name"`
	Plan      []step          `json:"plan"`
	Questions []struct {
		Header   string `json:"header"`
		Question string `json:"question"`
		Options  []struct {
			Label       string `json:"label"`
			Description string `json:"description"`
		} `json:"options"`
	} `json:"questions"`
}

type step struct {
	Step   string `json:"step"`
	Status string `json:"status"`
}

func (d *decoder) add(it item.Item) { d.rec.Items = append(d.rec.Items, it) }

// call decodes a call with arguments that are JSON in a string.
func (d *decoder) call(call, name, args string) {
	if call == "" {
		call = d.id("")
	}
	var a arguments
	if !loose([]byte(args), &a) {
		// They were cut: show what there is.
		d.add(item.Item{ID: call, Kind: item.ToolCall, Tool: &item.Tool{Name: item.Line(name, 80), Title: item.Line(d.l.Text(args), maxTitle), Status: item.Running, Input: d.l.Body(args)}})
		return
	}
	tool := &item.Tool{Name: item.Line(name, 80), Status: item.Running}
	it := item.Item{ID: call, Kind: item.ToolCall, Tool: tool}
	switch {
	case len(a.Cmd) > 0:
		d.shell(call, name, a.Cmd)
		return
	case len(a.Command) > 0:
		d.shell(call, name, a.Command)
		return
	case name == "apply_patch":
		d.custom(call, name, a.Input)
		return
	case name == "update_plan":
		done := 0
		var b strings.Builder
		for _, s := range a.Plan {
			box := "[ ] "
			switch s.Status {
			case "completed":
				box = "[x] "
				done++
			case "in_progress":
				box = "[>] "
			}
			b.WriteString(box + d.l.Text(s.Step) + "\n")
		}
		tool.Title = strconv.Itoa(done) + " of " + strconv.Itoa(len(a.Plan)) + " done"
		tool.Input = d.l.Body(strings.TrimSuffix(b.String(), "\n"))
	case name == "request_user_input":
		it.Kind, it.Tool = item.Ask, nil
		for _, q := range a.Questions {
			out := item.Question{Header: item.Line(q.Header, maxTitle), Text: d.l.Text(q.Question)}
			for _, o := range q.Options {
				out.Options = append(out.Options, item.Choice{Label: d.l.Text(o.Label), Detail: d.l.Text(o.Description)})
			}
			it.Questions = append(it.Questions, out)
		}
		if len(it.Questions) == 0 {
			it.Questions = []item.Question{{}}
		}
	case strings.HasPrefix(name, "spawn_agent"):
		it.Kind = item.Subagent
		for _, t := range []string{a.Task, a.Message, a.Prompt} {
			if tool.Title == "" {
				tool.Title = item.Line(d.l.Text(t), maxTitle)
			}
		}
		tool.Input = d.l.Body(a.Message)
	default:
		for _, t := range []string{a.Path, a.Query, a.Chars, a.Message, a.Prompt} {
			if tool.Title == "" {
				tool.Title = item.Line(d.l.Text(t), maxTitle)
			}
		}
		if args = strings.TrimSpace(args); args != "{}" {
			tool.Input = d.l.Body(args)
		}
	}
	d.add(it)
}

// shell decodes a command, which is a string or the arguments of a process.
func (d *decoder) shell(call, name string, raw json.RawMessage) {
	var text string
	var argv []string
	if !loose(raw, &text) || text == "" {
		loose(raw, &argv)
		text = commandLine(argv)
	}
	if call == "" {
		call = d.id("")
	}
	tool := &item.Tool{Name: item.Line(name, 80), Title: item.Line(d.l.Text(text), maxTitle), Status: item.Running, Input: d.l.Body(text)}
	if i := strings.Index(text, patchBegin); i >= 0 {
		tool.Diff = patch(d.l, text[i:])
		tool.Name, tool.Title, tool.Input = "apply_patch", paths(tool.Diff), item.Body{}
	}
	d.add(item.Item{ID: call, Kind: item.ToolCall, Tool: tool})
}

// commandLine shows argv as a person would write it: the script alone where it
// is one for a shell.
func commandLine(argv []string) string {
	if len(argv) == 3 && strings.HasPrefix(argv[1], "-") && strings.HasSuffix(argv[1], "c") {
		return argv[2]
	}
	quoted := make([]string, len(argv))
	for i, a := range argv {
		quoted[i] = a
		if a == "" || strings.ContainsAny(a, " \t\n\"'$&|;<>()*?`\\") {
			quoted[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}

// custom decodes a call with a text as its input.
func (d *decoder) custom(call, name, input string) {
	if call == "" {
		call = d.id("")
	}
	tool := &item.Tool{Name: item.Line(name, 80), Status: item.Running}
	if name == "apply_patch" {
		tool.Diff = patch(d.l, input)
		tool.Title = paths(tool.Diff)
	}
	if len(tool.Diff) == 0 {
		tool.Title, tool.Input = item.Line(d.l.Text(input), maxTitle), d.l.Body(input)
	}
	d.add(item.Item{ID: call, Kind: item.ToolCall, Tool: tool})
}

// Heads of outputs: newer and older versions.
var (
	head = regexp.MustCompile(`^(?:(?:Chunk ID|Wall time|Original token count|Total output lines|Exit code|Process (?:exited with code|running with session ID))[^\n]*\n)+(?:Output:\n)?`)
	code = regexp.MustCompile(`(?m)^(?:Process exited with code|Exit code:) (-?\d{1,10})$`)
	wall = regexp.MustCompile(`(?m)^Wall time: ([0-9.]{1,12}) seconds$`)
)

// output decodes what a call returned.
func (d *decoder) output(call string, raw json.RawMessage) {
	if call == "" {
		return
	}
	var text string
	var images []item.Image
	var parts []content
	var wrapped struct {
		Content string `json:"content"`
		Output  string `json:"output"`
		Success *bool  `json:"success"`
		Meta    struct {
			ExitCode *int    `json:"exit_code"`
			Seconds  float64 `json:"duration_seconds"`
		} `json:"metadata"`
	}
	switch {
	case len(raw) > 0 && raw[0] == '[':
		loose(raw, &parts)
		text, images = d.gather(parts)
	case len(raw) > 0 && raw[0] == '{':
		loose(raw, &wrapped)
		text = wrapped.Content + wrapped.Output
	default:
		loose(raw, &text)
		// Older versions put JSON into the string.
		if strings.HasPrefix(text, `{"output":`) && loose([]byte(text), &wrapped) {
			text = wrapped.Output
		}
	}
	r := outcome{status: item.OK, images: images, exit: wrapped.Meta.ExitCode, took: int64(wrapped.Meta.Seconds * 1000)}
	if m := head.FindString(text); m != "" {
		if c := code.FindStringSubmatch(m); c != nil {
			if n, err := strconv.Atoi(c[1]); err == nil {
				r.exit = &n
			}
		}
		if w := wall.FindStringSubmatch(m); w != nil {
			seconds, _ := strconv.ParseFloat(w[1], 64)
			r.took = int64(seconds * 1000)
		}
		text = text[len(m):]
	}
	low := strings.ToLower(item.CutRunes(d.l.Text(text), 200))
	switch {
	case r.exit != nil && *r.exit != 0, wrapped.Success != nil && !*wrapped.Success:
		r.status = item.Failed
	case strings.Contains(low, "rejected by user"), strings.Contains(low, "rejected by the user"), strings.Contains(low, "denied by user"):
		r.status = item.Rejected
	case strings.HasPrefix(low, "aborted by user"), strings.HasPrefix(low, "aborted"):
		r.status = item.Cancelled
	case strings.HasPrefix(low, "failed "), strings.HasPrefix(low, "unsupported "), strings.HasPrefix(low, "execution error"):
		r.status = item.Failed
	}
	r.body = d.l.Body(text)
	d.result(call, r)
}

// ended is what an event tells about a call that ended.
type ended struct {
	Call     string          `json:"call_id"`
	Out      string          `json:"aggregated_output"`
	Stdout   string          `json:"stdout"`
	Stderr   string          `json:"stderr"`
	Exit     *int            `json:"exit_code"`
	Success  *bool           `json:"success"`
	State    string          `json:"status"`
	Duration json.RawMessage `json:"duration"`
	Result   json.RawMessage `json:"result"`
}

func (d *decoder) ended(e *ended) {
	if e.Call == "" {
		return
	}
	text := e.Out
	if text == "" {
		text = strings.TrimSuffix(e.Stdout+"\n"+e.Stderr, "\n")
		if e.Stderr == "" {
			text = e.Stdout
		}
	}
	r := outcome{status: item.OK, exit: e.Exit}
	if text == "" && len(e.Result) > 0 {
		text, r.images = d.mcp(e.Result)
	}
	var took struct {
		Secs  int64 `json:"secs"`
		Nanos int64 `json:"nanos"`
	}
	if loose(e.Duration, &took) {
		r.took = took.Secs*1000 + took.Nanos/1e6
	}
	switch {
	case e.State == "declined":
		r.status = item.Rejected
	case e.State == "failed", e.Exit != nil && *e.Exit != 0, e.Success != nil && !*e.Success:
		r.status = item.Failed
	case e.State == "in_progress", e.State == "inProgress":
		return
	}
	r.body = d.l.Body(text)
	d.result(e.Call, r)
}

// mcp reads the result of a tool of another server.
func (d *decoder) mcp(raw json.RawMessage) (string, []item.Image) {
	var res struct {
		OK *struct {
			Content []content `json:"content"`
		} `json:"Ok"`
		Err     string    `json:"Err"`
		Content []content `json:"content"`
	}
	loose(raw, &res)
	if res.OK != nil {
		res.Content = res.OK.Content
	}
	if res.Err != "" {
		return res.Err, nil
	}
	return d.gather(res.Content)
}

// outcome is how a call ended.
type outcome struct {
	status item.Status
	body   item.Body
	images []item.Image
	exit   *int
	took   int64
}

var agentID = regexp.MustCompile(`"agent_id":\s*"([0-9a-f-]{36})"`)

func (d *decoder) result(call string, r outcome) {
	d.rec.Results = append(d.rec.Results, jsonl.Result{Call: call, Join: func(it *item.Item) {
		if len(r.images) > 0 {
			it.Images = r.images
		}
		for i := range it.Questions {
			if r.status == item.OK {
				it.Questions[i].Answer = item.Line(r.body.Text, 2000)
			}
		}
		t := it.Tool
		if t == nil {
			return
		}
		t.Status, t.Output, t.ExitCode, t.Took = r.status, r.body, r.exit, r.took
		if it.Kind == item.Subagent {
			if m := agentID.FindStringSubmatch(r.body.Text); m != nil {
				t.Agent = m[1]
			}
		}
	}})
}
