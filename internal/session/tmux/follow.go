package tmux

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"time"

	"holdfast/internal/session/tmux/attach"
	"holdfast/internal/session/tmux/child"
)

var (
	errClientEnded = errors.New("the control client ended")
	// ErrMoved says that tmux moved the client to another session, because its
	// own ended: what it would report is not what was asked for.
	ErrMoved = errors.New("the session of the control client ended")
)

const (
	// floodBytes is how much of one pane is read within floodWindow before tmux
	// is told to hold the rest back. A tool that redraws its screen ten times a
	// second stays below 64 KiB a second; a program that prints as fast as it
	// can makes 50 MB, and without the pause tmux spent three times as long on it.
	// At half a large diff is skipped, at double a flood costs twice the CPU.
	floodBytes  = 256 << 10
	floodWindow = time.Second
	// maxLine bounds one line of the control protocol. tmux sends output in
	// pieces of a few KiB; a line of a listing is a few hundred bytes.
	maxLine = 1 << 20
)

// FollowOptions say what to do with what a session reports. The functions are
// called from the goroutine that is in Follow, one at a time, and must not
// block: tmux makes the programs wait for a client that does not read.
type FollowOptions struct {
	Session string // required: $1
	// Output gets the raw bytes that a pane of the session wrote; they are valid
	// during the call. lost says that bytes before these were skipped.
	Output func(pane string, data []byte, lost bool)
	// Change is called for every other notification, with its name: window-add,
	// session-changed, pane-mode-changed and so on.
	Change func(name string)
	// Started is told the client's process id, where it has a process.
	Started func(pid int)
}

// Follow attaches a control client to one session and reports until ctx ends,
// the session ends or tmux ends the client. It takes no part in the size of
// windows, is read-only and leaves the session's environment alone. While it is
// attached, the server's commands go through it.
//
// It is not free of effects, so the caller chooses the sessions: tmux counts
// the client as attached, and tells the program in the session's current pane
// that it has the focus.
func (s *Server) Follow(ctx context.Context, o FollowOptions) error {
	if !s.Info().atLeast(3, 2) {
		return fmt.Errorf("follow session %s: tmux %s has no flow control, 3.2 is needed", o.Session, s.Info().Version)
	}
	if !sessionID.MatchString(o.Session) {
		return fmt.Errorf("follow session %q: %w", cut(o.Session, 40), ErrNoPane)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l, err := s.open(ctx, o)
	if err != nil {
		return fmt.Errorf("follow session %s: %w", o.Session, err)
	}
	c := &client{server: s, o: o, stdin: l.in, ended: make(chan struct{}), panes: map[string]*flow{}}
	// The closer ends with Follow, which waits for it. Closing stdin makes the
	// server let the client go; one that hangs cannot.
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		<-ctx.Done()
		l.in.Close()
		select {
		case <-c.ended:
		case <-time.After(time.Second):
			l.cut()
		}
	}()
	err = c.read(ctx, l.out)
	s.forget(c)
	c.fail()
	close(c.ended)
	cancel()
	<-closed
	l.end()
	if cause := context.Cause(ctx); err == nil && cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	return err
}

var sessionID = regexp.MustCompile(`^\$[0-9]{1,10}$`)

// link is a control client's connection to the server.
type link struct {
	in  io.WriteCloser
	out io.ReadCloser
	cut func() // ends it although the server hangs
	end func() // frees it, when it has ended or is to end
}

// attachArgs attach without a part in the size of windows, and leave the
// session's environment alone.
func attachArgs(session string) []string {
	return []string{"attach-session", "-E", "-f", "ignore-size,read-only,pause-after=2", "-t", session}
}

// open attaches: without a process where tmux's own client endangers the server,
// see package attach.
func (s *Server) open(ctx context.Context, o FollowOptions) (link, error) {
	info := s.Info()
	if !info.atLeast(3, 7) {
		c, err := attach.Open(ctx, attach.Options{Socket: s.socket, Args: attachArgs(o.Session), Marked: info.atLeast(3, 6)})
		if err != nil {
			return link{}, err
		}
		return link{in: c.In, out: c.Out, cut: c.Close, end: c.Close}, nil
	}
	cmd := exec.Command(s.program, append([]string{"-u", "-S", s.socket, "-N", "-C"}, attachArgs(o.Session)...)...)
	cmd.Env = s.environ
	child.With(cmd)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return link{}, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return link{}, err
	}
	if err := cmd.Start(); err != nil {
		return link{}, err
	}
	if o.Started != nil {
		o.Started(cmd.Process.Pid)
	}
	return link{
		in: stdin, out: stdout,
		cut: func() {
			cmd.Process.Kill()
			// The server holds the other end of the pipe too, and hangs.
			stdout.Close()
		},
		// The client has closed its output or was killed; it is not waited for
		// longer than that takes.
		end: func() {
			cmd.Process.Kill()
			cmd.Wait()
		},
	}, nil
}

// forget makes commands go another way once this client is gone.
func (s *Server) forget(c *client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run == runner(c) {
		s.run = nil
	}
}

// adopt lets a client run the commands, when none does.
func (s *Server) adopt(c *client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run == nil {
		s.run = c
	}
}

// client is a control client.
type client struct {
	server *Server
	o      FollowOptions
	ended  chan struct{}
	panes  map[string]*flow // of the reading goroutine alone

	mu      sync.Mutex
	stdin   io.WriteCloser
	waiting []chan answer // in the order of the commands
	failed  bool
}

type answer struct {
	body []byte
	err  error
}

// flow is what is known of one pane's output.
type flow struct {
	began  time.Time // of the window that is counted
	bytes  int
	paused bool
	resume time.Time
	lost   bool // the next bytes do not follow on the last
}

// read reads the client's output to its end.
func (c *client) read(ctx context.Context, stdout io.Reader) error {
	lines := make(chan []byte)
	done := make(chan struct{})
	defer close(done)
	// The reader of the pipe ends with the pipe, which Follow's end closes, or
	// when nobody takes its lines.
	var readErr error
	go func() {
		defer close(lines)
		r := bufio.NewReaderSize(stdout, 64<<10)
		var long []byte
		for {
			part, err := r.ReadSlice('\n')
			if err == nil && long == nil {
				select {
				case lines <- bytes.TrimSuffix(part, []byte("\n")):
				case <-done:
					return
				}
				// The slice is of the reader's buffer: the receiver is done with it
				// when it asks for the next.
				select {
				case lines <- nil:
				case <-done:
					return
				}
				continue
			}
			if len(long)+len(part) > maxLine {
				readErr = fmt.Errorf("a line of more than %d bytes", maxLine)
				return
			}
			long = append(long, part...)
			if errors.Is(err, bufio.ErrBufferFull) {
				continue
			}
			if err != nil {
				return
			}
			select {
			case lines <- bytes.TrimSuffix(long, []byte("\n")):
			case <-done:
				return
			}
			select {
			case lines <- nil:
			case <-done:
				return
			}
			long = nil
		}
	}()
	var p parser
	resume := time.NewTimer(time.Hour)
	defer resume.Stop()
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				if ctx.Err() != nil {
					return nil
				}
				return errors.Join(errClientEnded, readErr)
			}
			err := c.line(&p, line)
			if _, ok := <-lines; err != nil || !ok {
				return errors.Join(err, readErr)
			}
			if next := c.next(); !next.IsZero() {
				resume.Reset(time.Until(next))
			}
		case <-resume.C:
			c.resume(time.Now())
			if next := c.next(); !next.IsZero() {
				resume.Reset(time.Until(next))
			}
		case <-ctx.Done():
			// The pipe is read on until the client has gone, so that it can go.
			for range lines {
			}
			return nil
		}
	}
}

// next is when a held pane is let go again; zero for none.
func (c *client) next() time.Time {
	var at time.Time
	for _, f := range c.panes {
		if f.paused && (at.IsZero() || f.resume.Before(at)) {
			at = f.resume
		}
	}
	return at
}

func (c *client) resume(now time.Time) {
	for pane, f := range c.panes {
		if f.paused && !now.Before(f.resume) {
			*f = flow{lost: true}
			c.send("refresh-client -A '" + pane + ":continue'")
		}
	}
}

// parser follows the blocks of the control protocol.
type parser struct {
	guard []byte // the numbers of the open block; nil outside of one
	ours  bool   // it answers a command of this client
	body  []byte
	over  bool
}

func (c *client) line(p *parser, line []byte) error {
	if p.guard != nil {
		if rest, ok := bytes.CutPrefix(line, []byte("%end ")); ok && bytes.Equal(rest, p.guard) {
			c.answered(p, nil)
			return nil
		}
		if rest, ok := bytes.CutPrefix(line, []byte("%error ")); ok && bytes.Equal(rest, p.guard) {
			c.answered(p, failure(string(p.body), errors.New("tmux refused the command")))
			return nil
		}
		if len(p.body)+len(line) > maxOutput {
			p.over = true
			return nil
		}
		p.body = append(append(p.body, line...), '\n')
		return nil
	}
	if len(line) == 0 || line[0] != '%' {
		return nil
	}
	name, rest, _ := bytes.Cut(line[1:], []byte(" "))
	switch string(name) {
	case "begin":
		p.guard = bytes.Clone(rest)
		p.body, p.over = nil, false
		// The last number is 1 where the client sent the command.
		p.ours = bytes.HasSuffix(rest, []byte(" 1"))
	case "output":
		pane, data, _ := bytes.Cut(rest, []byte(" "))
		c.output(string(pane), data)
	case "extended-output":
		pane, more, _ := bytes.Cut(rest, []byte(" "))
		if _, data, ok := bytes.Cut(more, []byte(" : ")); ok {
			c.output(string(pane), data)
		}
	case "pause":
		c.hold(string(rest), time.Now())
	case "continue", "subscription-changed":
	case "exit":
		return errClientEnded
	case "session-changed":
		id, _, _ := bytes.Cut(rest, []byte(" "))
		if string(id) != c.o.Session {
			return ErrMoved
		}
		c.server.adopt(c)
		fallthrough
	default:
		if c.o.Change != nil {
			c.o.Change(string(name))
		}
	}
	return nil
}

// output hands on what a pane wrote, and holds a pane that floods.
func (c *client) output(pane string, data []byte) {
	if !ValidPane(pane) {
		return
	}
	now := time.Now()
	f := c.panes[pane]
	if f == nil {
		if len(c.panes) >= maxPanes {
			return
		}
		f = &flow{}
		c.panes[pane] = f
	}
	if f.paused {
		return // sent before tmux heard of the pause
	}
	if now.Sub(f.began) >= floodWindow {
		f.began, f.bytes = now, 0
	}
	f.bytes += len(data)
	if c.o.Output != nil {
		c.o.Output(pane, unescape(data), f.lost)
	}
	f.lost = false
	if f.bytes > floodBytes {
		c.hold(pane, now)
		c.send("refresh-client -A '" + pane + ":pause'")
	}
}

func (c *client) hold(pane string, now time.Time) {
	f := c.panes[pane]
	if f == nil || f.paused {
		return
	}
	f.paused, f.resume = true, now.Add(floodWindow)
}

// unescape undoes tmux's octal escapes in place.
func unescape(b []byte) []byte {
	i := bytes.IndexByte(b, '\\')
	if i < 0 {
		return b
	}
	out := b[:i]
	for i < len(b) {
		if b[i] == '\\' && i+3 < len(b) && octal(b[i+1]) && octal(b[i+2]) && octal(b[i+3]) {
			out = append(out, (b[i+1]-'0')<<6|(b[i+2]-'0')<<3|(b[i+3]-'0'))
			i += 4
			continue
		}
		out = append(out, b[i])
		i++
	}
	return out
}

func octal(c byte) bool { return c >= '0' && c <= '7' }

// answered ends a block.
func (c *client) answered(p *parser, err error) {
	p.guard = nil
	if !p.ours {
		return
	}
	if p.over && err == nil {
		err = fmt.Errorf("tmux printed more than %d bytes", maxOutput)
	}
	c.mu.Lock()
	if len(c.waiting) == 0 {
		c.mu.Unlock()
		return
	}
	to := c.waiting[0]
	c.waiting = c.waiting[1:]
	c.mu.Unlock()
	if to != nil {
		to <- answer{p.body, err} // has room: one answer a channel
	}
	p.body = nil
}

// send writes one command whose answer nobody waits for.
func (c *client) send(line string) {
	c.sendAll([]string{line}, []chan answer{nil})
}

// sendAll writes commands in one piece, so that tmux runs them one after the
// other. The answers go to the channels of the same place.
func (c *client) sendAll(lines []string, to []chan answer) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed {
		return errClientEnded
	}
	c.waiting = append(c.waiting, to...)
	if _, err := io.WriteString(c.stdin, strings.Join(lines, "\n")+"\n"); err != nil {
		c.failed = true
		return errClientEnded
	}
	return nil
}

// fail tells everybody who waits that nothing will come.
func (c *client) fail() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = true
	for _, to := range c.waiting {
		if to != nil {
			to <- answer{err: errClientEnded}
		}
	}
	c.waiting = nil
}

// maxWaiting bounds the commands that wait for their answer: a server that
// does not answer would gather one a second.
const maxWaiting = 64

// command is runner: each of the commands between ";" has an answer of its own.
func (c *client) command(ctx context.Context, args ...string) ([]byte, error) {
	c.mu.Lock()
	crowded := len(c.waiting) > maxWaiting
	c.mu.Unlock()
	if crowded {
		return nil, ErrSilent
	}
	var answers []chan answer
	var lines []string
	var line []string
	flush := func() {
		lines = append(lines, strings.Join(line, " "))
		answers = append(answers, make(chan answer, 1))
		line = nil
	}
	for _, a := range args {
		if a == ";" {
			flush()
			continue
		}
		line = append(line, quote(a))
	}
	flush()
	if err := c.sendAll(lines, answers); err != nil {
		return nil, err
	}
	timer := time.NewTimer(commandTimeout)
	defer timer.Stop()
	var out []byte
	for _, to := range answers {
		select {
		case a := <-to:
			if a.err != nil {
				return nil, a.err
			}
			out = append(out, a.body...)
		case <-timer.C:
			return nil, ErrSilent
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return out, nil
}

// quote makes one argument of tmux's command language.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
