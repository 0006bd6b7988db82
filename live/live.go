// Package live serves channels to pages that stay open for hours: on every open
// a channel sends the state as it is, and then what changes, so reconnecting is
// synchronising. It keeps links awake below the idle limits of proxies, finds
// dead ones by asking before judging, never waits for a slow reader, and tells
// clients by the close code whether to come back.
//
// It never remembers what a connection missed, never decides who a person is
// (Accept and Open do), and never blocks a sender on the network.
//
// What a caller will get wrong: one connection's Open, Message and Close never
// run at the same time, but those of two connections of one person do; a close
// event is no proof that somebody left (a frozen page closes only when it
// thaws), so what costs something must end by time, see
// channels.Lease.
package live

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gobwas/ws"

	"holdfast/internal/frame"
	"holdfast/internal/liveness"
)

// Handler is one connection's side of a channel. Its methods are called one at
// a time, Open first and Close last; ctx ends with the connection.
type Handler interface {
	// Open authorises, then sends the current state. Messages of the client wait
	// until it returns; its probes are answered meanwhile. An error is fatal: a
	// *Refusal closes with its code, anything else is sent as an error frame
	// (see Error) and closes 4000.
	Open(ctx context.Context, c *Conn) error
	// Message handles one JSON message. An error is soft: it is sent as an error
	// frame and the connection stays. A *Refusal closes with its code.
	Message(ctx context.Context, c *Conn, message json.RawMessage) error
	// Close hears once how the connection ended, whether or not Open succeeded.
	Close(c *Conn, end End)
}

// End is how a connection ended.
type End struct {
	// Code is the close code that was sent or received, 1006 for neither.
	Code   uint16
	Reason string
	// Verdict is why this side gave it up; empty where the peer closed.
	Verdict string
}

// Refusal is an error that ends a connection with a close code of its own.
type Refusal struct {
	Code   uint16 // 4000 to 4999, or one of RFC 6455
	Reason string // cut at 123 bytes
}

func (r *Refusal) Error() string { return fmt.Sprintf("refused with %d: %s", r.Code, r.Reason) }

// Error is an error that a client may see, as {"error":{"name":…,"params":…}}.
// Other errors are sent as {"error":{"name":"InternalError","params":[]}} and
// logged, so that nothing of the inside leaks.
type Error struct {
	Name   string
	Params []any
}

func (e *Error) Error() string { return e.Name }

// The close codes that this package sends.
const (
	closeAbnormal = 1006 // never sent
	closeRestart  = 1012
	closeTryLater = 1013
	closeHandler  = 4000
)

// Errors that Send and its kin return.
var (
	// ErrClosed says that the connection is over or ending.
	ErrClosed = errors.New("connection is closed")
	// ErrSlow says that the client did not take what was sent for too long; the
	// connection is being closed with 1013, which comes back.
	ErrSlow = errors.New("client reads too slowly")
)

// Options configure New. The zero value serves the holdfast profile.
type Options struct {
	// Profile is how the two ends talk below the channel; nil means Holdfast.
	Profile *Profile
	// Keepalive is how often the server makes bytes move in both directions, so
	// that no proxy on the path takes the link for idle. Zero means the
	// profile's own; negative none. It judges nothing.
	Keepalive time.Duration
	// Silence is how long a client may be silent, a question included, before it
	// is dead. Zero means two and a half keepalives, or the profile's own.
	Silence time.Duration
	// OpenTimeout bounds Open. Zero means 30 s.
	OpenTimeout time.Duration
	// MaxMessage bounds a client's message in bytes (1009). Zero means 64 KiB.
	MaxMessage int
	// MaxQueue and MaxQueueBytes bound what waits for a client that does not
	// read. Zero means 256 frames and 1 MiB.
	MaxQueue      int
	MaxQueueBytes int
	// WriteTimeout bounds one write to a client. Zero means 10 s.
	WriteTimeout time.Duration
	// Rate bounds a connection's messages; those over it get a soft error
	// "RateLimited" and are dropped. Zero means 100 in 60 s.
	Rate Rate
	// MaxAge closes a connection with 1012 after this long, less up to a tenth,
	// for paths that cut every connection at a fixed age. Zero means never.
	MaxAge time.Duration
	// Origins are further origins ("https://judge.example") whose pages may use
	// cookies here; "*" allows all. A request with a cookie and an Origin of
	// neither the request's own host nor this list is refused with 403.
	Origins []string
	// Log hears of handlers that fail; nil means silence.
	Log *slog.Logger
}

// Rate is so many in a period.
type Rate struct {
	Count int
	Per   time.Duration
}

// Defaults of Options, with their reasons in docs/liveness.md and the README of
// the browser client.
const (
	defaultOpenTimeout   = 30 * time.Second
	defaultMaxMessage    = 64 << 10
	defaultMaxQueue      = 256
	defaultMaxQueueBytes = 1 << 20
	defaultWriteTimeout  = 10 * time.Second
	// closeGrace is how long a closed connection is read on, so that the code
	// is not lost to a reset: browsers answer within one round trip.
	closeGrace = 2 * time.Second
	// maxInbox bounds the messages that wait for a handler. A page sends a few
	// at once after a reconnect; more means that the handler hangs.
	maxInbox = 64
)

// Server serves channels that share options and statistics. It is safe for
// concurrent use.
type Server struct {
	opt    Options
	config liveness.Config
	clock  liveness.Clock
	up     ws.HTTPUpgrader
	stats  counters

	mu       sync.Mutex
	conns    map[*Conn]struct{}
	draining bool
	empty    chan struct{} // closed once, when draining and no connection is left
	emptied  bool
}

// New makes a Server. The error says which option cannot be.
func New(o Options) (*Server, error) {
	if o.Profile == nil {
		o.Profile = Holdfast
	}
	for _, n := range []int{o.MaxMessage, o.MaxQueue, o.MaxQueueBytes, o.Rate.Count} {
		if n < 0 {
			return nil, errors.New("live: a limit is negative")
		}
	}
	for _, d := range []time.Duration{o.Silence, o.OpenTimeout, o.WriteTimeout, o.MaxAge, o.Rate.Per} {
		if d < 0 {
			return nil, errors.New("live: a time is negative")
		}
	}
	setDefault(&o.OpenTimeout, defaultOpenTimeout)
	setDefault(&o.MaxMessage, defaultMaxMessage)
	setDefault(&o.MaxQueue, defaultMaxQueue)
	setDefault(&o.MaxQueueBytes, defaultMaxQueueBytes)
	setDefault(&o.WriteTimeout, defaultWriteTimeout)
	setDefault(&o.Rate.Count, 100)
	setDefault(&o.Rate.Per, time.Minute)
	s := &Server{
		opt:    o,
		config: o.Profile.config(o.Keepalive, o.Silence, o.OpenTimeout),
		clock:  liveness.NewClock(time.Now()),
		conns:  make(map[*Conn]struct{}),
	}
	if err := s.config.Validate(); err != nil {
		return nil, fmt.Errorf("live: %w", err)
	}
	s.up = ws.HTTPUpgrader{Timeout: o.WriteTimeout, Protocol: s.opt.Profile.selects}
	return s, nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Handler makes an http.Handler of one channel. accept makes the Handler of each
// connection before the upgrade, from the request, which must not be kept; an
// error of it is answered with 403 and its text, so it should say nothing that
// a stranger may not read. Where a page must learn why it is refused, accept
// and return a *Refusal from Open: browsers hide a refused upgrade.
func (s *Server) Handler(accept func(r *http.Request) (Handler, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.originAllowed(r) {
			s.stats.crossOrigin.Add(1)
			http.Error(w, "this origin may not use cookies here", http.StatusForbidden)
			return
		}
		h, err := accept(r)
		if err != nil {
			http.Error(w, frame.CutReason(err.Error()), http.StatusForbidden)
			return
		}
		s.serve(w, r, h)
	})
}

// serve upgrades and starts the connection's reader; it returns at once.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, h Handler) {
	nc, rw, _, err := s.up.Upgrade(r, w)
	if err != nil {
		return // Upgrade has answered
	}
	// What the server's deadline was does not concern the upgraded connection.
	if err := nc.SetDeadline(time.Time{}); err != nil {
		nc.Close()
		return
	}
	c := newConn(s, nc, h)
	var early []byte
	if n := rw.Reader.Buffered(); n > 0 {
		early, _ = rw.Reader.Peek(n) // n bytes are there
		early = append([]byte(nil), early...)
	}
	if !s.add(c) {
		c.start(early)
		c.closeWith(closeRestart, liveness.RestartReason(0), "")
		return
	}
	c.start(early)
}

func (s *Server) add(c *Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns[c] = struct{}{}
	s.stats.opened.Add(1)
	return !s.draining
}

func (s *Server) remove(c *Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	s.checkEmpty()
}

// checkEmpty lets Shutdown go when all have left; s.mu is held.
func (s *Server) checkEmpty() {
	if s.draining && !s.emptied && len(s.conns) == 0 {
		s.emptied = true
		close(s.empty)
	}
}

// Shutdown closes every connection with 1012, each with a delay of its own
// within spread after which its client comes back, and waits until all have
// ended or ctx does. New connections are turned away the same way. Call it once.
func (s *Server) Shutdown(ctx context.Context, spread time.Duration) error {
	s.mu.Lock()
	if s.draining {
		s.mu.Unlock()
		return errors.New("live: shut down twice")
	}
	s.draining, s.empty = true, make(chan struct{})
	all := make([]*Conn, 0, len(s.conns))
	for c := range s.conns {
		all = append(all, c)
	}
	s.checkEmpty()
	s.mu.Unlock()
	for _, c := range all {
		c.closeWith(closeRestart, liveness.RestartReason(uniform(spread)), "")
	}
	select {
	case <-s.empty:
		return nil
	case <-ctx.Done():
		for _, c := range all {
			c.nc.Close()
		}
		return fmt.Errorf("shut down: %w", context.Cause(ctx))
	}
}

// Broadcast sends v to every connection for which to is true (nil: to all). It
// encodes once and waits for nobody.
func (s *Server) Broadcast(v any, to func(*Conn) bool) error {
	f, err := Prepare(v)
	if err != nil {
		return err
	}
	s.mu.Lock()
	all := make([]*Conn, 0, len(s.conns))
	for c := range s.conns {
		all = append(all, c)
	}
	s.mu.Unlock()
	for _, c := range all {
		if to == nil || to(c) {
			_ = c.SendPrepared(f) // one that is closed or slow ends by itself
		}
	}
	return nil
}

// Prepared is a message encoded once for many connections.
type Prepared struct{ frame []byte }

// Prepare encodes v as JSON in a text frame.
func Prepare(v any) (Prepared, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return Prepared{}, fmt.Errorf("encode a message: %w", err)
	}
	return Prepared{frame.AppendFrame(nil, frame.Text, b)}, nil
}

// uniform is a random time below d.
func uniform(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	n, err := rand.Int(rand.Reader, big.NewInt(int64(d)))
	if err != nil {
		return d / 2 // crypto/rand does not fail
	}
	return time.Duration(n.Int64())
}

// Stats are counts since New, but Open, which is now.
type Stats struct {
	Open, Opened                                    int64
	ProbesSent, Dead, LateOpens, SlowReaders        int64
	ClosedByPeer, Lost, Refused, CrossOrigin, Aged  int64
	Messages, RateLimited, NotJSON, TooBig, SoftErr int64
}

type counters struct {
	opened, probes, dead, lateOpens, slow      atomic.Int64
	closedByPeer, lost, refused, crossOrigin   atomic.Int64
	aged, messages, rateLimited, notJSON, soft atomic.Int64
	tooBig                                     atomic.Int64
}

// Stats reads the counters, for a site's own metrics.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	open := int64(len(s.conns))
	s.mu.Unlock()
	n := &s.stats
	return Stats{
		Open: open, Opened: n.opened.Load(),
		ProbesSent: n.probes.Load(), Dead: n.dead.Load(), LateOpens: n.lateOpens.Load(), SlowReaders: n.slow.Load(),
		ClosedByPeer: n.closedByPeer.Load(), Lost: n.lost.Load(), Refused: n.refused.Load(), CrossOrigin: n.crossOrigin.Load(),
		Aged: n.aged.Load(), Messages: n.messages.Load(), RateLimited: n.rateLimited.Load(), NotJSON: n.notJSON.Load(),
		TooBig: n.tooBig.Load(), SoftErr: n.soft.Load(),
	}
}

// isGone tells an ended transport from other errors, which are logged.
func isGone(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }
