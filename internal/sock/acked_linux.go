package sock

import (
	"net"

	"golang.org/x/sys/unix"
)

// Outbound tells how much of what was written to a TCP connection its peer's
// kernel has acknowledged.
type Outbound struct {
	tcp  *net.TCPConn
	base uint64
}

// NewOutbound begins to count at what is written to c from now on. The result
// is nil where that cannot be told: c is no TCP connection, nor TLS over one.
func NewOutbound(c net.Conn) *Outbound {
	tcp, ok := beneath(c).(*net.TCPConn)
	if !ok {
		return nil
	}
	o := &Outbound{tcp: tcp}
	acked, queued, ok := o.read()
	if !ok {
		return nil
	}
	o.base = acked + queued
	return o
}

// Progress returns how many bytes were written and how many of them acknowledged
// since NewOutbound, on the level of TCP: TLS adds its own to them. Both are zero
// where it cannot be told any more.
func (o *Outbound) Progress() (written, acked int64) {
	a, queued, ok := o.read()
	if !ok {
		return 0, 0
	}
	return max(0, int64(a+queued-o.base)), max(0, int64(a-o.base))
}

func (o *Outbound) read() (acked, queued uint64, ok bool) {
	rc, err := o.tcp.SyscallConn()
	if err != nil {
		return 0, 0, false
	}
	cerr := rc.Control(func(fd uintptr) {
		var info *unix.TCPInfo
		if info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err != nil {
			return
		}
		var q int
		q, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
		acked, queued = info.Bytes_acked, uint64(max(q, 0))
	})
	return acked, queued, cerr == nil && err == nil
}
