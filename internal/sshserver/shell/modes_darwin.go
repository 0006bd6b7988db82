package shell

import "golang.org/x/sys/unix"

// flagWord is the type of a terminal's flags here.
type flagWord = uint64

const (
	getTermios = unix.TIOCGETA
	setTermios = unix.TIOCSETA
	// disabledCc is _POSIX_VDISABLE here.
	disabledCc = 0xff
)
