package sock

import (
	"crypto/tls"
	"net"
	"sync"
	"time"
)

// NewTLSListener is tls.NewListener, but that the connections can be unblocked:
// their NetConn is a *Switch.
func NewTLSListener(inner net.Listener, config *tls.Config) net.Listener {
	return &tlsListener{inner, config}
}

type tlsListener struct {
	net.Listener
	config *tls.Config
}

func (l *tlsListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		c = &Switch{TCPConn: tcp}
	}
	return tls.Server(c, l.config), nil
}

// Switch stands between crypto/tls and a TCP connection. Once unblocked, reads
// that find nothing return ErrNotYet, after which crypto/tls goes on with what it
// has at the next call, and writes only collect what is to be sent. So a TLS
// connection can wait without a goroutine, and what remains of it is its state.
type Switch struct {
	// TCPConn is nil once unblocked.
	*net.TCPConn
	read func([]byte) (int, error)

	mu      sync.Mutex
	written []byte
}

// Unblock takes the TCP connection out: it is the caller's from now on, reads go
// to read, and writes are kept for Written. Nothing else may use the connection
// meanwhile.
func (s *Switch) Unblock(read func([]byte) (int, error)) *net.TCPConn {
	tcp := s.TCPConn
	s.TCPConn, s.read = nil, read
	return tcp
}

// Written takes what was written since the last call.
func (s *Switch) Written() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.written
	s.written = nil
	return b
}

// NetConn is the TCP connection.
func (s *Switch) NetConn() net.Conn {
	if s.TCPConn == nil {
		return nil
	}
	return s.TCPConn
}

func (s *Switch) Read(p []byte) (int, error) {
	if s.TCPConn == nil {
		return s.read(p)
	}
	return s.TCPConn.Read(p)
}

func (s *Switch) Write(p []byte) (int, error) {
	if s.TCPConn != nil {
		return s.TCPConn.Write(p)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written = append(s.written, p...)
	return len(p), nil
}

// Close does nothing once unblocked.
func (s *Switch) Close() error {
	if s.TCPConn == nil {
		return nil
	}
	return s.TCPConn.Close()
}

// Deadlines mean nothing once unblocked.
func (s *Switch) SetDeadline(t time.Time) error     { return s.set((*net.TCPConn).SetDeadline, t) }
func (s *Switch) SetReadDeadline(t time.Time) error { return s.set((*net.TCPConn).SetReadDeadline, t) }
func (s *Switch) SetWriteDeadline(t time.Time) error {
	return s.set((*net.TCPConn).SetWriteDeadline, t)
}

func (s *Switch) set(deadline func(*net.TCPConn, time.Time) error, t time.Time) error {
	if s.TCPConn == nil {
		return nil
	}
	return deadline(s.TCPConn, t)
}

// ErrNotYet is for the read of Unblock to return while there is nothing to read.
// crypto/tls takes an error for final unless it is a net.Error that is temporary.
var ErrNotYet net.Error = notYet{}

type notYet struct{}

func (notYet) Error() string   { return "nothing to read yet" }
func (notYet) Timeout() bool   { return true }
func (notYet) Temporary() bool { return true }
