package conversation

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A hostile is a transcript that its tool would not write: a damaged one, or one
// that a program of the machine made.
type hostile struct {
	name string
	fill func(w *bufio.Writer)
}

// line is a record of each tool with a text, so that what is around it is read.
var goodLine = map[string]string{
	"claude": `{"parentUuid":%q,"isSidechain":false,"type":"user","uuid":%q,"timestamp":"2026-03-01T09:00:00.000Z","sessionId":"s","message":{"role":"user","content":%q}}`,
	"codex":  `{"timestamp":"2026-03-01T09:00:00.000Z","type":"event_msg","parent":%q,"id":%q,"payload":{"type":"user_message","message":%q}}`,
	"gemini": `{"parent":%q,"id":%q,"timestamp":"2026-03-01T09:00:00.000Z","type":"user","content":%q}`,
}

func hostiles(tool string) []hostile {
	good := func(w *bufio.Writer, parent, id, text string) {
		fmt.Fprintf(w, goodLine[tool]+"\n", parent, id, text)
	}
	repeat := func(w *bufio.Writer, s string, n int) {
		for range n {
			w.WriteString(s)
		}
	}
	// Under the race detector, where -short is given, each byte is ten times as
	// dear, and what is looked for is no volume.
	many := 10
	if testing.Short() {
		many = 1
	}
	return []hostile{
		{"a million empty lines", func(w *bufio.Writer) { repeat(w, "\n", many*100_000); good(w, "", "last", "the end") }},
		{"200,000 tiny records", func(w *bufio.Writer) {
			for i := range many * 20_000 {
				good(w, fmt.Sprint("i", i-1), fmt.Sprint("i", i), "x")
			}
		}},
		{"a million tiny values", func(w *bufio.Writer) { repeat(w, "{}\n1\nnull\n[]\n", many*25_000); good(w, "", "last", "the end") }},
		{"arrays 100,000 deep", func(w *bufio.Writer) {
			good(w, "", "first", "the beginning")
			repeat(w, "[", 100_000)
			repeat(w, "]", 100_000)
			w.WriteString("\n")
			good(w, "first", "last", "the end")
		}},
		{"a record with objects 100,000 deep", func(w *bufio.Writer) {
			line := fmt.Sprintf(goodLine[tool], "", "deep", "marker")
			before, after, _ := strings.Cut(line, `"marker"`)
			w.WriteString(before)
			repeat(w, `{"a":`, 100_000)
			w.WriteString("1")
			repeat(w, "}", 100_000)
			w.WriteString(after + "\n")
			good(w, "deep", "last", "the end")
		}},
		{"brackets that never close", func(w *bufio.Writer) {
			repeat(w, `{"a":[`, many*200_000)
			w.WriteString("\n")
			good(w, "", "last", "the end")
		}},
		{"lines of 12 MB", func(w *bufio.Writer) {
			for i := range 1 + many/2 {
				good(w, fmt.Sprint("i", i-1), fmt.Sprint("i", i), strings.Repeat("long ", 12<<20/5))
			}
			good(w, fmt.Sprint("i", many/2), "last", "the end")
		}},
		{"a line of 12 MB of NUL", func(w *bufio.Writer) { repeat(w, "\x00", 12<<20); w.WriteString("\n"); good(w, "", "last", "the end") }},
		{"parents in a circle", func(w *bufio.Writer) {
			for i := range 1000 {
				good(w, fmt.Sprint("i", (i+1)%1000), fmt.Sprint("i", i), "x")
			}
			good(w, "last", "last", "the end")
		}},
		{"one id for all", func(w *bufio.Writer) {
			for range many * 10_000 {
				good(w, "same", "same", "x")
			}
			good(w, "same", "last", "the end")
		}},
		{"a last line that was cut off", func(w *bufio.Writer) {
			good(w, "", "last", "the end")
			w.WriteString(`{"type":"user","message":{"content":"` + strings.Repeat("x", 12<<20))
		}},
	}
}

// What a reading may cost on a machine that tests elsewhere too: no person waits
// longer, and no phone is worth more memory.
const (
	spentTime   = 40 * time.Second
	spentMemory = 300 << 20
)

// costs fails where something takes too long or holds too much memory.
func costs(t *testing.T, what string, do func()) {
	t.Helper()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	before, peak := m.HeapAlloc, uint64(0)
	began := time.Now()
	done := make(chan struct{})
	go func() { defer close(done); do() }() // ends with do, or with the process that has failed
	for tick := time.Tick(20 * time.Millisecond); ; {
		select {
		case <-done:
		case <-tick:
			runtime.ReadMemStats(&m)
			peak = max(peak, m.HeapAlloc)
			if time.Since(began) > spentTime {
				t.Fatalf("%s takes more than %v", what, spentTime)
			}
			continue
		}
		break
	}
	if peak > before && peak-before > spentMemory {
		t.Errorf("%s held %d MiB", what, (peak-before)>>20)
	}
	if took := time.Since(began); took > time.Second {
		t.Logf("%s: %v, %d MiB", what, took.Round(time.Millisecond), (max(peak, before)-before)>>20)
	}
}

func TestHostileTranscripts(t *testing.T) {
	for tool, name := range map[string]string{"claude": "5f1d6c1e-0000-4000-8000-00000000000a.jsonl", "codex": "rollout-2026-03-01T09-00-00-x.jsonl", "gemini": "session-2026-03-01T09-00-5f1d6c1e.jsonl"} {
		for _, h := range hostiles(tool) {
			t.Run(tool+"/"+h.name, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), name)
				f, err := os.Create(path)
				if err != nil {
					t.Fatal(err)
				}
				w := bufio.NewWriterSize(f, 1<<20)
				if tool == "gemini" {
					w.WriteString(`{"sessionId":"s","projectHash":"h","startTime":"2026-03-01T09:00:00.000Z"}` + "\n")
				}
				h.fill(w)
				if err := errors.Join(w.Flush(), f.Close()); err != nil {
					t.Fatal(err)
				}
				ref := Ref{Tool: tool, Path: path, SessionID: "s"}
				costs(t, "the tail", func() { TailState(ref) })
				log, err := Open(ref)
				if err != nil {
					t.Fatal(err)
				}
				defer log.Close()
				var page Page
				costs(t, "the first page", func() { page, err = log.Page("", 50) })
				if err != nil {
					t.Fatal(err)
				}
				if n := len(page.Items); n == 0 {
					t.Error("nothing of it is shown")
				} else if last := page.Items[n-1].Text; last != "the end" && last != "x" {
					t.Errorf("it ends with %.40q", last)
				}
				costs(t, "ten more", func() {
					for range 10 {
						if page.Before == "" || err != nil {
							return
						}
						page, err = log.Page(page.Before, 50)
					}
				})
				costs(t, "a search", func() { log.Search(t.Context(), "beginning", "", 5) })
			})
		}
	}
}

// What is no file has the place of one, in each tool's folder.
func TestOtherThingsInTheFoldersOfTools(t *testing.T) {
	const id = "5f1d6c1e-0000-4000-8000-00000000000a"
	places := map[string][]string{ // by tool: directories, then the files that are read
		"claude":   {".claude/projects/-w/" + id + ".jsonl"},
		"codex":    {".codex/sessions/2026/03/01/rollout-2026-03-01T09-00-00-" + id + ".jsonl"},
		"gemini":   {".gemini/projects.json", ".gemini/tmp/x/chats/session-2026-03-01T09-00-5f1d6c1e.json", ".gemini/tmp/x/chats/session-2026-03-01T09-01-5f1d6c1e.jsonl"},
		"opencode": {".local/share/opencode/opencode.db", ".local/share/opencode/storage/session/p/ses_1.json", ".local/share/opencode/storage/message/ses_1/msg_1.json"},
	}
	things := map[string]func(path string) error{
		"a FIFO":         func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a directory":    func(path string) error { return os.Mkdir(path, 0o700) },
		"a device":       func(path string) error { return os.Symlink("/dev/zero", path) },
		"a loop":         func(path string) error { return os.Symlink(path, path) },
		"another's file": func(path string) error { return os.Symlink("/etc/passwd", path) },
		"5 GiB of nothing": func(path string) error {
			f, err := os.Create(path)
			if err != nil {
				return err
			}
			return errors.Join(f.Truncate(5<<30), f.Close())
		},
	}
	if testing.Short() {
		delete(things, "5 GiB of nothing") // as far as it is read, a minute under the race detector
	}
	for tool, files := range places {
		for what, put := range things {
			t.Run(tool+"/"+what, func(t *testing.T) {
				home := t.TempDir()
				for _, file := range files {
					path := filepath.Join(home, file)
					if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), put(path)); err != nil {
						t.Fatal(err)
					}
				}
				for _, q := range []Query{
					{Tool: tool, SessionID: id, Dir: "/w", Home: home},
					{Tool: tool, SessionID: "ses_1", Dir: "/w", Home: home, StartedAt: time.Now().Add(-time.Hour)},
					{Tool: tool, Dir: "/w", Home: home, StartedAt: time.Now().Add(-time.Hour)},
				} {
					q.OpenFiles = func(int) []string { return nil }
					costs(t, "it", func() {
						ref, err := Locate(q)
						if err != nil {
							return
						}
						TailState(ref)
						log, err := Open(ref)
						if err != nil {
							return
						}
						defer log.Close()
						if page, err := log.Page("", 50); err == nil && len(page.Items) > 0 {
							t.Errorf("it shows %+v", page.Items)
						}
					})
				}
			})
		}
	}
}
