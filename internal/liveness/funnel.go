package liveness

import (
	"fmt"
	"strings"
	"time"
)

// Backoff is how long to wait before trying again. Every wait is uniform
// between nothing and a ceiling (full jitter): thousands that lost the same
// relay must not come back as one wave, and a jitter of some percent is one.
type Backoff struct {
	// First is the ceiling after the first failure; zero means Base.
	First time.Duration
	// Base doubles with every failure after the first, up to Cap.
	Base time.Duration
	Cap  time.Duration
}

// The delay classes.
var (
	AgentBackoff  = Backoff{Base: time.Second, Cap: 30 * time.Second}
	PageBackoff   = Backoff{First: 3 * time.Second, Base: time.Second, Cap: 15 * time.Second}
	TimingBackoff = Backoff{First: 3 * time.Second, Base: time.Second, Cap: 5 * time.Second}
)

// Ceiling is the longest wait after a number of failures in a row, from 1.
func (b Backoff) Ceiling(failures int) time.Duration {
	if failures <= 1 && b.First > 0 {
		return min(b.First, b.Cap)
	}
	d := b.Base
	for i := 1; i < failures && d < b.Cap; i++ {
		d *= 2
	}
	return min(d, b.Cap)
}

// Delay is the wait after a number of failures; random is in [0, 1).
func (b Backoff) Delay(failures int, random float64) time.Duration {
	return time.Duration(random * float64(b.Ceiling(failures)))
}

const (
	// StableAfter is how long a connection must have been ready before the
	// backoff starts anew. A server that accepts and closes at once, or falls
	// over whoever comes, is met with growing waits.
	StableAfter = 10 * time.Second
	// MinAttemptGap is the least time between two attempts, whatever asks.
	// Network events come in bursts.
	MinAttemptGap = 250 * time.Millisecond
	// LaterMin is the least wait after an answer of class Later.
	LaterMin = time.Second
	// UnattendedRetry is how long an unattended agent waits after a terminal
	// answer, give or take a quarter.
	UnattendedRetry = time.Hour
)

// Socket names one attempt of a Funnel, from 1. Zero is none.
type Socket uint64

// Cause is the way a connection failed. It is for people and metrics: what
// follows is decided by the code.
type Cause uint8

// The causes.
const (
	CauseClosed   Cause = iota + 1 // a close frame, or the end of the transport (1006)
	CauseError                     // dialling, reading or writing failed
	CauseJudged                    // a Judge's verdict
	CauseRefused                   // an HTTP answer other than 101
	CauseReplaced                  // planned: a drain's delay has passed
)

var causeNames = [...]string{
	CauseClosed: "closed", CauseError: "error", CauseJudged: "judged", CauseRefused: "refused", CauseReplaced: "drained",
}

func (c Cause) String() string {
	if int(c) < len(causeNames) && causeNames[c] != "" {
		return causeNames[c]
	}
	return "none"
}

// Failure is how a connection ended.
type Failure struct {
	Cause Cause
	// Code is the close code, or that which stands for the answer (see
	// CodeOfRefusal). Zero is 1006.
	Code uint16
	// Reason is the close reason or an error's text; shown, and read only for
	// 1012 and 4409.
	Reason string
	// After is a wait that the peer asked for otherwise (Retry-After); zero is
	// none, more than MaxPeerDelay is that.
	After time.Duration
}

// Phase is where a Funnel is.
type Phase uint8

// The phases.
const (
	Idle    Phase = iota + 1 // not started
	Waiting                  // one reconnect is pending
	Dialing                  // one attempt runs
	Open                     // open, not ready
	Up                       // ready
	Stopped                  // final until Start
)

var phaseNames = [...]string{
	Idle: "idle", Waiting: "waiting", Dialing: "dialing", Open: "open", Up: "up", Stopped: "stopped",
}

func (p Phase) String() string {
	if int(p) < len(phaseNames) && phaseNames[p] != "" {
		return phaseNames[p]
	}
	return "none"
}

// Action is what the owner of a channel must do after an event, in this order.
type Action struct {
	// Retire, if not zero: forget this socket, detach from it, then close it as
	// best one can, waiting for nothing.
	Retire Socket
	// Connect, if not zero: dial now, under this name.
	Connect Socket
	// Probe: the live socket's Judge is to be told Wake.
	Probe bool
	// Next is the monotonic time at which to call Tick, or Never.
	Next  time.Duration
	Phase Phase
}

// FunnelOptions configures a Funnel.
type FunnelOptions struct {
	// Profile gives the close codes their meaning. Required.
	Profile *Profile
	// Backoff is required: Base and Cap above zero.
	Backoff Backoff
	// Rand returns uniform numbers in [0, 1). Required.
	Rand func() float64
	// Unattended is for an agent: a terminal answer other than 4409 is asked
	// again hourly.
	Unattended bool
	// Instance is what this process calls itself in Holdfast-Instance. A 4409
	// that names it is our own doing. Empty: every 4409 stops.
	Instance string
}

// Funnel is the life of one channel: every failure of every socket goes in, and
// at most one live socket and one pending reconnect come out. The action is
// decided, and the reconnect pending, before the owner runs any callback, so
// that nothing in one can stop recovery.
type Funnel struct {
	opt     FunnelOptions
	watch   Watch
	phase   Phase
	socket  Socket // live or being dialled; zero in Idle, Waiting and Stopped
	last    Socket // newest name given out
	due     time.Duration
	hourly  bool // the pending attempt follows a terminal answer
	offline bool

	failures  int
	readyAt   time.Duration
	attemptAt time.Duration
	drainAt   time.Duration // planned reconnect; none
	why       Failure
}

// NewFunnel makes a funnel in phase Idle. The error wraps ErrConfig.
func NewFunnel(o FunnelOptions) (*Funnel, error) {
	switch {
	case o.Profile == nil:
		return nil, fmt.Errorf("funnel without a profile: %w", ErrConfig)
	case o.Rand == nil:
		return nil, fmt.Errorf("funnel without randomness: %w", ErrConfig)
	case o.Backoff.Base <= 0 || o.Backoff.Cap <= 0:
		return nil, fmt.Errorf("funnel without a backoff: %w", ErrConfig)
	}
	return &Funnel{opt: o, phase: Idle, attemptAt: none, drainAt: none}, nil
}

// Start is the person's act (or the process's first): connect, also after a
// stop, and without regard to a wait. A live socket is left alone.
func (f *Funnel) Start(now Instant) Action {
	switch f.phase {
	case Idle, Stopped:
		f.failures, f.why = 0, Failure{}
		f.wait(now, 0, false)
	case Waiting:
		f.hourly = false
		f.due = min(f.due, now.Mono)
	}
	return f.step(now, Action{})
}

// Stop is the person's act: nothing connects until Start.
func (f *Funnel) Stop(now Instant) Action {
	a := f.retire()
	f.phase = Stopped
	return f.step(now, a)
}

// Opened says that the upgrade of s was answered.
func (f *Funnel) Opened(now Instant, s Socket) Action {
	if s != 0 && s == f.socket && f.phase == Dialing {
		f.phase = Open
	}
	return f.step(now, Action{})
}

// Ready says that s does its work. It implies Opened.
func (f *Funnel) Ready(now Instant, s Socket) Action {
	if s != 0 && s == f.socket && f.phase != Up {
		f.phase, f.readyAt = Up, now.Mono
	}
	return f.step(now, Action{})
}

// Fail says that s is over, by whatever cause. What comes of a socket that is
// not the present one, a second failure of the same one included, changes
// nothing.
func (f *Funnel) Fail(now Instant, s Socket, why Failure) Action {
	if s == 0 || s != f.socket {
		return f.step(now, Action{})
	}
	if why.Code == 0 {
		why.Code = 1006
	}
	class := f.opt.Profile.Class(why.Code)
	stable := f.phase == Up && now.Mono-f.readyAt >= StableAfter
	a := f.retire()
	f.why = why

	if why.Code == codeReplaced && class == Stop && f.ours(why.Reason) {
		// Our own newer attempt won and failed since, or the order of two was
		// lost on the way. Another instance is a reason to stop, we are not.
		class = Counted
	}
	if class == Stop {
		if f.opt.Unattended && why.Code != codeReplaced {
			f.failures++
			f.wait(now, time.Duration((0.75+f.opt.Rand()/2)*float64(UnattendedRetry)), true)
		} else {
			f.phase = Stopped
		}
		return f.step(now, a)
	}
	if stable && (class == Back || class == Delayed) {
		f.failures = 0
	}
	f.failures++
	delay := f.opt.Backoff.Delay(f.failures, f.opt.Rand())
	switch class {
	case Delayed:
		if after, ok := RestartDelay(why.Reason); ok {
			// Newer than what a drain said.
			delay, f.drainAt = after, none
		}
	case Later:
		delay = max(delay, LaterMin)
	}
	if f.drainAt != none {
		// The relay has said when this agent's turn is.
		delay = max(delay, f.drainAt-now.Mono)
		f.drainAt = none
	}
	delay = max(delay, min(why.After, MaxPeerDelay))
	f.wait(now, delay, false)
	return f.step(now, a)
}

// codeReplaced is the code by which a control connection learns that another
// took its name.
const codeReplaced = 4409

// ours reports whether the reason of a 4409 names this process's instance.
func (f *Funnel) ours(reason string) bool {
	if f.opt.Instance == "" {
		return false
	}
	for _, word := range strings.FieldsFunc(reason, func(r rune) bool { return r == ' ' || r == '=' || r == ':' || r == '"' }) {
		if word == f.opt.Instance {
			return true
		}
	}
	return false
}

// Drain is the peer's wish that s be replaced after a delay, bounded by
// MaxPeerDelay. Until then s goes on.
func (f *Funnel) Drain(now Instant, s Socket, after time.Duration) Action {
	if s != 0 && s == f.socket {
		f.drainAt = sum(now.Mono, min(max(after, 0), MaxPeerDelay))
	}
	return f.step(now, Action{})
}

// Wake says that the network changed or came back, that the machine woke, or
// that somebody looks: a wait is skipped, a live socket is probed. It is no
// verdict, and it never undoes a stop.
func (f *Funnel) Wake(now Instant) Action { return f.wake(now) }

// Online is Wake; it also clears what Offline set.
func (f *Funnel) Online(now Instant) Action {
	f.offline = false
	return f.wake(now)
}

// Offline only sets a flag for display: systems are wrong about it both ways,
// so nothing is closed and no attempt is put off.
func (f *Funnel) Offline(now Instant) Action {
	f.offline = true
	return f.step(now, Action{})
}

func (f *Funnel) wake(now Instant) Action {
	var a Action
	f.woken(now, &a)
	return f.step(now, a)
}

func (f *Funnel) woken(now Instant, a *Action) {
	switch {
	case f.phase == Waiting && !f.hourly:
		f.due = min(f.due, now.Mono)
	case f.phase == Open || f.phase == Up:
		a.Probe = true
	}
}

// Tick says that time passed: call it at Action.Next.
func (f *Funnel) Tick(now Instant) Action { return f.step(now, Action{}) }

// Phase is where the funnel is.
func (f *Funnel) Phase() Phase { return f.phase }

// Why is the newest failure; the zero Failure before the first and after Start.
func (f *Funnel) Why() Failure { return f.why }

// Failures counts the attempts that failed since the last stable connection.
func (f *Funnel) Failures() int { return f.failures }

// OfflineFlag is what Offline and Online last said.
func (f *Funnel) OfflineFlag() bool { return f.offline }

func (f *Funnel) retire() (a Action) {
	a.Retire, f.socket = f.socket, 0
	return a
}

func (f *Funnel) wait(now Instant, d time.Duration, hourly bool) {
	f.phase, f.hourly = Waiting, hourly
	f.due = sum(now.Mono, d)
}

// step starts what is due and says when to come back.
func (f *Funnel) step(now Instant, a Action) Action {
	if f.watch.Observe(now) > 0 {
		f.woken(now, &a)
	}
	if f.drainAt != none && f.socket != 0 && now.Mono >= f.drainAt {
		// Planned, so the next attempt needs no backoff: the relay has spread
		// the agents already.
		f.drainAt = none
		f.why = Failure{Cause: CauseReplaced, Code: 1012, Reason: "drain"}
		a = f.retire()
		f.wait(now, 0, false)
	}
	a.Next = Never
	if f.phase == Waiting {
		due := f.due
		if f.attemptAt != none {
			due = max(due, f.attemptAt+MinAttemptGap)
		}
		if now.Mono >= due {
			f.last++
			f.socket, f.phase, f.hourly = f.last, Dialing, false
			f.attemptAt = now.Mono
			a.Connect = f.socket
		} else {
			a.Next = due
		}
	}
	if f.socket == 0 {
		f.drainAt = none
	} else if f.drainAt != none {
		a.Next = min(a.Next, f.drainAt)
	}
	a.Phase = f.phase
	return a
}
