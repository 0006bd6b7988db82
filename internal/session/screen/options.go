package screen

import (
	"regexp"
	"strconv"
	"strings"

	"holdfast/internal/session"
)

// A menu is a numbered list of options with a pointer on one of them, as tools
// draw it.
type menu struct {
	from, to int // lines of the view, to excluded
	options  []session.Option
	pointer  int  // index of the option that the pointer is on
	ticks    bool // options have boxes to tick
}

// entry is the head of an option: an optional pointer, a number, a dot, an
// optional box to tick, and the label.
var entry = regexp.MustCompile(`^( *)(❯|›|>|▶|→|●|○)? *(\d{1,2})[.)] (\[[ xX✔✓]?\] ?|[☐☑☒◯◉] ?)?(.*)$`)

// numbered finds the last numbered list in lines[from:to]: numbers that rise by
// one from 1, exactly one of them pointed at. Lines between two heads that are
// indented deeper than the numbers belong to the option above: the rest of a
// wrapped label, or a description.
func numbered(lines []string, from, to int) (menu, bool) {
	type head struct {
		line, number, column int
		pointed, tick        bool
		label                string
	}
	var heads []head
	for i := from; i < to; i++ {
		m := entry.FindStringSubmatch(unboxKeep(lines[i]))
		if m == nil {
			continue
		}
		n, err := strconv.Atoi(m[3])
		if err != nil {
			continue
		}
		// The column in runes: pointers are one cell wide.
		text := unboxKeep(lines[i])
		column := len([]rune(text[:strings.Index(text, m[3])]))
		heads = append(heads, head{i, n, column, m[2] != "", m[4] != "", strings.TrimSpace(m[5])})
	}
	// The last run 1, 2, 3, …: numbers of a list that scrolled up have nothing to
	// do with it.
	end := len(heads)
	start := end
	for start > 0 && (start == end || heads[start-1].number == heads[start].number-1) {
		start--
		if heads[start].number == 1 {
			break
		}
	}
	if start == end || heads[start].number != 1 {
		return menu{}, false
	}
	heads = heads[start:end]
	m := menu{from: heads[0].line, to: to, pointer: -1}
	for i, h := range heads {
		if h.column != heads[0].column {
			return menu{}, false
		}
		if h.pointed {
			if m.pointer >= 0 {
				return menu{}, false
			}
			m.pointer = i
		}
		m.ticks = m.ticks || h.tick
		label := h.label
		// A label that goes on in the next line: indented to where it began.
		stop := to
		if i+1 < len(heads) {
			stop = heads[i+1].line
		}
		last := h.line
		for j := h.line + 1; j < stop; j++ {
			text := unboxKeep(lines[j])
			if text == "" || rule(text, ruleRunes) {
				break
			}
			if len([]rune(text))-len([]rune(strings.TrimLeft(text, " "))) <= h.column {
				break
			}
			last = j
			if indent(text) == h.column+len(strconv.Itoa(h.number))+2 && len([]rune(unboxKeep(lines[j-1]))) > 60 {
				label += " " + strings.TrimSpace(text)
			}
		}
		if i+1 == len(heads) {
			m.to = last + 1
		}
		m.options = append(m.options, session.Option{ID: strconv.Itoa(h.number), Label: label})
	}
	return m, m.pointer >= 0
}

// unboxKeep takes the sides of a box off without the indent inside.
func unboxKeep(line string) string {
	rest := strings.TrimLeft(line, " ")
	for _, side := range []string{"│", "┃", "║"} {
		if inner, ok := strings.CutPrefix(rest, side); ok {
			return strings.TrimRight(strings.TrimSuffix(strings.TrimRight(inner, " "), side), " ")
		}
	}
	return line
}

// ruleRunes are what horizontal rules are drawn with.
const ruleRunes = "─╌━═╍┄┈"

// roles gives the options of a permission their meaning, by the words that
// tools use.
func roles(options []session.Option) {
	for i := range options {
		options[i].Role = role(options[i].Label)
	}
}

func role(label string) session.Role {
	l := strings.ToLower(label)
	word, _, _ := strings.Cut(strings.NewReplacer(",", " ", ".", " ", ":", " ", ";", " ", "(", " ").Replace(l), " ")
	switch word {
	case "no", "deny", "reject", "cancel", "don't", "skip", "decline", "abort", "exit", "quit":
		return session.Deny
	case "yes", "allow", "approve", "accept", "run", "proceed", "apply", "trust", "always":
		if word == "always" || hasAny(l, "don't ask", "do not ask", "always", "for this session", "this session",
			"auto-accept", "auto-approve", "auto mode", "accept edits", "without asking", "any time", "allowlist", "from now on") {
			return session.ApproveAlways
		}
		if hasAny(l, "no,", "suggest changes", "modify") {
			return ""
		}
		return session.Approve
	}
	return ""
}
