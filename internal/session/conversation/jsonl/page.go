package jsonl

import (
	"encoding/base64"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"slices"
	"strings"

	"holdfast/internal/session/conversation/item"
)

const (
	// maxWalk is how much of a file one page passes over, in bytes, when little of
	// it is to be shown. The page is then short, and the next one goes on.
	maxWalk = 48 << 20
	// maxRecords is the same in records, for those that are tiny or empty: each
	// costs some microseconds and half a kilobyte for a moment.
	maxRecords = 50_000
	// titleReach is how far from the end the newest page looks for a title.
	titleReach = 4 << 20
	// twinReach is how many records apart two that say the same can be.
	twinReach = 8
	// rewrittenReach bounds what is looked at after a compaction, in records, for
	// what was written again.
	rewrittenReach = 512
	// maxID is the longest id of a record that a cursor carries, in bytes: those
	// of the tools have 36, and a cursor has at most 256 characters.
	maxID = 128
	// maxSought is the longest id that is looked for in a file, in bytes. The
	// search for one longer than a read would read the same bytes over and over.
	maxSought = 1 << 10
)

// A place is where a walk towards the beginning stands. All that a page needs of
// the pages after it is in here.
type place struct {
	end      int64  // the next record ends here
	want     string // and is this one, when not empty
	boundary int64  // the compaction passed last begins here, or -1
	undo     int    // turns that were taken back and are still to be skipped
}

// cursor puts a place into words. gen tells files apart.
func (p place) cursor(gen string) item.Cursor {
	return item.Cursor(fmt.Sprintf("%s.%d.%s.%d.%d", gen, p.end, base64.RawURLEncoding.EncodeToString([]byte(p.want)), p.boundary, p.undo))
}

func (r *Reader) place(c item.Cursor, gen string) (place, error) {
	p := place{boundary: -1}
	if c == "" {
		p.end = r.f.size
		return p, nil
	}
	parts := strings.Split(string(c), ".")
	if len(parts) != 5 || parts[0] != gen {
		return p, item.ErrCursor
	}
	want, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil || len(want) > maxID {
		return p, item.ErrCursor
	}
	p.want = string(want)
	if n, err := fmt.Sscanf(parts[1]+" "+parts[3]+" "+parts[4], "%d %d %d", &p.end, &p.boundary, &p.undo); n != 3 || err != nil {
		return p, item.ErrCursor
	}
	if p.end < 0 || p.end > r.f.size || p.boundary < -1 || p.boundary >= r.f.size || p.undo < 0 {
		return p, item.ErrCursor
	}
	if p.end > 0 {
		if whole, err := r.newlineBefore(p.end); err != nil || !whole {
			return p, item.ErrCursor
		}
	}
	return p, nil
}

func (r *Reader) newlineBefore(at int64) (bool, error) {
	b, _, err := r.f.view(at, true)
	if err != nil {
		return false, err
	}
	return b[len(b)-1] == '\n', nil
}

// Position is how far into the file a cursor of it reaches.
func (r *Reader) Position(c item.Cursor) (int64, error) {
	gen, err := r.generation()
	if err != nil {
		return 0, err
	}
	p, err := r.place(c, gen)
	return p.end, err
}

// generation tells this file from another one at the same path by its beginning,
// which an append-only file keeps.
func (r *Reader) generation() (string, error) {
	head := make([]byte, 512)
	n, err := r.f.f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	head = head[:n]
	if i := slices.Index(head, '\n'); i >= 0 {
		head = head[:i]
	}
	h := fnv.New32a()
	h.Write(head)
	return fmt.Sprintf("%08x", h.Sum32()), nil
}

// A pager collects one page, newest record first.
type pager struct {
	r    *Reader
	gen  string
	at   place
	from int64 // where the page began

	limit     int
	groups    [][]item.Item // each of one message, newest first; items oldest first
	last      string        // the message that the newest group is of
	seen      map[string]bool
	count     int
	records   int // that were passed
	size      int
	bad       int
	calls     map[string]call
	results   []result
	rewritten map[string]bool
	known     int64 // the boundary that rewritten is of
	next      place // above the record that is being taken
	top       place // above the oldest record of the newest group
}

type call struct{ start, end int64 }

type result struct {
	Result
	start int64
	rec   *Record
	place place
}

// Page implements item.Source.
func (r *Reader) Page(before item.Cursor, limit int) (item.Page, error) {
	if err := r.Refresh(); err != nil {
		return item.Page{}, err
	}
	gen, err := r.generation()
	if err != nil {
		return item.Page{}, err
	}
	at, err := r.place(before, gen)
	if err != nil {
		return item.Page{}, err
	}
	p := &pager{r: r, gen: gen, at: at, from: at.end, limit: limit, calls: map[string]call{}, seen: map[string]bool{}, known: -1}
	for {
		more, err := p.step()
		if err != nil {
			return item.Page{}, err
		}
		if !more {
			break
		}
	}
	if err := p.join(); err != nil {
		return item.Page{}, err
	}
	page := item.Page{Unreadable: p.bad}
	for _, g := range slices.Backward(p.groups) {
		page.Items = append(page.Items, g...)
	}
	if p.at.end > 0 {
		page.Before = p.at.cursor(gen)
	}
	if before == "" {
		if page.After, err = r.endCursor(gen); err != nil {
			return item.Page{}, err
		}
		if page.Title, err = r.Title(titleReach); err != nil {
			return item.Page{}, err
		}
	}
	return page, nil
}

// endCursor is the cursor of the end of the last whole line.
func (r *Reader) endCursor(gen string) (item.Cursor, error) {
	end := r.f.size
	if end > 0 {
		whole, err := r.newlineBefore(end)
		if err != nil {
			return "", err
		}
		if !whole {
			if end, err = r.f.lineBefore(end); err != nil && !errors.Is(err, io.EOF) {
				return "", err
			}
		}
	}
	return place{end: end, boundary: -1}.cursor(gen), nil
}

// step goes one record towards the beginning; false when the page is full or the
// beginning is reached.
func (p *pager) step() (bool, error) {
	if p.at.end <= 0 {
		p.close()
		return false, nil
	}
	rec, err := p.r.before(p.at.end)
	if errors.Is(err, io.EOF) {
		// A line without an end that is of use: what is above it cannot be found.
		p.bad++
		p.at.end = 0
		p.close()
		return false, nil
	}
	if err != nil {
		return false, err
	}
	p.records++
	if p.records > maxRecords || p.from-rec.End > maxWalk && p.from != p.at.end || p.count > 4*item.MaxItems || p.size > 2*item.MaxPage {
		p.close()
		return false, nil
	}
	next := place{end: rec.Start, want: p.at.want, boundary: p.at.boundary, undo: p.at.undo}
	if rec.Side != p.r.Side {
		p.at = next
		return true, nil
	}
	var beside []*Record
	if p.r.Tree && rec.ID != "" {
		if rec, beside, err = p.ancestor(rec); err != nil {
			return false, err
		}
		next.end, next.want = rec.Start, rec.Parent
		if len(next.want) > maxID {
			next.want = "" // no tool's id: what stands before is the best there is
		}
	}
	if (p.count >= p.limit || p.size >= item.MaxPage) && (rec.Message == "" || rec.Message != p.last) && shows(rec) {
		p.close()
		return false, nil
	}
	if rec.Bad {
		p.bad++
	}
	again, err := p.writtenAgain(rec)
	if err != nil {
		return false, err
	}
	show := !again
	if show && p.r.Tree && shows(rec) {
		if show, err = p.r.newestVersion(rec); err != nil {
			return false, err
		}
	}
	if rec.Twin != "" && show {
		if show, err = p.r.shownTwin(rec); err != nil {
			return false, err
		}
	}
	if rec.Queue == Enqueued && show {
		if show, err = p.r.stillQueued(rec); err != nil {
			return false, err
		}
	}
	if show && next.undo > 0 && rec.Undo == 0 {
		if rec.Prompt {
			next.undo--
		}
		show = false
	}
	next.undo += rec.Undo
	if rec.Boundary {
		next.boundary = rec.Start
	}
	if p.next = next; show {
		for _, b := range slices.Backward(beside) {
			p.take(b)
		}
		if rec.Boundary {
			if rec, err = p.boundary(rec); err != nil {
				return false, err
			}
		}
		p.take(rec)
	}
	p.at = next
	return true, nil
}

// shows says whether a record would put anything on a page.
func shows(rec *Record) bool { return len(rec.Items) > 0 || len(rec.Results) > 0 }

// ancestor returns the record that the branch being walked goes on with, which is
// rec unless it belongs to a branch that was left; and records beside it that
// belong to the same message.
func (p *pager) ancestor(rec *Record) (*Record, []*Record, error) {
	if p.at.want == "" || rec.ID == p.at.want {
		return rec, nil, nil
	}
	target, err := p.r.lastWith(p.at.want, rec.End, func(x *Record) bool { return x.ID == p.at.want && x.Side == p.r.Side })
	if err != nil {
		return nil, nil, err
	}
	if target == nil {
		// The parent is lost: in a damaged line, in one of an unknown kind, or too
		// far away. What stands before is the best there is.
		return rec, nil, nil
	}
	if target.Message == "" {
		return target, nil, nil
	}
	// Calls made at once are written as children of one another while their
	// results hang where they please: all of one message are of the branch.
	var beside []*Record
	for at := target.End; at < rec.End && len(beside) < maxLook; {
		x, err := p.r.after(at)
		if err != nil {
			return nil, nil, err
		}
		at = x.End
		if x.Message == target.Message && x.Side == p.r.Side {
			beside = append(beside, x)
		} else if len(x.Items) > 0 {
			break
		}
	}
	return target, beside, nil
}

// take adds what a record shows to the page.
func (p *pager) take(rec *Record) {
	for _, res := range rec.Results {
		p.results = append(p.results, result{Result: res, start: rec.Start, rec: rec, place: p.next})
	}
	if len(rec.Items) == 0 {
		return
	}
	if rec.Message == "" || rec.Message != p.last || len(p.groups) == 0 {
		p.close()
		p.groups = append(p.groups, nil)
		p.last = rec.Message
	}
	var fresh []item.Item
	for _, it := range rec.Items {
		if p.seen[it.ID] {
			continue
		}
		p.seen[it.ID] = true
		if it.Tool != nil {
			tool := *it.Tool // results are joined into a copy: rec is kept
			it.Tool = &tool
		}
		it.Questions = slices.Clone(it.Questions)
		p.calls[it.ID] = call{rec.Start, rec.End}
		fresh = append(fresh, it)
		p.size += it.Weight()
	}
	p.top = p.next
	g := &p.groups[len(p.groups)-1]
	*g = append(fresh, *g...)
	p.count += len(fresh)
}

// close ends the newest group: a page above it begins above its oldest record.
func (p *pager) close() {
	if len(p.groups) == 0 {
		return
	}
	g := p.groups[len(p.groups)-1]
	for i := range g {
		if g[i].Cursor == "" {
			g[i].Cursor = p.top.cursor(p.gen)
		}
	}
}

// shownTwin says whether of records that say the same thing this one is shown.
func (r *Reader) shownTwin(rec *Record) (bool, error) {
	better := func(x *Record) bool { return x.Twin == rec.Twin && x.Rank < rec.Rank }
	at := rec.End
	for range twinReach {
		x, err := r.after(at)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return false, err
		}
		if better(x) {
			return false, nil
		}
		at = x.End
	}
	at = rec.Start
	for range twinReach {
		x, err := r.before(at)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return false, err
		}
		if better(x) {
			return false, nil
		}
		at = x.Start
	}
	return true, nil
}

// newestVersion says whether no other record of the same id follows closely, as
// happens when a tool writes a record twice.
func (r *Reader) newestVersion(rec *Record) (bool, error) {
	at := rec.End
	for range twinReach {
		x, err := r.after(at)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return false, err
		}
		if x.ID == rec.ID && rec.ID != "" {
			return false, nil
		}
		at = x.End
	}
	return true, nil
}

// stillQueued says whether nothing was taken from the queue since a record put a
// message into it. What was taken is in the conversation itself.
func (r *Reader) stillQueued(rec *Record) (bool, error) {
	at := rec.End
	for range maxLook {
		hit, err := r.f.findForward([]byte(r.Format.Queues()), at, rec.End+Near)
		if err != nil || hit < 0 {
			return err == nil, err
		}
		x, err := r.around(hit)
		if err != nil {
			return false, err
		}
		if x.Queue == Taken {
			return false, nil
		}
		at = max(x.End, hit+1)
	}
	return false, nil
}

// writtenAgain says whether a record was written a second time after the
// compaction that the walk has passed; the later one was shown then.
func (p *pager) writtenAgain(rec *Record) (bool, error) {
	if p.at.boundary < 0 || rec.ID == "" {
		return false, nil
	}
	if p.known != p.at.boundary {
		p.rewritten, p.known = map[string]bool{}, p.at.boundary
		err := p.afterBoundary(p.at.boundary, func(b, x *Record) bool {
			if x.ID != "" && x.Time.Before(b.Time) {
				p.rewritten[x.ID] = true
			}
			return true
		})
		if err != nil {
			return false, err
		}
	}
	return p.rewritten[rec.ID], nil
}

// afterBoundary yields the records that follow a compaction.
func (p *pager) afterBoundary(start int64, yield func(boundary, rec *Record) bool) error {
	b, err := p.r.after(start)
	if err != nil {
		return err
	}
	at := b.End
	for range rewrittenReach {
		if at-b.End > Near/4 {
			break
		}
		x, err := p.r.after(at)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if !yield(b, x) || x.Boundary {
			break
		}
		at = x.End
	}
	return nil
}

// boundary leaves the showing of a compaction to its summary, when there is one.
func (p *pager) boundary(rec *Record) (*Record, error) {
	n, summed := 0, false
	err := p.afterBoundary(rec.Start, func(_, x *Record) bool {
		n++
		summed = x.Summary
		return !summed && n < 2*twinReach
	})
	if err == nil && summed {
		bare := *rec
		bare.Items = nil
		return &bare, nil
	}
	return rec, err
}
