// Package feeds serves the relay's own live channels under /v1/live/: "account",
// which tells a device the machines of its account as they are and as they
// change, and the relay's notices; and "path", on which it measures how long a
// quiet connection lives.
//
// It verifies no token: the caller has, and asks again through Recheck once the
// connection is in the axes. It keeps nothing about an account that nobody looks
// at. What a caller will get wrong: Changed must be called after a change can be
// seen, not before; and the channel "path" is silent on purpose, so it must not
// be given a keepalive.
package feeds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"holdfast/internal/engine"
	"holdfast/internal/relay/axes"
	"holdfast/internal/relay/proof"
	"holdfast/internal/wire"
	"holdfast/live"
)

// Options of New; all are required.
type Options struct {
	Store  engine.Store
	Axes   *axes.Axes
	Prover *proof.Prover
	Log    *slog.Logger
	// Presences are what the holders of an account's machines said for devices.
	Presences func(id engine.AccountID) map[wire.MachineID]string
	// Recheck asks about a token again, once its connection is in the axes: a
	// zero code means that it is as good as before.
	Recheck func(ctx context.Context, t engine.Token) (wire.CloseCode, string)
	// Take counts a connection as one of the token's streams, if it may have one
	// more; each success is undone by one Release.
	Take    func(t engine.Token) bool
	Release func(tokenID string)
}

func (o *Options) check() error {
	if o.Store == nil || o.Axes == nil || o.Prover == nil || o.Log == nil || o.Presences == nil ||
		o.Recheck == nil || o.Take == nil || o.Release == nil {
		return errors.New("feeds: every option is required")
	}
	return nil
}

// Feeds is safe for concurrent use.
type Feeds struct {
	Options
	quiet *live.Server // for "path"
	feed  *live.Server // for "account"

	mu     sync.Mutex
	rooms  map[engine.AccountID]*room
	closed bool
	wg     sync.WaitGroup // of the rooms
}

// New makes the channels.
func New(o Options) (*Feeds, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	f := &Feeds{Options: o, rooms: make(map[engine.AccountID]*room)}
	// Pages authenticate with a bearer token, so any origin will do.
	any := []string{"*"}
	var err error
	f.quiet, err = live.New(live.Options{
		Keepalive: -1, Silence: pathAge, MaxAge: pathAge, MaxMessage: wire.MaxControlBytes,
		Rate: live.Rate{Count: pathRate, Per: time.Minute}, Origins: any, Log: o.Log,
	})
	if err == nil {
		f.feed, err = live.New(live.Options{MaxMessage: wire.MaxControlBytes, Origins: any, Log: o.Log})
	}
	if err != nil {
		return nil, fmt.Errorf("feeds: %w", err)
	}
	return f, nil
}

// Has reports whether there is a channel of this name.
func (f *Feeds) Has(channel string) bool {
	return channel == wire.ChannelPath || channel == wire.ChannelAccount
}

// Serve upgrades a request whose token was verified, for a channel that Has
// knows. It returns at once.
func (f *Feeds) Serve(w http.ResponseWriter, r *http.Request, channel string, t engine.Token) {
	s := seat{feeds: f, token: t}
	server, handler := f.quiet, live.Handler(&path{seat: s})
	if channel == wire.ChannelAccount {
		server, handler = f.feed, &follower{seat: s, dirty: make(chan struct{}, 1)}
	}
	server.Handler(func(*http.Request) (live.Handler, error) { return handler, nil }).ServeHTTP(w, r)
}

// Changed says that something about an account's machines has changed. It
// returns at once.
func (f *Feeds) Changed(id engine.AccountID) {
	f.mu.Lock()
	r := f.rooms[id]
	f.mu.Unlock()
	if r != nil {
		signal(r.dirty)
	}
}

// Hear is told of each change in the Store, and of the zero Change where some
// were missed. It returns at once.
func (f *Feeds) Hear(c engine.Change) {
	machines := c.Kind == engine.ChangeMachine || c.Kind == ""
	notices := c.Kind == engine.ChangeNotice || c.Kind == ""
	if !machines && !notices {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, r := range f.rooms {
		if c.Account != "" && c.Account != id {
			continue
		}
		if machines {
			signal(r.dirty)
		}
		if notices {
			signal(r.mail)
		}
	}
}

// Stats are those of all channels together.
func (f *Feeds) Stats() map[string]int64 {
	out := make(map[string]int64)
	for _, s := range []live.Stats{f.quiet.Stats(), f.feed.Stats()} {
		for name, n := range map[string]int64{
			"opened": s.Opened, "closed_by_peer": s.ClosedByPeer, "lost": s.Lost, "dead": s.Dead, "probed": s.ProbesSent,
			"slow_reader": s.SlowReaders, "refused": s.Refused, "aged": s.Aged, "late_open": s.LateOpens,
			"rate_limited": s.RateLimited, "not_json": s.NotJSON, "too_big": s.TooBig,
		} {
			out[name] += n
		}
	}
	return out
}

// Close ends every connection that is still there, at the latest with ctx, and
// what served them.
func (f *Feeds) Close(ctx context.Context) {
	var wg sync.WaitGroup
	for _, s := range []*live.Server{f.quiet, f.feed} {
		// The error says that some had to be dropped, which is what is wanted.
		wg.Go(func() { _ = s.Shutdown(ctx, 0) })
	}
	wg.Wait()
	f.mu.Lock()
	f.closed = true
	for _, r := range f.rooms {
		r.cancel()
	}
	f.mu.Unlock()
	f.wg.Wait()
}

// seat is a connection's place among the relay's sockets.
type seat struct {
	axes.Member
	feeds *Feeds
	token engine.Token
	conn  *live.Conn
	taken bool
}

// End implements axes.Ender.
func (s *seat) End(code wire.CloseCode, reason string) { s.conn.Close(uint16(code), reason) }

// sit takes the place, or says why not; leave gives it back in either case.
func (s *seat) sit(ctx context.Context, c *live.Conn) error {
	s.conn = c
	s.Init(s, "", axes.Live)
	s.feeds.Axes.Add(&s.Member, s.token)
	if code, reason := s.feeds.Recheck(ctx, s.token); code != 0 {
		return &live.Refusal{Code: uint16(code), Reason: reason}
	}
	if s.taken = s.feeds.Take(s.token); !s.taken {
		return &live.Refusal{Code: uint16(wire.CloseLimit), Reason: "this token has too many streams"}
	}
	return nil
}

func (s *seat) leave() {
	s.feeds.Axes.Remove(&s.Member)
	if s.taken {
		s.feeds.Release(s.token.ID)
	}
}

// signal sets a flag that a channel of capacity 1 is.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
