package channels

import (
	"context"
	"encoding/json"
	"errors"
	"sync"

	"holdfast/live"
)

// Run is a command's output as it comes: in order, and for every client from
// the position that it has. It keeps the newest bytes in a bounded memory and
// says what is gone.
//
// Wire: the client sends {"op":"run","from":N} once, on every open (0 for the
// beginning). The server sends {"at":N,"data":"<base64>"} in order,
// {"gap":{"from":N,"to":M}} where older output is gone, and at the end
// {"end":N,"result":…}, after which it closes with 4001.
type Run struct {
	mu      sync.Mutex
	changed chan struct{} // closed and renewed at each change
	buf     []byte
	start   int64 // position of buf[0]
	max     int
	done    bool
	result  any
}

// runChunk is the most output in one message: one chunk of a few screens, so
// that a client that joins late is not handed megabytes at once.
const runChunk = 16 << 10

// NewRun makes a Run that keeps the newest max bytes; zero means 1 MiB.
func NewRun(max int) (*Run, error) {
	if max < 0 {
		return nil, errors.New("run: max is negative")
	}
	setDefault(&max, 1<<20)
	return &Run{max: max, changed: make(chan struct{})}, nil
}

// Write adds output. It never blocks and keeps no reference to p; after Finish
// it fails.
func (r *Run) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done {
		return 0, errors.New("write to a run: it is finished")
	}
	r.buf = append(r.buf, p...)
	// Cut when twice as long as kept, so that each byte is moved once at most.
	if over := len(r.buf) - r.max; len(r.buf) >= 2*r.max {
		r.buf = append([]byte(nil), r.buf[over:]...)
		r.start += int64(over)
	}
	r.wake()
	return len(p), nil
}

// Finish ends the output with a result, such as an exit status.
func (r *Run) Finish(result any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.done {
		r.done, r.result = true, result
		r.wake()
	}
}

func (r *Run) wake() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// runStep is what one reader at a position gets next.
type runStep struct {
	gapTo  int64 // above the position: older output is gone
	data   []byte
	ended  bool
	result any
	wait   <-chan struct{} // nothing yet
}

func (r *Run) at(pos int64) runStep {
	r.mu.Lock()
	defer r.mu.Unlock()
	oldest := r.start
	if over := len(r.buf) - r.max; over > 0 {
		oldest += int64(over) // kept longer than promised, not promised
	}
	end := r.start + int64(len(r.buf))
	switch {
	case pos < oldest:
		return runStep{gapTo: oldest}
	case pos > end:
		return runStep{gapTo: -1} // a position of another run
	case pos < end:
		from := int(pos - r.start)
		to := min(len(r.buf), from+runChunk)
		return runStep{data: append([]byte(nil), r.buf[from:to]...)}
	case r.done:
		return runStep{ended: true, result: r.result}
	}
	return runStep{wait: r.changed}
}

// Channel is the Handler of one connection.
func (r *Run) Channel() live.Handler { return &runChannel{run: r} }

type runChannel struct {
	run    *Run
	cancel context.CancelFunc
	ended  chan struct{}
}

func (h *runChannel) Open(context.Context, *live.Conn) error { return nil }

func (h *runChannel) Message(_ context.Context, c *live.Conn, message json.RawMessage) error {
	var m struct {
		Op   string `json:"op"`
		From int64  `json:"from"`
	}
	if json.Unmarshal(message, &m) != nil || m.Op != "run" || m.From < 0 {
		return &live.Error{Name: "BadRequest"}
	}
	h.stop() // a second position replaces the first
	ctx, cancel := context.WithCancel(c.Context())
	h.cancel, h.ended = cancel, make(chan struct{})
	// Ends with the connection or stop, which waits for it.
	go func(ended chan struct{}) {
		defer close(ended)
		h.stream(ctx, c, m.From)
	}(h.ended)
	return nil
}

func (h *runChannel) stream(ctx context.Context, c *live.Conn, pos int64) {
	for {
		s := h.run.at(pos)
		var err error
		switch {
		case s.gapTo < 0:
			c.SendError(&live.Error{Name: "BadPosition", Params: []any{pos}})
			return
		case s.gapTo > 0:
			err = c.SendWait(ctx, map[string]any{"gap": map[string]int64{"from": pos, "to": s.gapTo}})
			pos = s.gapTo
		case s.data != nil:
			err = c.SendWait(ctx, map[string]any{"at": pos, "data": s.data})
			pos += int64(len(s.data))
		case s.ended:
			if c.SendWait(ctx, map[string]any{"end": pos, "result": s.result}) == nil {
				c.Close(closeEnded, "ended")
			}
			return
		default:
			select {
			case <-s.wait:
			case <-ctx.Done():
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (h *runChannel) stop() {
	if h.cancel != nil {
		h.cancel()
		<-h.ended
		h.cancel = nil
	}
}

func (h *runChannel) Close(*live.Conn, live.End) { h.stop() }
