package screen

import (
	"regexp"
	"strings"
	"unicode/utf8"

	"holdfast/internal/session"
)

var (
	// codexWorking is Codex's line while a turn runs.
	codexWorking = regexp.MustCompile(`(?i)^[▌ ]*[•◦] .*\(\d[\dhms ]*[•·] .*(?:esc|ctrl.?c) to interrupt`)
	// codexAnswered is what Codex says of a dialog that was answered.
	codexAnswered = regexp.MustCompile(`^[✔✗] You `)
	// codexKey is the key that Codex writes behind a label.
	codexKey = regexp.MustCompile(`\((y|n|a|p|s|d|esc)\)$`)
	// codexLimit are the errors that only the person can mend.
	codexLimit = regexp.MustCompile(`(?i)\b401\b|\b403\b|\b429\b|usage limit|rate limit|quota|log ?in|sign in|billing`)
)

// codexRows is how far from the end Codex's input line may begin: the text in
// it, and the footer.
const codexRows = 40

func readCodex(v view) Reading {
	if m, ok := v.numbered(); ok && len(v.lines)-m.to <= 5 {
		footer := strings.Join(v.lines[m.to:], "\n")
		if hasAny(footer, "press enter", "enter to ", "enter select", "esc to ", "esc back", "confirm with") {
			return codexDialog(v, m, footer)
		}
	}
	row := -1
	for i := len(v.lines) - 1; i >= 0 && len(v.lines)-i <= codexRows; i-- {
		// What the tool did stands below what the person once asked, never below
		// the input line.
		if r, _ := utf8.DecodeRuneInString(v.lines[i]); strings.ContainsRune("•◦■✔✗⚡▌", r) {
			break
		}
		if rest, ok := strings.CutPrefix(v.lines[i], "›"); ok && (rest == "" || rest[0] == ' ') {
			row = i
			break
		}
	}
	var r Reading
	end := len(v.lines)
	if row >= 0 && codexStarts(v, row) {
		return r
	}
	if row >= 0 {
		r.Composer, end = codexComposer(v, row), row
		r.State, r.Detail = session.Idle, "the input line"
	}
	r.BackgroundTasks = count(strings.Join(v.lines[end:], "\n"))
	// The last line at the margin above it.
	for i, seen := end-1, 0; i >= 0 && seen < 40; i-- {
		line := v.lines[i]
		if line == "" {
			continue
		}
		seen++
		switch {
		case codexWorking.MatchString(line):
			r.State, r.Detail = session.Working, lastWords(line)
			return r
		case row >= 0 && strings.HasPrefix(line, "■"):
			if strings.Contains(line, "interrupted") {
				r.Detail = "Conversation interrupted"
			} else if codexLimit.MatchString(line) {
				r.State, r.Kind, r.Detail = session.Waiting, session.Limit, lastWords(line)
			}
		}
		if line[0] != ' ' {
			break
		}
	}
	if r.State == session.Idle && r.BackgroundTasks > 0 {
		r.State = session.Background
	}
	return r
}

// codexStarts reports whether Codex draws its input line and takes nothing into it
// yet: on its first screen the help stands alone, and the model is not named. At
// its first start it copies itself into its home first, which can take a minute.
func codexStarts(v view, row int) bool {
	footer := strings.Join(v.lines[row+1:], "\n")
	if strings.TrimSpace(footer) != "? for shortcuts" {
		return false
	}
	for i, line := range v.lines[:row] {
		if strings.HasPrefix(strings.TrimSpace(line), ">_ OpenAI Codex (v") {
			return !hasAny(strings.Join(v.lines[i:row], "\n"), "model:")
		}
	}
	return false
}

// codexComposer reads the text that stands in Codex's input line: up to the
// blank line above the footer, or up to the cursor where that is further down.
func codexComposer(v view, row int) *Composer {
	text := []string{strings.TrimPrefix(strings.TrimPrefix(v.lines[row], "›"), " ")}
	for i := row + 1; i < len(v.lines) && (v.lines[i] != "" || i < v.cursor()); i++ {
		if v.lines[i] != "" && !strings.HasPrefix(v.lines[i], "  ") {
			break
		}
		text = append(text, strings.TrimPrefix(v.lines[i], "  "))
	}
	c := &Composer{Text: strings.TrimRight(strings.Join(text, "\n"), "\n "), Row: v.first + row}
	if v.placeholder(row, "›") || c.Text == "Ask Codex to do anything" {
		c.Text = ""
	}
	return c
}

// codexDialog reads a list of options of Codex.
func codexDialog(v view, m menu, footer string) Reading {
	top, title := 0, 0
	for i := m.from - 1; i >= 0; i-- {
		line := v.lines[i]
		if line == "" || line[0] == ' ' {
			continue
		}
		top, title = i+1, i+1
		// The edits that are asked about stand above the question.
		if strings.HasPrefix(line, "•") && hasAny(line, "added", "edited", "deleted", "updated", "moved", "renamed") {
			top, title = i, i+1
			for title < m.from && v.lines[title] != "" {
				title++
			}
		}
		break
	}
	d := &session.Dialog{Options: m.options, Text: text(v.lines[top:m.from])}
	for _, line := range v.lines[title:m.from] {
		if line != "" && d.Title == "" {
			d.Title = strings.TrimSpace(line)
		}
	}
	for i := range d.Options {
		if k := codexKey.FindStringSubmatch(d.Options[i].Label); k != nil {
			d.Options[i].Keys = []string{map[bool]string{true: "Escape", false: k[1]}[k[1] == "esc"]}
		}
	}
	kind := session.Question
	if permission := roles(d.Options); permission || hasAny(d.Text, "approval") {
		kind = session.Permission
	}
	if hasAny(d.Text, "sign in", "usage limit") {
		kind = session.Limit
	}
	offerEscape(d, footer)
	r := waiting(kind, d.Title, d)
	for _, line := range v.lines[:top] {
		if codexAnswered.MatchString(line) {
			r.Answered++
		}
	}
	return r
}
