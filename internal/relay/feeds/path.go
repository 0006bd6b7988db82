package feeds

import (
	"context"
	"encoding/json"
	"time"

	"holdfast/live"
)

const (
	// pathAge bounds a measuring connection: the longest idle limit that is
	// known of a proxy is 15 min, and nobody waits for more.
	pathAge = 20 * time.Minute
	// pathRate bounds what a device sends while it measures: one message each
	// five seconds.
	pathRate = 60
	// minTicks is how often the relay may be asked to speak.
	minTicks = time.Second
)

// path is one measuring connection.
type path struct {
	seat
	ticks context.CancelFunc
	ended chan struct{} // closed when ticks has stopped; nil before it began
}

func (p *path) Open(ctx context.Context, c *live.Conn) error { return p.sit(ctx, c) }

func (p *path) Message(_ context.Context, c *live.Conn, message json.RawMessage) error {
	var m struct {
		Op      string `json:"op"`
		EveryMs int64  `json:"everyMs"`
	}
	if json.Unmarshal(message, &m) != nil || m.Op != "ticks" {
		return nil // noise: read and not answered
	}
	p.stop()
	every := time.Duration(min(m.EveryMs, pathAge.Milliseconds())) * time.Millisecond
	if every < minTicks {
		return &live.Error{Name: "BadRequest", Params: []any{"everyMs"}}
	}
	ctx, cancel := context.WithCancel(c.Context())
	p.ticks, p.ended = cancel, make(chan struct{})
	// Ends with the connection or by stop, which waits.
	go func(ended chan struct{}) {
		defer close(ended)
		t := time.NewTicker(every)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
				if c.Send(map[string]string{"op": "tick"}) != nil {
					return
				}
			}
		}
	}(p.ended)
	return nil
}

func (p *path) stop() {
	if p.ticks != nil {
		p.ticks()
		<-p.ended
		p.ticks = nil
	}
}

func (p *path) Close(*live.Conn, live.End) {
	p.stop()
	p.leave()
}
