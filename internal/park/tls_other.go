//go:build !linux

package park

import "net"

// wrap adds nothing where nothing can be parked without goroutine.
func wrap(tcp *net.TCPConn) net.Conn { return tcp }
