package conversation

import (
	"context"
	"fmt"
	"strings"

	"holdfast/internal/session/conversation/item"
)

const (
	// maxQuery bounds what is searched for, in bytes.
	maxQuery = 256
	// searchPages is how many pages one search looks at before it answers with
	// what it has: some thousands of items, well under a second.
	searchPages = 10
	// searchPage is how large those pages are.
	searchPage = 200
	// around is how much text is shown on either side of a hit, in bytes.
	around = 80
)

// A Hit is an item that holds what was searched for.
type Hit struct {
	Item Item `json:"item"`
	// Snippet is the text around the first place, in one line.
	Snippet string `json:"snippet"`
}

// A Found is the answer to a search, the newest hit first.
type Found struct {
	Hits []Hit `json:"hits"`
	// Before goes on with the search; empty when all was searched.
	Before Cursor `json:"before,omitempty"`
}

// Search looks for a text, upper and lower case alike, from a cursor towards the
// beginning (from the end for an empty one). It returns about limit hits, and
// fewer with a Before when it has looked at as much as one call may. Of texts
// that are cut only what an item holds is searched.
func (l *Log) Search(ctx context.Context, query string, before Cursor, limit int) (Found, error) {
	query = strings.ToLower(strings.TrimSpace(query))
	if query == "" || len(query) > maxQuery {
		return Found{}, fmt.Errorf("search a conversation: the text must have 1 to %d bytes", maxQuery)
	}
	if limit <= 0 || limit > item.MaxItems {
		limit = defaultPage
	}
	out := Found{Hits: []Hit{}}
	for range searchPages {
		if err := context.Cause(ctx); err != nil {
			return Found{}, err
		}
		page, err := l.Page(before, searchPage)
		if err != nil {
			return Found{}, err
		}
		for i := len(page.Items) - 1; i >= 0; i-- {
			it := page.Items[i]
			text, ok := match(&it, query)
			if !ok {
				continue
			}
			if len(out.Hits) >= limit {
				// A cursor stands above a whole message: hits of the last one are never
				// divided.
				if last := out.Hits[len(out.Hits)-1].Item; it.Message == "" || it.Message != last.Message {
					out.Before = last.Cursor
					return out, nil
				}
			}
			out.Hits = append(out.Hits, Hit{Item: it, Snippet: text})
		}
		if before = page.Before; before == "" {
			return out, nil
		}
	}
	out.Before = before
	return out, nil
}

// match looks through the texts of an item.
func match(it *Item, query string) (snippet string, ok bool) {
	texts := []string{it.Text}
	if t := it.Tool; t != nil {
		texts = append(texts, t.Title, t.Input.Text, t.Output.Text)
		for _, d := range t.Diff {
			texts = append(texts, d.Path)
			for _, h := range d.Hunks {
				texts = append(texts, h.Lines...)
			}
		}
	}
	for _, q := range it.Questions {
		texts = append(texts, q.Text, q.Answer)
		for _, o := range q.Options {
			texts = append(texts, o.Label)
		}
	}
	for _, text := range texts {
		low := strings.ToLower(text)
		i := strings.Index(low, query)
		if i < 0 {
			continue
		}
		if len(low) != len(text) {
			text = low // lower case can be of another length: show that
		}
		from := max(0, i-around)
		for from > 0 && text[from]&0xc0 == 0x80 {
			from--
		}
		return item.Line(text[from:], i-from+len(query)+around), true
	}
	return "", false
}

// Agent is the Ref of a sub-agent's conversation, by Tool.Agent.
func (l *Log) Agent(id string) Ref {
	ref := l.ref
	ref.Agent = id
	return ref
}
