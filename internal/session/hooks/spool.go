package hooks

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/session/toolfile"
)

// SpoolDir is the spool's directory in a state directory.
func SpoolDir(stateDir string) string { return filepath.Join(stateDir, "hooks") }

// Limits of the spool.
const (
	maxFiles = 256                // sessions of which an event is kept; a person has tens
	maxEvent = 16 << 10           // bytes of a file
	maxAge   = 7 * 24 * time.Hour // of an event; nothing runs longer without telling
	// lockWait is how long a hook waits for another one, in which the tool waits
	// too. Then the event is dropped: the next one says more.
	lockWait = 300 * time.Millisecond
)

// file is the name of what is kept of one session in one pane.
func (e Event) file() string {
	h := sha256.Sum256([]byte(strings.Join([]string{e.Tool, e.Socket, e.Pane, e.SessionID}, "\x00")))
	return base64.RawURLEncoding.EncodeToString(h[:12]) + ".json"
}

// Spool keeps an event, in place of the one before it of the same session in the
// same pane. Files are 0600. An event that is older than the one that is there
// changes nothing.
func Spool(stateDir string, e Event) error {
	dir := SpoolDir(stateDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("spool an event: %w", err)
	}
	release, err := lock(dir)
	if err != nil {
		return fmt.Errorf("spool an event: %w", err)
	}
	defer release()
	path := filepath.Join(dir, e.file())
	if was, err := readEvent(path); err == nil && was.At.After(e.At) {
		return nil
	}
	b, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("spool an event: %w", err)
	}
	if len(b) > maxEvent {
		return fmt.Errorf("spool an event: it has %d bytes, the limit is %d", len(b), maxEvent)
	}
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		prune(dir, e.At)
	}
	if err := replace(path, append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("spool an event: %w", err)
	}
	return nil
}

// lock keeps two hooks apart.
func lock(dir string) (release func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(lockWait); ; time.Sleep(5 * time.Millisecond) {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return func() { f.Close() }, nil
		}
		if time.Now().After(end) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", dir, err)
		}
	}
}

// prune makes room for one more file: what is too old goes, then the oldest.
func prune(dir string, now time.Time) {
	type kept struct {
		path string
		at   time.Time
	}
	var all []kept
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil || !info.Mode().IsRegular() || !strings.HasSuffix(entry.Name(), ".json") {
			continue
		}
		all = append(all, kept{filepath.Join(dir, entry.Name()), info.ModTime()})
	}
	slices.SortFunc(all, func(a, b kept) int { return a.at.Compare(b.at) })
	for i, k := range all {
		if len(all)-i >= maxFiles || now.Sub(k.at) > maxAge {
			os.Remove(k.path)
		}
	}
}

// Events reads the newest event of every session in every pane, the newest
// first. A file that cannot be read is left out; without a spool there are none.
func Events(stateDir string) ([]Event, error) {
	dir, err := toolfile.OpenDir(SpoolDir(stateDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read what hooks told: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(2 * maxFiles)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read what hooks told: %w", err)
	}
	var out []Event
	for _, name := range names {
		if !strings.HasSuffix(name, ".json") {
			continue
		}
		if e, err := readEvent(filepath.Join(dir.Name(), name)); err == nil {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b Event) int { return b.At.Compare(a.At) })
	return out, nil
}

func readEvent(path string) (Event, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return Event{}, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxEvent+1))
	if err != nil {
		return Event{}, err
	}
	var e Event
	if len(b) > maxEvent {
		return Event{}, errors.New("too long")
	}
	return e, json.Unmarshal(b, &e)
}

// Run is what a hook does: read one event from the tool and spool it. in may
// stay open; it is given up on after a second, as the tool waits. environ is the
// hook's, pids are its ancestors.
func Run(stateDir, tool string, in io.Reader, environ func(string) string, pids []int) error {
	at := time.Now()
	read := make(chan []byte, 1)
	// Ends with the process, which is a second away; nobody waits for it.
	go func() {
		b, err := io.ReadAll(io.LimitReader(in, maxInput+1))
		if err == nil {
			read <- b
		}
	}()
	var b []byte
	select {
	case b = <-read:
	case <-time.After(time.Second):
		return errors.New("take what the tool tells: it did not end within a second")
	}
	e, ok := Parse(tool, b, at)
	if !ok {
		return nil
	}
	e.Pane, e.PIDs = word(environ("TMUX_PANE")), pids
	// "socket,pid,session"
	e.Socket, _, _ = strings.Cut(path(environ("TMUX")), ",")
	return Spool(stateDir, e)
}

// replace writes a file whole or not at all.
func replace(path string, b []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // without effect after the rename
	if err := errors.Join(f.Chmod(mode), write(f, b), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func write(f *os.File, b []byte) error {
	if _, err := f.Write(b); err != nil {
		return err
	}
	return f.Sync()
}
