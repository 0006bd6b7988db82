package sources

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/internal/session/proc"
)

// begun is of a process without variables of its own.
var begun = Sources{env: map[string]string{}}

// Two dialogs with the same words have different marks, and one keeps its own.
func TestMarksTellDialogsApart(t *testing.T) {
	home := t.TempDir()
	r := New(Options{Home: home, Log: slog.New(slog.DiscardHandler)})
	claude := proc.Facts{Process: proc.Process{PID: os.Getpid()}, Tool: "claude", Known: true}
	says := func(status string, at int64) string {
		dir := filepath.Join(home, ".claude", "sessions")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		record := fmt.Sprintf(`{"pid":%d,"status":%q,"statusUpdatedAt":%d}`, os.Getpid(), status, at)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(os.Getpid(), ".json")), []byte(record), 0o600); err != nil {
			t.Fatal(err)
		}
		return r.Read(claude, "%0", "", begun, true).Mark
	}
	first := says("waiting", 1796010159127)
	if again := says("waiting", 1796010159127); first == "" || again != first {
		t.Errorf("one dialog has the marks %q and %q", first, again)
	}
	if busy := says("busy", 1796010159500); busy != "" {
		t.Errorf("a mark without a dialog: %q", busy)
	}
	if second := says("waiting", 1796010160000); second == first {
		t.Errorf("two dialogs have the mark %q", first)
	}
}

// Tools without a record of what they do are told apart by what their transcripts
// hold as over; other records, and when the file is found, change nothing.
func TestMarksOfTranscripts(t *testing.T) {
	home := t.TempDir()
	r := New(Options{Home: home, Log: slog.New(slog.DiscardHandler)})
	codex := proc.Facts{Process: proc.Process{PID: os.Getpid()}, Tool: "codex", Known: true, Dir: "/home/dev/project"}
	path := filepath.Join(home, ".codex", "sessions", "2026", "11", "30", "rollout-2026-11-30T10-00-00-0199e3b0-1111-7222-8333-444444444444.jsonl")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	prev := begun
	text := ""
	after := func(kind, payload string) string {
		t.Helper()
		text += fmt.Sprintf(`{"timestamp":"2026-11-30T10:00:00.000Z","type":%q,"payload":%s}`+"\n", kind, payload)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		fresh, next := r.Read(codex, "%0", "", begun, true), r.Read(codex, "%0", "", prev, true)
		if fresh.Mark != next.Mark {
			t.Errorf("after %s %s: one process finds the mark %q, another %q", kind, payload, fresh.Mark, next.Mark)
		}
		if quiet := r.Read(codex, "%0", "", prev, false); quiet.Mark != "" {
			t.Errorf("a mark without a dialog: %q", quiet.Mark)
		}
		prev = next
		return next.Mark
	}
	if got := r.Read(codex, "%0", "", prev, true); got.Mark != "" {
		t.Errorf("without a transcript: %q", got.Mark)
	}
	after("session_meta", `{"id":"0199e3b0-1111-7222-8333-444444444444","cwd":"/home/dev/project"}`)
	after("event_msg", `{"type":"user_message","message":"go on"}`)
	call := func(id string) string {
		return after("response_item", `{"type":"function_call","name":"shell","call_id":"`+id+`","arguments":"{\"command\":[\"date\"]}"}`)
	}
	over := func(id string) string {
		return after("response_item", `{"type":"function_call_output","call_id":"`+id+`","output":"done"}`)
	}
	first := call("c1")
	if again := after("event_msg", `{"type":"token_count","info":null}`); again != first {
		t.Errorf("the mark of one dialog changed from %q to %q", first, again)
	}
	over("c1")
	second := call("c2")
	if second == first || second == "" {
		t.Errorf("two dialogs have the marks %q and %q", first, second)
	}
	after("event_msg", `{"type":"turn_aborted","reason":"interrupted"}`)
	after("event_msg", `{"type":"user_message","message":"again"}`)
	if third := call("c3"); third == second || third == first {
		t.Errorf("a dialog after an interruption has the mark %q of one before", third)
	}

	// Another Codex in the same directory: nothing tells which transcript is whose, and
	// what ends in either makes another mark.
	rival := strings.Replace(path, "444444444444", "555555555555", 1)
	write := func(more string) string {
		t.Helper()
		head := `{"timestamp":"2026-11-30T10:00:00.000Z","type":"session_meta","payload":{"id":"0199e3b0-1111-7222-8333-555555555555","cwd":"/home/dev/project"}}` + "\n"
		if err := os.WriteFile(rival, []byte(head+more), 0o600); err != nil {
			t.Fatal(err)
		}
		got := r.Read(codex, "%0", "", begun, true)
		if !got.Ref.IsZero() {
			t.Errorf("one of two was chosen: %+v", got.Ref)
		}
		return got.Mark
	}
	alone := write("")
	if again := write(""); again != alone {
		t.Errorf("the mark changed from %q to %q", alone, again)
	}
	call("c4")
	over("c4")
	if now := write(""); now == alone {
		t.Errorf("a call ended in one of two transcripts, and the mark stays %q", now)
	}
}
