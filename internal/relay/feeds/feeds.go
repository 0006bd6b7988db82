// Package feeds serves the relay's own live channels under /v1/live/: "path", on
// which a device measures how long a quiet connection lives, and nothing else
// yet.
//
// It verifies no token: the caller has, and asks again through Recheck once the
// connection is in the axes. What a caller will get wrong: the channel "path" is
// silent on purpose, so it must not be given a keepalive.
package feeds

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"holdfast/internal/engine"
	"holdfast/internal/relay/axes"
	"holdfast/internal/wire"
	"holdfast/live"
)

const (
	// pathAge bounds a measuring connection: the longest idle limit that is
	// known of a proxy is 15 min, and nobody waits for more.
	pathAge = 20 * time.Minute
	// pathRate bounds what a device sends while it measures: one message each
	// five seconds.
	pathRate = 60
	// minTicks is how often the relay may be asked to speak.
	minTicks = time.Second
)

// Options of New; all are required.
type Options struct {
	Axes *axes.Axes
	Log  *slog.Logger
	// Recheck asks about a token again, once its connection is in the axes: a
	// zero code means that it is as good as before.
	Recheck func(ctx context.Context, t engine.Token) (wire.CloseCode, string)
}

// Feeds is safe for concurrent use.
type Feeds struct {
	Options
	quiet *live.Server
}

// New makes the channels.
func New(o Options) (*Feeds, error) {
	if o.Axes == nil || o.Log == nil || o.Recheck == nil {
		return nil, errors.New("feeds: every option is required")
	}
	quiet, err := live.New(live.Options{
		Keepalive: -1, Silence: pathAge, MaxAge: pathAge, MaxMessage: wire.MaxControlBytes,
		Rate: live.Rate{Count: pathRate, Per: time.Minute}, Origins: []string{"*"}, Log: o.Log,
	})
	if err != nil {
		return nil, fmt.Errorf("feeds: %w", err)
	}
	return &Feeds{Options: o, quiet: quiet}, nil
}

// Has reports whether there is a channel of this name.
func (f *Feeds) Has(channel string) bool { return channel == wire.ChannelPath }

// Serve upgrades a request whose token was verified, for a channel that Has
// knows. It returns at once.
func (f *Feeds) Serve(w http.ResponseWriter, r *http.Request, t engine.Token) {
	// Pages authenticate with a bearer token, so any origin will do.
	f.quiet.Handler(func(*http.Request) (live.Handler, error) { return &path{feeds: f, token: t}, nil }).ServeHTTP(w, r)
}

// Close ends every connection that is still there, at the latest with ctx.
func (f *Feeds) Close(ctx context.Context) {
	// The error says that some had to be dropped, which is what is wanted.
	_ = f.quiet.Shutdown(ctx, 0)
}

// member is a connection's place in the axes.
type member struct {
	axes.Member
	conn *live.Conn
}

// End implements axes.Ender.
func (m *member) End(code wire.CloseCode, reason string) { m.conn.Close(uint16(code), reason) }

// path is one measuring connection.
type path struct {
	feeds  *Feeds
	token  engine.Token
	member member
	ticks  context.CancelFunc
	ended  chan struct{} // closed when ticks has stopped; nil before it began
}

func (p *path) Open(ctx context.Context, c *live.Conn) error {
	p.member.conn = c
	p.member.Init(&p.member, "", axes.Live)
	p.feeds.Axes.Add(&p.member.Member, p.token)
	if code, reason := p.feeds.Recheck(ctx, p.token); code != 0 {
		return &live.Refusal{Code: uint16(code), Reason: reason}
	}
	return nil
}

func (p *path) Message(_ context.Context, c *live.Conn, message json.RawMessage) error {
	var m struct {
		Op      string `json:"op"`
		EveryMs int64  `json:"everyMs"`
	}
	if json.Unmarshal(message, &m) != nil || m.Op != "ticks" {
		return nil // noise: read and not answered
	}
	p.stop()
	every := time.Duration(min(m.EveryMs, pathAge.Milliseconds())) * time.Millisecond
	if every < minTicks {
		return &live.Error{Name: "BadRequest", Params: []any{"everyMs"}}
	}
	ctx, cancel := context.WithCancel(c.Context())
	p.ticks, p.ended = cancel, make(chan struct{})
	// Ends with the connection or by stop, which waits.
	go func(ended chan struct{}) {
		defer close(ended)
		t := time.NewTicker(every)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
				if c.Send(map[string]string{"op": "tick"}) != nil {
					return
				}
			}
		}
	}(p.ended)
	return nil
}

func (p *path) stop() {
	if p.ticks != nil {
		p.ticks()
		<-p.ended
		p.ticks = nil
	}
}

func (p *path) Close(*live.Conn, live.End) {
	p.stop()
	p.feeds.Axes.Remove(&p.member.Member)
}

// Changed says that something about an account's machines has changed.
func (f *Feeds) Changed(engine.AccountID) {}
