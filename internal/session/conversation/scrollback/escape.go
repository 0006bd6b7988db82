package scrollback

import (
	"fmt"
	"strconv"
	"strings"
)

// escape reads the escape sequence that s begins with and returns its length.
func (p *parser) escape(s string) int {
	if len(s) < 2 {
		return len(s)
	}
	switch s[1] {
	case '[': // CSI: parameters, intermediates, one final byte
		i := 2
		for i < len(s) && s[i] >= 0x20 && s[i] < 0x40 {
			i++
		}
		if i == len(s) {
			return i
		}
		if s[i] == 'm' && s[i-1] >= '0' || s[i] == 'm' && i == 2 {
			p.sgr(s[2:i])
		}
		return i + 1
	case ']', 'P', 'X', '^', '_': // strings: to ST or BEL
		body, n := s[2:], len(s)
		for i := 2; i < len(s); i++ {
			if s[i] == 0x07 {
				body, n = s[2:i], i+1
				break
			}
			if s[i] == 0x1b && i+1 < len(s) && s[i+1] == '\\' {
				body, n = s[2:i], i+2
				break
			}
		}
		if s[1] == ']' {
			p.osc(body)
		}
		return n
	case '(', ')', '*', '+': // character sets
		if len(s) < 3 {
			return len(s)
		}
		if s[1] == '(' {
			p.lines = s[2] == '0'
		}
		return 3
	}
	return 2
}

// osc reads a link: OSC 8 ; parameters ; address.
func (p *parser) osc(body string) {
	rest, ok := strings.CutPrefix(body, "8;")
	if !ok {
		return
	}
	_, link, _ := strings.Cut(rest, ";")
	p.style.Link = ""
	if len(link) > maxLink || strings.ContainsFunc(link, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return
	}
	low := strings.ToLower(link)
	for _, scheme := range []string{"https://", "http://", "mailto:"} {
		if strings.HasPrefix(low, scheme) {
			p.style.Link = link
		}
	}
}

// sgr applies a selection of styles. Parameters are divided by semicolons, their
// parts by colons.
func (p *parser) sgr(params string) {
	if len(params) > 256 {
		return
	}
	list := strings.Split(params, ";")
	for i := 0; i < len(list); i++ {
		parts := strings.Split(list[i], ":")
		n, err := strconv.Atoi(parts[0])
		if parts[0] == "" {
			n, err = 0, nil
		}
		if err != nil {
			continue
		}
		switch n {
		case 38, 48, 58:
			var colour string
			if len(parts) > 1 {
				colour = colourOf(parts[1:])
			} else {
				var used int
				colour, used = colourOf(list[i+1:]), width(list[i+1:])
				i += used
			}
			switch n {
			case 38:
				p.style.FG = colour
			case 48:
				p.style.BG = colour
			case 58:
				p.style.UL = colour
			}
		case 4:
			p.style.Underline = "single"
			if len(parts) > 1 {
				p.style.Underline = underlines[parts[1]]
			}
		default:
			p.set(n)
		}
	}
}

var underlines = map[string]string{"1": "single", "2": "double", "3": "curly", "4": "dotted", "5": "dashed"}

// width is how many parameters a colour takes.
func width(list []string) int {
	if len(list) == 0 {
		return 0
	}
	switch list[0] {
	case "5":
		return min(2, len(list))
	case "2":
		return min(4, len(list))
	}
	return 1
}

// colourOf reads 5;N, 2;R;G;B and, with colons, 2::R:G:B.
func colourOf(list []string) string {
	if len(list) < 2 {
		return ""
	}
	number := func(s string) (int, bool) {
		n, err := strconv.Atoi(s)
		return n, err == nil && n >= 0 && n <= 255
	}
	switch list[0] {
	case "5":
		if n, ok := number(list[1]); ok {
			return strconv.Itoa(n)
		}
	case "2":
		rgb := list[1:]
		if len(rgb) >= 4 && rgb[0] == "" {
			rgb = rgb[1:] // the colour space
		}
		if len(rgb) < 3 {
			return ""
		}
		r, ok1 := number(rgb[0])
		g, ok2 := number(rgb[1])
		b, ok3 := number(rgb[2])
		if ok1 && ok2 && ok3 {
			return fmt.Sprintf("#%02x%02x%02x", r, g, b)
		}
	}
	return ""
}

// set applies a style of one number.
func (p *parser) set(n int) {
	s := &p.style
	switch {
	case n == 0:
		*s = Style{Link: s.Link}
	case n == 1:
		s.Bold = true
	case n == 2:
		s.Dim = true
	case n == 3:
		s.Italic = true
	case n == 5 || n == 6:
		s.Blink = true
	case n == 7:
		s.Reverse = true
	case n == 8:
		s.Hidden = true
	case n == 9:
		s.Strike = true
	case n == 21:
		s.Underline = "double"
	case n == 22:
		s.Bold, s.Dim = false, false
	case n == 23:
		s.Italic = false
	case n == 24:
		s.Underline = ""
	case n == 25:
		s.Blink = false
	case n == 27:
		s.Reverse = false
	case n == 28:
		s.Hidden = false
	case n == 29:
		s.Strike = false
	case n >= 30 && n <= 37:
		s.FG = strconv.Itoa(n - 30)
	case n == 39:
		s.FG = ""
	case n >= 40 && n <= 47:
		s.BG = strconv.Itoa(n - 40)
	case n == 49:
		s.BG = ""
	case n == 53:
		s.Overline = true
	case n == 55:
		s.Overline = false
	case n == 59:
		s.UL = ""
	case n >= 90 && n <= 97:
		s.FG = strconv.Itoa(n - 90 + 8)
	case n >= 100 && n <= 107:
		s.BG = strconv.Itoa(n - 100 + 8)
	}
}
