package here

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/term"
)

// toolEnv makes this test binary the program that the tests watch and type into.
const toolEnv = "HOLDFAST_TEST_TOOL"

func TestMain(m *testing.M) {
	if mode := os.Getenv(toolEnv); mode != "" {
		runTool(mode, os.Getenv(toolEnv+"_LOG"))
		return
	}
	goleak.VerifyTestMain(m)
}

// tool is a coding tool with an input box and dialogs, drawn as Claude Code draws
// them. It writes what it gets into a log.
//
// Typing "ask TEXT" opens a dialog about TEXT; "twice TEXT" one and, when that is
// answered, at once a second one with the same words; "late" one as soon as
// anything else is pasted, before it can be sent.
type tool struct {
	log *os.File

	mu      sync.Mutex
	input   string
	said    []string
	dialogs []string
	ambush  bool
}

func runTool(mode, path string) {
	log, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	old, err := term.MakeRaw(0)
	if err != nil {
		panic(err)
	}
	defer term.Restore(0, old)
	fmt.Print("\x1b[?2004h")
	t := &tool{log: log}
	if question, ok := strings.CutPrefix(mode, "ask "); ok {
		t.dialogs = []string{question}
	}
	t.draw()
	buf := make([]byte, 64<<10)
	var held string
	for {
		n, err := os.Stdin.Read(buf)
		if err != nil {
			return
		}
		held = t.take(held + string(buf[:n]))
		t.draw()
	}
}

const pasteBegin, pasteEnd = "\x1b[200~", "\x1b[201~"

// take handles input and returns what is not complete yet.
func (t *tool) take(in string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	for in != "" {
		if rest, ok := strings.CutPrefix(in, pasteBegin); ok {
			text, after, whole := strings.Cut(rest, pasteEnd)
			if !whole {
				return in
			}
			in = after
			fmt.Fprintf(t.log, "paste %q\n", text)
			t.input += strings.ReplaceAll(text, "\r", "\n")
			if t.ambush {
				t.dialogs, t.ambush = append(t.dialogs, "something unexpected"), false
			}
			continue
		}
		if strings.HasPrefix(pasteBegin, in) && len(in) > 1 {
			return in
		}
		r := []rune(in)[0]
		in = in[len(string(r)):]
		fmt.Fprintf(t.log, "key %q\n", string(r))
		switch {
		case len(t.dialogs) > 0:
			if r >= '1' && r <= '3' {
				fmt.Fprintf(t.log, "answer %q %c\n", t.dialogs[0], r)
				t.dialogs = t.dialogs[1:]
			}
		case r == '\r':
			t.submit()
		case r >= ' ':
			t.input += string(r)
		}
	}
	return ""
}

func (t *tool) submit() {
	text := t.input
	t.input = ""
	fmt.Fprintf(t.log, "submit %q\n", text)
	t.said = append(t.said, strings.Split(text, "\n")[0])
	word, rest, _ := strings.Cut(text, " ")
	switch word {
	case "ask":
		t.dialogs = []string{rest}
	case "twice":
		t.dialogs = []string{rest, rest}
	case "late":
		t.ambush = true
	case "leave":
		os.Exit(3)
	}
}

// draw draws the whole screen.
func (t *tool) draw() {
	t.mu.Lock()
	defer t.mu.Unlock()
	time.Sleep(10 * time.Millisecond) // no tool draws at once
	rule := strings.Repeat("─", 80)
	var b strings.Builder
	b.WriteString("\x1b[2J\x1b[H")
	for _, s := range t.said[max(0, len(t.said)-5):] {
		b.WriteString("● " + s + "\r\n\r\n")
	}
	if len(t.dialogs) > 0 {
		dashes := strings.Repeat("╌", 80)
		b.WriteString(rule + "\r\n Bash command\r\n " + dashes[:len(dashes)-3] + "\r\n " + t.dialogs[0] + "\r\n " + dashes[:len(dashes)-3] +
			"\r\n Do you want to proceed?\r\n ❯ 1. Yes\r\n   2. Yes, and don't ask again\r\n   3. No\r\n\r\n Esc to cancel · Tab to amend")
	} else {
		b.WriteString(rule + "\r\n❯ " + strings.ReplaceAll(t.input, "\n", "\r\n  "))
		b.WriteString("\x1b7\r\n" + rule + "\r\n  ? for shortcuts\x1b8")
	}
	os.Stdout.WriteString(b.String())
}
