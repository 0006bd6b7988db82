package wsconn

import (
	"context"
	"fmt"
	"time"
)

// Ping asks on the WebSocket layer and returns the round trip. Whatever
// terminates the WebSocket answers, an edge included, so it proves this leg and
// no more. Somebody must be in Read meanwhile. An unanswered Ping leaves the
// connection as it is.
func (c *conn) Ping(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	if err := c.ws.Ping(ctx); err != nil {
		if over := c.Err(); over != nil {
			err = over
		}
		return 0, fmt.Errorf("ping: %w", err)
	}
	return time.Since(start), nil
}
