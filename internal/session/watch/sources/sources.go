// Package sources reads what files say about a tool: its own registry, what hooks
// told, and the end of its transcript.
//
// It reads processes only for their environment, and decides nothing. What a
// caller will get wrong: what it returns is of one process, so another one in the
// same pane begins with the zero Sources; and a Reader serves all panes, since
// they share the spool of the hooks.
package sources

import (
	"errors"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/session"
	"holdfast/internal/session/conversation"
	"holdfast/internal/session/judge"
	"holdfast/internal/session/proc"
	"holdfast/internal/session/registry"
)

const (
	// locateEvery is how often a transcript is looked for that was not found or
	// was found by other means than its name: that reads directories.
	locateEvery = 5 * time.Second
	// locateSoon is the same while the name is known and the file is not there:
	// tools make it with the first message.
	locateSoon = time.Second
)

// variables are those of a tool's environment that say where its files are.
var variables = []string{"CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME", "XDG_DATA_HOME", "OPENCODE_DB", "HOME"}

// Sources are what the files say about one process.
type Sources struct {
	Registry, Hook, Transcript *judge.Signal

	Version string
	Name    string // that the person gave the session
	Title   string // of the conversation
	Ref     conversation.Ref
	// Mark changes between two dialogs of the program and not while one is open, as
	// far as its files tell; empty where they do not, and where no dialog was said to
	// be open. Every process that reads the files finds the same.
	Mark string

	sessionID      string // as registry or hook tell it
	transcriptPath string // as a hook tells it
	env            map[string]string
	located        time.Time // when the transcript was last looked for
}

// Options of New.
type Options struct {
	// StateDir is where hooks spool; empty means nowhere.
	StateDir string
	Home     string       // required: of the person
	Log      *slog.Logger // required
}

// Reader reads. It may be used from any goroutine.
type Reader struct {
	o     Options
	spool spool
}

// New makes a Reader.
func New(o Options) *Reader { return &Reader{o: o} }

// Query is what conversation needs to find the transcript.
func (r *Reader) Query(f proc.Facts, s Sources) conversation.Query {
	home := r.o.Home
	if s.env["HOME"] != "" {
		home = s.env["HOME"]
	}
	return conversation.Query{
		Tool: f.Tool, SessionID: s.sessionID, Transcript: s.transcriptPath, PID: f.PID, Dir: f.Dir, StartedAt: f.Started,
		Home: home, Env: func(name string) string { return s.env[name] }, OpenFiles: proc.OpenFiles,
	}
}

// registryPath is the file in which a tool says itself what it does.
func (r *Reader) registryPath(f proc.Facts, s Sources) string {
	if f.Tool != "claude" || !f.Known {
		return ""
	}
	return registry.Path(r.configDir(s), f.PID)
}

func (r *Reader) configDir(s Sources) string {
	home := r.o.Home
	if s.env["HOME"] != "" {
		home = s.env["HOME"]
	}
	return registry.Dir(s.env["CLAUDE_CONFIG_DIR"], home)
}

// Read reads what the files say now about a program in a pane of the tmux server
// at a socket. prev is what they said before about the same one. dialog says that
// one is open, for Mark.
func (r *Reader) Read(f proc.Facts, pane, socket string, prev Sources, dialog bool) Sources {
	if !f.Known {
		return Sources{}
	}
	s := Sources{env: prev.env, Ref: prev.Ref, located: prev.located, Name: prev.Name, Title: prev.Title, Version: prev.Version}
	if s.env == nil {
		s.env = proc.Env(f.PID, variables...)
		if s.env == nil {
			s.env = map[string]string{}
		}
	}
	if f.Tool == "claude" {
		if rec, err := registry.Claude(r.configDir(s), f.PID, ""); err == nil {
			s.sessionID, s.Version = rec.SessionID, rec.Version
			if rec.NameGiven {
				s.Name = rec.Name
			}
			if rec.State != "" {
				if rec.State == session.Waiting { // it writes when it began to wait
					s.Mark = strconv.FormatInt(rec.StatusAt.UnixMilli(), 10)
				}
				s.Registry = &judge.Signal{State: rec.State, Kind: rec.Wait, At: rec.StatusAt, Checked: time.Now(), Detail: "Claude Code's own record says " + rec.Detail()}
			}
		}
	}
	r.hookSignal(&s, f, pane, socket)
	if slices.Contains(conversation.Tools(), f.Tool) {
		mark := dialog && s.Mark == ""
		// A transcript that is found while a dialog is open would change its mark.
		fit := r.transcript(&s, f, prev, mark)
		if mark {
			s.Mark = finished(fit)
		}
	}
	return s
}

// maxRivals bounds the transcripts of a directory that a mark is made of. The one
// that matters was written when the dialog opened, so it is among the newest.
const maxRivals = 8

// finished is the mark that the transcripts tell which a program may have. Where
// there are several it changes too often rather than never.
func finished(fit []conversation.Ref) string {
	if len(fit) > 1 {
		written := make(map[string]time.Time, len(fit))
		for _, ref := range fit {
			if info, err := os.Stat(ref.Path); err == nil {
				written[ref.Path] = info.ModTime()
			}
		}
		fit = slices.Clone(fit)
		slices.SortStableFunc(fit, func(a, b conversation.Ref) int { return written[b.Path].Compare(written[a.Path]) })
		fit = fit[:min(len(fit), maxRivals)]
		slices.SortStableFunc(fit, func(a, b conversation.Ref) int { return strings.Compare(a.Path+a.SessionID, b.Path+b.SessionID) })
	}
	var marks []string
	for _, ref := range fit {
		m, _ := conversation.Finished(ref) // one that cannot be read tells nothing
		marks = append(marks, m)
	}
	return strings.Join(marks, " ")
}

// transcript finds the tool's transcript and reads its end; anew also when it was
// looked for a moment before. It returns those that fit, several where nothing
// tells which one is the program's.
func (r *Reader) transcript(s *Sources, f proc.Facts, prev Sources, anew bool) []conversation.Ref {
	now := time.Now()
	again := locateEvery
	if s.sessionID != "" {
		again = locateSoon
	}
	switch {
	case s.sessionID != prev.sessionID, s.transcriptPath != prev.transcriptPath,
		s.Ref.How != "id" && (anew || now.Sub(s.located) >= again):
		s.located = now
		s.Title = ""
		ref, err := conversation.Locate(r.Query(f, *s))
		if err != nil {
			s.Ref = conversation.Ref{}
			var several *conversation.AmbiguousError
			if errors.As(err, &several) {
				return several.Candidates
			}
			return nil
		}
		s.Ref = ref
	}
	if s.Ref.IsZero() {
		return nil
	}
	if tail, err := conversation.TailState(s.Ref); err == nil {
		s.Title = tail.Title
		s.Transcript = transcriptSignal(tail, f.Started)
	}
	return []conversation.Ref{s.Ref}
}

// transcriptSignal reads the end of a transcript. What it says of a time before
// the process started was of another one.
func transcriptSignal(t conversation.TailInfo, started time.Time) *judge.Signal {
	s := &judge.Signal{At: t.At, Detail: "the transcript's end: " + string(t.State)}
	if t.Detail != "" {
		s.Detail += ": " + strings.TrimSpace(t.Detail)
	}
	switch t.State {
	case conversation.TurnWorking:
		s.State = session.Working
	case conversation.TurnDone:
		s.State = session.Done
	case conversation.TurnInterrupted:
		s.State, s.Plain = session.Idle, true
	case conversation.TurnLimit:
		s.State, s.Kind = session.Waiting, session.Limit
	default:
		return nil
	}
	if !started.IsZero() && t.At.Before(started) {
		return nil
	}
	return s
}

// Paths are the files on which the status of a program rests.
func (r *Reader) Paths(f proc.Facts, s Sources) []string {
	out := r.hookPaths()
	if path := r.registryPath(f, s); path != "" {
		out = append(out, path)
	}
	if !s.Ref.IsZero() {
		out = append(out, s.Ref.Path)
	}
	return out
}
