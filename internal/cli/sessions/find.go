package sessions

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"holdfast/internal/client"
	"holdfast/internal/console"
	"holdfast/internal/session"
)

// target is the one session that a command is about.
type target struct {
	source  source
	session session.Session
	link    *link // open until close
}

// close ends the connection by which the session was found.
func (t target) close() { t.link.close() }

// name is what the person types for it again.
func (t target) name() string {
	if t.source.name == "" {
		return string(t.session.ID)
	}
	return t.source.name + "/" + string(t.session.ID)
}

// find resolves S: [MACHINE/]ID, [MACHINE/]NAME, or [MACHINE/]NAME:WINDOW.PANE.
func (w where) find(ctx context.Context, a *console.App, s string) (target, error) {
	sources, rest, err := w.split(a, s)
	if err != nil {
		return target{}, err
	}
	all := collect(ctx, sources)
	hits, way := match(all, rest)
	if len(hits) == 1 {
		hangUp(all, hits[0].link)
		return hits[0], nil
	}
	hangUp(all, nil)
	if len(hits) > 1 {
		var b strings.Builder
		for _, h := range hits {
			fmt.Fprintf(&b, "\n    %s  %s", h.name(), describe(h))
		}
		return target{}, &console.Failure{
			Code: console.ExitUsage, Err: fmt.Errorf("%s sessions are %s %q", count(len(hits)), way, s),
			Hint: "name one of them by its id:" + b.String(),
		}
	}
	var failed error
	for _, f := range all {
		if f.err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", orHere(f.source.name), f.err))
		}
	}
	if failed != nil {
		f := console.Explain(failed)
		return target{}, &console.Failure{Code: f.Code, Err: fmt.Errorf("no session %q where it could be looked for; %w", s, failed), Hint: f.Hint}
	}
	return target{}, &console.Failure{Code: console.ExitFailed, Err: fmt.Errorf("there is no session %q", s), Hint: "holdfast sessions lists them"}
}

// split takes a machine's name off S, if it begins with one.
func (w where) split(a *console.App, s string) ([]source, string, error) {
	if before, rest, ok := strings.Cut(s, "/"); ok && !w.Local {
		dir, err := a.Dir()
		if err != nil {
			return nil, "", err
		}
		switch _, err := client.NewStore(dir).Find(before); {
		case err == nil:
			sources, err := w.sources(a, before)
			return sources, rest, err
		case !errors.Is(err, client.ErrUnknownMachine):
			return nil, "", err
		}
		// A name of tmux may hold a slash.
	}
	sources, err := w.sources(a, "")
	return sources, s, err
}

// match finds the sessions that a text names: an id beats a name, and a name
// with its place in the window a name alone.
func match(all []found, text string) (hits []target, way string) {
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
			for _, s := range f.sessions {
				if w.is(s) {
					hits = append(hits, target{f.source, s, f.link})
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

func orHere(name string) string {
	if name == "" {
		return "this computer"
	}
	return name
}
