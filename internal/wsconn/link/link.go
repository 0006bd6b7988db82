// Package link stands between the WebSocket code of a dialling side and its
// connection: writes never block, control frames come whole, bytes that come in
// are counted below TLS, and a close lets the last bytes arrive.
//
// It judges nothing and knows frames only as far as that needs. What a caller
// will get wrong: data must wait in WaitRoom before it is written, because a
// Write that finds no room fails instead of waiting.
package link

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/wire"
)

const (
	// HighWaterBytes is how much may wait in a link before data is made to wait
	// at its source: one message. At half a 32 KiB message could never be
	// prepared while another is sent; at double a stream holds more for nothing.
	HighWaterBytes = wire.MaxMessageBytes
	// controlReserveBytes is kept free beyond one whole message for pings, pongs
	// and the close frame, so that none of them ever waits behind a blocked peer.
	// A ping and a pong every 5 s (the least keep-alive) fill it in half an hour
	// of a peer that reads nothing; from then on they are left out.
	controlReserveBytes = 4 << 10
	// BufferBytes is what one link can hold: the high water, a message and
	// its header, and the reserve.
	BufferBytes = HighWaterBytes + wire.MaxMessageBytes + 64 + controlReserveBytes
	// controlFrameBytes is the longest control frame of a client.
	controlFrameBytes = 2 + 4 + 125
	// closeFrame is the first byte of a close frame.
	closeFrame = 0x88
	// FlushTimeout bounds the last writes of a link that is being closed, for
	// each of the at most two buffers that wait: 72 KiB pass in it at 8 KB/s.
	FlushTimeout = 10 * time.Second
)

// Meter counts what comes in from the network, below TLS and WebSocket, so that
// half of a frame is a sign of life too.
type Meter struct {
	net.Conn
	closed atomic.Bool

	mu   sync.Mutex
	last time.Time // of the newest byte that came in; zero: none that Take has not told
}

// NewMeter counts what comes in on c.
func NewMeter(c net.Conn) *Meter { return &Meter{Conn: c} }

func (m *Meter) Read(p []byte) (int, error) {
	n, err := m.Conn.Read(p)
	if n > 0 {
		now := time.Now()
		m.mu.Lock()
		m.last = now
		m.mu.Unlock()
	}
	return n, err
}

// Take tells when the newest byte came in, once.
func (m *Meter) Take() (at time.Time, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at, m.last = m.last, time.Time{}
	return at, !at.IsZero()
}

func (m *Meter) Close() error {
	m.closed.Store(true)
	return m.Conn.Close()
}

// shut ends the sending side where the connection knows how to.
func (m *Meter) shut() {
	if c, ok := m.Conn.(interface{ CloseWrite() error }); ok {
		c.CloseWrite()
	}
}

// buffers holds spare link buffers: a link has one only while bytes wait in it.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, BufferBytes); return &b }}

// Link stands between the WebSocket code and the connection. Its Write never
// blocks: a goroutine does the writing. That matters because the WebSocket code
// gives a pong five seconds to be written and ends the connection when they
// pass, although a peer that has stopped reading for an hour is no fault. Data
// waits in WaitRoom, outside the WebSocket's locks.
//
// Close lets what waits go out, shuts the sending side and reads on for
// wire.DrainTimeout: closing with unread bytes would send a reset that
// overtakes the close frame. Abort does none of that.
type Link struct {
	rwc io.ReadWriteCloser // what the handshake left: TCP or TLS
	raw *Meter             // the TCP connection below it

	readMu sync.Mutex // held while in.Read runs
	in     *inbound

	mu      sync.Mutex
	queue   *[]byte // nil while nothing waits
	writing bool
	closing bool
	bye     bool // a close frame is in the queue or beyond
	err     error
	changed chan struct{} // closed, and made anew, when one of the above changes

	wake chan struct{} // capacity 1: the writer has something to do
	done chan struct{} // closed when the connection is closed and the writer gone
}

// New makes a link over rwc, which is what a handshake left of raw: TLS, or raw
// itself. Its goroutine ends after Close or Abort; Done says when.
func New(rwc io.ReadWriteCloser, raw *Meter) *Link {
	l := &Link{
		rwc: rwc, raw: raw, in: newInbound(rwc),
		changed: make(chan struct{}),
		wake:    make(chan struct{}, 1),
		done:    make(chan struct{}),
	}
	go l.run() // stopped by Close or Abort, or by a write error and then either; waited for by waiting on done
	return l
}

// Read serves the WebSocket code.
func (l *Link) Read(p []byte) (int, error) {
	l.readMu.Lock()
	defer l.readMu.Unlock()
	l.mu.Lock()
	closing := l.closing
	l.mu.Unlock()
	if closing {
		return 0, net.ErrClosed
	}
	return l.in.Read(p)
}

// Write queues p whole or fails; it never blocks.
func (l *Link) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.err != nil:
		return 0, l.err
	case l.closing:
		return 0, net.ErrClosed
	}
	if len(p) == 0 {
		return 0, nil
	}
	if l.queue == nil {
		l.queue = buffers.Get().(*[]byte)
	}
	if len(*l.queue)+len(p) > BufferBytes {
		return 0, errors.New("link buffer is full: data was written without waiting for room")
	}
	*l.queue = append(*l.queue, p...)
	if len(p) <= controlFrameBytes && p[0] == closeFrame {
		// The middle of a message can look like this too; bye is asked for only
		// once no message will follow.
		l.bye = true
		l.broadcast()
	}
	l.signal()
	return len(p), nil
}

func (l *Link) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// broadcast is called with mu held.
func (l *Link) broadcast() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// WaitRoom blocks until a message of wire.MaxMessageBytes may be written, the
// link fails, or expired is signalled: os.ErrDeadlineExceeded.
func (l *Link) WaitRoom(expired <-chan struct{}) error {
	for {
		l.mu.Lock()
		err, changed := l.err, l.changed
		if err == nil && l.closing {
			err = net.ErrClosed
		}
		room := l.queue == nil || len(*l.queue) < HighWaterBytes
		l.mu.Unlock()
		if err != nil {
			return err
		}
		if room {
			return nil
		}
		select {
		case <-changed:
		case <-expired:
			return os.ErrDeadlineExceeded
		}
	}
}

// RoomForControl reports whether a ping or a pong fits the reserve with room
// left for the close frame.
func (l *Link) RoomForControl() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queue == nil || len(*l.queue)+2*controlFrameBytes <= BufferBytes
}

// Stuck reports whether bytes wait that the network does not take.
func (l *Link) Stuck() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.writing || l.queue != nil
}

// WaitBye blocks until the close frame and all before it have left, the link
// fails, or expired is signalled.
func (l *Link) WaitBye(expired <-chan time.Time) {
	for {
		l.mu.Lock()
		gone := l.err != nil || l.bye && l.queue == nil && !l.writing
		changed := l.changed
		l.mu.Unlock()
		if gone {
			return
		}
		select {
		case <-changed:
		case <-l.done:
			return
		case <-expired:
			return
		}
	}
}

// Unsent is how many bytes wait here.
func (l *Link) Unsent() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.queue == nil {
		return 0
	}
	return len(*l.queue)
}

// run is the writer.
func (l *Link) run() {
	defer close(l.done)
	for l.writeBatch() {
	}
	l.linger()
}

// writeBatch writes what waits. It reports false when the link is to end.
func (l *Link) writeBatch() bool {
	l.mu.Lock()
	batch, closing, err := l.queue, l.closing, l.err
	if err != nil || batch == nil {
		l.mu.Unlock()
		if closing {
			return false
		}
		<-l.wake
		return true
	}
	l.queue, l.writing = nil, true
	l.broadcast()
	l.mu.Unlock()

	if closing {
		l.raw.SetWriteDeadline(time.Now().Add(FlushTimeout))
	}
	_, err = l.rwc.Write(*batch)

	l.mu.Lock()
	l.writing = false
	if err != nil {
		l.err = err
		l.queue = nil
	}
	l.broadcast()
	l.mu.Unlock()
	*batch = (*batch)[:0]
	buffers.Put(batch)
	return true
}

// linger ends the connection so that the last bytes arrive.
func (l *Link) linger() {
	defer l.raw.Close()
	l.mu.Lock()
	failed := l.err != nil
	l.mu.Unlock()
	if failed || l.raw.closed.Load() {
		return
	}
	l.readMu.Lock() // the reader has left: Close made its read return
	defer l.readMu.Unlock()
	l.raw.shut()
	l.raw.SetReadDeadline(time.Now().Add(wire.DrainTimeout))
	io.Copy(io.Discard, l.raw.Conn)
}

// Done is closed when the connection is closed and the writer has ended.
func (l *Link) Done() <-chan struct{} { return l.done }

// Raw is the TCP connection below.
func (l *Link) Raw() *Meter { return l.raw }

// Close lets what waits go out. It returns at once; Done says when the
// connection is closed.
func (l *Link) Close() error {
	l.mu.Lock()
	if !l.closing {
		l.closing = true
		if l.writing {
			l.raw.SetWriteDeadline(time.Now().Add(FlushTimeout))
		}
		l.raw.SetReadDeadline(time.Unix(1, 0))
		l.broadcast()
	}
	l.mu.Unlock()
	l.signal()
	return nil
}

// Abort closes the connection at once. What waits is lost.
func (l *Link) Abort() {
	l.raw.Close()
	l.mu.Lock()
	l.closing = true
	if l.err == nil {
		l.err = net.ErrClosed
	}
	l.broadcast()
	l.mu.Unlock()
	l.signal()
}
