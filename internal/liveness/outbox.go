package liveness

import (
	"fmt"
	"time"
)

// OutboxLimits bounds what waits for a connection. All three are required.
type OutboxLimits struct {
	Count int
	Bytes int
	// Age is how long an item may wait, by whichever clock says that it was
	// longer: sleep counts.
	Age time.Duration
}

// Loss is why an item will never be sent.
type Loss uint8

// The losses.
const (
	// Overflow: the outbox was full when it came.
	Overflow Loss = iota + 1
	// Expired: it waited longer than Age.
	Expired
	// ContextEnded: account, machine or channel changed.
	ContextEnded
)

var lossNames = [...]string{Overflow: "overflow", Expired: "expired", ContextEnded: "context ended"}

func (l Loss) String() string {
	if int(l) < len(lossNames) && lossNames[l] != "" {
		return lossNames[l]
	}
	return "none"
}

// Lost is an item that will never be sent. Whoever handed it over must hear.
type Lost[T any] struct {
	Item T
	Why  Loss
}

// Outbox is what waits to be sent on a channel. It hands out, in this order
// after every reconnect: the reports of the present (subscriptions, what is
// being looked at), then the queue in order; a new item goes behind what
// waits. An item that Next has handed out is the caller's: the Outbox does not
// know whether it arrived and never repeats it.
type Outbox[T any] struct {
	limits  OutboxLimits
	context string
	present []report[T]
	queue   []queued[T]
	bytes   int
}

type report[T any] struct {
	key  string
	item T
	sent bool // on the present connection
}

type queued[T any] struct {
	item  T
	bytes int
	at    Instant
}

// NewOutbox makes an empty outbox for a context, for example account, machine
// and channel in one string. The error wraps ErrConfig.
func NewOutbox[T any](limits OutboxLimits, context string) (*Outbox[T], error) {
	if limits.Count <= 0 || limits.Bytes <= 0 || limits.Age <= 0 {
		return nil, fmt.Errorf("outbox: count, bytes and age are required: %w", ErrConfig)
	}
	return &Outbox[T]{limits: limits, context: context}, nil
}

// Push queues an item of so many bytes. What is lost by it comes back: expired
// items first, then the item itself if there is no room. What waits is never
// pushed out by what comes later, since its sender was told that it waits.
func (o *Outbox[T]) Push(now Instant, bytes int, item T) []Lost[T] {
	lost := o.Expire(now)
	if len(o.queue) >= o.limits.Count || bytes > o.limits.Bytes-o.bytes || bytes < 0 {
		return append(lost, Lost[T]{item, Overflow})
	}
	o.queue = append(o.queue, queued[T]{item, bytes, now})
	o.bytes += bytes
	return lost
}

// Report sets what is true now under a key: it replaces the one before and is
// sent once on this and on every later connection, before the queue. The keys
// are the caller's own, so their number is his to bound.
func (o *Outbox[T]) Report(key string, item T) {
	for i := range o.present {
		if o.present[i].key == key {
			o.present[i].item, o.present[i].sent = item, false
			return
		}
	}
	o.present = append(o.present, report[T]{key: key, item: item})
}

// Withdraw removes a report.
func (o *Outbox[T]) Withdraw(key string) {
	for i := range o.present {
		if o.present[i].key == key {
			o.present = append(o.present[:i], o.present[i+1:]...)
			return
		}
	}
}

// Connected says that a new connection is ready: every report is due again.
func (o *Outbox[T]) Connected() {
	for i := range o.present {
		o.present[i].sent = false
	}
}

// Next hands out what is to be sent next, if anything is, and what expired
// meanwhile.
func (o *Outbox[T]) Next(now Instant) (item T, ok bool, lost []Lost[T]) {
	lost = o.Expire(now)
	for i := range o.present {
		if r := &o.present[i]; !r.sent {
			r.sent = true
			return r.item, true, lost
		}
	}
	if len(o.queue) == 0 {
		return item, false, lost
	}
	q := o.queue[0]
	o.drop(1)
	return q.item, true, lost
}

// Expire returns what has waited too long.
func (o *Outbox[T]) Expire(now Instant) (lost []Lost[T]) {
	n := 0
	for n < len(o.queue) {
		at := o.queue[n].at
		if max(now.Mono-at.Mono, now.Wall-at.Wall) <= o.limits.Age {
			break
		}
		lost = append(lost, Lost[T]{o.queue[n].item, Expired})
		n++
	}
	o.drop(n)
	return lost
}

// SetContext changes account, machine or channel. Nothing of another context
// survives it: reports are forgotten, queued items are lost.
func (o *Outbox[T]) SetContext(context string) (lost []Lost[T]) {
	if context == o.context {
		return nil
	}
	for _, q := range o.queue {
		lost = append(lost, Lost[T]{q.item, ContextEnded})
	}
	o.context, o.queue, o.present, o.bytes = context, nil, nil, 0
	return lost
}

// Len and Bytes are what waits in the queue; reports do not count.
func (o *Outbox[T]) Len() int { return len(o.queue) }

// Bytes is the size of what Len counts.
func (o *Outbox[T]) Bytes() int { return o.bytes }

func (o *Outbox[T]) drop(n int) {
	for i := range n {
		o.bytes -= o.queue[i].bytes
		o.queue[i] = queued[T]{} // let the item go
	}
	if o.queue = o.queue[n:]; len(o.queue) == 0 {
		o.queue = nil
	}
}
