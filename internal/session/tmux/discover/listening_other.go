//go:build !linux

package discover

import (
	"context"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// system remembers when processes were looked at.
type system struct {
	looked time.Time
	found  []Found
}

// processTick is how often the list of processes is read where the kernel has
// no list of sockets: that starts ps.
const processTick = 10 * time.Second

// processTimeout bounds ps, which answers within milliseconds.
const processTimeout = 4 * time.Second

// listening reads the socket from the command lines of this user's tmux
// processes: -S names it, -L a file in one of the directories.
func (d *Discoverer) listening(map[string]Found) []Found {
	if time.Since(d.sys.looked) < processTick {
		return d.sys.found
	}
	d.sys.looked = time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), processTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, "ps", "-U", strconv.Itoa(d.uid), "-o", "pid=,command=").Output()
	if err != nil {
		return nil
	}
	d.sys.found = nil
	for line := range strings.SplitSeq(string(out), "\n") {
		f := strings.Fields(line)
		if len(f) < 3 || !strings.HasPrefix(filepath.Base(f[1]), "tmux") {
			continue
		}
		for i := 2; i+1 < len(f); i++ {
			path := ""
			switch f[i] {
			case "-S":
				path = f[i+1]
			case "-L":
				path = filepath.Join(d.dirs[0], f[i+1])
			}
			if !filepath.IsAbs(path) {
				continue
			}
			// A client has the same words as its server, so the file decides.
			if _, ok := d.own(path); ok {
				d.sys.found = append(d.sys.found, Found{Socket: path})
			}
		}
	}
	return d.sys.found
}
