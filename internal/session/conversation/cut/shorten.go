package cut

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"unicode/utf8"

	"holdfast/internal/session/conversation/item"
)

// Limits of what is kept of one line, in bytes.
const (
	// softLine is where the container being read is left out of a line; a line
	// whose texts are cut stays far below it.
	softLine = 1 << 20
	// hardLine is where a line is given up.
	hardLine = 2 << 20
	// maxCuts bounds how many texts of one line are cut.
	maxCuts = 4096
	// dataPrefix is what stays of base64 data: enough to know it.
	dataPrefix = 64
)

// ErrLarge says that a value is too large in too many small pieces.
var ErrLarge = errors.New("the record is too large")

// A place is that of a string of a line that was shortened: where its body stands in the
// file, quotes excluded.
type place struct{ start, length int64 }

// shortener copies one JSON value with long strings cut, in one pass and bounded
// memory, so that what is decoded afterwards is small however long the line is.
// It does not validate; the decoder does.
type shortener struct {
	mark string // ends a cut string: unguessable, so that no transcript forges it
	out  []byte
	cuts []place

	open []int // where the containers that are open begin in out
	skip int   // depth within a container that is left out

	inString       bool
	esc, high      bool // after a backslash; after a high surrogate
	hex            int  // digits of \uXXXX that are still to come
	code           rune
	cutting        bool
	raw            int64 // where the string's body begins in the file
	from           int   // and in out
	limit          int
	lastKey, value string
}

// run reads a line of the file; off is where r begins.
func (s *shortener) run(r io.Reader, off int64, buf []byte) error {
	for {
		n, err := r.Read(buf)
		for i := 0; i < n; {
			if s.inString && (s.cutting || s.skip > 0) && !s.esc && s.hex == 0 {
				// The rest of a cut string is passed over quickly.
				j := i
				for j < n && buf[j] != '"' && buf[j] != '\\' {
					j++
				}
				if j > i {
					i = j
					continue
				}
			}
			if err := s.step(buf[i], off+int64(i)); err != nil {
				return err
			}
			i++
		}
		off += int64(n)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (s *shortener) step(c byte, pos int64) error {
	if s.inString {
		return s.inText(c, pos)
	}
	switch c {
	case ' ', '\t', '\r', '\n', 0:
		return nil // NUL is what a power cut leaves
	case '"':
		s.inString, s.cutting, s.high = true, false, false
		s.raw = pos + 1
		s.put(c)
		s.from = len(s.out)
		s.limit = item.MaxText
		return nil
	case ':':
		s.lastKey = s.value
	case ',':
		s.lastKey = ""
	case '{', '[':
		s.lastKey = ""
		if s.skip > 0 {
			s.skip++
			return nil
		}
		s.open = append(s.open, len(s.out))
	case '}', ']':
		s.lastKey = ""
		if s.skip > 0 {
			s.skip--
			return nil
		}
		if len(s.open) > 0 {
			s.open = s.open[:len(s.open)-1]
		}
	}
	s.put(c)
	return s.bound()
}

// bound leaves out the innermost container once the line has grown too large.
func (s *shortener) bound() error {
	if len(s.out) > hardLine || len(s.open) > 1000 {
		return ErrLarge
	}
	if len(s.out) > softLine && s.skip == 0 && len(s.open) > 1 {
		last := len(s.open) - 1
		s.out = append(s.out[:s.open[last]], "null"...)
		s.open = s.open[:last]
		s.skip = 1
	}
	return nil
}

func (s *shortener) put(c byte) {
	if s.skip == 0 {
		s.out = append(s.out, c)
	}
}

func (s *shortener) inText(c byte, pos int64) error {
	switch {
	case s.hex > 0:
		s.hex--
		d, ok := unhex(c)
		if !ok {
			s.hex = 0
		}
		s.code = s.code<<4 | d
		if s.hex == 0 {
			s.high = ok && s.code >= 0xd800 && s.code < 0xdc00
		}
	case s.esc:
		s.esc = false
		if c == 'u' {
			s.hex, s.code = 4, 0
		} else {
			s.high = false
		}
	case c == '"':
		return s.endText(pos)
	default:
		if !s.high || c != '\\' {
			s.high = false
		}
		if !s.cutting && s.skip == 0 && !s.high && utf8.RuneStart(c) {
			s.consider()
		}
		s.esc = c == '\\'
	}
	if !s.cutting {
		s.put(c)
	}
	return nil
}

// consider cuts the string that is being read where it is long enough. It is
// called between two characters.
func (s *shortener) consider() {
	n := len(s.out) - s.from
	if n == dataPrefix {
		head := s.out[s.from:]
		if bytes.HasPrefix(head, []byte("data:image/")) || bytes.HasPrefix(head, []byte("data:application/")) || s.lastKey == "data" && looksEncoded(head) {
			s.limit = dataPrefix
		}
	}
	s.cutting = n > s.limit-utf8.UTFMax
}

func (s *shortener) endText(pos int64) error {
	s.inString = false
	if s.skip > 0 {
		return nil
	}
	if s.value = ""; !s.cutting && len(s.out)-s.from <= 16 {
		s.value = string(s.out[s.from:])
	}
	if s.cutting {
		if len(s.cuts) == maxCuts {
			return ErrLarge
		}
		s.out = append(append(s.out, s.mark...), strconv.Itoa(len(s.cuts))...)
		s.cuts = append(s.cuts, place{s.raw, pos - s.raw})
		s.cutting = false
	}
	s.put('"')
	return s.bound()
}

// looksEncoded says whether b can be the beginning of base64.
func looksEncoded(b []byte) bool {
	for _, c := range b {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '+', c == '/', c == '-', c == '_', c == '\\':
		default:
			return false
		}
	}
	return true
}

func unhex(c byte) (rune, bool) {
	switch {
	case c >= '0' && c <= '9':
		return rune(c - '0'), true
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return rune(c|0x20-'a') + 10, true
	}
	return 0, false
}
