// Package authkeys keeps Holdfast's own lines in ~/.ssh/authorized_keys: one
// marked line for each paired device, so that the system's sshd lets it in.
//
// It never changes, reorders or removes a line that it did not mark, never
// follows a symbolic link at ~/.ssh or at the file, and never leaves a
// half-written file: the new one is written beside it and renamed over it.
//
// What a caller will get wrong: a written line is no promise that sshd reads
// this file, and a key can be in the file a second time without the mark, where
// Remove leaves it (Result.Unmarked says so).
package authkeys

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode"

	"holdfast/internal/pairing"
	"holdfast/internal/wire"
)

// mark begins the comment of each of our lines.
const mark = "# holdfast device "

// maxFileBytes bounds the file: 1 MiB holds ten thousand keys. A larger one is
// refused rather than read into memory.
const maxFileBytes = 1 << 20

// Reasons not to touch the file; each names what is in the way.
var (
	ErrSymlink    = errors.New("it is a symbolic link, which is not followed; add the line by hand")
	ErrNotRegular = errors.New("it is not a regular file")
	ErrReadOnly   = errors.New("it is read-only, so somebody wants it unchanged")
	ErrTooBig     = errors.New("it is larger than 1 MiB")
	ErrBusy       = errors.New("another program keeps changing it")
)

// Entry is one device's line.
type Entry struct {
	Key    pairing.Key
	Device string // the device's id
	Name   string // what a person calls the device
}

// Line is the line for the entry, without the newline: the key, and the mark
// with id and name as its comment. Whatever the name holds, it is one line.
func (e Entry) Line() string {
	line := e.Key.Line() + " " + mark + word(e.Device)
	if name := cleanName(e.Name); name != "" {
		line += " " + name
	}
	return line
}

// word makes an id one word; ours are already.
func word(s string) string {
	s = strings.Join(strings.Fields(wire.CleanText(s, wire.MaxNameBytes)), "_")
	if s == "" {
		return "-"
	}
	return s
}

// cleanName keeps printable characters and single blanks.
func cleanName(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, ""))
	return wire.CleanText(strings.Join(strings.Fields(s), " "), wire.MaxNameBytes)
}

// parsed is what a marked line means; the zero value is any other line.
type parsed struct {
	key     string // "type base64"
	device  string
	options bool // somebody put options before the key
}

func (p parsed) ours() bool { return p.key != "" }

// parseLine recognises our marked lines, also with options that the person put
// before the key. A line that is commented out is not one.
func parseLine(line []byte) parsed {
	text := strings.TrimSpace(string(line))
	before, after, found := strings.Cut(text, " "+mark)
	if !found || text[0] == '#' {
		return parsed{}
	}
	fields := strings.Fields(before)
	if len(fields) < 2 {
		return parsed{}
	}
	p := parsed{key: strings.Join(fields[len(fields)-2:], " "), options: len(fields) > 2}
	p.device, _, _ = strings.Cut(after, " ")
	return p
}

// add returns content with the entry's line as the only marked one of its key;
// changed is false where that is so already.
func add(content []byte, e Entry) (out []byte, changed bool) {
	line, key := e.Line(), e.Key.Line()
	found := false
	for old := range bytes.Lines(content) {
		p := parseLine(old)
		if p.key != key {
			out = append(out, old...)
			continue
		}
		// With options it says what the person wants of this device: it stays.
		if !found && (p.options || string(bytes.TrimRight(old, "\r\n")) == line) {
			found = true
			out = append(out, old...)
			continue
		}
		changed = true // an older name or id of this key, or its double
	}
	if found {
		return out, changed
	}
	if len(out) > 0 && out[len(out)-1] != '\n' {
		out = append(out, '\n')
	}
	out = append(out, line...)
	return append(out, '\n'), true
}

// remove returns content without the marked lines that match.
func remove(content []byte, key pairing.Key, device string) (out []byte, r Result) {
	want := key.Line()
	for old := range bytes.Lines(content) {
		p := parseLine(old)
		switch {
		case p.ours() && (want != "" && p.key == want || device != "" && p.device == device):
			r.Removed++
			continue
		case want != "" && bytes.Contains(old, []byte(want)) && bytes.TrimSpace(old)[0] != '#':
			r.Unmarked = true
		}
		out = append(out, old...)
	}
	return out, r
}

// Result says what Remove did.
type Result struct {
	// Removed counts the lines that are gone.
	Removed int
	// Unmarked says that the key stands in the file without our mark as well,
	// so that sshd still lets it in.
	Unmarked bool
}

// Add makes the entry's line the only marked line of its key in the
// authorized_keys of home, and creates ~/.ssh (0700) and the file (0600) where
// they are missing. It changes nothing when the line is there.
func Add(home string, e Entry) error {
	if e.Key.IsZero() {
		return errors.New("add to authorized_keys: no key")
	}
	err := rewrite(home, true, func(content []byte) ([]byte, bool) { return add(content, e) })
	if err != nil {
		return fmt.Errorf("add to %s/.ssh/authorized_keys: %w", home, err)
	}
	return nil
}

// Remove takes out the marked lines of key or of device; either may be empty.
// A missing file has none, and behind a link it is no error when there are none.
func Remove(home string, key pairing.Key, device string) (Result, error) {
	var r Result
	err := rewrite(home, false, func(content []byte) ([]byte, bool) {
		var out []byte
		out, r = remove(content, key, device)
		return out, r.Removed > 0
	})
	if errors.Is(err, ErrSymlink) {
		// We never write through a link, but somebody may have made it later.
		if content, readErr := readFollowing(home); readErr == nil {
			if _, r := remove(content, key, device); r.Removed == 0 {
				return r, nil
			}
		}
	}
	if err != nil {
		return Result{}, fmt.Errorf("remove from %s/.ssh/authorized_keys: %w", home, err)
	}
	return r, nil
}
