// Package toolfile opens what other programs keep: files and directories whose
// names, kinds and sizes are up to them. A FIFO or a device in a file's place is
// refused and never waited for, and nothing is read beyond a limit.
//
// It writes nothing. What a caller will get wrong: links are followed, since
// people keep their files elsewhere, so a caller that must stay in a directory
// resolves the path first; and a directory is read up to a number of entries, of
// which the order is the directory's own until then.
package toolfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
)

var (
	// ErrKind says that something else has the place of a file or directory.
	ErrKind = errors.New("not a regular file")
	// ErrSize says that a file is larger than its reader takes.
	ErrSize = errors.New("too large")
)

// Open opens a regular file and tells its size. It waits for no writer of a FIFO.
func Open(path string) (f *os.File, size int64, err error) {
	f, err = os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("open %s: %w", path, ErrKind)
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}

// Read reads a regular file of at most limit bytes. A larger one is refused
// before anything of it is read.
func Read(path string, limit int64) ([]byte, error) {
	f, size, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size > limit {
		return nil, fmt.Errorf("read %s, %d bytes, more than %d: %w", path, size, limit, ErrSize)
	}
	// It may have grown since.
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("read %s, more than %d bytes: %w", path, limit, ErrSize)
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}

// OpenDir opens a directory and nothing else.
func OpenDir(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
}

// Dir lists at most limit entries of a directory, by name. More are left out:
// which, is up to the directory.
func Dir(path string, limit int) ([]fs.DirEntry, error) {
	f, err := OpenDir(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []fs.DirEntry
	for len(out) < limit {
		some, err := f.ReadDir(min(1024, limit-len(out)))
		out = append(out, some...)
		if err != nil {
			break // io.EOF, or a directory that went away: what was read counts
		}
	}
	slices.SortFunc(out, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return out, nil
}
