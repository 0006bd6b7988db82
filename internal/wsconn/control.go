package wsconn

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/coder/websocket"

	"holdfast/internal/liveness"
	"holdfast/internal/wire"
	"holdfast/internal/wsconn/link"
)

// Control is an open control connection: text messages both ways. Its methods
// may be called concurrently, but Read only by one goroutine.
type Control struct {
	*conn
	strange atomic.Int64

	mu sync.Mutex // one writer at a time
}

// DialControl opens a control connection, judged by cfg, which must not change.
// ask is called when the judge wants the application's ping sent, for the first
// time before the return; it may call Write and must not block. Cancelling ctx after the return does nothing. For the errors see
// Options and DialError.
func DialControl(ctx context.Context, o Options, cfg *liveness.Config, ask func(*Control)) (*Control, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	base, err := dial(ctx, &o)
	if err != nil {
		return nil, err
	}
	c := &Control{conn: base}
	c.ws.SetReadLimit(int64(cmp.Or(o.MaxMessageBytes, wire.MaxControlBytes)))
	c.askApp = func() { ask(c) }
	c.start(cfg, o.Log)
	return c, nil
}

// Read returns the next text message, at most wire.MaxControlBytes long or what
// Options.MaxMessageBytes says; a longer one ends the connection with 1009. Binary messages are dropped and
// counted. A text message is evidence for the judge by itself; say Pong where
// it was one. The error is Err's.
func (c *Control) Read() ([]byte, error) {
	for {
		c.beginRead()
		typ, b, err := c.ws.Read(context.Background())
		c.endRead()
		if err != nil {
			return nil, c.broken(err)
		}
		if typ != websocket.MessageText {
			c.strange.Add(1)
			continue
		}
		c.heard(liveness.InText)
		return b, nil
	}
}

// Strange is how many binary messages were dropped.
func (c *Control) Strange() int64 { return c.strange.Load() }

// Pong says that the message that was read last is the application's answer.
func (c *Control) Pong() { c.heard(liveness.InPong) }

// Answered reports whether an application's answer was ever seen.
func (c *Control) Answered() bool {
	c.judgeMu.Lock()
	defer c.judgeMu.Unlock()
	return c.judge.Answered()
}

func (c *Control) heard(kind liveness.Inbound) {
	c.act(c.event(func(j *liveness.Judge, now liveness.Instant) liveness.Effects { return j.Inbound(now, kind) }))
}

// Write sends one text message of at most wire.MaxControlBytes. It never
// blocks: ErrFull says that the peer takes nothing.
func (c *Control) Write(text []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link.Unsent() >= link.HighWaterBytes {
		return fmt.Errorf("write to relay: %w", ErrFull)
	}
	if err := c.ws.Write(context.Background(), websocket.MessageText, text); err != nil {
		return c.writeError(err)
	}
	return nil
}

// writeError prefers the reason why the connection is over to the error that
// this has on a write. The reader finds the reason where there is none yet.
func (c *conn) writeError(err error) error {
	if why := c.Err(); why != nil {
		return why
	}
	return fmt.Errorf("write to relay: %w", err)
}
