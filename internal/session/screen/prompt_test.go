package screen

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"holdfast/internal/session"
	"holdfast/internal/session/screen/keys"
)

// at makes a screen with the cursor behind its last line.
func at(text string) Screen {
	lines := strings.Split(text, "\n")
	last := lines[len(lines)-1]
	return Screen{Lines: lines, CursorX: cells(last), CursorY: len(lines) - 1, Cols: 80, Rows: 24}
}

func TestPromptsOfScripts(t *testing.T) {
	for _, c := range []struct {
		text string
		kind session.Kind // "" says that nothing is asked
		ids  string
		keys string // of the first option
	}{
		{"Overwrite notes.md? [y/N] ", session.Question, "y n", "y Enter"},
		{"Do you want to continue? [Y/n]", session.Question, "y n", "y Enter"},
		{"Proceed (yes/no)? ", session.Question, "y n", "y e s Enter"},
		{"The authenticity of host 'x' can't be established.\nAre you sure you want to continue connecting (yes/no/[fingerprint])? ", session.Question, "y n", "y e s Enter"},
		{"Install them? (y/n): ", session.Question, "y n", "y Enter"},
		{"[sudo] password for dev: ", session.Password, "", ""},
		{"dev@host's password: ", session.Password, "", ""},
		{"Enter passphrase for key '/home/dev/.ssh/id_ed25519': ", session.Password, "", ""},
		{"Verification code: ", session.Password, "", ""},
		{"Press any key to continue . . . ", session.Question, "enter", "Enter"},
		{"Press ENTER to install, or type a path: ", session.Question, "enter", "Enter"},
		{"line one\n--More--", session.Question, "space q", "Space"},
		{"text\n(END)", session.Question, "space q", "Space"},
		{"Continue? ", session.Question, "", ""},
		{"dev@box:~/src$ ", "", "", ""},
		{"dev@box:~/src$ echo 'Overwrite? [y/N]'", "", "", ""},
		{"Overwrite? [y/N] n", "", "", ""},
		{"wrong password: try again\ndev@box:~$ ", "", "", ""},
		{"is it done? I think so", "", "", ""},
		{"", "", "", ""},
	} {
		r := Read("bash", at(c.text))
		if (r.State == session.Waiting) != (c.kind != "") || r.Kind != c.kind {
			t.Errorf("%q: %q %q, want kind %q", c.text, r.State, r.Kind, c.kind)
			continue
		}
		var ids []string
		if r.Dialog != nil {
			for _, o := range r.Dialog.Options {
				ids = append(ids, o.ID)
			}
		}
		if got := strings.Join(ids, " "); got != c.ids {
			t.Errorf("%q: options %q, want %q", c.text, got, c.ids)
		}
		if c.keys != "" {
			keys, err := keys.Of("bash", r.Dialog, ids[0])
			if err != nil || strings.Join(keys, " ") != c.keys {
				t.Errorf("%q: keys %q (%v), want %q", c.text, keys, err, c.keys)
			}
		}
	}
}

func TestPromptOnlyWhereTheCursorIs(t *testing.T) {
	s := at("Overwrite? [y/N] ")
	for _, move := range []func(*Screen){
		func(s *Screen) { s.CursorX = 0 },
		func(s *Screen) { s.CursorY = -1 },
		func(s *Screen) { s.Lines = append(s.Lines, "more output") },
		func(s *Screen) { s.Lines, s.CursorY = append(s.Lines, "$"), 1 },
	} {
		moved := s
		moved.Lines = slices.Clone(s.Lines)
		move(&moved)
		if r := Read("sh", moved); r.State != "" {
			t.Errorf("cursor %d,%d on %q: %+v", moved.CursorX, moved.CursorY, moved.Lines, r)
		}
	}
}

func TestOtherTools(t *testing.T) {
	for name, c := range map[string]struct{ tool, text, want, option, keys string }{
		"gemini permission": {"gemini", "╭──────────────────────────╮\n│ ?  Shell ls              │\n│                          │\n│ Allow execution?         │\n│                          │\n│ ● 1. Yes, allow once     │\n│   2. Yes, allow always   │\n│   3. No (esc)            │\n╰──────────────────────────╯", "waiting permission", "2", "2"},
		"gemini working":    {"gemini", "⠏ Thinking (esc to cancel, 3s)\n\n╭──────────────────────╮\n│ >   Type your message │\n╰──────────────────────╯\n~/src  no sandbox", "working ", "", ""},
		"gemini idle":       {"gemini", "✦ Done.\n\n╭──────────────────────╮\n│ > half a line         │\n╰──────────────────────╯\n~/src", "idle ", "", ""},
		"opencode asks":     {"opencode", "  text\n\n  ┃  △ Permission required\n  ┃  $ touch a\n  ┃\n  ┃  Allow once (a)   Always allow (l)   Reject (d)", "waiting permission", "d", "d"},
		"opencode works":    {"opencode", "  text\n  ┃\n  ┃  Ask anything...\n  ┃  Build  Model\n  ╹▀▀▀▀▀▀▀▀▀▀▀\n  ■■■⬝⬝  esc interrupt", "working ", "", ""},
		"aider asks":        {"aider", "Add file to the chat? (Y)es/(N)o/(D)on't ask again [Yes]:", "waiting permission", "d", "d Enter"},
		"aider works":       {"aider", "────────────────────\n> do it\n\nThinking of it", " ", "", ""},
		"cursor asks":       {"cursor", " ┌────────────┐\n │ $ touch a  │\n └────────────┘\n ┌────────────┐\n │ Run this command?\n │  → Run (y) (enter)\n │    Reject (esc or p)\n │    Add to allowlist? (tab)\n └────────────┘", "waiting permission", "esc", "Escape"},
		"amp works":         {"amp", "╭─smart──────────╮\n│                │\n╰────────────────╯\n ∿ Working...  Esc to cancel", "working ", "", ""},
		"goose idle":        {"goose", "Hello\n( O)> next", "idle ", "", ""},
		"amazonq trusts":    {"amazonq", "🛠️  Using tool: fs_write\n ● Writing a\n\nAllow this action? Use 't' to trust. [y/n/t]:\n\n>", "waiting permission", "t", "t Enter"},
	} {
		r := Read(c.tool, at(c.text))
		if got := string(r.State) + " " + string(r.Kind); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if c.option == "" {
			continue
		}
		if keys, err := keys.Of(c.tool, r.Dialog, c.option); err != nil || strings.Join(keys, " ") != c.keys {
			t.Errorf("%s: keys %q (%v), want %q", name, keys, err, c.keys)
		}
	}
}

// What a tool quotes, and what scrolled up, is no dialog.
func TestQuotedDialogs(t *testing.T) {
	const claude = "\n────────────────────\n❯ \n────────────────────\n  ? for shortcuts"
	const dialog = " Do you want to proceed?\n ❯ 1. Yes\n   2. No\n\n Esc to cancel"
	for name, c := range map[string]struct{ tool, text string }{
		"in an answer":         {"claude", "● It says:\n\n  " + strings.ReplaceAll(dialog, "\n", "\n  ") + claude},
		"in a tool's output":   {"claude", "● Bash(cat x)\n  ⎿  " + strings.ReplaceAll(dialog, "\n", "\n     ") + claude},
		"at the margin":        {"claude", dialog + "\n" + claude},
		"spinner in an answer": {"claude", "● It shows:\n  ✻ Thinking… (esc to interrupt)\n" + claude},
		"codex answer":         {"codex", "• It says:\n\n  Would you like to run it?\n› 1. Yes (y)\n  2. No (esc)\n\n  Press enter to confirm or esc to cancel\n\n• Done.\n\n› \n\n  gpt-5 · ~/src"},
	} {
		s := at(c.text)
		s.CursorX, s.CursorY = 2, slices.IndexFunc(s.Lines, func(l string) bool { return l == "❯ " || l == "› " })
		if r := Read(c.tool, s); r.State != session.Idle || r.Dialog != nil || r.Composer == nil {
			t.Errorf("%s: %+v", name, r)
		}
	}
	// And the other way round: what stands above a dialog does not hide it.
	r := Read("claude", at("● Text:\n────────────────────\n❯ quoted input\n────────────────────\n● More\n────────────────────\n Bash command\n\n  rm -r x\n\n"+dialog))
	if r.State != session.Waiting || r.Kind != session.Permission || !strings.Contains(r.Dialog.Text, "rm -r x") || strings.Contains(r.Dialog.Text, "quoted input") {
		t.Errorf("dialog below a quoted input box: %+v %+v", r, r.Dialog)
	}
}

// An input line that takes nothing yet is none, so that a reply waits for it.
func TestCodexThatStarts(t *testing.T) {
	const head = "\n  >_ OpenAI Codex (v0.171.0)\n     ~/src\n\n          ⣀⣤⣤\n\n"
	const input = "› Ask Codex to do anything\n\n"
	if r := Read("codex", at(head+input+"  ? for shortcuts")); r.Composer != nil || r.State != "" {
		t.Errorf("the first screen: %+v", r)
	}
	for name, text := range map[string]string{
		"started":             head + input + "  gpt-5.1-codex default · ~/src\n  ← for agents · ? for shortcuts",
		"no status line":      head + input + "  ← for agents · ? for shortcuts",
		"an older one's card": "╭───╮\n│ >_ OpenAI Codex (v0.98.0) │\n│ model: gpt-5 │\n╰───╯\n\n" + input + "  ? for shortcuts",
		"after an answer":     "• Done.\n\n" + input + "  ? for shortcuts",
	} {
		if r := Read("codex", at(text)); r.Composer == nil || r.State != session.Idle {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// A tip that a narrow terminal wraps goes as a whole, and takes nothing else
// along.
func TestAdvice(t *testing.T) {
	const head = "────────────────────\n Bash command\n"
	const tail = " Run it\n\n Do you want to proceed?\n ❯ 1. Yes\n   2. No"
	for name, c := range map[string]struct{ tip, want string }{
		"one line": {" Tip: auto mode handles these prompts for you — choose \"switch to auto mode\" below\n", ""},
		"wrapped":  {" Tip: auto mode handles these\n prompts for you — choose \"switch to\n auto mode\" below\n", ""},
		"another":  {" Tip: auto mode handles these\n files with care, below\n", "files with care, below\n"},
		"unknown":  {" Tip: drink water\n", ""},
	} {
		d := Read("claude", at(head+c.tip+tail)).Dialog
		if d == nil || d.Text != "Bash command\n"+c.want+"Run it\n\nDo you want to proceed?" {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

func TestDigest(t *testing.T) {
	read := func(text string) *session.Dialog { return Read("claude", at(text)).Dialog }
	const head = "────────────────────\n Bash command\n\n  %s\n\n Do you want to proceed?\n"
	first := read(fmt.Sprintf(head, "date > a") + " ❯ 1. Yes\n   2. No")
	pointer := read(fmt.Sprintf(head, "date > a") + "   1. Yes\n ❯ 2. No")
	other := read(fmt.Sprintf(head, "date > b") + " ❯ 1. Yes\n   2. No")
	d := Digest("k:%1", 7, "claude", "", first)
	if len(d) < 16 || len(d) > 64 {
		t.Errorf("digest %q", d)
	}
	for pid := range 1000 {
		if d := Digest("k:%1", pid, "claude", "", first); d[0] == '-' || len(d) != 32 {
			t.Fatalf("a command line takes digest %q for a flag", d)
		}
	}
	if Digest("k:%1", 7, "claude", "", pointer) != d {
		t.Error("moving the pointer changed the digest of a dialog that digits answer")
	}
	for name, got := range map[string]string{
		"another command": Digest("k:%1", 7, "claude", "", other),
		"another mark":    Digest("k:%1", 7, "claude", "2", first),
		"another pane":    Digest("k:%2", 7, "claude", "", first),
		"another process": Digest("k:%1", 8, "claude", "", first),
		"another tool":    Digest("k:%1", 7, "codex", "", first),
	} {
		if got == d {
			t.Errorf("%s has the same digest", name)
		}
	}
	if Digest("k:%1", 7, "claude", "", nil) != "" {
		t.Error("no dialog has a digest")
	}
	// Where keys walk from the pointer, its place is a part of what is answered.
	const trust = "────────────────────\n Accessing workspace:\n\n %s No, exit\n %s Yes, I trust this folder\n\n Enter to confirm · Esc to cancel"
	up, down := read(fmt.Sprintf(trust, "❯", " ")), read(fmt.Sprintf(trust, " ", "❯"))
	if Digest("k:%1", 7, "claude", "", up) == Digest("k:%1", 7, "claude", "", down) {
		t.Error("the pointer's place does not count where keys walk from it")
	}
	for d, want := range map[*session.Dialog]string{up: "Down Enter", down: "Enter"} {
		if keys, err := keys.Of("claude", d, "2"); err != nil || strings.Join(keys, " ") != want {
			t.Errorf("keys %q (%v), want %q", keys, err, want)
		}
	}
	if _, err := keys.Of("claude", first, "9"); err == nil {
		t.Error("an option that is not offered has keys")
	}
	if _, err := keys.Of("claude", nil, "1"); err == nil {
		t.Error("no dialog has keys")
	}
}

func TestSuggestionIsNoText(t *testing.T) {
	s := at("────────────────────\n❯ write a test\n────────────────────\n  ? for shortcuts")
	s.CursorX, s.CursorY = 2, 1
	row := "\x1b[38;5;246m❯\u00a0%s\x1b[0m"
	for styled, want := range map[string]string{
		fmt.Sprintf(row, "\x1b[7mw\x1b[0;2mrite a test"):        "",
		fmt.Sprintf(row, "\x1b[2mwrite a test"):                 "",
		fmt.Sprintf(row, "\x1b[7mw\x1b[27mrite a test"):         "write a test",
		fmt.Sprintf(row, "write \x1b[38;2;2;2;2ma test\x1b[0m"): "write a test",
	} {
		s.Styled = slices.Clone(s.Lines)
		s.Styled[1] = styled
		if got := Read("claude", s).Composer; got == nil || got.Text != want {
			t.Errorf("%q: %+v, want %q", styled, got, want)
		}
		if got := Plain(styled); got != "❯ write a test" {
			t.Errorf("%q is %q as text", styled, got)
		}
	}
}

func FuzzRead(f *testing.F) {
	all, texts := load(f)
	for name, text := range texts {
		s := all[name].screen(text)
		f.Add(toolOf(name), text, s.CursorX, s.CursorY, s.Cols)
	}
	for _, tool := range []string{"gemini", "opencode", "aider", "amp", "cursor", "goose", "amazonq", "sh"} {
		f.Add(tool, "╭───╮\n│ ● 1. Yes │\n│ 2. No │\n╰───╯\n┃\n╹▀▀▀\n( O)> x\n[y/N]", 3, 1, 80)
	}
	f.Fuzz(func(t *testing.T, tool, text string, x, y, cols int) {
		lines := strings.Split(text, "\n")
		s := Screen{Lines: lines, CursorX: x, CursorY: y, Cols: cols, Rows: len(lines)}
		r := Read(tool, s)
		s.Styled = lines
		if styled := Read(tool, s); styled.State != r.State {
			// The style decides about text in the input box alone.
			t.Errorf("state %q with styles, %q without", styled.State, r.State)
		}
		if (r.State == session.Waiting) != (r.Kind != "") {
			t.Errorf("state %q with kind %q", r.State, r.Kind)
		}
		if len(r.Detail) > maxDetail || r.Composer != nil && (len(r.Composer.Text) > maxInput || r.Composer.Row < 0 || r.Composer.Row >= len(lines)) {
			t.Errorf("not bounded: %+v", r)
		}
		if r.Dialog == nil {
			return
		}
		if len(r.Dialog.Title) > maxTitle || len(r.Dialog.Text) > maxText || len(r.Dialog.Options) > maxOptions+2 || !utf8.ValidString(r.Dialog.Text) {
			t.Errorf("not bounded: %+v", r.Dialog)
		}
		for _, o := range r.Dialog.Options {
			if len(o.Label) > maxLabel || len(o.Detail) > maxLabel {
				t.Errorf("not bounded: %+v", o)
			}
			if _, err := keys.Of(tool, r.Dialog, o.ID); err != nil && len(o.Keys) > 0 {
				t.Errorf("option %q: %v", o.ID, err)
			}
		}
	})
}

func TestAQuestionThatDoesNotFitIntoARow(t *testing.T) {
	for _, text := range []string{
		"some output\nDo you really want to de\nlete all of it? [y/N]",
		"some output\nDo you really want to\ndelete all of it? [y/N]", // the blank that ends a row was cut
	} {
		s := at(text)
		s.Cols = 24
		if text[len("some output\nDo you really want to")] == '\n' {
			s.Cols = 22
		}
		r := Read("install.sh", s)
		if r.Dialog == nil || r.Dialog.Title != "Do you really want to delete all of it? [y/N]" || len(r.Dialog.Options) != 2 {
			t.Errorf("%q: %+v", text, r.Dialog)
		}
	}
}

func TestWhatAPersonTypesIsNoQuestion(t *testing.T) {
	s := at("$ echo Continue? [y/N]")
	if r := Read("bash", s); r.State != session.Waiting {
		t.Errorf("of a shell without a line editor: %+v", r)
	}
	s.Editing = true
	if r := Read("bash", s); r.State != "" || r.Dialog != nil {
		t.Errorf("at a shell's prompt: %+v", r)
	}
}
