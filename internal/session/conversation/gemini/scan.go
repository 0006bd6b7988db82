package gemini

import "holdfast/internal/session/conversation/segment"

// A scanner finds the elements of the array "messages" of a JSON object, and the
// string "summary", byte by byte: the file may be larger than memory. It does not
// validate; what it finds is decoded later.
type scanner struct {
	depth  int
	inText bool
	esc    bool
	start  int64  // of the string, or of the element
	text   []byte // the beginning of the string, for keys
	key    string
	inside bool // in the array of messages

	found   []segment.Segment
	summary segment.Segment
}

func (s *scanner) step(c byte, at int64) {
	if s.inText {
		switch {
		case s.esc:
			s.esc = false
		case c == '\\':
			s.esc = true
		case c == '"':
			s.inText = false
			if s.depth == 1 && s.key == "summary" {
				s.summary = segment.Segment{Start: s.start, End: at + 1}
				s.key = ""
			}
			return
		}
		if s.depth == 1 && len(s.text) < 16 {
			s.text = append(s.text, c)
		}
		return
	}
	switch c {
	case '"':
		s.inText, s.esc = true, false
		if s.depth == 1 {
			s.text, s.start = s.text[:0], at
		}
	case ':':
		if s.depth == 1 {
			s.key = string(s.text)
		}
	case ',':
		if s.depth == 1 {
			s.key = ""
		}
	case '{', '[':
		s.depth++
		if s.depth == 2 && c == '[' && s.key == "messages" {
			s.inside = true
		}
		if s.depth == 3 && s.inside {
			s.start = at
		}
	case '}', ']':
		if s.depth == 3 && s.inside && c == '}' {
			s.found = append(s.found, segment.Segment{At: s.start, Start: s.start, End: at + 1})
			if len(s.found) > 2*segment.Max {
				s.found = segment.Trim(s.found)
			}
		}
		if s.depth == 2 {
			s.inside = false
		}
		if s.depth > 0 {
			s.depth--
		}
	}
}
