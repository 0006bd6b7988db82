package conversation

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"holdfast/internal/session/conversation/item"
)

// record writes one record of Claude Code with any content.
func record(t interface{ Fatal(...any) }, uuid, parent, role string, content any) string {
	var p any
	if parent != "" {
		p = parent
	}
	b, err := json.Marshal(map[string]any{"parentUuid": p, "type": role, "uuid": uuid, "timestamp": "2026-03-01T09:00:00Z",
		"message": map[string]any{"id": "m-" + uuid, "role": role, "content": content, "stop_reason": "end_turn"}})
	if err != nil {
		t.Fatal(err)
	}
	return string(b) + "\n"
}

// TestLongTextsAreCutAndFetched cuts texts of any characters and puts them
// together again from pieces of any size.
func TestLongTextsAreCutAndFetched(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.jsonl")
	rapid.Check(t, func(t *rapid.T) {
		unit := rapid.StringN(1, 40, 200).Draw(t, "unit")
		text := "x" + strings.Repeat(unit, item.MaxText/len(unit)+rapid.IntRange(1, 300).Draw(t, "more"))
		writeFile(t, path, record(t, "a1", "", "assistant", []any{map[string]any{"type": "text", "text": text}}))
		l, err := Open(Ref{Tool: "claude", Path: path})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		page, err := l.Page("", 10)
		if err != nil || len(page.Items) != 1 {
			t.Fatalf("%v %v", page, err)
		}
		it := page.Items[0]
		if it.Blob == "" || len(it.Text) > item.MaxText || !strings.HasPrefix(text, it.Text) || len(it.Text) < item.MaxText/8 {
			t.Fatalf("cut to %d bytes of %d, blob %q", len(it.Text), len(text), it.Blob)
		}
		var got []byte
		n := rapid.IntRange(1000, 5000).Draw(t, "piece")
		for end := false; !end; {
			var piece []byte
			if piece, end, err = l.Blob(it.Blob, int64(len(got)), n); err != nil {
				t.Fatal(err)
			}
			if got = append(got, piece...); len(piece) == 0 && !end {
				t.Fatal("no end")
			}
		}
		if string(got) != text {
			t.Fatalf("%d bytes came back of %d", len(got), len(text))
		}
	})
}

func writeFile(t *rapid.T, path, content string) {
	if err := writeAll(path, content); err != nil {
		t.Fatal(err)
	}
}

func TestImagesAreFetched(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.jsonl")
	picture := bytes.Repeat([]byte{0x89, 'P', 'N', 'G', 0, 1, 2, 0xfe, 0xff}, 30_000)
	content := []any{
		map[string]any{"type": "text", "text": "look"},
		map[string]any{"type": "image", "source": map[string]any{"type": "base64", "media_type": "image/png", "data": base64.StdEncoding.EncodeToString(picture)}},
	}
	appendTo(t, path, record(t, "u1", "", "user", content))
	l := openRef(t, Ref{Tool: "claude", Path: path})
	page, err := l.Page("", 10)
	if err != nil || len(page.Items) != 1 || len(page.Items[0].Images) != 1 {
		t.Fatalf("%+v %v", page, err)
	}
	img := page.Items[0].Images[0]
	if img.MediaType != "image/png" || img.Bytes < int64(len(picture)) || img.Bytes > int64(len(picture))+3 {
		t.Errorf("%+v", img)
	}
	if got := fetch(t, l, img.Blob, item.MaxPiece); got != string(picture) {
		t.Errorf("%d bytes came back of %d", len(got), len(picture))
	}
	// One piece is never larger than allowed, whatever is asked.
	if piece, end, err := l.Blob(img.Blob, 0, 1<<30); err != nil || end || len(piece) != item.MaxPiece {
		t.Errorf("%d bytes, end %v, %v", len(piece), end, err)
	}
	if piece, end, err := l.Blob(img.Blob, 1<<40, 10); err != nil || !end || len(piece) != 0 {
		t.Errorf("far behind the end: %d bytes, end %v, %v", len(piece), end, err)
	}
	for _, bad := range []string{"", "t", "t1-", "t1-5", "t0-10", "b5-999999999999", "x1-2", "t-1-2", strings.Repeat("t", 400), img.Blob + "0"} {
		if _, _, err := l.Blob(bad, 0, 10); !errors.Is(err, ErrBlob) {
			t.Errorf("blob %q: %v", bad, err)
		}
	}
	if _, _, err := l.Blob(img.Blob, -1, 10); !errors.Is(err, ErrBlob) {
		t.Errorf("before the beginning: %v", err)
	}
}

// TestNobodyForgesACut puts into a transcript what the mark of a cut looks like.
func TestNobodyForgesACut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.jsonl")
	text := "\u2026AAAAAAAAAAAAAAAA.0"
	appendTo(t, path, record(t, "u1", "", "user", text+strings.Repeat("y", 2*item.MaxText))+record(t, "u2", "u1", "user", text))
	l := openRef(t, Ref{Tool: "claude", Path: path})
	items, _, _ := all(t, l, 10)
	if len(items) != 2 || items[1].Text != text || items[1].Blob != "" || strings.Contains(items[0].Text, ".1") {
		t.Errorf("%+v", items)
	}
	for _, it := range items {
		if b, err := json.Marshal(it); err != nil || bytes.Count(b, []byte("\u2026")) != 1 {
			t.Errorf("a mark shows in %.200s (%v)", b, err)
		}
	}
}

// TestManySmallPieces reads a record that is large without one long text.
func TestManySmallPieces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.jsonl")
	lines := make([]string, 300_000)
	for i := range lines {
		lines[i] = "+a line"
	}
	b, err := json.Marshal(map[string]any{"parentUuid": "a1", "type": "user", "uuid": "u2", "timestamp": "2026-03-01T09:00:00Z",
		"message":       map[string]any{"role": "user", "content": []any{map[string]any{"type": "tool_result", "tool_use_id": "c1", "content": "edited"}}},
		"toolUseResult": map[string]any{"filePath": "/a", "structuredPatch": []any{map[string]any{"oldStart": 1, "lines": lines}}}})
	if err != nil {
		t.Fatal(err)
	}
	call := []any{map[string]any{"type": "tool_use", "id": "c1", "name": "Edit", "input": map[string]any{"file_path": "/a", "old_string": "", "new_string": "b"}}}
	appendTo(t, path, record(t, "a1", "", "assistant", call)+string(b)+"\n")
	items, bad, _ := all(t, openRef(t, Ref{Tool: "claude", Path: path}), 10)
	if len(items) != 1 || bad != 0 || items[0].Tool.Status != item.OK || items[0].Tool.Output.Text != "edited" {
		t.Fatalf("%d unreadable: %s", bad, texts(items))
	}
	if n := items[0].Weight(); n > item.MaxPage {
		t.Errorf("the item weighs %d", n)
	}
}

func TestSearch(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.jsonl")
	var b strings.Builder
	parent := ""
	for i := range 900 {
		uuid := string(rune('a'+i%26)) + strings.Repeat("0", 3) + itoa(i)
		text := "nothing here"
		if i%100 == 7 {
			text = strings.Repeat("word ", 60) + "The NEEDLE in it " + strings.Repeat("word ", 60)
		}
		b.WriteString(record(t, uuid, parent, "user", text))
		parent = uuid
	}
	appendTo(t, path, b.String())
	l := openRef(t, Ref{Tool: "claude", Path: path})
	var hits []Hit
	var before Cursor
	for {
		found, err := l.Search(t.Context(), "needle", before, 2)
		if err != nil {
			t.Fatal(err)
		}
		hits = append(hits, found.Hits...)
		if before = found.Before; before == "" {
			break
		}
	}
	if len(hits) != 9 {
		t.Fatalf("%d hits", len(hits))
	}
	for i, h := range hits {
		if !strings.Contains(h.Snippet, "NEEDLE") || len(h.Snippet) > 300 {
			t.Errorf("%q", h.Snippet)
		}
		if i > 0 && h.Item.Rev >= hits[i-1].Item.Rev {
			t.Errorf("hit %d is not above hit %d", i, i-1)
		}
	}
	for _, bad := range []string{"", "  ", strings.Repeat("a", 300)} {
		if _, err := l.Search(t.Context(), bad, "", 2); err == nil {
			t.Errorf("searched for %.20q", bad)
		}
	}
}
