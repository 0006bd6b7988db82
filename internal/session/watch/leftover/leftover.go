// Package leftover notes which processes this one has started that could outlive
// it, and ends those that did at the next start. A client of tmux goes with the
// process that started it, unless its server hangs just then.
//
// It ends what was noted, by id and start, and nothing else. What a caller will
// get wrong: Sweep looks at the notes of processes that are no more, so another
// one that lives keeps its own.
package leftover

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"holdfast/internal/session/proc"
)

const (
	// Prefix is how the names of the files with the notes begin.
	Prefix = "tmux-clients."
	// maxNotes bounds the file that is read, in bytes: a line holds some 20.
	maxNotes = 1 << 20
)

// Notes are the notes of this process.
type Notes struct {
	dir string
	log *slog.Logger
}

// New makes Notes in the state directory dir; where it is empty nothing is
// noted.
func New(dir string, log *slog.Logger) *Notes { return &Notes{dir: dir, log: log} }

// File is where this process notes; empty where it does not.
func (n *Notes) File() string {
	if n.dir == "" {
		return ""
	}
	return filepath.Join(n.dir, Prefix+strconv.Itoa(os.Getpid()))
}

// Add notes a process that was started.
func (n *Notes) Add(pid int) {
	path := n.File()
	if path == "" {
		return
	}
	p, err := proc.Read(pid)
	if err != nil {
		return
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		n.log.Warn("a control client of tmux cannot be noted", "path", path, "err", err)
		return
	}
	defer f.Close()
	fmt.Fprintf(f, "%d %s\n", pid, p.Start)
}

// Forget ends the note: everything that was started has ended.
func (n *Notes) Forget() {
	if path := n.File(); path != "" {
		os.Remove(path)
	}
}

// Sweep ends what processes have left behind that are no more.
func (n *Notes) Sweep() {
	if n.dir == "" {
		return
	}
	entries, err := os.ReadDir(n.dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		id, ok := strings.CutPrefix(e.Name(), Prefix)
		owner, err := strconv.Atoi(id)
		if !ok || err != nil || owner <= 0 {
			continue
		}
		path := filepath.Join(n.dir, e.Name())
		// An owner that lives keeps its own. Its id may be used again by another
		// program; then the note waits for the next start.
		if owner != os.Getpid() && proc.Running(owner) {
			continue
		}
		info, err := os.Lstat(path)
		if err != nil || !info.Mode().IsRegular() || info.Size() > maxNotes {
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
			n.log.Info("a control client of tmux that was left behind is ended", "path", path)
			syscall.Kill(pid, syscall.SIGTERM)
		}
		os.Remove(path)
	}
}
