// Package journal keeps in the state directory which actions on sessions were
// begun and what came of them, so that an action is done at most once although
// the process that did it was killed, and a device that heard nothing asks again.
//
// It keeps no text: what tells one text from another is the caller's digest. What
// a caller will get wrong: Begin must come before anything is typed and its error
// must stop that; and several processes use one journal, so what it says is as of
// the call.
package journal

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"holdfast/internal/session"
	"holdfast/internal/session/proto"
	"holdfast/internal/state"
)

const (
	// KeepTime is how long an action is remembered: a phone that comes back from a
	// night in a drawer asks once more.
	KeepTime = 24 * time.Hour
	// maxActions and maxPanes bound what is kept when the file is written anew; the
	// newest stay.
	maxActions = 1000
	maxPanes   = 2000
	// rewriteAt is the size at which the file is written anew, in bytes: some 4,000
	// actions. maxBytes is what is read of one, whoever wrote it.
	rewriteAt = 1 << 20
	maxBytes  = 8 << 20
	saltBytes = 32
)

// An Action is one that was begun.
type Action struct {
	Key   string
	Print []byte // the caller's digest of what was to be done; nil tells nothing
	At    time.Time
	// Outcome is what came of it; nil says that nobody noted that: it is being
	// done, or its process ended.
	Outcome *proto.Outcome
}

// record is one line of the file.
type record struct {
	Salt    []byte         `json:"salt,omitempty"`
	Key     string         `json:"key,omitempty"`
	Print   []byte         `json:"print,omitempty"`
	At      time.Time      `json:"at,omitzero"`
	Outcome *proto.Outcome `json:"outcome,omitempty"`
	Free    bool           `json:"free,omitempty"` // nothing was typed
	Pane    session.ID     `json:"pane,omitempty"`
	Answers uint64         `json:"answers,omitempty"` // of the pane's dialogs, by now
}

// Journal is the journal of one state directory.
type Journal struct {
	path string

	// mu guards the fields below.
	mu      sync.Mutex
	salt    []byte
	actions map[string]Action
	order   []string // keys, oldest first; some are gone
	panes   map[session.ID]uint64
	recent  []session.ID // panes, those answered last at the end; some are there twice
	file    os.FileInfo  // that was read
	read    int64        // bytes of it
}

// Open opens the journal at a path, and makes it where there is none.
func Open(path string) (*Journal, error) {
	j := &Journal{path: path}
	err := j.with(func(*os.File) error { return nil })
	if err != nil {
		return nil, fmt.Errorf("open the journal of actions: %w", err)
	}
	return j, nil
}

// Salt is a secret of this journal, for digests.
func (j *Journal) Salt() []byte {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.salt)
}

// Begin notes that an action begins. Where one with that key was begun within
// KeepTime and not freed, nothing is noted and that one returned.
func (j *Journal) Begin(key string, print []byte, now time.Time) (before Action, found bool, err error) {
	err = j.with(func(f *os.File) error {
		if before, found = j.actions[key]; found && now.Sub(before.At) < KeepTime {
			return nil
		}
		before, found = Action{}, false
		return j.append(f, record{Key: key, Print: print, At: now.UTC()})
	})
	if err != nil {
		return Action{}, false, fmt.Errorf("note an action: %w", err)
	}
	return before, found, nil
}

// End notes what came of an action; nil says that nothing was typed, which frees
// its key.
func (j *Journal) End(key string, o *proto.Outcome) error {
	r := record{Key: key, Free: o == nil}
	if o != nil {
		c := *o
		c.Dialog = nil // it is of that moment
		r.Outcome = &c
	}
	if err := j.with(func(f *os.File) error { return j.append(f, r) }); err != nil {
		return fmt.Errorf("note what came of an action: %w", err)
	}
	return nil
}

// Answered notes that a dialog of a pane got its answer.
func (j *Journal) Answered(id session.ID) error {
	err := j.with(func(f *os.File) error { return j.append(f, record{Pane: id, Answers: j.panes[id] + 1}) })
	if err != nil {
		return fmt.Errorf("note an answer: %w", err)
	}
	return nil
}

// Answers is how many dialogs were answered in a pane.
func (j *Journal) Answers(id session.ID) uint64 {
	info, err := os.Lstat(j.path)
	j.mu.Lock()
	known := err == nil && j.file != nil && os.SameFile(info, j.file) && info.Size() == j.read
	n := j.panes[id]
	j.mu.Unlock()
	if known {
		return n
	}
	// Another process wrote. What cannot be read now was true a moment ago.
	j.with(func(*os.File) error { n = j.panes[id]; return nil })
	return n
}

// with does something while no other process does, with the file read to its end.
func (j *Journal) with(do func(*os.File) error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	rewritten := false
	for {
		f, err := os.OpenFile(j.path, os.O_RDWR|os.O_APPEND|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
		if err != nil {
			return err
		}
		again, err := j.locked(f, &rewritten, do)
		f.Close() // which lets the lock go
		if err != nil || !again {
			return err
		}
	}
}

// locked does it with an open file; again says that the file was replaced.
func (j *Journal) locked(f *os.File, rewritten *bool, do func(*os.File) error) (again bool, err error) {
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return false, err
	}
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	if !info.Mode().IsRegular() {
		return false, fmt.Errorf("%s is no file", j.path)
	}
	if there, err := os.Lstat(j.path); errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(there, info) {
		return true, nil
	}
	if err := j.catchUp(f, info); err != nil {
		return false, err
	}
	if j.salt == nil || j.read > rewriteAt && !*rewritten {
		*rewritten = true
		if err := j.rewrite(time.Now()); err != nil {
			return false, err
		}
		return true, nil
	}
	return false, do(f)
}

// catchUp reads what was written since.
func (j *Journal) catchUp(f *os.File, info os.FileInfo) error {
	if j.file == nil || !os.SameFile(j.file, info) || info.Size() < j.read {
		j.salt, j.actions, j.order, j.panes, j.recent, j.read = nil, map[string]Action{}, nil, map[session.ID]uint64{}, nil, 0
	}
	j.file = info
	r := bufio.NewReaderSize(io.NewSectionReader(f, j.read, max(0, min(info.Size(), maxBytes)-j.read)), 64<<10)
	for {
		line, err := r.ReadSlice('\n')
		j.read += int64(len(line))
		if err == nil {
			var rec record
			// A line that a power cut left is nothing; what follows is.
			if json.Unmarshal(line, &rec) == nil {
				j.take(rec)
			}
			continue
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue // no line of ours is that long
		}
		if err != io.EOF {
			return err
		}
		// One that was not written to its end is ended, so that the next stands alone.
		if len(line) > 0 {
			n, err := f.Write([]byte("\n"))
			j.read += int64(n)
			return err
		}
		return nil
	}
}

func (j *Journal) take(r record) {
	switch {
	case len(r.Salt) == saltBytes:
		j.salt = r.Salt
	case r.Pane != "":
		j.panes[r.Pane] = r.Answers
		j.recent = append(j.recent, r.Pane)
	case r.Key == "":
	case r.Free:
		delete(j.actions, r.Key)
	case r.Outcome != nil:
		a, ok := j.actions[r.Key]
		if r.At.IsZero() && !ok {
			return
		}
		if !r.At.IsZero() { // written anew, in one line
			a = Action{Key: r.Key, Print: r.Print, At: r.At}
			j.order = append(j.order, r.Key)
		}
		a.Outcome = r.Outcome
		j.actions[r.Key] = a
	default:
		j.actions[r.Key] = Action{Key: r.Key, Print: r.Print, At: r.At}
		j.order = append(j.order, r.Key)
	}
}

// append writes one line.
func (j *Journal) append(f *os.File, r record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	n, err := f.Write(append(b, '\n'))
	if err != nil {
		return err
	}
	j.read += int64(n)
	j.take(r)
	return nil
}

// rewrite replaces the file by one that holds what is still of use.
func (j *Journal) rewrite(now time.Time) error {
	if j.salt == nil {
		j.salt = make([]byte, saltBytes)
		rand.Read(j.salt) // never fails
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	write := func(r record) error { return e.Encode(r) }
	err := write(record{Salt: j.salt})
	var keys []string
	seen := map[string]bool{}
	for _, k := range slices.Backward(j.order) {
		if a, ok := j.actions[k]; ok && !seen[k] && now.Sub(a.At) < KeepTime && len(keys) < maxActions {
			seen[k], keys = true, append(keys, k)
		}
	}
	for _, k := range slices.Backward(keys) {
		a := j.actions[k]
		err = errors.Join(err, write(record{Key: k, Print: a.Print, At: a.At, Outcome: a.Outcome}))
	}
	var panes []session.ID
	had := map[session.ID]bool{}
	for _, p := range slices.Backward(j.recent) {
		if !had[p] && len(panes) < maxPanes {
			had[p], panes = true, append(panes, p)
		}
	}
	for _, p := range slices.Backward(panes) {
		err = errors.Join(err, write(record{Pane: p, Answers: j.panes[p]}))
	}
	if err != nil {
		return err
	}
	j.file = nil // it is read again
	return state.WriteFile(j.path, b.Bytes(), 0o600)
}
