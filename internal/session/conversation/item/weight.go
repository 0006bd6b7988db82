package item

// Weight is about what an item takes as JSON, in bytes, escapes counted.
func (it *Item) Weight() int {
	n := 300 + escaped(it.Text)
	if t := it.Tool; t != nil {
		n += 100 + escaped(t.Title) + escaped(t.Input.Text) + escaped(t.Output.Text)
		for _, d := range t.Diff {
			n += 100 + len(d.Path) + len(d.To)
			for _, h := range d.Hunks {
				n += 50
				for _, l := range h.Lines {
					n += 3 + escaped(l)
				}
			}
		}
	}
	for _, q := range it.Questions {
		n += 100 + escaped(q.Header) + escaped(q.Text) + escaped(q.Answer)
		for _, o := range q.Options {
			n += 30 + escaped(o.Label) + escaped(o.Detail)
		}
	}
	return n + 200*len(it.Images)
}

// escaped is the length of a string as JSON, as encoding/json writes it.
func escaped(s string) int {
	n := len(s)
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\' || c == '\n' || c == '\t' || c == '\r':
			n++
		case c < 0x20 || c == '<' || c == '>' || c == '&':
			n += 5
		}
	}
	return n
}
