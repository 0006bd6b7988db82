package conversation

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"holdfast/internal/session/conversation/aider"
	"holdfast/internal/session/conversation/claude"
	"holdfast/internal/session/conversation/codex"
	"holdfast/internal/session/conversation/gemini"
	"holdfast/internal/session/conversation/opencode"
	"holdfast/internal/session/toolfile"
)

// claudePlace is Claude Code's projects directory: one directory for each
// working directory, one file for each session.
type claudePlace struct{ root string }

func (p claudePlace) owns(path string) bool {
	return within(p.root, path) && strings.HasSuffix(path, ".jsonl") && filepath.Base(filepath.Dir(path)) != "subagents" && !strings.HasPrefix(filepath.Base(path), "agent-")
}

func (p claudePlace) byID(id string) (Ref, bool) {
	dirs, err := toolfile.Dir(p.root, maxEntries)
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
	dirs, err := toolfile.Dir(p.root, maxEntries)
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
	entries, err := toolfile.Dir(dir, maxEntries)
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

// geminiPlace is Gemini CLI's directory: chats by project, whose directory is
// named by a hash of the project's path or, in newer versions, by a short name.
type geminiPlace struct{ root string }

func chat(name string) bool {
	return strings.HasPrefix(name, "session-") && (strings.HasSuffix(name, ".json") || strings.HasSuffix(name, ".jsonl"))
}

func (p geminiPlace) owns(path string) bool {
	return within(filepath.Join(p.root, "tmp"), path) && chat(filepath.Base(path)) && filepath.Base(filepath.Dir(path)) == "chats"
}

func (p geminiPlace) byID(id string) (Ref, bool) {
	// A file's name ends with the first eight characters of the id only.
	short, _, _ := strings.Cut(id, "-")
	projects, err := toolfile.Dir(filepath.Join(p.root, "tmp"), maxEntries)
	if err != nil {
		return Ref{}, false
	}
	for _, d := range projects {
		files, err := recent(filepath.Join(p.root, "tmp", d.Name(), "chats"), time.Time{}, func(name string) bool {
			return chat(name) && strings.Contains(name, short)
		})
		if err != nil {
			continue
		}
		for i, f := range files {
			if i == maxCandidates {
				break
			}
			if session, _, _, err := gemini.About(f.path); err == nil && session == id {
				return Ref{Tool: "gemini", Path: f.path, SessionID: id}, true
			}
		}
	}
	return Ref{}, false
}

func (p geminiPlace) since(dir string, start time.Time) ([]Ref, error) {
	sum := sha256.Sum256([]byte(dir))
	names := []string{hex.EncodeToString(sum[:])}
	var known struct {
		Projects map[string]string `json:"projects"`
	}
	if b, err := toolfile.Read(filepath.Join(p.root, "projects.json"), 4<<20); err == nil && json.Unmarshal(b, &known) == nil {
		for path, name := range known.Projects {
			if filepath.IsLocal(name) && sameDir(path, dir) {
				names = append(names, name)
			}
		}
	}
	var out []Ref
	for _, name := range names {
		files, err := recent(filepath.Join(p.root, "tmp", name, "chats"), start, chat)
		if err != nil {
			continue
		}
		for _, f := range files[:min(len(files), maxCandidates)] {
			session, _, _, err := gemini.About(f.path)
			if err != nil {
				continue
			}
			out = append(out, Ref{Tool: "gemini", Path: f.path, SessionID: session})
		}
	}
	return out, nil
}

// opencodePlace is opencode's directory: a database, or a tree of files before.
type opencodePlace struct{ root string }

// stores lists what there is, the newer kind first.
func (p opencodePlace) stores() []string {
	var out []string
	if db := filepath.Join(p.root, "opencode.db"); regular(db) {
		out = append(out, db)
	}
	if info, err := os.Stat(filepath.Join(p.root, "storage", "message")); err == nil && info.IsDir() {
		out = append(out, filepath.Join(p.root, "storage"))
	}
	return out
}

// owns says no: an open database does not say which of its sessions is meant.
func (p opencodePlace) owns(string) bool { return false }

func (p opencodePlace) byID(id string) (Ref, bool) {
	for _, path := range p.stores() {
		if opencode.Has(path, id) {
			return Ref{Tool: "opencode", Path: path, SessionID: id}, true
		}
	}
	return Ref{}, false
}

func (p opencodePlace) since(dir string, start time.Time) ([]Ref, error) {
	var out []Ref
	for _, path := range p.stores() {
		sessions, err := opencode.Sessions(path, start.Add(-early))
		if err != nil {
			return nil, err
		}
		for _, s := range sessions {
			// Sessions of the tree live on in the database.
			if sameDir(s.Dir, dir) && !slices.ContainsFunc(out, func(r Ref) bool { return r.SessionID == s.ID }) {
				out = append(out, Ref{Tool: "opencode", Path: path, SessionID: s.ID})
			}
		}
	}
	return out, nil
}

// aiderPlace is the directory of the work itself.
type aiderPlace struct{}

func (aiderPlace) owns(path string) bool { return filepath.Base(path) == aider.Name }

func (aiderPlace) byID(string) (Ref, bool) { return Ref{}, false }

func (aiderPlace) since(dir string, start time.Time) ([]Ref, error) {
	path, ok := aider.Find(dir)
	if !ok {
		return nil, nil
	}
	if info, err := os.Stat(path); err != nil || info.ModTime().Before(start.Add(-early)) {
		return nil, err
	}
	return []Ref{{Tool: "aider", Path: path}}, nil
}
