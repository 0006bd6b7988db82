package screen

import (
	"regexp"
	"strings"

	"holdfast/internal/session"
)

// codexWorking is Codex's line while a turn runs.
var codexWorking = regexp.MustCompile(`(?i)^\W*(?:\S.*)?\(\d[\dhms ]*[•·] .*(?:esc|ctrl.c) to interrupt`)

// codexFooter is the most lines below Codex's input line.
const codexFooter = 6

func readCodex(v view) Reading {
	if m, ok := numbered(v.lines, 0, len(v.lines)); ok && len(v.lines)-m.to <= 4 {
		footer := strings.Join(v.lines[m.to:], "\n")
		if hasAny(footer, "press enter", "enter to", "esc to cancel") {
			return codexDialog(v, m)
		}
	}
	var r Reading
	row := -1
	for i := len(v.lines) - 1; i >= 0 && len(v.lines)-i <= codexFooter+20; i-- {
		if rest, ok := strings.CutPrefix(v.lines[i], "›"); ok && (rest == "" || rest[0] == ' ') {
			row = i
			break
		}
	}
	if row >= 0 {
		text := []string{strings.TrimPrefix(strings.TrimPrefix(v.lines[row], "›"), " ")}
		for i := row + 1; i < len(v.lines) && v.lines[i] != "" && strings.HasPrefix(v.lines[i], "  "); i++ {
			text = append(text, strings.TrimPrefix(v.lines[i], "  "))
		}
		c := &Composer{Text: strings.TrimRight(strings.Join(text, "\n"), "\n "), Row: v.first + row}
		if v.placeholder(row, "›") {
			c.Text = ""
		}
		r.Composer = c
	}
	end := row
	if end < 0 {
		end = len(v.lines)
	}
	for i, seen := end-1, 0; i >= 0 && seen < 8; i-- {
		if v.lines[i] == "" {
			continue
		}
		seen++
		if codexWorking.MatchString(v.lines[i]) {
			r.State, r.Detail = session.Working, lastWords(v.lines[i])
			return r
		}
	}
	if row >= 0 {
		r.State, r.Detail = session.Idle, "input line"
	}
	return r
}

// codexDialog reads a list of options of Codex.
func codexDialog(v view, m menu) Reading {
	top := 0
	for i := m.from - 1; i >= 0; i-- {
		line := v.lines[i]
		if strings.HasPrefix(line, "•") || strings.HasPrefix(line, "›") || rule(line, ruleRunes) {
			top = i + 1
			break
		}
	}
	body := trimBlank(v.lines[top:m.from])
	d := &session.Dialog{Options: m.options, Text: dedent(body)}
	if len(body) > 0 {
		d.Title = strings.TrimSpace(body[0])
	}
	roles(d.Options)
	kind := session.Question
	for _, o := range d.Options {
		if o.Role != "" {
			kind = session.Permission
		}
	}
	if kind == session.Question {
		for i := range d.Options {
			d.Options[i].Role = ""
		}
	}
	return waiting(kind, d.Title, d)
}
