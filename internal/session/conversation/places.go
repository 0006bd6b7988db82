package conversation

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"holdfast/internal/session/conversation/claude"
)

// claudePlace is Claude Code's projects directory: one directory for each
// working directory, one file for each session.
type claudePlace struct{ root string }

func (p claudePlace) owns(path string) bool {
	return within(p.root, path) && strings.HasSuffix(path, ".jsonl") && filepath.Base(filepath.Dir(path)) != "subagents" && !strings.HasPrefix(filepath.Base(path), "agent-")
}

func (p claudePlace) byID(id string) (Ref, bool) {
	dirs, err := os.ReadDir(p.root)
	if err != nil {
		return Ref{}, false
	}
	for _, d := range dirs {
		path := filepath.Join(p.root, d.Name(), id+".jsonl")
		if regular(path) {
			return Ref{Tool: "claude", Path: path, SessionID: id}, true
		}
	}
	return Ref{}, false
}

func (p claudePlace) since(dir string, start time.Time) ([]Ref, error) {
	// The name of the directory is not unique to it, so the records decide; and
	// it can be set by the person, so all are looked at when it is not there.
	slug := strings.Map(func(r rune) rune {
		if r < 0x80 && (r >= '0' && r <= '9' || r|0x20 >= 'a' && r|0x20 <= 'z') {
			return r
		}
		return '-'
	}, dir)
	if refs, err := p.in(filepath.Join(p.root, slug), dir, start); err == nil {
		return refs, nil
	}
	dirs, err := os.ReadDir(p.root)
	if err != nil {
		return nil, err
	}
	var out []Ref
	for _, d := range dirs {
		refs, err := p.in(filepath.Join(p.root, d.Name()), dir, start)
		if err == nil {
			out = append(out, refs...)
		}
	}
	return out, nil
}

func (p claudePlace) in(projects, dir string, start time.Time) ([]Ref, error) {
	files, err := recent(projects, start, func(name string) bool {
		return strings.HasSuffix(name, ".jsonl") && !strings.HasPrefix(name, "agent-")
	})
	if err != nil {
		return nil, err
	}
	var out []Ref
	for i, f := range files {
		if i == maxCandidates {
			break
		}
		if cwd, _, err := claude.About(f.path); err == nil && sameDir(cwd, dir) {
			out = append(out, Ref{Tool: "claude", Path: f.path, SessionID: strings.TrimSuffix(filepath.Base(f.path), ".jsonl")})
		}
	}
	return out, nil
}
