package item

// TrimDiff bounds the lines of a diff and their length.
func TrimDiff(d *Diff) {
	lines, bytes := 0, 0
	for i := range d.Hunks {
		h := &d.Hunks[i]
		for j, l := range h.Lines {
			if len(l) > 2000 {
				h.Lines[j] = CutRunes(l, 2000) + "…"
				d.Cut = true
			}
			lines, bytes = lines+1, bytes+len(h.Lines[j])
			if lines > MaxHunkLines || bytes > 4*MaxText {
				h.Lines = h.Lines[:j]
				d.Hunks = d.Hunks[:i+1]
				if j == 0 {
					d.Hunks = d.Hunks[:i]
				}
				d.Cut = true
				return
			}
		}
	}
}
