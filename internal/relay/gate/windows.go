package gate

import (
	"sync"
	"time"
)

// maxWindows bounds how many keys are counted at once, at about 60 bytes each:
// 4 MB. With more, some are forgotten early, which errs on the lenient side.
const maxWindows = 1 << 16

// Windows counts events of a key in fixed windows of time. A window starts with
// the first event, so that a key which behaves is never in the map for long.
type Windows[K comparable] struct {
	limit int
	per   time.Duration

	mu      sync.Mutex
	windows map[K]window
}

type window struct {
	start time.Time
	n     int
}

// NewWindows counts up to limit events each per.
func NewWindows[K comparable](limit int, per time.Duration) *Windows[K] {
	return &Windows[K]{limit: limit, per: per, windows: make(map[K]window)}
}

// Take counts one event. It is false, with the time until the window ends,
// where the limit was reached already.
func (w *Windows[K]) Take(k K, now time.Time) (wait time.Duration, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	win, known := w.windows[k]
	if !known || w.over(win, now) {
		if !known && len(w.windows) >= maxWindows {
			w.evict(now)
		}
		win = window{start: now}
	}
	if win.n >= w.limit {
		return w.per - now.Sub(win.start), false
	}
	win.n++
	w.windows[k] = win
	return 0, true
}

// Full reports whether Take would refuse, and for how long, without counting.
func (w *Windows[K]) Full(k K, now time.Time) (wait time.Duration, full bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	win, known := w.windows[k]
	if !known || w.over(win, now) || win.n < w.limit {
		return 0, false
	}
	return w.per - now.Sub(win.start), true
}

func (w *Windows[K]) over(win window, now time.Time) bool {
	return now.Sub(win.start) >= w.per
}

// evict forgets the windows that are over, and then some others, so that a
// flood of keys pays for a walk through the map only once in thousands.
func (w *Windows[K]) evict(now time.Time) {
	for k, win := range w.windows {
		if w.over(win, now) {
			delete(w.windows, k)
		}
	}
	for k := range w.windows {
		if len(w.windows) <= maxWindows*7/8 {
			return
		}
		delete(w.windows, k)
	}
}
