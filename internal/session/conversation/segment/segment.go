// Package segment pages conversations whose messages are known by a list of
// their places: files that are read from their beginning because they are
// rewritten, or because later records change earlier ones.
//
// It reads no file. What a caller will get wrong: a cursor names the place of a
// message, so a list that lost it answers item.ErrCursor.
package segment

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"holdfast/internal/session/conversation/item"
)

// Max bounds the messages of one conversation that are kept in a list; the
// oldest go first. A list takes 48 bytes a message.
const Max = 500_000

// A Segment is the place of one message.
type Segment struct {
	ID string
	// At orders the list and names the message in cursors: where it stood first.
	// Start and End are where its newest version is.
	At, Start, End int64
}

// Cursor names the place above a segment.
func (s Segment) cursor(gen string) item.Cursor {
	return item.Cursor(fmt.Sprintf("%s.%d", gen, s.At))
}

// Page returns a page of a list that is sorted by At. decode turns a segment
// into items without a Cursor.
func Page(list []Segment, gen string, before item.Cursor, limit int, decode func(Segment) ([]item.Item, error)) (item.Page, error) {
	end := len(list)
	if before != "" {
		at, err := Position(before, gen)
		if err != nil {
			return item.Page{}, err
		}
		i, ok := slices.BinarySearchFunc(list, at, func(s Segment, at int64) int { return int(max(-1, min(1, s.At-at))) })
		if !ok {
			return item.Page{}, item.ErrCursor
		}
		end = i
	}
	var page item.Page
	var groups [][]item.Item
	count, size := 0, 0
	i := end - 1
	for ; i >= 0 && count < limit && size < item.MaxPage; i-- {
		items, err := decode(list[i])
		if err != nil {
			return item.Page{}, err
		}
		for j := range items {
			items[j].Cursor = list[i].cursor(gen)
			size += items[j].Weight()
		}
		count += len(items)
		groups = append(groups, items)
	}
	for _, g := range slices.Backward(groups) {
		page.Items = append(page.Items, g...)
	}
	if i >= 0 {
		page.Before = list[i+1].cursor(gen)
	}
	return page, nil
}

// End is the cursor of the end of a list that reaches to at.
func End(gen string, at int64) item.Cursor { return item.Cursor(fmt.Sprintf("%s.%d", gen, at)) }

// Position is the place that a cursor names.
func Position(c item.Cursor, gen string) (int64, error) {
	name, at, ok := strings.Cut(string(c), ".")
	n, err := strconv.ParseInt(at, 10, 64)
	if !ok || name != gen || err != nil || n < 0 {
		return 0, item.ErrCursor
	}
	return n, nil
}

// Trim keeps the newest Max segments.
func Trim(list []Segment) []Segment {
	if len(list) > Max {
		return slices.Clone(list[len(list)-Max:])
	}
	return list
}
