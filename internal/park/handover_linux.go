package park

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"holdfast/internal/frame"
)

// Freeze stops all reading and writing of the connections in epoll and returns
// those of plain TCP that are open; nothing of a TLS session can be handed over.
// Until Thaw, or Close, they take no message (ErrClosed) and heed no Close.
// Handlers that are running have returned.
func (l *Lot) Freeze() []Frozen {
	if l.poll == nil {
		return nil
	}
	l.freezing.Lock() // until Thaw or Close
	for _, p := range l.poll.list {
		p.pause()
	}
	for _, p := range l.poll.list {
		for _, page := range p.pages {
			for i := range page {
				if c := page[i].conn; c != nil {
					if f, ok := c.freeze(); ok {
						l.frozen = append(l.frozen, f)
					}
				}
			}
		}
	}
	return l.frozen
}

// Thaw goes on after a Freeze whose hand-over did not come about.
func (l *Lot) Thaw() {
	if l.poll == nil {
		return
	}
	for _, f := range l.frozen {
		f.Conn.thaw(f.Received)
	}
	l.frozen = nil
	for _, p := range l.poll.list {
		p.resume()
	}
	l.freezing.Unlock()
}

// Adopt parks a connection that another Lot froze. f.FD becomes this Lot's; with
// an error it stays the caller's. f.Conn is not looked at. h may be called before
// Adopt returns.
func (l *Lot) Adopt(f Frozen, h Handler) (*Conn, error) {
	if l.poll == nil {
		return nil, errors.New("adopt a connection: there is no epoll")
	}
	if h == nil {
		return nil, errors.New("adopt a connection: a handler is required")
	}
	unix.CloseOnExec(f.FD)
	if err := unix.SetNonblock(f.FD, true); err != nil {
		return nil, fmt.Errorf("adopt a connection: %w", err)
	}
	p := l.poll.choose()
	c := &Conn{lot: l, handler: h, parked: parked{poller: p, fd: int32(f.FD)}}
	if err := p.admit(c); err != nil {
		return nil, fmt.Errorf("adopt a connection: %w", err)
	}
	c.mu.Lock()
	c.keep(f.Unsent)
	c.mu.Unlock()
	if len(f.Received) > 0 {
		p.feed(c, frame.NewReader(l.opt.MaxMessage), append([]byte(nil), f.Received...))
	}
	p.begin(c)
	c.mu.Lock()
	c.writeOn()
	c.mu.Unlock()
	return c, nil
}

// pause returns when the poller's goroutine stands still.
func (p *poller) pause() {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	paused := make(chan struct{})
	p.paused, p.resumed = paused, make(chan struct{})
	p.wakeUp()
	p.mu.Unlock()
	<-paused
}

// resume lets it go on.
func (p *poller) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.resumed != nil {
		close(p.resumed)
		p.resumed = nil
	}
}

// standStill is called by the goroutine when it was woken.
func (p *poller) standStill() {
	p.mu.Lock()
	paused, resumed := p.paused, p.resumed
	p.paused = nil
	p.mu.Unlock()
	if paused != nil {
		close(paused)
		<-resumed
	}
}

// freeze takes a copy of what is incomplete. The poller stands still.
func (c *Conn) freeze() (Frozen, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != open || c.kind != plain {
		return Frozen{}, false
	}
	c.state = frozen
	f := Frozen{Conn: c, FD: int(c.fd), Unsent: append([]byte(nil), c.unsent()...)}
	if c.reader != nil {
		f.Received = c.reader.AppendHeld(nil)
	}
	return f, true
}

// thaw undoes freeze. The poller stands still.
func (c *Conn) thaw(received []byte) {
	if c.reader != nil {
		// A reader that has told what it holds is used up.
		before := c.reader.Held()
		c.reader = frame.NewReader(c.lot.opt.MaxMessage)
		c.reader.Next(received) // held once without an error, and incomplete
		c.lot.held.Add(int64(c.reader.Held() - before))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == frozen {
		c.state = open
		c.writeOn()
	}
}
