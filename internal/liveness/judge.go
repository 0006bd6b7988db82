package liveness

import "time"

// Verdict is why a connection is dead.
type Verdict uint8

// The verdicts. Zero is none.
const (
	// HandshakeTimedOut: the upgrade was not answered in time.
	HandshakeTimedOut Verdict = iota + 1
	// ReadyTimedOut: it opened but never became ready.
	ReadyTimedOut
	// ProbeTimedOut: quiet, asked, not answered.
	ProbeTimedOut
	// TypingTimedOut: the same by the typing rule.
	TypingTimedOut
	// Silent: the peer's own heartbeat stayed away.
	Silent
)

var verdictNames = [...]string{
	HandshakeTimedOut: "handshake timed out",
	ReadyTimedOut:     "ready timed out",
	ProbeTimedOut:     "probe timed out",
	TypingTimedOut:    "typing probe timed out",
	Silent:            "silent",
}

func (v Verdict) String() string {
	if int(v) < len(verdictNames) && verdictNames[v] != "" {
		return verdictNames[v]
	}
	return "none"
}

// State is what a person may be told about a connection.
type State uint8

// The states of a socket.
const (
	Connecting State = iota + 1 // dialling, upgrade not answered
	Opening                     // open, not ready
	Alive                       // ready, nothing is being asked
	Suspect                     // ready, a question is open
	Dead                        // judged; nothing changes that
)

var stateNames = [...]string{Connecting: "connecting", Opening: "opening", Alive: "alive", Suspect: "suspect", Dead: "dead"}

func (s State) String() string {
	if int(s) < len(stateNames) && stateNames[s] != "" {
		return stateNames[s]
	}
	return "none"
}

// Effects is what the owner of a connection must do after an event.
type Effects struct {
	// Probes are to be sent now, without waiting for anything.
	Probes Probe
	// Dead, if not zero, is said once: give the connection up.
	Dead Verdict
	// Next is the monotonic time at which to call Tick, or Never. It replaces
	// the one before.
	Next  time.Duration
	State State
}

// none marks a moment that has not come.
const none time.Duration = -1 << 63

// Judge watches one socket from dialling to its end; every new socket gets a
// new one. The zero value is not usable, see Start.
type Judge struct {
	config *Config
	watch  Watch
	state  State // Connecting, Opening, Alive, Dead; Suspect is derived
	paused bool
	// answered: an application pong was seen on this connection.
	answered bool
	// asked: the peer has sent an application ping on this connection.
	asked     bool
	began     time.Duration // of the present phase, until ready
	next      time.Duration // the Next that was asked for last
	keepalive time.Duration // when the next keepalive is due
	tracks    [maxTracks]track
	typing    typing
}

// track is the state of one Track.
type track struct {
	evidence time.Duration // last arrival that counts
	probed   time.Duration // newest probe; it is outstanding if after evidence
	beat     time.Duration // when the next beat is due
	window   time.Duration // when the open question is decided; none: not open
	reprieve bool          // the open question had its one fresh window
}

type typing struct {
	burst    int           // bytes since the last quiet spell
	sent     time.Duration // last send
	clean    bool          // nothing was waiting in the socket when the burst began
	armed    time.Duration // first unanswered byte; none: nothing to judge
	window   time.Duration // as in track
	reprieve bool
}

// Start begins to judge a socket that is being dialled. c must be valid and
// must not change.
func (j *Judge) Start(c *Config, now Instant) Effects {
	*j = Judge{config: c, state: Connecting, began: now.Mono, next: Never}
	return j.decide(now)
}

// Opened says that the upgrade was answered.
func (j *Judge) Opened(now Instant) Effects {
	if j.state == Connecting {
		j.state, j.began = Opening, now.Mono
		if j.config.Ready == 0 {
			j.ready(now)
		}
	}
	return j.decide(now)
}

// Ready says that the channel does its work: for a page, the first frame of
// the server. It implies Opened.
func (j *Judge) Ready(now Instant) Effects {
	if j.state == Connecting || j.state == Opening {
		j.ready(now)
	}
	return j.decide(now)
}

func (j *Judge) ready(now Instant) {
	j.state = Alive
	j.keepalive = sum(now.Mono, j.config.Keepalive)
	for i := range j.config.Tracks {
		j.tracks[i] = track{evidence: now.Mono, probed: none, beat: now.Mono, window: none}
	}
	j.typing = typing{sent: none, armed: none, window: none}
}

// Inbound says that something arrived. Report every read, as the highest kind
// that it held; InByte where only bytes are known.
func (j *Judge) Inbound(now Instant, kind Inbound) Effects {
	if j.state == Alive {
		switch kind {
		case InPing:
			j.asked = true
		case InPong:
			j.answered = true
		}
		for i := range j.config.Tracks {
			c, t := &j.config.Tracks[i], &j.tracks[i]
			counts := c.Counts
			if c.TextOnceAsked && j.asked {
				counts = max(counts, InText)
			}
			if kind >= counts {
				t.evidence, t.window, t.reprieve = now.Mono, none, false
			}
		}
		j.typing.armed, j.typing.window = none, none
	}
	return j.decide(now)
}

// Sent says that n bytes of the channel's own data went to the socket; probes
// do not count. unsent is what was waiting there before them: our own queue, a
// page's bufferedAmount. It matters to the typing rule only.
func (j *Judge) Sent(now Instant, n, unsent int) Effects {
	if r := j.config.Typing; r != nil && j.state == Alive && n > 0 {
		t := &j.typing
		if t.sent == none || now.Mono-t.sent >= r.Quiet {
			t.burst, t.clean = 0, unsent == 0
		}
		t.sent = now.Mono
		if t.burst += n; t.burst > r.MaxBytes {
			// Once too big it stays so, whatever is added.
			t.burst = r.MaxBytes + 1
			t.armed, t.window = none, none
		} else if t.clean && t.armed == none && !j.paused {
			t.armed, t.reprieve = now.Mono, false
		}
	}
	return j.decide(now)
}

// PausedReading says that this side has stopped reading, or reads again. While
// it is paused nothing is judged; pings still go out.
func (j *Judge) PausedReading(now Instant, paused bool) Effects {
	if paused != j.paused {
		j.paused = paused
		if j.state == Alive {
			// What came during the pause was not looked at: start afresh.
			for i := range j.config.Tracks {
				t := &j.tracks[i]
				t.evidence, t.window, t.reprieve = now.Mono, none, false
			}
			j.typing.armed, j.typing.window = none, none
		}
	}
	return j.decide(now)
}

// Wake says that the network changed, came back, or that somebody looks: every
// question is asked at once. Sleep is noticed without it.
func (j *Judge) Wake(now Instant) Effects { return j.step(now, true) }

// Tick says that time passed: call it at Effects.Next. Early and late calls do
// no harm.
func (j *Judge) Tick(now Instant) Effects { return j.decide(now) }

// Answered reports whether an application pong was seen on this connection.
func (j *Judge) Answered() bool { return j.answered }

// judges reports whether a track may judge now.
func (j *Judge) judges(c *Track) bool {
	switch {
	case j.paused:
		return false
	case c.When == OnceAnswered:
		return j.answered
	case c.When == UntilAnswered:
		return !j.answered
	}
	return true
}

// wake opens every question. slept gives those that are open already their
// fresh window.
func (j *Judge) wake(now Instant, slept bool) (probes Probe) {
	for i := range j.config.Tracks {
		c, t := &j.config.Tracks[i], &j.tracks[i]
		switch {
		case !j.judges(c):
		case t.window != none:
			if slept && !t.reprieve {
				t.reprieve = true
				probes |= j.ask(c, t, now)
			}
		case c.Probe != 0:
			// A track that cannot ask keeps its time: a clock that was only
			// stepped must not hurry a peer that nobody asks.
			probes |= j.ask(c, t, now)
		}
	}
	if slept {
		// The tracks ask; a key pressed before the sleep judges nothing.
		j.typing.armed, j.typing.window = none, none
	}
	return probes
}

// ask opens or renews a question.
func (j *Judge) ask(c *Track, t *track, now Instant) Probe {
	t.window = sum(now.Mono, c.Window)
	return j.send(c.Probe, now)
}

// send notes a probe for every track that it can answer.
func (j *Judge) send(p Probe, now Instant) Probe {
	if p == 0 {
		return 0
	}
	if p&ProbeProtocol != 0 && j.config.Keepalive > 0 {
		j.keepalive = sum(now.Mono, j.config.Keepalive)
	}
	for i := range j.config.Tracks {
		c, t := &j.config.Tracks[i], &j.tracks[i]
		if c.Probe&p != 0 {
			t.probed = now.Mono
			t.beat = sum(now.Mono, c.Beat)
		}
	}
	return p
}

// decide does what is due and says when to come back.
func (j *Judge) decide(now Instant) Effects { return j.step(now, false) }

func (j *Judge) step(now Instant, woken bool) Effects {
	e := j.evaluate(now, woken)
	j.next = e.Next
	return e
}

func (j *Judge) evaluate(now Instant, woken bool) Effects {
	slept := j.watch.Observe(now) > 0
	// Late is measured against what was asked for, not against the window that
	// is to be judged: a stop that hid an earlier tick hid arrivals as well.
	late := now.Mono-j.next > LateTick
	e := Effects{Next: Never, State: j.state}
	switch j.state {
	case Connecting, Opening:
		limit, verdict := j.config.Handshake, HandshakeTimedOut
		if j.state == Opening {
			limit, verdict = j.config.Ready, ReadyTimedOut
		}
		if limit == 0 {
			return e
		}
		if e.Next = sum(j.began, limit); now.Mono >= e.Next {
			return j.die(verdict)
		}
		return e
	case Dead:
		return e
	}
	if slept || woken {
		e.Probes |= j.wake(now, slept)
	}
	for i := range j.config.Tracks {
		c, t := &j.config.Tracks[i], &j.tracks[i]
		if c.Beat > 0 {
			if now.Mono >= t.beat {
				e.Probes |= j.send(c.Probe, now)
			}
			e.Next = min(e.Next, t.beat)
		}
		if !j.judges(c) {
			continue
		}
		probes, verdict := j.judge(c, t, now, late)
		if verdict != 0 {
			return j.die(verdict)
		}
		e.Probes |= probes
		if t.window != none {
			e.State = Suspect
			e.Next = min(e.Next, t.window)
		} else {
			e.Next = min(e.Next, sum(t.evidence, c.Idle))
		}
	}
	if r := j.config.Typing; r != nil && j.typing.armed != none {
		probes, verdict := j.judgeTyping(r, now, late)
		if verdict != 0 {
			return j.die(verdict)
		}
		e.Probes |= probes
		if j.typing.window != none {
			e.State = Suspect
			e.Next = min(e.Next, j.typing.window)
		} else {
			e.Next = min(e.Next, sum(j.typing.armed, r.Idle))
		}
	}
	if j.config.Keepalive > 0 {
		if now.Mono >= j.keepalive {
			e.Probes |= j.send(ProbeProtocol, now)
		}
		e.Next = min(e.Next, j.keepalive)
	}
	return e
}

// judge is rule 1 and rule 2 for one track.
func (j *Judge) judge(c *Track, t *track, now Instant, late bool) (Probe, Verdict) {
	if t.window == none {
		due := sum(t.evidence, c.Idle)
		switch {
		case now.Mono < due:
			return 0, 0
		case t.probed > t.evidence && !late:
			// A beat or a keepalive has asked already, at least a window
			// before this one ends.
			t.window = sum(due, c.Window)
			return 0, 0
		}
		return j.ask(c, t, now), 0
	}
	if now.Mono < t.window {
		return 0, 0
	}
	if late && !t.reprieve {
		t.reprieve = true
		return j.ask(c, t, now), 0
	}
	if c.Probe == 0 {
		return 0, Silent
	}
	return 0, ProbeTimedOut
}

func (j *Judge) judgeTyping(r *TypingRule, now Instant, late bool) (Probe, Verdict) {
	t := &j.typing
	due := sum(t.armed, r.Idle)
	if t.window != none {
		due = t.window
	}
	if now.Mono < due {
		return 0, 0
	}
	if t.window != none {
		if !late || t.reprieve {
			return 0, TypingTimedOut
		}
		t.reprieve = true
	}
	t.window = sum(now.Mono, r.Window)
	return j.send(ProbeProtocol, now), 0
}

func (j *Judge) die(v Verdict) Effects {
	j.state = Dead
	return Effects{Dead: v, Next: Never, State: Dead}
}
