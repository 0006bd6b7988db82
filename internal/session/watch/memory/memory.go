// Package memory keeps over a restart which sessions were seen, and what each
// pane did last.
//
// It knows no session that runs. What a caller will get wrong: it has no lock of
// its own, all but Write is called under the caller's; and what Encode returns
// must be written by Write, one after the other.
package memory

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"holdfast/internal/session"
)

// Pane is what is kept of one pane.
type Pane struct {
	State   session.State `json:"state"`
	Since   time.Time     `json:"since"`
	Seen    time.Time     `json:"seen,omitzero"`
	Watched time.Time     `json:"watched"`
	Kept    time.Time     `json:"kept"` // when this was last true
}

const (
	// File is its name in the state directory.
	File = "sessions.json"
	// maxPanes bounds the panes that are kept; the ones kept last stay.
	maxPanes = 2000
	maxBytes = 1 << 20 // of the file
	// keepFor is how long a pane is kept that is not there: its server may not
	// answer for a while.
	keepFor = 7 * 24 * time.Hour
)

// Memory is what is kept.
type Memory map[session.ID]Pane

// Load reads what a state directory holds. It always returns a Memory: with an
// error an empty one, and which sessions were seen is lost.
func Load(dir string) (Memory, error) {
	m := Memory{}
	if dir == "" {
		return m, nil
	}
	path := filepath.Join(dir, File)
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return m, nil
	case err != nil:
		return m, err
	case !info.Mode().IsRegular():
		return m, fmt.Errorf("read %s: it is no file", path)
	case info.Size() > maxBytes:
		return m, fmt.Errorf("read %s: %d bytes, the limit is %d", path, info.Size(), maxBytes)
	}
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	if err != nil {
		return Memory{}, err
	}
	return m, nil
}

// Note notes what a pane does now and reports whether that is news.
func (m Memory) Note(id session.ID, p Pane) bool {
	old, ok := m[id]
	if ok && old.State == p.State && old.Since.Equal(p.Since) && old.Seen.Equal(p.Seen) {
		return false
	}
	m[id] = p
	return true
}

// Encode forgets what is too old or too much and encodes the rest.
func (m Memory) Encode(now time.Time) ([]byte, error) {
	var ids []session.ID
	for id, p := range m {
		if now.Sub(p.Kept) > keepFor {
			delete(m, id)
			continue
		}
		ids = append(ids, id)
	}
	if len(ids) > maxPanes {
		slices.SortFunc(ids, func(a, b session.ID) int { return m[b].Kept.Compare(m[a].Kept) })
		for _, id := range ids[maxPanes:] {
			delete(m, id)
		}
	}
	return json.Marshal(m)
}

// Write puts an encoded Memory into a state directory, whole or not at all.
func Write(dir string, b []byte) error {
	f, err := os.CreateTemp(dir, File+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, File))
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}
