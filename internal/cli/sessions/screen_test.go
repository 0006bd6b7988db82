package sessions

import (
	"fmt"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"holdfast/internal/cli/sessions/source"
	"holdfast/internal/session"
	"holdfast/internal/session/proto"
	"holdfast/internal/state"
)

var now = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

func list(t *testing.T, width, height int) *model {
	t.Helper()
	dir, err := state.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	m := &model{ctx: t.Context(), list: &List{}, seen: source.OpenSeen(dir), machines: map[string]source.Update{}}
	m.Update(tea.WindowSizeMsg{Width: width, Height: height})
	return m
}

func one(id, name string, st session.State, ago time.Duration) session.Session {
	return session.Session{ID: session.ID(id), Name: name, Tool: "claude", Status: session.Status{
		State: st, Since: now.Add(-ago), Evidence: []session.Evidence{{Source: session.FromScreen, Detail: "seen of " + name}},
	}}
}

// tells hands a machine's sessions to the list.
func (m *model) tells(machine string, all ...session.Session) {
	m.Update(source.Update{Source: source.Source{Name: machine}, Sessions: all, Link: &source.Link{Client: &proto.Client{}}})
}

// picture is what is drawn, without colours.
func (m *model) picture() []string {
	lines := m.lines(now)
	for i := range lines {
		lines[i] = strings.TrimRight(ansi.Strip(lines[i]), " ")
	}
	return lines
}

func press(m *model, keys ...string) tea.Cmd {
	var cmd tea.Cmd
	for _, k := range keys {
		msg := tea.KeyPressMsg{Text: k, Code: []rune(k)[0]}
		switch k {
		case "down":
			msg = tea.KeyPressMsg{Code: tea.KeyDown}
		case "esc":
			msg = tea.KeyPressMsg{Code: tea.KeyEscape}
		case "enter":
			msg = tea.KeyPressMsg{Code: tea.KeyEnter}
		}
		_, cmd = m.Update(msg)
	}
	return cmd
}

// row is the line of the picture that holds a text, or -1.
func row(lines []string, text string) int {
	for i, l := range lines {
		if strings.Contains(l, text) {
			return i
		}
	}
	return -1
}

func TestWhatWaitsIsFirstAcrossMachines(t *testing.T) {
	m := list(t, 100, 20)
	m.tells("mini", one("a:%1", "idling", session.Idle, time.Hour), one("a:%2", "asks", session.Waiting, time.Minute))
	m.tells("big", one("b:%1", "works", session.Working, time.Minute), one("b:%2", "longest", session.Waiting, time.Hour))
	p := m.picture()
	if !strings.HasPrefix(p[0], "4 sessions, 2 waiting") {
		t.Errorf("the head: %q", p[0])
	}
	last := 0
	for _, name := range []string{"longest", "asks", "works", "idling"} {
		at := row(p, " "+name+" ")
		if at <= last {
			t.Errorf("%s is in line %d, after line %d:\n%s", name, at, last, strings.Join(p, "\n"))
		}
		last = at
	}
	// The choice stays with its session when rows move.
	press(m, "down")
	if t1, _, _ := m.chosen(); t1.Session.Name != "works" {
		t.Fatalf("chosen is %s", t1.Session.Name)
	}
	m.tells("big", one("b:%1", "works", session.Waiting, 2*time.Hour), one("b:%2", "longest", session.Waiting, time.Hour))
	if p = m.picture(); !strings.HasPrefix(p[1], "> waiting") || row(p, "works") != 1 {
		t.Errorf("after the change:\n%s", strings.Join(p, "\n"))
	}
	// Its end moves the choice to a neighbour, not out of the list.
	m.tells("big")
	if t1, _, ok := m.chosen(); !ok || t1.Source.Name != "mini" {
		t.Errorf("chosen is %+v, %v", t1, ok)
	}
	m.tells("mini")
	if _, _, ok := m.chosen(); ok || row(m.picture(), "nothing here yet") < 0 {
		t.Errorf("an empty list:\n%s", strings.Join(m.picture(), "\n"))
	}
	press(m, "enter", "a", "y", "r", "u")
}

func TestThePictureFitsAnyTerminal(t *testing.T) {
	for _, size := range [][2]int{{100, 30}, {40, 10}, {20, 5}, {7, 3}, {1, 1}, {3, 1}, {80, 2}} {
		m := list(t, size[0], size[1])
		var all []session.Session
		for i := range 50 {
			s := one(fmt.Sprint("a:%", i), "日本語の名前🙂👨‍👩‍👧 "+strings.Repeat("長", i), session.Waiting, time.Duration(i)*time.Minute)
			s.Status.Kind = session.Question
			s.Status.Dialog = &session.Dialog{Digest: "d", Title: "続けますか?\x1b[2J\n\t" + strings.Repeat("あ", 300), Options: []session.Option{{ID: "1", Label: "はい"}}}
			all = append(all, s)
		}
		m.tells("機械", all...)
		check := func(what string) {
			t.Helper()
			lines := m.lines(now)
			if len(lines) > max(size[1], 3) {
				t.Errorf("%v %s: %d lines", size, what, len(lines))
			}
			for _, l := range lines {
				if w := ansi.StringWidth(l); w > size[0] {
					t.Errorf("%v %s: a line of %d cells: %q", size, what, w, l)
				}
				if strings.ContainsAny(l, "\n\t") || strings.Contains(ansi.Strip(l), "\x1b") || strings.Contains(l, "\x1b[2J") {
					t.Errorf("%v %s: a line with control characters: %q", size, what, l)
				}
			}
		}
		check("at the top")
		press(m, "G")
		check("at the end")
		if size[1] > 3 && row(m.picture(), ">") < 0 {
			t.Errorf("%v: the chosen row is not shown:\n%s", size, strings.Join(m.picture(), "\n"))
		}
		press(m, "y")
		check("a dialog")
		press(m, "esc", "r", "か", "な")
		if string(m.input) != "かな" {
			t.Errorf("the input is %q", string(m.input))
		}
		check("a reply")
		press(m, "esc")
		m.Update(detailMsg{"一行目", strings.Repeat("二", 200)})
		check("a conversation")
	}
}

func TestColumnsStandUnderOneAnother(t *testing.T) {
	m := list(t, 100, 20)
	wide, plain := one("a:%1", "日本🙂", session.Working, time.Minute), one("a:%2", "ascii", session.Working, time.Minute)
	m.tells("", wide, plain)
	p := m.picture()
	cell := func(line string) int { return ansi.StringWidth(line[:strings.Index(line, "claude")]) }
	if cell(p[1]) != cell(p[2]) {
		t.Errorf("the columns are apart:\n%s\n%s", p[1], p[2])
	}
}

func TestATerminalWithoutSize(t *testing.T) {
	m := list(t, 80, 24)
	m.tells("", one("a:%1", "one", session.Idle, 0))
	m.Update(tea.WindowSizeMsg{})
	if row(m.picture(), "one") < 0 {
		t.Error("the list is not shown any more")
	}
}

func TestAMachineThatIsAwayKeepsItsRows(t *testing.T) {
	m := list(t, 120, 20)
	m.tells("mini", one("a:%1", "one", session.Working, time.Minute))
	m.Update(source.Update{Source: source.Source{Name: "mini"}, Sessions: m.machines["mini"].Sessions, Err: fmt.Errorf("no route\x1b[31m to it")})
	p := m.picture()
	if !strings.Contains(p[0], "not reached: mini") || strings.Contains(p[0], "\x1b") || row(p, "one") < 0 {
		t.Errorf("the list:\n%s", strings.Join(p, "\n"))
	}
	// Nothing is sent there, and that is said.
	press(m, "r", "x", "enter")
	if !strings.Contains(m.note, "nothing was sent") {
		t.Errorf("the note: %q", m.note)
	}
	press(m, "enter")
	if !strings.Contains(m.note, "not reached") {
		t.Errorf("the note: %q", m.note)
	}
}

func TestADialogThatChangedIsNotAnsweredByOldKeys(t *testing.T) {
	m := list(t, 80, 24)
	s := one("a:%1", "one", session.Waiting, time.Minute)
	s.Status.Dialog = &session.Dialog{Digest: "first", Title: "Run it?", Options: []session.Option{{ID: "1", Label: "Yes"}, {ID: "2", Label: "No"}}}
	m.tells("", s)
	press(m, "y")
	s.Status.Dialog = &session.Dialog{Digest: "second", Title: "Delete all?", Options: []session.Option{{ID: "1", Label: "Yes"}}}
	m.tells("", s)
	if p := m.picture(); row(p, "Run it?") < 0 || row(p, "Delete all?") >= 0 {
		t.Errorf("what is answered is not what is shown:\n%s", strings.Join(p, "\n"))
	}
	if m.digest != "first" {
		t.Errorf("the digest is %q", m.digest)
	}
	if press(m, "3") != nil || m.mode != choosing {
		t.Error("a key that is no option did something")
	}
}

func TestADialogIsShownOnceUnderItsSession(t *testing.T) {
	m := list(t, 80, 24)
	s := one("a:%1", "work", session.Waiting, time.Minute)
	s.Status.Dialog = &session.Dialog{Digest: "first", Title: "Run it?", Text: "rm -r build\n\nRun it?", Options: []session.Option{{ID: "1", Label: "Yes"}}}
	m.tells("mini", s)
	press(m, "y")
	p := m.picture()
	if all := strings.Join(p, "\n"); strings.Count(all, "Run it?") != 1 || row(p, "  rm -r build") < 0 || !strings.HasPrefix(p[0], "mini/work ") {
		t.Errorf("the picture:\n%s", all)
	}
}

func TestANoteGoesWithTheNextKey(t *testing.T) {
	m := list(t, 80, 24)
	m.tells("", one("a:%1", "one", session.Idle, time.Minute), one("a:%2", "two", session.Idle, time.Hour))
	press(m, "y")
	if row(m.picture(), "no dialog is open there") < 0 {
		t.Fatalf("the picture: %q", m.picture())
	}
	if press(m, "down"); row(m.picture(), "no dialog") >= 0 {
		t.Errorf("the note stays on another row: %q", m.picture())
	}
}

// A reply goes to the session that it was begun for, or nowhere: never to the one
// that took its row.
func TestAReplyStaysWithItsSession(t *testing.T) {
	m := list(t, 100, 20)
	m.list.Waiting = true
	asks, other := one("a:%1", "asks", session.Waiting, time.Hour), one("a:%2", "other", session.Waiting, time.Minute)
	m.tells("mini", asks, other)
	for m.on != "a:%1" {
		press(m, "down")
	}
	press(m, "r", "h", "i")

	// Answered elsewhere, it is no row any more, and still meant.
	asks.Status.State = session.Working
	m.tells("mini", asks, other)
	if to, _, ok := m.chosen(); !ok || to.Session.ID != "a:%1" || !strings.Contains(m.foot()[0], to.Name()) {
		t.Errorf("the reply is for %q, %v: %q", to.Session.ID, ok, m.foot())
	}

	// Gone, nothing is sent, and what was written stays to be read.
	m.tells("mini", other)
	if _, _, ok := m.chosen(); ok {
		t.Error("the reply is for another session")
	}
	if cmd := press(m, "enter"); cmd != nil || m.mode != writing || !strings.Contains(m.foot()[0], "nothing was sent: hi") {
		t.Errorf("enter: %v, mode %v, %q", cmd, m.mode, m.foot())
	}
	press(m, "esc")
	m.tells("mini", other)
	if to, _, ok := m.chosen(); !ok || to.Session.ID != "a:%2" {
		t.Errorf("the choice afterwards is %q, %v", to.Session.ID, ok)
	}
}

func TestAPasswordIsNotShown(t *testing.T) {
	m := list(t, 80, 24)
	s := one("a:%1", "one", session.Waiting, time.Minute)
	s.Status.Kind = session.Password
	m.tells("", s)
	press(m, "r", "s", "3", "c")
	if p := strings.Join(m.picture(), "\n"); strings.Contains(p, "s3c") || !strings.Contains(p, "***") {
		t.Errorf("the picture:\n%s", p)
	}
}

func TestTheLastWordsOfATerminal(t *testing.T) {
	var s tail
	fmt.Fprintf(&s, "%s\r\nssh: connect: refused\r\n", strings.Repeat("x", 5000))
	if got := s.last(); got != "ssh: connect: refused" {
		t.Errorf("%q", got)
	}
	if got := tail(nil).last(); got != "" {
		t.Errorf("of nothing: %q", got)
	}
}
