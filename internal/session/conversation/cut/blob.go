package cut

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"holdfast/internal/session/conversation/item"
)

// A blob is named by how it is stored and where: "t" is text, "b" base64. The
// place is within the transcript, which whoever may ask may read whole.
func blobID(kind byte, c place) string {
	return fmt.Sprintf("%c%d-%d", kind, c.start, c.length)
}

func parseBlob(id string) (kind byte, c place, err error) {
	if id == "" || id[0] != 't' && id[0] != 'b' {
		return 0, place{}, item.ErrBlob
	}
	a, b, ok := strings.Cut(id[1:], "-")
	if !ok {
		return 0, place{}, item.ErrBlob
	}
	c.start, err = strconv.ParseInt(a, 10, 64)
	if err == nil {
		c.length, err = strconv.ParseInt(b, 10, 64)
	}
	if err != nil || c.start < 1 || c.length < 0 || c.length > MaxValue {
		return 0, place{}, item.ErrBlob
	}
	return id[0], c, nil
}

// ReadBlob decodes up to n bytes, from an offset, of a blob of a file.
func ReadBlob(f io.ReaderAt, id string, offset int64, n int) (piece []byte, end bool, err error) {
	kind, c, err := parseBlob(id)
	if err != nil {
		return nil, false, err
	}
	// Both quotes must stand where the name says: the file may have changed.
	var quotes [2]byte
	if _, err := f.ReadAt(quotes[:1], c.start-1); err != nil {
		return nil, false, item.ErrBlob
	}
	if _, err := f.ReadAt(quotes[1:], c.start+c.length); err != nil || quotes != [2]byte{'"', '"'} {
		return nil, false, item.ErrBlob
	}
	return ReadString(io.NewSectionReader(f, c.start, c.length), kind == 'b', offset, n)
}

// ReadString decodes up to n bytes, from an offset, of the body of a JSON string
// that r holds, and of the base64 (or data URL) in it when encoded.
func ReadString(r io.Reader, encoded bool, offset int64, n int) (piece []byte, end bool, err error) {
	var src io.Reader = &unescaper{r: r, buf: make([]byte, 32<<10)}
	if encoded {
		src = base64.NewDecoder(base64.StdEncoding.WithPadding(base64.NoPadding), &alphabet{r: src})
	}
	if _, err := io.CopyN(io.Discard, src, offset); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, true, nil
		}
		return nil, false, err
	}
	piece, err = io.ReadAll(io.LimitReader(src, int64(n)))
	if err != nil {
		return nil, false, err
	}
	var one [1]byte
	more, err := io.ReadFull(src, one[:])
	return piece, more == 0 && err != nil, nil
}

// unescaper yields the text of a JSON string's body.
type unescaper struct {
	r       io.Reader
	buf     []byte
	pending []byte // raw, not yet decoded
	out     []byte // decoded, not yet read
	eof     bool
}

func (u *unescaper) Read(p []byte) (int, error) {
	for len(u.out) == 0 {
		if u.eof && len(u.pending) == 0 {
			return 0, io.EOF
		}
		if !u.eof {
			n, err := u.r.Read(u.buf)
			u.pending = append(u.pending, u.buf[:n]...)
			if errors.Is(err, io.EOF) {
				u.eof = true
			} else if err != nil {
				return 0, err
			}
		}
		u.decode()
	}
	n := copy(p, u.out)
	u.out = u.out[n:]
	return n, nil
}

// decode turns what is whole in pending into text.
func (u *unescaper) decode() {
	// An escape takes at most 12 bytes (a pair of surrogates), a rune 4: that
	// much waits for the next read.
	keep := 12
	if u.eof {
		keep = 0
	}
	b := u.pending
	out := make([]byte, 0, len(b))
	i := 0
	for i < len(b)-keep {
		if b[i] != '\\' {
			out = append(out, b[i])
			i++
			continue
		}
		n, r := escape(b[i:])
		out = utf8.AppendRune(out, r)
		i += n
	}
	u.out = out
	u.pending = append(u.pending[:0], b[i:]...)
}

// escape decodes the escape that b begins with.
func escape(b []byte) (n int, r rune) {
	if len(b) < 2 {
		return len(b), utf8.RuneError
	}
	switch b[1] {
	case 'n':
		return 2, '\n'
	case 't':
		return 2, '\t'
	case 'r':
		return 2, '\r'
	case 'b':
		return 2, '\b'
	case 'f':
		return 2, '\f'
	case 'u':
		r, ok := hex4(b[2:])
		if !ok {
			return 2, utf8.RuneError
		}
		if utf16.IsSurrogate(r) {
			if len(b) >= 12 && b[6] == '\\' && b[7] == 'u' {
				if low, ok := hex4(b[8:]); ok {
					if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
						return 12, pair
					}
				}
			}
			return 6, utf8.RuneError
		}
		return 6, r
	}
	return 2, rune(b[1])
}

func hex4(b []byte) (r rune, ok bool) {
	if len(b) < 4 {
		return 0, false
	}
	for _, c := range b[:4] {
		d, ok := unhex(c)
		if !ok {
			return 0, false
		}
		r = r<<4 | d
	}
	return r, true
}

// alphabet leaves out of a stream what is not of the base64 alphabet, the head
// of a data URL included, and turns the alphabet of URLs into the standard one.
type alphabet struct {
	r       io.Reader
	started bool
	head    []byte
}

func (a *alphabet) Read(p []byte) (int, error) {
	for {
		if !a.started {
			// "data:image/png;base64," is shorter than this.
			head := make([]byte, 128)
			n, err := io.ReadFull(a.r, head)
			if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
				return 0, err
			}
			a.head, a.started = head[:n], true
			if strings.HasPrefix(string(a.head), "data:") {
				if i := strings.IndexByte(string(a.head), ','); i >= 0 {
					a.head = a.head[i+1:]
				}
			}
		}
		var n int
		var err error
		if len(a.head) > 0 {
			n = copy(p, a.head)
			a.head = a.head[n:]
		} else if n, err = a.r.Read(p); n == 0 {
			return 0, err
		}
		kept := p[:0]
		for _, c := range p[:n] {
			switch {
			case c == '-':
				kept = append(kept, '+')
			case c == '_':
				kept = append(kept, '/')
			case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '+', c == '/':
				kept = append(kept, c)
			}
		}
		if len(kept) > 0 || err != nil {
			return len(kept), err
		}
	}
}
