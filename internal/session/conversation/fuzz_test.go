package conversation

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"unicode/utf8"

	"holdfast/internal/session/conversation/item"
)

// readAny reads a transcript of any bytes in every way there is. Nothing may
// panic, nothing may run forever, and what comes out is well formed.
func readAny(t *testing.T, ref Ref) {
	l, err := Open(ref)
	if err != nil {
		return
	}
	defer l.Close()
	for _, limit := range []int{1, 500} {
		var before Cursor
		for n := 0; ; n++ {
			page, err := l.Page(before, limit)
			if err != nil {
				t.Fatalf("page %d: %v", n, err)
			}
			for i := range page.Items {
				it := &page.Items[i]
				if it.ID == "" || !it.Cursor.Valid() || !utf8.ValidString(it.Text) {
					t.Fatalf("item %d: %+v", i, it)
				}
				for _, b := range blobs(it) {
					if _, _, err := l.Blob(b, 0, 100); err != nil {
						t.Fatalf("blob %q: %v", b, err)
					}
				}
			}
			if page.Before == "" {
				break
			}
			if page.Before == before || n > 5000 {
				t.Fatalf("paging does not end at %q", before)
			}
			before = page.Before
		}
	}
	if _, err := TailState(ref); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Search(context.Background(), "e", "", 10); err != nil {
		t.Fatal(err)
	}
}

func blobs(it *Item) []string {
	var out []string
	add := func(b item.Body) {
		if b.Blob != "" {
			out = append(out, b.Blob)
		}
	}
	add(it.Body)
	if it.Tool != nil {
		add(it.Tool.Input)
		add(it.Tool.Output)
	}
	for _, img := range it.Images {
		if img.Blob != "" {
			out = append(out, img.Blob)
		}
	}
	return out
}

// fuzzTool seeds with the samples of a tool.
func fuzzTool(f *testing.F, tool, name string) {
	files, err := filepath.Glob(filepath.Join(samples, tool, "*"+filepath.Ext(name)))
	if err != nil || len(files) == 0 {
		f.Fatalf("no samples of %s: %v", tool, err)
	}
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte("\x00\x00{}\n{\"type\":\"user\"}\n[[[[\n\"\\ud83d"))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		readAny(t, Ref{Tool: tool, Path: path})
	})
}

func FuzzClaude(f *testing.F)       { fuzzTool(f, "claude", "s.jsonl") }
func FuzzCodex(f *testing.F)        { fuzzTool(f, "codex", "rollout-x.jsonl") }
func FuzzGeminiObject(f *testing.F) { fuzzTool(f, "gemini", "session-x.json") }
func FuzzGeminiLines(f *testing.F)  { fuzzTool(f, "gemini", "session-x.jsonl") }
func FuzzAider(f *testing.F)        { fuzzTool(f, "aider", "history.md") }

// FuzzOpencode reads messages and parts of any bytes from a tree of files.
func FuzzOpencode(f *testing.F) {
	f.Add([]byte(`{"role":"user","time":{"created":1}}`), []byte(`{"type":"text","text":"hello"}`))
	f.Add([]byte(`{"role":"assistant","error":{"name":"APIError","data":{"statusCode":429}}}`),
		[]byte(`{"type":"tool","tool":"bash","state":{"status":"completed","input":{"command":"ls"},"metadata":{"diff":"@@ -1 +1 @@\n-a\n+b"}}}`))
	dir := f.TempDir()
	for _, d := range []string{"message/ses_x", "part/msg_x"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			f.Fatal(err)
		}
	}
	f.Fuzz(func(t *testing.T, message, part []byte) {
		if err := os.WriteFile(filepath.Join(dir, "message/ses_x/msg_x.json"), message, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "part/msg_x/prt_x.json"), part, 0o600); err != nil {
			t.Fatal(err)
		}
		readAny(t, Ref{Tool: "opencode", Path: dir, SessionID: "ses_x"})
	})
}

// FuzzCursor takes places and names of blobs that no one gave out.
func FuzzCursor(f *testing.F) {
	path := filepath.Join(samples, "claude", "tree.jsonl")
	l, err := Open(Ref{Tool: "claude", Path: path})
	if err != nil {
		f.Fatal(err)
	}
	page, err := l.Page("", 2)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { l.Close() })
	f.Add(string(page.Before), "t10-20")
	f.Add(string(page.After), "b1-99999999999")
	f.Add("x.1..-1.0", "t-1--1")
	f.Fuzz(func(t *testing.T, cursor, blob string) {
		if page, err := l.Page(Cursor(cursor), 3); err == nil && len(page.Items) > 20 {
			t.Fatalf("%d items", len(page.Items))
		}
		if b, _, err := l.Blob(blob, 0, 50); err == nil && len(b) > 50 {
			t.Fatalf("%d bytes", len(b))
		}
	})
}
