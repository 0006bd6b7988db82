package conversation

import (
	"database/sql"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"holdfast/internal/session/conversation/item"
)

var update = flag.Bool("update", false, "write the expectations anew; look at the difference before keeping it")

const (
	samples      = "../../../testdata/transcripts"
	expectations = samples + "/expect.json"
)

// expected is what a transcript must yield: enough words to know each item by,
// never the text itself.
type expected struct {
	Items      []string `json:"items"`
	State      string   `json:"state"`
	Title      string   `json:"title,omitempty"`
	Unreadable int      `json:"unreadable,omitempty"`
}

// brief describes an item in a few words.
func brief(it *Item) string {
	var b strings.Builder
	b.WriteString(string(it.Kind))
	if it.Pending {
		b.WriteString(" pending")
	}
	if t := it.Tool; t != nil {
		fmt.Fprintf(&b, " %s %s", t.Name, t.Status)
		if t.ExitCode != nil {
			fmt.Fprintf(&b, " exit %d", *t.ExitCode)
		}
		for _, d := range t.Diff {
			fmt.Fprintf(&b, " %s +%d -%d", d.Op, d.Added, d.Removed)
		}
		if t.Agent != "" {
			b.WriteString(" agent")
		}
		fmt.Fprintf(&b, " | %s", item.Line(t.Title, 30))
		if t.Output.Text != "" {
			fmt.Fprintf(&b, " | %s", item.Line(t.Output.Text, 30))
		}
	} else if len(it.Questions) > 0 {
		for _, q := range it.Questions {
			fmt.Fprintf(&b, " | %s (%d) %s", item.Line(q.Text, 30), len(q.Options), item.Line(q.Answer, 30))
		}
	} else {
		fmt.Fprintf(&b, " | %s", item.Line(it.Text, 30))
	}
	if it.Control {
		b.WriteString(" | control")
	}
	for _, img := range it.Images {
		fmt.Fprintf(&b, " | image %s %d", img.MediaType, img.Bytes)
	}
	return b.String()
}

// sampleRefs lists the transcripts of testdata, and those that lie in a folder
// fixtures/transcripts beside the checkout, by the names of the expectations.
func sampleRefs(t *testing.T) map[string]Ref {
	t.Helper()
	refs := map[string]Ref{}
	add := func(root, prefix string) {
		for _, tool := range []string{"claude", "codex", "gemini", "aider"} {
			files, err := filepath.Glob(filepath.Join(root, tool, "*"))
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range files {
				switch filepath.Ext(f) {
				case ".jsonl", ".json", ".md":
					refs[prefix+tool+"/"+filepath.Base(f)] = Ref{Tool: tool, Path: f}
				}
			}
		}
	}
	add(samples, "")
	others, err := filepath.Glob("../../../../*/fixtures/transcripts")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range others {
		add(dir, "more/")
	}
	refs["opencode/store.sql"] = Ref{Tool: "opencode", Path: openStore(t), SessionID: "ses_one"}
	return refs
}

// openStore makes a database of the statements in testdata.
func openStore(t *testing.T) string {
	t.Helper()
	script, err := os.ReadFile(samples + "/opencode/store.sql")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "opencode.db")
	db, err := sql.Open("sqlite", path+"?_pragma=journal_mode(wal)")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(string(script)); err != nil {
		t.Fatal(err)
	}
	// It stays open: what was written is in the write-ahead log, as in life.
	t.Cleanup(func() { db.Close() })
	return path
}

func openRef(t testing.TB, ref Ref) *Log {
	t.Helper()
	l, err := Open(ref)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// all pages a conversation from its end to its beginning.
func all(t testing.TB, l *Log, limit int) (items []Item, unreadable int, title string) {
	t.Helper()
	var before Cursor
	for n := 0; ; n++ {
		page, err := l.Page(before, limit)
		if err != nil {
			t.Fatalf("page %d before %q: %v", n, before, err)
		}
		if before == "" {
			title = page.Title
		}
		items = append(slices.Clone(page.Items), items...)
		unreadable += page.Unreadable
		if page.Before == "" {
			return items, unreadable, title
		}
		if page.Before == before || n > 100_000 {
			t.Fatalf("paging does not end: %q", before)
		}
		before = page.Before
	}
}

func TestTranscripts(t *testing.T) {
	want := map[string]expected{}
	if b, err := os.ReadFile(expectations); err == nil {
		if err := json.Unmarshal(b, &want); err != nil {
			t.Fatal(err)
		}
	}
	got := map[string]expected{}
	for name, ref := range sampleRefs(t) {
		l := openRef(t, ref)
		items, bad, title := all(t, l, 7)
		e := expected{Items: []string{}, Unreadable: bad, Title: title}
		for i := range items {
			e.Items = append(e.Items, brief(&items[i]))
			if items[i].ID == "" || items[i].Cursor == "" {
				t.Errorf("%s: item %d has no id or no cursor: %+v", name, i, items[i])
			}
		}
		tail, err := TailState(ref)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		e.State = string(tail.State)
		if tail.At.IsZero() || tail.Title != title {
			t.Errorf("%s: the end is at %v with title %q, the page says %q", name, tail.At, tail.Title, title)
		}
		got[name] = e
		if *update {
			want[name] = e
		}
		if w, ok := want[name]; !ok {
			t.Errorf("%s: nothing is expected of it", name)
		} else if !reflect.DeepEqual(w, e) {
			t.Errorf("%s:\n got %s\nwant %s", name, pretty(e), pretty(w))
		}
	}
	for name := range want {
		if _, ok := got[name]; !ok && !strings.HasPrefix(name, "more/") {
			t.Errorf("%s is expected and not there", name)
		}
	}
	if *update {
		if err := os.WriteFile(expectations, []byte(pretty(want)+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func pretty(v any) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	if err := enc.Encode(v); err != nil {
		return err.Error()
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// TestPagesOfAnySize holds the promise of cursors: where pages begin makes no
// difference to what is on them.
func TestPagesOfAnySize(t *testing.T) {
	for name, ref := range sampleRefs(t) {
		l := openRef(t, ref)
		want, _, _ := all(t, l, item.MaxItems)
		for _, size := range []int{1, 2, 3, 5, 13} {
			// Each size with a new Log too: a cursor outlives the process.
			got, _, _ := all(t, openRef(t, ref), size)
			if a, b := pretty(got), pretty(want); a != b {
				t.Errorf("%s by %d:\n got %s\nwant %s", name, size, a, b)
			}
		}
	}
}

// TestCursorOfAnItem asks for the page above every item.
func TestCursorOfAnItem(t *testing.T) {
	for name, ref := range sampleRefs(t) {
		l := openRef(t, ref)
		items, _, _ := all(t, l, item.MaxItems)
		for i := range items {
			first := i // of the message
			for first > 0 && items[first-1].Message != "" && items[first-1].Message == items[i].Message {
				first--
			}
			page, err := l.Page(items[i].Cursor, item.MaxItems)
			if err != nil {
				t.Fatalf("%s: above item %d: %v", name, i, err)
			}
			if a, b := pretty(page.Items), pretty(items[:first]); a != b {
				t.Errorf("%s: above item %d (%s):\n got %s\nwant %s", name, i, brief(&items[i]), a, b)
			}
		}
	}
}
