//go:build unix

package shell

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

const (
	// killGrace is the time between HUP and KILL: an editor writes its recovery
	// file in it. Half is short on a loaded machine, twice is a connection that
	// seems to hang at its end.
	killGrace = 3 * time.Second
	// killPoll is how often the group is looked for meanwhile.
	killPoll = 20 * time.Millisecond
	// quietAfterExit is how long a terminal must say nothing after its shell
	// ended before the stream ends: what the shell wrote last is there by then,
	// and a background job that holds the terminal is not waited for.
	quietAfterExit = 100 * time.Millisecond
)

// Command is what to run.
type Command struct {
	// Login runs the login shell itself; otherwise it is given Line with -c.
	Login bool
	Line  string
	// Env holds further variables, already accepted by AcceptEnv.
	Env []string
	// TTY, if not nil, asks for a pseudo-terminal.
	TTY *TTY
}

// TTY is a pseudo-terminal as the device describes it.
type TTY struct {
	Term  string
	Size  Size
	Modes []byte // RFC 4254 part 8
}

// Size is a terminal's, in characters and pixels.
type Size struct{ Cols, Rows, Width, Height uint32 }

// Exit says how a command ended.
type Exit struct {
	Code   int    // exit status, where Signal is empty
	Signal string // name without "SIG"
	Core   bool   // a core was dumped
}

// Process is a running command and its streams.
type Process struct {
	// Stdin, Stdout and Stderr are the command's streams. With a terminal
	// Stderr is nil and closing Stdin does nothing, as with OpenSSH's server.
	Stdin  io.WriteCloser
	Stdout io.Reader
	Stderr io.Reader

	cmd    *exec.Cmd
	master *os.File // nil without a terminal
	output *outputMeter
	closer []io.Closer
	exited chan struct{} // closed when exit is set
	exit   Exit

	closeOnce sync.Once
}

// Start runs a command as account.
func Start(a Account, c Command) (*Process, error) {
	signalsOnce.Do(restoreSignals)
	cmd := exec.Command(a.Shell)
	if c.Login {
		// The dash makes it a login shell.
		cmd.Args = []string{"-" + filepath.Base(a.Shell)}
	} else {
		cmd.Args = []string{filepath.Base(a.Shell), "-c", c.Line}
	}
	cmd.Dir = a.Home
	if info, err := os.Stat(a.Home); err != nil || !info.IsDir() {
		cmd.Dir = "/" // as login(1) does: better than no shell
	}
	term := ""
	if c.TTY != nil {
		term = c.TTY.Term
		if term == "" {
			term = "dumb"
		}
	}
	cmd.Env = a.environ(c.Env, term)
	p := &Process{cmd: cmd, exited: make(chan struct{})}
	var err error
	if c.TTY != nil {
		err = p.startTerminal(*c.TTY)
	} else {
		err = p.startPipes()
	}
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", a.Shell, err)
	}
	// Ends when the command does, which Close sees to.
	go func() {
		cmd.Wait() // the state says more than the error
		p.exit = exitOf(cmd.ProcessState)
		close(p.exited)
	}()
	return p, nil
}

var signalsOnce sync.Once

// restoreSignals keeps commands from being born deaf. An agent that a script
// put into the background, or nohup started, ignores INT or HUP, and what is
// ignored stays ignored across exec, while a signal with a handler does not:
// so these two get a handler that does nothing.
func restoreSignals() {
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGHUP} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal), s) // nobody reads: dropped
		}
	}
}

func (p *Process) startPipes() error {
	var theirs []*os.File
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
	}()
	fail := func(err error) error {
		for _, c := range p.closer {
			c.Close()
		}
		return err
	}
	inR, inW, err := os.Pipe()
	if err != nil {
		return fail(err)
	}
	theirs, p.closer = append(theirs, inR), append(p.closer, inW)
	outR, outW, err := os.Pipe()
	if err != nil {
		return fail(err)
	}
	theirs, p.closer = append(theirs, outW), append(p.closer, outR)
	errR, errW, err := os.Pipe()
	if err != nil {
		return fail(err)
	}
	theirs, p.closer = append(theirs, errW), append(p.closer, errR)

	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = inR, outW, errW
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := p.cmd.Start(); err != nil {
		return fail(err)
	}
	p.Stdin, p.Stdout, p.Stderr = inW, outR, errR
	return nil
}

func (p *Process) startTerminal(t TTY) error {
	master, tty, err := pty.Open()
	if err != nil {
		return err
	}
	defer tty.Close()
	if master, err = interruptible(master); err != nil {
		return err
	}
	if err = setSize(master, t.Size); err == nil {
		err = setModes(tty, t.Modes)
	}
	if err != nil {
		master.Close()
		return err
	}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = tty, tty, tty
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := p.cmd.Start(); err != nil {
		master.Close()
		return err
	}
	p.master = master
	p.output = &outputMeter{r: master}
	p.closer = []io.Closer{master}
	p.Stdin, p.Stdout = terminalInput{master}, p.output
	return nil
}

// interruptible gives a file whose Close ends a Read that is waiting. Package
// pty leaves its files in blocking mode, where it would not. It takes f over.
func interruptible(f *os.File) (*os.File, error) {
	defer f.Close()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// terminalInput does not close: the terminal ends when its output does.
type terminalInput struct{ io.Writer }

func (terminalInput) Close() error { return nil }

const (
	// flowing is how much in one read of a terminal is no answer to a key but a
	// program that prints: a line of text, and a few of its colours.
	flowing = 512
	// gather is how long more of it is waited for. A terminal gives 4 KiB a read
	// at most, and every read becomes a packet, a message on every leg and a turn
	// of the page that shows it. Twice as long is seen when a screen is redrawn.
	gather = time.Millisecond
	// gatherFlood is how long it is waited for in a flood: nobody reads what passes
	// like that, and a busy machine fills no packet in less.
	gatherFlood = 5 * time.Millisecond
	// flood is how much in a span of floodSpan is one: more than any program
	// redraws of a screen.
	flood     = 96 << 10
	floodSpan = 100 * time.Millisecond
	// gathered is what is handed on at once, with its packet less than 32 KiB.
	gathered = 32<<10 - 512
)

// terminalOutput is the side of a terminal that a program's output comes from.
type terminalOutput interface {
	io.Reader
	SetReadDeadline(time.Time) error
}

// outputMeter reads a terminal's output and knows since when it is waiting.
type outputMeter struct {
	r terminalOutput
	// mu guards the fields below.
	mu      sync.Mutex
	waiting time.Time // since when a Read is waiting; zero while none is
	ended   bool

	// Of the reader alone: what came in the present span, and in the one before.
	span         time.Time
	came, before int
}

func (o *outputMeter) Read(b []byte) (int, error) {
	o.mu.Lock()
	o.waiting = time.Now()
	o.mu.Unlock()
	n, err := o.r.Read(b)
	if err == nil && n >= flowing {
		o.count(0) // what came long ago is no flood now
		n = o.more(b, n)
	}
	o.count(n)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting = time.Time{}
	if err != nil {
		o.ended = true
		// EIO is how a terminal says that its last user closed it, ErrClosed that
		// we did: both are the end.
		err = io.EOF
	}
	return n, err
}

// count notes how much comes.
func (o *outputMeter) count(n int) {
	if now := time.Now(); now.Sub(o.span) >= floodSpan {
		o.before = o.came
		if now.Sub(o.span) >= 2*floodSpan {
			o.before = 0
		}
		o.span, o.came = now, 0
	}
	o.came += n
}

// more adds to the n bytes in b what follows them at once. What ends the terminal
// meanwhile is said by the next Read.
func (o *outputMeter) more(b []byte, n int) int {
	if len(b) > gathered {
		b = b[:gathered]
	}
	wait := gather
	if max(o.came, o.before) >= flood {
		wait = gatherFlood
	}
	// Where a terminal knows no deadlines there is nothing to gather.
	if n >= len(b) || o.r.SetReadDeadline(time.Now().Add(wait)) != nil {
		return n
	}
	for n < len(b) {
		m, err := o.r.Read(b[n:])
		n += m
		if err != nil {
			break
		}
	}
	o.r.SetReadDeadline(time.Time{})
	return n
}

// quiet reports whether everything written until a moment was read: nothing came
// for quietAfterExit since then to a reader that was waiting for it. That it has
// waited for long before says nothing: what was written last may lie there while
// the reader has not got to run yet.
func (o *outputMeter) quiet(until time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.waiting.After(until) {
		until = o.waiting
	}
	return o.ended || !o.waiting.IsZero() && time.Since(until) >= quietAfterExit
}

// readable reports whether there is something to read in a terminal.
func readable(f *os.File) bool {
	some := false
	err := withFd(f, func(fd int) error {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		_, err := unix.Poll(p, 0)
		some = p[0].Revents&unix.POLLIN != 0
		return err
	})
	return err == nil && some
}

// setSize does without package pty, which would put the file back into blocking
// mode.
func setSize(f *os.File, s Size) error {
	clamp := func(n uint32) uint16 { return uint16(min(n, 1<<16-1)) }
	w := &unix.Winsize{Col: clamp(s.Cols), Row: clamp(s.Rows), Xpixel: clamp(s.Width), Ypixel: clamp(s.Height)}
	if w.Col == 0 || w.Row == 0 {
		w.Col, w.Row = 80, 24
	}
	return withFd(f, func(fd int) error { return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, w) })
}

// withFd runs an ioctl on a file without changing its mode, as File.Fd would.
func withFd(f *os.File, ioctl func(fd int) error) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	if controlErr := c.Control(func(fd uintptr) { err = ioctl(int(fd)) }); controlErr != nil {
		return controlErr
	}
	return err
}

// Resize tells the terminal its new size; without a terminal it does nothing.
func (p *Process) Resize(s Size) error {
	if p.master == nil {
		return nil
	}
	return setSize(p.master, s)
}

// Exited is closed when the command itself has ended. Its output may go on: see
// DrainTerminal.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Exit is how the command ended; valid once Exited is closed.
func (p *Process) Exit() Exit { return p.exit }

// DrainTerminal returns once a terminal's output has been read after the
// command ended, and then ends Stdout, whoever else holds the terminal. Over
// pipes, where the end of output shows by itself, it returns at once. stop ends
// the wait.
func (p *Process) DrainTerminal(stop <-chan struct{}) {
	if p.output == nil {
		return
	}
	exited := time.Now()
	tick := time.NewTicker(quietAfterExit / 4)
	defer tick.Stop()
	for !p.output.quiet(exited) || readable(p.master) {
		select {
		case <-tick.C:
		case <-stop:
			return
		}
	}
	p.master.Close()
}

// signals are those that RFC 4254 part 6.10 names, as far as they exist here.
var signals = map[string]unix.Signal{
	"ABRT": unix.SIGABRT, "ALRM": unix.SIGALRM, "FPE": unix.SIGFPE, "HUP": unix.SIGHUP,
	"ILL": unix.SIGILL, "INT": unix.SIGINT, "KILL": unix.SIGKILL, "PIPE": unix.SIGPIPE,
	"QUIT": unix.SIGQUIT, "SEGV": unix.SIGSEGV, "TERM": unix.SIGTERM, "USR1": unix.SIGUSR1, "USR2": unix.SIGUSR2,
}

// Signal sends a signal by its name without "SIG" to what runs in the
// foreground of the terminal, or to the command's process group. It reports
// whether the signal is known and could be sent.
func (p *Process) Signal(name string) bool {
	sig, known := signals[name]
	if !known {
		return false
	}
	select {
	case <-p.exited:
		return false
	default:
	}
	return unix.Kill(-p.foreground(), sig) == nil
}

// foreground is the process group in the terminal's foreground, else the
// command's own.
func (p *Process) foreground() int {
	if p.master != nil {
		group := 0
		err := withFd(p.master, func(fd int) (err error) {
			group, err = unix.IoctlGetInt(fd, unix.TIOCGPGRP)
			return err
		})
		// 1 and below would reach everything that may be signalled.
		if err == nil && group > 1 {
			return group
		}
	}
	return p.cmd.Process.Pid
}

// Close releases the streams. Where the command or its output has not ended,
// its process group and what is in the terminal's foreground get HUP, and KILL
// after a grace; Close returns when they are gone.
func (p *Process) Close() {
	p.closeOnce.Do(func() {
		groups := []int{p.cmd.Process.Pid}
		if g := p.foreground(); g != groups[0] {
			groups = append(groups, g)
		}
		for _, g := range groups {
			unix.Kill(-g, unix.SIGHUP)
			unix.Kill(-g, unix.SIGCONT) // a stopped one could not hear it
		}
		p.release()
		for _, g := range groups {
			awaitGroup(g)
		}
		<-p.exited
	})
}

// Release gives the streams back of a command that ended with its output, and
// leaves alone whatever it started for later.
func (p *Process) Release() {
	p.closeOnce.Do(func() {
		p.release()
		<-p.exited
	})
}

func (p *Process) release() {
	for _, c := range p.closer {
		c.Close()
	}
}

// awaitGroup waits until a process group is gone, and kills it after the
// grace. It stops at the first sign that the group is gone, so that the number,
// which may be given out again, is never signalled afterwards.
func awaitGroup(group int) {
	deadline := time.Now().Add(killGrace)
	for {
		if errors.Is(unix.Kill(-group, 0), unix.ESRCH) {
			return
		}
		if time.Now().After(deadline) {
			unix.Kill(-group, unix.SIGKILL)
			return
		}
		time.Sleep(killPoll)
	}
}

func exitOf(state *os.ProcessState) Exit {
	status, ok := state.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() {
		return Exit{Code: state.ExitCode()}
	}
	return Exit{Signal: signalName(status.Signal()), Core: status.CoreDump()}
}

func signalName(s syscall.Signal) string {
	for name, n := range signals {
		if n == s {
			return name
		}
	}
	// RFC 4254 part 6.10: others carry a name of their own. The real-time signals
	// have none.
	name, ok := strings.CutPrefix(unix.SignalName(s), "SIG")
	if !ok {
		name = strconv.Itoa(int(s))
	}
	return name + "@openssh.com"
}
