//go:build unix

package authkeys

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	dirName  = ".ssh"
	fileName = "authorized_keys"
	// maxTries bounds the fresh starts after another program changed the file
	// in between. Programs that do so write once.
	maxTries = 5
	// lockWait and lockPoll bound the wait for another holdfast, which holds the
	// lock for one small write.
	lockWait = 2 * time.Second
	lockPoll = 10 * time.Millisecond
)

// rewrite replaces the content of home's authorized_keys by what edit makes of
// it. A file that its owner made read-only gets no new line; taking one out
// (create is false) goes ahead, since it takes a right away. Every name is looked up below an open directory and without following
// links, so that nothing can be swapped in between. Programs that know of the
// lock wait for each other; a change by one that does not makes it start again.
func rewrite(home string, create bool, edit func([]byte) (out []byte, changed bool)) error {
	dir, err := openDir(home, create)
	if err != nil || dir == nil {
		return err
	}
	defer dir.Close()
	// A lock on the directory leaves no file behind and works across processes.
	if err := lock(dir); err != nil {
		return err
	}
	for range maxTries {
		content, before, err := read(dir)
		if err != nil {
			return err
		}
		if before == nil && !create {
			return nil
		}
		if before != nil && create && before.Mode&unix.S_IWUSR == 0 {
			return ErrReadOnly
		}
		out, changed := edit(content)
		if !changed {
			return nil
		}
		err = replace(dir, out, before)
		if !errors.Is(err, ErrBusy) {
			return err
		}
	}
	return ErrBusy
}

func lock(dir *os.File) error {
	for deadline := time.Now().Add(lockWait); ; time.Sleep(lockPoll) {
		err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("lock %s: %w", dir.Name(), err)
		case time.Now().After(deadline):
			return fmt.Errorf("lock %s: %w", dir.Name(), ErrBusy)
		}
	}
}

// openDir opens ~/.ssh itself; nil without an error where it is missing and
// must not be made.
func openDir(home string, create bool) (*os.File, error) {
	parent, err := os.Open(home)
	if err != nil {
		return nil, fmt.Errorf("open home directory: %w", err)
	}
	defer parent.Close()
	path := filepath.Join(home, dirName)
	if create {
		if err := unix.Mkdirat(int(parent.Fd()), dirName, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("make %s: %w", path, err)
		}
	}
	fd, err := unix.Openat(int(parent.Fd()), dirName, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) && !create {
			return nil, nil
		}
		if isLink(int(parent.Fd()), dirName) {
			return nil, fmt.Errorf("%s: %w", path, ErrSymlink)
		}
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

func isLink(dir int, name string) bool {
	var st unix.Stat_t
	return unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK
}

// read returns the file's content and state; a nil state where it is missing.
func read(dir *os.File) ([]byte, *unix.Stat_t, error) {
	// O_NONBLOCK: a named pipe in its place must not hold us up.
	fd, err := unix.Openat(int(dir.Fd()), fileName, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil, nil
		}
		if isLink(int(dir.Fd()), fileName) {
			return nil, nil, ErrSymlink
		}
		return nil, nil, err
	}
	f := os.NewFile(uintptr(fd), fileName)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, nil, ErrNotRegular
	}
	if st.Size > maxFileBytes {
		return nil, nil, ErrTooBig
	}
	content, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, nil, err
	}
	if len(content) > maxFileBytes {
		return nil, nil, ErrTooBig
	}
	return content, &st, nil
}

// readFollowing reads the file as sshd would, links and all; a missing one is
// empty.
func readFollowing(home string) ([]byte, error) {
	f, err := os.OpenFile(filepath.Join(home, dirName, fileName), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, ErrNotRegular
	}
	content, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err == nil && len(content) > maxFileBytes {
		err = ErrTooBig
	}
	return content, err
}

// replace writes content beside the file and renames it over it, provided the
// file is still the one that before describes.
func replace(dir *os.File, content []byte, before *unix.Stat_t) (err error) {
	fd := int(dir.Fd())
	temporary := "." + fileName + "-" + rand.Text()
	f, err := create(fd, temporary)
	if err != nil {
		return fmt.Errorf("write a new file: %w", err)
	}
	defer func() {
		if err != nil {
			unix.Unlinkat(fd, temporary, 0)
		}
	}()
	_, err = f.Write(content)
	if err == nil {
		err = keepOwner(f, before)
	}
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("write a new file: %w", err)
	}
	if !unchanged(fd, before) {
		return ErrBusy
	}
	if err = unix.Renameat(fd, temporary, fd, fileName); err != nil {
		return fmt.Errorf("put the new file in place: %w", err)
	}
	// The rename must outlive a power cut as well.
	if err := unix.Fsync(fd); err != nil {
		return fmt.Errorf("write the directory: %w", err)
	}
	return nil
}

func create(dir int, name string) (*os.File, error) {
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	if err := f.Chmod(0o600); err != nil { // whatever the umask took away
		f.Close()
		unix.Unlinkat(dir, name, 0)
		return nil, err
	}
	return f, nil
}

// keepOwner gives the new file the old one's owner, which differs where root
// acts for somebody. Failing that, the file stays as it was: sshd would not
// trust another owner.
func keepOwner(f *os.File, before *unix.Stat_t) error {
	if before == nil {
		return nil
	}
	var now unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &now); err != nil {
		return err
	}
	if now.Uid == before.Uid && now.Gid == before.Gid {
		return nil
	}
	err := f.Chown(int(before.Uid), int(before.Gid))
	if err != nil && now.Uid == before.Uid {
		return nil // only the group could not be kept, and with 0600 it has no say
	}
	return err
}

// unchanged compares what a writer that ignores the lock would have changed.
func unchanged(dir int, before *unix.Stat_t) bool {
	var now unix.Stat_t
	err := unix.Fstatat(dir, fileName, &now, unix.AT_SYMLINK_NOFOLLOW)
	if before == nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	return err == nil && now.Dev == before.Dev && now.Ino == before.Ino && now.Size == before.Size &&
		now.Mtim == before.Mtim
}
