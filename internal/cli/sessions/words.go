package sessions

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"holdfast/internal/console"
	"holdfast/internal/session"
	"holdfast/internal/wire"
)

// rank orders states: what wants the person first.
func rank(s session.Status) int {
	order := []session.State{
		session.Waiting, session.Done, session.Working, session.Background,
		session.Unknown, session.Idle, session.Exited,
	}
	if i := slices.Index(order, s.State); i >= 0 {
		return i
	}
	return len(order)
}

// sorted puts sessions in the order in which they are shown: by state, and the
// one that waits longest first.
func sorted(all []named) {
	slices.SortStableFunc(all, func(a, b named) int {
		if d := rank(a.Status) - rank(b.Status); d != 0 {
			return d
		}
		if a.Status.State == session.Waiting {
			if d := a.Status.Since.Compare(b.Status.Since); d != 0 {
				return d
			}
		}
		return strings.Compare(a.machine+"\x00"+a.Name+"\x00"+string(a.ID), b.machine+"\x00"+b.Name+"\x00"+string(b.ID))
	})
}

// plain is text from a machine that a terminal may show, on one line.
func plain(s string, max int) string {
	return strings.Join(strings.Fields(wire.CleanText(strings.NewReplacer("\n", " ", "\t", " ").Replace(s), max)), " ")
}

// stateWords is a status in a few words.
func stateWords(s session.Status) string {
	switch {
	case s.State == session.Waiting && s.Kind != "":
		return "waiting: " + plain(string(s.Kind), 20)
	case s.State == session.Exited && s.ExitCode != nil:
		return fmt.Sprintf("exited: %d", *s.ExitCode)
	case s.State == "":
		return string(session.Unknown)
	}
	return plain(string(s.State), 20)
}

// what says what a session is about: what it asks, else the tool's name of the
// conversation, else the evidence.
func what(s session.Session) string {
	d := s.Status.Dialog
	switch {
	case d != nil && d.Title != "":
		return plain(d.Title, 120)
	case s.Conversation && s.Title != "" && s.Status.Kind != session.Limit:
		return plain(s.Title, 120)
	case len(s.Status.Evidence) > 0:
		return plain(s.Status.Evidence[0].Detail, 120)
	}
	return ""
}

// evidence says why the status is believed.
func evidence(s session.Status, now time.Time) string {
	if len(s.Evidence) == 0 {
		return "no evidence"
	}
	e := s.Evidence[0]
	out := plain(string(e.Source), 20)
	if e.Detail != "" {
		out += ": " + plain(e.Detail, 120)
	}
	if !s.Confirmed.IsZero() {
		out += ", confirmed " + console.Ago(s.Confirmed, now)
	}
	return out
}

// place is the session's name with its window, where that tells panes apart.
func place(s session.Session) string {
	name := plain(s.Name, 40)
	if s.Index != "" && s.Index != "0.0" {
		name += ":" + plain(s.Index, 12)
	}
	return name
}

// describe is a session in one line, without its machine and id.
func describe(t target) string {
	s := t.session
	return fmt.Sprintf("%s  %s  %s  %s", place(s), plain(s.Tool, 20), stateWords(s.Status), plain(s.Dir, 60))
}

// since says how long a status lasts.
func since(s session.Status, now time.Time) string {
	if s.Since.IsZero() {
		return ""
	}
	return console.Ago(s.Since, now)
}

// rows are the table of sessions for a person.
func rows(all []named, now time.Time) [][]string {
	var out [][]string
	for _, s := range all {
		id := string(s.ID)
		if s.machine != "" {
			id = s.machine + "/" + id
		}
		out = append(out, []string{
			stateWords(s.Status), id, place(s.Session), plain(s.Tool, 20), since(s.Status, now), what(s.Session),
		})
	}
	return out
}

// printDialog shows a dialog and its options.
func printDialog(p func(format string, args ...any), d *session.Dialog) {
	if d.Title != "" {
		p("%s", plain(d.Title, 400))
	}
	if text := block(d.Text); text != "" {
		p("\n%s", text)
	}
	p("")
	for _, o := range d.Options {
		p("  %s  %s", plain(o.ID, 20), plain(o.Label, 300))
	}
}

// block is text of several lines that a terminal may show, indented.
func block(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		line = wire.CleanText(strings.ReplaceAll(strings.TrimRight(line, "\n"), "\t", "    "), 1000)
		b.WriteString("  " + strings.TrimRight(line, " ") + "\n")
	}
	return strings.TrimRight(b.String(), "\n")
}
