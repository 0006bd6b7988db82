// Package park keeps control connections: WebSockets of agents that say a few
// bytes a minute and stay for months. It reads their small messages, answers
// pings and close frames, queues what is sent to them, and tells their owner.
//
// It knows nothing of what the messages mean, and an idle connection holds
// nothing here that could be saved: on Linux a plain TCP socket is taken out of
// the Go runtime and waits in epoll, without goroutine and without buffer;
// elsewhere a goroutine waits for it.
//
// What a caller will get wrong: a Handler runs on the goroutine that serves many
// connections, so it must not block; and a parked net.Conn is not the caller's
// any more, nor may its old value be used.
package park

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/frame"
	"holdfast/internal/park/wheel"
	"holdfast/internal/wire"
)

// Handler is told what happens to a connection. The calls for one connection
// never overlap. They must not block and must not wait for another connection's
// call; Send, Ping, Close and ExpireAfter never do.
type Handler interface {
	// Message is called for each text or binary message, and for each ping and
	// pong frame after it was answered. The payload is valid during the call
	// only. Text is not checked to be UTF-8.
	Message(c *Conn, op frame.Opcode, payload []byte)
	// Expired is called when the time set by ExpireAfter is over, up to a second
	// late; the connection stays open.
	Expired(c *Conn)
	// Closed is called once, and nothing after it: when the peer has closed or
	// broken the connection, or when a Close of ours is done.
	Closed(c *Conn, e End)
}

// End is how a connection ended.
type End struct {
	// Code and Reason are those of the first close frame, of either side; 1006
	// where there was none. The peer's reason is cleaned.
	Code   wire.CloseCode
	Reason string
	// ByPeer says that the peer ended it, by a close frame, by hanging up or by
	// breaking the protocol.
	ByPeer bool
	// Err is the error behind it, if any.
	Err error
}

var (
	// ErrClosed says that a connection, or the whole Lot, is closed or closing.
	ErrClosed = errors.New("parked connection is closed")
	// ErrFull says that a peer does not read: too much waits to be sent to it.
	ErrFull = errors.New("send queue of a parked connection is full")
)

// Options of a Lot.
type Options struct {
	// MaxMessage is the largest message taken from a peer, in bytes; more closes
	// with 1009. Zero means wire.MaxControlBytes.
	MaxMessage int
	// MaxQueue is how many bytes may wait to be sent to one peer; zero means
	// 64 KiB, sixteen of the largest control messages.
	MaxQueue int
	// CloseTimeout bounds how long a connection that was sent a close frame is
	// read on; zero means wire.DrainTimeout.
	CloseTimeout time.Duration
	// Goroutines turns the form without goroutines off.
	Goroutines bool
}

const defaultMaxQueue = 64 << 10

// Lot holds parked connections.
type Lot struct {
	opt   Options
	wheel *wheel.Wheel[*Conn]
	poll  *pollers // nil where there is none, or none is wanted

	mu     sync.Mutex
	closed bool
	// waiting are the connections of the goroutine form.
	waiting map[*Conn]struct{}
	// running counts their goroutines.
	running sync.WaitGroup

	// freezing is held from Freeze to Thaw, and frozen belongs to its holder.
	freezing sync.Mutex
	frozen   []Frozen

	epoll atomic.Int64 // connections in the form without goroutine
	held  atomic.Int64 // bytes of incomplete frames and of queues
}

// New makes a Lot. Its owner must Close it.
func New(o Options) (*Lot, error) {
	if o.MaxMessage < 0 || o.MaxQueue < 0 || o.CloseTimeout < 0 {
		return nil, errors.New("make a parking lot: negative limit")
	}
	if o.MaxMessage == 0 {
		o.MaxMessage = wire.MaxControlBytes
	}
	if o.MaxQueue == 0 {
		o.MaxQueue = defaultMaxQueue
	}
	if o.CloseTimeout == 0 {
		o.CloseTimeout = wire.DrainTimeout
	}
	l := &Lot{opt: o, waiting: make(map[*Conn]struct{})}
	l.wheel = wheel.New(func(c *Conn) *wheel.Entry { return &c.expiry }, (*Conn).expired)
	if !o.Goroutines {
		var err error
		if l.poll, err = newPollers(l); err != nil {
			return nil, fmt.Errorf("make a parking lot: %w", err)
		}
	}
	return l, nil
}

// Park takes over an upgraded connection, with what was read behind its upgrade
// request, and answers for it from now on. It may call h before it returns. With
// an error the connection stays the caller's: ErrClosed, or the system's.
func (l *Lot) Park(conn net.Conn, pending []byte, h Handler) (*Conn, error) {
	if conn == nil || h == nil {
		return nil, errors.New("park a connection: connection and handler are required")
	}
	if l.poll != nil {
		if c, err := l.poll.park(conn, pending, h); c != nil || err != nil {
			return c, err
		}
	}
	return l.parkWaiting(conn, pending, h)
}

// Stats of a Lot.
type Stats struct {
	// Epoll and Goroutine count the connections of each form.
	Epoll, Goroutine int
	// HeldBytes are held for peers: incomplete frames and send queues.
	HeldBytes int64
}

// Stats may be called at any time.
func (l *Lot) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Stats{Epoll: int(l.epoll.Load()), Goroutine: len(l.waiting), HeldBytes: l.held.Load()}
}

// Close drops every connection at once, without a close frame (use Conn.Close
// before), and waits for all goroutines. Each Handler is told ErrClosed.
func (l *Lot) Close() {
	l.mu.Lock()
	l.closed = true
	var waiting []*Conn
	for c := range l.waiting {
		waiting = append(waiting, c)
	}
	l.mu.Unlock()
	for _, c := range waiting {
		c.drop(ErrClosed)
	}
	if l.poll != nil {
		l.poll.close()
	}
	l.running.Wait()
	l.wheel.Stop()
}
