// Package hooks lets coding tools tell what they do: it puts a hook of ours into
// the settings of Claude Code, Codex and Gemini CLI beside whatever is there,
// takes it out again, keeps what the hook is told in a spool of the state
// directory, and reads that spool.
//
// It decides nothing for a tool: a hook answers no question and prints nothing.
// What a caller will get wrong: no tool tells when a question was answered on
// the screen, so an event that says "waiting" holds only as long as the screen
// agrees; and a tool that was started by another one inherits its pane, so an
// event belongs to a pane only together with the process.
package hooks

import (
	"encoding/json"
	"strings"
	"time"

	"holdfast/internal/session"
)

// Tools are the tools that have hooks.
func Tools() []string { return []string{"claude", "codex", "gemini"} }

// An Event is the last thing that a tool told.
type Event struct {
	Tool       string        `json:"tool"`
	Name       string        `json:"name"`             // the tool's name of the event
	Socket     string        `json:"socket,omitempty"` // of the tmux server
	Pane       string        `json:"pane,omitempty"`   // "%12"
	SessionID  string        `json:"sessionId,omitempty"`
	Transcript string        `json:"transcript,omitempty"`
	Dir        string        `json:"dir,omitempty"`
	PIDs       []int         `json:"pids,omitempty"` // the hook's ancestors, nearest first: the tool is one of them
	State      session.State `json:"state"`
	Kind       session.Kind  `json:"kind,omitempty"`
	Detail     string        `json:"detail,omitempty"` // for evidence: the event and the name of a tool's tool, never its input
	Tasks      int           `json:"tasks,omitempty"`  // what goes on beside the turn
	At         time.Time     `json:"at"`
}

// Limits of what a tool hands in.
const (
	maxInput = 16 << 20 // bytes of an event; the input of a tool's tool is a part of it and may be a file
	maxWord  = 128      // bytes of a name
	maxPath  = 4096     // bytes of a path
	maxTasks = 1000
)

// input is the part of an event that is looked at. Claude Code, Codex and Gemini
// CLI share the names of the common fields.
type input struct {
	Event            string            `json:"hook_event_name"`
	SessionID        string            `json:"session_id"`
	Transcript       string            `json:"transcript_path"`
	Cwd              string            `json:"cwd"`
	AgentID          string            `json:"agent_id"` // in a sub-agent
	ToolName         string            `json:"tool_name"`
	NotificationType string            `json:"notification_type"`
	Source           string            `json:"source"`
	Reason           string            `json:"reason"`
	Error            json.RawMessage   `json:"error"`
	IsInterrupt      bool              `json:"is_interrupt"`
	BackgroundTasks  []json.RawMessage `json:"background_tasks"`
}

// Parse reads what a tool hands to its hook. It says false where the event says
// nothing about the state of the session, or cannot be read.
func Parse(tool string, b []byte, at time.Time) (Event, bool) {
	if len(b) > maxInput {
		return Event{}, false
	}
	var in input
	if err := json.Unmarshal(b, &in); err != nil {
		if _, wrong := err.(*json.UnmarshalTypeError); !wrong {
			return Event{}, false
		}
	}
	e := Event{
		Tool: tool, Name: word(in.Event), SessionID: word(in.SessionID), Transcript: path(in.Transcript), Dir: path(in.Cwd), At: at,
	}
	e.State, e.Kind, e.Detail = in.meaning(tool)
	if e.State == "" || e.Name == "" {
		return Event{}, false
	}
	if e.Detail == "" {
		e.Detail = e.Name
	}
	if e.State == session.Done {
		if e.Tasks = min(len(in.BackgroundTasks), maxTasks); e.Tasks > 0 {
			e.State, e.Detail = session.Background, e.Name+", and work goes on in the background"
		}
	}
	return e, true
}

// meaning is the state after an event.
func (in input) meaning(tool string) (session.State, session.Kind, string) {
	if tool == "gemini" {
		switch in.Event {
		case "BeforeAgent", "BeforeTool", "AfterTool":
			return session.Working, "", ""
		case "AfterAgent":
			return session.Done, "", ""
		case "SessionStart":
			return session.Idle, "", ""
		case "SessionEnd":
			return in.end()
		case "Notification":
			if in.NotificationType == "ToolPermission" {
				return session.Waiting, session.Permission, "ToolPermission"
			}
		}
		return "", "", ""
	}
	switch in.Event {
	case "PermissionRequest":
		return session.Waiting, session.Permission, about("PermissionRequest", in.ToolName)
	case "Elicitation":
		return session.Waiting, session.Question, ""
	case "Notification":
		switch in.NotificationType {
		case "permission_prompt", "worker_permission_prompt":
			return session.Waiting, session.Permission, in.NotificationType
		case "elicitation_dialog", "elicitation_url_dialog", "agent_needs_input":
			return session.Waiting, session.Question, in.NotificationType
		}
		// idle_prompt is a clock, not a state.
		return "", "", ""
	}
	// A sub-agent at work says nothing about the turn of the session.
	if in.AgentID != "" {
		return "", "", ""
	}
	switch in.Event {
	case "SessionStart":
		if in.Source == "compact" {
			return "", "", ""
		}
		return session.Idle, "", about("SessionStart", word(in.Source))
	case "UserPromptSubmit", "PostToolUse", "PreCompact", "ElicitationResult":
		return session.Working, "", about(in.Event, in.ToolName)
	case "PreToolUse":
		switch in.ToolName {
		case "AskUserQuestion":
			return session.Waiting, session.Question, about("PreToolUse", in.ToolName)
		case "ExitPlanMode":
			return session.Waiting, session.Permission, about("PreToolUse", in.ToolName)
		}
		return session.Working, "", about("PreToolUse", in.ToolName)
	case "PostToolUseFailure":
		if in.IsInterrupt {
			return session.Idle, "", "interrupted"
		}
		return session.Working, "", about("PostToolUseFailure", in.ToolName)
	case "Stop":
		return session.Done, "", ""
	case "StopFailure":
		var reason string
		_ = json.Unmarshal(in.Error, &reason) // another shape is another reason
		switch reason {
		case "rate_limit", "authentication_failed", "oauth_org_not_allowed", "billing_error":
			return session.Waiting, session.Limit, reason
		}
		return session.Idle, "", about("StopFailure", word(reason))
	case "SessionEnd":
		return in.end()
	}
	return "", "", ""
}

// end is the end of a session; after "clear" or "resume" another begins in the
// same process.
func (in input) end() (session.State, session.Kind, string) {
	if in.Reason == "clear" || in.Reason == "resume" {
		return "", "", ""
	}
	return session.Exited, "", about("SessionEnd", word(in.Reason))
}

func about(event, what string) string {
	if what = word(what); what == "" {
		return event
	}
	return event + " of " + what
}

// word is a name without control characters, cut.
func word(s string) string { return clean(s, maxWord) }

// path is a path, or nothing where it is too long to be one.
func path(s string) string {
	if len(s) > maxPath {
		return ""
	}
	return clean(s, maxPath)
}

func clean(s string, n int) string {
	s = strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return -1
		}
		return r
	}, s)
	if len(s) > n {
		s = strings.ToValidUTF8(s[:n], "")
	}
	return s
}
