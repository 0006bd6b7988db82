//go:build darwin || dragonfly || freebsd || netbsd || openbsd

package netwatch

import (
	"errors"

	"golang.org/x/sys/unix"
)

func openSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_ROUTE, unix.SOCK_RAW, unix.AF_UNSPEC)
	if err != nil {
		return -1, err
	}
	unix.CloseOnExec(fd)
	return fd, nil
}

func isOverflow(err error) bool { return errors.Is(err, unix.ENOBUFS) }
