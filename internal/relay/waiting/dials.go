// Package waiting is the time between a device's request and its pair: the table
// of dials that wait for their machine, and the reading of what the device sends
// meanwhile.
//
// It asks no machine and closes no connection. What a caller will get wrong:
// whoever takes a Dial out of the table owes it one answer, and whoever opened
// it must Abandon it, whatever came.
package waiting

import (
	"net"
	"sync"

	"holdfast/internal/engine"
	"holdfast/internal/wire"
)

// Dials are the requests to reach a machine that wait for its answer.
type Dials struct {
	node string

	mu      sync.Mutex
	waiting map[wire.ConnID]*Dial
}

// Dial is one of them. Its connID is good once, and only for the machine it was
// sent to; whoever takes it out of the table owes it one answer.
type Dial struct {
	ID  wire.ConnID
	Key engine.Key
	// Answers gives the one answer, if one comes.
	Answers <-chan Answer

	answers chan Answer // capacity 1

	// Under Dials.mu: nobody listens any more, and what a machine is told that
	// comes now.
	abandoned bool
	told      Answer
}

// Answer is a machine's: a data connection, or a code and a reason.
type Answer struct {
	Conn   net.Conn
	Head   []byte       // read behind the handshake already
	Token  engine.Token // that opened it
	Code   wire.CloseCode
	Reason string
}

// New makes an empty table, whose connIDs carry node.
func New(node string) *Dials {
	return &Dials{node: node, waiting: make(map[wire.ConnID]*Dial)}
}

// Open makes a dial that waits for k.
func (t *Dials) Open(k engine.Key) *Dial {
	answers := make(chan Answer, 1)
	d := &Dial{ID: wire.NewConnID(t.node), Key: k, Answers: answers, answers: answers}
	t.mu.Lock()
	t.waiting[d.ID] = d
	t.mu.Unlock()
	return d
}

// Knows reports whether id waits for k. It says nothing about why not.
func (t *Dials) Knows(id wire.ConnID, k engine.Key) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.waiting[id]
	return d != nil && d.Key == k
}

// Take uses id up for k. Nil: it is unknown, used, or another machine's.
func (t *Dials) Take(id wire.ConnID, k engine.Key) *Dial {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.waiting[id]
	if d == nil || d.Key != k {
		return nil
	}
	delete(t.waiting, id)
	return d
}

// Give hands a to the one who waits, after Take. False: nobody does any more,
// a.Conn is still the caller's, and its peer is to be told what told says.
func (t *Dials) Give(d *Dial, a Answer) (told Answer, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if d.abandoned {
		return d.told, false
	}
	d.answers <- a
	return Answer{}, true
}

// Abandon ends the wait and makes the connID unknown. An answer that came
// unread is returned: its connection is the caller's. A machine that comes later
// is told code and reason.
func (t *Dials) Abandon(d *Dial, code wire.CloseCode, reason string) (late Answer, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.waiting, d.ID)
	d.abandoned, d.told = true, Answer{Code: code, Reason: reason}
	select {
	case late = <-d.answers:
		return late, true
	default:
		return Answer{}, false
	}
}

// Count is how many dials wait.
func (t *Dials) Count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.waiting)
}
