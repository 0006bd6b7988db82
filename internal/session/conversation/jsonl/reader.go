package jsonl

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"holdfast/internal/session/conversation/cut"
	"holdfast/internal/session/conversation/item"
)

// maxCached bounds the decoded records that are kept for the next look at the
// end of the file, by the size of their lines as shortened, in bytes.
const maxCached = 2 << 20

// A Reader is an open transcript. It is an item.Source but for Tail.
type Reader struct {
	Format Format
	// Side says that the records of a sub-agent's file are the main ones.
	Side bool
	// Tree says that records name their parents and only those of the branch that
	// leads to the last one are shown.
	Tree bool

	path string
	f    *file
	mark string
	buf  []byte

	cache  map[int64]*Record
	cached int
}

// Open opens the transcript at path.
func Open(path string, format Format) (*Reader, error) {
	f, err := openFile(path)
	if err != nil {
		return nil, err
	}
	return &Reader{Format: format, path: path, f: f, mark: cut.Mark(), cache: map[int64]*Record{}}, nil
}

// Close implements item.Source.
func (r *Reader) Close() error { return r.f.f.Close() }

// Path is that of the file.
func (r *Reader) Path() string { return r.path }

// Blob implements item.Source.
func (r *Reader) Blob(id string, offset int64, n int) ([]byte, bool, error) {
	return cut.ReadBlob(r.f.f, id, offset, n)
}

// Stamp implements item.Source.
func (r *Reader) Stamp() (string, error) { return Stamp(r.path) }

// Stamp tells the state of a file: another one, a longer one or one written
// again has another stamp.
func Stamp(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%x.%x.%x", inode(info), info.Size(), info.ModTime().UnixNano()), nil
}

func inode(info os.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Ino
	}
	return 0
}

// Refresh looks at the file again, and opens it anew when another one took its
// place.
func (r *Reader) Refresh() error {
	now, err := os.Stat(r.path)
	if err != nil {
		return err
	}
	had, err := r.f.f.Stat()
	if err != nil {
		return err
	}
	if !os.SameFile(now, had) {
		f, err := openFile(r.path)
		if err != nil {
			return err
		}
		r.f.f.Close()
		r.f = f
		r.forget()
		return nil
	}
	if now.Size() < r.f.size {
		r.forget()
	}
	return r.f.refresh()
}

// Forget drops what was decoded, for files that are written anew in place.
func (r *Reader) Forget() { r.forget() }

func (r *Reader) forget() { r.cache, r.cached = map[int64]*Record{}, 0 }

// at decodes the line in [start, end).
func (r *Reader) at(start, end int64) (*Record, error) {
	if rec, ok := r.cache[start]; ok && rec.End == end {
		return rec, nil
	}
	l := &Line{Start: start, End: end}
	rec := Record{}
	whole, err := r.whole(end)
	if err != nil {
		return nil, err
	}
	switch err := r.shorten(l); {
	case errors.Is(err, cut.ErrLarge):
		rec.Bad = true
	case err != nil:
		return nil, err
	case len(l.Data) > 0:
		rec = r.Format.Decode(l)
	}
	if rec.Bad && !whole {
		rec = Record{} // still being written
	}
	rec.Start, rec.End = start, end
	for i := range rec.Items {
		it := &rec.Items[i]
		if it.Time.IsZero() {
			it.Time = rec.Time
		}
		it.Message = rec.Message
		it.Rev = end
	}
	if r.cached += len(l.Data) + 200; r.cached > maxCached {
		r.forget()
		r.cached = len(l.Data) + 200
	}
	if whole {
		r.cache[start] = &rec
	}
	return &rec, nil
}

// whole says whether the line that ends at end has its newline.
func (r *Reader) whole(end int64) (bool, error) {
	if end < r.f.size {
		return true, nil
	}
	b, _, err := r.f.view(end, true)
	if err != nil {
		return false, err
	}
	return b[len(b)-1] == '\n', nil
}

// shorten reads a line into l.Data.
func (r *Reader) shorten(l *Line) error {
	if r.buf == nil {
		r.buf = make([]byte, 64<<10)
	}
	// A short line is in the buffer that found it.
	if b, _, err := r.f.view(l.Start, false); err == nil && int64(len(b)) >= l.End-l.Start {
		return l.Read(bytes.NewReader(b[:l.End-l.Start]), r.mark, r.buf)
	}
	return l.Read(io.NewSectionReader(r.f.f, l.Start, l.End-l.Start), r.mark, r.buf)
}

// before decodes the line that ends at end; io.EOF at the beginning.
func (r *Reader) before(end int64) (*Record, error) {
	start, err := r.f.lineBefore(end)
	if err != nil {
		return nil, err
	}
	return r.at(start, end)
}

// after decodes the line that begins at start; io.EOF at the end.
func (r *Reader) after(start int64) (*Record, error) {
	if start >= r.f.size {
		return nil, io.EOF
	}
	if rec, ok := r.cache[start]; ok {
		return rec, nil
	}
	end, err := r.f.lineAfter(start)
	if err != nil {
		return nil, err
	}
	return r.at(start, end)
}

// around decodes the line that holds a place. Of one that is too long it returns
// an empty record at that place.
func (r *Reader) around(at int64) (*Record, error) {
	end, err := r.f.lineAfter(at)
	if err == nil {
		var rec *Record
		if rec, err = r.before(end); err == nil {
			return rec, nil
		}
	}
	if errors.Is(err, io.EOF) {
		return &Record{Start: at, End: at + 1}, nil
	}
	return nil, err
}

// needle is how a JSON string stands in a file.
func needle(id string) []byte { return []byte(`"` + id + `"`) }

// maxLook bounds the records that are decoded in search of one, so that a file
// that names one id everywhere costs no more than a page.
const maxLook = 64

// lastWith finds the nearest record before a place that names an id and
// satisfies ok; nil when there is none near.
func (r *Reader) lastWith(id string, before int64, ok func(*Record) bool) (*Record, error) {
	if len(id) > maxSought {
		return nil, nil
	}
	floor := max(0, before-Near)
	for range maxLook {
		at, err := r.f.findBack(needle(id), floor, before)
		if err != nil || at < 0 {
			return nil, err
		}
		rec, err := r.around(at)
		if err != nil {
			return nil, err
		}
		if rec.End <= before && ok(rec) {
			return rec, nil
		}
		before = min(rec.Start, at)
	}
	return nil, nil
}

// firstWith finds the nearest record from a place on that names an id and
// satisfies ok; nil when there is none near.
func (r *Reader) firstWith(id string, from int64, ok func(*Record) bool) (*Record, error) {
	if len(id) > maxSought {
		return nil, nil
	}
	ceiling := from + Near
	for range maxLook {
		at, err := r.f.findForward(needle(id), from, ceiling)
		if err != nil || at < 0 {
			return nil, err
		}
		rec, err := r.around(at)
		if err != nil {
			return nil, err
		}
		if ok(rec) {
			return rec, nil
		}
		from = max(rec.End, at+1)
	}
	return nil, nil
}

// Last returns up to n of the newest records that satisfy ok, newest first,
// looking at no more than limit bytes of the file unless a single line is longer.
func (r *Reader) Last(n int, limit int64, ok func(*Record) bool) ([]*Record, error) {
	var out []*Record
	for end := r.f.size; len(out) < n && end > 0 && (r.f.size-end < limit); {
		rec, err := r.before(end)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return out, err
		}
		end = rec.Start
		if ok(rec) {
			out = append(out, rec)
		}
	}
	return out, nil
}

// First returns the first record that satisfies ok among the first n.
func (r *Reader) First(n int, ok func(*Record) bool) (*Record, error) {
	at := int64(0)
	for range n {
		rec, err := r.after(at)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if at = rec.End; ok(rec) {
			return rec, nil
		}
	}
	return nil, nil
}

// Title finds the name of the conversation within limit bytes from the end of
// the file, else among its first records.
func (r *Reader) Title(limit int64) (string, error) {
	best, rank := "", -1
	for _, word := range r.Format.Titles() {
		end := r.f.size
		for range maxLook {
			at, err := r.f.findBack([]byte(word), max(0, r.f.size-limit), end)
			if err != nil {
				return "", err
			}
			if at < 0 {
				break
			}
			rec, err := r.around(at)
			if err != nil {
				return "", err
			}
			if rec.Title.Text != "" {
				if rec.Title.Rank > rank {
					best, rank = rec.Title.Text, rec.Title.Rank
				}
				break
			}
			end = min(at, rec.Start+int64(len(word)))
			if rec.Start < at {
				end = rec.Start
			}
		}
	}
	if best != "" {
		return best, nil
	}
	rec, err := r.First(20, func(rec *Record) bool { return rec.Title.Text != "" })
	if rec == nil || err != nil {
		return "", err
	}
	return rec.Title.Text, nil
}

// Size is that of the file when it was looked at last.
func (r *Reader) Size() int64 { return r.f.size }

// ModTime is when the file was written last.
func (r *Reader) ModTime() (time.Time, error) {
	info, err := r.f.f.Stat()
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}

// Limits of what Ending looks at: enough for the bookkeeping that tools write
// after a turn, little enough for every change of the file.
const (
	endRecords = 64
	endBytes   = 1 << 20
)

// Ending says what the newest records tell about the turn.
func (r *Reader) Ending() (item.Tail, error) {
	out := item.Tail{State: item.TurnNone}
	at, err := r.ModTime()
	if err != nil {
		return out, err
	}
	out.At = at
	n := 0
	recs, err := r.Last(1, endBytes, func(x *Record) bool {
		n++
		return n > endRecords || x.Side == r.Side && x.Turn.State != ""
	})
	if err != nil {
		return out, err
	}
	if len(recs) == 1 && recs[0].Turn.State != "" && n <= endRecords {
		out.State, out.Detail = recs[0].Turn.State, recs[0].Turn.Detail
		if !recs[0].Time.IsZero() {
			out.At = recs[0].Time
		}
	}
	if out.Title, err = r.Title(endBytes); err != nil {
		return out, err
	}
	out.Stamp, err = r.Stamp()
	return out, err
}

// At decodes the value that stands in [start, end), which need not be a line.
func (r *Reader) At(start, end int64) (*Record, error) { return r.at(start, end) }

// Lines yields the whole lines from a place on, and returns where they end.
func (r *Reader) Lines(from int64, yield func(*Record) error) (int64, error) {
	for from < r.f.size {
		end, err := r.f.lineAfter(from)
		if errors.Is(err, io.EOF) {
			return from, nil
		}
		if err != nil {
			return from, err
		}
		if whole, err := r.whole(end); err != nil || !whole {
			return from, err
		}
		rec, err := r.at(from, end)
		if err != nil {
			return from, err
		}
		if err := yield(rec); err != nil {
			return from, err
		}
		from = end
	}
	return from, nil
}

// Bytes yields the file in pieces from its beginning. A piece is good until
// yield returns.
func (r *Reader) Bytes(yield func(piece []byte, at int64) error) error {
	for at := int64(0); at < r.f.size; {
		b, _, err := r.f.view(at, false)
		if err != nil {
			return err
		}
		if err := yield(b, at); err != nil {
			return err
		}
		at += int64(len(b))
	}
	return nil
}
