package proc

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// Exits tells when processes end, without asking again and again: one epoll
// over a descriptor for each.
type Exits struct {
	epoll, wake int

	mu  sync.Mutex
	fds map[int]int // pid to pidfd
}

// NewExits makes an Exits. Run must be called, and frees it.
func NewExits() (*Exits, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch for the end of processes: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err == nil {
		err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, wake, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(wake)})
	}
	if err != nil {
		unix.Close(epoll)
		return nil, fmt.Errorf("watch for the end of processes: %w", err)
	}
	return &Exits{epoll: epoll, wake: wake, fds: map[int]int{}}, nil
}

// maxExits bounds the processes that are watched at once: each costs a
// descriptor.
const maxExits = 1024

// Add watches a process of this user. ErrGone means that it has ended already.
func (e *Exits) Add(pid int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.fds == nil {
		return fmt.Errorf("watch for the end of process %d: the watch has ended", pid)
	}
	if _, ok := e.fds[pid]; ok {
		return nil
	}
	if len(e.fds) >= maxExits {
		return fmt.Errorf("watch for the end of process %d: %d are watched already", pid, maxExits)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err == unix.ESRCH {
		return ErrGone
	}
	if err != nil {
		return fmt.Errorf("watch for the end of process %d: %w", pid, err)
	}
	if err := unix.EpollCtl(e.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}); err != nil {
		unix.Close(fd)
		return fmt.Errorf("watch for the end of process %d: %w", pid, err)
	}
	e.fds[pid] = fd
	return nil
}

// Remove stops watching a process.
func (e *Exits) Remove(pid int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if fd, ok := e.fds[pid]; ok {
		unix.Close(fd) // leaves the epoll with it
		delete(e.fds, pid)
	}
}

// Run calls ended for each watched process that ends, until ctx does.
func (e *Exits) Run(ctx context.Context, ended func(pid int)) {
	// Runs when ctx ends, which makes Run leave epoll; Run waits for it.
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(woken)
		one := [8]byte{1}
		unix.Write(e.wake, one[:])
	})
	defer func() {
		if !stop() {
			<-woken
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, fd := range e.fds {
			unix.Close(fd)
		}
		e.fds = nil
		unix.Close(e.epoll)
		unix.Close(e.wake)
	}()
	events := make([]unix.EpollEvent, 32)
	for ctx.Err() == nil {
		n, err := unix.EpollWait(e.epoll, events, -1)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return
		}
		for _, ev := range events[:n] {
			e.mu.Lock()
			gone := 0
			for pid, fd := range e.fds {
				if int32(fd) == ev.Fd {
					gone = pid
					unix.Close(fd)
					delete(e.fds, pid)
					break
				}
			}
			e.mu.Unlock()
			if gone != 0 {
				ended(gone)
			}
		}
	}
}
