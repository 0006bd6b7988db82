package jsonl

import (
	"cmp"
	"slices"

	"holdfast/internal/session/conversation/item"
)

// join puts results into the calls of the page, from wherever they stand, and
// shows those whose call is nowhere.
func (p *pager) join() error {
	// The nearest result after a call is its own.
	slices.SortFunc(p.results, func(a, b result) int { return cmp.Compare(a.start, b.start) })
	near := map[string][]result{}
	for _, res := range p.results {
		near[res.Call] = append(near[res.Call], res)
	}
	for _, g := range p.groups {
		for i := range g {
			if err := p.complete(&g[i], near); err != nil {
				return err
			}
		}
	}
	return p.orphans()
}

// complete joins the result of one item into it.
func (p *pager) complete(it *item.Item, near map[string][]result) error {
	if it.Tool == nil && len(it.Questions) == 0 {
		return nil
	}
	c := p.calls[it.ID]
	for _, res := range near[it.ID] {
		if res.start >= c.end && res.start-c.end <= Near {
			res.Join(it)
			it.Rev = max(it.Rev, res.rec.End)
			return nil
		}
	}
	if it.Tool != nil && it.Tool.Status != item.Running {
		return nil // its record already holds the result
	}
	rec, err := p.r.firstWith(it.ID, c.end, func(x *Record) bool { return hasResult(x, it.ID) })
	if err != nil || rec == nil {
		return err
	}
	for _, res := range rec.Results {
		if res.Call == it.ID {
			res.Join(it)
			it.Rev = max(it.Rev, rec.End)
			break
		}
	}
	return nil
}

func hasResult(rec *Record, id string) bool {
	return slices.ContainsFunc(rec.Results, func(res Result) bool { return res.Call == id })
}

func hasCall(rec *Record, id string) bool {
	return slices.ContainsFunc(rec.Items, func(it item.Item) bool { return it.ID == id })
}

// orphans shows results whose call is lost, each where it stands.
func (p *pager) orphans() error {
	for _, res := range p.results {
		if _, ok := p.calls[res.Call]; ok {
			continue
		}
		rec, err := p.r.lastWith(res.Call, res.start, func(x *Record) bool { return hasCall(x, res.Call) })
		if err != nil {
			return err
		}
		if rec != nil {
			continue
		}
		it := item.Item{ID: res.Call, Kind: item.ToolCall, Time: res.rec.Time, Cursor: res.place.cursor(p.gen), Rev: res.rec.End,
			Tool: &item.Tool{Status: item.Running}}
		res.Join(&it)
		p.insert(it, res.start)
	}
	return nil
}

// insert puts an item of a record that shows nothing else where it belongs.
func (p *pager) insert(it item.Item, start int64) {
	i := 0
	for i < len(p.groups) && len(p.groups[i]) > 0 && p.calls[p.groups[i][0].ID].start > start {
		i++
	}
	p.groups = slices.Insert(p.groups, i, []item.Item{it})
	p.calls[it.ID] = call{start, start}
}
