package wsconn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/liveness"
	"holdfast/internal/wire"
	"holdfast/internal/wsconn/link"
)

const (
	// pongWait is how long a ping's bookkeeping is kept for its pong. It judges
	// nothing; at half a slow link's pongs would not be matched, which nobody
	// would notice, and at double a quiet link keeps two instead of one.
	pongWait = 10 * time.Second
	// sleepCheck is how often the clocks are compared, so that a sleep is
	// noticed this long after the wake at the latest. A kernel's timers go on
	// after it with what they had left.
	sleepCheck = 5 * time.Second
)

// conn is an open WebSocket: what Control and Stream have in common. It owns
// the judge and its timer.
type conn struct {
	ws    *websocket.Conn
	link  *link.Link
	clean func(string) string
	log   *slog.Logger
	clock liveness.Clock
	// askApp sends the application's ping; nil where there is none.
	askApp func()
	// version1 says that the peer selected a subprotocol of version 1, so that
	// it pings us also while we cannot send.
	version1 bool
	// pinged says that the peer has sent a protocol ping.
	pinged atomic.Bool
	// reading says that somebody waits for bytes; paused, that the judge was
	// told that nobody does. Each side writes its own before it reads the
	// other's, so that a pause cannot outlive the reader's return.
	reading, paused atomic.Bool

	judgeMu sync.Mutex
	judge   liveness.Judge
	next    time.Duration // when the timer will fire
	rearm   chan struct{} // capacity 1: next has come nearer

	mu   sync.Mutex
	err  error         // why the connection ended; the first one stays
	over chan struct{} // closed with err set
	// bye is closed when the close frame that this side has begun to send is
	// dealt with; nil where there is none. Who finds the connection over waits for
	// it: a code that says what was wrong must not be cut off.
	bye chan struct{}
}

// start begins to judge. cfg must stay unchanged; the dial has judged the
// handshake.
func (c *conn) start(cfg *liveness.Config, log *slog.Logger) {
	now := time.Now()
	c.log = log
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	c.clock = liveness.NewClock(now)
	c.rearm = make(chan struct{}, 1)
	c.over = make(chan struct{})
	c.reading.Store(true) // until the first read, which comes at once
	c.link.Raw().Take()   // the handshake's bytes
	c.judgeMu.Lock()
	c.judge.Start(cfg, c.clock.At(now))
	e := c.judge.Opened(c.clock.At(now))
	c.next = e.Next
	c.judgeMu.Unlock()
	// Here, not in the goroutine, so that the first probe leaves before anything
	// that the caller writes.
	c.act(e)
	go c.watch(e.Next) // ends when the connection is over; nobody waits for it
}

// watch holds the judge's timer.
func (c *conn) watch(next time.Duration) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		wait := min(next-c.clock.At(time.Now()).Mono, sleepCheck)
		timer.Reset(max(wait, 0))
		select {
		case <-c.over:
			return
		case <-c.rearm:
		case <-timer.C:
		}
		e := c.tick()
		if !c.act(e) {
			return
		}
		next = e.Next
	}
}

// act does what the judge asks. It reports false when the connection is over.
func (c *conn) act(e liveness.Effects) bool {
	if e.Probes&liveness.ProbeProtocol != 0 {
		c.ping()
	}
	if e.Probes&liveness.ProbeApplication != 0 && c.askApp != nil {
		c.askApp()
	}
	if e.Dead != 0 {
		c.log.Info("connection judged dead", "verdict", e.Dead.String())
		c.fail(fmt.Errorf("%w (%s)", ErrDead, e.Dead))
		return false
	}
	return true
}

// event passes one event to the judge, after the evidence that came before it.
// The caller acts on what it returns.
func (c *conn) event(f func(j *liveness.Judge, now liveness.Instant) liveness.Effects) liveness.Effects {
	c.judgeMu.Lock()
	defer c.judgeMu.Unlock()
	var probes liveness.Probe
	if at, ok := c.link.Raw().Take(); ok {
		probes = c.judge.Inbound(c.clock.At(at), liveness.InByte).Probes
	}
	e := f(&c.judge, c.clock.At(time.Now()))
	e.Probes |= probes
	if e.Next < c.next {
		select {
		case c.rearm <- struct{}{}:
		default:
		}
	}
	c.next = e.Next
	return e
}

// tick is the timer's event. It tells the judge of a reader that is stopped.
func (c *conn) tick() liveness.Effects {
	return c.event(func(j *liveness.Judge, now liveness.Instant) liveness.Effects {
		// A peer that predates version 1 does not ping a sender that it has
		// stopped: its silence then proves nothing.
		mute := !c.version1 && !c.pinged.Load() && c.link.Stuck()
		if pause := mute || !c.reading.Load(); pause != c.paused.Load() {
			c.paused.Store(pause)
			j.PausedReading(now, pause)
		}
		if c.paused.Load() && !mute && c.reading.Load() {
			c.paused.Store(false)
			j.PausedReading(now, false)
		}
		return j.Tick(now)
	})
}

// beginRead and endRead enclose each wait for bytes.
func (c *conn) beginRead() {
	c.reading.Store(true)
	if c.paused.Load() {
		c.act(c.tick())
	}
}

func (c *conn) endRead() { c.reading.Store(false) }

// ping asks on the WebSocket layer and returns at once.
func (c *conn) ping() {
	if !c.link.RoomForControl() {
		return
	}
	// Ends with its pong, after pongWait, or with the connection.
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), pongWait)
		defer cancel()
		c.ws.Ping(ctx) // that no pong came is not its business to judge
	}()
}

// Wake asks every question at once: the network changed, the machine woke, or
// a person looks. It judges nothing by itself.
func (c *conn) Wake() {
	c.act(c.event(func(j *liveness.Judge, now liveness.Instant) liveness.Effects { return j.Wake(now) }))
}

// State is what a person may be told about the connection.
func (c *conn) State() liveness.State {
	e := c.tick()
	c.act(e)
	return e.State
}

// Done is closed when the connection is over.
func (c *conn) Done() <-chan struct{} { return c.over }

// Err says why the connection is over, or nil: a *CloseError, ErrDead,
// ErrClosed or ErrBadText.
func (c *conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// end notes why the connection is over. It reports whether it was the first.
func (c *conn) end(err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return false
	}
	c.err = err
	close(c.over)
	return true
}

// fail gives a connection up without a word to the peer.
func (c *conn) fail(err error) {
	c.end(err)
	c.link.Abort()
	c.ws.CloseNow()
}

// broken turns an error of the WebSocket code into the connection's end.
func (c *conn) broken(err error) error {
	out := &CloseError{Code: wire.CloseAbnormal, Cause: err}
	var frame websocket.CloseError
	if errors.As(err, &frame) {
		out = &CloseError{Code: wire.CloseCode(frame.Code), Reason: c.clean(frame.Reason)}
	} else if errors.Is(err, websocket.ErrMessageTooBig) {
		out = &CloseError{Code: wire.CloseTooBig, Reason: "message too big", Cause: err}
	}
	if c.end(out) {
		// Not abort: an answer to the peer's close frame, or the code that says
		// what was wrong with its frames, is still to go out.
		c.ws.CloseNow()
	}
	return c.Err()
}

// CloseNow ends the connection without a close frame: for a path that is dead.
func (c *conn) CloseNow() { c.fail(ErrClosed) }

// CloseWith sends what waits and a close frame, and returns when the peer has
// answered it, at the latest 2 s after it has left. A peer that takes nothing
// is given up after 10 s. The reason is cut to 123 bytes.
func (c *conn) CloseWith(code wire.CloseCode, reason string) {
	c.closeBy(code, reason, link.FlushTimeout)
}

// CloseSoon is CloseWith that gives up a peer that takes nothing after 2 s, so
// it returns within 4 s: for a stop that somebody waits for.
func (c *conn) CloseSoon(code wire.CloseCode, reason string) {
	c.closeBy(code, reason, wire.DrainTimeout)
}

func (c *conn) closeBy(code wire.CloseCode, reason string, flush time.Duration) {
	if c.beginBye(ErrClosed) {
		c.sayBye(code, reason, flush)
		return
	}
	c.mu.Lock()
	bye := c.bye
	c.mu.Unlock()
	if bye != nil {
		<-bye
		return
	}
	// The other side or the judge was first; what waits to go out does so by
	// itself, within the link's limits.
	c.ws.CloseNow()
	<-c.link.Done()
}

// beginBye ends the connection for err. Who gets true must call sayBye.
func (c *conn) beginBye(err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return false
	}
	c.err = err
	c.bye = make(chan struct{})
	close(c.over)
	return true
}

// sayBye closes with a close frame.
func (c *conn) sayBye(code wire.CloseCode, reason string, flush time.Duration) {
	defer close(c.bye)
	finished := make(chan struct{})
	// Ends with the close handshake, or with abort below, and is waited for.
	go func() {
		defer close(finished)
		c.ws.Close(websocket.StatusCode(code), wire.CleanReason(reason))
	}()
	timer := time.NewTimer(flush)
	defer timer.Stop()
	c.link.WaitBye(timer.C)
	timer.Reset(wire.DrainTimeout)
	select {
	case <-finished:
		select {
		case <-c.link.Done():
		case <-timer.C:
		}
	case <-timer.C:
	}
	c.link.Abort()
	<-finished
	<-c.link.Done()
}
