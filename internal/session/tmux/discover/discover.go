// Package discover finds the tmux servers of this user by their sockets, wherever
// those are. It connects to none, starts none and asks none anything.
//
// What a caller will get wrong: a socket file is no proof of a server, it may
// have been left behind (Found.Certain says that something listens); and a server
// whose socket file was deleted runs on, out of reach.
package discover

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
)

// Found is a socket at which a tmux server of this user is, or may be.
type Found struct {
	Socket string
	// Deleted says that the server runs and its socket file is gone, so that
	// nobody can reach it. kill -USR1 PID makes tmux put it back.
	Deleted bool
	PID     int // of the server, where that is known
	// Certain says that something listens there; otherwise it is only a file,
	// maybe left behind, and asking tells.
	Certain bool
	// File tells a socket file from an earlier one at the same path.
	File uint64
}

// Options say where to look. The zero value looks in /tmp and at what
// the system says.
type Options struct {
	// Dirs are directories as TMUX_TMPDIR names them, beside /tmp.
	Dirs []string
}

// maxSockets bounds the sockets of one look; more are left out.
const maxSockets = 256

// Discoverer finds the tmux servers of this user. It remembers what it has
// ruled out, so that a look every second costs little. It is not safe for use
// by two goroutines at once.
type Discoverer struct {
	dirs []string
	uid  int
	sys  system
}

// New makes a Discoverer.
func New(o Options) *Discoverer {
	d := &Discoverer{uid: os.Getuid()}
	for _, base := range append([]string{"/tmp"}, o.Dirs...) {
		if base == "" {
			continue
		}
		if real, err := filepath.EvalSymlinks(base); err == nil {
			base = real
		}
		dir := filepath.Join(base, "tmux-"+strconv.Itoa(d.uid))
		if !slices.Contains(d.dirs, dir) {
			d.dirs = append(d.dirs, dir)
		}
	}
	return d
}

// Dirs are the directories in which tmux puts its sockets by default. They may
// not exist yet.
func (d *Discoverer) Dirs() []string { return slices.Clone(d.dirs) }

// Look finds the servers that are there now. It connects to none.
func (d *Discoverer) Look() []Found {
	byPath := map[string]Found{}
	add := func(path string, f Found) {
		if len(byPath) < maxSockets {
			f.Socket = path
			byPath[path] = f
		}
	}
	for _, dir := range d.dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			if file, ok := d.own(path); ok && e.Type()&os.ModeSocket != 0 {
				add(path, Found{File: file})
			}
		}
	}
	for _, l := range d.listening(byPath) {
		file, ok := d.own(l.Socket)
		l.File, l.Deleted, l.Certain = file, !ok, true
		if known, ok := byPath[l.Socket]; ok && l.PID == 0 {
			l.PID = known.PID
		}
		add(l.Socket, l)
	}
	out := make([]Found, 0, len(byPath))
	for _, f := range byPath {
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b Found) int {
		if a.Socket < b.Socket {
			return -1
		}
		return 1
	})
	return out
}

// own says whether a path is a socket of this user, and which file it is.
func (d *Discoverer) own(path string) (file uint64, ok bool) {
	info, err := os.Lstat(path)
	if err != nil || info.Mode()&os.ModeSocket == 0 {
		return 0, false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(st.Uid) != d.uid {
		return 0, false
	}
	return uint64(st.Ino)<<20 ^ uint64(info.ModTime().UnixNano()), true
}
