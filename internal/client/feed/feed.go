// Package feed follows an account at its relay, over every loss of the
// connection: the machines as they are, and the relay's notices.
//
// It prints nothing and decides about no machine. What a caller will get wrong: a
// State that is not Live is what was known, kept so that it can be shown as
// stale; and ages of its times count from now plus State.Ahead, since they are
// the relay's.
package feed

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"holdfast/internal/client"
	"holdfast/internal/liveness"
	"holdfast/internal/netwatch"
	"holdfast/internal/wire"
	"holdfast/internal/wsconn"
)

// idle is how long a feed may be silent before it is asked: the relay makes
// bytes move every 25 s, so half of it would ask on every healthy link, and with
// double a dead one would show a minute later.
const idle = 35 * time.Second

// maxRead bounds the acknowledgements that are remembered: as many as a relay
// keeps notices.
const maxRead = 1_000

// State is what is known of an account, all of it, at one moment.
type State struct {
	// Machines are by name; nil before the first answer.
	Machines []wire.FeedMachine
	// Notices are the unread ones, the oldest first.
	Notices []wire.NoticeInfo
	// Ahead is by how much the relay's clock is ahead of this computer's: ages of
	// its times are counted from now plus this.
	Ahead time.Duration
	// Live says that this is the present state. Otherwise it is what was known at
	// Heard, and Err says why; both are zero before the first answer.
	Live  bool
	Heard time.Time
	Err   error
}

// Feed follows the machines and notices of one account, over every loss of its
// connection.
type Feed struct {
	// Netwatch is how sleep and network changes are noticed; its zero value
	// watches this computer. Set it before Run.
	Netwatch netwatch.Options

	dialer  client.Dialer
	targets []client.Target
	on      func(State)

	mu   sync.Mutex
	conn *wsconn.Control // nil while there is none
	read []string        // acknowledged, and perhaps not arrived

	// Of Run alone.
	state State
	known map[wire.MachineID]wire.FeedMachine
	wake  chan struct{} // capacity 1
}

// New makes a Feed of the account that all targets belong to; where the
// relay refuses the token of one, that of the next is tried. on hears each new
// state, one call at a time, and must not block.
func New(d client.Dialer, targets []client.Target, on func(State)) (*Feed, error) {
	if len(targets) == 0 || on == nil {
		return nil, errors.New("follow an account: no token, or nobody to tell")
	}
	return &Feed{Netwatch: netwatch.Options{Logger: d.Log}, dialer: d, targets: targets, on: on, wake: make(chan struct{}, 1)}, nil
}

// Acknowledge marks a notice read. It returns at once; what is lost on the way is
// sent again for as long as the feed runs and the relay still counts the notice
// as unread.
func (f *Feed) Acknowledge(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if slices.Contains(f.read, id) {
		return
	}
	if len(f.read) == maxRead {
		f.read = f.read[1:]
	}
	f.read = append(f.read, id)
	f.sendRead(id)
}

// sendRead is called with mu held.
func (f *Feed) sendRead(id string) {
	if f.conn == nil {
		return
	}
	if b, err := json.Marshal(wire.FeedMessage{Op: wire.FeedAcknowledge, ID: id}); err == nil {
		_ = f.conn.Write(b) // a connection that breaks sends it again
	}
}

// Run follows the account until ctx ends, which is no error, or until the relay
// refuses for good every token: a *client.Failure. Call it once.
func (f *Feed) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	// Ends with ctx, which the deferred cancel ends; waited for.
	wg.Go(func() {
		netwatch.Watch(ctx, f.Netwatch, func(netwatch.Kind) {
			select {
			case f.wake <- struct{}{}:
			default:
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.conn != nil {
				f.conn.Wake()
			}
		})
	})
	var last error
	for _, t := range f.targets {
		last = f.follow(ctx, t)
		var failure *client.Failure
		if last == nil || !errors.As(last, &failure) || !failure.Denied {
			break
		}
	}
	return last
}

// follow is Run with one token.
func (f *Feed) follow(ctx context.Context, t client.Target) error {
	funnel, err := liveness.NewFunnel(liveness.FunnelOptions{
		Profile: liveness.Holdfast, Backoff: liveness.PageBackoff, Rand: rand.Float64,
	})
	if err != nil {
		return err
	}
	clock := liveness.NewClock(time.Now())
	now := func() liveness.Instant { return clock.At(time.Now()) }
	act := funnel.Start(now())
	for {
		switch {
		case act.Phase == liveness.Stopped:
			return f.state.Err
		case act.Connect != 0:
			socket := act.Connect
			err := f.connect(ctx, t, func() { funnel.Ready(now(), socket) })
			if ctx.Err() != nil {
				return nil
			}
			f.lost(diagnose(err, t))
			act = funnel.Fail(now(), socket, failureOf(err))
		default:
			timer := time.NewTimer(max(act.Next-now().Mono, 0))
			select {
			case <-ctx.Done():
				timer.Stop()
				return nil
			case <-f.wake:
				act = funnel.Wake(now())
			case <-timer.C:
				act = funnel.Tick(now())
			}
			timer.Stop()
		}
	}
}

// diagnose is Diagnose of a feed.
func diagnose(err error, t client.Target) *client.Failure {
	failure := client.Diagnose(err, t)
	var refusal *wsconn.Refusal
	if errors.As(err, &refusal) && refusal.Believed() && refusal.Code == wire.RefusalNotFound {
		failure.Err = errors.New("it is too old to be followed")
		failure.Do, failure.Denied = "update the relay, or ask it again and again instead", true
	}
	return failure
}

// lost tells that what is known is not the present any more.
func (f *Feed) lost(err error) {
	var closed *wsconn.CloseError
	if errors.As(err, &closed) && closed.Cause == nil && f.state.Live {
		f.state.Heard = time.Now() // it said goodbye
	}
	f.state.Live, f.state.Err = false, err
	f.on(f.snapshot())
}

// failureOf says what an error means for the next attempt.
func failureOf(err error) liveness.Failure {
	why := liveness.Failure{Cause: liveness.CauseError, Reason: err.Error()}
	var refusal *wsconn.Refusal
	var closed *wsconn.CloseError
	switch {
	case errors.As(err, &refusal):
		why.Cause, why.After = liveness.CauseRefused, refusal.RetryAfter
		why.Code = liveness.CodeOfRefusal(refusal.Status, refusal.Believed())
	case errors.As(err, &closed):
		why.Cause, why.Code, why.Reason = liveness.CauseClosed, uint16(closed.Code), closed.Reason
	case errors.Is(err, wsconn.ErrDead), errors.Is(err, errNotReady):
		why.Cause = liveness.CauseJudged
	}
	return why
}

// errNotReady says that a connection opened and then said nothing.
var errNotReady = errors.New("the relay opened the feed and sent nothing")

// connect makes one connection and reads until it is over. The error is never
// nil.
func (f *Feed) connect(ctx context.Context, t client.Target, ready func()) error {
	relay, err := client.ParseRelayURL(t.Relay, f.dialer.InsecureHTTP)
	if err != nil {
		return err
	}
	cfg := liveness.Live()
	cfg.Ready = 0 // judged here: the connection does not know which frame is the first
	cfg.Tracks[0].Idle = idle
	if f.dialer.Keepalive != 0 {
		if cfg, err = cfg.WithKeepalive(f.dialer.Keepalive); err != nil {
			return err
		}
	}
	ping, err := wire.EncodeControl(wire.Message{Op: wire.OpPing})
	if err != nil {
		return err
	}
	c, err := wsconn.DialControl(ctx, wsconn.Options{
		Relay: relay, Path: wire.PathAccount, Token: t.Token, Proxy: f.dialer.Proxy, InsecureHTTP: f.dialer.InsecureHTTP,
		DialContext: f.dialer.DialContext, Log: f.dialer.Log, OnStage: f.dialer.OnStage,
		HandshakeTimeout: cfg.Handshake, MaxMessageBytes: wire.MaxFeedBytes,
	}, &cfg, func(c *wsconn.Control) {
		_ = c.Write(ping) // what cannot be asked is not answered, which is judged
	})
	if err != nil {
		return err
	}
	defer c.CloseNow()
	stop := context.AfterFunc(ctx, c.CloseNow)
	defer stop()
	late := time.AfterFunc(liveness.ReadyTimeout, c.CloseNow)
	defer late.Stop()
	f.mu.Lock()
	f.conn = c
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.conn = nil
		f.mu.Unlock()
	}()
	whole := false
	for {
		text, err := c.Read()
		if err != nil {
			if !whole && errors.Is(err, wsconn.ErrClosed) {
				return errNotReady
			}
			return err
		}
		if f.state.Live {
			f.state.Heard = time.Now()
		}
		var m wire.FeedMessage
		if json.Unmarshal(text, &m) != nil {
			continue // of a later version
		}
		done, err := f.take(m)
		if err != nil {
			return err
		}
		if done && !whole {
			whole = true
			late.Stop()
			ready()
		}
		if whole && (m.Op != "" || m.Error != nil) {
			f.on(f.snapshot())
		}
	}
}

// maxMachines bounds what one relay may make this computer remember.
const maxMachines = 100_000

// take brings the state up to a message. done says that the machines are whole.
func (f *Feed) take(m wire.FeedMessage) (done bool, err error) {
	switch {
	case m.Error != nil && m.Error.Name == wire.FeedUnavailable:
		f.state.Live, f.state.Err = false, errors.New("the relay cannot reach its store")
	case m.Op == wire.FeedMachines:
		if m.Full || f.known == nil {
			f.known = make(map[wire.MachineID]wire.FeedMachine)
		}
		for _, one := range m.Machines {
			f.known[one.Machine] = one
		}
		if len(f.known) > maxMachines {
			return false, fmt.Errorf("the relay lists more than %d machines", maxMachines)
		}
		if !m.Now.IsZero() {
			f.state.Ahead = time.Until(m.Now)
		}
		f.state.Live, f.state.Heard, f.state.Err = true, time.Now(), nil
		return !m.More, nil
	case m.Op == wire.FeedNotices:
		f.state.Notices = m.Notices
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, n := range m.Notices {
			if slices.Contains(f.read, n.ID) {
				f.sendRead(n.ID) // it has not arrived
			}
		}
	}
	return false, nil
}

// snapshot is the state as others may keep it.
func (f *Feed) snapshot() State {
	s := f.state
	if f.known != nil {
		s.Machines = slices.SortedFunc(maps.Values(f.known), func(a, b wire.FeedMachine) int { return cmp.Compare(a.Machine, b.Machine) })
		if s.Machines == nil {
			s.Machines = []wire.FeedMachine{}
		}
	}
	s.Notices = slices.Clone(s.Notices)
	return s
}
