//go:build !linux

package sock

import "net"

// Outbound would tell what a peer's kernel has acknowledged; here nothing can.
type Outbound struct{}

// NewOutbound returns nil.
func NewOutbound(net.Conn) *Outbound { return nil }

// Progress is never called.
func (o *Outbound) Progress() (written, acked int64) { return 0, 0 }
