package screen

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"holdfast/internal/session/screen/style"
)

// A view is a screen made ready for reading: its last rows, blanks at the end
// cut, without what a terminal would not show.
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
		clean[i] = Plain(line)
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

// width is that of the screen, or of its longest row where that is not known.
func (v view) width() int {
	if v.Cols > 0 {
		return v.Cols
	}
	w := 0
	for _, l := range v.lines {
		w = max(w, cells(l))
	}
	return w
}

// tail is the last n lines that are not blank, joined.
func (v view) tail(n int) string {
	i := len(v.lines)
	for ; i > 0 && n > 0; i-- {
		if v.lines[i-1] != "" {
			n--
		}
	}
	return strings.Join(v.lines[i:], "\n")
}

// Plain is a row of a screen as text: escape sequences and control characters
// gone, no-break spaces and tabs as spaces, blanks at the end cut, at most 4 KiB.
func Plain(row string) string {
	row = cut(row, 4*maxLine) // colours take room
	if strings.IndexByte(row, 0x1b) >= 0 {
		var b strings.Builder
		for _, r := range style.Glyphs(row) {
			b.WriteRune(r.Rune)
		}
		row = b.String()
	}
	row = strings.Map(func(r rune) rune {
		switch {
		case r == '\t', r == '\u00a0':
			return ' '
		case r == utf8.RuneError, unicode.IsControl(r):
			return -1
		}
		return r
	}, row)
	return strings.TrimRight(cut(row, maxLine), " ")
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

// Rules are drawn with these.
const (
	solid  = "─━═"
	dashed = "─━═╌╍┄┈▔"
)

// rule says whether a line is a horizontal rule of at least ten cells, made of
// the given runes; a short label in it ("── name ──") is allowed, and corners.
func rule(line, runes string) bool {
	line = strings.Trim(strings.TrimSpace(line), "╭╮╰╯┌┐└┘")
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

// sides of boxes.
var sides = []string{"│", "┃", "║", "▌", "▎"}

// unbox takes the sides of a box off a line and keeps the indent inside it:
// "│ text  │" is " text".
func unbox(line string) string {
	rest := strings.TrimLeft(line, " ")
	for _, side := range sides {
		if inner, ok := strings.CutPrefix(rest, side); ok {
			return strings.TrimRight(strings.TrimSuffix(inner, side), " ")
		}
	}
	return line
}

// hasAny says whether s contains one of the words, which are lower case,
// ignoring case.
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

// text joins the lines of a dialog's body without frames, the indent that they
// share, and advice.
func text(lines []string) string {
	var kept []string
	least := -1
	for i := 0; i < len(lines); i++ {
		l := lines[i]
		if rule(l, dashed) {
			continue
		}
		if n := advice(lines[i:]); n > 0 {
			i += n - 1
			continue
		}
		if l = unbox(l); l != "" && (least < 0 || indent(l) < least) {
			least = indent(l)
		}
		kept = append(kept, l)
	}
	kept = trimBlank(kept)
	var out []string
	for i, l := range kept {
		if l == "" && i > 0 && kept[i-1] == "" {
			continue
		}
		if l != "" {
			l = l[least:]
		}
		out = append(out, l)
	}
	return strings.Join(out, "\n")
}

// advice is how many of the lines that begin here are a tip of the tool's own.
// The one that is known to be wrapped on a narrow terminal ends in a known word;
// of any other the first line is taken, so that nothing that is asked goes with
// it.
func advice(lines []string) int {
	first := strings.TrimSpace(lines[0])
	if !strings.HasPrefix(first, "Tip:") {
		return 0
	}
	const whole = `Tip: auto mode handles these prompts for you — choose "switch to auto mode" below`
	said := ""
	for i, l := range lines {
		said = strings.TrimSpace(said + " " + strings.TrimSpace(l))
		if said == whole {
			return i + 1
		}
		if !strings.HasPrefix(whole, said) {
			break
		}
	}
	return 1
}

// cells is about how many cells a text takes: wide characters count twice,
// those that combine not at all.
func cells(s string) int {
	n := 0
	for _, r := range s {
		switch {
		case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		case r >= 0x1100 && r <= 0x115f, r >= 0x2e80 && r <= 0xa4cf, r >= 0xac00 && r <= 0xd7a3,
			r >= 0xf900 && r <= 0xfaff, r >= 0xfe30 && r <= 0xfe6f, r >= 0xff00 && r <= 0xff60,
			r >= 0xffe0 && r <= 0xffe6, r >= 0x1f300 && r <= 0x1faff, r >= 0x20000 && r <= 0x3fffd:
			n += 2
		default:
			n++
		}
	}
	return n
}
