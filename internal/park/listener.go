package park

import (
	"crypto/tls"
	"net"
)

// NewListener is tls.NewListener for a server whose connections may be parked:
// they are *tls.Conn as usual, and where the system can, a Lot keeps them without
// goroutine later. Connections of tls.NewListener itself are kept with one.
func NewListener(inner net.Listener, config *tls.Config) net.Listener {
	return &listener{inner, config}
}

type listener struct {
	net.Listener
	config *tls.Config
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		c = wrap(tcp)
	}
	return tls.Server(c, l.config), nil
}
