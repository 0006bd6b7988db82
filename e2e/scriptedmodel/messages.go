package scriptedmodel

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
)

// A messagesRequest is what is looked at of a request for a message.
type messagesRequest struct {
	Model    string `json:"model"`
	Stream   bool   `json:"stream"`
	Messages []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	} `json:"messages"`
	Tools []struct {
		Name string `json:"name"`
	} `json:"tools"`
}

type contentBlock struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// prompt is the last thing that the person said, and how many answers it has had.
func (q messagesRequest) prompt() (text string, answers int) {
	for i := len(q.Messages) - 1; i >= 0; i-- {
		m := q.Messages[i]
		if m.Role == "assistant" {
			answers++
		}
		if m.Role != "user" { // "system" may stand between too
			continue
		}
		if text := spoken(m.Content); text != "" {
			return text, answers
		}
	}
	return "", answers
}

// spoken is the text of a user's message without what the tool added to it.
func spoken(content json.RawMessage) string {
	var plain string
	if json.Unmarshal(content, &plain) == nil {
		return own(plain)
	}
	var blocks []contentBlock
	if json.Unmarshal(content, &blocks) != nil {
		return ""
	}
	var parts []string
	for _, b := range blocks {
		if b.Type != "text" {
			continue
		}
		if text := own(b.Text); text != "" {
			parts = append(parts, text)
		}
	}
	return strings.Join(parts, "\n")
}

// planFile is where Claude Code says that the plan belongs.
var planFile = regexp.MustCompile(`/[^\s"'\x60\\]*/plans/[^\s"'\x60\\]+\.md`)

func (q messagesRequest) planFile() string {
	for i := len(q.Messages) - 1; i >= 0; i-- {
		if found := planFile.Find(q.Messages[i].Content); found != nil {
			return string(found)
		}
	}
	return "plan.md"
}

// own cuts reminders out of a text; what is left of a text that the tool wrote
// itself is nothing.
func own(text string) string {
	for {
		from := strings.Index(text, "<system-reminder>")
		if from < 0 {
			break
		}
		to := strings.Index(text[from:], "</system-reminder>")
		if to < 0 {
			text = text[:from]
			break
		}
		text = text[:from] + text[from+to+len("</system-reminder>"):]
	}
	return strings.TrimSpace(text)
}

func messages(w http.ResponseWriter, r *http.Request) {
	var q messagesRequest
	if !read(w, r, &q) {
		return
	}
	prompt, answers := q.prompt()
	now := step{kind: "say", arg: "A short title"}
	if len(q.Tools) > 0 {
		now = at(prompt, answers)
	}
	if now.kind == "planfile" {
		now = step{kind: "write", arg: q.planFile() + " " + now.arg, wait: now.wait}
	}
	if now.kind == "fail" {
		status, kind, message := failure(now.arg)
		writeJSON(w, status, map[string]any{"type": "error", "error": map[string]string{"type": kind, "message": message}})
		return
	}
	usage := map[string]int{"input_tokens": 10, "output_tokens": 5, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
	message := map[string]any{
		"id": next("msg_"), "type": "message", "role": "assistant", "model": q.Model, "content": []any{},
		"stop_reason": nil, "stop_sequence": nil, "usage": usage,
	}
	if !q.Stream {
		block, _, stop := anthropicBlock(now)
		if block["type"] == "text" {
			block["text"] = now.arg
		}
		message["content"], message["stop_reason"] = []any{block}, stop
		writeJSON(w, http.StatusOK, message)
		return
	}
	s := newStream(w, r)
	s.send("message_start", map[string]any{"type": "message_start", "message": message})
	if !s.pause(now.wait) {
		return
	}
	var stop string
	for i := range now.times() {
		var block, delta map[string]any
		block, delta, stop = anthropicBlock(now)
		s.send("content_block_start", map[string]any{"type": "content_block_start", "index": i, "content_block": block})
		s.send("content_block_delta", map[string]any{"type": "content_block_delta", "index": i, "delta": delta})
		s.send("content_block_stop", map[string]any{"type": "content_block_stop", "index": i})
	}
	s.send("message_delta", map[string]any{"type": "message_delta", "delta": map[string]any{"stop_reason": stop, "stop_sequence": nil}, "usage": map[string]int{"output_tokens": 5}})
	s.send("message_stop", map[string]any{"type": "message_stop"})
}

// anthropicBlock is a step as a content block, its one delta and the reason to stop.
func anthropicBlock(now step) (block, delta map[string]any, stop string) {
	name, input := anthropicTool(now)
	if name == "" {
		return map[string]any{"type": "text", "text": ""}, map[string]any{"type": "text_delta", "text": now.arg}, "end_turn"
	}
	text, err := json.Marshal(input)
	if err != nil {
		panic(err)
	}
	return map[string]any{"type": "tool_use", "id": next("toolu_"), "name": name, "input": map[string]any{}},
		map[string]any{"type": "input_json_delta", "partial_json": string(text)}, "tool_use"
}

type choice struct {
	Label       string `json:"label"`
	Description string `json:"description"`
}

type question struct {
	Question    string   `json:"question"`
	Header      string   `json:"header"`
	MultiSelect bool     `json:"multiSelect"`
	Options     []choice `json:"options"`
}

var questions = []question{
	{Question: "Which colour should the button have?", Header: "Colour", Options: []choice{
		{"Green", "The colour of the logo"}, {"Blue", "The colour of links"}, {"Grey", "No colour at all"}}},
	{Question: "Where should it stand?", Header: "Place", Options: []choice{
		{"Left", "Beside the title"}, {"Right", "At the end of the line"}}},
	{Question: "Which of these should it show?", Header: "Parts", Options: []choice{
		{"Icon", "A small picture"}, {"Text", "A word"}}},
}

// anthropicTool is a step as a call of one of Claude Code's tools.
func anthropicTool(now step) (name string, input any) {
	words := strings.SplitN(now.arg, " ", 3)
	word := func(i int) string {
		if i < len(words) {
			return words[i]
		}
		return ""
	}
	switch now.kind {
	case "bash":
		return "Bash", map[string]any{"command": now.arg, "description": "Run what the prompt says"}
	case "background":
		return "Bash", map[string]any{"command": now.arg, "description": "Go on in the background", "run_in_background": true}
	case "write":
		path, text, _ := strings.Cut(now.arg, " ")
		return "Write", map[string]any{"file_path": path, "content": strings.ReplaceAll(text, `\n`, "\n")}
	case "edit":
		return "Edit", map[string]any{"file_path": word(0), "old_string": word(1), "new_string": word(2)}
	case "read":
		return "Read", map[string]any{"file_path": now.arg}
	case "ask":
		if now.arg == "multi" {
			q := questions[2]
			q.MultiSelect = true
			return "AskUserQuestion", map[string]any{"questions": []question{q}}
		}
		n := 1
		if len(now.arg) == 1 && now.arg[0] >= '1' && now.arg[0] <= '3' {
			n = int(now.arg[0] - '0')
		}
		return "AskUserQuestion", map[string]any{"questions": questions[:n]}
	case "plan":
		return "ExitPlanMode", map[string]any{"plan": strings.ReplaceAll(now.arg, `\n`, "\n")}
	case "agent":
		return "Agent", map[string]any{"description": "Look into it", "prompt": "do: " + now.arg, "subagent_type": "general-purpose"}
	}
	return "", nil
}
