package client

import (
	"context"

	"holdfast/internal/netwatch"
	"holdfast/internal/wsconn"
)

// Watch probes the path of s at once whenever this computer has slept, its
// network has changed or its clock was stepped, until ctx ends or s is over, and
// returns then. Without it a stream that did not survive a lid's close is
// believed for as long as a quiet path may be.
func Watch(ctx context.Context, s *wsconn.Stream, o netwatch.Options) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Ends with s or with ctx, which the deferred cancel ends.
	go func() {
		defer cancel()
		select {
		case <-s.Done():
		case <-ctx.Done():
		}
	}()
	netwatch.Watch(ctx, o, func(netwatch.Kind) { s.Wake() })
}
