// Package style reads the escape sequences in one row of a screen, as tmux gives it
// with capture-pane -e: which characters stand there and which of them are faint.
//
// It knows one row and nothing that was before it. What a caller will get wrong:
// the length of a row is not bounded here.
package style

import (
	"strings"
	"unicode/utf8"
)

// A Glyph is a character with what matters of its style.
type Glyph struct {
	Rune  rune
	Faint bool
}

// Glyphs reads a row with escape sequences (ECMA-48 CSI, SGR for the style). It
// never fails: what it does not know it leaves out.
func Glyphs(row string) []Glyph {
	var out []Glyph
	faint := false
	for i := 0; i < len(row); {
		if row[i] != 0x1b {
			r, n := utf8.DecodeRuneInString(row[i:])
			out = append(out, Glyph{r, faint})
			i += n
			continue
		}
		i++
		if i < len(row) && row[i] == ']' { // OSC, up to BEL or ST
			for i < len(row) && row[i] != 0x07 && row[i] != 0x1b {
				i++
			}
			if i < len(row) && row[i] == 0x07 {
				i++
			}
			continue
		}
		if i >= len(row) || row[i] != '[' {
			for i < len(row) && row[i] >= 0x20 && row[i] <= 0x2f { // ESC ( B and its like
				i++
			}
			i = min(i+1, len(row))
			continue
		}
		from := i + 1
		for i = from; i < len(row) && (row[i] < 0x40 || row[i] > 0x7e); i++ {
		}
		if i < len(row) && row[i] == 'm' {
			faint = sgr(row[from:i], faint)
		}
		i = min(i+1, len(row))
	}
	return out
}

// sgr follows faintness through the parameters of one sequence.
func sgr(params string, faint bool) bool {
	skip := 0
	for _, p := range strings.Split(params, ";") {
		switch {
		case skip < 0: // the kind of a colour: 5;N or 2;R;G;B
			skip = map[string]int{"5": 1, "2": 3}[p]
		case skip > 0:
			skip--
		case p == "38" || p == "48" || p == "58":
			skip = -1
		case p == "2":
			faint = true
		case p == "" || p == "0" || p == "22":
			faint = false
		}
	}
	return faint
}
