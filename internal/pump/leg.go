package pump

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/frame"
	"holdfast/internal/sock"
)

const headroom = sock.Headroom

// pieceBytes is how much is written at once where progress shows only between
// writes: a record of TLS.
const pieceBytes = 16 << 10

func newChunk() *sock.Chunk { return sock.NewChunk() }

// leg is one connection of a pump.
type leg struct {
	pump     *Pump
	side     Side
	conn     net.Conn
	pending  []byte
	reader   *sock.Reader
	outbound *sock.Outbound // nil where it cannot be told
	rewriter frame.Rewriter
	control  func(frame.Opcode, []byte) // onControl, bound once

	// Of the goroutine that reads this leg.
	closePayload []byte

	// forwarded counts payload bytes that came from this leg.
	forwarded atomic.Int64
	text      atomic.Bool

	// writing holds one token while somebody writes to conn. A channel and not a
	// mutex: a write may block for as long as the peer does not read.
	writing chan struct{}
	// unsent is what a write had to leave when the pump was frozen. Whoever holds
	// the token writes it first.
	unsent []byte

	ctl   ctlQueue
	watch watch
}

// ctlQueue is what waits to be written between data frames: one frame a kind,
// however many a peer provokes.
type ctlQueue struct {
	mu     sync.Mutex
	ping   bool
	pong   []byte // encoded; only the newest ping needs an answer (RFC 6455, 5.5.3)
	close  []byte // encoded
	closed bool   // the close frame was written: nothing may follow
	broken bool   // a write failed: a frame may be cut in the middle
}

func (l *leg) init(p *Pump, side Side, from Leg) {
	l.pump, l.side, l.conn, l.pending = p, side, from.Conn, from.Pending
	l.reader = sock.NewReader(from.Conn)
	l.outbound = sock.NewOutbound(from.Conn)
	l.control = l.onControl
	l.writing = make(chan struct{}, 1)
}

// writeData writes whole data frames, then the control frames that came in
// between. It blocks while the peer does not read.
func (l *leg) writeData(b []byte) error {
	l.writing <- struct{}{}
	err := l.write(b)
	<-l.writing
	if err == nil {
		l.flush()
	}
	return err
}

// write is called with the writing token.
func (l *leg) write(b []byte) error {
	l.ctl.mu.Lock()
	stop := l.ctl.closed || l.ctl.broken
	l.ctl.mu.Unlock()
	if stop {
		return net.ErrClosed
	}
	if len(l.unsent) > 0 {
		b = append(l.unsent, b...)
		l.unsent = nil
	}
	var err error
	for err == nil && len(b) > 0 {
		piece := b
		if l.outbound == nil {
			// Without the kernel's word only what Write returns shows progress.
			piece = b[:min(len(b), pieceBytes)]
		}
		var n int
		n, err = l.conn.Write(piece)
		l.watch.written.Add(int64(n))
		b = b[n:]
	}
	if l.pump.stoppedBy(err) {
		l.unsent = append([]byte(nil), b...) // b is in a chunk that goes back
		return err
	}
	if err != nil {
		l.ctl.mu.Lock()
		l.ctl.broken = true
		l.ctl.mu.Unlock()
	}
	return err
}

// flush writes the waiting control frames, unless somebody is writing, who then
// does it next.
func (l *leg) flush() {
	for l.ctl.waiting() {
		select {
		case l.writing <- struct{}{}:
		default:
			return
		}
		frames, ping, closing := l.ctl.take()
		var err error
		if len(frames) > 0 {
			err = l.write(frames) // a failure shows in broken and at the reader too
		}
		if ping {
			l.pinged()
		}
		if closing {
			l.ctl.mu.Lock()
			l.ctl.closed = true
			l.ctl.mu.Unlock()
			if c, ok := l.conn.(interface{ CloseWrite() error }); ok && err == nil {
				c.CloseWrite()
			}
		}
		<-l.writing
	}
}

func (q *ctlQueue) waiting() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return !q.closed && !q.broken && (q.ping || q.pong != nil || q.close != nil)
}

func (q *ctlQueue) pingWaits() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.ping
}

// take empties the queue into one piece, the close frame last.
func (q *ctlQueue) take() (frames []byte, ping, closing bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || q.broken {
		return nil, false, false
	}
	frames, ping, closing = q.pong, q.ping, q.close != nil
	if ping {
		frames = frame.AppendFrame(frames, frame.Ping, nil)
	}
	frames = append(frames, q.close...)
	q.ping, q.pong, q.close = false, nil, nil
	return frames, ping, closing
}

func (l *leg) queuePong(payload []byte) {
	l.ctl.mu.Lock()
	l.ctl.pong = frame.AppendFrame(nil, frame.Pong, payload)
	l.ctl.mu.Unlock()
}

// sendPing queues a ping and writes it if nobody is writing.
func (l *leg) sendPing() {
	l.ctl.mu.Lock()
	l.ctl.ping = true
	l.ctl.mu.Unlock()
	l.flush()
}

// beginClose queues the close frame and bounds everything that is still to
// happen on this connection.
func (l *leg) beginClose(c closing) {
	l.ctl.mu.Lock()
	l.ctl.close = frame.AppendClose(nil, uint16(c.code), c.reason)
	l.ctl.mu.Unlock()
	l.conn.SetDeadline(time.Now().Add(c.timeout))
	if l.pump.isFrozen() {
		l.conn.SetDeadline(past) // Freeze may have set it before
	}
}
