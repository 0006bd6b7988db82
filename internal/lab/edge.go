package lab

import (
	"bytes"
	"net"
	"sync"
	"time"

	"holdfast/internal/frame"
)

// fault is what an edge does to the connections that it has.
type fault int

const (
	passes fault = iota
	// mute accepts and delivers nothing, in either direction: a half-open link.
	mute
	// ghost has lost its relay's side. It keeps the other, answers protocol pings
	// and swallows the rest.
	ghost
)

// headBytes bounds an HTTP head that passes, and a frame that an edge looks into:
// more than any of a control connection.
const headBytes = 64 << 10

// edge is a proxy between an agent or a device and the relay, as a CDN or a
// middlebox is one.
type edge struct {
	l      net.Listener
	target string
	// idleLimit, if not zero, makes links mute that were idle for so long.
	idleLimit time.Duration
	// noPongs takes the application's answers out: what is behind it then looks
	// like a relay that predates them.
	noPongs bool
	// told hears what the edge does, from its goroutines.
	told func(text string)

	wait sync.WaitGroup

	mu     sync.Mutex
	links  []*edgeLink
	closed bool
}

// edgeLink is one connection through an edge.
type edgeLink struct {
	edge            *edge
	near, far       net.Conn // the side that dialled, and the relay's
	mu              sync.Mutex
	fault           fault
	last            time.Time // of any byte
	answered, eaten int
}

// newEdge listens on a free port of loopback for connections to target.
func newEdge(target string, told func(string)) (*edge, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return &edge{l: l, target: target, told: told}, nil
}

// start begins to serve. Its fields are not changed after it.
func (e *edge) start() {
	e.wait.Go(func() { // ended and waited for by close
		for {
			near, err := e.l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", e.target)
			if err != nil {
				near.Close()
				continue
			}
			k := &edgeLink{edge: e, near: near, far: far, last: time.Now()}
			e.mu.Lock()
			if e.closed {
				e.mu.Unlock()
				near.Close()
				far.Close()
				return
			}
			e.links = append(e.links, k)
			e.mu.Unlock()
			// Both end when either side hangs up or close does it.
			e.wait.Go(k.up)
			e.wait.Go(k.down)
			if e.idleLimit > 0 {
				e.wait.Go(k.reclaim) // ends with the link
			}
		}
	})
}

// strike puts a fault into every link that is open now.
func (e *edge) strike(f fault) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, k := range e.links {
		k.mu.Lock()
		k.fault = f
		k.mu.Unlock()
		if f == ghost {
			k.far.Close()
		}
	}
}

func (e *edge) close() {
	e.l.Close()
	e.mu.Lock()
	e.closed = true
	for _, k := range e.links {
		k.near.Close()
		k.far.Close()
	}
	e.mu.Unlock()
	e.wait.Wait()
}

// count is how many pings the ghosts have answered, and how many messages of the
// application they have swallowed.
func (e *edge) count() (answered, eaten int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, k := range e.links {
		k.mu.Lock()
		answered, eaten = answered+k.answered, eaten+k.eaten
		k.mu.Unlock()
	}
	return answered, eaten
}

// moved notes that bytes came and says what is wrong with the link.
func (k *edgeLink) moved() fault {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fault == passes {
		k.last = time.Now()
	}
	return k.fault
}

// reclaim is a middlebox that drops idle links without a word.
func (k *edgeLink) reclaim() {
	limit := k.edge.idleLimit
	for {
		k.mu.Lock()
		wait := time.Until(k.last.Add(limit))
		if wait <= 0 {
			k.fault = mute
		}
		k.mu.Unlock()
		if wait <= 0 {
			k.edge.told("this link was idle for too long: I drop it, and tell nobody")
			return
		}
		time.Sleep(wait)
		k.edge.mu.Lock()
		closed := k.edge.closed
		k.edge.mu.Unlock()
		if closed {
			return
		}
	}
}

// up carries what the agent or the device sends.
func (k *edgeLink) up() {
	defer func() {
		k.near.Close()
		if k.moved() != ghost {
			k.far.Close()
		}
	}()
	buf := make([]byte, 32<<10)
	var head []byte
	var frames *frame.Reader
	for {
		n, err := k.near.Read(buf)
		if n > 0 {
			b := buf[:n]
			fault := k.moved()
			if fault == passes {
				if _, err := k.far.Write(b); err != nil {
					return
				}
			}
			// The frames are followed from the first on, so that a ghost knows
			// where the next one begins.
			if frames == nil {
				head = append(head, b...)
				i := bytes.Index(head, []byte("\r\n\r\n"))
				if i < 0 && len(head) < headBytes {
					continue
				}
				if i < 0 {
					return
				}
				frames, b = frame.NewReader(headBytes), head[i+4:]
			}
			if !k.look(frames, b, fault) {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// look reads frames of the side that dialled. A ghost answers its pings.
func (k *edgeLink) look(frames *frame.Reader, b []byte, fault fault) bool {
	for {
		m, n, err := frames.Next(b)
		if err != nil {
			return false
		}
		b = b[n:]
		if m.Op == frame.Continuation {
			return true
		}
		if fault != ghost {
			continue
		}
		k.mu.Lock()
		if m.Op == frame.Ping {
			k.answered++
		} else {
			k.eaten++
		}
		k.mu.Unlock()
		if m.Op == frame.Ping {
			if _, err := k.near.Write(frame.AppendFrame(nil, frame.Pong, m.Payload)); err != nil {
				return false
			}
		}
	}
}

// down carries what the relay sends.
func (k *edgeLink) down() {
	defer func() {
		k.far.Close()
		if k.moved() != ghost {
			k.near.Close()
		}
	}()
	buf := make([]byte, 32<<10)
	var filter pongFilter
	for {
		n, err := k.far.Read(buf)
		if n > 0 && k.moved() == passes {
			b := buf[:n]
			if k.edge.noPongs {
				b = filter.pass(b)
			}
			if _, err := k.near.Write(b); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// pongFilter takes the application's pongs out of what a relay sends on a
// control connection.
type pongFilter struct {
	upgraded bool
	held     []byte // an incomplete head or frame
}

var appPong = []byte(`"pong"`)

func (f *pongFilter) pass(b []byte) (out []byte) {
	f.held = append(f.held, b...)
	if !f.upgraded {
		i := bytes.Index(f.held, []byte("\r\n\r\n"))
		if i < 0 {
			return nil
		}
		out, f.held, f.upgraded = append(out, f.held[:i+4]...), f.held[i+4:], true
	}
	for {
		h, n, err := frame.ParseHeader(f.held)
		whole := n + int(min(h.Length, 1<<30))
		if err != nil {
			out, f.held = append(out, f.held...), nil // not ours to judge
			return out
		}
		if n == 0 || len(f.held) < whole {
			return out
		}
		if h.Op != frame.Text || !bytes.Contains(f.held[:whole], appPong) {
			out = append(out, f.held[:whole]...)
		}
		f.held = f.held[whole:]
	}
}
