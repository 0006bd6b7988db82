package jsonl

import (
	"bytes"
	"errors"
	"io"
	"os"

	"holdfast/internal/session/toolfile"
)

// Sizes of reading, in bytes.
const (
	// chunk is what one read of the file asks for. Smaller makes a system call a
	// line, larger reads more than a page of short lines needs.
	chunk = 256 << 10
	// maxLine is the longest line whose ends are looked for. Lines of tools have up
	// to some ten megabytes; a file without line breaks, or with a hole in it, would
	// be read from end to end again and again.
	maxLine = 256 << 20
	// Near is how far a record is looked for from another that names it. It
	// covers a few pictures between a call and its result; further, they are
	// shown apart.
	Near = 16 << 20
)

// file reads lines of an append-only file from any place, with one buffer.
type file struct {
	f    *os.File
	size int64 // as last seen by refresh

	buf   []byte
	start int64 // offset of buf in the file
}

func openFile(path string) (*file, error) {
	f, size, err := toolfile.Open(path)
	if err != nil {
		return nil, err
	}
	return &file{f: f, size: size}, nil
}

// refresh looks at the size again; what was read before is forgotten, because
// the end of a file may have been half-written then.
func (f *file) refresh() error {
	info, err := f.f.Stat()
	if err != nil {
		return err
	}
	f.size = info.Size()
	f.buf = f.buf[:0]
	return nil
}

// view returns bytes of the file around off: at least one before it when back,
// at least one from it otherwise. The slice is good until the next call.
func (f *file) view(off int64, back bool) (b []byte, start int64, err error) {
	want := off
	if back {
		want = off - 1
	}
	if want < 0 || want >= f.size {
		return nil, 0, io.EOF
	}
	if want < f.start || want >= f.start+int64(len(f.buf)) {
		from := off
		if back {
			from = max(0, off-chunk)
		}
		if cap(f.buf) < chunk {
			f.buf = make([]byte, chunk)
		}
		n := int(min(chunk, f.size-from))
		n, err := f.f.ReadAt(f.buf[:n], from)
		f.buf, f.start = f.buf[:n], from
		if n == 0 || want >= from+int64(n) {
			if err == nil || errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF // it shrank meanwhile
			}
			return nil, 0, err
		}
	}
	if back {
		return f.buf[:off-f.start], f.start, nil
	}
	return f.buf[off-f.start:], off, nil
}

// lineBefore finds the line that ends at end, its newline included. io.EOF says
// that nothing is before it, or nothing but a line that is too long.
func (f *file) lineBefore(end int64) (start int64, err error) {
	if end <= 0 {
		return 0, io.EOF
	}
	// The newline that ends the line itself does not count.
	for at := end - 1; at > 0; {
		b, from, err := f.view(at, true)
		if err != nil {
			return 0, err
		}
		if i := bytes.LastIndexByte(b, '\n'); i >= 0 {
			return from + int64(i) + 1, nil
		}
		if at = from; end-at > maxLine {
			return 0, io.EOF
		}
	}
	return 0, nil
}

// lineAfter finds where the line that starts at start ends, after its newline or
// at the end of the file; io.EOF says that it is too long.
func (f *file) lineAfter(start int64) (end int64, err error) {
	for at := start; at < f.size; {
		b, _, err := f.view(at, false)
		if err != nil {
			return 0, err
		}
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			return at + int64(i) + 1, nil
		}
		if at += int64(len(b)); at-start > maxLine {
			return 0, io.EOF
		}
	}
	return f.size, nil
}

// findForward finds the first place of needle in [from, to), or -1.
func (f *file) findForward(needle []byte, from, to int64) (int64, error) {
	to = min(to, f.size)
	for at := from; at < to; {
		b, _, err := f.view(at, false)
		if err != nil {
			return -1, err
		}
		if int64(len(b)) > to-at {
			b = b[:to-at]
		}
		if i := bytes.Index(b, needle); i >= 0 {
			return at + int64(i), nil
		}
		next := at + int64(len(b))
		if next >= to {
			break
		}
		// A needle may lie across two reads: the next one begins a little earlier.
		f.buf = f.buf[:0]
		at = max(next-int64(len(needle))+1, at+1)
	}
	return -1, nil
}

// findBack finds the last place of needle that lies wholly in [from, to), or -1.
func (f *file) findBack(needle []byte, from, to int64) (int64, error) {
	for at := min(to, f.size); at > from; {
		b, start, err := f.view(at, true)
		if err != nil {
			return -1, err
		}
		if start < from {
			b, start = b[from-start:], from
		}
		if i := lastIndex(b, needle); i >= 0 {
			return start + int64(i), nil
		}
		if start <= from {
			break
		}
		next := min(start+int64(len(needle))-1, at-1)
		if next > start {
			f.buf = f.buf[:0]
		}
		at = next
	}
	return -1, nil
}

// lastIndex is bytes.LastIndex, several times as fast where needle is rare: the
// search forward uses the processor's wide instructions.
func lastIndex(b, needle []byte) int {
	last := -1
	for at := 0; ; {
		i := bytes.Index(b[at:], needle)
		if i < 0 {
			return last
		}
		last = at + i
		at = last + 1
	}
}
