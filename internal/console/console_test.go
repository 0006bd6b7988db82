package console

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rsc.io/qr"

	"holdfast/internal/client"
	"holdfast/internal/state"
	"holdfast/internal/wire"
	"holdfast/internal/wsconn"
)

// readQR turns a drawing back into modules: true is dark.
func readQR(t *testing.T, lines []string, width int) [][]bool {
	t.Helper()
	dark := make([][]bool, 2*len(lines))
	for y, line := range lines {
		cells := []rune(line)
		if len(cells) != width {
			t.Fatalf("line %d has %d cells of %d", y, len(cells), width)
		}
		for _, c := range cells {
			dark[2*y] = append(dark[2*y], c == ' ' || c == '▄')
			dark[2*y+1] = append(dark[2*y+1], c == ' ' || c == '▀')
		}
	}
	return dark
}

// TestQRIsTheCode compares every module, the border of four included.
func TestQRIsTheCode(t *testing.T) {
	for _, n := range []int{10, 250, 400} {
		text := "https://relay.example/#hf1." + strings.Repeat("x", n)
		lines, width, err := qrLines(text)
		if err != nil {
			t.Fatal(err)
		}
		code, err := qr.Encode(text, qr.L)
		if err != nil {
			t.Fatal(err)
		}
		if width != code.Size+8 {
			t.Errorf("width %d for a code of %d and a border of 4", width, code.Size)
		}
		dark := readQR(t, lines, width)
		for y := range width {
			for x := range width {
				inside := x >= 4 && y >= 4 && x < width-4 && y < width-4
				if want := inside && code.Black(x-4, y-4); dark[y][x] != want {
					t.Fatalf("%d characters: module %d,%d is dark: %v", n, x, y, dark[y][x])
				}
			}
		}
	}
}

// TestQRColours fixes the colours on a terminal, whatever its theme, and leaves
// escapes out of everything else.
func TestQRColours(t *testing.T) {
	var b strings.Builder
	if err := drawQR(&b, []string{"█ "}, true); err != nil || b.String() != "\x1b[38;5;231;48;5;16m█ \x1b[0m\n" {
		t.Errorf("on a terminal: %q, %v", b.String(), err)
	}
	b.Reset()
	if err := drawQR(&b, []string{"█ "}, false); err != nil || b.String() != "█ \n" {
		t.Errorf("elsewhere: %q, %v", b.String(), err)
	}
}

func testApp(t *testing.T) *App {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	return &App{Streams: Streams{Out: out, Err: out}, Globals: &Globals{}, Program: "holdfast"}
}

func printed(t *testing.T, a *App) string {
	t.Helper()
	b, err := os.ReadFile(a.Out.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestWordsCanBeTypedAgain(t *testing.T) {
	a := testApp(t)
	if got := a.Words("ssh", "mini"); got != "holdfast ssh mini" {
		t.Errorf("got %s", got)
	}
	a.Program, a.StateGiven, a.State = "./bin/holdfast", true, "/a b/it's"
	if got := a.Words("ssh", "mini"); got != `./bin/holdfast ssh mini --state '/a b/it'\''s'` {
		t.Errorf("got %s", got)
	}
	if got := client.ShellQuote(""); got != "''" {
		t.Errorf("an empty word is %s", got)
	}
}

func TestDefaultState(t *testing.T) {
	for _, c := range []struct{ environ, want string }{
		{"HOME=/home/ann", "/home/ann/.local/state/holdfast"},
		{"HOME=/home/ann XDG_STATE_HOME=/s", "/s/holdfast"},
		{"HOME=/home/ann XDG_STATE_HOME=relative", "/home/ann/.local/state/holdfast"},
		{"HOME=/home/ann XDG_STATE_HOME=", "/home/ann/.local/state/holdfast"},
	} {
		a := testApp(t)
		a.Environ = strings.Fields(c.environ)
		if err := a.DefaultState(); err != nil || a.State != c.want {
			t.Errorf("%s: %s, %v", c.environ, a.State, err)
		}
	}
}

// TestReport prints at most two lines and gives the exit codes that scripts
// rely on.
func TestReport(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
		hint bool
	}{
		{nil, ExitOK, false},
		{errors.New("x"), ExitFailed, false},
		{fmt.Errorf("wrapped: %w", &Failure{Code: ExitUsage, Err: errors.New("two\nlines"), Hint: "do this"}), ExitUsage, true},
		{&client.Failure{Hop: "machine mini", Err: errors.New("x")}, ExitUnreachable, false},
		{&client.Failure{Hop: "relay", Err: errors.New("x"), Denied: true}, ExitDenied, false},
		{&client.RelayError{Status: 401, Refusal: wire.RefusalTokenRevoked}, ExitDenied, true},
		{&client.RelayError{Status: 401}, ExitUnreachable, true},
		{&client.RelayError{Status: 429, Refusal: wire.RefusalLimit, RetryAfter: 5 * time.Second}, ExitUnreachable, true},
		{&client.RelayError{Status: 404, Refusal: wire.RefusalNotFound}, ExitFailed, false},
		{&net.OpError{Op: "dial", Err: errors.New("refused")}, ExitUnreachable, true},
		{fmt.Errorf("relay: %w", wsconn.ErrPlainHTTP), ExitDenied, true},
		{&state.LockedError{Dir: "/s", Command: "up", PID: 7}, ExitFailed, true},
		{state.ErrNotRunning, ExitFailed, true},
		{fmt.Errorf("x: %w", client.ErrUnknownMachine), ExitFailed, true},
		{fmt.Errorf("x: %w", client.ErrNameTaken), ExitFailed, true},
		{context.Canceled, ExitFailed, false},
	} {
		var b strings.Builder
		if code := Report(&b, c.err); code != c.code {
			t.Errorf("%v: exit code %d, want %d", c.err, code, c.code)
		}
		lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
		switch {
		case c.err == nil:
			if b.Len() != 0 {
				t.Errorf("success prints %q", b.String())
			}
		case !strings.HasPrefix(lines[0], "holdfast: error: ") || len(lines) > 2:
			t.Errorf("%v: printed %q", c.err, b.String())
		case c.hint != (len(lines) == 2 && strings.HasPrefix(lines[1], "holdfast: hint: ")):
			t.Errorf("%v: hint is wanted: %v; printed %q", c.err, c.hint, b.String())
		}
	}
}

func TestStateWords(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	at := func(d time.Duration) *time.Time { return new(now.Add(-d)) }
	for _, c := range []struct {
		m    wire.MachineInfo
		want string
	}{
		{wire.MachineInfo{State: wire.StateReachable, ProvenAt: at(12 * time.Second)}, "reachable, proven 12 s ago"},
		{wire.MachineInfo{State: wire.StateReachable}, "connected, not proven"},
		{wire.MachineInfo{State: wire.StateConnected}, "connected, not proven"},
		{wire.MachineInfo{State: wire.StateUnreachable, Since: at(time.Hour), Reason: "no\x1b[31m answer"}, "unreachable since " + at(time.Hour).Local().Format("15:04:05") + ": no[31m answer"},
		{wire.MachineInfo{State: wire.StateOffline, ConnectedAt: at(3 * time.Hour)}, "offline, last connected 3 h ago"},
		{wire.MachineInfo{State: wire.StateOffline}, "offline"},
	} {
		if got := StateWords(c.m, now); got != c.want {
			t.Errorf("%+v: %q, want %q", c.m, got, c.want)
		}
	}
	for d, want := range map[time.Duration]string{
		-time.Minute: "just now", 500 * time.Millisecond: "just now", 90 * time.Second: "90 s ago",
		5 * time.Minute: "5 min ago", 5 * time.Hour: "5 h ago",
	} {
		if got := Ago(now.Add(-d), now); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}

func TestEmitIsOneLine(t *testing.T) {
	a := testApp(t)
	if err := a.Emit(map[string]string{"text": "a\nb"}); err != nil {
		t.Fatal(err)
	}
	a.Say("%s", "done")
	if got := printed(t, a); got != `{"text":"a\nb"}`+"\ndone\n" {
		t.Errorf("printed %q", got)
	}
}
