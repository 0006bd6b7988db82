package codex

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"regexp"
	"strings"

	"holdfast/internal/session/conversation/item"
	"holdfast/internal/session/conversation/jsonl"
)

// Of records that say the same the event is shown, else the item, else what the
// model's interface had.
const (
	rankEvent = iota
	rankItem
	rankResponse
)

// A decoder turns one record into items.
type decoder struct {
	l   *jsonl.Line
	rec *jsonl.Record
}

func (d *decoder) id(given string) string {
	if given != "" && len(given) <= 128 {
		return given
	}
	return fmt.Sprintf("@%d", d.l.Start)
}

// twin marks the record as one of several that say text.
func (d *decoder) twin(kind item.Kind, text string, rank int) {
	h := fnv.New64a()
	h.Write([]byte(strings.TrimSpace(d.l.Text(text))))
	d.rec.Twin, d.rec.Rank = fmt.Sprintf("%s.%x", kind, h.Sum64()), rank
}

// say adds a text that may stand elsewhere too.
func (d *decoder) say(kind item.Kind, id, text string, images []item.Image, rank int) {
	if strings.TrimSpace(d.l.Text(text)) == "" && len(images) == 0 {
		return
	}
	d.rec.Items = append(d.rec.Items, item.Item{ID: d.id(id), Kind: kind, Body: d.l.Body(text), Images: images})
	d.twin(kind, text, rank)
	if kind == item.User {
		d.rec.Prompt = true
	}
	if kind == item.User && rank != rankResponse {
		// The oldest files have no events, nor anything that says that a turn ended.
		d.rec.Turn = jsonl.Turn{State: item.TurnWorking, Detail: "a message was sent"}
	}
}

func (d *decoder) compaction(text string, rank int) {
	body := d.l.Body(text)
	if body.Text == "" {
		body = item.NewBody("compacted")
	}
	d.rec.Items = append(d.rec.Items, item.Item{ID: d.id(""), Kind: item.Compaction, Body: body})
	d.rec.Twin, d.rec.Rank = "compaction", rank
}

// content is a piece of a message.
type content struct {
	Type  string `json:"type"`
	Text  string `json:"text"`
	Image string `json:"image_url"`
	Path  string `json:"path"`
}

// gather joins the texts of a message and collects its pictures.
func (d *decoder) gather(parts []content) (string, []item.Image) {
	var texts []string
	var images []item.Image
	for _, c := range parts {
		switch {
		case c.Image != "":
			images = append(images, d.l.Image("", c.Image))
		case c.Path != "" && c.Text == "":
			images = append(images, item.Image{Name: item.Line(d.l.Text(c.Path), 200)})
		case c.Text != "":
			texts = append(texts, c.Text)
		}
	}
	return strings.Join(texts, "\n"), images
}

// response is a record of the model's interface.
type response struct {
	Type      string          `json:"type"`
	ID        string          `json:"id"`
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	Summary   []content       `json:"summary"`
	Name      string          `json:"name"`
	Arguments string          `json:"arguments"`
	Input     string          `json:"input"`
	Call      string          `json:"call_id"`
	Output    json.RawMessage `json:"output"`
	Action    json.RawMessage `json:"action"`
	Status    string          `json:"status"`
	Meta      struct {
		Kinds []string `json:"content_item_kinds"`
	} `json:"internal_chat_message_metadata_passthrough"`
}

func (d *decoder) response(raw json.RawMessage) {
	var r response
	loose(raw, &r)
	switch r.Type {
	case "message":
		d.message(&r)
	case "reasoning":
		var texts []string
		for _, s := range r.Summary {
			texts = append(texts, s.Text)
		}
		if len(texts) > 0 {
			d.say(item.Thinking, r.ID, strings.Join(texts, "\n\n"), nil, rankResponse)
			// Events hold the pieces one by one.
			d.twin(item.Thinking, texts[0], rankResponse)
		}
	case "function_call":
		d.call(r.Call, r.Name, r.Arguments)
	case "custom_tool_call":
		d.custom(r.Call, r.Name, r.Input)
	case "local_shell_call":
		var a struct {
			Command json.RawMessage `json:"command"`
		}
		loose(r.Action, &a)
		d.shell(r.Call, "shell", a.Command)
	case "web_search_call":
		var a struct {
			Query string `json:"query"`
			URL   string `json:"url"`
		}
		loose(r.Action, &a)
		call := r.Call
		if call == "" {
			call = d.id(r.ID)
		}
		q := a.Query
		if q == "" {
			q = a.URL
		}
		d.rec.Items = append(d.rec.Items, item.Item{ID: call, Kind: item.ToolCall,
			Tool: &item.Tool{Name: "web_search", Title: item.Line(d.l.Text(q), maxTitle), Status: item.OK}})
		d.twin(item.ToolCall, "web_search "+q, rankResponse)
	case "function_call_output", "custom_tool_call_output":
		d.output(r.Call, r.Output)
	}
}

// scaffolding is what Codex puts into the person's mouth.
var scaffolding = regexp.MustCompile(`^\s*(?:# AGENTS\.md instructions|<(?:environment_context|permissions instructions|user_instructions|INSTRUCTIONS|turn_aborted|skills_instructions|skill|subagent_notification|collaboration_mode|personality_spec|model_switch|hook_prompt|apps_instructions|plugins_instructions)[ >])`)

var shellCommand = regexp.MustCompile(`(?s)<command>\s*(.*?)\s*</command>`)

func (d *decoder) message(r *response) {
	var parts []content
	if !loose(r.Content, &parts) {
		var text string
		loose(r.Content, &text)
		parts = []content{{Text: text}}
	}
	text, images := d.gather(parts)
	switch r.Role {
	case "assistant":
		d.say(item.Text, r.ID, text, images, rankResponse)
	case "user":
		for _, k := range r.Meta.Kinds {
			if k != "unknown" && !strings.HasPrefix(k, "user.") {
				return
			}
		}
		switch {
		case scaffolding.MatchString(text):
		case strings.HasPrefix(text, "<user_shell_command>"):
			if m := shellCommand.FindStringSubmatch(text); m != nil {
				d.rec.Items = append(d.rec.Items, item.Item{ID: d.id(r.ID), Kind: item.Command, Body: d.l.Body("!" + m[1])})
			}
		default:
			d.say(item.User, r.ID, text, images, rankResponse)
		}
	}
}

// event is a record of what happened.
type event struct {
	Type      string          `json:"type"`
	Message   string          `json:"message"`
	Text      string          `json:"text"`
	Images    []string        `json:"images"`
	Reason    string          `json:"reason"`
	Error     json.RawMessage `json:"error"`
	ErrorInfo json.RawMessage `json:"codex_error_info"`
	Name      string          `json:"thread_name"`
	Turns     int             `json:"num_turns"`
	Item      json.RawMessage `json:"item"`
	Review    struct {
		Explanation string `json:"overall_explanation"`
	} `json:"review_output"`
	ended
}

func (d *decoder) event(raw json.RawMessage) {
	var e event
	loose(raw, &e)
	switch e.Type {
	case "user_message":
		var images []item.Image
		for _, img := range e.Images {
			images = append(images, d.l.Image("", img))
		}
		if !scaffolding.MatchString(e.Message) {
			d.say(item.User, "", e.Message, images, rankEvent)
		}
	case "agent_message":
		d.say(item.Text, "", e.Message, nil, rankEvent)
	case "agent_reasoning":
		d.say(item.Thinking, "", e.Text, nil, rankEvent)
	case "context_compacted":
		d.compaction("", rankItem)
	case "task_started", "turn_started":
		d.rec.Turn = jsonl.Turn{State: item.TurnWorking, Detail: "a turn began"}
	case "task_complete", "turn_complete":
		d.rec.Turn = jsonl.Turn{State: item.TurnDone, Detail: "the turn ended"}
		var fault struct {
			Message string          `json:"message"`
			Info    json.RawMessage `json:"codex_error_info"`
		}
		if loose(e.Error, &fault) && fault.Message != "" {
			d.fault(fault.Message, fault.Info, rankItem)
		}
	case "error":
		d.fault(e.Message, e.ErrorInfo, rankEvent)
	case "warning", "deprecation_notice":
		d.say(item.Notice, "", e.Message, nil, rankEvent)
	case "turn_aborted":
		detail := e.Reason
		if detail == "" {
			detail = "interrupted"
		}
		d.rec.Turn = jsonl.Turn{State: item.TurnInterrupted, Detail: item.Line(detail, 80)}
		if e.Reason != "replaced" {
			d.rec.Items = append(d.rec.Items, item.Item{ID: d.id(""), Kind: item.Interrupted, Body: item.NewBody(item.Line(detail, 80))})
		}
	case "thread_rolled_back":
		d.rec.Undo = min(max(0, e.Turns), 10_000)
	case "thread_name_updated":
		d.rec.Title = jsonl.Title{Text: item.Line(d.l.Text(e.Name), 200)}
	case "exited_review_mode":
		d.say(item.Text, "", e.Review.Explanation, nil, rankEvent)
	case "exec_command_end", "patch_apply_end", "mcp_tool_call_end":
		d.ended(&e.ended)
	case "item_completed":
		d.item(e.Item)
	}
}

// stops are parts of errors that hold until the person does something.
var stops = regexp.MustCompile(`(?i)usage.?limit|unauthorized|"http_status_code":\s*(?:401|402|429)|quota|billing|log ?in again|rate.?limit`)

func (d *decoder) fault(message string, info json.RawMessage, rank int) {
	kind, state := item.Fault, item.TurnDone
	if stops.Match(info) || stops.MatchString(message) {
		kind, state = item.Limit, item.TurnLimit
	}
	d.rec.Items = append(d.rec.Items, item.Item{ID: d.id(""), Kind: kind, Body: d.l.Body(message)})
	d.twin("error", message, rank)
	d.rec.Turn = jsonl.Turn{State: state, Detail: item.Line("error: "+d.l.Text(message), 200)}
}

// completed is what newer versions write when a thing is done.
type completed struct {
	Type    string          `json:"type"`
	ID      string          `json:"id"`
	Text    string          `json:"text"`
	Query   string          `json:"query"`
	Content json.RawMessage `json:"content"`
	Summary []string        `json:"summary_text"`
	ended
}

func (d *decoder) item(raw json.RawMessage) {
	var c completed
	loose(raw, &c)
	var parts []content
	loose(c.Content, &parts)
	text, images := d.gather(parts)
	switch c.Type {
	case "UserMessage":
		if !scaffolding.MatchString(text) {
			d.say(item.User, c.ID, text, images, rankItem)
		}
	case "AgentMessage":
		d.say(item.Text, c.ID, text, images, rankItem)
	case "Plan":
		d.say(item.Text, c.ID, c.Text, nil, rankItem)
	case "Reasoning":
		if len(c.Summary) > 0 {
			d.say(item.Thinking, c.ID, strings.Join(c.Summary, "\n\n"), nil, rankItem)
			d.twin(item.Thinking, c.Summary[0], rankItem)
		}
	case "ContextCompaction":
		d.compaction("", rankResponse)
	case "WebSearch":
		d.rec.Items = append(d.rec.Items, item.Item{ID: d.id(c.ID), Kind: item.ToolCall,
			Tool: &item.Tool{Name: "web_search", Title: item.Line(d.l.Text(c.Query), maxTitle), Status: item.OK}})
		d.twin(item.ToolCall, "web_search "+c.Query, rankItem)
	case "CommandExecution", "McpToolCall", "FileChange":
		if c.ended.Call == "" {
			c.ended.Call = c.ID
		}
		d.ended(&c.ended)
	}
}
