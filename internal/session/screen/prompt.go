package screen

import (
	"regexp"
	"strings"

	"holdfast/internal/session"
)

var (
	yesNo    = regexp.MustCompile(`(?i)[\[(]\s*(y(?:es)?)\s*/\s*(n(?:o)?)\s*[\])][\s:?]*$`)
	password = regexp.MustCompile(`(?i)(?:password|passphrase|passwort|pin|secret|token|verification code)[^:\n]{0,80}:\s*$`)
	anyKey   = regexp.MustCompile(`(?i)(?:press|hit) (?:any key|enter|return)\b.{0,60}$`)
	pager    = regexp.MustCompile(`^--More--|^\(END\)$|^lines \d+-\d+`)
	proceed  = regexp.MustCompile(`(?i)\b(?:continue|proceed|overwrite|are you sure|remove|delete|replace)\b.{0,120}\?\s*$`)
)

// readPrompt reads the line that the cursor is on for a question that scripts
// ask. Without a cursor it says nothing: the same words are in every log.
func readPrompt(v view) Reading {
	i := v.cursor()
	if i < 0 || i != len(v.lines)-1 {
		return Reading{}
	}
	line := strings.TrimSpace(v.lines[i])
	switch {
	case yesNo.MatchString(line):
		m := yesNo.FindStringSubmatch(line)
		return waiting(session.Question, lastWords(line), &session.Dialog{Title: line, Options: []session.Option{
			{ID: "y", Label: m[1], Role: session.Approve}, {ID: "n", Label: m[2], Role: session.Deny}}})
	case password.MatchString(line):
		return waiting(session.Password, lastWords(line), nil)
	case anyKey.MatchString(line), pager.MatchString(line):
		return waiting(session.Question, lastWords(line), &session.Dialog{Title: line, Options: []session.Option{{ID: "enter", Label: "Enter"}}})
	case proceed.MatchString(line):
		return waiting(session.Question, lastWords(line), &session.Dialog{Title: line})
	}
	return Reading{}
}
