package park

import (
	"errors"
	"io"
	"net"
	"time"

	"holdfast/internal/frame"
	"holdfast/internal/sock"
)

// readBytes is the buffer of the goroutine form: more than a heartbeat.
const readBytes = 512

// waiter is the goroutine form of a connection.
type waiter struct {
	conn net.Conn
	// Guarded by Conn.mu: whether a goroutine is writing, whether the reading one
	// has ended, and how the connection ended.
	writing  bool
	finished bool
	end      End
}

// parkWaiting parks conn with a goroutine.
func (l *Lot) parkWaiting(conn net.Conn, pending []byte, h Handler) (*Conn, error) {
	c := &Conn{lot: l, handler: h, kind: waiting, rare: &rare{waiter: &waiter{conn: conn}}}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, ErrClosed
	}
	l.waiting[c] = struct{}{}
	l.running.Add(1)
	// Ends when the peer hangs up, at the deadline that Close sets, or by drop;
	// Lot.Close waits for it.
	go c.waitAndRead(pending)
	return c, nil
}

// waitAndRead reads until the connection ends.
func (c *Conn) waitAndRead(pending []byte) {
	defer c.lot.running.Done()
	w := c.rare.waiter
	r := frame.NewReader(c.lot.opt.MaxMessage)
	more := len(pending) == 0 || c.feed(r, pending)
	var err error
	if more {
		buf := make([]byte, readBytes)
		held := 0
		for more && err == nil {
			var n int
			n, err = w.conn.Read(buf)
			if n > 0 {
				more = c.feed(r, buf[:n])
				c.lot.held.Add(int64(r.Held() - held))
				held = r.Held()
			}
		}
		c.lot.held.Add(-int64(held))
	}
	if err == nil {
		// Closing while bytes are unread would reset the connection and could
		// destroy the close frame on its way.
		_, err = io.Copy(io.Discard, struct{ io.Reader }{w.conn})
		if err == nil {
			err = io.EOF
		}
	}
	c.mu.Lock()
	w.finished = true
	if c.state == open {
		c.state = closing // nobody is there to read what would be sent
		w.end = lost(err)
		w.conn.SetWriteDeadline(time.Now())
	}
	writing := w.writing
	c.mu.Unlock()
	if !writing {
		c.hangUp()
	}
}

// hangUp is called by the last goroutine of a connection.
func (c *Conn) hangUp() {
	w := c.rare.waiter
	sock.HangUp(w.conn) // nothing is owed any more; an error would change nothing
	c.lot.mu.Lock()
	delete(c.lot.waiting, c)
	c.lot.mu.Unlock()
	c.mu.Lock()
	end := w.end
	c.mu.Unlock()
	c.gone(end)
}

// writeLater starts a writer where none is at work. mu is held.
func (c *Conn) writeLater() {
	w := c.rare.waiter
	if w.writing || w.finished {
		return
	}
	w.writing = true
	c.lot.running.Add(1)
	// Ends when out is empty or the connection is closed.
	go c.writeOut()
}

func (c *Conn) writeOut() {
	defer c.lot.running.Done()
	w := c.rare.waiter
	failed := false
	c.mu.Lock()
	for len(c.unsent()) > 0 {
		b := c.unsent()
		c.mu.Unlock()
		_, err := w.conn.Write(b)
		c.mu.Lock()
		c.taken(len(b))
		if err != nil {
			failed = true
			c.taken(len(c.unsent()))
			if c.state == open && !errors.Is(err, net.ErrClosed) {
				// The reader learns why, or is told to stop.
				c.state = closing
				w.end = lost(err)
				w.conn.SetReadDeadline(time.Now().Add(c.lot.opt.CloseTimeout))
			}
		}
	}
	w.writing = false
	finished := w.finished
	shut := c.state == closing
	c.mu.Unlock()
	if finished {
		c.hangUp()
	} else if shut && !failed {
		if cw, ok := w.conn.(interface{ CloseWrite() error }); ok {
			cw.CloseWrite() // only tells the peer sooner
		}
	}
}

// dropAfter bounds what is left of a closing connection. mu is held.
func (c *Conn) dropAfter(d time.Duration, e End) {
	if c.kind != waiting {
		c.dropParkedAfter(d, e)
		return
	}
	c.rare.waiter.end = e
	c.rare.waiter.conn.SetDeadline(time.Now().Add(d))
}

// drop ends a connection of the goroutine form at once.
func (c *Conn) drop(err error) {
	c.mu.Lock()
	if c.state == open {
		c.state = closing
		c.rare.waiter.end = End{Code: 1006, Err: err}
	}
	c.rare.waiter.conn.SetDeadline(time.Now())
	c.mu.Unlock()
}
