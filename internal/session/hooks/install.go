package hooks

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"holdfast/internal/session/toolfile"
)

// Options of Install and Remove.
type Options struct {
	Tool    string // required: one of Tools
	Dir     string // required: the tool's directory, see ToolDir
	Program string // required by Install: the absolute path of holdfast
	State   string // required by Install: the absolute path of the state directory
}

// maxSettings bounds a settings file.
const maxSettings = 4 << 20

// A Result says what was done to which file.
type Result struct {
	Tool    string `json:"tool"`
	File    string `json:"file"`
	Changed bool   `json:"changed"`
}

// ErrNotThere says that a tool has no directory, so it was never started here.
var ErrNotThere = errors.New("the tool has no directory here")

// ToolDir is where a tool keeps its settings: what its own variable says, or its
// directory in the home directory.
func ToolDir(tool, home string, environ func(string) string) string {
	switch tool {
	case "claude":
		if dir := environ("CLAUDE_CONFIG_DIR"); dir != "" {
			return dir
		}
		return filepath.Join(home, ".claude")
	case "codex":
		if dir := environ("CODEX_HOME"); dir != "" {
			return dir
		}
		return filepath.Join(home, ".codex")
	case "gemini":
		return filepath.Join(home, ".gemini")
	}
	return ""
}

// settings are the file, the events that are asked for, and how an entry is
// written, by tool.
var settings = map[string]struct {
	file   string
	events []string
	entry  func(command string) any
}{
	"claude": {"settings.json", []string{"SessionStart", "UserPromptSubmit", "PreToolUse", "PermissionRequest", "PostToolUse",
		"PostToolUseFailure", "Notification", "Stop", "StopFailure", "SessionEnd"}, group(5)},
	"codex": {"hooks.json", []string{"SessionStart", "UserPromptSubmit", "PreToolUse", "PermissionRequest", "PostToolUse", "Stop"}, group(5)},
	"gemini": {"settings.json", []string{"SessionStart", "BeforeAgent", "BeforeTool", "AfterTool", "AfterAgent", "Notification",
		"SessionEnd"}, group(5000)},
}

type hook struct {
	Type    string `json:"type"`
	Command string `json:"command"`
	Timeout int    `json:"timeout"` // seconds; milliseconds in Gemini CLI
}

func group(timeout int) func(string) any {
	return func(command string) any {
		return struct {
			Hooks []hook `json:"hooks"`
		}{[]hook{{"command", command, timeout}}}
	}
}

// command is what a tool runs. It succeeds and says nothing whatever happens: a
// tool would show an error of a hook at every step, also once this program is
// gone. The comment at its end tells it from the hooks of others.
func command(o Options) string {
	return fmt.Sprintf("%s hooks run %s --state %s >/dev/null 2>&1 || true # holdfast", quote(o.Program), o.Tool, quote(o.State))
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

var own = regexp.MustCompile(`hooks run [a-z]+ .*# holdfast$`)

func ours(command string) bool { return own.MatchString(command) }

// Install puts our hook beside those that are in the tool's settings. Doing it
// again changes nothing; where this program or the state directory moved the old
// hook is replaced. Error: ErrNotThere, or what is wrong with the file, which is
// then left as it is.
func Install(o Options) (Result, error) {
	switch {
	case !filepath.IsAbs(o.Program) || !filepath.IsAbs(o.State):
		return Result{}, fmt.Errorf("install hooks: program %q and state directory %q must be absolute", o.Program, o.State)
	case strings.ContainsAny(o.Program+o.State, "\n\r\x00"):
		return Result{}, errors.New("install hooks: a path holds a line break")
	}
	return change(o, func(b []byte) ([]byte, error) {
		s := settings[o.Tool]
		if complete(b, s.events, command(o), ours) {
			return b, nil
		}
		text, err := encode(s.entry(command(o)))
		if err != nil {
			return nil, err
		}
		bare, err := take(b, ours)
		if err != nil {
			return nil, err
		}
		return add(bare, s.events, text)
	})
}

func encode(v any) (string, error) {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return strings.TrimSpace(b.String()), err
}

// Remove takes our hooks out of the tool's settings and leaves the rest as it
// is. Without a settings file there is nothing to do.
func Remove(o Options) (Result, error) {
	return change(o, func(b []byte) ([]byte, error) { return take(b, ours) })
}

// change edits a tool's settings.
func change(o Options, edit func([]byte) ([]byte, error)) (Result, error) {
	s, ok := settings[o.Tool]
	if !ok {
		return Result{}, fmt.Errorf("change the hooks of %q: hooks are known of %s", o.Tool, strings.Join(Tools(), ", "))
	}
	if info, err := os.Stat(o.Dir); errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() {
		return Result{}, fmt.Errorf("change the hooks of %s in %s: %w", o.Tool, o.Dir, ErrNotThere)
	} else if err != nil {
		return Result{}, fmt.Errorf("change the hooks of %s: %w", o.Tool, err)
	}
	path := filepath.Join(o.Dir, s.file)
	r := Result{Tool: o.Tool, File: path}
	// People keep settings elsewhere and link to them: the link stays one.
	target, err := filepath.EvalSymlinks(path)
	missing := errors.Is(err, fs.ErrNotExist)
	if missing {
		if _, err := os.Lstat(path); err == nil {
			return r, fmt.Errorf("change %s: it is a link to a file that is not there", path)
		}
		target = path
	} else if err != nil {
		return r, fmt.Errorf("change %s: %w", path, err)
	}
	var b []byte
	mode := fs.FileMode(0o600)
	if !missing {
		info, err := os.Stat(target)
		if err == nil && !info.Mode().IsRegular() {
			err = errors.New("it is no regular file")
		}
		if err == nil {
			mode = info.Mode().Perm()
			b, err = readBounded(target)
		}
		if err != nil {
			return r, fmt.Errorf("change %s: %w", path, err)
		}
	}
	out := []byte("{}\n")
	if len(b) > 0 || !missing {
		out = b
	}
	out, err = edit(out)
	if err != nil {
		return r, fmt.Errorf("change %s: it was left as it is: %w", path, err)
	}
	if missing && strings.TrimSpace(string(out)) == "{}" || !missing && string(out) == string(b) {
		return r, nil
	}
	if !json.Valid(out) {
		return r, fmt.Errorf("change %s: it was left as it is: the result would not be JSON", path)
	}
	// Somebody may have written in between; a tool does when it is asked to.
	if now, err := readBounded(target); !missing && (err != nil || string(now) != string(b)) {
		return r, fmt.Errorf("change %s: another program changed it at the same moment", path)
	}
	if err := replace(target, out, mode); err != nil {
		return r, fmt.Errorf("change %s: %w", path, err)
	}
	r.Changed = true
	return r, nil
}

func readBounded(path string) ([]byte, error) { return toolfile.Read(path, maxSettings) }
