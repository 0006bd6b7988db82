package sources

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"holdfast/internal/session/conversation"
	"holdfast/internal/session/proc"
)

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
		return r.Mark(claude, Sources{})
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

	// Codex goes on writing while its dialog is open: the length of its transcript
	// would give one dialog a digest after the other.
	rollout := filepath.Join(home, "rollout.jsonl")
	codex := proc.Facts{Tool: "codex", Known: true}
	for _, records := range []string{"{}\n", "{}\n{}\n"} {
		if err := os.WriteFile(rollout, []byte(records), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := r.Mark(codex, Sources{Ref: conversation.Ref{Tool: "codex", Path: rollout}}); got != "" {
			t.Errorf("after %q: mark %q", records, got)
		}
	}
}
