package conversation

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// home makes a home directory with files of the given contents.
func home(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func age(t *testing.T, path string, d time.Duration) {
	t.Helper()
	at := time.Now().Add(-d)
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
}

func located(t *testing.T, q Query) Ref {
	t.Helper()
	ref, err := Locate(q)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

func TestLocateClaude(t *testing.T) {
	const (
		one = "11111111-0000-4000-8000-000000000001"
		two = "22222222-0000-4000-8000-000000000002"
	)
	work := t.TempDir()
	slug := strings.Map(func(r rune) rune {
		if r == '/' || r == '_' || r == '.' {
			return '-'
		}
		return r
	}, work)
	here := strings.ReplaceAll(says("u1", "", "user", "hello"), "/home/dev/project", work)
	dir := home(t, map[string]string{
		".claude/projects/" + slug + "/" + one + ".jsonl":                    `{"type":"mode"}` + "\n" + here,
		".claude/projects/" + slug + "/" + two + ".jsonl":                    here,
		".claude/projects/" + slug + "/agent-abc.jsonl":                      here,
		".claude/projects/-elsewhere/" + one + "x.jsonl":                     says("u1", "", "user", "hello"),
		".claude/projects/" + slug + "/" + one + "/subagents/agent-a1.jsonl": here,
	})
	path := func(id string) string { return filepath.Join(dir, ".claude/projects", slug, id+".jsonl") }
	q := Query{Tool: "claude", Home: dir, Dir: work, StartedAt: time.Now().Add(-time.Hour)}

	// The id beats everything, and is never guessed around.
	byID := q
	byID.SessionID = two
	if ref := located(t, byID); ref.Path != path(two) || ref.How != "id" || ref.SessionID != two {
		t.Errorf("%+v", ref)
	}
	byID.SessionID = "33333333-0000-4000-8000-000000000003"
	if _, err := Locate(byID); !errors.Is(err, ErrNone) {
		t.Errorf("an id without a file: %v", err)
	}
	for _, bad := range []string{"../../" + one, "a/b", "*", strings.Repeat("a", 200)} {
		byID.SessionID = bad
		if ref, err := Locate(byID); err == nil && ref.How == "id" {
			t.Errorf("%q found %+v", bad, ref)
		}
	}
	// Two that fit are not chosen between.
	var ambiguous *AmbiguousError
	if _, err := Locate(q); !errors.As(err, &ambiguous) || !errors.Is(err, ErrAmbiguous) || len(ambiguous.Candidates) != 2 {
		t.Fatalf("%v", err)
	}
	// One of them was not touched since the process began.
	age(t, path(one), 2*time.Hour)
	if ref := located(t, q); ref.Path != path(two) || ref.How != "directory" || ref.SessionID != two {
		t.Errorf("%+v", ref)
	}
	// An open file tells them apart whatever the times.
	open := q
	open.PID = 1
	open.OpenFiles = func(int) []string {
		return []string{"/dev/null", path(one), path(one), filepath.Join(dir, "other.jsonl")}
	}
	if ref := located(t, open); ref.Path != path(one) || ref.How != "open file" {
		t.Errorf("%+v", ref)
	}
	open.OpenFiles = func(int) []string { return []string{path(one), path(two)} }
	if _, err := Locate(open); !errors.Is(err, ErrAmbiguous) {
		t.Errorf("two open files: %v", err)
	}
	// What a hook told must be of the tool.
	hook := q
	hook.Transcript = path(one)
	if ref := located(t, hook); ref.Path != path(one) || ref.How != "id" {
		t.Errorf("%+v", ref)
	}
	hook.Transcript = "/etc/hostname"
	if ref := located(t, hook); ref.Path == "/etc/hostname" {
		t.Errorf("%+v", ref)
	}
	// The directory of the configuration is the process's own.
	moved := q
	moved.Home = "/nonexistent"
	moved.Env = func(name string) string {
		if name == "CLAUDE_CONFIG_DIR" {
			return filepath.Join(dir, ".claude")
		}
		return ""
	}
	if ref := located(t, moved); ref.Path != path(two) {
		t.Errorf("%+v", ref)
	}
	// The name of the projects' directory may be any.
	if err := os.Rename(filepath.Join(dir, ".claude/projects", slug), filepath.Join(dir, ".claude/projects/mine")); err != nil {
		t.Fatal(err)
	}
	if ref := located(t, q); filepath.Base(filepath.Dir(ref.Path)) != "mine" {
		t.Errorf("%+v", ref)
	}
	elsewhere := q
	elsewhere.Dir = t.TempDir()
	if _, err := Locate(elsewhere); !errors.Is(err, ErrNone) {
		t.Errorf("%v", err)
	}
}

func TestLocateTheOthers(t *testing.T) {
	work := t.TempDir()
	const id = "01a22a93-5e00-7592-8bc3-5105b1fd0164"
	const sub = "01a22a93-5e00-7592-8bc3-5105b1fd0165"
	meta := `{"timestamp":"2026-03-01T09:00:00Z","type":"session_meta","payload":{"id":"x","cwd":"` + work + `","source":%s}}` + "\n"
	sum := sha256.Sum256([]byte(work))
	dir := home(t, map[string]string{
		".codex/sessions/2026/03/01/rollout-2026-03-01T09-00-00-" + id + ".jsonl":                     strings.Replace(meta, "%s", `"cli"`, 1),
		".codex/sessions/2026/03/02/rollout-2026-03-02T09-00-00-" + sub + ".jsonl":                    strings.Replace(meta, "%s", `{"subagent":{"thread_spawn":{}}}`, 1),
		".gemini/tmp/" + hex.EncodeToString(sum[:]) + "/chats/session-2026-03-01T09-00-7a1b2c3d.json": `{"sessionId":"7a1b2c3d-0000-4000-8000-000000000001","messages":[]}`,
		".gemini/tmp/short/chats/session-2026-03-02T09-00-7a1b2c3e.jsonl":                             `{"sessionId":"7a1b2c3e-0000-4000-8000-000000000002","projectHash":"x"}` + "\n",
		".gemini/projects.json": `{"projects":{"` + work + `/other":"short"}}`,
	})
	if err := os.WriteFile(filepath.Join(work, ".aider.chat.history.md"), []byte("#### hello\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(work, "below"), 0o700); err != nil {
		t.Fatal(err)
	}
	q := Query{Home: dir, Dir: work}
	for tool, base := range map[string]string{
		"codex":  "rollout-2026-03-01T09-00-00-" + id + ".jsonl",
		"gemini": "session-2026-03-01T09-00-7a1b2c3d.json",
		"aider":  ".aider.chat.history.md",
	} {
		q.Tool = tool
		if ref := located(t, q); filepath.Base(ref.Path) != base || ref.Tool != tool {
			t.Errorf("%s: %+v", tool, ref)
		}
		late := q
		late.StartedAt = time.Now().Add(time.Hour)
		if ref, err := Locate(late); !errors.Is(err, ErrNone) {
			t.Errorf("%s, started later: %+v %v", tool, ref, err)
		}
	}
	q.Dir = filepath.Join(work, "below")
	q.Tool = "aider"
	if ref := located(t, q); filepath.Base(ref.Path) != ".aider.chat.history.md" {
		t.Errorf("%+v", ref)
	}
	for tool, session := range map[string]string{"codex": sub, "gemini": "7a1b2c3e-0000-4000-8000-000000000002"} {
		if ref := located(t, Query{Tool: tool, Home: dir, SessionID: session}); ref.SessionID != session || ref.How != "id" {
			t.Errorf("%s: %+v", tool, ref)
		}
	}
	if _, err := Locate(Query{Tool: "gemini", Home: dir, SessionID: "7a1b2c3e-0000-4000-8000-00000000ffff"}); !errors.Is(err, ErrNone) {
		t.Errorf("the first characters of an id are not enough: %v", err)
	}
	for _, tool := range []string{"", "vim"} {
		if _, err := Locate(Query{Tool: tool, Home: dir}); !errors.Is(err, ErrTool) {
			t.Errorf("%q: %v", tool, err)
		}
	}
	if _, err := Locate(Query{Tool: "claude", Dir: work}); err == nil {
		t.Error("found without a home directory")
	}
}

func TestLocateOpencode(t *testing.T) {
	db := openStore(t)
	data := filepath.Dir(db)
	if err := os.Mkdir(filepath.Join(data, "opencode"), 0o700); err != nil {
		t.Fatal(err)
	}
	env := func(name string) string {
		if name == "XDG_DATA_HOME" {
			return data
		}
		return ""
	}
	// The store lies in opencode/ below the directory of data.
	for _, ext := range []string{"", "-wal", "-shm"} {
		b, err := os.ReadFile(db + ext)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(data, "opencode", "opencode.db"+ext), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	q := Query{Tool: "opencode", Env: env, Dir: "/home/dev/project"}
	if ref := located(t, q); ref.SessionID != "ses_one" || ref.How != "directory" {
		t.Errorf("%+v", ref)
	}
	q.SessionID = "ses_sub"
	if ref := located(t, q); ref.SessionID != "ses_sub" || ref.How != "id" {
		t.Errorf("%+v", ref)
	}
	l := openRef(t, Ref{Tool: "opencode", Path: filepath.Join(data, "opencode", "opencode.db"), SessionID: "ses_one"})
	if sub, _, _ := all(t, openRef(t, l.Agent("ses_sub")), 5); texts(sub) != "text | I am the sub-agent." {
		t.Errorf("%s", texts(sub))
	}
	q.SessionID = "ses_none"
	if _, err := Locate(q); !errors.Is(err, ErrNone) {
		t.Errorf("%v", err)
	}
}

// TestOpencodeTree reads the same conversation from the older kind of store.
func TestOpencodeTree(t *testing.T) {
	dir := home(t, map[string]string{
		"opencode/storage/session/p1/ses_one.json":    `{"id":"ses_one","directory":"/home/dev/project","title":"A tree","time":{"created":1,"updated":2}}`,
		"opencode/storage/session/p1/ses_sub.json":    `{"id":"ses_sub","parentID":"ses_one","directory":"/home/dev/project","time":{"created":1,"updated":2}}`,
		"opencode/storage/message/ses_one/msg_1.json": `{"role":"user","time":{"created":1000}}`,
		"opencode/storage/message/ses_one/msg_2.json": `{"role":"assistant","time":{"created":2000},"modelID":"m"}`,
		"opencode/storage/message/ses_one/notes.txt":  `ignored`,
		"opencode/storage/part/msg_1/prt_1.json":      `{"type":"text","text":"hello"}`,
		"opencode/storage/part/msg_2/prt_2.json":      `{"type":"text","text":"` + strings.Repeat("long ", 5000) + `"}`,
		"opencode/storage/part/msg_2/prt_3.json":      `{"type":"text","text":"cut o`,
	})
	ref := located(t, Query{Tool: "opencode", Dir: "/home/dev/project", Env: func(string) string { return dir }})
	if ref.SessionID != "ses_one" || filepath.Base(ref.Path) != "storage" {
		t.Fatalf("%+v", ref)
	}
	l := openRef(t, ref)
	items, bad, title := all(t, l, 1)
	if len(items) != 2 || bad != 1 || title != "A tree" || items[0].Text != "hello" {
		t.Fatalf("%s, %d unreadable, %q", texts(items), bad, title)
	}
	if got := fetch(t, l, items[1].Blob, 1000); got != strings.Repeat("long ", 5000) {
		t.Errorf("%d bytes", len(got))
	}
	if tail, err := TailState(ref); err != nil || tail.State != TurnWorking || tail.Title != "A tree" {
		t.Errorf("%+v %v", tail, err)
	}
}

// fetch gets a whole blob in pieces of n bytes.
func fetch(t *testing.T, l *Log, id string, n int) string {
	t.Helper()
	var b strings.Builder
	for {
		piece, end, err := l.Blob(id, int64(b.Len()), n)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(piece)
		if end {
			return b.String()
		}
		if len(piece) == 0 {
			t.Fatal("no end")
		}
	}
}
