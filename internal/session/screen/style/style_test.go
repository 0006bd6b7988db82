package style

import "testing"

func TestGlyphs(t *testing.T) {
	for row, want := range map[string]string{
		"plain":                                  "plain",
		"\x1b[2mfaint\x1b[22m not":               "(faint) not",
		"\x1b[38;2;2;2;2mcolour, \x1b[1;2mfaint": "colour, (faint)",
		"\x1b[48;5;2mground":                     "ground",
		"\x1b[2;38;5;2mboth\x1b[m":               "(both)",
		"\x1b]8;;http://x\x07link\x1b]8;;\x1b\\": "link",
		"\x1b(Bcharset":                          "charset",
		"cut \x1b[2":                             "cut ",
		"cut \x1b":                               "cut ",
		"\x1b[2m日本":                              "(日本)",
		"":                                       "",
	} {
		got, faint := "", false
		for _, g := range append(Glyphs(row), Glyph{}) {
			switch {
			case g.Faint && !faint:
				got += "("
			case !g.Faint && faint:
				got += ")"
			}
			faint = g.Faint
			if g.Rune != 0 {
				got += string(g.Rune)
			}
		}
		if got != want {
			t.Errorf("%q: %q, want %q", row, got, want)
		}
	}
}

func FuzzGlyphs(f *testing.F) {
	f.Add("\x1b[38;5;2;2mx\x1b]0;t\x1b\\y")
	f.Fuzz(func(t *testing.T, row string) {
		if n := len(Glyphs(row)); n > len(row) {
			t.Errorf("%d characters in %d bytes", n, len(row))
		}
	})
}
