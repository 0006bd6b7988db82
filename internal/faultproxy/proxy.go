package faultproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"
)

// Options configures a Proxy.
type Options struct {
	// Listener is where the code under test connects to. Required; the Proxy
	// closes it.
	Listener net.Listener
	// Dial reaches the real listener. Required.
	Dial func(ctx context.Context) (net.Conn, error)
}

// Proxy passes connections on until it is told to fail them.
type Proxy struct {
	opt    Options
	ctx    context.Context
	cancel context.CancelFunc
	wait   sync.WaitGroup

	mu       sync.Mutex
	next     [][]Fault // one entry for each connection to come
	every    []Fault
	links    []*Link
	accepted int
	refused  int
	changed  chan struct{} // closed and replaced when accepted or links change
}

// New starts a proxy. Close ends it.
func New(o Options) (*Proxy, error) {
	if o.Listener == nil || o.Dial == nil {
		return nil, errors.New("start fault proxy: Listener and Dial are required")
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Proxy{opt: o, ctx: ctx, cancel: cancel, changed: make(chan struct{})}
	p.wait.Go(p.accept) // stopped and awaited by Close
	return p, nil
}

// Loopback starts a proxy on a free port of 127.0.0.1 in front of a TCP
// address.
func Loopback(target string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start fault proxy: %w", err)
	}
	return New(Options{Listener: l, Dial: func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", target)
	}})
}

// Addr is where to connect to.
func (p *Proxy) Addr() net.Addr { return p.opt.Listener.Addr() }

// Close resets every link and returns when all goroutines have ended.
func (p *Proxy) Close() {
	p.cancel()
	p.opt.Listener.Close()
	p.CutAll()
	p.wait.Wait()
}

// Arm puts faults into the next connection, all at once. Armed twice, the
// second set is for the connection after that.
func (p *Proxy) Arm(faults ...Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next = append(p.next, slices.Clone(faults))
}

// ArmEvery puts faults into every later connection, besides those of Arm,
// until Disarm.
func (p *Proxy) ArmEvery(faults ...Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.every = append(p.every, faults...)
}

// Disarm forgets what Arm and ArmEvery prepared. Live links are not healed.
func (p *Proxy) Disarm() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next, p.every = nil, nil
}

// Apply puts faults into every live link.
func (p *Proxy) Apply(faults ...Fault) {
	for _, l := range p.Links() {
		l.Apply(faults...)
	}
}

// StallAll stalls every live link now.
func (p *Proxy) StallAll(d Direction) { p.Apply(Stall(d)) }

// ResumeAll ends the stalls of every live link.
func (p *Proxy) ResumeAll(d Direction) {
	for _, l := range p.Links() {
		l.Resume(d)
	}
}

// CutAll resets every live link now.
func (p *Proxy) CutAll() { p.Apply(Cut(Both)) }

// FinishAll sends FIN on every live link now.
func (p *Proxy) FinishAll(d Direction) { p.Apply(Finish(d)) }

// Links are the live links, oldest first.
func (p *Proxy) Links() []*Link {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.links)
}

// Accepted counts the connections so far, the refused ones included.
func (p *Proxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// Refused counts those that a Refuse met, or that Dial failed for.
func (p *Proxy) Refused() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused
}

// WaitAccepted returns when n connections have come, or with the context's
// cause.
func (p *Proxy) WaitAccepted(ctx context.Context, n int) error {
	return p.waitFor(ctx, func() bool { return p.accepted >= n })
}

// WaitLinks returns when exactly n links are live, or with the context's cause.
func (p *Proxy) WaitLinks(ctx context.Context, n int) error {
	return p.waitFor(ctx, func() bool { return len(p.links) == n })
}

func (p *Proxy) waitFor(ctx context.Context, ok func() bool) error {
	for {
		p.mu.Lock()
		done, changed := ok(), p.changed
		p.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// change notes that something a waiter looks at has changed. The lock is held.
func (p *Proxy) change() {
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Proxy) accept() {
	for {
		c, err := p.opt.Listener.Accept()
		if err != nil {
			return // closed; a listener of a test has no other error
		}
		p.mu.Lock()
		p.accepted++
		faults := slices.Clone(p.every)
		if len(p.next) > 0 {
			faults = append(faults, p.next[0]...)
			p.next = p.next[1:]
		}
		p.change()
		p.mu.Unlock()
		// Stopped by Close through the context and CutAll, awaited there.
		p.wait.Go(func() { p.serve(c, faults) })
	}
}

func (p *Proxy) serve(client net.Conn, faults []Fault) {
	for _, f := range faults {
		if f.kind == refuse {
			p.refuse(client, f.answer)
			return
		}
	}
	server, err := p.opt.Dial(p.ctx)
	if err != nil {
		p.refuse(client, "")
		return
	}
	l := newLink(p, client, server, faults)
	p.mu.Lock()
	p.links = append(p.links, l)
	p.change()
	p.mu.Unlock()
	if p.ctx.Err() != nil {
		l.cut()
	}
	l.run()
	p.mu.Lock()
	p.links = slices.DeleteFunc(p.links, func(x *Link) bool { return x == l })
	p.change()
	p.mu.Unlock()
}

// refuse answers, if at all, and closes. Without an answer it resets.
func (p *Proxy) refuse(c net.Conn, answer string) {
	p.mu.Lock()
	p.refused++
	p.change()
	p.mu.Unlock()
	stop := context.AfterFunc(p.ctx, func() { reset(c) })
	defer stop()
	if answer == "" {
		reset(c)
		return
	}
	// Ten seconds is what a client grants a handshake; a test that sends no
	// request must not hold Close up.
	c.SetDeadline(time.Now().Add(10 * time.Second))
	var t tracker
	buf := make([]byte, 4096)
	for t.frame == 0 {
		n, err := c.Read(buf)
		for i := range n {
			t.pass(buf[i : i+1])
			if t.frame > 0 {
				break
			}
		}
		if err != nil {
			break
		}
	}
	if _, err := c.Write([]byte(answer)); err != nil {
		reset(c)
		return
	}
	c.Close()
}

// reset closes as RST where the connection can.
func reset(c net.Conn) {
	if l, ok := c.(interface{ SetLinger(int) error }); ok {
		l.SetLinger(0)
	}
	c.Close()
}
