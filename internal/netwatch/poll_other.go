//go:build !linux && !darwin && !dragonfly && !freebsd && !netbsd && !openbsd

package netwatch

import (
	"context"
	"net"
	"slices"
	"time"
)

// systemChanges compares the interfaces' addresses every tick. The goroutine
// ends with ctx.
func systemChanges(ctx context.Context) (<-chan struct{}, error) {
	out := make(chan struct{}, 1)
	go func() {
		defer close(out)
		ticker := time.NewTicker(tick)
		defer ticker.Stop()
		last := addresses()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if now := addresses(); !slices.Equal(now, last) {
				last = now
				select {
				case out <- struct{}{}:
				default:
				}
			}
		}
	}()
	return out, nil
}

func addresses() []string {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	out := make([]string, 0, len(addrs))
	for _, a := range addrs {
		out = append(out, a.String())
	}
	slices.Sort(out)
	return out
}
