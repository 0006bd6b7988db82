package proc

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Terminal reads the modes of a pane's terminal, /dev/pts/4. It opens the
// terminal without taking it and closes it at once.
func Terminal(tty string) (Modes, error) {
	if !strings.HasPrefix(tty, "/dev/") {
		return Modes{}, fmt.Errorf("read the modes of terminal %q: not a terminal's path", tty)
	}
	fd, err := unix.Open(tty, unix.O_RDONLY|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return Modes{}, fmt.Errorf("read the modes of terminal %s: %w", tty, err)
	}
	defer unix.Close(fd)
	t, err := unix.IoctlGetTermios(fd, readModes)
	if err != nil {
		return Modes{}, fmt.Errorf("read the modes of terminal %s: %w", tty, err)
	}
	return Modes{Echo: t.Lflag&unix.ECHO != 0, Lines: t.Lflag&unix.ICANON != 0}, nil
}
