package item

import (
	"regexp"
	"strconv"
	"strings"
)

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

// ParseUnified reads a diff of one file in the unified form; path is used when
// the diff names none.
func ParseUnified(text, path string) Diff {
	d := Diff{Path: path, Op: "update"}
	var h *Hunk
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		switch {
		case strings.HasPrefix(line, "@@"):
			d.Hunks = append(d.Hunks, Hunk{})
			h = &d.Hunks[len(d.Hunks)-1]
			if m := unifiedHead.FindStringSubmatch(line); m != nil {
				h.OldStart, _ = strconv.Atoi(m[1])
				h.NewStart, _ = strconv.Atoi(m[2])
			}
		case h == nil:
			if name, ok := strings.CutPrefix(line, "+++ "); ok && d.Path == "" {
				name, _, _ = strings.Cut(name, "\t")
				d.Path = Line(strings.TrimPrefix(name, "b/"), 4096)
			}
		case strings.HasPrefix(line, "+"):
			d.Added++
			h.Lines = append(h.Lines, line)
		case strings.HasPrefix(line, "-"):
			d.Removed++
			h.Lines = append(h.Lines, line)
		case strings.HasPrefix(line, " "):
			h.Lines = append(h.Lines, line)
		case line == "":
			h.Lines = append(h.Lines, " ")
		}
	}
	TrimDiff(&d)
	return d
}

var unifiedHead = regexp.MustCompile(`^@@ -(\d{1,9})(?:,\d+)? \+(\d{1,9})`)
