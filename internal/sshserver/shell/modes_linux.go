package shell

import "golang.org/x/sys/unix"

// flagWord is the type of a terminal's flags here.
type flagWord = uint32

const (
	getTermios = unix.TCGETS
	setTermios = unix.TCSETS
	// disabledCc is _POSIX_VDISABLE here.
	disabledCc = 0
)
