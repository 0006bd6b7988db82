package liveness

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// peer is the other end of a simulated link.
type peer struct {
	name     string
	config   Config
	protocol bool          // its WebSocket layer answers protocol pings
	pongs    bool          // its application answers application pings
	beat     time.Duration // it sends its own application ping this often
	ready    bool          // it says when it is ready
	typed    bool          // the near side has a typing rule
}

func peers() []peer {
	return []peer{
		{name: "data", config: Data(), protocol: true},
		{name: "typing", config: Data().WithTyping(), protocol: true, typed: true},
		{name: "agentControl", config: AgentControl(), protocol: true, pongs: true},
		{name: "agentControl without pong", config: AgentControl(), protocol: true},
		{name: "relayControl", config: RelayControl(), beat: ControlBeat},
		{name: "live", config: Live(), pongs: true, ready: true},
		{name: "timing", config: Timing(), pongs: true, ready: true},
	}
}

// link simulates one socket, its owner's timer and both clocks.
type link struct {
	t     *rapid.T
	p     peer
	j     Judge
	now   Instant
	next  time.Duration
	inAir []arrival
	// lost: nothing arrives any more.
	lost     bool
	verdict  Verdict
	diedAt   time.Duration
	evidence time.Duration           // last arrival of any kind
	asked    map[Probe]time.Duration // first since the last arrival
}

type arrival struct {
	at   time.Duration
	kind Inbound
}

func newLink(t *rapid.T) *link {
	l := &link{t: t, p: rapid.SampledFrom(peers()).Draw(t, "peer"), asked: map[Probe]time.Duration{}}
	l.now = Instant{Wall: 1000 * time.Hour, Mono: time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "boot"))}
	l.evidence = l.now.Mono
	l.do(l.j.Start(&l.p.config, l.now))
	l.do(l.j.Opened(l.now))
	if l.p.ready {
		l.do(l.j.Ready(l.now))
	}
	if l.p.beat > 0 {
		l.inAir = append(l.inAir, arrival{l.now.Mono, InPing})
	}
	return l
}

// do obeys effects. A probe of a healthy link is answered within 1.4 s, which
// is less than half of the shortest window.
func (l *link) do(e Effects) {
	if e.Dead != 0 {
		if l.verdict != 0 {
			l.t.Fatalf("a second verdict: %v after %v", e.Dead, l.verdict)
		}
		l.verdict, l.diedAt = e.Dead, l.now.Mono
	}
	l.next = e.Next
	for _, p := range []Probe{ProbeProtocol, ProbeApplication} {
		if e.Probes&p == 0 {
			continue
		}
		if _, ok := l.asked[p]; !ok {
			l.asked[p] = l.now.Mono
		}
		if answered := p == ProbeProtocol && l.p.protocol || p == ProbeApplication && l.p.pongs; answered && !l.lost {
			kind := InFrame
			if p == ProbeApplication {
				kind = InPong
			}
			rtt := time.Duration(rapid.IntRange(0, 1400).Draw(l.t, "rtt")) * time.Millisecond
			l.inAir = append(l.inAir, arrival{l.now.Mono + rtt, kind})
		}
	}
}

// deliver reports what has arrived by now.
func (l *link) deliver() {
	if l.lost {
		l.inAir = nil
		return
	}
	for {
		i := slices.IndexFunc(l.inAir, func(a arrival) bool { return a.at <= l.now.Mono })
		if i < 0 {
			return
		}
		a := l.inAir[i]
		l.inAir = slices.Delete(l.inAir, i, i+1)
		if a.kind == InPing && l.p.beat > 0 {
			l.inAir = append(l.inAir, arrival{a.at + l.p.beat, InPing})
		}
		l.evidence = l.now.Mono
		clear(l.asked)
		l.do(l.j.Inbound(l.now, a.kind))
	}
}

// run lets time pass undisturbed.
func (l *link) run(d time.Duration) {
	end := l.now.Mono + d
	for l.verdict == 0 {
		at := min(end, max(l.next, l.now.Mono))
		for _, a := range l.inAir {
			at = min(at, max(a.at, l.now.Mono))
		}
		l.pass(at-l.now.Mono, at-l.now.Mono)
		l.deliver()
		if l.verdict == 0 && l.now.Mono >= l.next {
			before := l.next
			l.do(l.j.Tick(l.now))
			if l.verdict == 0 && l.next <= before {
				l.t.Fatalf("a tick at %v asks for another at %v", before, l.next)
			}
		}
		if l.now.Mono >= end {
			return
		}
	}
}

func (l *link) pass(mono, wall time.Duration) {
	l.now.Mono += mono
	l.now.Wall += wall
}

// disturb does one thing that must never kill a healthy link.
func (l *link) disturb() {
	// Sampled, because rapid prefers small numbers and most rules begin at seconds.
	d := time.Duration(rapid.SampledFrom([]int{1, 500, 1999, 2001, 5000, 12_000, 13_500, 61_000, 600_000}).Draw(l.t, "for")) * time.Millisecond
	switch rapid.SampledFrom([]string{"stop", "sleep", "step", "back", "wake", "traffic", "send", "pause"}).Draw(l.t, "disturbance") {
	case "stop": // the process stands still, both clocks run on
		l.pass(d, d)
		// A tick that is late may come before what waits in the socket, as long
		// as the one fresh window is not spent; after that only the owner's
		// order, reads first, can save the link.
		spent := l.j.typing.reprieve
		for _, k := range l.j.tracks {
			spent = spent || k.reprieve
		}
		if !spent && l.now.Mono-l.next > LateTick && rapid.Bool().Draw(l.t, "tick first") {
			l.do(l.j.Tick(l.now))
		}
		l.deliver()
	case "sleep": // the monotonic clock stands still too
		l.pass(0, d)
		if rapid.Bool().Draw(l.t, "noticed") {
			l.do(l.j.Wake(l.now))
		}
	case "step":
		l.pass(0, d)
	case "back":
		l.pass(0, -d)
	case "wake":
		l.do(l.j.Wake(l.now))
	case "traffic":
		if !l.lost {
			l.inAir = append(l.inAir, arrival{l.now.Mono + d, rapid.SampledFrom([]Inbound{InByte, InFrame, InText}).Draw(l.t, "kind")})
		}
	case "send":
		l.do(l.j.Sent(l.now, rapid.IntRange(1, 600).Draw(l.t, "bytes"), rapid.IntRange(0, 1).Draw(l.t, "unsent")))
	case "pause":
		l.do(l.j.PausedReading(l.now, true))
		// What arrives now is not read; ticks go on.
		for end := l.now.Mono + d; l.now.Mono < end && l.verdict == 0; {
			at := min(end, max(l.next, l.now.Mono+1))
			l.pass(at-l.now.Mono, at-l.now.Mono)
			l.do(l.j.Tick(l.now))
		}
		l.do(l.j.PausedReading(l.now, false))
		l.deliver()
	}
}

func TestAHealthyLinkIsNeverKilled(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLink(t)
		for range rapid.IntRange(1, 30).Draw(t, "disturbances") {
			l.run(time.Duration(rapid.SampledFrom([]int{0, 1, 2, 9, 14, 15, 44, 89, 119, 180}).Draw(t, "quiet")) * time.Second)
			l.disturb()
			if l.verdict != 0 {
				t.Fatalf("%s: a healthy link was judged %v", l.p.name, l.verdict)
			}
		}
		l.run(time.Hour)
		if l.verdict != 0 {
			t.Fatalf("%s: a healthy link was judged %v", l.p.name, l.verdict)
		}
	})
}

// bound is the longest that a lost link may last after its last arrival, and
// the longest window of its questions.
func bound(p peer) (total, window time.Duration) {
	for _, c := range p.config.Tracks {
		if c.When == OnceAnswered && !p.pongs || c.When == UntilAnswered && p.pongs {
			continue
		}
		total, window = max(total, c.Idle+c.Window), max(window, c.Window)
	}
	return total, window
}

func TestADeadLinkIsJudgedWithinItsBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLink(t)
		l.run(time.Duration(rapid.Int64Range(int64(2*time.Second), int64(10*time.Minute)).Draw(t, "healthy for")))
		if l.verdict != 0 {
			t.Fatalf("judged %v while healthy", l.verdict)
		}
		l.lost = true
		lost := l.now.Mono
		total, _ := bound(l.p)
		allowed := total
		if l.p.typed && rapid.Bool().Draw(t, "a key is pressed") {
			l.do(l.j.Sent(l.now, 1, 0))
			allowed = TypingIdle + TypingWindow
		}
		l.run(24 * time.Hour)
		if l.verdict == 0 {
			t.Fatalf("%s: a dead link lasts for ever", l.p.name)
		}
		if took := l.diedAt - lost; took > allowed {
			t.Fatalf("%s: judged %v after %v, more than %v", l.p.name, l.verdict, took, allowed)
		}
		// Probe first: it was asked a whole window before the verdict.
		first := Never
		for _, at := range l.asked {
			first = min(first, at)
		}
		need := total - l.longestIdle()
		if l.verdict == TypingTimedOut {
			need = TypingWindow
		}
		if l.verdict != Silent && (first == Never || l.diedAt-first < need) {
			t.Fatalf("%s: judged %v at %v, asked first at %v", l.p.name, l.verdict, l.diedAt, first)
		}
	})
}

// longestIdle is the idle time of the track that bound speaks of.
func (l *link) longestIdle() time.Duration {
	total, window := bound(l.p)
	return total - window
}

func TestADeadLinkIsJudgedWhateverDisturbs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLink(t)
		l.run(time.Duration(rapid.Int64Range(int64(2*time.Second), int64(10*time.Minute)).Draw(t, "healthy for")))
		l.lost = true
		for range rapid.IntRange(0, 10).Draw(t, "disturbances") {
			if l.verdict != 0 {
				return
			}
			l.run(time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "quiet")))
			if l.verdict == 0 {
				l.disturb()
			}
		}
		// From the last disturbance on: at most the whole rule and one fresh
		// window.
		undisturbed := l.now.Mono
		total, window := bound(l.p)
		l.run(24 * time.Hour)
		if took := l.diedAt - undisturbed; l.verdict == 0 || took > total+window {
			t.Fatalf("%s: %v after %v, more than %v", l.p.name, l.verdict, took, total+window)
		}
	})
}

func TestADeadJudgeStaysDead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLink(t)
		l.lost = true
		l.run(24 * time.Hour)
		for range rapid.IntRange(1, 20).Draw(t, "events") {
			d := time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "passed"))
			l.pass(d, d)
			var e Effects
			switch rapid.IntRange(0, 6).Draw(t, "event") {
			case 0:
				e = l.j.Opened(l.now)
			case 1:
				e = l.j.Ready(l.now)
			case 2:
				e = l.j.Inbound(l.now, InPong)
			case 3:
				e = l.j.Sent(l.now, 1, 0)
			case 4:
				e = l.j.PausedReading(l.now, rapid.Bool().Draw(t, "paused"))
			case 5:
				e = l.j.Wake(l.now)
			case 6:
				e = l.j.Tick(l.now)
			}
			if want := (Effects{Next: Never, State: Dead}); e != want {
				t.Fatalf("a dead judge says %+v", e)
			}
		}
	})
}

func TestFunnelHoldsOneSocketAndOneReconnect(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, err := NewFunnel(FunnelOptions{
			Profile:    rapid.SampledFrom([]*Profile{Holdfast, Hydro}).Draw(t, "profile"),
			Backoff:    rapid.SampledFrom([]Backoff{AgentBackoff, PageBackoff, TimingBackoff}).Draw(t, "backoff"),
			Rand:       func() float64 { return float64(rapid.IntRange(0, 999).Draw(t, "random")) / 1000 },
			Unattended: rapid.Bool().Draw(t, "unattended"),
			Instance:   "me",
		})
		if err != nil {
			t.Fatal(err)
		}
		var (
			now     Instant
			live    Socket // what the owner holds
			seen    Socket
			tried   = none
			started bool
			stopped bool // by the person, or by a terminal code
		)
		obey := func(a Action) {
			if a.Retire != 0 {
				if a.Retire != live {
					t.Fatalf("retire %d, but %d is live", a.Retire, live)
				}
				live = 0
			}
			if a.Connect != 0 {
				if live != 0 {
					t.Fatalf("connect %d while %d is live", a.Connect, live)
				}
				if a.Connect != seen+1 {
					t.Fatalf("socket %d after %d", a.Connect, seen)
				}
				if tried != none && now.Mono-tried < MinAttemptGap {
					t.Fatalf("two attempts within %v", now.Mono-tried)
				}
				if stopped || !started {
					t.Fatalf("connect without being asked to")
				}
				live, seen, tried = a.Connect, a.Connect, now.Mono
			}
			if a.Probe && live == 0 {
				t.Fatal("a probe without a socket")
			}
			if live == 0 && started && !stopped && a.Next == Never {
				t.Fatalf("nothing is pending in phase %v", a.Phase)
			}
			if live == 0 && a.Phase == Waiting && a.Next-now.Mono > MaxPeerDelay+2*UnattendedRetry {
				t.Fatalf("waits for %v", a.Next-now.Mono)
			}
			if a.Next <= now.Mono {
				t.Fatalf("asks for a tick at %v, now is %v", a.Next, now.Mono)
			}
			if stopped != (a.Phase == Stopped) && started {
				t.Fatalf("phase %v, stopped %v", a.Phase, stopped)
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			d := time.Duration(rapid.Int64Range(0, int64(20*time.Second)).Draw(t, "passed"))
			now.Mono += d
			now.Wall += d + time.Duration(rapid.SampledFrom([]int{0, 0, 0, 0, 600, -600}).Draw(t, "step"))*time.Second
			s := Socket(rapid.Uint64Range(0, uint64(seen)+1).Draw(t, "socket"))
			stranger := s == 0 || s != live
			before := *f
			var a Action
			ofSocket := false
			switch rapid.IntRange(0, 9).Draw(t, "event") {
			case 0:
				started, stopped = true, false
				a = f.Start(now)
			case 1:
				if rapid.IntRange(0, 3).Draw(t, "really") > 0 {
					continue
				}
				started, stopped = true, true
				a = f.Stop(now)
			case 2:
				ofSocket = true
				a = f.Opened(now, s)
			case 3:
				ofSocket = true
				a = f.Ready(now, s)
			case 4, 5, 6:
				ofSocket = true
				code := rapid.SampledFrom([]uint16{0, 1000, 1006, 1009, 1012, 1013, 4000, 4104, 4401, 4409}).Draw(t, "code")
				reason := rapid.SampledFrom([]string{"", "me", "restart after=5000"}).Draw(t, "reason")
				a = f.Fail(now, s, Failure{Cause: CauseClosed, Code: code, Reason: reason})
				if !stranger {
					stopped = a.Phase == Stopped
				}
			case 7:
				ofSocket = true
				a = f.Drain(now, s, time.Duration(rapid.IntRange(-1, 30).Draw(t, "drain"))*time.Second)
			case 8:
				a = f.Wake(now)
			case 9:
				a = f.Tick(now)
			}
			obey(a)
			if ofSocket && stranger {
				// It may only have been the occasion for what a tick would do.
				tick := before
				want := tick.Tick(now)
				if a != want {
					t.Fatalf("socket %d is not live, but its event gave %+v, a tick %+v", s, a, want)
				}
				if tick.phase != f.phase || tick.socket != f.socket || tick.due != f.due ||
					tick.failures != f.failures || tick.why != f.why || tick.drainAt != f.drainAt {
					t.Fatalf("an event of socket %d, which is not live, changed the state", s)
				}
			}
		}
	})
}

func TestWaitsAreSpreadOverTheWholeCeiling(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SampledFrom([]Backoff{AgentBackoff, PageBackoff, TimingBackoff}).Draw(t, "backoff")
		n := rapid.IntRange(1, 100).Draw(t, "failures")
		r := rapid.Float64Range(0, 0.999999).Draw(t, "random")
		d := b.Delay(n, r)
		if d < 0 || d >= b.Ceiling(n) || b.Ceiling(n) > b.Cap {
			t.Fatalf("wait %v of %v", d, b.Ceiling(n))
		}
		if got := float64(d) / float64(b.Ceiling(n)); got < r-0.001 || got > r+0.001 {
			t.Fatalf("random %v became %v", r, got)
		}
	})
}

func TestNothingInAnOutboxIsLostInSilence(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o, err := NewOutbox[int](OutboxLimits{Count: 5, Bytes: 100, Age: time.Minute}, "0")
		if err != nil {
			t.Fatal(err)
		}
		var now Instant
		accounted := map[int]string{}
		note := func(item int, fate string) {
			if old, ok := accounted[item]; ok {
				t.Fatalf("item %d was %s, now %s", item, old, fate)
			}
			accounted[item] = fate
		}
		lose := func(lost []Lost[int]) {
			for _, l := range lost {
				note(l.Item, l.Why.String())
			}
		}
		pushed, newest := 0, -1
		for range rapid.IntRange(1, 100).Draw(t, "events") {
			d := time.Duration(rapid.IntRange(0, 30).Draw(t, "passed")) * time.Second
			now.Mono, now.Wall = now.Mono+d, now.Wall+d
			switch rapid.IntRange(0, 5).Draw(t, "event") {
			case 0, 1, 2:
				lose(o.Push(now, rapid.IntRange(0, 60).Draw(t, "bytes"), pushed))
				pushed++
			case 3, 4:
				item, ok, lost := o.Next(now)
				lose(lost)
				if ok {
					note(item, "sent")
					if item <= newest {
						t.Fatalf("item %d after %d", item, newest)
					}
					newest = item
				}
			case 5:
				lose(o.SetContext(rapid.SampledFrom([]string{"0", "1"}).Draw(t, "context")))
			}
			if o.Len() > 5 || o.Bytes() > 100 || o.Bytes() < 0 {
				t.Fatalf("%d items of %d bytes", o.Len(), o.Bytes())
			}
			if len(accounted)+o.Len() != pushed {
				t.Fatalf("%d pushed, %d accounted for, %d waiting", pushed, len(accounted), o.Len())
			}
		}
	})
}
