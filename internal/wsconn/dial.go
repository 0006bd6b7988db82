package wsconn

import (
	"context"
	"io"
	"net/http"

	"github.com/coder/websocket"

	"holdfast/internal/wsconn/link"
	"holdfast/internal/wsconn/reach"
)

// dial connects and upgrades. For its errors see reach.Attempt.End.
func dial(ctx context.Context, o *Options) (*conn, error) {
	c := &conn{}
	attempt, err := reach.Begin(ctx, o, func(rwc io.ReadWriteCloser, raw *link.Meter) io.ReadWriteCloser {
		c.link = link.New(rwc, raw)
		return c.link
	})
	if err != nil {
		return nil, err
	}
	ws, resp, err := websocket.Dial(attempt.Context(), attempt.URL(), &websocket.DialOptions{
		HTTPClient:      attempt.Client(),
		HTTPHeader:      attempt.Header(),
		Subprotocols:    attempt.Subprotocols(),
		CompressionMode: websocket.CompressionDisabled,
		OnPingReceived: func(context.Context, []byte) bool {
			c.pinged.Store(true)
			return c.link.RoomForControl()
		},
	})
	if err = attempt.End(resp, err); err != nil {
		if c.link != nil {
			c.link.Abort()
		}
		return nil, err
	}
	c.ws, c.clean = ws, attempt.Clean
	c.version1 = ws.Subprotocol() != ""
	return c, nil
}

var _ http.RoundTripper = (*reach.Attempt)(nil)
