package park

import (
	"crypto/tls"
	"errors"
	"io"

	"golang.org/x/sys/unix"

	"holdfast/internal/frame"
	"holdfast/internal/sock"
)

// secure is the TLS part of a parked connection.
type secure struct {
	conn *tls.Conn
	sock *sock.Switch
	fd   int
	// ready allows one read of the descriptor; an event sets it. So a peer that
	// sends without pause takes its turn with the others.
	ready bool
}

// read is what crypto/tls reads by.
func (s *secure) read(p []byte) (int, error) {
	if !s.ready {
		return 0, sock.ErrNotYet
	}
	s.ready = false
	n, err := unix.Read(s.fd, p)
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
		return 0, sock.ErrNotYet
	case err != nil:
		return 0, err
	case n == 0 && len(p) > 0:
		return 0, io.EOF
	}
	return n, nil
}

// collect has what crypto/tls wants sent wait. It also writes from within a read,
// without c.mu, which is why it has a buffer of its own. c.mu is held.
func (c *Conn) collect() {
	c.keep(c.rare.secure.sock.Written())
}

// encrypt has frames wait, encrypted. c.mu is held.
func (c *Conn) encrypt(frames []byte) {
	// An error means that the session is over; the next read says the same.
	c.rare.secure.conn.Write(frames)
	if c.state == closing {
		c.rare.secure.conn.CloseWrite()
	}
	c.collect()
}

// feedBuffered feeds c with the records that crypto/tls had read before it was
// parked. It runs before the poller knows c.
func (p *poller) feedBuffered(c *Conn) {
	buf := make([]byte, readBytes)
	for {
		n, err := c.rare.secure.conn.Read(buf)
		if n > 0 && !c.discard {
			r := c.reader
			if r == nil {
				r = frame.NewReader(p.lot.opt.MaxMessage)
			}
			p.feed(c, r, buf[:n])
		}
		if err != nil {
			// Anything but sock.ErrNotYet is permanent, and comes again at the next read.
			c.mu.Lock()
			c.collect()
			c.writeOn()
			c.mu.Unlock()
			return
		}
	}
}

// readTLS feeds c with all records that are complete and reads the socket once.
func (p *poller) readTLS(c *Conn) {
	s := c.rare.secure
	s.ready = true
	for {
		n, err := s.conn.Read(p.buf[:])
		if n > 0 && !c.discard {
			p.feedAny(c, p.buf[:n])
		}
		if err == nil {
			continue
		}
		c.mu.Lock()
		c.collect()
		c.writeOn()
		c.mu.Unlock()
		if !errors.Is(err, sock.ErrNotYet) {
			p.drop(c, lost(err))
		}
		return
	}
}
