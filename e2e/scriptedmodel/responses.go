package scriptedmodel

import (
	"encoding/json"
	"net/http"
	"strings"
)

// A responsesRequest is what is looked at of a request for a response.
type responsesRequest struct {
	Model string `json:"model"`
	Input []struct {
		Type    string          `json:"type"`
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	} `json:"input"`
	Tools []struct {
		Name string `json:"name"`
		Type string `json:"type"`
	} `json:"tools"`
}

// prompt is the last thing that the person said, and how many answers it has had:
// every call of an answer has an output of its own.
func (q responsesRequest) prompt() (text string, answers int) {
	outputs := 0
	for i := len(q.Input) - 1; i >= 0; i-- {
		item := q.Input[i]
		if strings.HasSuffix(item.Type, "_call_output") {
			outputs++
			continue
		}
		if item.Role != "user" {
			continue
		}
		var parts []contentBlock
		if json.Unmarshal(item.Content, &parts) != nil {
			continue
		}
		for _, p := range parts {
			// What begins so was added by the tool.
			if p.Text != "" && !strings.HasPrefix(p.Text, "<") && !strings.HasPrefix(p.Text, "# AGENTS") {
				return p.Text, answersOf(p.Text, outputs)
			}
		}
	}
	return "", outputs
}

// shell is a call of whichever shell tool this version of Codex has.
func (q responsesRequest) shell(command string) (name string, arguments map[string]any) {
	arguments = map[string]any{"sandbox_permissions": "require_escalated", "justification": "Do what the prompt says?"}
	for _, t := range q.Tools {
		if t.Name == "exec_command" {
			arguments["cmd"] = command
			return t.Name, arguments
		}
	}
	arguments["command"] = command
	return "shell_command", arguments
}

func responses(w http.ResponseWriter, r *http.Request) {
	var q responsesRequest
	if !read(w, r, &q) {
		return
	}
	prompt, answers := q.prompt()
	now := step{kind: "say", arg: "A short title"}
	if len(q.Tools) > 0 {
		now = at(prompt, answers)
	}
	if now.kind == "fail" {
		status, kind, message := failure(now.arg)
		writeJSON(w, status, map[string]any{"error": map[string]string{"type": kind, "code": kind, "message": message}})
		return
	}
	response := map[string]any{
		"id": next("resp_"), "object": "response", "created_at": 1, "status": "in_progress", "model": q.Model, "output": []any{},
	}
	s := newStream(w, r)
	s.send("response.created", map[string]any{"type": "response.created", "response": response})
	if !s.pause(now.wait) {
		return
	}
	var items []any
	for i := range now.times() {
		item := q.item(now)
		s.send("response.output_item.added", map[string]any{"type": "response.output_item.added", "output_index": i, "item": item})
		s.send("response.output_item.done", map[string]any{"type": "response.output_item.done", "output_index": i, "item": item})
		items = append(items, item)
	}
	response["status"], response["output"] = "completed", items
	response["usage"] = map[string]any{
		"input_tokens": 10, "output_tokens": 5, "total_tokens": 15,
		"input_tokens_details": map[string]int{"cached_tokens": 0}, "output_tokens_details": map[string]int{"reasoning_tokens": 0},
	}
	s.send("response.completed", map[string]any{"type": "response.completed", "response": response})
}

// item is a step as an item of a response.
func (q responsesRequest) item(now step) map[string]any {
	call := func(name string, arguments any) map[string]any {
		text, err := json.Marshal(arguments)
		if err != nil {
			panic(err)
		}
		return map[string]any{"type": "function_call", "id": next("fc_"), "call_id": next("call_"), "name": name, "arguments": string(text), "status": "completed"}
	}
	switch now.kind {
	case "bash", "background":
		name, arguments := q.shell(now.arg)
		return call(name, arguments)
	case "write":
		path, text, _ := strings.Cut(now.arg, " ")
		name, arguments := q.shell("apply_patch <<'EOF'\n*** Begin Patch\n*** Add File: " + path + "\n+" + strings.ReplaceAll(text, `\n`, "\n+") + "\n*** End Patch\nEOF\n")
		delete(arguments, "sandbox_permissions")
		delete(arguments, "justification")
		return call(name, arguments)
	case "ask":
		return call("request_user_input", map[string]any{"questions": []map[string]any{{
			"id": "colour", "header": questions[0].Header, "question": questions[0].Question, "options": questions[0].Options}}})
	}
	return map[string]any{
		"type": "message", "id": next("m_"), "role": "assistant", "status": "completed",
		"content": []any{map[string]any{"type": "output_text", "text": now.arg, "annotations": []any{}}},
	}
}
