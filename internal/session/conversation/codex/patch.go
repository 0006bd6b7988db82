package codex

import (
	"strings"

	"holdfast/internal/session/conversation/item"
	"holdfast/internal/session/conversation/jsonl"
)

const patchBegin = "*** Begin Patch"

// patch reads the patch language of the apply_patch tool.
func patch(l *jsonl.Line, text string) []item.Diff {
	whole := l.Text(text)
	var out []item.Diff
	var file *item.Diff
	start := func(path, op string) {
		out = append(out, item.Diff{Path: item.Line(path, 4096), Op: op})
		file = &out[len(out)-1]
	}
	inside := false
	for line := range strings.SplitSeq(whole, "\n") {
		line = strings.TrimSuffix(line, "\r")
		if rest, ok := strings.CutPrefix(line, "*** "); ok {
			op, path, _ := strings.Cut(rest, ": ")
			switch op {
			case "Begin Patch":
				inside = true
			case "End Patch":
				inside = false
			case "Add File":
				start(path, "add")
			case "Update File":
				start(path, "update")
			case "Delete File":
				start(path, "delete")
			case "Move to":
				if file != nil {
					file.Op, file.To = "move", item.Line(path, 4096)
				}
			}
			continue
		}
		if !inside || file == nil {
			continue
		}
		if strings.HasPrefix(line, "@@") {
			file.Hunks = append(file.Hunks, item.Hunk{})
			continue
		}
		if line == "" {
			line = " "
		}
		switch line[0] {
		case '+':
			file.Added++
		case '-':
			file.Removed++
		case ' ':
		default:
			continue
		}
		if len(file.Hunks) == 0 {
			file.Hunks = append(file.Hunks, item.Hunk{})
		}
		h := &file.Hunks[len(file.Hunks)-1]
		h.Lines = append(h.Lines, line)
	}
	for i := range out {
		item.TrimDiff(&out[i])
	}
	if file != nil && whole != text {
		out[len(out)-1].Cut = true
	}
	return out
}

func paths(diffs []item.Diff) string {
	names := make([]string, len(diffs))
	for i, d := range diffs {
		names[i] = d.Path
	}
	return item.Line(strings.Join(names, ", "), maxTitle)
}
