//go:build unix

package sock

import (
	"io"
	"net"
	"syscall"
)

func (r *Reader) init() {
	// Only a TCP or unix socket is read through its descriptor: a wrapper that
	// passes SyscallConn on, such as crypto/tls would be, is not the stream.
	switch r.conn.(type) {
	case *net.TCPConn, *net.UnixConn:
	default:
		return
	}
	rc := rawConn(r.conn)
	if rc == nil {
		return
	}
	r.wait = rc.Read
	r.read = readFD
	r.try = r.tryRead
}

// tryRead reads once without blocking and gives the chunk back at once where
// there is nothing to read.
func (r *Reader) tryRead(fd uintptr) bool {
	if r.chunk == nil {
		r.chunk = NewChunk()
	}
	r.n, r.err = r.read(fd, r.chunk.Buf[Headroom:])
	if r.err == syscall.EAGAIN {
		r.chunk.Release()
		r.chunk, r.err = nil, nil
		return false
	}
	if r.err == nil && r.n == 0 {
		r.err = io.EOF
	}
	return true
}

func readFD(fd uintptr, b []byte) (int, error) {
	for {
		n, err := syscall.Read(int(fd), b)
		if err == syscall.EINTR {
			continue
		}
		return max(n, 0), err
	}
}
