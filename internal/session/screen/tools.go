package screen

import (
	"strings"

	"holdfast/internal/session"
)

func readGemini(v view) Reading {
	if r, ok := boxedDialog(v); ok {
		return r
	}
	if hasAny(v.tail(8), "(esc to cancel") {
		return Reading{State: session.Working, Detail: "esc to cancel"}
	}
	return readPrompt(v)
}

func readOpencode(v view) Reading { return readPrompt(v) }
func readAider(v view) Reading    { return readPrompt(v) }
func readAmp(v view) Reading      { return readPrompt(v) }
func readCursor(v view) Reading   { return readPrompt(v) }
func readGoose(v view) Reading    { return readPrompt(v) }
func readAmazonQ(v view) Reading  { return readPrompt(v) }

// boxedDialog reads a list of options inside a box.
func boxedDialog(v view) (Reading, bool) {
	m, ok := numbered(v.lines, 0, len(v.lines))
	if !ok || len(v.lines)-m.to > 6 {
		return Reading{}, false
	}
	var body []string
	for i := m.from - 1; i >= 0 && len(body) < 60; i-- {
		if strings.ContainsAny(v.lines[i], "╭┌") {
			break
		}
		body = append([]string{unbox(v.lines[i])}, body...)
	}
	d := &session.Dialog{Options: m.options, Text: dedent(body)}
	if body = trimBlank(body); len(body) > 0 {
		d.Title = strings.TrimSpace(body[len(body)-1])
	}
	roles(d.Options)
	return waiting(session.Permission, d.Title, d), true
}
