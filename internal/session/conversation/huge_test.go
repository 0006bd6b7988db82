package conversation

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// The goals for the first page of a transcript of 1 GiB with a line of 12 MB.
const (
	pageMemory = 32 << 20
	pageTime   = 200 * time.Millisecond
	longLine   = 12 << 20
	hugeSize   = 1 << 30
)

// writeHuge writes a transcript of Claude Code of about size bytes: turns with
// tools, whose last one holds a line of 12 MB and is followed by a few more.
func writeHuge(t testing.TB, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "5f1d6c1e-0000-4000-8000-00000000000a.jsonl")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := bufio.NewWriterSize(f, 1<<20)
	written, n, parent := int64(0), 0, "null"
	record := func(kind, extra string) {
		n++
		uuid := fmt.Sprintf(`"%08x-0000-4000-8000-000000000000"`, n)
		k, err := fmt.Fprintf(w, `{"parentUuid":%s,"isSidechain":false,"cwd":"/home/dev/project","sessionId":"s","version":"2.1.205","type":"%s","uuid":%s,"timestamp":"2026-03-01T09:00:00.000Z",%s}`+"\n", parent, kind, uuid, extra)
		if err != nil {
			t.Fatal(err)
		}
		written += int64(k)
		parent = uuid
	}
	turn := func(output string) {
		record("user", `"message":{"role":"user","content":"what does this do?"}`)
		record("assistant", fmt.Sprintf(`"message":{"id":"m%d","role":"assistant","content":[{"type":"tool_use","id":"call-%d","name":"Bash","input":{"command":"make"}}],"stop_reason":"tool_use"}`, n, n))
		record("user", fmt.Sprintf(`"message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"call-%d","content":"%s"}]},"toolUseResult":{"stdout":"%s"}`, n-1, output, output))
		record("assistant", fmt.Sprintf(`"message":{"id":"m%d","role":"assistant","content":[{"type":"text","text":"It builds."}],"stop_reason":"end_turn"}`, n))
	}
	line := strings.Repeat(`0123456789 <tag> \"quoted\"\n`, 60)
	for written < size-longLine {
		turn(line)
	}
	turn(strings.Repeat(`a line of output\n`, longLine/2/18))
	for range 3 {
		turn(line)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestFirstPageOfAHugeTranscript counts every byte that a first page allocates,
// which bounds what it can hold at any time.
func TestFirstPageOfAHugeTranscript(t *testing.T) {
	size := int64(64 << 20)
	if os.Getenv("HOLDFAST_LONG") != "" {
		size = 1 << 30
	}
	if testing.Short() {
		size = 16 << 20
	}
	path := writeHuge(t, size)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	began := time.Now()
	l := openRef(t, Ref{Tool: "claude", Path: path})
	page, err := l.Page("", 50)
	took := time.Since(began)
	if err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	used := after.TotalAlloc - before.TotalAlloc
	t.Logf("%d items of %d MiB in %v, %.1f MiB allocated in all", len(page.Items), size>>20, took, float64(used)/(1<<20))
	if used > pageMemory {
		t.Errorf("the first page took %d bytes, at most %d", used, pageMemory)
	}
	if took > 50*pageTime { // the benchmark measures, on a machine that is not busy
		t.Errorf("the first page took %v", took)
	}
	if len(page.Items) < 50 {
		t.Fatalf("%d items", len(page.Items))
	}
	cut := false
	for _, it := range page.Items {
		if it.Tool == nil {
			continue
		}
		if it.Tool.Status != "ok" {
			t.Errorf("%s has no result", it.ID)
		}
		if it.Tool.Output.Blob != "" && it.Tool.Output.Bytes > longLine/3 {
			cut = true
		}
	}
	if !cut {
		t.Error("the long output is not cut")
	}
}

// TestPagingAHugeTranscriptStaysSmall pages through the whole file.
func TestPagingAHugeTranscriptStaysSmall(t *testing.T) {
	size, least := int64(28<<20), 4_000
	if testing.Short() {
		size, least = 16<<20, 500
	}
	path := writeHuge(t, size)
	l := openRef(t, Ref{Tool: "claude", Path: path})
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	base, peak := m.HeapAlloc, uint64(0)
	var before Cursor
	items := 0
	for {
		page, err := l.Page(before, 200)
		if err != nil {
			t.Fatal(err)
		}
		items += len(page.Items)
		for _, it := range page.Items {
			if it.Tool != nil && it.Tool.Status != "ok" {
				t.Fatalf("%s has no result", it.ID)
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&m)
		peak = max(peak, m.HeapAlloc)
		if before = page.Before; before == "" {
			break
		}
	}
	if items%3 != 0 || items < least {
		t.Errorf("%d items", items)
	}
	if held := int64(peak) - int64(base); held > pageMemory {
		t.Errorf("paging holds %d bytes", held)
	}
}

func BenchmarkFirstPageOf1GiB(b *testing.B) {
	path := writeHuge(b, hugeSize)
	b.ReportAllocs()
	for b.Loop() {
		l, err := Open(Ref{Tool: "claude", Path: path})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := l.Page("", 50); err != nil {
			b.Fatal(err)
		}
		l.Close()
	}
}

func BenchmarkTailStateOf1GiB(b *testing.B) {
	path := writeHuge(b, hugeSize)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := TailState(Ref{Tool: "claude", Path: path}); err != nil {
			b.Fatal(err)
		}
	}
}
