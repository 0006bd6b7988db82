package park

import (
	"crypto/tls"
	"net"

	"holdfast/internal/sock"
)

// NewListener is tls.NewListener for a server whose connections may be parked:
// they are *tls.Conn as usual, and where the system can, a Lot keeps them without
// goroutine later. Connections of tls.NewListener itself are kept with one.
func NewListener(inner net.Listener, config *tls.Config) net.Listener {
	return sock.NewTLSListener(inner, config)
}
