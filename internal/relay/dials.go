package relay

import (
	"net"
	"sync"

	"holdfast/internal/engine"
	"holdfast/internal/wire"
)

// dials are the requests to reach a machine that wait for its answer.
type dials struct {
	node string

	mu      sync.Mutex
	waiting map[wire.ConnID]*dial
}

// dial is one of them. Its connID is good once, and only for the machine it was
// sent to; whoever takes it out of the table owes it one answer.
type dial struct {
	id  wire.ConnID
	key engine.Key

	answers chan answer // capacity 1

	// Under dials.mu: nobody listens any more.
	abandoned bool
}

// answer is a machine's: a data connection, or a code and a reason.
type answer struct {
	conn   net.Conn
	head   []byte // read behind the handshake already
	token  engine.Token
	code   wire.CloseCode
	reason string
}

func newDials(node string) *dials {
	return &dials{node: node, waiting: make(map[wire.ConnID]*dial)}
}

// open makes a dial that waits for k.
func (t *dials) open(k engine.Key) *dial {
	d := &dial{id: wire.NewConnID(t.node), key: k, answers: make(chan answer, 1)}
	t.mu.Lock()
	t.waiting[d.id] = d
	t.mu.Unlock()
	return d
}

// knows reports whether id waits for k. It says nothing about why not.
func (t *dials) knows(id wire.ConnID, k engine.Key) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.waiting[id]
	return d != nil && d.key == k
}

// take uses id up for k. Nil: it is unknown, used, or another machine's.
func (t *dials) take(id wire.ConnID, k engine.Key) *dial {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.waiting[id]
	if d == nil || d.key != k {
		return nil
	}
	delete(t.waiting, id)
	return d
}

// give hands a to the one who waits. False: nobody does, and a.conn is still
// the caller's.
func (t *dials) give(d *dial, a answer) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if d.abandoned {
		return false
	}
	d.answers <- a
	return true
}

// abandon ends the wait and makes the connID unknown. The answer that came in
// the last moment, if one did, is returned.
func (t *dials) abandon(d *dial) (late answer, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.waiting, d.id)
	d.abandoned = true
	select {
	case late = <-d.answers:
		return late, true
	default:
		return answer{}, false
	}
}

func (t *dials) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.waiting)
}
