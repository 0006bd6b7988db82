package screen

import (
	"regexp"
	"strconv"
	"strings"

	"holdfast/internal/session"
)

// box is an input box between two rules: the tool's footer below it, its
// transcript and spinner above.
type box struct {
	top, bottom int // lines of the rules; bottom is len(lines) when it is cut off
	composer    Composer
}

// claudeFooter is the most lines that Claude Code shows below its input box:
// hints, the status line of the person, a list of tasks or of commands.
const claudeFooter = 25

// claudeBox finds Claude Code's input box: the last rule of the screen that is
// followed by "❯", up to the next rule.
func claudeBox(v view) (box, bool) {
	for i := len(v.lines) - 1; i >= 0 && len(v.lines)-i <= claudeFooter; i-- {
		if !rule(v.lines[i], "─━") {
			continue
		}
		// The bottom rule; its partner is above.
		for top := i - 1; top >= 0 && i-top <= max(v.Rows, 60); top-- {
			if !rule(v.lines[top], "─━") {
				continue
			}
			mark, rest, ok := inputMark(v.lines[top+1])
			if !ok {
				return box{}, false
			}
			// A menu has its options in the same place.
			if entry.MatchString(v.lines[top+1]) && i-top > 2 && pointerMenu(v.lines[top+1:i]) {
				return box{}, false
			}
			text := []string{rest}
			for _, line := range v.lines[top+2 : i] {
				text = append(text, strings.TrimPrefix(line, "  "))
			}
			c := Composer{Text: strings.TrimRight(strings.Join(text, "\n"), "\n "), Row: v.first + top + 1}
			if mark == "!" && c.Text != "" {
				c.Text = "! " + c.Text
			}
			if v.placeholder(top+1, mark) || placeholderWords(c.Text) {
				c.Text = ""
			}
			return box{top: top, bottom: i, composer: c}, true
		}
		return box{}, false
	}
	return box{}, false
}

// pointerMenu says whether lines hold more than one option.
func pointerMenu(lines []string) bool {
	n := 0
	for _, l := range lines {
		if entry.MatchString(l) {
			n++
		}
	}
	return n > 1
}

// inputMark takes the mark of an input line off it.
func inputMark(line string) (mark, rest string, ok bool) {
	for _, mark := range []string{"❯", ">", "!", "#", "&"} {
		if rest, ok := strings.CutPrefix(line, mark); ok && (rest == "" || rest[0] == ' ') {
			return mark, strings.TrimPrefix(rest, " "), true
		}
	}
	return "", "", false
}

// placeholder says that what stands in the input line i is a suggestion: the
// tool shows one only while nothing is typed, with the cursor at the beginning.
func (v view) placeholder(i int, mark string) bool {
	return v.cursor() == i && v.CursorX == len([]rune(mark))+1
}

func placeholderWords(text string) bool {
	return strings.HasPrefix(text, `Try "`) || text == "Press up to edit queued messages"
}

var (
	// spinner is the line of a turn that goes on: a star that turns, a verb and an
	// ellipsis.
	spinner = regexp.MustCompile(`^ ?[·✢✳✶✻✽*✺∗] .*…`)
	// tasks counts what runs beside the turn.
	tasks = regexp.MustCompile(`(?i)\b(\d+) (?:background tasks?|shells?(?: still running)?|local agents?|background agents?|bashes|monitors?)\b`)
	// limits are the errors that only the person can mend.
	limits = regexp.MustCompile(`(?i)API Error: 40[13]|Please run /login|Invalid API key|Not logged in|Credit balance is too low|usage limit reached|hit your (?:\w+ )?limit|OAuth token (?:has expired|revoked)|organization has been disabled`)
)

func readClaude(v view) Reading {
	if b, ok := claudeBox(v); ok {
		return claudeComposer(v, b)
	}
	if r, ok := claudeDialog(v); ok {
		return r
	}
	return Reading{}
}

// claudeComposer reads a screen that has the input box: the turn runs or is over.
func claudeComposer(v view, b box) Reading {
	r := Reading{Composer: &b.composer}
	footer := strings.Join(v.lines[min(b.bottom+1, len(v.lines)):], "\n")
	if m := tasks.FindStringSubmatch(footer); m != nil {
		r.BackgroundTasks, _ = strconv.Atoi(m[1])
	}
	if hasAny(footer, "esc to interrupt", "ctrl+c to interrupt") {
		r.State, r.Detail = session.Working, "esc to interrupt"
		return r
	}
	// The block above the box: back to the first line that begins at the margin
	// with something else than what belongs to the status of the turn.
	for i, seen := b.top-1, 0; i >= 0 && seen < 12; i-- {
		line := v.lines[i]
		if line == "" {
			continue
		}
		seen++
		switch {
		case spinner.MatchString(line):
			r.State, r.Detail = session.Working, lastWords(line)
			return r
		case strings.HasPrefix(strings.TrimSpace(line), "⎿") && strings.Contains(line, "Interrupted"):
			r.State, r.Detail = session.Idle, "Interrupted"
			return r
		}
		if strings.HasPrefix(line, "●") || strings.HasPrefix(line, "⏺") || strings.HasPrefix(line, "❯") {
			if limits.MatchString(line) {
				return Reading{State: session.Waiting, Kind: session.Limit, Detail: lastWords(line), Composer: r.Composer, BackgroundTasks: r.BackgroundTasks}
			}
			break
		}
	}
	r.State, r.Detail = session.Idle, "input box"
	if r.BackgroundTasks > 0 {
		r.State, r.Detail = session.Background, "background tasks: "+strconv.Itoa(r.BackgroundTasks)
	}
	return r
}

// claudeDialog reads a screen whose bottom is a list of options.
func claudeDialog(v view) (Reading, bool) {
	m, ok := numbered(v.lines, 0, len(v.lines))
	if !ok || len(v.lines)-m.to > 8 {
		return Reading{}, false
	}
	// The dialog begins below the last rule of full width that is above its
	// question; what is drawn with dashes inside frames the command or the diff.
	top := -1
	for i := m.from - 1; i >= 0; i-- {
		if rule(v.lines[i], "─━") {
			top = i
			break
		}
	}
	body := trimBlank(v.lines[top+1 : m.from])
	d := &session.Dialog{Options: m.options}
	footer := strings.Join(v.lines[m.to:], "\n")
	question := len(body) - 1
	for question >= 0 && !strings.HasSuffix(body[question], "?") {
		question--
	}
	if question >= 0 {
		d.Title = strings.TrimSpace(body[question])
	} else if len(body) > 0 {
		d.Title = strings.TrimSpace(body[0])
	}
	d.Text = claudeText(body)
	kind := session.Permission
	if hasAny(footer, "enter to select", "to navigate") || hasAny(strings.Join(body, "\n"), "review your answers") {
		kind = session.Question
	}
	if kind == session.Permission {
		roles(d.Options)
	}
	return waiting(kind, d.Title, d), true
}

// claudeText is the body of a dialog without its frames.
func claudeText(body []string) string {
	var out []string
	for _, line := range body {
		if rule(line, ruleRunes) || strings.HasPrefix(strings.TrimSpace(line), "Tip:") {
			continue
		}
		out = append(out, line)
	}
	return dedent(out)
}
