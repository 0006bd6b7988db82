package osc

import (
	"encoding/base64"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

func b64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

func scan(chunks ...string) []Event {
	var s Scanner
	var out []Event
	for _, c := range chunks {
		s.Feed([]byte(c), func(e Event) { out = append(out, e) })
	}
	return out
}

// ev fills in what an event leaves unsaid.
func ev(e Event) Event {
	if e.Kind != Prompt || e.Mark != MarkDone || e.Code == 0 && e.State != "0" {
		e.Code = -1
	}
	if e.State == "0" {
		e.State = ""
	}
	if e.Progress == 0 {
		e.Progress = -1
	}
	return e
}

func TestEvents(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     []Event
	}{
		{"nothing", "plain text, \x1b[1mbold\x1b[0m and 日本🙂\r\n", nil},
		{"bell", "a\ab", []Event{{Kind: Bell}}},
		{"a bell that ends an OSC is none", "\x1b]0;t\a", []Event{{Kind: Title, Text: "t"}}},
		{"status", "\x1b]7501;state=blocked:kind=permission:app=pi:title=" + b64("Run it") + ":msg=" + b64("rm -r build") + ":progress=40\x1b\\",
			[]Event{{Kind: Status, State: "blocked", Ask: "permission", App: "pi", Title: "Run it", Text: "rm -r build", Progress: 40}}},
		{"status with BEL and unknown keys", "\x1b]7501;v=9:state=working:id=a/b\a", []Event{{Kind: Status, State: "working", ID: "a/b"}}},
		{"status without a known state", "\x1b]7501;state=dancing\a\x1b]7501;app=x\a", nil},
		{"query", "\x1b]7501;?\x1b\\", []Event{{Kind: Query}}},
		{"query with later keys", "\x1b]7501;?:x=1\x1b\\", []Event{{Kind: Query}}},
		{"notification of iTerm2", "\x1b]9;Approval requested: rm; then go\a", []Event{{Kind: Notify, Text: "Approval requested: rm; then go"}}},
		{"other sub-commands of 9", "\x1b]9;1;500\a\x1b]9;9;/home\a", nil},
		{"progress", "\x1b]9;4;1;50\a\x1b]9;4;3\a\x1b]9;4;2;1\a\x1b]9;4;4\a\x1b]9;4;0\a\x1b]9;4;7\a",
			[]Event{{Kind: Progress, State: "working", Progress: 50}, {Kind: Progress, State: "working"}, {Kind: Progress, State: "error"},
				{Kind: Progress, State: "paused"}, {Kind: Progress, State: "clear"}}},
		{"notification of urxvt", "\x1b]777;notify;Title;a;b\x1b\\", []Event{{Kind: Notify, Title: "Title", Text: "a;b"}}},
		{"777 of another kind", "\x1b]777;precmd\a", nil},
		{"kitty in chunks", "\x1b]99;i=1:d=0;Hello \x1b\\\x1b]99;i=1:d=0;world\x1b\\\x1b]99;i=1:d=1:p=body:e=1;" + b64("body") + "\x1b\\",
			[]Event{{Kind: Notify, Title: "Hello world", Text: "body"}}},
		{"kitty at once", "\x1b]99;;Hi\x1b\\\x1b]99;p=close;x\x1b\\", []Event{{Kind: Notify, Title: "Hi"}}},
		{"prompt marks", "\x1b]133;A\a\x1b]133;B\a\x1b]133;C;cmdline=x\a\x1b]133;D;0\a\x1b]133;D;130;aid=3\a\x1b]133;D\a\x1b]133;P\a",
			[]Event{{Kind: Prompt, Mark: MarkPrompt}, {Kind: Prompt, Mark: MarkInput}, {Kind: Prompt, Mark: MarkRunning},
				{Kind: Prompt, Mark: MarkDone, State: "0"}, {Kind: Prompt, Mark: MarkDone, Code: 130}, {Kind: Prompt, Mark: MarkDone}}},
		{"wrapped for tmux", "\x1bPtmux;\x1b\x1b]7501;state=done\x1b\x1b\\\x1b\\x\a",
			[]Event{{Kind: Status, State: "done"}, {Kind: Bell}}},
		{"wrapped, ended by BEL", "\x1bPtmux;\x1b\x1b]9;hi\a\x1b\\", []Event{{Kind: Notify, Text: "hi"}}},
		{"a wrapping in a wrapping is not followed", "\x1bPtmux;\x1b\x1bPtmux;\x1b\x1b\x1b\x1b]9;hi\a\x1b\x1b\\\x1b\\", nil},
		{"another device string", "\x1bPq#0;2;0;0;0\a\x1b\\\a", []Event{{Kind: Bell}}},
		{"reset", "\x1bc", []Event{{Kind: Cleared}}},
		{"cut off by CAN", "\x1b]9;hi\x18\a", []Event{{Kind: Bell}}},
		{"cut off by another sequence", "\x1b]9;hi\x1b[0m\a", []Event{{Kind: Bell}}},
		{"an OSC within an OSC", "\x1b]9;hi\x1b]9;ho\a", []Event{{Kind: Notify, Text: "ho"}}},
		{"window name of screen", "\x1bkname\a\x1b\\\a", []Event{{Kind: Bell}}},
		{"application string", "\x1b_Gx=\a\x1b\\\a", []Event{{Kind: Bell}}},
		{"too long", "\x1b]9;" + strings.Repeat("x", maxSequence) + "\a\a", []Event{{Kind: Bell}}},
		{"hostile text", "\x1b]9;a\u202eb\u0085c\td \xff e\a", []Event{{Kind: Notify, Text: "a" + "b c d e"}}},
		{"emoji keep their joiner", "\x1b]9;👨‍👩‍👧 ✳️\a", []Event{{Kind: Notify, Text: "👨‍👩‍👧 ✳️"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for i := range c.want {
				c.want[i] = ev(c.want[i])
			}
			if got := scan(c.in); !reflect.DeepEqual(got, c.want) {
				t.Errorf("in one piece: %+v, want %+v", got, c.want)
			}
			if got := scan(strings.Split(c.in, "")...); utf8.ValidString(c.in) && !reflect.DeepEqual(got, c.want) {
				t.Errorf("in pieces: %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestResetForgetsWhatWasBegun(t *testing.T) {
	var s Scanner
	var out []Event
	emit := func(e Event) { out = append(out, e) }
	s.Feed([]byte("\x1b]9;half of a secr"), emit)
	s.Reset()
	s.Feed([]byte("et\a"), emit)
	if len(out) != 1 || out[0].Kind != Bell {
		t.Errorf("after Reset: %+v, want the bell alone", out)
	}
}

func TestOpenNotificationsAreBounded(t *testing.T) {
	var s Scanner
	big := strings.Repeat("x", 1000)
	for i := range 10_000 {
		s.Feed([]byte("\x1b]99;d=0:i="+strings.Repeat("k", i%200)+";"+big+"\a"), func(Event) {})
	}
	size := 0
	for _, n := range s.notes {
		size += len(n.title) + len(n.text)
	}
	if len(s.notes) > maxNotes || size > 2*maxNotes*maxNoteText {
		t.Errorf("%d notifications of %d bytes are kept", len(s.notes), size)
	}
}

func FuzzScanner(f *testing.F) {
	f.Add([]byte("\x1b]7501;state=blocked:kind=permission:msg=eA==\x1b\\"), 3)
	f.Add([]byte("\x1bPtmux;\x1b\x1b]99;i=1:d=0;x\x1b\x1b\\\x1b\\\a\x1bc"), 7)
	f.Add([]byte("\x1b]133;D;1\a\x1b]9;4;1;5\a\x1b]777;notify;a;b\x1b\\"), 1)
	f.Fuzz(func(t *testing.T, in []byte, at int) {
		var whole, cut []Event
		var a, b Scanner
		a.Feed(in, func(e Event) { whole = append(whole, e) })
		if at < 0 || at > len(in) {
			at = len(in) / 2
		}
		b.Feed(in[:at], func(e Event) { cut = append(cut, e) })
		b.Feed(in[at:], func(e Event) { cut = append(cut, e) })
		if !reflect.DeepEqual(whole, cut) {
			t.Fatalf("cut at %d: %+v, whole: %+v", at, cut, whole)
		}
		for _, e := range whole {
			for _, s := range []string{e.Title, e.Text, e.App, e.ID} {
				if len(s) > maxText || !utf8.ValidString(s) || strings.ContainsAny(s, "\x1b\a\n\u202e") {
					t.Fatalf("text %q", s)
				}
			}
		}
	})
}

func BenchmarkPlainText(b *testing.B) {
	text := []byte(strings.Repeat("the quick brown fox jumps over the lazy dog \x1b[32mgreen\x1b[0m\r\n", 500))
	var s Scanner
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		s.Feed(text, func(Event) {})
	}
}
