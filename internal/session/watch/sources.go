package watch

import (
	"slices"
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

// query is what conversation needs to find the transcript.
func (w *Watcher) query(f proc.Facts, s sources) conversation.Query {
	home := w.o.Home
	if s.env["HOME"] != "" {
		home = s.env["HOME"]
	}
	return conversation.Query{
		Tool: f.Tool, SessionID: s.sessionID, Transcript: s.transcriptPath, PID: f.PID, Dir: f.Dir, StartedAt: f.Started,
		Home: home, Env: func(name string) string { return s.env[name] }, OpenFiles: proc.OpenFiles,
	}
}

// registryPath is the file in which a tool says itself what it does.
func (w *Watcher) registryPath(f proc.Facts, s sources) string {
	if f.Tool != "claude" || !f.Known {
		return ""
	}
	return registry.Path(w.configDir(s), f.PID)
}

func (w *Watcher) configDir(s sources) string {
	home := w.o.Home
	if s.env["HOME"] != "" {
		home = s.env["HOME"]
	}
	return registry.Dir(s.env["CLAUDE_CONFIG_DIR"], home)
}

// readFiles reads what the files say about a program now. prev is what they said
// before about the same one.
func (p *pane) readFiles(f proc.Facts, pane string, prev sources) *sources {
	w := p.w
	if !f.Known {
		return &sources{}
	}
	s := sources{env: prev.env, ref: prev.ref, located: prev.located, name: prev.name, title: prev.title, version: prev.version}
	if s.env == nil {
		s.env = proc.Env(f.PID, variables...)
		if s.env == nil {
			s.env = map[string]string{}
		}
	}
	if f.Tool == "claude" {
		if r, err := registry.Claude(w.configDir(s), f.PID, ""); err == nil {
			s.sessionID, s.version = r.SessionID, r.Version
			if r.NameGiven {
				s.name = r.Name
			}
			if r.State != "" {
				s.registry = &judge.Signal{State: r.State, Kind: r.Wait, At: r.StatusAt, Checked: time.Now(), Detail: "Claude Code's own record says " + r.Detail()}
			}
		}
	}
	p.hookSignal(&s, f, pane)
	if slices.Contains(conversation.Tools(), f.Tool) {
		w.transcript(&s, f, prev)
	}
	return &s
}

// transcript finds the tool's transcript and reads its end.
func (w *Watcher) transcript(s *sources, f proc.Facts, prev sources) {
	now := time.Now()
	again := locateEvery
	if s.sessionID != "" {
		again = locateSoon
	}
	switch {
	case s.sessionID != prev.sessionID, s.transcriptPath != prev.transcriptPath,
		s.ref.How != "id" && now.Sub(s.located) >= again:
		s.located = now
		s.title = ""
		ref, err := conversation.Locate(w.query(f, *s))
		if err != nil {
			s.ref = conversation.Ref{}
			return
		}
		s.ref = ref
	}
	if s.ref.IsZero() {
		return
	}
	tail, err := conversation.TailState(s.ref)
	if err != nil {
		return
	}
	s.title = tail.Title
	s.transcript = transcriptSignal(tail, f.Started)
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

// paths are the files on which the status rests.
func (p *pane) paths() []string {
	out := p.w.hookPaths()
	if path := p.w.registryPath(p.run.facts, p.sources); path != "" {
		out = append(out, path)
	}
	if !p.sources.ref.IsZero() {
		out = append(out, p.sources.ref.Path)
	}
	return out
}
