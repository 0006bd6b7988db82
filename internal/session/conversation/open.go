package conversation

import (
	"fmt"

	"holdfast/internal/session/conversation/claude"
	"holdfast/internal/session/conversation/codex"
	"holdfast/internal/session/conversation/item"
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
	default:
		return nil, fmt.Errorf("open the conversation of %q: %w", ref.Tool, ErrTool)
	}
	if err != nil {
		return nil, fmt.Errorf("open the conversation of %s: %w", ref.Tool, err)
	}
	return &Log{ref: ref, src: src}, nil
}
