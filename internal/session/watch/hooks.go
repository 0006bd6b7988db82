package watch

import "holdfast/internal/session/proc"

// hookPaths are where hooks spool what they are told.
func (w *Watcher) hookPaths() []string { return nil }

// hookSignal takes in what hooks said about a program in this pane.
func (p *pane) hookSignal(*sources, proc.Facts) {}
