package scrollback

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestParse(t *testing.T) {
	plain := func(text string, col, width int) Run { return Run{Text: text, Col: col, Width: width} }
	for _, c := range []struct {
		name, in string
		want     []Row
	}{
		{"nothing", "", nil},
		{"plain lines", "a b\n\nc  \n", []Row{{[]Run{plain("a b", 0, 3)}}, {[]Run{}}, {[]Run{plain("c", 0, 1)}}}},
		{"a colour over two lines", "x\x1b[31my\nz\x1b[0mw", []Row{
			{[]Run{plain("x", 0, 1), {"y", 1, 1, Style{FG: "1"}}}},
			{[]Run{{"z", 0, 1, Style{FG: "1"}}, plain("w", 1, 1)}},
		}},
		{"palette and true colour", "\x1b[38;5;208;48;2;1;2;3mA\x1b[38:2::255:0:16;4:3mB\x1b[39;49;24;97mC", []Row{{[]Run{
			{"A", 0, 1, Style{FG: "208", BG: "#010203"}},
			{"B", 1, 1, Style{FG: "#ff0010", BG: "#010203", Underline: "curly"}},
			{"C", 2, 1, Style{FG: "15"}},
		}}}},
		{"attributes", "\x1b[1;2;3;4;5;7;8;9;53mA\x1b[22;23;24;25;27;28;29;55mB\x1b[mC", []Row{{[]Run{
			{"A", 0, 1, Style{Bold: true, Dim: true, Italic: true, Underline: "single", Blink: true, Reverse: true, Hidden: true, Strike: true, Overline: true}},
			plain("BC", 1, 2),
		}}}},
		{"wide, combining, joined", "日本e\u0301👨‍👩‍👧⚙️x", []Row{{[]Run{plain("日本e\u0301👨‍👩‍👧⚙️x", 0, 10)}}}},
		{"columns after wide ones", "日\x1b[1mx", []Row{{[]Run{plain("日", 0, 2), {"x", 2, 1, Style{Bold: true}}}}}},
		{"blanks with a background stay", "a\x1b[44m  \x1b[0m  ", []Row{{[]Run{plain("a", 0, 1), {"  ", 1, 2, Style{BG: "4"}}}}}},
		{"line drawing", "\x0elqk\x0fq", []Row{{[]Run{plain("┌─┐q", 0, 4)}}}},
		{"tabs", "a\tb", []Row{{[]Run{plain("a       b", 0, 9)}}}},
		{"links", "\x1b]8;;https://example.org/\x1b\\go\x1b]8;;\x1b\\ \x1b]8;;javascript:x\x07no", []Row{{[]Run{
			{"go", 0, 2, Style{Link: "https://example.org/"}}, plain(" no", 2, 3),
		}}}},
		{"what is left out", "a\x1b[2Jb\x1b]0;title\x07c\x1b(Bd\x07\x08e\x1b[", []Row{{[]Run{plain("abcde", 0, 5)}}}},
		{"what deceives", "a\u202eb\u2066c\xffd", []Row{{[]Run{plain("abc\uFFFDd", 0, 5)}}}},
		{"wrong colours", "\x1b[38;5;999mA\x1b[38;2;1mB\x1b[38mC\x1b[38;9;1mD", []Row{{[]Run{plain("ABC", 0, 3), {"D", 3, 1, Style{Bold: true}}}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Parse(c.in); !reflect.DeepEqual(got, c.want) {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

func TestRowsAreBounded(t *testing.T) {
	rows := Parse("\x1b[32m" + strings.Repeat("old\n", MaxRows) + "last " + strings.Repeat("x", 2*maxLine))
	if len(rows) != MaxRows || rows[0].Runs[0].FG != "2" {
		t.Fatalf("%d rows, the first %+v", len(rows), rows[0])
	}
	if last := rows[MaxRows-1].Text(); !strings.HasPrefix(last, "last x") || len(last) > maxLine {
		t.Errorf("the last row has %d bytes", len(last))
	}
}

func FuzzParse(f *testing.F) {
	f.Add("\x1b[38:2::1:2:3;4:3m日本\x1b]8;;http://x\x1b\\e\u0301\x0eqqq")
	f.Add("\x1b[38;5m\x1bP\x1b\\\x1b[;;;m")
	f.Fuzz(func(t *testing.T, s string) {
		for _, row := range Parse(s) {
			col := 0
			for _, run := range row.Runs {
				if run.Col < col || run.Width < 0 || !utf8.ValidString(run.Text) || strings.ContainsAny(run.Text, "\x1b\n\r\x07") {
					t.Fatalf("%+v", run)
				}
				col = run.Col + run.Width
			}
		}
	})
}

// TestCaptureOfTmux lets tmux capture what a program printed, so that columns are
// compared with those of the terminal itself.
func TestCaptureOfTmux(t *testing.T) {
	tmux, err := exec.LookPath("tmux")
	if err != nil {
		if os.Getenv("HOLDFAST_TEST_ALL") == "1" {
			t.Fatal("tmux is not installed")
		}
		t.Skip("tmux is not installed")
	}
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	text := filepath.Join(dir, "text")
	// An x at a column that the terminal counts itself, after what has odd widths.
	lines := []string{"日本語", "e\u0301a", "한국어", "🙂", "\x1b[31;1mred\x1b[0m"}
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(l + "\x1b[20G|\n")
	}
	if err := os.WriteFile(text, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), tmux, append([]string{"-u", "-f", "/dev/null", "-S", socket}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("tmux %v: %v: %s", args, err, out)
		}
		return string(out)
	}
	run("new-session", "-d", "-x", "80", "-y", "24", "cat '"+text+"'; printf end; exec sleep 1000")
	defer run("kill-server")
	var rows []Row
	for range 200 {
		rows = Parse(run("capture-pane", "-p", "-e", "-t", ":"))
		if len(rows) > len(lines) && strings.HasPrefix(rows[len(lines)].Text(), "end") {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if len(rows) <= len(lines) {
		t.Fatalf("%d rows", len(rows))
	}
	for i, l := range lines {
		runs := rows[i].Runs
		last := runs[len(runs)-1]
		bar := strings.LastIndexByte(last.Text, '|')
		// All before the bar in its run is a blank for each cell, or the text itself.
		if bar < 0 || last.Col+last.Width != 20 {
			t.Errorf("%q: the bar ends in column %d: %+v", l, last.Col+last.Width, runs)
		}
	}
	if red := rows[4].Runs[0]; red.Text != "red" || red.FG != "1" || !red.Bold {
		t.Errorf("%+v", red)
	}
}
