// Package cut makes short copies of JSON values: strings that are long are cut and
// can be fetched in pieces afterwards, so that a value of 12 MB is decoded in the
// memory of one of 50 KB.
//
// It decodes nothing and knows no tool. What a caller will get wrong: a string of
// a short copy may end with the mark of a cut, so it goes through Line's methods
// before anybody sees it.
package cut

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"io"
	"strconv"
	"strings"

	"holdfast/internal/session/conversation/item"
)

// MaxValue is the longest value that is looked into, in bytes. Lines of 12 MB
// occur; one of hundreds is damage.
const MaxValue = 256 << 20

// A Line is a value, shortened.
type Line struct {
	Start, End int64 // where it stands
	Data       []byte

	// Blobs comes before the names of blobs, for lines that are not of one file.
	Blobs string

	mark string
	cuts []place
}

// Shorten makes a Line of a value that is in memory already; the places of its
// cuts are within data. An error says that it is too large to be looked at.
func Shorten(data []byte) (*Line, error) {
	l := &Line{End: int64(len(data))}
	if err := l.Read(bytes.NewReader(data), Mark(), make([]byte, 4<<10)); err != nil {
		return nil, err
	}
	return l, nil
}

// Read fills in the Data of a line that r holds and that begins at l.Start; mark
// ends what is cut. buf is what it reads with. The error is ErrLarge, or r's.
func (l *Line) Read(r io.Reader, mark string, buf []byte) error {
	if l.End-l.Start > MaxValue {
		return ErrLarge
	}
	s := shortener{mark: mark, out: make([]byte, 0, min(l.End-l.Start, 32<<10))}
	err := s.run(r, l.Start, buf)
	l.Data, l.mark, l.cuts = s.out, mark, s.cuts
	return err
}

// ReadIn reads a blob of a value that Shorten was given, by its name without what
// Blobs put before it.
func ReadIn(data []byte, id string, offset int64, n int) (piece []byte, end bool, err error) {
	kind, c, err := parseBlob(id)
	if err != nil {
		return nil, false, err
	}
	if c.start+c.length >= int64(len(data)) || data[c.start-1] != '"' || data[c.start+c.length] != '"' {
		return nil, false, item.ErrBlob
	}
	return ReadString(bytes.NewReader(data[c.start:c.start+c.length]), kind == 'b', offset, n)
}

// Body makes a body of a string that was decoded from the line.
func (l *Line) Body(s string) item.Body {
	s, c, ok := l.cutOf(s)
	b := item.NewBody(s)
	if ok {
		b.Blob, b.Bytes = l.Blobs+blobID('t', c), c.length
	} else if len(s) > item.MaxText {
		// Only text that was put together from several strings is longer.
		b.Bytes = int64(len(s))
		b.Text = item.CutRunes(s, item.MaxText)
	}
	return b
}

// Text returns a string of the line without the mark of a cut.
func (l *Line) Text(s string) string {
	s, _, _ = l.cutOf(s)
	return s
}

// Image makes a picture of base64 data, or of a data URL, in the line.
func (l *Line) Image(mediaType, data string) item.Image {
	s, c, cutOff := l.cutOf(data)
	img := item.Image{MediaType: item.Line(mediaType, 80)}
	if !cutOff {
		// Too short to have been cut: no picture, or a name.
		img.Name = item.Line(s, 200)
		return img
	}
	head := 0
	if strings.HasPrefix(s, "data:") {
		kind, _, _ := strings.Cut(strings.TrimPrefix(s, "data:"), ";")
		if i := strings.IndexByte(s, ','); i >= 0 {
			head = i + 1
		}
		img.MediaType = item.Line(kind, 80)
	} else if strings.Contains(s, "://") {
		img.Name = item.Line(s, 200)
		return img
	}
	img.Blob, img.Bytes = l.Blobs+blobID('b', c), max(0, c.length-int64(head))*3/4
	return img
}

func (l *Line) cutOf(s string) (string, place, bool) {
	if i := strings.LastIndex(s, l.mark); i >= 0 && l.mark != "" {
		n, err := strconv.Atoi(s[i+len(l.mark):])
		if err == nil && n >= 0 && n < len(l.cuts) {
			return s[:i], l.cuts[n], true
		}
	}
	return s, place{}, false
}

// Mark makes what ends a cut string. It is of letters and digits, so that it
// passes through JSON and any further encoding of it unchanged.
func Mark() string {
	var b [12]byte
	rand.Read(b[:])
	return "\u2026" + base64.RawURLEncoding.EncodeToString(b[:]) + "."
}
