//go:build !linux

package park

import (
	"net"
	"time"
)

// parked is the part of a connection in epoll, which exists on Linux only.
type parked struct{}

// secure is the part of one with TLS.
type secure struct{}

// leaving is the part of one that is closing.
type leaving struct{}

type pollers struct{}

func newPollers(*Lot) (*pollers, error) { return nil, nil }

func (p *pollers) park(net.Conn, []byte, Handler) (*Conn, error) { return nil, nil }
func (p *pollers) close()                                        {}

// No connection here is of a kind that these are called for.
func (c *Conn) encrypt([]byte)                     {}
func (c *Conn) pushPlain([]byte)                   {}
func (c *Conn) writeOn()                           {}
func (c *Conn) dropParkedAfter(time.Duration, End) {}
