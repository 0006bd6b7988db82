package screen

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"holdfast/internal/session"
	"holdfast/internal/session/screen/style"
)

// box is an input box between two rules: the tool's footer below it, its
// transcript and status above.
type box struct {
	top, bottom int // lines of the rules
	composer    Composer
}

// claudeFooter is the most lines that Claude Code shows below its input box:
// hints, the status line of the person, a list of tasks, agents or commands.
const claudeFooter = 25

// claudeBox finds Claude Code's input box: the last rule of the screen and the
// one before it, with a line between them that begins with the mark of the box
// and only lines that are indented after it.
func claudeBox(v view) (box, bool) {
	for i := len(v.lines) - 1; i >= 0 && len(v.lines)-i <= claudeFooter; i-- {
		if !rule(v.lines[i], solid) {
			continue
		}
		top := i - 1
		for top >= 0 && !rule(v.lines[top], solid) {
			top--
		}
		if top < 0 || i-top < 2 {
			return box{}, false
		}
		mark, rest, ok := inputMark(unbox(v.lines[top+1]))
		if !ok {
			return box{}, false
		}
		text := []string{rest}
		for _, line := range v.lines[top+2 : i] {
			line = strings.TrimPrefix(unbox(line), " ")
			if line != "" && line[0] != ' ' {
				return box{}, false
			}
			text = append(text, strings.TrimPrefix(line, " "))
		}
		below := view{Screen: v.Screen, lines: v.lines[i+1:]}
		if _, menu := below.numbered(); menu {
			return box{}, false // the rule is the upper edge of a dialog
		}
		c := Composer{Text: strings.TrimRight(strings.Join(text, "\n"), "\n "), Row: v.first + top + 1}
		if v.placeholder(top+1, mark) || claudePlaceholder(c.Text) {
			c.Text = ""
		}
		if mark == "!" {
			c.Text = strings.TrimRight("! "+c.Text, " ")
		}
		return box{top: top, bottom: i, composer: c}, true
	}
	return box{}, false
}

// inputMark takes the mark of an input line off it.
func inputMark(line string) (mark, rest string, ok bool) {
	line = strings.TrimPrefix(line, " ")
	for _, mark := range []string{"❯", ">", "!", "#", "&"} {
		if rest, ok := strings.CutPrefix(line, mark); ok && (rest == "" || rest[0] == ' ') {
			return mark, strings.TrimPrefix(rest, " "), true
		}
	}
	return "", "", false
}

// placeholder says that what stands behind the mark of line i is a suggestion
// of the tool: drawn faint. Where the style is not known it is what has the
// cursor before its first character, since a suggestion goes as one types.
func (v view) placeholder(i int, mark string) bool {
	row := i + v.first
	if row < len(v.Styled) {
		glyphs := style.Glyphs(cut(v.Styled[row], 4*maxLine))
		from := 0
		for from < len(glyphs) && !strings.ContainsRune(mark, glyphs[from].Rune) {
			from++
		}
		n, faint := 0, 0
		for _, g := range glyphs[min(from+1, len(glyphs)):] {
			if g.Rune == ' ' || g.Rune == '\u00a0' || strings.ContainsRune("│┃║", g.Rune) {
				continue
			}
			if n++; g.Faint {
				faint++
			}
		}
		// The first character may be drawn as the cursor.
		return faint > 0 && faint >= n-1
	}
	return v.cursor() == i && v.CursorX == len([]rune(mark))+1
}

func claudePlaceholder(text string) bool {
	return strings.HasPrefix(text, `Try "`) || text == "Press up to edit queued messages"
}

var (
	// claudeStatus is the line of the turn: a star that turns, and words. It stands
	// at the margin, where neither quoted output nor answers begin.
	claudeStatus = regexp.MustCompile(`^[·✢✳✶✻✽✺∗*] \S`)
	// claudeBusy tells a turn that goes on from the sum of one that is over.
	claudeBusy = regexp.MustCompile(`^\S [^·(]*…|retrying in \d|to interrupt\)`)
	// claudeTasks counts what goes on beside the turn.
	claudeTasks = regexp.MustCompile(`(?i)\b(\d+) (?:background tasks?|shells?|local agents?|background agents?|bash(?:es)?|monitors?|background terminals?|teammates?)\b`)
	// claudeLimit are the errors that only the person can mend.
	claudeLimit = regexp.MustCompile(`(?i)API Error:.*\b(?:401|403|429)\b|run /login|Invalid API key|Not logged in|Credit balance is too low|(?:usage|rate) limit|hit your \w*\s?limit|OAuth token|organization has been disabled|authenticat`)
)

func readClaude(v view) Reading {
	if hasAny(v.tail(1), "showing detailed transcript") {
		return Reading{} // what was printed once, dialogs too
	}
	if b, ok := claudeBox(v); ok {
		return claudeComposer(v, b)
	}
	return claudeDialog(v)
}

// claudeComposer reads a screen that has the input box: the turn runs or is over.
func claudeComposer(v view, b box) Reading {
	r := Reading{Composer: &b.composer}
	footer := strings.Join(v.lines[b.bottom+1:], "\n")
	r.BackgroundTasks = count(footer)
	if hasAny(footer, "esc to interrupt", "ctrl+c to interrupt") {
		r.State, r.Detail = session.Working, "esc to interrupt"
	}
	// Up to the last line at the margin: the status of the turn, or the end of the
	// transcript. What is indented belongs to either.
	interrupted, problem := false, ""
	for i, seen := b.top-1, 0; i >= 0 && seen < 60; i-- {
		line := v.lines[i]
		if line == "" {
			continue
		}
		seen++
		inner := strings.TrimSpace(line)
		switch {
		case claudeStatus.MatchString(line):
			if claudeBusy.MatchString(line) {
				r.State, r.Detail = session.Working, lastWords(line)
				return r
			}
			r.BackgroundTasks = max(r.BackgroundTasks, count(line))
			continue // the sum of the turn stands below the answer
		case strings.HasPrefix(inner, "⎿") && strings.Contains(inner, "Interrupted"):
			interrupted = true
		case strings.HasPrefix(inner, "⎿") && claudeLimit.MatchString(inner):
			problem = inner
		}
		if line[0] != ' ' {
			if answer := strings.TrimLeft(line, "●⏺ "); strings.HasPrefix(answer, "API Error:") || strings.HasPrefix(answer, "Please run /login") {
				problem = answer
			}
			break
		}
	}
	switch {
	case r.State != "":
	case interrupted:
		r.State, r.Detail = session.Idle, "Interrupted"
	case claudeLimit.MatchString(problem):
		r.State, r.Kind, r.Detail = session.Waiting, session.Limit, lastWords(problem)
	case problem != "":
		r.State, r.Detail = session.Idle, lastWords(problem)
	default:
		r.State, r.Detail = session.Idle, "the input box"
	}
	if r.State == session.Idle && r.BackgroundTasks > 0 {
		r.State, r.Detail = session.Background, "background tasks: "+strconv.Itoa(r.BackgroundTasks)
	}
	return r
}

func count(s string) int {
	most := 0
	for _, m := range claudeTasks.FindAllStringSubmatch(s, -1) {
		n, err := strconv.Atoi(m[1])
		if err == nil && n < 1000 {
			most += n
		}
	}
	return most
}

// claudeHints are the most lines below the options of a dialog.
const claudeHints = 6

// claudeDialog reads a screen whose bottom is a list of options.
func claudeDialog(v view) Reading {
	m, ok := v.numbered()
	if ok && len(v.lines)-m.to > claudeHints {
		return Reading{}
	}
	if !ok {
		// A list without numbers is one only with the hint how to use it.
		if m, ok = v.listed(); !ok || len(v.lines)-m.to > claudeHints || !hasAny(v.tail(2), "enter to", "esc to") {
			return Reading{}
		}
	}
	footer := strings.Join(v.lines[m.to:], "\n")
	if strings.Contains(footer, "\n●") || strings.Contains(footer, "❯") {
		return Reading{}
	}
	if slices.ContainsFunc(v.lines[m.to:], func(line string) bool { return rule(line, solid) }) {
		return Reading{} // the edge of something else below it
	}
	// The dialog begins below a thin bar at its top, or else below the last rule;
	// dashes frame the command, the diff or the plan inside.
	top := -1
	for i := m.from - 1; i >= 0 && top < 0; i-- {
		if rule(v.lines[i], "▔") {
			top = i
		}
	}
	for i := m.from - 1; i >= 0 && top < 0; i-- {
		if rule(v.lines[i], solid) {
			top = i
		}
	}
	body := trimBlank(v.lines[top+1 : m.from])
	d := &session.Dialog{Options: m.options, Text: text(body)}
	if strings.Contains(d.Text, "Review your answers") {
		d.Title = "Review your answers"
	}
	for i := len(body) - 1; i >= 0 && d.Title == ""; i-- {
		if line := strings.TrimSpace(unbox(body[i])); strings.HasSuffix(line, "?") {
			d.Title = line
			// A question that did not fit into one line.
			if words := strings.Fields(line); i > 0 && len(words) > 0 {
				if above := body[i-1]; above != "" && !rule(above, dashed) && cells(above)+1+cells(words[0]) > v.width()-5 {
					d.Title = strings.TrimSpace(unbox(above)) + " " + line
				}
			}
		}
	}
	if lines := strings.Split(d.Text, "\n"); d.Title == "" {
		d.Title = strings.TrimSpace(lines[0])
	}
	kind := session.Question
	switch permission := roles(d.Options); {
	case hasAny(d.Text, "select login method", "log in to"):
		kind = session.Limit
	case hasAny(footer, "enter to select") || strings.Contains(d.Text, "☐") || strings.Contains(d.Text, "☒") || d.Title == "Review your answers":
	case permission, hasAny(d.Title, "do you want", "would you like", "ready to code"):
		kind = session.Permission
	}
	// The answers of a question are the model's words, not the program's.
	words := hasAny(footer, "enter to select")
	for i := range d.Options {
		if r := d.Options[i].Role; kind != session.Permission && r != session.FreeText && (words || r != session.Deny) {
			d.Options[i].Role = ""
		}
	}
	offerEscape(d, footer)
	if kind == session.Permission && strings.Contains(footer, "ctrl+g to edit") {
		d.Options = append(d.Options, session.Option{ID: "esc", Label: "Esc", Role: session.Deny, Keys: []string{"Escape"}})
	}
	return waiting(kind, d.Title, d)
}
