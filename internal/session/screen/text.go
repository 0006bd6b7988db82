package screen

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// A view is a screen made ready for reading: its last rows without borders of
// whole boxes removed, blanks at the end cut.
type view struct {
	Screen
	lines []string // at most maxLines, no blank ones at the end
	first int      // the row of lines[0] on the screen
}

func newView(s Screen) view {
	v := view{Screen: s, lines: s.Lines}
	if over := len(v.lines) - maxLines; over > 0 {
		v.lines, v.first = v.lines[over:], over
	}
	clean := make([]string, len(v.lines))
	for i, line := range v.lines {
		clean[i] = plain(cut(line, maxLine))
	}
	v.lines = clean
	for len(v.lines) > 0 && v.lines[len(v.lines)-1] == "" {
		v.lines = v.lines[:len(v.lines)-1]
	}
	return v
}

// cursor is the index into lines of the row that the cursor is on, or -1.
func (v view) cursor() int {
	if i := v.CursorY - v.first; v.CursorY >= 0 && i >= 0 && i < len(v.lines) {
		return i
	}
	return -1
}

// tail is the last n lines that are not blank, joined.
func (v view) tail(n int) string {
	var out []string
	for i := len(v.lines) - 1; i >= 0 && len(out) < n; i-- {
		if v.lines[i] != "" {
			out = append(out, v.lines[i])
		}
	}
	return strings.Join(out, "\n")
}

// plain replaces what a terminal would not show as text, and cuts blanks at the
// end; no-break spaces count as blanks, as tools write them into prompts.
func plain(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\t', r == '\u00a0':
			return ' '
		case r == utf8.RuneError, unicode.IsControl(r):
			return -1
		}
		return r
	}, s)
	return strings.TrimRight(s, " ")
}

// oneLine folds every run of blanks and breaks into one space.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// cut shortens s to at most n bytes on a rune boundary.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// cutFront keeps at most the last n bytes of s on a rune boundary.
func cutFront(s string, n int) string {
	if len(s) <= n {
		return s
	}
	i := len(s) - n
	for i < len(s) && !utf8.RuneStart(s[i]) {
		i++
	}
	return s[i:]
}

// rule says whether a line is a horizontal rule of at least ten cells, made of
// the given runes; a short label in it ("── name ──") is allowed.
func rule(line, runes string) bool {
	line = strings.TrimSpace(line)
	n, other := 0, 0
	for _, r := range line {
		if strings.ContainsRune(runes, r) {
			n++
		} else {
			other++
		}
	}
	first, _ := utf8.DecodeRuneInString(line)
	last, _ := utf8.DecodeLastRuneInString(line)
	return n >= 10 && other <= n && strings.ContainsRune(runes, first) && strings.ContainsRune(runes, last)
}

// indent counts the blanks that a line begins with.
func indent(line string) int { return len(line) - len(strings.TrimLeft(line, " ")) }

// unbox takes the sides of a box off a line: "│ text  │" is "text".
func unbox(line string) string {
	line = strings.TrimSpace(line)
	for _, side := range []string{"│", "┃", "║", "▌", "▎", "|"} {
		if rest, ok := strings.CutPrefix(line, side); ok {
			line = rest
			line = strings.TrimSuffix(strings.TrimRight(line, " "), side)
			break
		}
	}
	return strings.TrimRight(line, " ")
}

// hasAny says whether s contains one of the words, ignoring case.
func hasAny(s string, words ...string) bool {
	s = strings.ToLower(s)
	for _, w := range words {
		if strings.Contains(s, w) {
			return true
		}
	}
	return false
}

// trimBlank cuts blank lines at both ends.
func trimBlank(lines []string) []string {
	for len(lines) > 0 && strings.TrimSpace(lines[0]) == "" {
		lines = lines[1:]
	}
	for len(lines) > 0 && strings.TrimSpace(lines[len(lines)-1]) == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}

// dedent joins lines without the indent that they share.
func dedent(lines []string) string {
	lines = trimBlank(lines)
	least := -1
	for _, l := range lines {
		if l != "" && (least < 0 || indent(l) < least) {
			least = indent(l)
		}
	}
	out := make([]string, len(lines))
	for i, l := range lines {
		if l != "" {
			l = l[least:]
		}
		out[i] = l
	}
	return strings.Join(out, "\n")
}
