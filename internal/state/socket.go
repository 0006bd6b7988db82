package state

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// maxSocketPath is what every system takes as a socket's path: sun_path holds
// 104 bytes on macOS and 108 on Linux, the ending zero included.
const maxSocketPath = 100

// ErrNotRunning says that nobody listens on a socket of the directory.
var ErrNotRunning = errors.New("no holdfast is running on this state directory")

// Listen opens a unix socket of mode 0600 in the directory. The caller holds the
// directory's Lock, so a socket that is there is of a process that ended, and
// is replaced. Closing the listener removes it.
func (d Dir) Listen(name string) (net.Listener, error) {
	full := d.Path(name)
	if err := os.Remove(full); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("replace %s: %w", full, err)
	}
	var ln *net.UnixListener
	err := shorten(full, func(path string) (err error) {
		// The socket is never open to others, not even between bind and chmod:
		// its directory is 0700, and the umask narrows it where that is not so.
		old := unix.Umask(0o177)
		ln, err = net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		unix.Umask(old)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", full, err)
	}
	ln.SetUnlinkOnClose(false)
	made, err := os.Lstat(full)
	if err != nil {
		ln.Close()
		return nil, fmt.Errorf("listen on %s: %w", full, err)
	}
	return &socket{UnixListener: ln, path: full, made: made}, nil
}

// Dial connects to a socket of the directory. Error: ErrNotRunning where nobody
// listens.
func (d Dir) Dial(ctx context.Context, name string) (net.Conn, error) {
	full := d.Path(name)
	var conn net.Conn
	err := shorten(full, func(path string) (err error) {
		conn, err = (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "unix", path)
		return err
	})
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return nil, ErrNotRunning
	}
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", full, err)
	}
	return conn, nil
}

// socket removes its file by the long path, whatever it was bound by.
type socket struct {
	*net.UnixListener
	path string
	made os.FileInfo
}

// Close leaves the file of a process that has taken the place of this one.
func (s *socket) Close() error {
	if now, err := os.Lstat(s.path); err == nil && os.SameFile(s.made, now) {
		os.Remove(s.path)
	}
	return s.UnixListener.Close()
}

// shorten calls use with a path to full that fits into a socket's address. A
// long one goes by way of a symbolic link to its directory, in a directory of
// our own that lives for the length of the call.
func shorten(full string, use func(path string) error) error {
	if len(full) <= maxSocketPath {
		return use(full)
	}
	tmp, err := os.MkdirTemp("", "hf")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	link := filepath.Join(tmp, "d")
	if err := os.Symlink(filepath.Dir(full), link); err != nil {
		return err
	}
	return use(filepath.Join(link, filepath.Base(full)))
}
