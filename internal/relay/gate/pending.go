package gate

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// handshakeGrace is how long a handshake may be under way without counting as
// stalled. A herd behind one address finishes each in milliseconds, but all of
// them begin at once; half of it would cut honest ones on a busy relay.
const handshakeGrace = time.Second

// pending knows which connections have sent no complete request yet.
type pending struct {
	mu sync.Mutex
	// conns holds every connection that the server has; its entry is in a list
	// of byAddr until its first request was read.
	conns  map[net.Conn]*handshake
	byAddr map[netip.Addr]*handshakes
}

type handshake struct {
	conn   net.Conn
	addr   netip.Addr
	since  time.Time
	listed bool

	prev, next *handshake // in the list of addr, oldest first
}

type handshakes struct {
	n           int
	first, last *handshake
}

func newPending() pending {
	return pending{conns: make(map[net.Conn]*handshake), byAddr: make(map[netip.Addr]*handshakes)}
}

type handshakeKey struct{}

// ConnContext is http.Server's hook: a connection begins.
func (g *Gate) ConnContext(ctx context.Context, c net.Conn) context.Context {
	addr := parseAddr(c.RemoteAddr().String())
	if g.trusted(addr) {
		return ctx // its handshakes are those of everybody behind it
	}
	h := &handshake{conn: c, addr: network(addr)}
	now := time.Now()
	p := &g.pending
	p.mu.Lock()
	p.conns[c] = h
	p.list(h, now)
	stalled := p.stalled(p.byAddr[h.addr], g.handshakes, now)
	p.mu.Unlock()
	closeAll(stalled)
	return context.WithValue(ctx, handshakeKey{}, h)
}

// ConnState is http.Server's hook: a connection ends, or is an upgraded one. A
// further request of an idle connection does not count: the server's time-outs
// end it.
func (g *Gate) ConnState(c net.Conn, state http.ConnState) {
	if state != http.StateHijacked && state != http.StateClosed {
		return
	}
	p := &g.pending
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.conns[c]
	if h == nil {
		return
	}
	p.unlist(h)
	delete(p.conns, c)
}

// Arrived says that a request was read whole: its connection counts no more.
func (g *Gate) Arrived(r *http.Request) {
	h, ok := r.Context().Value(handshakeKey{}).(*handshake)
	if !ok {
		return
	}
	g.pending.mu.Lock()
	g.pending.unlist(h)
	g.pending.mu.Unlock()
}

// Sweep closes, for each address with too many unfinished handshakes, the
// oldest that are stalled. Call it about once a second.
func (g *Gate) Sweep() {
	now := time.Now()
	var all []net.Conn
	g.pending.mu.Lock()
	for _, l := range g.pending.byAddr {
		all = append(all, g.pending.stalled(l, g.handshakes, now)...)
	}
	g.pending.mu.Unlock()
	closeAll(all)
}

// stalled takes from l what exceeds the limit and is older than the grace. It
// is the oldest that go, so that whoever holds many open cannot keep out the
// one that comes with a good token.
func (p *pending) stalled(l *handshakes, limit int, now time.Time) []net.Conn {
	var out []net.Conn
	for l != nil && l.n > limit && now.Sub(l.first.since) >= handshakeGrace {
		out = append(out, l.first.conn)
		p.unlist(l.first)
	}
	return out
}

func (p *pending) list(h *handshake, now time.Time) {
	if h.listed {
		return
	}
	l := p.byAddr[h.addr]
	if l == nil {
		l = &handshakes{}
		p.byAddr[h.addr] = l
	}
	h.listed, h.since, h.prev, h.next = true, now, l.last, nil
	if l.last == nil {
		l.first = h
	} else {
		l.last.next = h
	}
	l.last = h
	l.n++
}

func (p *pending) unlist(h *handshake) {
	if !h.listed {
		return
	}
	l := p.byAddr[h.addr]
	if h.prev == nil {
		l.first = h.next
	} else {
		h.prev.next = h.next
	}
	if h.next == nil {
		l.last = h.prev
	} else {
		h.next.prev = h.prev
	}
	h.listed, h.prev, h.next = false, nil, nil
	if l.n--; l.n == 0 {
		delete(p.byAddr, h.addr)
	}
}

// closeAll closes outside of the lock: the server's own hook takes it.
func closeAll(conns []net.Conn) {
	for _, c := range conns {
		_ = c.Close() // a handshake that is given up has nobody to tell
	}
}
