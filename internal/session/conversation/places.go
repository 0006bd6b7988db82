package conversation

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"holdfast/internal/session/conversation/claude"
	"holdfast/internal/session/conversation/codex"
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

// codexPlace is Codex's home: sessions by day, and those put away.
type codexPlace struct{ home string }

func (p codexPlace) owns(path string) bool {
	return within(p.home, path) && strings.HasPrefix(filepath.Base(path), "rollout-") && strings.HasSuffix(path, ".jsonl")
}

func (p codexPlace) byID(id string) (Ref, bool) {
	for _, dir := range []string{"sessions", "archived_sessions"} {
		if path, ok := codex.Find(filepath.Join(p.home, dir), id); ok {
			return Ref{Tool: "codex", Path: path, SessionID: id}, true
		}
	}
	return Ref{}, false
}

// maxDays is how many days of Codex's sessions are looked into: a session that
// goes on keeps its file in the day on which it began.
const maxDays = 400

func (p codexPlace) since(dir string, start time.Time) ([]Ref, error) {
	root := filepath.Join(p.home, "sessions")
	var out []Ref
	days := 0
	for _, year := range newestFirst(root) {
		for _, month := range newestFirst(year) {
			for _, day := range newestFirst(month) {
				if days++; days > maxDays {
					return out, nil
				}
				files, err := recent(day, start, func(name string) bool {
					return strings.HasPrefix(name, "rollout-") && strings.HasSuffix(name, ".jsonl")
				})
				if err != nil {
					continue
				}
				for _, f := range files {
					if len(out) == maxCandidates {
						return out, nil
					}
					if cwd, _, sub, err := codex.About(f.path); err == nil && !sub && sameDir(cwd, dir) {
						out = append(out, Ref{Tool: "codex", Path: f.path, SessionID: codex.SessionID(f.path)})
					}
				}
			}
		}
	}
	return out, nil
}

// newestFirst lists the directories in a directory, by name from the last.
func newestFirst(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range slices.Backward(entries) {
		if e.IsDir() {
			out = append(out, filepath.Join(dir, e.Name()))
		}
	}
	return out
}
