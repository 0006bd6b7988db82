//go:build !linux

package park

import (
	"net"
	"time"
)

// parked is the epoll form of a connection, which exists on Linux only.
type parked struct{}

type pollers struct{}

func newPollers(*Lot) (*pollers, error) { return nil, nil }

func (p *pollers) park(net.Conn, []byte, Handler) (*Conn, error) { return nil, nil }
func (p *pollers) close()                                        {}

func (c *Conn) encrypted() bool                    { return false }
func (c *Conn) encrypt([]byte)                     {}
func (c *Conn) writeParked()                       {}
func (c *Conn) dropParkedAfter(time.Duration, End) {}
