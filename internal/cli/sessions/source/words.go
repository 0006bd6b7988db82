package source

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

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

// Sort puts sessions in the order in which they are shown: by state, and the
// one that waits longest first.
func Sort(all []Named) {
	slices.SortStableFunc(all, func(a, b Named) int {
		if d := rank(a.Status) - rank(b.Status); d != 0 {
			return d
		}
		if a.Status.State == session.Waiting {
			if d := a.Status.Since.Compare(b.Status.Since); d != 0 {
				return d
			}
		}
		return strings.Compare(a.Machine+"\x00"+a.Name+"\x00"+string(a.ID), b.Machine+"\x00"+b.Name+"\x00"+string(b.ID))
	})
}

// Plain is text from a machine that a terminal may show, on one line.
func Plain(s string, max int) string {
	return strings.Join(strings.Fields(wire.CleanText(strings.NewReplacer("\n", " ", "\t", " ").Replace(s), max)), " ")
}

// StateWords is a status in a few words.
func StateWords(s session.Status) string {
	switch {
	case s.State == session.Waiting && s.Kind != "":
		return "waiting: " + Plain(string(s.Kind), 20)
	case s.State == session.Exited && s.ExitCode != nil:
		return fmt.Sprintf("exited: %d", *s.ExitCode)
	case s.State == "":
		return string(session.Unknown)
	}
	return Plain(string(s.State), 20)
}

// what says what a session is about: what it asks, else the tool's name of the
// conversation, else the evidence.
func what(s session.Session) string {
	d := s.Status.Dialog
	switch {
	case d != nil && d.Title != "":
		return Plain(d.Title, 120)
	case s.Conversation && s.Title != "" && s.Status.Kind != session.Limit:
		return Plain(s.Title, 120)
	case len(s.Status.Evidence) > 0:
		return Plain(s.Status.Evidence[0].Detail, 120)
	}
	return ""
}

// Evidence says why the status is believed.
func Evidence(s session.Status, now time.Time) string {
	if len(s.Evidence) == 0 {
		return "no evidence"
	}
	e := s.Evidence[0]
	out := Plain(string(e.Source), 20)
	if e.Detail != "" {
		out += ": " + Plain(e.Detail, 120)
	}
	if !s.Confirmed.IsZero() {
		out += ", confirmed " + console.Ago(s.Confirmed, now)
	}
	return out
}

// place is the session's name with its window, where that tells panes apart.
func place(s session.Session) string {
	name := Plain(s.Name, 40)
	if s.Index != "" && s.Index != "0.0" {
		name += ":" + Plain(s.Index, 12)
	}
	return name
}

// describe is a session in one line, without its machine and id.
func describe(t Target) string {
	s := t.Session
	return fmt.Sprintf("%s  %s  %s  %s", place(s), Plain(s.Tool, 20), StateWords(s.Status), Plain(s.Dir, 60))
}

// since says how long a status lasts.
func since(s session.Status, now time.Time) string {
	if s.Since.IsZero() {
		return ""
	}
	return console.Ago(s.Since, now)
}

// Rows are the table of sessions for a person.
func Rows(all []Named, now time.Time) [][]string {
	var out [][]string
	for _, s := range all {
		id := string(s.ID)
		if s.Machine != "" {
			id = s.Machine + "/" + id
		}
		out = append(out, []string{
			StateWords(s.Status), id, place(s.Session), Plain(s.Tool, 20), since(s.Status, now), what(s.Session),
		})
	}
	return out
}

// Table prints rows in columns that are as wide as a terminal shows them.
func Table(w io.Writer, rows [][]string) {
	for _, line := range Columns(rows) {
		fmt.Fprintln(w, line)
	}
}

// Columns are rows as lines.
func Columns(rows [][]string) []string {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], ansi.StringWidth(cell))
		}
	}
	var out []string
	for _, row := range rows {
		var b strings.Builder
		for i, cell := range row {
			b.WriteString(cell)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-ansi.StringWidth(cell)+2))
			}
		}
		out = append(out, strings.TrimRight(b.String(), " "))
	}
	return out
}

// PrintDialog shows a dialog and its options.
func PrintDialog(p func(format string, args ...any), d *session.Dialog) {
	if d.Title != "" {
		p("%s", Plain(d.Title, 400))
	}
	// The question most often ends the text that it is taken from.
	about := strings.TrimRight(d.Text, " \n")
	if above, ok := strings.CutSuffix("\n"+about, "\n"+d.Title); ok && d.Title != "" {
		about = strings.Trim(above, "\n")
	}
	if text := Block(about); text != "" {
		p("\n%s", text)
	}
	p("")
	for _, o := range d.Options {
		p("  %s  %s", Plain(o.ID, 20), Plain(o.Label, 300))
	}
}

// Block is text of several lines that a terminal may show, indented.
func Block(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		line = wire.CleanText(strings.ReplaceAll(strings.TrimRight(line, "\n"), "\t", "    "), 1000)
		b.WriteString("  " + strings.TrimRight(line, " ") + "\n")
	}
	return strings.TrimRight(b.String(), "\n")
}
