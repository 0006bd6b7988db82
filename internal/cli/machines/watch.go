package machines

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/charmbracelet/x/ansi"
	"golang.org/x/term"

	"holdfast/internal/client"
	"holdfast/internal/client/feed"
	"holdfast/internal/console"
	"holdfast/internal/wire"
)

// ageInterval is how often a table on a terminal is drawn anew although nothing
// has changed: ages grow.
const ageInterval = 5 * time.Second

// The events of machines --watch --json.
const (
	eventMachine = "machine"
	eventGone    = "gone"   // the account has the machine no more
	eventNotice  = "notice" // the relay's operator says something
	eventFeed    = "feed"   // the feed came or went; while it is away, what was said is stale
)

// machineEvent, noticeEvent and feedEvent are the lines of --watch --json.
type machineEvent struct {
	Event string `json:"event"`
	machineLine
}

type noticeEvent struct {
	Event   string `json:"event"`
	Relay   string `json:"relay"`
	Account string `json:"account"`
	wire.NoticeInfo
}

type feedEvent struct {
	Event   string `json:"event"`
	Relay   string `json:"relay"`
	Account string `json:"account"`
	Live    bool   `json:"live"`
	Error   string `json:"error,omitempty"`
	Since   string `json:"since,omitempty"` // from when on what was said is stale
}

// followed is one account that is followed.
type followed struct {
	relayAccount
	known []client.Machine
	feed  *feed.Feed

	state feed.State
	asked bool // something was heard, good or bad
	// What was printed last.
	live    bool
	told    bool
	printed map[string]string
	shown   map[string]bool // notices
}

// news is a state of one of them, or its end.
type news struct {
	of    *followed
	state feed.State
	end   error
	over  bool
}

// follow prints what changes in some accounts until ctx ends, or until every
// relay has refused for good.
func (c *Machines) follow(ctx context.Context, a *console.App, accounts map[relayAccount][]client.Machine) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	dialer := a.Dialer(c.Connection)
	heard := make(chan news)
	say := func(n news) {
		select {
		case heard <- n:
		case <-ctx.Done():
		}
	}
	var all []*followed
	for key, known := range accounts {
		f := &followed{relayAccount: key, known: known, printed: map[string]string{}, shown: map[string]bool{}}
		var targets []client.Target
		for _, m := range known {
			t, err := m.Target("")
			if err != nil {
				return err
			}
			targets = append(targets, t)
		}
		var err error
		if f.feed, err = feed.New(dialer, targets, func(s feed.State) { say(news{of: f, state: s}) }); err != nil {
			return err
		}
		all = append(all, f)
		// Ends with ctx, which the deferred cancel ends; waited for.
		wg.Go(func() { say(news{of: f, end: f.feed.Run(ctx), over: true}) })
	}
	slices.SortFunc(all, func(x, y *followed) int { return cmp.Compare(x.relay+x.account, y.relay+y.account) })
	w := &watcher{command: c, app: a, all: all}
	if !a.JSON && term.IsTerminal(int(a.Out.Fd())) {
		w.screen = &screen{out: a.Out, size: func() (int, int) {
			columns, rows, err := term.GetSize(int(a.Out.Fd()))
			if err != nil {
				return 80, 24
			}
			return columns, rows
		}}
	}
	age := time.NewTicker(ageInterval)
	defer age.Stop()
	var ended error
	for running := len(all); running > 0; {
		select {
		case <-ctx.Done():
			return nil
		case n := <-heard:
			if n.over {
				running--
				ended = errors.Join(ended, n.end)
				continue
			}
			n.of.state, n.of.asked = n.state, true
			if err := w.show(n.of); err != nil {
				return err
			}
		case <-age.C:
			if w.screen != nil {
				if err := w.draw(); err != nil {
					return err
				}
			}
		}
	}
	return ended
}

// watcher prints.
type watcher struct {
	command *Machines
	app     *console.App
	all     []*followed
	screen  *screen // nil where lines are printed
}

// lines are an account's machines as they are known.
func (f *followed) lines() []machineLine {
	var got []wire.MachineInfo
	for _, m := range f.state.Machines {
		got = append(got, m.MachineInfo)
	}
	var failed error
	if f.state.Machines == nil {
		failed = cmp.Or(f.state.Err, errors.New("not asked yet"))
	}
	lines := merge(f.relay, f.known, got, failed)
	for i := range lines {
		lines[i].ahead = f.state.Ahead
	}
	slices.SortFunc(lines, func(x, y machineLine) int { return strings.Compare(x.Name, y.Name) })
	return lines
}

// stale says in words since when and why what is shown is not the present.
func (f *followed) stale(now time.Time) string {
	switch {
	case f.state.Live || !f.asked:
		return ""
	case f.state.Heard.IsZero():
		return fmt.Sprintf("relay %s has not answered yet: %s; trying again", f.relay, why(f.state.Err))
	}
	return fmt.Sprintf("relay %s was last heard %s, so this is stale: %s; trying again", f.relay, console.Ago(f.state.Heard, now), why(f.state.Err))
}

// why is an error without what a person should do about it: the feed does it.
func why(err error) string {
	var failure *client.Failure
	if errors.As(err, &failure) {
		err = failure.Err
	}
	return console.OneLine(err.Error())
}

// show prints what is new in one account.
func (w *watcher) show(f *followed) error {
	var err error
	switch {
	case w.screen != nil:
		err = w.draw()
	case w.app.JSON:
		err = w.emit(f)
	default:
		err = w.print(f)
	}
	if err == nil && w.command.Ack {
		for _, n := range f.state.Notices {
			f.feed.Acknowledge(n.ID)
		}
	}
	return err
}

// news gives what was not printed yet: whether the feed came or went, and
// notices.
func (f *followed) news() (turned bool, notices []wire.NoticeInfo) {
	turned = !f.told || f.live != f.state.Live
	f.told, f.live = true, f.state.Live
	for _, n := range f.state.Notices {
		if !f.shown[n.ID] {
			f.shown[n.ID] = true
			notices = append(notices, n)
		}
	}
	return turned, notices
}

// emit prints one JSON object for each thing that has changed.
func (w *watcher) emit(f *followed) error {
	var out []any
	turned, notices := f.news()
	if turned {
		e := feedEvent{Event: eventFeed, Relay: f.relay, Account: f.account, Live: f.state.Live}
		if f.state.Err != nil {
			e.Error = why(f.state.Err)
		}
		if !f.state.Live && !f.state.Heard.IsZero() {
			e.Since = f.state.Heard.UTC().Format(time.RFC3339)
		}
		out = append(out, e)
	}
	if f.state.Machines != nil {
		there := map[string]bool{}
		for _, l := range f.lines() {
			there[l.Name] = true
			e := machineEvent{eventMachine, l}
			b, err := json.Marshal(e)
			if err != nil {
				return fmt.Errorf("encode machine %q: %w", l.Name, err)
			}
			if f.printed[l.Name] != string(b) {
				f.printed[l.Name] = string(b)
				out = append(out, e)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(f.printed)) {
			if !there[name] {
				delete(f.printed, name)
				out = append(out, machineEvent{eventGone, machineLine{Name: name, Relay: f.relay}})
			}
		}
	}
	for _, n := range notices {
		out = append(out, noticeEvent{eventNotice, f.relay, f.account, n})
	}
	for _, v := range out {
		if err := w.app.Emit(v); err != nil {
			return err
		}
	}
	return nil
}

// print prints a line for each change of state.
func (w *watcher) print(f *followed) error {
	now := time.Now()
	stamp := now.Local().Format("15:04:05")
	again := f.told
	turned, notices := f.news()
	switch words := f.stale(now); {
	case turned && words != "":
		w.app.Say("%s  %s", stamp, words)
	case turned && again:
		w.app.Say("%s  relay %s is heard again", stamp, f.relay)
	}
	if f.state.Machines != nil {
		if err := w.command.printAll(w.app, changed(f.printed, f.lines())); err != nil {
			return err
		}
	}
	for _, n := range notices {
		w.app.Say("%s  %s", stamp, noticeWords(f, n))
	}
	return nil
}

// noticeWords is a notice for a person; whoever wrote it, a terminal is safe
// from it.
func noticeWords(f *followed, n wire.NoticeInfo) string {
	return fmt.Sprintf("notice of relay %s (%s): %s", f.relay, n.At.Local().Format("2006-01-02 15:04"), wire.CleanText(n.Text, wire.MaxNoticeBytes))
}

// draw draws the table of all accounts.
func (w *watcher) draw() error {
	now := time.Now()
	var rows [][]string
	var below []string
	for _, f := range w.all {
		for _, l := range f.lines() {
			rows = append(rows, []string{l.Name, l.words(now)})
		}
		if words := f.stale(now); words != "" {
			below = append(below, words)
		}
		for _, n := range f.state.Notices {
			below = append(below, noticeWords(f, n))
		}
	}
	var b strings.Builder
	console.Table(&b, rows)
	text := strings.TrimRight(b.String(), "\n")
	if len(below) > 0 {
		text += "\n\n" + strings.Join(below, "\n")
	}
	return w.screen.draw(strings.Split(text, "\n"))
}

// screen draws lines over those that it drew before.
type screen struct {
	out   io.Writer
	size  func() (columns, rows int)
	drawn int // lines
}

// draw replaces what was drawn. A line is cut at the terminal's width, and lines
// at its height, since what scrolls away cannot be drawn over.
func (s *screen) draw(lines []string) error {
	columns, rows := s.size()
	if rows = max(rows-1, 1); len(lines) > rows {
		lines = append(slices.Clone(lines[:rows-1]), fmt.Sprintf("(%d more lines; make the terminal higher)", len(lines)-rows+1))
	}
	var b strings.Builder
	if s.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", s.drawn)
	}
	b.WriteString("\r\x1b[J")
	for _, l := range lines {
		if columns > 0 {
			l = ansi.Truncate(l, columns, "…") // by cells: a wide character takes two
		}
		b.WriteString(l + "\n")
	}
	s.drawn = len(lines)
	_, err := io.WriteString(s.out, b.String())
	return err
}
