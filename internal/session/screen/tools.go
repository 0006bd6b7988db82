package screen

import (
	"regexp"
	"slices"
	"strings"

	"holdfast/internal/session"
)

// A frame is an input box with sides: lines of the view, edges excluded.
type frame struct{ top, bottom int }

// frameAt finds the last box of the screen that has at most footer lines below
// it: a lower edge that begins with a corner, sides, and an upper edge.
func (v view) frameAt(footer int) (frame, bool) {
	for i := len(v.lines) - 1; i >= 0 && len(v.lines)-1-i <= footer; i-- {
		line := strings.TrimLeft(v.lines[i], " ")
		if !strings.HasPrefix(line, "╰") && !strings.HasPrefix(line, "└") {
			continue
		}
		column := indent(v.lines[i])
		for j := i - 1; j >= 0; j-- {
			edge := strings.TrimLeft(v.lines[j], " ")
			if strings.HasPrefix(edge, "╭") || strings.HasPrefix(edge, "┌") {
				return frame{j + 1, i}, true
			}
			if unbox(v.lines[j]) == v.lines[j] || indent(v.lines[j]) != column {
				return frame{}, false
			}
		}
		return frame{}, false
	}
	return frame{}, false
}

// inside are the lines of a box without its sides.
func (v view) inside(f frame) []string {
	var out []string
	for _, l := range v.lines[f.top:f.bottom] {
		out = append(out, unbox(l))
	}
	return out
}

// composer makes the text of a box an input: without the mark in its first line
// and without what is known to be a placeholder.
func (v view) composer(row int, lines []string, mark string, placeholders ...string) *Composer {
	text := strings.TrimRight(strings.Join(trimRight(lines), "\n"), "\n ")
	text = strings.TrimSpace(strings.TrimPrefix(strings.TrimLeft(text, " "), mark))
	for _, p := range placeholders {
		if strings.HasPrefix(text, p) {
			text = ""
		}
	}
	return &Composer{Text: text, Row: v.first + row}
}

func trimRight(lines []string) []string {
	var out []string
	for _, l := range lines {
		out = append(out, strings.TrimSpace(l))
	}
	return out
}

// idle is a Reading of an empty input box with nothing going on above it.
func idle(c *Composer, detail string) Reading {
	return Reading{State: session.Idle, Detail: detail, Composer: c}
}

func working(c *Composer, detail string) Reading {
	return Reading{State: session.Working, Detail: lastWords(detail), Composer: c}
}

// readGemini reads Gemini CLI: dialogs are boxes with a numbered list, the input
// is a box with ">", and a line above it says what goes on.
func readGemini(v view) Reading {
	if m, ok := v.numbered(); ok && len(v.lines)-m.to <= 8 {
		top := m.from
		for top > 0 && !strings.ContainsAny(v.lines[top-1], "╭┌") && m.from-top < 60 {
			top--
		}
		body := text(v.lines[top:m.from])
		d := &session.Dialog{Options: m.options, Text: body, Title: lastLine(body)}
		kind := session.Question
		if roles(d.Options) || hasAny(body, "apply this change", "allow execution", "do you want to proceed") {
			kind = session.Permission
		}
		if hasAny(body, "how would you like to authenticate") {
			kind = session.Limit
		}
		return waiting(kind, d.Title, d)
	}
	f, ok := v.frameAt(6)
	if !ok {
		return Reading{}
	}
	c := v.composer(f.top, v.inside(f), ">", "Type your message")
	for i, seen := f.top-2, 0; i >= 0 && seen < 6; i-- {
		if v.lines[i] == "" {
			continue
		}
		seen++
		if hasAny(v.lines[i], "esc to cancel") {
			return working(c, v.lines[i])
		}
	}
	return idle(c, "the input box")
}

func lastLine(s string) string {
	return strings.TrimSpace(s[strings.LastIndexByte(s, '\n')+1:])
}

// readOpencode reads opencode: its input is a block with a bar at its left that
// ends in "╹▀▀▀"; permissions offer letters.
func readOpencode(v view) Reading {
	bottom := v.tail(14)
	if at := strings.Index(bottom, "Permission required"); at >= 0 || hasAny(bottom, "allow (a)") && hasAny(bottom, "deny (d)") {
		d := &session.Dialog{Title: "Permission required", Text: text(strings.Split(bottom[max(at, 0):], "\n"))}
		for _, m := range lettered.FindAllStringSubmatch(bottom, -1) {
			d.Options = append(d.Options, session.Option{ID: m[2], Label: strings.TrimSpace(m[1]) + " (" + m[2] + ")", Role: role(strings.TrimSpace(m[1])), Keys: []string{m[2]}})
		}
		return waiting(session.Permission, d.Title, d)
	}
	edge := -1
	for i := len(v.lines) - 1; i >= 0 && len(v.lines)-i <= 14; i-- {
		if strings.HasPrefix(strings.TrimSpace(v.lines[i]), "╹▀▀") {
			edge = i
			break
		}
	}
	if edge < 0 {
		return Reading{}
	}
	top := edge
	for top > 0 && strings.HasPrefix(strings.TrimSpace(v.lines[top-1]), "┃") {
		top--
	}
	if edge-top < 2 {
		return Reading{}
	}
	// The last line of the block names the agent and the model.
	c := v.composer(top, v.inside(frame{top, edge - 1}), "", "Ask anything")
	if footer := strings.Join(v.lines[edge:], "\n"); hasAny(footer, "esc interrupt", "esc again to interrupt", "esc to interrupt") {
		return working(c, "esc interrupt")
	}
	return idle(c, "the input box")
}

var lettered = regexp.MustCompile(`(Allow(?: always| once)?|Deny|Reject|Always allow) \(([a-z])\)`)

var (
	aiderAsk   = regexp.MustCompile(`\(Y\)es/\(N\)o(?:/\([A-Z]\)[^/\[]+)* \[(?:Yes|No)\]:$`)
	aiderEntry = regexp.MustCompile(`\(([A-Z])\)([^/\[]+)`)
	aiderInput = regexp.MustCompile(`^(?:(?:ask|code|architect|help|multi|diff)\s?)*> ?(.*)$`)
)

// readAider reads aider: the input line stands below a rule, and questions are
// asked in the last line.
func readAider(v view) Reading {
	n := len(v.lines)
	if n == 0 {
		return Reading{}
	}
	last := strings.TrimSpace(v.lines[n-1])
	if at := aiderAsk.FindString(last); at != "" {
		d := &session.Dialog{Title: strings.TrimSpace(strings.TrimSuffix(last, at)), Text: last}
		for _, m := range aiderEntry.FindAllStringSubmatch(at, -1) {
			letter := strings.ToLower(m[1])
			label := m[1] + strings.TrimSpace(m[2])
			r := role(label)
			if letter == "a" {
				r = session.ApproveAlways
			}
			d.Options = append(d.Options, session.Option{ID: letter, Label: label, Role: r, Keys: []string{letter, "Enter"}})
		}
		return waiting(session.Permission, d.Title, d)
	}
	if m := aiderInput.FindStringSubmatch(last); m != nil && n >= 2 {
		for i := n - 2; i >= 0 && i >= n-8; i-- {
			if rule(v.lines[i], solid) {
				return idle(&Composer{Text: m[1], Row: v.first + n - 1}, "the input line")
			}
		}
	}
	return readPrompt(v)
}

// readAmp reads Amp: the last box is the input, its footer says what goes on.
func readAmp(v view) Reading {
	f, ok := v.frameAt(4)
	if !ok {
		return readPrompt(v)
	}
	c := v.composer(f.top, v.inside(f), "")
	footer := strings.Join(v.lines[f.bottom+1:], "\n")
	if hasAny(footer, "esc to cancel", "esc to interrupt") {
		return working(c, footer)
	}
	return idle(c, "the input box")
}

var (
	cursorOption = regexp.MustCompile(`^ *(→ )?(\S.*?) ?((?:\((?:[a-z]|enter|tab|shift\+tab|esc(?: or [a-z])?)\) ?)+)$`)
	cursorKey    = regexp.MustCompile(`\(([a-z+]+)`)
	cursorTmux   = map[string]string{"enter": "Enter", "tab": "Tab", "shift+tab": "BTab", "esc": "Escape"}
)

// readCursor reads Cursor's agent: the last box is the input, or a question with
// a key behind each answer.
func readCursor(v view) Reading {
	f, ok := v.frameAt(8)
	if !ok {
		return readPrompt(v)
	}
	lines := v.inside(f)
	var options []session.Option
	question := len(lines)
	for i, line := range lines {
		m := cursorOption.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		question = min(question, i)
		key := cursorKey.FindStringSubmatch(m[3])[1]
		id := key
		if name, ok := cursorTmux[key]; ok {
			key = name
		}
		options = append(options, session.Option{ID: id, Label: strings.TrimSpace(m[2] + " " + m[3]), Selected: m[1] != "", Keys: []string{key}})
	}
	if len(options) >= 2 {
		d := &session.Dialog{Options: options, Title: strings.TrimSpace(lines[0]), Text: text(lines[:question])}
		for i := range d.Options {
			d.Options[i].Role = role(d.Options[i].Label)
		}
		// What is asked about stands in the box above.
		if above := (view{Screen: v.Screen, lines: v.lines[:f.top-1]}); len(above.lines) > 0 {
			if g, ok := above.frameAt(1); ok {
				d.Text = text(above.inside(g)) + "\n\n" + d.Text
			}
		}
		return waiting(session.Permission, d.Title, d)
	}
	if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(strings.TrimSpace(l), "→") }) {
		return Reading{}
	}
	c := v.composer(f.top, lines, "→", "Add a follow-up", "Plan, search, build anything")
	for i, seen := f.top-2, 0; i >= 0 && seen < 4; i-- {
		if line := strings.TrimSpace(v.lines[i]); line != "" {
			seen++
			if cursorBusy.MatchString(line) || hasAny(line, "ctrl+c to stop") {
				return working(c, line)
			}
		}
	}
	if hasAny(strings.Join(v.lines[f.bottom+1:], "\n"), "ctrl+c to stop") {
		return working(c, "ctrl+c to stop")
	}
	return idle(c, "the input box")
}

// cursorBusy is "⬡ Thinking." with the tokens behind it; what is over says what
// was done, in the past.
var cursorBusy = regexp.MustCompile(`^[⬡⬢] \S+ing\b`)

// readGoose reads goose: its input line begins with "( O)>".
func readGoose(v view) Reading {
	if n := len(v.lines); n > 0 {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(v.lines[n-1]), "( O)>"); ok {
			return idle(&Composer{Text: strings.TrimSpace(rest), Row: v.first + n - 1}, "the input line")
		}
	}
	return readPrompt(v)
}

var (
	amazonAsk  = regexp.MustCompile(`\[y/n/t\]:$`)
	amazonBusy = regexp.MustCompile(`^[⠀-⣿] \S`)
)

// readAmazonQ reads Amazon Q: the input line is ">" alone, also below a question.
func readAmazonQ(v view) Reading {
	n := len(v.lines)
	if n == 0 {
		return Reading{}
	}
	last := strings.TrimSpace(v.lines[n-1])
	if amazonBusy.MatchString(last) {
		return working(nil, last)
	}
	rest, ok := strings.CutPrefix(last, ">")
	if !ok {
		return readPrompt(v)
	}
	above := n - 2
	for above >= 0 && v.lines[above] == "" {
		above--
	}
	if above < 0 || !amazonAsk.MatchString(v.lines[above]) {
		return idle(&Composer{Text: strings.TrimSpace(rest), Row: v.first + n - 1}, "the input line")
	}
	top := above
	for top > 0 && above-top < 60 && !strings.Contains(v.lines[top], "Using tool:") {
		top--
	}
	d := &session.Dialog{Title: strings.TrimSpace(v.lines[above]), Text: text(v.lines[top:above]), Options: []session.Option{
		{ID: "y", Label: "y", Role: session.Approve, Keys: []string{"y", "Enter"}},
		{ID: "n", Label: "n", Role: session.Deny, Keys: []string{"n", "Enter"}},
		{ID: "t", Label: "t", Role: session.ApproveAlways, Keys: []string{"t", "Enter"}},
	}}
	return waiting(session.Permission, d.Title, d)
}
