package conversation

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// a node is one record of a generated tree.
type node struct {
	id, parent, kind, text, message, call string
	time                                  int
}

func (n node) line(t *rapid.T) string {
	role, content := "assistant", any(nil)
	msg := map[string]any{}
	switch n.kind {
	case "user":
		role, content = "user", n.text
	case "text":
		content = []any{map[string]any{"type": "text", "text": n.text}}
	case "call":
		content = []any{map[string]any{"type": "tool_use", "id": n.call, "name": "Bash", "input": map[string]any{"command": n.text}}}
	case "result":
		role, content = "user", []any{map[string]any{"type": "tool_result", "tool_use_id": n.call, "content": n.text}}
	}
	msg["role"], msg["content"] = role, content
	if n.message != "" {
		msg["id"] = n.message
	}
	var parent any
	if n.parent != "" {
		parent = n.parent
	}
	b, err := json.Marshal(map[string]any{"parentUuid": parent, "isSidechain": false, "type": role, "uuid": n.id,
		"timestamp": fmt.Sprintf("2026-03-01T%02d:%02d:%02dZ", n.time/3600, n.time/60%60, n.time%60), "message": msg})
	if err != nil {
		t.Fatal(err)
	}
	return string(b) + "\n"
}

// TestTreesAgainstAWholeReading generates transcripts with rewinds, calls made at
// once, noise and damage, and compares what paging finds with a reading that has
// the whole tree in memory.
func TestTreesAgainstAWholeReading(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.jsonl")
	rapid.Check(t, func(t *rapid.T) {
		var file strings.Builder
		var want []string // of the branch that is being written
		var tips []string // the record after each user message, to go back to
		var marks []int   // and how long want was then
		parent, n, now := "", 0, 0
		add := func(nd node) node {
			n++
			now++
			nd.id, nd.time = fmt.Sprintf("id-%d", n), now
			file.WriteString(nd.line(t))
			return nd
		}
		turns := rapid.IntRange(1, 12).Draw(t, "turns")
		for turn := range turns {
			if len(tips) > 1 && rapid.IntRange(0, 4).Draw(t, "rewind") == 0 {
				// Never to the very beginning: a second root cannot be told from a file
				// whose beginning was lost.
				k := rapid.IntRange(1, len(tips)-1).Draw(t, "to")
				parent, want = tips[k], want[:marks[k]]
				tips, marks = tips[:k], marks[:k]
			}
			tips, marks = append(tips, parent), append(marks, len(want))
			nd := add(node{parent: parent, kind: "user", text: fmt.Sprintf("ask %d", turn)})
			parent = nd.id
			want = append(want, "user ask "+fmt.Sprint(turn))
			if rapid.Bool().Draw(t, "noise") {
				file.WriteString(`{"type":"progress","data":"` + strings.Repeat("z", rapid.IntRange(0, 3000).Draw(t, "size")) + `"}` + "\n")
			}
			// Calls of one message, some of them made at once.
			message := fmt.Sprintf("msg-%d", n)
			calls := rapid.IntRange(0, 3).Draw(t, "calls")
			together := rapid.Bool().Draw(t, "together")
			var open []node
			for c := range calls {
				nd := add(node{parent: parent, kind: "call", message: message, call: fmt.Sprintf("call-%d-%d", n, c), text: fmt.Sprintf("do %d", c)})
				want = append(want, fmt.Sprintf("tool do %d -> out %s", c, nd.call))
				parent = nd.id
				if open = append(open, nd); !together {
					r := add(node{parent: nd.id, kind: "result", call: nd.call, text: "out " + nd.call})
					parent, open = r.id, nil
				}
			}
			// Results come in any order, each a child of its own call; the next record
			// is a child of the last one.
			for len(open) > 0 {
				k := rapid.IntRange(0, len(open)-1).Draw(t, "which")
				r := add(node{parent: open[k].id, kind: "result", call: open[k].call, text: "out " + open[k].call})
				parent = r.id
				open = append(open[:k:k], open[k+1:]...)
			}
			nd = add(node{parent: parent, kind: "text", message: fmt.Sprintf("end-%d", n), text: fmt.Sprintf("answer %d", turn)})
			parent = nd.id
			want = append(want, "text answer "+fmt.Sprint(turn))
			if rapid.IntRange(0, 5).Draw(t, "damage") == 0 {
				file.WriteString("{\"half\n")
			}
		}
		if err := writeAll(path, file.String()); err != nil {
			t.Fatal(err)
		}
		l, err := Open(Ref{Tool: "claude", Path: path})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		size := rapid.IntRange(1, 9).Draw(t, "page")
		var got []string
		for before := Cursor(""); ; {
			page, err := l.Page(before, size)
			if err != nil {
				t.Fatal(err)
			}
			var part []string
			for _, it := range page.Items {
				s := string(it.Kind) + " " + it.Text
				if it.Tool != nil {
					s = fmt.Sprintf("tool %s -> %s", it.Tool.Input.Text, it.Tool.Output.Text)
				}
				part = append(part, s)
			}
			got = append(part, got...)
			if before = page.Before; before == "" {
				break
			}
		}
		if a, b := strings.Join(got, "\n"), strings.Join(want, "\n"); a != b {
			t.Fatalf("got:\n%s\n\nwant:\n%s\n\nof:\n%s", a, b, file.String())
		}
	})
}
