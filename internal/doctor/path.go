package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"holdfast/internal/client"
	"holdfast/internal/liveness"
	"holdfast/internal/wire"
	"holdfast/internal/wsconn"
)

// Quiet says which direction of a connection carries nothing.
type Quiet string

// The three ways to be quiet. Some proxies count bytes of either direction as
// life, some only those of the server.
const (
	QuietBoth Quiet = "both directions quiet"
	QuietDown Quiet = "relay to device quiet"
	QuietUp   Quiet = "device to relay quiet"
)

var quiets = []Quiet{QuietBoth, QuietDown, QuietUp}

// PathAges are how long the connections of a measurement are left alone: just
// above the idle limits that are known of proxies (15, 30, 60, 100, 120, 240,
// 270, 300, 350 s).
var PathAges = []time.Duration{
	10 * time.Second, 16 * time.Second, 31 * time.Second, 46 * time.Second, 61 * time.Second, 76 * time.Second,
	91 * time.Second, 101 * time.Second, 121 * time.Second, 181 * time.Second, 241 * time.Second, 271 * time.Second,
	301 * time.Second, 351 * time.Second, 401 * time.Second,
}

// PathOptions of MeasurePath.
type PathOptions struct {
	Dialer client.Dialer
	// Target names the relay and the token; its machine is not reached.
	Target client.Target
	// Ages are how long quiet connections are left alone, rising; nil means
	// PathAges. Each is one connection in each of the three ways.
	Ages []time.Duration
	// Busy is how often the direction that is not quiet carries a message; zero
	// means 5 s, below every idle limit that is known.
	Busy time.Duration
	// OnSample hears each connection's end; nil means nobody. It may be called
	// from several goroutines at once.
	OnSample func(Sample)
}

// Sample is what became of one connection.
type Sample struct {
	Quiet Quiet
	Age   time.Duration // how long it was to be left alone
	// Alive says that a question was answered after that.
	Alive bool
	// Ended is when the connection was closed under us, by FIN, reset or close
	// frame; zero where it was silent, so that only the question showed it.
	Ended time.Duration
	Err   error // why it is not alive
}

// PathLimit is the idle limit of a path in one way of being quiet.
type PathLimit struct {
	Quiet Quiet
	// Survived is the longest age that was alive, Died the shortest that was
	// not; zero for none. The limit lies between the two.
	Survived, Died time.Duration
	// Told says that the end was announced (FIN, reset, close); otherwise the
	// link became a half-open one, which only a probe finds.
	Told bool
}

// PathReport is the result of MeasurePath.
type PathReport struct {
	Limits []PathLimit
	// Keepalive is the --keepalive to set, zero where none is needed below the
	// longest age that was measured.
	Keepalive time.Duration
}

// pathAnswer is how long the question after the quiet may take.
const pathAnswer = 10 * time.Second

// MeasurePath finds how long a quiet connection to the relay survives. It opens
// all connections at once and takes as long as the longest age. The error says
// that no connection could be opened at all, or that ctx ended.
func MeasurePath(ctx context.Context, o PathOptions) (PathReport, error) {
	if o.Ages == nil {
		o.Ages = PathAges
	}
	if o.Busy == 0 {
		o.Busy = 5 * time.Second
	}
	var mu sync.Mutex
	var samples []Sample
	var dialErr error
	var wg sync.WaitGroup
	for _, age := range o.Ages {
		for _, q := range quiets {
			wg.Go(func() { // ends with its age, or with ctx
				s, err := o.sample(ctx, q, age)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					dialErr = err
					return
				}
				samples = append(samples, s)
				if o.OnSample != nil {
					o.OnSample(s)
				}
			})
		}
	}
	wg.Wait()
	switch {
	case ctx.Err() != nil:
		return PathReport{}, context.Cause(ctx)
	case dialErr != nil:
		return PathReport{}, dialErr
	}
	return summarize(samples), nil
}

// sample opens one connection, leaves it alone and asks.
func (o *PathOptions) sample(ctx context.Context, q Quiet, age time.Duration) (Sample, error) {
	s := Sample{Quiet: q, Age: age}
	relay, err := client.ParseRelayURL(o.Target.Relay, o.Dialer.InsecureHTTP)
	if err != nil {
		return s, err
	}
	// No track and no keepalive: nothing of ours breaks the silence.
	c, err := wsconn.DialControl(ctx, wsconn.Options{
		Relay: relay, Path: wire.PathProbe, Token: o.Target.Token, Proxy: o.Dialer.Proxy, InsecureHTTP: o.Dialer.InsecureHTTP,
	}, &liveness.Config{}, func(*wsconn.Control) {})
	if err != nil {
		return s, fmt.Errorf("open a connection to measure: %w", err)
	}
	defer c.CloseNow()
	opened := time.Now()
	pong := make(chan struct{}, 1)
	go func() { // ends with the connection
		for {
			b, err := c.Read()
			if err != nil {
				return
			}
			if m, err := wire.DecodeControl(b); err == nil && m.Op == wire.OpPong {
				select {
				case pong <- struct{}{}:
				default:
				}
			}
		}
	}()
	send := func(text string) { _ = c.Write([]byte(text)) } // a dead one is found by the question
	busy := time.NewTicker(o.Busy)
	defer busy.Stop()
	if q == QuietUp {
		// The only message of this side: asks the relay to speak.
		send(wire.PathProbeTicks(o.Busy))
	}
	alone := time.NewTimer(age)
	defer alone.Stop()
	for quiet := true; quiet; {
		select {
		case <-ctx.Done():
			return s, context.Cause(ctx)
		case <-c.Done():
			s.Ended, s.Err = time.Since(opened), c.Err()
			return s, nil
		case <-busy.C:
			if q == QuietDown {
				send(wire.PathProbeNoise)
			}
		case <-alone.C:
			quiet = false
		}
	}
	send(`{"op":"ping"}`)
	answer := time.NewTimer(pathAnswer)
	defer answer.Stop()
	select {
	case <-pong:
		s.Alive = true
	case <-ctx.Done():
		return s, context.Cause(ctx)
	case <-c.Done():
		// The question met a closed door: the silence was not announced before.
		s.Err = c.Err()
	case <-answer.C:
		s.Err = errors.New("no answer")
	}
	return s, nil
}

// keepalives are the values to choose from, in the order of preference.
var keepalives = []time.Duration{
	240 * time.Second, 120 * time.Second, 60 * time.Second, 45 * time.Second, 30 * time.Second, 25 * time.Second,
	15 * time.Second, 10 * time.Second, 5 * time.Second,
}

// summarize turns samples into limits and a keepalive.
func summarize(samples []Sample) PathReport {
	var r PathReport
	var limit time.Duration // the shortest that is known to be safe, zero for none
	for _, q := range quiets {
		l := PathLimit{Quiet: q}
		for _, s := range samples {
			switch {
			case s.Quiet != q:
			case s.Alive:
				l.Survived = max(l.Survived, s.Age)
			case l.Died == 0 || s.Age < l.Died:
				l.Died, l.Told = s.Age, s.Ended > 0
			}
			if s.Quiet == q && s.Ended > 0 && s.Ended < l.Died {
				l.Died = s.Ended.Round(time.Second)
			}
		}
		if l.Died > 0 {
			// One lucky connection that outlived a shorter dead one proves nothing.
			l.Survived = 0
			for _, s := range samples {
				if s.Quiet == q && s.Alive && s.Age < l.Died {
					l.Survived = max(l.Survived, s.Age)
				}
			}
			safe := l.Survived
			if safe == 0 {
				safe = liveness.MinKeepalive
			}
			if limit == 0 || safe < limit {
				limit = safe
			}
		}
		r.Limits = append(r.Limits, l)
	}
	if limit > 0 {
		i := slices.IndexFunc(keepalives, func(k time.Duration) bool { return k <= limit*9/10 })
		r.Keepalive = liveness.MinKeepalive
		if i >= 0 {
			r.Keepalive = keepalives[i]
		}
	}
	return r
}
