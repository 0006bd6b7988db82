package handover

import (
	"context"
	"sync"
)

// Point is where a relay's streams stand still from a Close to the next Open.
// The zero Point is open.
type Point[T any] struct {
	mu      sync.Mutex
	arrived chan T
	thaw    chan struct{}
}

// Close begins a standstill; arrived gives those who stand still, up to n of them
// without anybody waiting.
func (p *Point[T]) Close(n int) (arrived <-chan T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.arrived, p.thaw = make(chan T, n), make(chan struct{})
	return p.arrived
}

// Open ends it.
func (p *Point[T]) Open() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.thaw != nil {
		close(p.thaw)
		p.arrived, p.thaw = nil, nil
	}
}

// Stand hands v over and stands still until Open, or ctx's end.
func (p *Point[T]) Stand(ctx context.Context, v T) error {
	p.mu.Lock()
	arrived, thaw := p.arrived, p.thaw
	p.mu.Unlock()
	if thaw == nil {
		return nil
	}
	select {
	case arrived <- v:
	case <-thaw:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case <-thaw:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
