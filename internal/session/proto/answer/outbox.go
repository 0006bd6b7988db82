package answer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"holdfast/internal/session"
	"holdfast/internal/session/proto"
)

const (
	// slowWrite is how long one write may take before the reader is told to
	// reopen: what it gets by then is old. A phone that was frozen for less just
	// goes on. Half tells phones on bad links to reopen, and each of these gets
	// all sessions anew; twice shows a minute-old list as if it were live.
	slowWrite = 60 * time.Second
	// farewellTime bounds the writing of the last line.
	farewellTime = time.Second
)

// errSlow ends a connection whose reader is too slow.
var errSlow = errors.New("the reader is too slow")

// outbox is what one connection has still to send. Lines wait in a queue that is
// bounded by the requests that may be open, whose senders wait until the line
// was written; sessions wait as one entry each, the newest state, so that a slow
// reader costs no more than the sessions there are.
type outbox struct {
	w    io.Writer
	wake chan struct{} // capacity 1

	// mu guards the fields below.
	mu     sync.Mutex
	queue  []queued
	dirty  map[session.ID]Event
	order  []session.ID             // of dirty, oldest first
	next   map[session.ID]time.Time // when a session may be sent again
	bye    []byte                   // the last line
	closed bool
}

type queued struct {
	line []byte
	sent chan struct{} // closed when it was written; nil where nobody waits
}

func newOutbox(w io.Writer) *outbox {
	return &outbox{w: w, wake: make(chan struct{}, 1), dirty: map[session.ID]Event{}, next: map[session.ID]time.Time{}}
}

// encode makes a line of a message.
func encode(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode message: %w", err)
	}
	if len(b) > proto.MaxLineBytes {
		return nil, proto.Errorf(proto.CodeLimit, "the answer has %d bytes, and a line at most %d: ask for less", len(b), proto.MaxLineBytes)
	}
	return append(b, '\n'), nil
}

func (o *outbox) nudge() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// put queues a line. The returned channel is closed when it was written.
func (o *outbox) put(line []byte) <-chan struct{} {
	sent := make(chan struct{})
	o.mu.Lock()
	if o.closed || o.bye != nil {
		close(sent)
	} else {
		o.queue = append(o.queue, queued{line, sent})
	}
	o.mu.Unlock()
	o.nudge()
	return sent
}

// send queues a message and waits until it was written or ctx ends.
func (o *outbox) send(ctx context.Context, v any) error {
	line, err := encode(v)
	if err != nil {
		return err
	}
	select {
	case <-o.put(line):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// change notes the newest state of a session.
func (o *outbox) change(e Event) {
	id := e.Gone
	if e.Session != nil {
		id = e.Session.ID
	}
	o.mu.Lock()
	if _, waiting := o.dirty[id]; !waiting {
		o.order = append(o.order, id)
	}
	o.dirty[id] = e
	o.mu.Unlock()
	o.nudge()
}

// flush waits until all lines that are queued now were written.
func (o *outbox) flush(ctx context.Context) {
	select {
	case <-o.put(nil):
	case <-ctx.Done():
	}
}

// leave makes a bye the last line. The first one stays.
func (o *outbox) leave(code proto.Code, message string) {
	line, err := encode(proto.Bye{Op: proto.OpBye, Code: code, Message: message})
	o.mu.Lock()
	if err == nil && o.bye == nil {
		o.bye = line
	}
	o.mu.Unlock()
	o.nudge()
}

// take is the next line to write. Without one, again says when to look again:
// zero means after a nudge. last is the bye.
func (o *outbox) take(now time.Time) (q queued, again time.Duration, last, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.bye != nil {
		return queued{line: o.bye}, 0, true, true
	}
	if len(o.queue) > 0 {
		q, o.queue[0] = o.queue[0], queued{}
		o.queue = o.queue[1:]
		return q, 0, false, true
	}
	for i, id := range o.order {
		wait := o.next[id].Sub(now)
		if wait > 0 {
			if again == 0 || wait < again {
				again = wait
			}
			continue
		}
		e := o.dirty[id]
		delete(o.dirty, id)
		o.order = append(o.order[:i], o.order[i+1:]...)
		line, err := encodeEvent(e)
		if e.Session == nil {
			delete(o.next, id)
		} else {
			o.next[id] = now.Add(proto.MinChangeInterval)
		}
		if err != nil {
			// Clipping keeps a session far below a line; it is a fault of ours.
			return queued{line: nil}, time.Nanosecond, false, false
		}
		return queued{line: line}, 0, false, true
	}
	return queued{}, again, false, false
}

func encodeEvent(e Event) ([]byte, error) {
	if e.Session == nil {
		return encode(proto.Gone{Op: proto.OpGone, Session: e.Gone})
	}
	return encode(proto.Change{Op: proto.OpChange, Session: clip(*e.Session)})
}

// run writes until ctx ends, the stream breaks, or the bye was written.
func (o *outbox) run(ctx context.Context) error {
	defer o.release()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		began := time.Now()
		q, again, last, ok := o.take(began)
		if !ok {
			if again == 0 {
				again = time.Hour
			}
			timer.Reset(again)
			select {
			case <-o.wake:
			case <-timer.C:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			continue
		}
		_, err := o.w.Write(q.line)
		if q.sent != nil {
			close(q.sent)
		}
		switch {
		case err != nil:
			return fmt.Errorf("write to the device: %w", err)
		case last:
			return nil
		case time.Since(began) > slowWrite:
			o.leave(proto.ByeSlow, "you read too slowly; what you have is old: open a new connection")
		}
	}
}

// release lets all who wait for their line go.
func (o *outbox) release() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	for _, q := range o.queue {
		if q.sent != nil {
			close(q.sent)
		}
	}
	o.queue = nil
}
