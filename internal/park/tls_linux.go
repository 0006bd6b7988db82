package park

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/frame"
)

// socket stands between crypto/tls and a TCP connection. Once parked it no
// longer blocks: reads that find nothing return errNotYet, after which crypto/tls
// goes on with what it has at the next call, and writes only collect what is to
// be sent.
type socket struct {
	*net.TCPConn // nil once parked

	fd int
	// ready allows one read of the descriptor; an event sets it. So a peer that
	// sends without pause takes its turn with the others.
	ready bool

	mu      sync.Mutex
	pending []byte // ciphertext that Conn.collect has not taken yet
}

func wrap(tcp *net.TCPConn) net.Conn { return &socket{TCPConn: tcp} }

// NetConn lets package sock find the TCP connection.
func (s *socket) NetConn() net.Conn { return s.TCPConn }

func (s *socket) Read(p []byte) (int, error) {
	if s.TCPConn != nil {
		return s.TCPConn.Read(p)
	}
	if !s.ready {
		return 0, errNotYet
	}
	s.ready = false
	n, err := unix.Read(s.fd, p)
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
		return 0, errNotYet
	case err != nil:
		return 0, err
	case n == 0 && len(p) > 0:
		return 0, io.EOF
	}
	return n, nil
}

func (s *socket) Write(p []byte) (int, error) {
	if s.TCPConn != nil {
		return s.TCPConn.Write(p)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = append(s.pending, p...)
	return len(p), nil
}

// Close does nothing to a parked socket: its poller closes the descriptor.
func (s *socket) Close() error {
	if s.TCPConn == nil {
		return nil
	}
	return s.TCPConn.Close()
}

// Deadlines mean nothing to a socket that does not block.
func (s *socket) SetDeadline(t time.Time) error     { return s.set((*net.TCPConn).SetDeadline, t) }
func (s *socket) SetReadDeadline(t time.Time) error { return s.set((*net.TCPConn).SetReadDeadline, t) }
func (s *socket) SetWriteDeadline(t time.Time) error {
	return s.set((*net.TCPConn).SetWriteDeadline, t)
}

func (s *socket) set(deadline func(*net.TCPConn, time.Time) error, t time.Time) error {
	if s.TCPConn == nil {
		return nil
	}
	return deadline(s.TCPConn, t)
}

// errNotYet is what a read of a parked socket returns while nothing is there.
// crypto/tls takes an error for final unless it is a net.Error that is
// temporary, which is why that method is here.
var errNotYet net.Error = notYet{}

type notYet struct{}

func (notYet) Error() string   { return "nothing to read yet" }
func (notYet) Timeout() bool   { return true }
func (notYet) Temporary() bool { return true }

// secure is the TLS part of a parked connection.
type secure struct {
	conn *tls.Conn
	sock *socket
}

// collect has what crypto/tls wants sent wait. c.mu is held; crypto/tls also
// writes from within a read, which is why it has a buffer of its own.
func (c *Conn) collect() {
	s := c.rare.secure.sock
	s.mu.Lock()
	c.keep(s.pending)
	s.pending = nil
	s.mu.Unlock()
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
			// Anything but errNotYet is permanent, and comes again at the next read.
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
	s.sock.ready = true
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
		if !errors.Is(err, errNotYet) {
			p.drop(c, lost(err))
		}
		return
	}
}
