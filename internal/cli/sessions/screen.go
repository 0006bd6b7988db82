package sessions

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"holdfast/internal/cli/sessions/source"
	"holdfast/internal/console"
	"holdfast/internal/session"
	"holdfast/internal/session/proto"
)

// ageInterval is how often the ages on the screen are drawn anew.
const ageInterval = 5 * time.Second

// model is the full-screen list. It is a state machine: messages in, a picture
// out; what takes time runs in commands.
type model struct {
	ctx  context.Context
	app  *console.App
	list *List
	seen *source.Seen

	machines map[string]source.Update
	rows     []source.Named
	at       int        // the chosen row
	on       session.ID // the chosen session, which keeps the choice when rows move
	onName   string

	width, height int
	mode          mode
	input         []rune
	options       []session.Option
	digest        string
	detail        []string // what is shown instead of the list
	top           int      // the first line of detail
	note          string   // what came of the last action
}

// mode says what the keys mean.
type mode int

const (
	listing  mode = iota
	reading       // a conversation is shown
	writing       // a reply is written
	choosing      // an option of a dialog is chosen
)

// ended is said where a reply or an answer has nobody left to go to.
const ended = "the session has ended; nothing was sent"

// Messages.
type (
	noteMsg   string
	detailMsg []string
	tickMsg   struct{}
	attachMsg struct {
		args []string
		own  bool // on this computer
		name string
	}
)

// screen runs the full-screen list.
func (c *List) screen(ctx context.Context, a *console.App, sources []source.Source) error {
	dir, err := a.Dir()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m := &model{ctx: ctx, app: a, list: c, seen: source.OpenSeen(dir), machines: map[string]source.Update{}, width: 80, height: 24}
	defer m.seen.Save()
	p := tea.NewProgram(m, tea.WithContext(ctx), tea.WithInput(a.In), tea.WithOutput(a.Out), tea.WithEnvironment(a.Environ), tea.WithoutSignalHandler())
	done := make(chan struct{})
	// Ends with ctx, which ends the updates; waited for below.
	go func() {
		defer close(done)
		for u := range source.Follow(ctx, sources) {
			p.Send(u)
		}
	}()
	_, err = p.Run()
	cancel()
	<-done
	if errors.Is(err, tea.ErrProgramKilled) || errors.Is(err, tea.ErrInterrupted) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

func tick() tea.Cmd { return tea.Tick(ageInterval, func(time.Time) tea.Msg { return tickMsg{} }) }

// Init is called by the library.
func (m *model) Init() tea.Cmd { return tick() }

// Update is called by the library with each message.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		// A terminal that does not know its size says nothing.
		if msg.Width > 0 && msg.Height > 0 {
			m.width, m.height = msg.Width, msg.Height
			m.top = max(0, min(m.top, len(m.detail)-m.body()))
		}
	case source.Update:
		if msg.Err == nil {
			m.seen.Note(msg.Source, time.Now())
		}
		m.machines[msg.Source.Name] = msg
		m.arrange()
	case tickMsg:
		return m, tick()
	case noteMsg:
		m.note = string(msg)
	case detailMsg:
		m.detail, m.mode = msg, reading
		m.top = max(0, len(msg)-m.body())
	case attachMsg:
		return m, m.run(msg)
	case tea.PasteMsg:
		if m.mode == writing {
			m.input = append(m.input, []rune(msg.Content)...)
		}
	case tea.KeyPressMsg:
		return m, m.key(msg)
	}
	return m, nil
}

// arrange sorts the rows and keeps the choice.
func (m *model) arrange() {
	m.rows = nil
	for name, u := range m.machines {
		for _, s := range u.Sessions {
			if !m.list.Waiting || s.Status.State == session.Waiting {
				m.rows = append(m.rows, source.Named{Machine: name, Session: s})
			}
		}
	}
	source.Sort(m.rows)
	for i, r := range m.rows {
		if r.ID == m.on && r.Machine == m.onName {
			m.at = i
			return
		}
	}
	// What is being written or answered stays with its session, and never goes to
	// the one that took its row.
	if m.mode != writing && m.mode != choosing {
		m.move(0)
	}
}

func (m *model) move(by int) {
	m.at = max(0, min(m.at+by, len(m.rows)-1))
	if m.at < len(m.rows) {
		m.on, m.onName = m.rows[m.at].ID, m.rows[m.at].Machine
	}
}

// chosen is the session that keys are about, also where it is no row any more.
// It reports false when there is none, or it has ended.
func (m *model) chosen() (source.Target, *source.Link, bool) {
	u := m.machines[m.onName]
	for _, s := range u.Sessions {
		if s.ID == m.on {
			return source.Target{Source: u.Source, Session: s, Link: u.Link}, u.Link, true
		}
	}
	return source.Target{}, nil, false
}

func (m *model) key(k tea.KeyPressMsg) tea.Cmd {
	if k.String() == "ctrl+c" {
		return tea.Quit
	}
	switch m.mode {
	case writing:
		return m.writeKey(k)
	case choosing:
		return m.chooseKey(k)
	case reading:
		switch k.String() {
		case "q", "esc", "left":
			m.mode = listing
		case "up", "k":
			m.top = max(0, m.top-1)
		case "down", "j":
			m.top = max(0, min(m.top+1, len(m.detail)-m.body()))
		case "pgup", "b":
			m.top = max(0, m.top-m.body())
		case "pgdown", "space":
			m.top = max(0, min(m.top+m.body(), len(m.detail)-m.body()))
		}
		return nil
	}
	m.note = "" // it was about what is left now
	switch k.String() {
	case "q", "esc":
		return tea.Quit
	case "up", "k":
		m.move(-1)
	case "down", "j":
		m.move(1)
	case "home", "g":
		m.move(-len(m.rows))
	case "end", "G":
		m.move(len(m.rows))
	case "enter", "s":
		return m.show()
	case "a":
		return m.attach()
	case "r":
		if _, _, ok := m.chosen(); ok {
			m.mode, m.input, m.note = writing, nil, ""
		}
	case "y":
		m.choose()
	case "u":
		return m.refresh()
	}
	return nil
}

func (m *model) writeKey(k tea.KeyPressMsg) tea.Cmd {
	switch k.String() {
	case "esc":
		m.mode = listing
	case "enter":
		text := string(m.input)
		if strings.TrimSpace(text) == "" {
			m.mode = listing
			return nil
		}
		t, l, ok := m.chosen()
		if !ok {
			return nil // the foot says that it has ended
		}
		m.mode = listing
		secret := t.Session.Status.Kind == session.Password && t.Session.Status.State == session.Waiting
		return m.act(t, l, proto.OpReply, proto.Reply{Session: t.Session.ID, Key: rand.Text(), Text: text, Secret: secret})
	case "backspace":
		if n := len(m.input); n > 0 {
			m.input = m.input[:n-1]
		}
	case "ctrl+u":
		m.input = nil
	case "alt+enter", "shift+enter", "ctrl+j":
		m.input = append(m.input, '\n')
	default:
		m.input = append(m.input, []rune(k.Text)...)
	}
	return nil
}

// choose shows the dialog of the chosen session. Its digest is kept: a dialog
// that has changed by the time of the answer is not answered.
func (m *model) choose() {
	t, _, ok := m.chosen()
	if !ok {
		return
	}
	d := t.Session.Status.Dialog
	if d == nil || len(d.Options) == 0 {
		m.note = "no dialog is open there"
		return
	}
	m.mode, m.options, m.digest, m.note = choosing, d.Options, d.Digest, ""
	m.detail = nil
	source.PrintDialog(func(format string, args ...any) {
		m.detail = append(m.detail, strings.Split(fmt.Sprintf(format, args...), "\n")...)
	}, d)
}

func (m *model) chooseKey(k tea.KeyPressMsg) tea.Cmd {
	if k.String() == "esc" || k.String() == "q" {
		m.mode = listing
		return nil
	}
	for _, o := range m.options {
		if k.Text != "" && o.ID == k.Text {
			m.mode = listing
			t, l, ok := m.chosen()
			if !ok {
				m.note = ended
				return nil
			}
			return m.act(t, l, proto.OpApprove, proto.Approve{Session: t.Session.ID, Digest: m.digest, Option: o.ID, Key: rand.Text()})
		}
	}
	return nil
}

// act makes a request over the connection that is open, and tells what came of
// it.
func (m *model) act(t source.Target, l *source.Link, op proto.Op, request any) tea.Cmd {
	if l == nil {
		m.note = t.Name() + " is not reached now; nothing was sent"
		return nil
	}
	m.note = "sent to " + t.Name() + " …"
	return func() tea.Msg {
		var o proto.Outcome
		err := l.Call(m.ctx, op, request, &o, nil)
		switch {
		case err != nil:
			f := console.Explain(err)
			var refused *proto.Error
			if errors.As(err, &refused) {
				f = console.Explain(refusal(refused, t))
			}
			return noteMsg(t.Name() + ": " + source.Plain(f.Err.Error(), 400))
		case o.State != proto.Accepted:
			return noteMsg(t.Name() + ": not confirmed: " + source.Plain(o.Reason, 400))
		}
		return noteMsg(t.Name() + ": accepted: " + source.Plain(o.Evidence, 400))
	}
}

func (m *model) refresh() tea.Cmd {
	t, l, ok := m.chosen()
	if !ok || l == nil {
		return nil
	}
	return func() tea.Msg {
		if err := l.Call(m.ctx, proto.OpRefresh, proto.Refresh{Session: t.Session.ID}, nil, nil); err != nil {
			return noteMsg(source.Plain(err.Error(), 400))
		}
		return noteMsg("looked again at " + t.Name())
	}
}

// show fetches the conversation, or the scrollback, and marks the session seen.
func (m *model) show() tea.Cmd {
	t, l, ok := m.chosen()
	if !ok {
		return nil
	}
	if l == nil {
		m.note = t.Name() + " is not reached now"
		return nil
	}
	return func() tea.Msg {
		lines, err := readSession(m.ctx, t, l)
		if err != nil {
			return noteMsg(source.Plain(err.Error(), 400))
		}
		// Only what the person is shown counts as seen; a failure shows at once.
		if err := l.Call(m.ctx, proto.OpSeen, proto.On{Session: t.Session.ID}, nil, nil); err != nil {
			return noteMsg(source.Plain(err.Error(), 400))
		}
		return detailMsg(lines)
	}
}

// attach asks how to attach, and then runs that.
func (m *model) attach() tea.Cmd {
	t, l, ok := m.chosen()
	if !ok {
		return nil
	}
	if l == nil {
		m.note = t.Name() + " is not reached now"
		return nil
	}
	return func() tea.Msg {
		dir, err := m.app.Dir()
		if err != nil {
			return noteMsg(source.Plain(err.Error(), 400))
		}
		args, err := attachCommand(m.ctx, m.app, m.list.Connection, dir, t, false)
		if err != nil {
			return noteMsg(source.Plain(err.Error(), 400))
		}
		return attachMsg{args, t.Source.Machine == nil, t.Name()}
	}
}

// run shows the terminal in place of the list, which comes back after it.
func (m *model) run(msg attachMsg) tea.Cmd {
	cmd := exec.CommandContext(m.ctx, msg.args[0], msg.args[1:]...)
	cmd.Env = m.app.Environ
	if msg.own {
		cmd.Env = withoutTmux(cmd.Env)
	}
	t := &terminal{Cmd: cmd, name: msg.name}
	return tea.Exec(t, func(err error) tea.Msg {
		switch why := source.Plain(t.said.last(), 300); {
		case err == nil:
			return noteMsg("")
		case why != "":
			return noteMsg("the terminal ended: " + why)
		}
		return noteMsg("the terminal ended: " + source.Plain(err.Error(), 300))
	})
}

// terminal is a command that takes the whole terminal. It says what happens
// while nothing is shown yet: ssh on a bad link takes seconds.
type terminal struct {
	*exec.Cmd
	name string
	said tail
}

// SetStdin is called by the library.
func (t *terminal) SetStdin(r io.Reader) { t.Stdin = r }

// SetStdout is called by the library.
func (t *terminal) SetStdout(w io.Writer) {
	t.Stdout = w
	fmt.Fprintf(w, "attaching to %s; tmux's own key for detaching (C-b d) comes back here\r\n", source.Plain(t.name, 200))
}

// SetStderr is called by the library. What is said there is kept too: the list
// covers it when it comes back.
func (t *terminal) SetStderr(w io.Writer) { t.Stderr = io.MultiWriter(w, &t.said) }

// tail keeps the end of what is written to it.
type tail []byte

// maxTail holds the last words of ssh, which are one line.
const maxTail = 1024

func (t *tail) Write(p []byte) (int, error) {
	*t = append(*t, p...)
	*t = (*t)[max(0, len(*t)-maxTail):]
	return len(p), nil
}

// last is the last line.
func (t tail) last() string {
	lines := strings.Split(strings.TrimSpace(strings.ReplaceAll(string(t), "\r", "\n")), "\n")
	return lines[len(lines)-1]
}

// body is how many lines lie between head and foot.
func (m *model) body() int { return max(1, m.height-3) }

// View is called by the library.
func (m *model) View() tea.View {
	v := tea.NewView(strings.Join(m.lines(time.Now()), "\n"))
	v.AltScreen = true
	v.WindowTitle = "holdfast sessions"
	return v
}

// lines is the picture.
func (m *model) lines(now time.Time) []string {
	out := []string{m.head(now)}
	switch m.mode {
	case reading:
		out = append(out, m.detail[min(m.top, len(m.detail)):min(m.top+m.body(), len(m.detail))]...)
	case choosing:
		out = append(out, m.detail[:min(m.body(), len(m.detail))]...)
	default:
		out = append(out, m.table(now)...)
	}
	for len(out) < m.height-2 {
		out = append(out, "")
	}
	out = append(out[:max(1, m.height-2)], m.foot()...)
	for i, line := range out {
		out[i] = ansi.Truncate(line, m.width, "…")
	}
	return out
}

func (m *model) head(now time.Time) string {
	waiting := 0
	for _, r := range m.rows {
		if r.Status.State == session.Waiting {
			waiting++
		}
	}
	head := fmt.Sprintf("%d sessions, %d waiting", len(m.rows), waiting)
	if len(m.rows) == 1 {
		head = fmt.Sprintf("1 session, %d waiting", waiting)
	}
	if t, _, ok := m.chosen(); ok && (m.mode == reading || m.mode == choosing) {
		head = strings.TrimPrefix(m.onName+"/"+t.Session.Name, "/") + "   " + head
	}
	for _, u := range m.machines {
		if u.Err != nil {
			head += "   not reached: " + m.seen.Away(u.Source, u.Err).Words(now)
		}
	}
	return ansi.NewStyle().Bold().Styled(source.Plain(head, 400))
}

// table draws the rows around the chosen one.
func (m *model) table(now time.Time) []string {
	if len(m.rows) == 0 {
		return []string{"", "  nothing here yet"}
	}
	cells := source.Columns(source.Rows(m.rows, now))
	first := 0
	if m.at >= m.body() {
		first = m.at - m.body() + 1
	}
	var out []string
	for i := first; i < len(cells) && len(out) < m.body(); i++ {
		line := cells[i]
		switch r := m.rows[i]; {
		case i == m.at:
			line = ansi.NewStyle().Reverse(true).Styled("> " + line)
		case m.machines[r.Machine].Err != nil:
			line = ansi.NewStyle().Faint().Styled("  " + line) // as it was known last
		case r.Status.State == session.Waiting:
			line = ansi.NewStyle().Bold().Styled("  " + line)
		default:
			line = "  " + line
		}
		out = append(out, line)
	}
	return out
}

// foot is what can be done, and what came of the last action.
func (m *model) foot() []string {
	note := m.note
	switch m.mode {
	case writing:
		t, _, ok := m.chosen()
		shown := string(m.input)
		if !ok {
			return []string{ended + ": " + source.Plain(shown, 2000), "esc leaves"}
		}
		if t.Session.Status.Kind == session.Password {
			shown = strings.Repeat("*", len(m.input))
		}
		return []string{"reply to " + t.Name() + ": " + source.Plain(shown, 2000) + "▏", "enter sends   alt+enter new line   esc leaves"}
	case choosing:
		return []string{note, "the option's own key answers   esc leaves"}
	case reading:
		return []string{note, "↑↓ scroll   esc back"}
	}
	return []string{note, "enter show   y answer dialog   r reply   a attach   u look again   q quit"}
}

// readSession is the conversation of a session as lines, or its scrollback.
func readSession(ctx context.Context, t source.Target, l *source.Link) ([]string, error) {
	lines, err := conversationLines(ctx, t, l)
	var refused *proto.Error
	if errors.As(err, &refused) && (refused.Code == proto.CodeNotFound || refused.Code == proto.CodeUnclear) {
		return scrollbackLines(ctx, t, l)
	}
	return lines, err
}
