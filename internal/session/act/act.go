// Package act types into sessions for a device: replies, approvals, keys and
// passwords, and says whether the program was seen to take them. It also keeps
// uploaded files, and starts and ends sessions.
//
// It never answers a dialog that it has not read at that very moment, never
// presses Enter again because nothing happened, and keeps no text: what was
// typed reaches no log and no error.
//
// What a caller will get wrong: an action that has begun goes on when its caller
// leaves, and is found again by its key; and an error means that nothing was
// typed, while "unconfirmed" means that something was.
package act

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"holdfast/internal/session"
	"holdfast/internal/session/act/journal"
	"holdfast/internal/session/proto"
	"holdfast/internal/session/screen"
)

const (
	// pollInterval is how often the screen is looked at while an action waits to
	// see something. A look costs a tmux command of some milliseconds; a person
	// does not see a tenth of a second.
	pollInterval = 100 * time.Millisecond
	// drawnWithin is how long a tool may take to show its input box, which is away
	// while it starts or redraws.
	drawnWithin = 1500 * time.Millisecond
	// typedWithin is how long a pasted text may take to show up: a tool that
	// renders under load takes a second.
	typedWithin = 4 * time.Second
	// settleTime lies between the paste and Enter, which some tools take for a
	// part of the paste when it comes at once.
	settleTime = 120 * time.Millisecond
	// acceptedWithin is how long the program may take to be seen taking a text.
	// Half is less than a slow tool's start of a turn, twice makes a person send
	// it again by hand.
	acceptedWithin = 10 * time.Second
	// dialogWithin is the same for a dialog, which goes at once or not at all.
	dialogWithin = 6 * time.Second
	// actionTime bounds an action altogether, so that a tmux server that hangs
	// does not hold a pane for ever.
	actionTime = 40 * time.Second
)

// Look is what a pane shows at one moment.
type Look struct {
	Tool   string // as in session.Session
	PID    int    // of the tool or foreground program
	Screen screen.Screen
	InMode bool   // copy mode eats keys
	Dead   bool   // the process ended
	Secret bool   // echo is off and lines are read: a password is asked for
	Mark   string // tells dialogs with the same words apart, see screen.Digest
}

// Pane is one pane of a machine.
type Pane interface {
	// Look reads the pane now.
	Look(ctx context.Context) (Look, error)
	// LeaveMode ends copy mode.
	LeaveMode(ctx context.Context) error
	// Paste puts text in as one paste, bracketed where the program asked for that.
	Paste(ctx context.Context, text []byte) error
	// Type types text as keys, visible in no list of processes.
	Type(ctx context.Context, text []byte) error
	// Keys presses keys by tmux's names, in order.
	Keys(ctx context.Context, keys ...string) error
}

// Options of New.
type Options struct {
	// Pane finds a pane; required.
	Pane func(id session.ID) (Pane, bool)
	// Session is what is known of a session without looking at its screen: what
	// its registry, hooks and transcript say. Nil means nothing.
	Session func(id session.ID) (session.Session, bool)
	// Changed, if not nil, is told of a session on which something was done.
	Changed func(id session.ID)
	// Journal is what keeps actions from being done twice when this process is
	// killed; nil means that nothing does.
	Journal *journal.Journal
	// Log is told when the journal cannot be written; nil means silence.
	Log *slog.Logger
}

// Actor acts. It serves all devices of a machine, so that two of them cannot
// answer one dialog.
type Actor struct {
	o      Options
	salt   []byte // of the digests that tell one text from another
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	// mu guards the fields below.
	mu      sync.Mutex
	closed  bool
	busy    map[session.ID]*lock
	answers map[session.ID]uint64 // how many dialogs were answered in a pane
	done    map[string]*entry
	order   []string // keys of done, oldest first
}

// New makes an Actor. Close ends it.
func New(o Options) (*Actor, error) {
	if o.Pane == nil {
		return nil, errors.New("act on sessions: no panes")
	}
	if o.Session == nil {
		o.Session = func(session.ID) (session.Session, bool) { return session.Session{}, false }
	}
	if o.Changed == nil {
		o.Changed = func(session.ID) {}
	}
	a := &Actor{
		o: o, salt: make([]byte, sha256.Size), busy: map[session.ID]*lock{},
		answers: map[session.ID]uint64{}, done: map[string]*entry{},
	}
	rand.Read(a.salt) // never fails
	if o.Journal != nil {
		a.salt = o.Journal.Salt()
	}
	if a.o.Log == nil {
		a.o.Log = slog.New(slog.DiscardHandler)
	}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	return a, nil
}

// Close stops what is being done and waits for it.
func (a *Actor) Close() {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.cancel()
	a.wg.Wait()
}

// Forget drops what is known of a pane that is gone.
func (a *Actor) Forget(id session.ID) {
	a.mu.Lock()
	delete(a.answers, id)
	a.mu.Unlock()
}

// Outward is a session as devices may see it: its dialog's digest also says how
// many dialogs were answered there, so that an approval which comes late never
// answers a second dialog with the same words.
func (a *Actor) Outward(s session.Session) session.Session {
	s.Status.Dialog = a.outward(s.ID, s.Status.Dialog)
	return s
}

func (a *Actor) outward(id session.ID, d *session.Dialog) *session.Dialog {
	if d == nil || d.Digest == "" {
		return d
	}
	n := uint64(0)
	if a.o.Journal != nil {
		n = a.o.Journal.Answers(id)
	} else {
		a.mu.Lock()
		n = a.answers[id]
		a.mu.Unlock()
	}
	if n == 0 {
		return d
	}
	h := sha256.Sum256(binary.BigEndian.AppendUint64([]byte("answered "+d.Digest+" "), n))
	c := *d
	c.Digest = "d" + base64.RawURLEncoding.EncodeToString(h[:24])[:31] // a letter first: it is typed behind a flag
	return &c
}

// answered notes that a dialog of a pane got its answer.
func (a *Actor) answered(id session.ID) {
	if a.o.Journal != nil {
		if err := a.o.Journal.Answered(id); err != nil {
			a.o.Log.Error("an answer cannot be noted", "err", err)
		}
		return
	}
	a.mu.Lock()
	a.answers[id]++
	a.mu.Unlock()
}

// lock lets one action at a time into a pane.
type lock struct {
	held    chan struct{} // capacity 1
	waiting int
}

func (a *Actor) hold(ctx context.Context, id session.ID) (release func(), err error) {
	a.mu.Lock()
	l := a.busy[id]
	if l == nil {
		l = &lock{held: make(chan struct{}, 1)}
		a.busy[id] = l
	}
	l.waiting++
	a.mu.Unlock()
	leave := func() {
		a.mu.Lock()
		if l.waiting--; l.waiting == 0 {
			delete(a.busy, id)
		}
		a.mu.Unlock()
	}
	select {
	case l.held <- struct{}{}:
		return func() { <-l.held; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, proto.Errorf(proto.CodeFailed, "another action is still going on in this session")
	}
}

// view is a look with what it says.
type view struct {
	Look
	screen.Reading
	base string // the digest of the dialog's words alone
}

// look reads a pane and what it shows. The dialog carries the outward digest.
func (a *Actor) look(ctx context.Context, id session.ID, p Pane) (view, error) {
	l, err := p.Look(ctx)
	if err != nil {
		return view{}, err
	}
	v := view{Look: l, Reading: screen.Read(l.Tool, l.Screen)}
	if l.Dead {
		v.Reading = screen.Reading{State: session.Exited}
	}
	if d := v.Dialog; d != nil {
		c := *d
		v.base = screen.Digest(id, l.PID, l.Tool, "", d)
		c.Digest = screen.Digest(id, l.PID, l.Tool, l.Mark, d)
		v.Dialog = a.outward(id, &c)
	}
	return v, nil
}

// secret reports whether a password is asked for.
func (v view) secret() bool {
	return v.Secret || v.State == session.Waiting && v.Kind == session.Password
}

// ready makes a pane ready to be typed into, and looks at it.
func (a *Actor) ready(ctx context.Context, id session.ID) (Pane, view, error) {
	p, ok := a.o.Pane(id)
	if !ok {
		return nil, view{}, proto.Errorf(proto.CodeNoSession, "there is no such session any more")
	}
	v, err := a.look(ctx, id, p)
	if err == nil && v.InMode {
		if err = p.LeaveMode(ctx); err == nil {
			v, err = a.look(ctx, id, p)
		}
	}
	if err != nil {
		return nil, view{}, fmt.Errorf("read the session's screen: %w", err)
	}
	if v.Dead {
		return nil, view{}, proto.Errorf(proto.CodeNoSession, "the program in this session has ended")
	}
	return p, v, nil
}

// fullScreen are the tools that draw dialogs and an input box of their own: a
// key that meets a dialog of theirs answers it at once.
var fullScreen = map[string]bool{
	"claude": true, "codex": true, "gemini": true, "opencode": true,
	"amp": true, "cursor": true, "goose": true, "amazonq": true,
}

// boxed are those of which every screen that takes text shows an input box that
// package screen recognises.
var boxed = map[string]bool{"claude": true, "codex": true, "gemini": true, "opencode": true}

// Clean is the text that is typed: without control characters other than line
// breaks and tabs, so that nothing in it ends the paste or moves the cursor, and
// without line breaks at its end, which Enter stands for.
func Clean(text string) string {
	text = strings.ReplaceAll(text, "\r\n", "\n")
	text = strings.Map(func(r rune) rune {
		switch {
		case r == '\r' || r == '\u2028' || r == '\u2029':
			return '\n'
		case r == '\n' || r == '\t':
			return r
		case r < 0x20 || r >= 0x7f && r < 0xa0:
			return -1
		}
		return r // an invalid byte has become U+FFFD
	}, text)
	return strings.TrimRight(text, "\n")
}

// cleanSecret takes out of a password what no keyboard types.
func cleanSecret(text string) string {
	if !utf8.ValidString(text) {
		text = strings.ToValidUTF8(text, "")
	}
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r >= 0x7f && r < 0xa0 {
			return -1
		}
		return r
	}, strings.TrimRight(text, "\r\n"))
}

// fingerprint tells texts apart without keeping them.
func (a *Actor) fingerprint(parts ...string) [sha256.Size]byte {
	h := hmac.New(sha256.New, a.salt)
	for _, p := range parts {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(p))))
		h.Write([]byte(p))
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// sleep waits, or fails with ctx.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// await looks until seen says so or the time is over. The last look is returned
// in any case; found tells which it was.
func (a *Actor) await(ctx context.Context, id session.ID, p Pane, within time.Duration, seen func(view) bool) (v view, found bool, err error) {
	end := time.Now().Add(within)
	for {
		if v, err = a.look(ctx, id, p); err != nil {
			return v, false, err
		}
		if seen(v) {
			return v, true, nil
		}
		if !time.Now().Before(end) {
			return v, false, nil
		}
		if err := sleep(ctx, pollInterval); err != nil {
			return v, false, err
		}
	}
}
