package screen

import (
	"regexp"
	"slices"
	"strings"

	"holdfast/internal/session"
)

var (
	yesNo    = regexp.MustCompile(`(?i)[\[(]\s*(y(?:es)?)\s*[/|]\s*(n(?:o)?)\s*(?:[/|][^\])]{1,40})?[\])]{1,2}\??\s*(?:\[(?:y|n|yes|no)\])?\s*[:?]?$`)
	password = regexp.MustCompile(`(?i)(?:password|passphrase|passcode|passwort|\bpin\b|verification code|one-time (?:code|password))[^:\n]{0,120}:$`)
	anyKey   = regexp.MustCompile(`(?i)(?:press|hit|push) (?:any key|\[?enter\]?|\[?return\]?)\b.{0,60}$`)
	pager    = regexp.MustCompile(`^--More--|^--\s?more\s?--|^\(END\)$|^lines \d+-\d+|--More--\s*\(\d+%\)$`)
	proceed  = regexp.MustCompile(`(?i)\b(?:continue|proceed|overwrite|are you sure|remove|delete|replace|restart|install|confirm)\b[^?]{0,120}\?(?:\s*[\[(][^\])]{1,20}[\])])?\s*:?$`)
)

// readPrompt reads the line that the cursor is on for a question that scripts
// ask. It must be the last line with the cursor behind the question: the same
// words are in every log.
func readPrompt(v view) Reading {
	i := v.cursor()
	if i < 0 || i != len(v.lines)-1 || v.Editing {
		return Reading{}
	}
	from, line := v.wrapped(i)
	// The cursor stands behind the question, and nothing is typed yet or it
	// would not end so. Blanks at the end were cut.
	if line == "" || v.CursorX < cells(v.lines[i])-1 {
		return Reading{}
	}
	ask := func(options ...session.Option) Reading {
		return waiting(session.Question, lastWords(line), &session.Dialog{Title: line, Text: promptText(v, from, line), Options: options})
	}
	if password.MatchString(line) {
		return waiting(session.Password, lastWords(line), nil)
	}
	if m := yesNo.FindStringSubmatch(line); m != nil {
		return ask(
			session.Option{ID: "y", Label: m[1], Role: session.Approve, Keys: spell(m[1])},
			session.Option{ID: "n", Label: m[2], Role: session.Deny, Keys: spell(m[2])})
	}
	switch {
	case pager.MatchString(line):
		return ask(session.Option{ID: "space", Label: "next page", Keys: []string{"Space"}}, session.Option{ID: "q", Label: "quit", Keys: []string{"q"}})
	case anyKey.MatchString(line):
		return ask(session.Option{ID: "enter", Label: "Enter", Keys: []string{"Enter"}})
	case proceed.MatchString(line):
		return ask()
	}
	return Reading{}
}

// spell is how to type an answer: in lower case, as every script takes it, and
// Enter.
func spell(word string) []string {
	return append(strings.Split(strings.ToLower(word), ""), "Enter")
}

// maxWrapped is how many rows a question may take in a narrow pane.
const maxWrapped = 20

// wrapped is the line that ends in row i, with the rows before it that were full.
func (v view) wrapped(i int) (from int, line string) {
	from, line = i, v.lines[i]
	for from > 0 && i-from < maxWrapped && v.Cols > 0 {
		above := v.lines[from-1]
		switch cells(above) {
		case v.Cols:
		case v.Cols - 1:
			above += " " // a blank at the end was cut
		default:
			return from, strings.TrimSpace(line)
		}
		from, line = from-1, above+line
	}
	return from, strings.TrimSpace(line)
}

// promptText is a question with what stands above it, as far as it belongs to it:
// the lines up to a blank one, at most ten.
func promptText(v view, from int, line string) string {
	above := from
	for above > 0 && from-above < 10 && v.lines[above-1] != "" {
		above--
	}
	return text(append(slices.Clone(v.lines[above:from]), line))
}
