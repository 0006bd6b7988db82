package act

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/session"
	"holdfast/internal/session/proto"
	"holdfast/internal/session/screen"
)

// fakePane is a script that asks [y/N], or a pane with a program that the test
// plays.
type fakePane struct {
	mu     sync.Mutex
	look   Look
	pasted []string
	typed  []string
	keys   []string
	left   int
	// on is called, with mu held, after each paste, typed text or key.
	on func(p *fakePane, what, text string)
}

func (p *fakePane) Look(context.Context) (Look, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.look
	l.Screen.Lines = slices.Clone(l.Screen.Lines)
	return l, nil
}

func (p *fakePane) LeaveMode(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left++
	p.look.InMode = false
	return nil
}

func (p *fakePane) do(what, text string, to *[]string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.look.InMode {
		return nil // tmux eats it
	}
	*to = append(*to, text)
	if p.on != nil {
		p.on(p, what, text)
	}
	return nil
}

func (p *fakePane) Paste(_ context.Context, b []byte) error {
	return p.do("paste", string(b), &p.pasted)
}
func (p *fakePane) Type(_ context.Context, b []byte) error { return p.do("type", string(b), &p.typed) }
func (p *fakePane) Keys(_ context.Context, keys ...string) error {
	for _, k := range keys {
		p.do("key", k, &p.keys)
	}
	return nil
}

// shows replaces the screen; the cursor stands behind the last line.
func (p *fakePane) shows(lines ...string) {
	last := len(lines) - 1
	p.look.Screen = screen.Screen{Lines: lines, CursorX: len([]rune(lines[last])), CursorY: last, Cols: 80, Rows: 24}
	if strings.HasSuffix(lines[last], ": ") {
		p.look.Screen.Lines[last] = strings.TrimRight(lines[last], " ")
	}
}

const id session.ID = "k3f9:%1"

func actor(t *testing.T, p *fakePane) *Actor {
	t.Helper()
	a, err := New(Options{Pane: func(asked session.ID) (Pane, bool) { return p, asked == id }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

// stages collects receipts.
type stages struct {
	mu  sync.Mutex
	all []proto.Stage
}

func (s *stages) add(st proto.Stage) {
	s.mu.Lock()
	s.all = append(s.all, st)
	s.mu.Unlock()
}

func wantCode(t *testing.T, err error, code proto.Code) *proto.Error {
	t.Helper()
	var e *proto.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Fatalf("error %v, want code %s", err, code)
	}
	return e
}

// prompt is a pane in which a script asks.
func prompt() *fakePane {
	p := &fakePane{look: Look{Tool: "install.sh", PID: 7}}
	p.shows("Removing 3 files.", "Continue? [y/N] ")
	return p
}

func digest(t *testing.T, a *Actor, p *fakePane) *session.Dialog {
	t.Helper()
	v, err := a.look(context.Background(), id, p)
	if err != nil || v.Dialog == nil {
		t.Fatalf("no dialog on the screen: %+v, %v", v.Reading, err)
	}
	return v.Dialog
}

func TestApproveAnswersTheDialogThatWasRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := prompt()
		a := actor(t, p)
		d := digest(t, a, p)
		p.on = func(p *fakePane, _, key string) {
			if key == "Enter" {
				p.shows("Removing 3 files.", "Continue? [y/N] y", "removed", "$ ")
			}
		}
		var got stages
		o, err := a.Approve(t.Context(), proto.Approve{Session: id, Digest: d.Digest, Role: session.Approve}, got.add)
		if err != nil || o.State != proto.Accepted || o.Evidence == "" {
			t.Fatalf("outcome %+v, %v", o, err)
		}
		if !slices.Equal(p.keys, []string{"y", "Enter"}) {
			t.Errorf("pressed %q", p.keys)
		}
		if !slices.Contains(got.all, proto.Typed) || got.all[len(got.all)-1] != proto.Typed && got.all[0] != proto.Sent {
			t.Errorf("stages %v", got.all)
		}
	})
}

func TestALateApprovalNeverAnswersAnotherDialog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := prompt()
		a := actor(t, p)
		d := digest(t, a, p)
		p.mu.Lock()
		p.shows("Removing everything.", "Delete the home directory? [y/N] ")
		p.mu.Unlock()
		_, err := a.Approve(t.Context(), proto.Approve{Session: id, Digest: d.Digest, Option: "y"}, func(proto.Stage) {})
		e := wantCode(t, err, proto.CodeDialogChanged)
		if e.Dialog == nil || e.Dialog.Digest == d.Digest || !strings.Contains(e.Dialog.Title+e.Dialog.Text, "home directory") {
			t.Errorf("the refusal does not show the new dialog: %+v", e.Dialog)
		}
		p.mu.Lock()
		p.shows("$ ")
		p.mu.Unlock()
		_, err = a.Approve(t.Context(), proto.Approve{Session: id, Digest: d.Digest, Option: "y"}, func(proto.Stage) {})
		if e := wantCode(t, err, proto.CodeDialogChanged); e.Dialog != nil {
			t.Errorf("a dialog that is not there: %+v", e.Dialog)
		}
		if len(p.keys) != 0 {
			t.Errorf("pressed %q", p.keys)
		}
	})
}

// Two devices approve the first of two dialogs with the same words: the second
// one stays open.
func TestASecondDialogWithTheSameWordsIsAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := prompt()
		a := actor(t, p)
		d := digest(t, a, p)
		answers := 0
		p.on = func(p *fakePane, _, key string) {
			if key == "Enter" {
				answers++
				p.shows("Removing 3 files.", "Continue? [y/N] ") // asked again
			}
		}
		var wg sync.WaitGroup
		errs := make([]error, 2)
		for i := range errs {
			wg.Go(func() {
				_, errs[i] = a.Approve(t.Context(), proto.Approve{Session: id, Digest: d.Digest, Option: "y"}, func(proto.Stage) {})
			})
		}
		wg.Wait()
		if answers != 1 {
			t.Fatalf("%d dialogs were answered by approvals of one", answers)
		}
		if (errs[0] == nil) == (errs[1] == nil) {
			t.Fatalf("errors %v", errs)
		}
		e := wantCode(t, errors.Join(errs...), proto.CodeDialogChanged)
		if e.Dialog == nil || e.Dialog.Digest == d.Digest {
			t.Fatalf("the second dialog has no digest of its own: %+v", e.Dialog)
		}
		s := a.Outward(session.Session{ID: id, Status: session.Status{Dialog: d}})
		if s.Status.Dialog.Digest != e.Dialog.Digest {
			t.Error("devices are told another digest than an approval needs")
		}
	})
}

// The first dialog was answered at the desk, so nobody here saw it go: what tells
// it from the second is the mark.
func TestALateApprovalOfADialogAnsweredAtTheDesk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := prompt()
		p.look.Mark = "line 2"
		a := actor(t, p)
		d := digest(t, a, p)
		p.mu.Lock()
		p.look.Mark = "line 4"
		p.mu.Unlock()
		_, err := a.Approve(t.Context(), proto.Approve{Session: id, Digest: d.Digest, Option: "y"}, func(proto.Stage) {})
		e := wantCode(t, err, proto.CodeDialogChanged)
		if e.Dialog == nil || e.Dialog.Digest == d.Digest || len(p.keys) != 0 {
			t.Errorf("dialog %+v, keys %q", e.Dialog, p.keys)
		}
	})
}

func TestAnOptionThatIsNotThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := prompt()
		a := actor(t, p)
		d := digest(t, a, p)
		for _, r := range []proto.Approve{{Option: "7"}, {Role: session.ApproveAlways}} {
			r.Session, r.Digest = id, d.Digest
			_, err := a.Approve(t.Context(), r, func(proto.Stage) {})
			wantCode(t, err, proto.CodeNoOption)
		}
		if len(p.keys) != 0 {
			t.Errorf("pressed %q", p.keys)
		}
	})
}

func TestAnApprovalThatChangesNothingIsNotConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := prompt()
		a := actor(t, p)
		d := digest(t, a, p)
		o, err := a.Approve(t.Context(), proto.Approve{Session: id, Digest: d.Digest, Option: "y"}, func(proto.Stage) {})
		if err != nil || o.State != proto.Unconfirmed || o.Reason == "" {
			t.Fatalf("outcome %+v, %v", o, err)
		}
	})
}

// shell is a pane in which a shell echoes and answers.
func shell() *fakePane {
	p := &fakePane{look: Look{Tool: "cat", PID: 9}}
	p.shows("hello")
	p.on = func(p *fakePane, what, text string) {
		lines := p.look.Screen.Lines
		switch {
		case what == "paste":
			p.shows(append(lines, text)...)
		case text == "Enter":
			p.shows(append(lines, lines[len(lines)-1])...)
		}
	}
	return p
}

func TestReplyToAProgram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := shell()
		p.look.InMode = true
		a := actor(t, p)
		var got stages
		o, err := a.Reply(t.Context(), proto.Reply{Session: id, Key: "k1", Text: "日本 🙂\x1b[201~\x03\tx\r\n\n"}, got.add)
		if err != nil || o.State != proto.Accepted {
			t.Fatalf("outcome %+v, %v", o, err)
		}
		if p.left != 1 {
			t.Error("copy mode was not left")
		}
		if want := []string{"日本 🙂[201~\tx"}; !slices.Equal(p.pasted, want) {
			t.Errorf("pasted %q, want %q", p.pasted, want)
		}
		if !slices.Equal(p.keys, []string{"Enter"}) {
			t.Errorf("pressed %q", p.keys)
		}
		if !slices.Equal(got.all, []proto.Stage{proto.Sent, proto.Typed}) {
			t.Errorf("stages %v", got.all)
		}
	})
}

func TestAProgramThatDoesNotReadIsNotConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := shell()
		p.on = func(p *fakePane, what, text string) {
			switch {
			case what == "paste":
				p.shows(append(p.look.Screen.Lines, text)...)
			case text == "Enter": // the terminal's own echo
				p.shows(append(p.look.Screen.Lines, "")...)
			}
		}
		a := actor(t, p)
		o, err := a.Reply(t.Context(), proto.Reply{Session: id, Key: "k1", Text: "hi"}, func(proto.Stage) {})
		if err != nil || o.State != proto.Unconfirmed {
			t.Fatalf("outcome %+v, %v", o, err)
		}
	})
}

func TestAKeyTypesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := shell()
		a := actor(t, p)
		r := proto.Reply{Session: id, Key: "k1", Text: "once"}
		// The first caller leaves at once; the action goes on.
		gone, leave := context.WithCancel(t.Context())
		leave()
		a.Reply(gone, r, func(proto.Stage) {})
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				o, err := a.Reply(t.Context(), r, func(proto.Stage) {})
				if err != nil || o.State != proto.Accepted {
					t.Errorf("outcome %+v, %v", o, err)
				}
			})
		}
		wg.Wait()
		if len(p.pasted) != 1 || len(p.keys) != 1 {
			t.Fatalf("pasted %q, pressed %q", p.pasted, p.keys)
		}
		r.Text = "another"
		_, err := a.Reply(t.Context(), r, func(proto.Stage) {})
		wantCode(t, err, proto.CodeKeyUsed)
		time.Sleep(keepTime + time.Minute)
		if o, err := a.Reply(t.Context(), proto.Reply{Session: id, Key: "k2", Text: "x"}, func(proto.Stage) {}); err != nil || o.State != proto.Accepted {
			t.Fatalf("outcome %+v, %v", o, err)
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if len(a.done) != 1 || len(a.order) != 1 {
			t.Errorf("%d keys are kept after their time", len(a.done))
		}
	})
}

func TestAPasswordIsTypedOnlyWhereOneIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &fakePane{look: Look{Tool: "sudo", PID: 3, Secret: true}}
		p.shows("[sudo] password for me: ")
		a := actor(t, p)
		_, err := a.Reply(t.Context(), proto.Reply{Session: id, Key: "k1", Text: "hunter2"}, func(proto.Stage) {})
		wantCode(t, err, proto.CodePassword)
		p.on = func(p *fakePane, what, text string) {
			if text == "Enter" {
				p.look.Secret = false
				p.shows("[sudo] password for me:", "# ")
			}
		}
		o, err := a.Reply(t.Context(), proto.Reply{Session: id, Key: "k1", Text: "hunter2", Secret: true}, func(proto.Stage) {})
		if err != nil || o.State != proto.Accepted {
			t.Fatalf("outcome %+v, %v", o, err)
		}
		if len(p.pasted) != 0 || !slices.Equal(p.typed, []string{"hunter2"}) {
			t.Errorf("pasted %q, typed %q", p.pasted, p.typed)
		}
		if strings.Contains(o.Evidence+o.Reason, "hunter2") {
			t.Error("the outcome holds the password")
		}
		_, err = a.Reply(t.Context(), proto.Reply{Session: id, Key: "k2", Text: "hunter2", Secret: true}, func(proto.Stage) {})
		wantCode(t, err, proto.CodeNotPassword)
	})
}

func TestNoSuchSession(t *testing.T) {
	p := shell()
	a := actor(t, p)
	_, err := a.Reply(t.Context(), proto.Reply{Session: "k3f9:%2", Key: "k", Text: "x"}, func(proto.Stage) {})
	wantCode(t, err, proto.CodeNoSession)
	p.look.Dead = true
	_, err = a.Reply(t.Context(), proto.Reply{Session: id, Key: "k", Text: "x"}, func(proto.Stage) {})
	wantCode(t, err, proto.CodeNoSession)
	if err := a.Keys(t.Context(), proto.Keys{Session: id, Keys: []string{"Enter"}}); proto.CodeOf(err) != proto.CodeNoSession {
		t.Errorf("keys: %v", err)
	}
}

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"a\r\nb\rc\n":             "a\nb\nc",
		"x\x1b[201~rm -rf /\n":    "x[201~rm -rf /",
		"\u009b201~":              "201~",
		"tab\there":               "tab\there",
		"\x00\x07\x7f":            "",
		"\xff":                    "\uFFFD",
		"مرحبا 你好 👩‍💻":            "مرحبا 你好 👩‍💻",
		"line\u2028sep":           "line\nsep",
		"  keeps leading spaces ": "  keeps leading spaces ",
	} {
		if got := Clean(in); got != want {
			t.Errorf("Clean(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzClean(f *testing.F) {
	f.Add("a\x1b[201~b")
	f.Fuzz(func(t *testing.T, s string) {
		got := Clean(s)
		for _, r := range got {
			if r < 0x20 && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 {
				t.Fatalf("%q holds %U", got, r)
			}
		}
		if Clean(got) != got {
			t.Fatalf("cleaning %q again changes it", got)
		}
	})
}
