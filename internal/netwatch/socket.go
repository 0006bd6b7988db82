//go:build linux || darwin || dragonfly || freebsd || netbsd || openbsd

package netwatch

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// systemChanges opens the kernel's socket of routing messages and delivers a
// value for each read. The goroutine ends with ctx, or when the socket fails.
func systemChanges(ctx context.Context) (<-chan struct{}, error) {
	fd, err := openSocket()
	if err != nil {
		return nil, fmt.Errorf("watch network changes: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("watch network changes: %w", err)
	}
	// Non-blocking before NewFile: the file then lives in the runtime's poller,
	// and Close wakes a Read.
	f := os.NewFile(uintptr(fd), "routing socket")
	out := make(chan struct{}, 1)
	stop := context.AfterFunc(ctx, func() { f.Close() })
	// Ends when ctx closes f or f fails; Watch waits for the closed channel or
	// for ctx, so nobody waits for the goroutine itself.
	go func() {
		defer close(out)
		defer f.Close()
		defer stop()
		buf := make([]byte, 16<<10) // what a message says is not looked at
		for {
			// ENOBUFS says that messages were lost: that is a change too.
			if _, err := f.Read(buf); err != nil && !isOverflow(err) {
				return
			}
			select {
			case out <- struct{}{}:
			default: // one is waiting already
			}
		}
	}()
	return out, nil
}
