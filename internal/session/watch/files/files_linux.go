package files

import (
	"context"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Files tells when files change: inotify on their directories, since tools
// replace files and make them late. A file that is not there yet is told when
// it comes; one whose directory is not there is looked for every few seconds.
type Files struct {
	fd, wake int

	mu    sync.Mutex
	paths map[string][]string // by owner
	dirs  map[string]int      // watch descriptor by directory
	names map[int]string      // directory by watch descriptor
}

// maxDirs bounds the directories that are watched.
const maxDirs = 512

// missingEvery is how often a directory is looked for that is not there.
const missingEvery = 2 * time.Second

// New makes a Files; Run must be called for it to tell anything, and frees it.
func New() (*Files, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch files: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("watch files: %w", err)
	}
	return &Files{fd: fd, wake: wake, paths: map[string][]string{}, dirs: map[string]int{}, names: map[int]string{}}, nil
}

// Set says which files an owner wants to hear of; none ends it.
func (f *Files) Set(owner string, paths []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if slices.Equal(f.paths[owner], paths) {
		return
	}
	if len(paths) == 0 {
		delete(f.paths, owner)
	} else {
		f.paths[owner] = paths
	}
	f.reconcileLocked()
}

// reconcileLocked watches the directories that are wanted and no others.
func (f *Files) reconcileLocked() (missing bool) {
	if f.fd < 0 {
		return false
	}
	wanted := map[string]bool{}
	for _, paths := range f.paths {
		for _, p := range paths {
			wanted[filepath.Dir(p)] = true
		}
	}
	for dir, wd := range f.dirs {
		if !wanted[dir] {
			unix.InotifyRmWatch(f.fd, uint32(wd))
			delete(f.dirs, dir)
			delete(f.names, wd)
		}
	}
	const what = unix.IN_MODIFY | unix.IN_CLOSE_WRITE | unix.IN_MOVED_TO | unix.IN_CREATE | unix.IN_DELETE | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR
	for dir := range wanted {
		if _, ok := f.dirs[dir]; ok || len(f.dirs) >= maxDirs {
			continue
		}
		wd, err := unix.InotifyAddWatch(f.fd, dir, what)
		if err != nil {
			missing = true
			continue
		}
		f.dirs[dir], f.names[wd] = wd, dir
	}
	return missing
}

// Run calls changed with each owner of a file that changed, until ctx ends.
func (f *Files) Run(ctx context.Context, changed func(owner string)) {
	woken := make(chan struct{})
	// Runs when ctx ends, which makes run leave poll; run waits for it.
	stop := context.AfterFunc(ctx, func() {
		defer close(woken)
		one := [8]byte{1}
		unix.Write(f.wake, one[:])
	})
	defer func() {
		if !stop() {
			<-woken
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		unix.Close(f.fd)
		unix.Close(f.wake)
		f.fd = -1
	}()
	buf := make([]byte, 64<<10)
	for ctx.Err() == nil {
		fds := []unix.PollFd{{Fd: int32(f.fd), Events: unix.POLLIN}, {Fd: int32(f.wake), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(missingEvery/time.Millisecond))
		if err != nil && err != unix.EINTR {
			return
		}
		if n <= 0 {
			f.mu.Lock()
			before := len(f.dirs)
			f.reconcileLocked()
			var all []string
			if len(f.dirs) > before {
				for owner := range f.paths {
					all = append(all, owner)
				}
			}
			f.mu.Unlock()
			for _, owner := range all {
				changed(owner)
			}
			continue
		}
		if ctx.Err() != nil {
			return
		}
		n, err = unix.Read(f.fd, buf)
		if err != nil || n <= 0 {
			continue
		}
		for _, owner := range f.owners(buf[:n]) {
			changed(owner)
		}
	}
}

// owners finds whom the events of one read concern.
func (f *Files) owners(b []byte) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for len(b) >= unix.SizeofInotifyEvent {
		wd := int(int32(binary.NativeEndian.Uint32(b)))
		mask := binary.NativeEndian.Uint32(b[4:])
		size := int(binary.NativeEndian.Uint32(b[12:]))
		if len(b) < unix.SizeofInotifyEvent+size {
			break
		}
		name := strings.TrimRight(string(b[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+size]), "\x00")
		b = b[unix.SizeofInotifyEvent+size:]
		dir := f.names[wd]
		all := mask&unix.IN_Q_OVERFLOW != 0
		if mask&(unix.IN_IGNORED|unix.IN_DELETE_SELF|unix.IN_MOVE_SELF) != 0 {
			delete(f.names, wd)
			delete(f.dirs, dir)
			all = true
		}
		path := filepath.Join(dir, name)
		for owner, paths := range f.paths {
			if slices.Contains(out, owner) {
				continue
			}
			// A database is written beside itself (-wal), a record through a file
			// that takes its place.
			if all || slices.ContainsFunc(paths, func(p string) bool { return p == path || strings.HasPrefix(path, p) }) {
				out = append(out, owner)
			}
		}
	}
	return out
}
