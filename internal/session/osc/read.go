package osc

import (
	"bytes"
	"encoding/base64"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits of what a program says, in bytes after decoding, as OSC 7501 has them;
// the notifications of other sequences are held to the same.
const (
	maxKey      = 16
	maxApp      = 32
	maxID       = 128
	maxTitle    = 192
	maxText     = 2048
	maxFields   = 32 // of one sequence
	maxNotes    = 16 // OSC 99 notifications that are open at once
	maxNoteText = maxText
)

// note is an OSC 99 notification of which more may come.
type note struct{ title, text []byte }

// read interprets the content of one OSC.
func (s *Scanner) read(b []byte, emit func(Event)) {
	number, rest, _ := bytes.Cut(b, []byte(";"))
	e := Event{Progress: -1, Code: -1}
	switch string(number) {
	case "0", "2":
		e.Kind, e.Text = Title, Clean(rest, maxTitle)
		emit(e)
	case "7501":
		readStatus(rest, emit)
	case "9":
		if kind, _, _ := bytes.Cut(rest, []byte(";")); string(kind) == "4" {
			readProgress(rest, emit)
			return
		}
		// Sub-commands of ConEmu share the number: a digit and a semicolon.
		if sub, _, more := bytes.Cut(rest, []byte(";")); more && len(sub) <= 2 && isNumber(sub) {
			return
		}
		if e.Text = Clean(rest, maxText); e.Text != "" {
			e.Kind = Notify
			emit(e)
		}
	case "99":
		s.readKitty(rest, emit)
	case "777":
		parts := bytes.SplitN(rest, []byte(";"), 3)
		if string(parts[0]) != "notify" || len(parts) < 2 {
			return
		}
		e.Kind, e.Title = Notify, Clean(parts[1], maxTitle)
		if len(parts) == 3 {
			e.Text = Clean(parts[2], maxText)
		}
		if e.Title != "" || e.Text != "" {
			emit(e)
		}
	case "133":
		if len(rest) == 0 {
			return
		}
		e.Kind, e.Mark = Prompt, Mark(rest[0])
		if len(rest) > 1 && rest[1] != ';' {
			return
		}
		switch e.Mark {
		case MarkPrompt, MarkInput, MarkRunning:
		case MarkDone:
			if len(rest) > 2 {
				code, _, _ := bytes.Cut(rest[2:], []byte(";"))
				if n, err := strconv.Atoi(string(code)); err == nil && n >= 0 && n <= 255 {
					e.Code = n
				}
			}
		default:
			return
		}
		emit(e)
	}
}

func isNumber(b []byte) bool {
	for _, c := range b {
		if c < '0' || c > '9' {
			return false
		}
	}
	return len(b) > 0
}

// readStatus reads the fields of OSC 7501: key=value, separated by colons.
// Unknown keys are skipped, a known one with a bad value voids the report.
func readStatus(b []byte, emit func(Event)) {
	e := Event{Kind: Status, Progress: -1, Code: -1}
	if len(b) > 0 && b[0] == '?' {
		e.Kind = Query
		emit(e)
		return
	}
	for n := 0; len(b) > 0 && n < maxFields; n++ {
		var field []byte
		field, b, _ = bytes.Cut(b, []byte(":"))
		key, value, ok := bytes.Cut(bytes.TrimSpace(field), []byte("="))
		if !ok || len(key) > maxKey {
			continue
		}
		switch string(key) {
		case "state":
			e.State = string(value)
		case "kind":
			switch k := string(value); k {
			case "permission", "question", "auth":
				e.Ask = k
			}
		case "app":
			e.App = Clean(value, maxApp)
		case "id":
			e.ID = Clean(value, maxID)
		case "title":
			e.Title = Clean(decode(value), maxTitle)
		case "msg":
			e.Text = Clean(decode(value), maxText)
		case "progress":
			if p, err := strconv.Atoi(string(value)); err == nil && p >= 0 && p <= 100 {
				e.Progress = p
			}
		}
	}
	switch e.State {
	case "idle", "working", "blocked", "done", "error", "clear":
		emit(e)
	}
}

// decode reads base64 of either alphabet, padded or not. What is not base64 is
// nothing.
func decode(b []byte) []byte {
	s := strings.TrimRight(string(b), "=")
	out, err := base64.RawStdEncoding.DecodeString(s)
	if err != nil {
		out, err = base64.RawURLEncoding.DecodeString(s)
	}
	if err != nil {
		return nil
	}
	return out
}

// readProgress reads 4;state;percent.
func readProgress(b []byte, emit func(Event)) {
	parts := bytes.Split(b, []byte(";"))
	if len(parts) < 2 {
		return
	}
	e := Event{Kind: Progress, Progress: -1, Code: -1}
	switch string(parts[1]) {
	case "0", "":
		e.State = "clear"
	case "1", "3":
		e.State = "working"
	case "2":
		e.State = "error"
	case "4":
		e.State = "paused"
	default:
		return
	}
	if len(parts) > 2 && string(parts[1]) == "1" {
		if p, err := strconv.Atoi(string(parts[2])); err == nil && p >= 0 && p <= 100 {
			e.Progress = p
		}
	}
	emit(e)
}

// readKitty reads OSC 99: metadata of key=value separated by colons, then the
// payload. d=0 says that more of the same notification follows.
func (s *Scanner) readKitty(b []byte, emit func(Event)) {
	meta, payload, _ := bytes.Cut(b, []byte(";"))
	id, part, encoded, done := "", "title", false, true
	for field := range bytes.SplitSeq(meta, []byte(":")) {
		key, value, _ := bytes.Cut(field, []byte("="))
		switch string(key) {
		case "i":
			id = Clean(value, maxID)
		case "p":
			part = string(value)
		case "e":
			encoded = string(value) == "1"
		case "d":
			done = string(value) != "0"
		}
	}
	if part != "title" && part != "body" {
		return // buttons, icons, queries and closing say nothing
	}
	if encoded {
		payload = decode(payload)
	}
	n := s.notes[id]
	if n == nil {
		n = &note{}
	}
	add := func(to []byte) []byte { return append(to, payload[:min(len(payload), max(0, maxNoteText-len(to)))]...) }
	if part == "body" {
		n.text = add(n.text)
	} else {
		n.title = add(n.title)
	}
	if !done {
		if s.notes == nil {
			s.notes = map[string]*note{}
		}
		if s.notes[id] == nil && len(s.notes) >= maxNotes {
			return
		}
		s.notes[id] = n
		return
	}
	delete(s.notes, id)
	e := Event{Kind: Notify, Progress: -1, Code: -1, Title: Clean(n.title, maxTitle), Text: Clean(n.text, maxText)}
	if e.Title != "" || e.Text != "" {
		emit(e)
	}
}

// Clean makes a text of a program safe to show: valid UTF-8 without control,
// format and direction characters, white space folded to single blanks, at most
// limit bytes and cut between runes.
func Clean(b []byte, limit int) string {
	var out strings.Builder
	blank := false
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		b = b[n:]
		switch {
		case r == utf8.RuneError && n == 1:
			continue
		case unicode.IsSpace(r):
			blank = out.Len() > 0
			continue
		case unicode.IsControl(r) || hidden(r):
			continue
		}
		size := utf8.RuneLen(r)
		if blank {
			size++
		}
		if out.Len()+size > limit {
			return out.String()
		}
		if blank {
			out.WriteByte(' ')
			blank = false
		}
		out.WriteRune(r)
	}
	return out.String()
}

// hidden says that a rune changes how its neighbours are shown, or shows
// nothing. The zero-width joiner and the variation selectors stay: emoji are
// made of them.
func hidden(r rune) bool {
	return r != 0x200d && unicode.Is(unicode.Cf, r) || r == 0x2028 || r == 0x2029 || r >= 0xfff9 && r <= 0xfffb
}
