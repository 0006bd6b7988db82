package watch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"holdfast/internal/session"
	"holdfast/internal/session/proc"
)

// memory is what is kept over a restart: what was seen, and what each pane did.
type memory map[session.ID]remembered

type remembered struct {
	State   session.State `json:"state"`
	Since   time.Time     `json:"since"`
	Seen    time.Time     `json:"seen,omitzero"`
	Watched time.Time     `json:"watched"`
	Kept    time.Time     `json:"kept"` // when this was last true
}

const (
	memoryFile = "sessions.json"
	// maxRemembered bounds the panes that are kept; the ones kept last stay.
	maxRemembered = 2000
	maxMemory     = 1 << 20 // bytes of the file
	// rememberFor is how long a pane is kept that is not there: its server may
	// not answer for a while.
	rememberFor = 7 * 24 * time.Hour
)

// recall reads the memory. A damaged one is told and begun anew: what is lost is
// which sessions were seen.
func (w *Watcher) recall() memory {
	m := memory{}
	if w.o.StateDir == "" {
		return m
	}
	path := filepath.Join(w.o.StateDir, memoryFile)
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return m
	}
	var b []byte
	if err == nil && info.Size() > maxMemory {
		err = fmt.Errorf("%d bytes, the limit is %d", info.Size(), maxMemory)
	}
	if err == nil {
		b, err = os.ReadFile(path)
	}
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	if err != nil {
		w.log.Warn("which sessions were seen cannot be read and is begun anew", "path", path, "err", err)
		return memory{}
	}
	return m
}

// rememberLocked notes what a pane does now.
func (w *Watcher) rememberLocked(p *pane) {
	st := p.shown.Status
	m := remembered{State: st.State, Since: st.Since, Seen: p.seen, Watched: p.since, Kept: time.Now()}
	old, ok := w.memory[p.id]
	if ok && old.State == m.State && old.Since.Equal(m.Since) && old.Seen.Equal(m.Seen) {
		return
	}
	w.memory[p.id] = m
	w.keepSoonLocked()
}

func (w *Watcher) keepSoonLocked() {
	w.keepSoon = true
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// keep writes the memory, when something in it changed.
func (w *Watcher) keep(always bool) {
	w.mu.Lock()
	if w.o.StateDir == "" || !w.keepSoon && !always {
		w.keepSoon = false
		w.mu.Unlock()
		return
	}
	w.keepSoon = false
	now := time.Now()
	for id, p := range w.panes {
		if m, ok := w.memory[id]; ok {
			m.Kept, m.Seen = now, p.seen
			w.memory[id] = m
		}
	}
	var ids []session.ID
	for id, m := range w.memory {
		if now.Sub(m.Kept) > rememberFor {
			delete(w.memory, id)
			continue
		}
		ids = append(ids, id)
	}
	if len(ids) > maxRemembered {
		slices.SortFunc(ids, func(a, b session.ID) int { return w.memory[b].Kept.Compare(w.memory[a].Kept) })
		for _, id := range ids[maxRemembered:] {
			delete(w.memory, id)
		}
	}
	b, err := json.Marshal(w.memory)
	w.mu.Unlock()
	if err == nil {
		err = replace(filepath.Join(w.o.StateDir, memoryFile), b)
	}
	if err != nil {
		w.log.Warn("which sessions were seen cannot be kept", "path", w.o.StateDir, "err", err)
	}
}

// replace writes a file whole or not at all.
func replace(path string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// The control clients of this process are noted in a file of the state
// directory, so that one that outlives a killed process is ended by the next.
// A client goes when its stdin closes, unless its server hangs just then.

const clientsPrefix = "tmux-clients."

func (w *Watcher) clientsFile() string {
	if w.o.StateDir == "" {
		return ""
	}
	return filepath.Join(w.o.StateDir, clientsPrefix+strconv.Itoa(os.Getpid()))
}

func (w *Watcher) rememberClient(pid int) {
	path := w.clientsFile()
	if path == "" {
		return
	}
	p, err := proc.Read(pid)
	if err != nil {
		return
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		w.log.Warn("a control client of tmux cannot be noted", "path", path, "err", err)
		return
	}
	defer f.Close()
	fmt.Fprintf(f, "%d %s\n", pid, p.Start)
}

// forgetClients ends the note: every client has ended.
func (w *Watcher) forgetClients() {
	if path := w.clientsFile(); path != "" {
		os.Remove(path)
	}
}

// sweep ends control clients that processes of Holdfast left behind which are
// no more: those that were noted, by id and start, and nothing else.
func (w *Watcher) sweep() {
	if w.o.StateDir == "" {
		return
	}
	entries, err := os.ReadDir(w.o.StateDir)
	if err != nil {
		return
	}
	for _, e := range entries {
		id, ok := strings.CutPrefix(e.Name(), clientsPrefix)
		owner, err := strconv.Atoi(id)
		if !ok || err != nil || owner <= 0 {
			continue
		}
		path := filepath.Join(w.o.StateDir, e.Name())
		// An owner that lives keeps its clients. Its id may be used again by
		// another program; then the note waits for the next start.
		if owner != os.Getpid() && syscall.Kill(owner, 0) == nil {
			continue
		}
		info, err := os.Stat(path)
		if err != nil || info.Size() > maxMemory {
			continue
		}
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		for line := range strings.SplitSeq(string(b), "\n") {
			id, start, _ := strings.Cut(line, " ")
			pid, err := strconv.Atoi(id)
			if err != nil || pid <= 1 || !proc.Alive(pid, start) {
				continue
			}
			w.log.Info("a control client of tmux that was left behind is ended", "path", path)
			syscall.Kill(pid, syscall.SIGTERM)
		}
		os.Remove(path)
	}
}
