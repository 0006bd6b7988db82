//go:build !linux

package proc

import "golang.org/x/sys/unix"

const readModes = unix.TIOCGETA
