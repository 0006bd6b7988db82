package conversation

import (
	"fmt"

	"holdfast/internal/session/conversation/aider"
	"holdfast/internal/session/conversation/claude"
	"holdfast/internal/session/conversation/codex"
	"holdfast/internal/session/conversation/gemini"
	"holdfast/internal/session/conversation/item"
	"holdfast/internal/session/conversation/opencode"
)

// Open opens a transcript for reading. The error is fs.ErrNotExist when it is
// not there.
func Open(ref Ref) (*Log, error) {
	var src item.Source
	var err error
	switch ref.Tool {
	case "claude":
		src, err = claude.Open(ref.Path, ref.Agent)
	case "codex":
		src, err = codex.Open(ref.Path, ref.Agent)
	case "gemini":
		src, err = gemini.Open(ref.Path)
	case "opencode":
		session := ref.SessionID
		if ref.Agent != "" {
			session = ref.Agent
		}
		src, err = opencode.Open(ref.Path, session)
	case "aider":
		src, err = aider.Open(ref.Path)
	default:
		return nil, fmt.Errorf("open the conversation of %q: %w", ref.Tool, ErrTool)
	}
	if err != nil {
		return nil, fmt.Errorf("open the conversation of %s: %w", ref.Tool, err)
	}
	return &Log{ref: ref, src: src}, nil
}
