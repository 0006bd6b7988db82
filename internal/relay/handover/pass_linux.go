package handover

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Supported says whether this system can hand sockets over.
const Supported = true

// FD is the number of a socket's descriptor, which stays the socket's.
func FD(c syscall.Conn) (int, error) {
	rc, err := c.SyscallConn()
	if err != nil {
		return -1, fmt.Errorf("find a socket's descriptor: %w", err)
	}
	number := -1
	if err := rc.Control(func(fd uintptr) { number = int(fd) }); err != nil {
		return -1, fmt.Errorf("find a socket's descriptor: %w", err)
	}
	return number, nil
}

// Keep has descriptors outlive an exec, or not.
func Keep(fds []int, keep bool) error {
	flags := unix.FD_CLOEXEC
	if keep {
		flags = 0
	}
	for _, fd := range fds {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, flags); err != nil {
			return fmt.Errorf("keep descriptor %d: %w", fd, err)
		}
	}
	return nil
}

// File writes s into a file in memory, for Open.
func File(s *State) (*os.File, error) {
	fd, err := unix.MemfdCreate("holdfast-upgrade", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), "state")
	if err := s.Write(f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Conn makes an inherited descriptor a connection, which owns it. With an error
// it is closed.
func Conn(fd int) (net.Conn, error) {
	f := inherit(fd)
	if f == nil {
		return nil, fmt.Errorf("take over descriptor %d: not open", fd)
	}
	defer f.Close() // the connection has a descriptor of its own
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("take over descriptor %d: %w", fd, err)
	}
	if _, ok := c.(*net.TCPConn); !ok {
		c.Close()
		return nil, fmt.Errorf("take over descriptor %d: not of TCP", fd)
	}
	return c, nil
}

// NewListener is Conn for a listening socket.
func NewListener(fd int) (net.Listener, error) {
	f := inherit(fd)
	if f == nil {
		return nil, fmt.Errorf("take over descriptor %d: not open", fd)
	}
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("take over descriptor %d: %w", fd, err)
	}
	return l, nil
}

func inherit(fd int) *os.File {
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), "socket")
}

// CloseAll closes descriptors that nobody took.
func CloseAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// ErrUnsupported is never returned here.
var ErrUnsupported = errors.New("sockets cannot be handed over on this system")

// Exec replaces the program of this process. It returns only an error.
func Exec(path string, args, environ []string) error {
	return fmt.Errorf("exec %s: %w", path, syscall.Exec(path, args, environ))
}
