package conversation

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// wait is how long a test waits for a change that must come.
const wait = 20 * time.Second

// appendTo adds text to a file.
func appendTo(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

// says makes a record of Claude Code; kind is "user", "text" or "call", and
// "result" of the call with the id in text.
func says(uuid, parent, kind, text string) string {
	p := "null"
	if parent != "" {
		p = fmt.Sprintf("%q", parent)
	}
	role, content, extra := "assistant", "", ""
	switch kind {
	case "user":
		role, content = "user", fmt.Sprintf("%q", text)
	case "text":
		content = fmt.Sprintf(`[{"type":"text","text":%q}]`, text)
		extra = fmt.Sprintf(`"id":"m-%s","stop_reason":"end_turn",`, uuid)
	case "call":
		content = fmt.Sprintf(`[{"type":"tool_use","id":%q,"name":"Bash","input":{"command":"ls"}}]`, text)
		extra = fmt.Sprintf(`"id":"m-%s","stop_reason":"tool_use",`, uuid)
	case "result":
		role, content = "user", fmt.Sprintf(`[{"type":"tool_result","tool_use_id":%q,"content":"done"}]`, text)
	}
	return fmt.Sprintf(`{"parentUuid":%s,"isSidechain":false,"cwd":"/home/dev/project","type":%q,"uuid":%q,"timestamp":"2026-03-01T09:00:00Z","message":{%s"role":%q,"content":%s}}`+"\n",
		p, role, uuid, extra, role, content)
}

// next waits for a change that satisfies ok, and fails on another.
func next(t *testing.T, c <-chan Change, what string) Change {
	t.Helper()
	select {
	case change, ok := <-c:
		if !ok {
			t.Fatalf("waiting for %s: the tail ended", what)
		}
		return change
	case <-time.After(wait):
		t.Fatalf("waiting for %s: nothing came", what)
	}
	return Change{}
}

func texts(items []Item) string {
	var out []string
	for i := range items {
		out = append(out, brief(&items[i]))
	}
	return strings.Join(out, "; ")
}

func TestTailFollowsAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.jsonl")
	appendTo(t, path, says("u1", "", "user", "one")+says("a1", "u1", "text", "two"))
	l := openRef(t, Ref{Tool: "claude", Path: path})
	page, err := l.Page("", 10)
	if err != nil {
		t.Fatal(err)
	}
	// Between the page and the tail something is said: it must not be lost.
	appendTo(t, path, says("u2", "a1", "user", "three"))
	ctx, stop := context.WithCancel(t.Context())
	changes := l.Tail(ctx, page.After)

	c := next(t, changes, "what came in between")
	if c.Reset || texts(c.Items) != "user | three" {
		t.Fatalf("%+v", c)
	}
	appendTo(t, path, says("a2", "u2", "call", "call-1"))
	if c = next(t, changes, "a call"); c.Reset || len(c.Items) != 1 || c.Items[0].Tool == nil || c.Items[0].Tool.Status != "running" {
		t.Fatalf("%+v", c)
	}
	call := c.Items[0].ID
	// A half-written record shows only once it is whole.
	result := says("r1", "a2", "result", "call-1")
	appendTo(t, path, result[:40])
	appendTo(t, path, result[40:])
	for {
		c = next(t, changes, "the result")
		if len(c.Items) > 0 {
			break
		}
	}
	if c.Reset || len(c.Items) != 1 || c.Items[0].ID != call || c.Items[0].Tool.Status != "ok" {
		t.Fatalf("the result must change the call: %+v", c)
	}
	// A rewind: the newest turn is taken back.
	appendTo(t, path, says("u2b", "a1", "user", "another three"))
	if c = next(t, changes, "a rewind"); !c.Reset || texts(c.Items) != "user | one; text | two; user | another three" {
		t.Fatalf("%+v", c)
	}
	// Cut short and written anew.
	if err := os.WriteFile(path, []byte(says("x1", "", "user", "fresh")), 0o600); err != nil {
		t.Fatal(err)
	}
	for {
		if c = next(t, changes, "the new file"); texts(c.Items) == "user | fresh" {
			break
		}
	}
	if !c.Reset {
		t.Fatalf("%+v", c)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if c = next(t, changes, "that it is gone"); !c.Gone {
		t.Fatalf("%+v", c)
	}
	appendTo(t, path, says("y1", "", "user", "back"))
	if c = next(t, changes, "that it is back"); !c.Reset || texts(c.Items) != "user | back" {
		t.Fatalf("%+v", c)
	}
	stop()
	for range changes {
	}
}

func TestTailWithoutAPlaceBegins(t *testing.T) {
	for name, ref := range sampleRefs(t) {
		l := openRef(t, ref)
		ctx, stop := context.WithCancel(t.Context())
		changes := l.Tail(ctx, "")
		c := next(t, changes, "the first change of "+name)
		if !c.Reset {
			t.Errorf("%s: %+v", name, c)
		}
		stop()
		for range changes {
		}
		// From where that ended there is nothing new.
		ctx, stop = context.WithCancel(t.Context())
		changes = l.Tail(ctx, c.After)
		if again := next(t, changes, "the first change again of "+name); !again.Reset && len(again.Items) > 0 && endsWhole(t, ref.Path) {
			t.Errorf("%s: nothing happened, but %s", name, texts(again.Items))
		}
		stop()
		for range changes {
		}
	}
}

// endsWhole says whether a file ends with a newline: a last record without one
// counts as new until it has it.
func endsWhole(t *testing.T, path string) bool {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return len(b) > 0 && b[len(b)-1] == '\n'
}

func TestFollowGoesOverToANewFile(t *testing.T) {
	dir := t.TempDir()
	first, second := filepath.Join(dir, "1.jsonl"), filepath.Join(dir, "2.jsonl")
	appendTo(t, first, says("u1", "", "user", "one"))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	locate := func() (Ref, error) {
		if _, err := os.Stat(second); err == nil {
			return Ref{Tool: "claude", Path: second}, nil
		}
		return Ref{Tool: "claude", Path: first}, nil
	}
	changes := Follow(ctx, locate, Ref{}, "")
	get := func(what string) Followed {
		t.Helper()
		select {
		case c := <-changes:
			return c
		case <-time.After(wait):
			t.Fatalf("waiting for %s", what)
		}
		return Followed{}
	}
	if c := get("the first file"); !c.Reset || texts(c.Items) != "user | one" || c.Ref.Path != first {
		t.Fatalf("%+v", c)
	}
	appendTo(t, second, says("v1", "", "user", "after a clear"))
	if c := get("the second file"); !c.Reset || texts(c.Items) != "user | after a clear" || c.Ref.Path != second {
		t.Fatalf("%+v", c)
	}
	stop()
	for range changes {
	}
}

func TestCursorsOfAnotherFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s.jsonl")
	appendTo(t, path, says("u1", "", "user", "one")+says("a1", "u1", "text", "two")+says("u2", "a1", "user", "three"))
	l := openRef(t, Ref{Tool: "claude", Path: path})
	page, err := l.Page("", 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Page(page.Before, 1); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []Cursor{"x", "..", Cursor(strings.Repeat("a", 300)), "a b", Cursor(strings.Replace(string(page.Before), ".", ".1", 1))} {
		if _, err := l.Page(bad, 1); !errors.Is(err, ErrCursor) {
			t.Errorf("cursor %q: %v", bad, err)
		}
	}
	if err := os.WriteFile(path, []byte(says("z1", "", "user", "other")), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Page(page.Before, 1); !errors.Is(err, ErrCursor) {
		t.Errorf("the file was replaced: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Page("", 1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file is gone: %v", err)
	}
	if tail, err := TailState(Ref{Tool: "claude", Path: path}); !errors.Is(err, fs.ErrNotExist) || tail.State != TurnNone {
		t.Errorf("%+v %v", tail, err)
	}
}

func itoa(n int) string { return fmt.Sprint(n) }

func writeAll(path, content string) error { return os.WriteFile(path, []byte(content), 0o600) }

// What is over moves on with each call that ends, in the stores that are no lines of
// records too, and with nothing else.
func TestFinishedTellsCallsApart(t *testing.T) {
	chat := filepath.Join(t.TempDir(), "session-2026-11-30T10-00-7a1b2c3d.json")
	gemini := func(messages string) Ref {
		text := `{"sessionId":"7a1b2c3d-0000-4000-8000-000000000001","messages":[{"id":"1","type":"user","content":"go"}` + messages + `]}`
		if err := os.WriteFile(chat, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return Ref{Tool: "gemini", Path: chat}
	}
	said := func(id, status string) string {
		return `,{"id":"` + id + `","type":"gemini","content":"","toolCalls":[{"id":"c` + id + `","name":"run_shell_command","args":{"command":"date"},"status":"` + status + `"}]}`
	}
	store := openStore(t)
	db, err := sql.Open("sqlite", store)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	n := 0
	opencode := func(status string) Ref {
		t.Helper()
		n++
		message := fmt.Sprintf("msg_zz%02d", n)
		part := `{"type":"tool","tool":"bash","callID":"x","state":{"status":"` + status + `","input":{"command":"date"}}}`
		for _, q := range []struct {
			text string
			args []any
		}{
			{`INSERT INTO message (id, session_id, time_created, time_updated, data) VALUES (?, 'ses_one', ?, 0, '{"role":"assistant"}')`, []any{message, int64(1)<<45 + int64(n)}},
			{`INSERT INTO part (id, message_id, session_id, time_created, time_updated, data) VALUES (?, ?, 'ses_one', 0, 0, ?)`, []any{"prt" + message, message, part}},
		} {
			if _, err := db.Exec(q.text, q.args...); err != nil {
				t.Fatal(err)
			}
		}
		return Ref{Tool: "opencode", Path: store, SessionID: "ses_one"}
	}
	var last string
	for _, c := range []struct {
		name string
		ref  func() Ref
		same bool
	}{
		{"gemini asks", func() Ref { return gemini(said("2", "awaiting_approval")) }, true},
		{"gemini did", func() Ref { return gemini(said("2", "success")) }, false},
		{"gemini asks again", func() Ref { return gemini(said("2", "success") + said("3", "awaiting_approval")) }, true},
		{"gemini was told no", func() Ref { return gemini(said("2", "success") + said("3", "cancelled")) }, false},
		{"opencode did", func() Ref { return opencode("completed") }, false},
		{"opencode asks", func() Ref { return opencode("running") }, true},
		{"opencode did again", func() Ref { return opencode("completed") }, false},
	} {
		got, err := Finished(c.ref())
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if same := got == last; same != c.same {
			t.Errorf("%s: %q after %q", c.name, got, last)
		}
		last = got
	}
}
