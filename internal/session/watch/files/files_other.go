//go:build !linux

package files

import (
	"context"
	"os"
	"slices"
	"sync"
	"time"
)

// Files tells when files change. Here they are asked for, a few times a second:
// there are two for each tool that runs.
type Files struct {
	mu    sync.Mutex
	paths map[string][]string // by owner
	state map[string]state
}

type state struct {
	size int64
	time time.Time
}

// askEvery is how often the files are asked for. A change must be out within
// half a second.
const askEvery = 250 * time.Millisecond

// New makes a Files; Run must be called for it to tell anything.
func New() (*Files, error) {
	return &Files{paths: map[string][]string{}, state: map[string]state{}}, nil
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
		return
	}
	f.paths[owner] = paths
}

// Run calls changed with each owner of a file that changed, until ctx ends.
func (f *Files) Run(ctx context.Context, changed func(owner string)) {
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		f.mu.Lock()
		now := map[string]state{}
		var out []string
		for owner, paths := range f.paths {
			hit := false
			for _, p := range paths {
				s, ok := now[p]
				if !ok {
					if info, err := os.Stat(p); err == nil {
						s = state{info.Size(), info.ModTime()}
					}
					now[p] = s
				}
				old, known := f.state[p]
				hit = hit || known && (old.size != s.size || !old.time.Equal(s.time))
			}
			if hit {
				out = append(out, owner)
			}
		}
		f.state = now
		f.mu.Unlock()
		for _, owner := range out {
			changed(owner)
		}
	}
}
