package conversation

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/session/toolfile"
)

const (
	// maxEntries bounds what is read of one directory: a machine that has kept
	// transcripts for years holds some thousands.
	maxEntries = 50_000
	// maxCandidates bounds the transcripts whose beginnings are read.
	maxCandidates = 64
	// early is how much older than its process a transcript may seem: clocks of
	// file systems are coarse, and start times are in hundredths of a second.
	early = 3 * time.Second
)

// validSession is what a session's name may be, since it becomes part of a path.
var validSession = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// A place is a tool's way of keeping transcripts.
type place interface {
	// owns says whether a path can be one of the tool's transcripts.
	owns(path string) bool
	// byID finds the transcript of a session.
	byID(id string) (Ref, bool)
	// since lists transcripts that were written since a time and belong to a
	// directory.
	since(dir string, start time.Time) ([]Ref, error)
}

// Locate finds the transcript of a pane: by the session's id, by the path that a
// hook told, by the files that the process holds open, else by the directory of
// the records and the times of process and file. It never chooses between two
// that fit equally well. The errors are ErrNone, ErrTool and AmbiguousError; a
// caller shows the scrollback then.
//
// A session goes on in another file after /clear, a fork and some resumes: ask
// again whenever the tool tells another id, or the process another start.
func Locate(q Query) (Ref, error) {
	p, err := placeOf(q)
	if err != nil {
		return Ref{}, fmt.Errorf("find the transcript of %q: %w", q.Tool, err)
	}
	if q.Transcript != "" && p.owns(q.Transcript) && regular(q.Transcript) {
		return Ref{Tool: q.Tool, Path: q.Transcript, SessionID: q.SessionID, How: "id"}, nil
	}
	if validSession.MatchString(q.SessionID) {
		if ref, ok := p.byID(q.SessionID); ok {
			ref.How = "id"
			return ref, nil
		}
		// The id is known and its file is not there: another file would be wrong.
		return Ref{}, fmt.Errorf("find the transcript of %s session %s: %w", q.Tool, q.SessionID, ErrNone)
	}
	if q.PID > 0 {
		if ref, ok, err := byOpenFiles(q, p); ok || err != nil {
			return ref, err
		}
	}
	if q.Dir == "" {
		return Ref{}, fmt.Errorf("find the transcript of %s: %w", q.Tool, ErrNone)
	}
	refs, err := p.since(filepath.Clean(q.Dir), q.StartedAt)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return Ref{}, fmt.Errorf("find the transcript of %s: %w", q.Tool, err)
	case len(refs) == 0:
		return Ref{}, fmt.Errorf("find the transcript of %s in %s: %w", q.Tool, q.Dir, ErrNone)
	case len(refs) > 1:
		return Ref{}, &AmbiguousError{Tool: q.Tool, Candidates: refs}
	}
	refs[0].How = "directory"
	return refs[0], nil
}

func byOpenFiles(q Query, p place) (Ref, bool, error) {
	list := q.OpenFiles
	if list == nil {
		list = openFiles
	}
	var refs []Ref
	for _, path := range list(q.PID) {
		if p.owns(path) && regular(path) && !slices.ContainsFunc(refs, func(r Ref) bool { return r.Path == path }) {
			refs = append(refs, Ref{Tool: q.Tool, Path: path, How: "open file"})
		}
	}
	switch len(refs) {
	case 0:
		return Ref{}, false, nil
	case 1:
		return refs[0], true, nil
	}
	return Ref{}, false, &AmbiguousError{Tool: q.Tool, Candidates: refs}
}

// openFiles lists the files that a process holds open, where the system tells.
func openFiles(pid int) []string {
	if runtime.GOOS != "linux" {
		return nil
	}
	dir := "/proc/" + strconv.Itoa(pid) + "/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var out []string
	for i, e := range entries {
		if i == 4096 {
			break
		}
		if path, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && filepath.IsAbs(path) {
			out = append(out, path)
		}
	}
	return out
}

func placeOf(q Query) (place, error) {
	env := q.Env
	if env == nil {
		env = func(string) string { return "" }
	}
	under := func(name string, parts ...string) (string, error) {
		if dir := env(name); filepath.IsAbs(dir) {
			return filepath.Clean(dir), nil
		}
		if q.Home == "" {
			return "", errors.New("the home directory is not known")
		}
		return filepath.Join(append([]string{q.Home}, parts...)...), nil
	}
	switch q.Tool {
	case "claude":
		root, err := under("CLAUDE_CONFIG_DIR", ".claude")
		return claudePlace{filepath.Join(root, "projects")}, err
	case "codex":
		root, err := under("CODEX_HOME", ".codex")
		return codexPlace{root}, err
	case "gemini":
		// The variable names the directory in which .gemini lies.
		home, err := under("GEMINI_CLI_HOME")
		return geminiPlace{filepath.Join(home, ".gemini")}, err
	case "opencode":
		root, err := under("XDG_DATA_HOME", ".local", "share")
		return opencodePlace{filepath.Join(root, "opencode")}, err
	case "aider":
		return aiderPlace{}, nil
	}
	return nil, ErrTool
}

func regular(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// a found file and when it was written last.
type written struct {
	path string
	at   time.Time
}

// recent lists the files of a directory whose name ok accepts and that were
// written since start, newest first.
func recent(dir string, start time.Time, ok func(name string) bool) ([]written, error) {
	f, err := toolfile.OpenDir(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []written
	for n := 0; n < maxEntries; {
		entries, err := f.ReadDir(1024)
		for _, e := range entries {
			n++
			if !ok(e.Name()) {
				continue
			}
			path := filepath.Join(dir, e.Name())
			info, err := os.Stat(path)
			if err != nil || !info.Mode().IsRegular() || info.ModTime().Before(start.Add(-early)) {
				continue
			}
			out = append(out, written{path, info.ModTime()})
		}
		if err != nil {
			break // io.EOF, or a directory that went away: what was read counts
		}
	}
	slices.SortFunc(out, func(a, b written) int { return b.at.Compare(a.at) })
	return out, nil
}

// within says whether path lies below dir.
func within(dir, path string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(rel)
}

// sameDir compares directories as the user would: links resolved.
func sameDir(a, b string) bool {
	if a == "" || b == "" {
		return false
	}
	if filepath.Clean(a) == filepath.Clean(b) {
		return true
	}
	ia, err := os.Stat(a)
	if err != nil {
		return false
	}
	ib, err := os.Stat(b)
	return err == nil && os.SameFile(ia, ib)
}

func hasExt(ext string) func(string) bool {
	return func(name string) bool { return strings.HasSuffix(name, ext) }
}
