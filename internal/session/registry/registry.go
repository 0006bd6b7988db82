// Package registry reads what Claude Code writes about its own running
// sessions: sessions/<pid>.json in its configuration directory, and the state
// of its background jobs.
//
// The files are not documented and change with versions, so every field may be
// missing and an unknown word says nothing. It never writes there and watches
// nothing. What a caller will get wrong: a file outlives a process that was
// killed, and a process id is used again, so a record counts only together with
// the start of the process; and it is written when the status changes, not while
// it lasts, so an old time in it is no sign of death.
package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/session"
	"holdfast/internal/session/toolfile"
)

// Errors of this package.
var (
	ErrNone  = errors.New("the tool has no record of this process")
	ErrStale = errors.New("the record is of another process with the same id")
)

// Limits of what is read.
const (
	maxFile = 64 << 10 // bytes; a record has about 700
	maxText = 256      // bytes of any text that is handed on
	maxJobs = 1000     // entries of the directory of jobs
)

// A Record is what the tool says about one session.
type Record struct {
	PID       int
	SessionID string
	Dir       string
	Version   string
	Kind      string // interactive or bg
	Name      string // of the conversation
	NameGiven bool   // the name is not one that the tool made up from the directory
	Tmux      string // "session:@window.%pane" as the tool saw it at its start
	Started   time.Time

	Status     string    // the tool's word: idle, busy, waiting, shell
	WaitingFor string    // the tool's words: permission prompt, input needed, dialog open
	StatusAt   time.Time // when Status was written

	State session.State // "" where Status says nothing
	Wait  session.Kind  // with State Waiting
}

// Detail is what the record says in words, for evidence.
func (r Record) Detail() string {
	if r.WaitingFor != "" {
		return r.Status + ": " + r.WaitingFor
	}
	return r.Status
}

// file is the part of sessions/<pid>.json that is looked at (2.1.150 to 2.1.332).
type file struct {
	PID             int     `json:"pid"`
	SessionID       string  `json:"sessionId"`
	Cwd             string  `json:"cwd"`
	StartedAt       float64 `json:"startedAt"` // ms
	ProcStart       text    `json:"procStart"`
	PidDomain       string  `json:"pidDomain"`
	Version         string  `json:"version"`
	Kind            string  `json:"kind"`
	Name            string  `json:"name"`
	NameSource      string  `json:"nameSource"`
	Tmux            string  `json:"tmux"`
	Status          string  `json:"status"`
	WaitingFor      string  `json:"waitingFor"`
	StatusUpdatedAt float64 `json:"statusUpdatedAt"` // ms
	UpdatedAt       float64 `json:"updatedAt"`       // ms
}

// text takes a string or a number.
type text string

func (t *text) UnmarshalJSON(b []byte) error {
	var s string
	if json.Unmarshal(b, &s) != nil {
		s = strings.Trim(string(b), `"`)
	}
	*t = text(s)
	return nil
}

// Dir is Claude Code's configuration directory: the value of CLAUDE_CONFIG_DIR
// in the tool's environment, or .claude in the home directory.
func Dir(configDir, home string) string {
	if configDir != "" {
		return configDir
	}
	return filepath.Join(home, ".claude")
}

// Path is the file of a process.
func Path(configDir string, pid int) string {
	return filepath.Join(configDir, "sessions", strconv.Itoa(pid)+".json")
}

// Claude reads the record of a running Claude Code. procStart is when the
// process started as the system says it: on Linux the 22nd field of
// /proc/PID/stat, in clock ticks since the start of the system; "" leaves it to
// this function. Errors: ErrNone where there is no record, ErrStale where it is
// of an earlier process, or what is wrong with the file.
func Claude(configDir string, pid int, procStart string) (Record, error) {
	path := Path(configDir, pid)
	b, err := read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Record{}, fmt.Errorf("read Claude Code's record of process %d: %w", pid, ErrNone)
	}
	if err != nil {
		return Record{}, fmt.Errorf("read Claude Code's record of process %d: %w", pid, err)
	}
	f, err := decode(b)
	if err != nil {
		return Record{}, fmt.Errorf("read Claude Code's record of process %d: %w", pid, err)
	}
	if f.PID != 0 && f.PID != pid {
		return Record{}, fmt.Errorf("read Claude Code's record of process %d: %w", pid, ErrStale)
	}
	if procStart == "" {
		procStart = Start(pid)
	}
	// The domain is "linux:", the computer's id, and the namespace of process ids:
	// a home directory may be on a disk that computers or containers share.
	here := machineID()
	switch {
	case f.ProcStart != "" && procStart != "" && string(f.ProcStart) != procStart,
		here != "" && strings.HasPrefix(f.PidDomain, "linux:") && !strings.Contains(f.PidDomain, here):
		return Record{}, fmt.Errorf("read Claude Code's record of process %d: %w", pid, ErrStale)
	}
	return f.record(pid), nil
}

// decode reads a file tolerantly: a field of another type than expected is left
// out, and does not spoil the others.
func decode(b []byte) (file, error) {
	var f file
	err := json.Unmarshal(b, &f)
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) && wrong.Field != "" {
		err = nil
	}
	return f, err
}

func (f file) record(pid int) Record {
	r := Record{
		PID: pid, SessionID: clean(f.SessionID), Dir: f.Cwd, Version: clean(f.Version), Kind: clean(f.Kind),
		Name: clean(f.Name), NameGiven: f.Name != "" && f.NameSource != "derived", Tmux: clean(f.Tmux),
		Started: millis(f.StartedAt), Status: clean(f.Status), WaitingFor: clean(f.WaitingFor), StatusAt: millis(f.StatusUpdatedAt),
	}
	if r.StatusAt.IsZero() {
		r.StatusAt = millis(f.UpdatedAt)
	}
	switch f.Status {
	case "idle":
		r.State = session.Idle
	case "busy":
		r.State = session.Working
	case "shell": // the turn is over, a shell that it started runs on
		r.State = session.Background
	case "waiting":
		r.State, r.Wait = session.Waiting, waitKind(f.WaitingFor)
	}
	return r
}

// waitKind reads the words of waitingFor: "permission prompt" (of commands,
// edits and plans), "input needed" (a question), "dialog open" (a menu).
func waitKind(words string) session.Kind {
	w := strings.ToLower(words)
	switch {
	case strings.Contains(w, "permission"), strings.Contains(w, "approv"), strings.Contains(w, "sandbox"):
		return session.Permission
	case strings.Contains(w, "login"), strings.Contains(w, "limit"), strings.Contains(w, "auth"):
		return session.Limit
	}
	return session.Question
}

// A Job is a session that Claude Code runs in the background.
type Job struct {
	ID        string
	SessionID string
	Dir       string
	Name      string
	Status    string // the tool's word: working, blocked, done, stopped
	State     session.State
}

// Jobs reads the background jobs of a configuration directory, at most 1,000. A
// job whose file cannot be read is left out.
func Jobs(configDir string) ([]Job, error) {
	dir, err := toolfile.OpenDir(filepath.Join(configDir, "jobs"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read Claude Code's jobs: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(maxJobs)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read Claude Code's jobs: %w", err)
	}
	var jobs []Job
	for _, name := range names {
		b, err := read(filepath.Join(dir.Name(), name, "state.json"))
		if err != nil {
			continue
		}
		var f struct {
			State     string `json:"state"`
			Status    string `json:"status"`
			SessionID string `json:"sessionId"`
			Cwd       string `json:"cwd"`
			Name      string `json:"name"`
		}
		err = json.Unmarshal(b, &f)
		var wrong *json.UnmarshalTypeError
		if err != nil && !errors.As(err, &wrong) {
			continue
		}
		j := Job{ID: clean(name), SessionID: clean(f.SessionID), Dir: f.Cwd, Name: clean(f.Name), Status: clean(f.State)}
		if j.Status == "" {
			j.Status = clean(f.Status)
		}
		switch j.Status {
		case "working":
			j.State = session.Working
		case "blocked":
			j.State = session.Waiting
		case "done":
			j.State = session.Done
		case "stopped":
			j.State = session.Exited
		}
		jobs = append(jobs, j)
	}
	return jobs, nil
}

// read reads a regular file of bounded size.
func read(path string) ([]byte, error) { return toolfile.Read(path, maxFile) }

// clean cuts a text and drops control characters.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return -1
		}
		return r
	}, s)
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "")
	}
	return s
}

// millis is a time of the tool, milliseconds since 1970; times outside this
// century are none.
func millis(ms float64) time.Time {
	if ms < 946684800e3 || ms > 4102444800e3 {
		return time.Time{}
	}
	return time.UnixMilli(int64(ms))
}
