package item

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Hostile says whether a text holds characters that can make a terminal or a
// page show something else than what is there: control characters other than
// newline and tab, and those that change the direction of text or are invisible.
func Hostile(s string) bool {
	for _, r := range s {
		if hostile(r) {
			return true
		}
	}
	return false
}

func hostile(r rune) bool {
	switch {
	case r == '\n' || r == '\t':
		return false
	case r < 0x20 || r >= 0x7f && r < 0xa0:
		return true
	case r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069, // embeddings, overrides, isolates
		r == 0x200e || r == 0x200f || r == 0x061c, // marks
		r == 0x2028 || r == 0x2029,                // separators that some terminals obey
		r >= 0xe0000 && r <= 0xe007f:              // tags, which carry hidden text
		return true
	}
	return false
}

// Plain makes a text safe to print on a terminal: newline and tab stay, other
// control characters become their pictures or �, and what changes direction or
// hides text is left out. Carriage returns before a newline are dropped.
func Plain(s string) string {
	if !Hostile(s) && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	b.Grow(len(s))
	for i, r := range s {
		switch {
		case r == '\r' && strings.HasPrefix(s[i+1:], "\n"):
		case r == '\n' || r == '\t':
			b.WriteRune(r)
		case r < 0x20:
			b.WriteRune(0x2400 + r)
		case r == 0x7f:
			b.WriteRune('\u2421')
		case unicode.IsControl(r):
			b.WriteRune(utf8.RuneError)
		case hostile(r):
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// Line makes a text one line of at most max bytes, cut on a rune boundary with
// an ellipsis, for titles and details.
func Line(s string, max int) string {
	s = strings.TrimSpace(s)
	if len(s) > 4*max {
		s = s[:4*max] // what follows could not be shown
	}
	s = strings.Join(strings.Fields(Plain(strings.ToValidUTF8(s, "\uFFFD"))), " ")
	if len(s) <= max {
		return s
	}
	return CutRunes(s, max-len("…")) + "…"
}

// CutRunes returns the longest beginning of s of at most max bytes that ends on
// a rune boundary.
func CutRunes(s string, max int) string {
	if max < 0 {
		return ""
	}
	if len(s) <= max {
		return s
	}
	for max > 0 && !utf8.RuneStart(s[max]) {
		max--
	}
	return s[:max]
}

// NewBody makes a body of a text that is whole.
func NewBody(s string) Body { return Body{Text: s, Control: Hostile(s)} }
