package proto

import (
	"bufio"
	"errors"
	"io"
	"strings"
	"unicode/utf8"
)

// ErrLine says that a line is longer than MaxLineBytes.
var ErrLine = errors.New("a line is longer than allowed")

// A LineReader reads lines of bounded length.
type LineReader struct{ r *bufio.Reader }

// NewLineReader reads the lines of r.
func NewLineReader(r io.Reader) *LineReader {
	// The size of a usual message; longer ones come in several reads.
	return &LineReader{bufio.NewReaderSize(r, 16<<10)}
}

// Next is the next line without its end, valid until the next call. A line that
// the stream's end cut is io.ErrUnexpectedEOF.
func (l *LineReader) Next() ([]byte, error) {
	chunk, err := l.r.ReadSlice('\n')
	if err == nil {
		return chunk[:len(chunk)-1], nil
	}
	var line []byte
	for errors.Is(err, bufio.ErrBufferFull) {
		line = append(line, chunk...)
		if len(line) > MaxLineBytes {
			return nil, ErrLine
		}
		chunk, err = l.r.ReadSlice('\n')
	}
	line = append(line, chunk...)
	switch {
	case err == io.EOF && len(line) > 0:
		return nil, io.ErrUnexpectedEOF
	case err != nil:
		return nil, err
	case len(line)-1 > MaxLineBytes:
		return nil, ErrLine
	}
	return line[:len(line)-1], nil
}

// Cut cuts text at max bytes on a rune boundary, and makes it valid UTF-8.
func Cut(s string, max int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= max {
		return s
	}
	for max > 0 && !utf8.RuneStart(s[max]) {
		max--
	}
	return s[:max]
}
