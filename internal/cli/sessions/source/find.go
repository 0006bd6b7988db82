package source

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"holdfast/internal/client"
	"holdfast/internal/console"
	"holdfast/internal/session"
)

// A Target is the one session that a command is about.
type Target struct {
	Source  Source
	Session session.Session
	Link    *Link // open until close
}

// Close ends the connection by which the session was found.
func (t Target) Close() { t.Link.Close() }

// Name is what the person types for it again.
func (t Target) Name() string {
	if t.Source.Name == "" {
		return string(t.Session.ID)
	}
	return t.Source.Name + "/" + string(t.Session.ID)
}

// Find resolves S: [MACHINE/]ID, [MACHINE/]NAME, or [MACHINE/]NAME:WINDOW.PANE.
func (w Flags) Find(ctx context.Context, a *console.App, s string) (Target, error) {
	sources, rest, err := w.split(a, s)
	if err != nil {
		return Target{}, err
	}
	all := Collect(ctx, sources)
	hits, way := match(all, rest)
	if len(hits) == 1 {
		HangUp(all, hits[0].Link)
		return hits[0], nil
	}
	HangUp(all, nil)
	if len(hits) > 1 {
		var b strings.Builder
		for _, h := range hits {
			fmt.Fprintf(&b, "\n    %s  %s", h.Name(), describe(h))
		}
		return Target{}, &console.Failure{
			Code: console.ExitUsage, Err: fmt.Errorf("%s sessions are %s %q", count(len(hits)), way, s),
			Hint: "name one of them by its id:" + b.String(),
		}
	}
	var failed error
	for _, f := range all {
		if f.Err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", OrHere(f.Source.Name), f.Err))
		}
	}
	if failed != nil {
		f := console.Explain(failed)
		return Target{}, &console.Failure{Code: f.Code, Err: fmt.Errorf("no session %q where it could be looked for; %w", s, failed), Hint: f.Hint}
	}
	return Target{}, &console.Failure{Code: console.ExitFailed, Err: fmt.Errorf("there is no session %q", s), Hint: "holdfast sessions lists them"}
}

// split takes a machine's name off S, if it begins with one.
func (w Flags) split(a *console.App, s string) ([]Source, string, error) {
	if before, rest, ok := strings.Cut(s, "/"); ok && !w.Local {
		dir, err := a.Dir()
		if err != nil {
			return nil, "", err
		}
		switch _, err := client.NewStore(dir).Find(before); {
		case err == nil:
			sources, err := w.Sources(a, before)
			return sources, rest, err
		case !errors.Is(err, client.ErrUnknownMachine):
			return nil, "", err
		}
		// A name of tmux may hold a slash.
	}
	sources, err := w.Sources(a, "")
	return sources, s, err
}

// match finds the sessions that a text names: an id beats a name, and a name
// with its place in the window a name alone.
func match(all []Found, text string) (hits []Target, way string) {
	ways := []struct {
		words string
		is    func(session.Session) bool
	}{
		{"called", func(s session.Session) bool { return string(s.ID) == text }},
		{"called", func(s session.Session) bool { return s.Index != "" && s.Name+":"+s.Index == text }},
		{"called", func(s session.Session) bool { return s.Name == text }},
		{"called", func(s session.Session) bool { return strings.EqualFold(s.Name, text) }},
	}
	for _, w := range ways {
		for _, f := range all {
			for _, s := range f.Sessions {
				if w.is(s) {
					hits = append(hits, Target{f.Source, s, f.Link})
				}
			}
		}
		if len(hits) > 0 {
			return hits, w.words
		}
	}
	return nil, ""
}

func count(n int) string {
	if n < 10 {
		return [...]string{"no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"}[n]
	}
	return fmt.Sprint(n)
}

// OrHere names a machine, this computer where name is empty.
func OrHere(name string) string {
	if name == "" {
		return "this computer"
	}
	return name
}
