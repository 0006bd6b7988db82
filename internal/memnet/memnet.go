// Package memnet is a network in memory for tests: named listeners, and
// connections with bounded buffers, deadlines, half-close and reset.
//
// It blocks on sync.Cond and channels alone and takes its time from package
// time, so inside a testing/synctest bubble a goroutine that waits here is
// durably blocked and hours pass at once. It never loses, delays or reorders a
// byte; package faultproxy does that on top of it.
//
// What a caller will get wrong: a Net belongs to the bubble that made its
// listeners, and as on a real network a connection that is closed with
// received bytes unread is reset, which takes from the peer what it had not
// read yet (a close frame, for example). Half-close and drain first.
package memnet

import (
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	// bufferBytes is what one direction holds before its writer blocks: the
	// order of a real socket's buffers, so that back-pressure shows in tests
	// that move a few hundred KiB.
	bufferBytes = 64 << 10
	// backlog is how many connections wait for Accept before a dial blocks.
	backlog = 128
	// firstPort is where the ports of dialling ends start, as ephemeral ones do.
	firstPort = 49152
)

// Net is a set of named listeners. The zero value is not usable; see New.
type Net struct {
	mu        sync.Mutex
	listeners map[string]*Listener
	port      uint16
}

// New makes an empty network.
func New() *Net {
	return &Net{listeners: make(map[string]*Listener), port: firstPort}
}

// Addr is the address of a listener: the name that was given to Listen.
type Addr string

// Network returns "tcp", because the code under test may ask.
func (Addr) Network() string { return "tcp" }

func (a Addr) String() string { return string(a) }

// Listen makes name, for example "relay:443", reachable by Dial. An empty name
// or one in use is an error (EADDRINUSE).
func (n *Net) Listen(name string) (*Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if name == "" || n.listeners[name] != nil {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Addr: Addr(name), Err: syscall.EADDRINUSE}
	}
	l := &Listener{net: n, addr: Addr(name), queue: make(chan *Conn, backlog), done: make(chan struct{})}
	n.listeners[name] = l
	return l, nil
}

// Dial connects to the listener called addr, from 127.0.0.1 and the next port.
// Where nobody listens the error is ECONNREFUSED. As with TCP it succeeds once
// the connection is in the listener's backlog, before Accept.
func (n *Net) Dial(ctx context.Context, addr string) (net.Conn, error) {
	return n.DialFrom(ctx, netip.AddrPort{}, addr)
}

// DialContext is Dial in the form of net.Dialer and http.Transport; network is
// not looked at.
func (n *Net) DialContext(ctx context.Context, _, addr string) (net.Conn, error) {
	return n.Dial(ctx, addr)
}

// DialFrom is Dial with the address that the listener's side sees as remote. A
// zero from is 127.0.0.1 and the next port; a zero port is the next port.
func (n *Net) DialFrom(ctx context.Context, from netip.AddrPort, addr string) (net.Conn, error) {
	ip := from.Addr()
	if !ip.IsValid() {
		ip = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	n.mu.Lock()
	l := n.listeners[addr]
	port := from.Port()
	if port == 0 {
		port = n.port
		if n.port++; n.port == 0 {
			n.port = firstPort
		}
	}
	n.mu.Unlock()

	fail := func(err error) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: Addr(addr), Err: err}
	}
	if err := ctx.Err(); err != nil {
		return fail(err)
	}
	if l == nil {
		return fail(syscall.ECONNREFUSED)
	}
	ours, theirs := pair(net.TCPAddrFromAddrPort(netip.AddrPortFrom(ip, port)), l.addr)
	select {
	case <-l.done:
		return fail(syscall.ECONNREFUSED)
	default:
	}
	select {
	case l.queue <- theirs:
	case <-l.done:
		return fail(syscall.ECONNREFUSED)
	case <-ctx.Done():
		return fail(ctx.Err())
	}
	// Close may have emptied the queue just before; the connection would wait
	// for an Accept that never comes.
	select {
	case <-l.done:
		l.drain()
	default:
	}
	return ours, nil
}

// Pipe makes a connected pair without a listener.
func Pipe() (a, b *Conn) { return pair(Addr("pipe-a"), Addr("pipe-b")) }

// Listener is a net.Listener of a Net.
type Listener struct {
	net   *Net
	addr  Addr
	queue chan *Conn
	done  chan struct{}
	once  sync.Once
}

// Accept waits for a connection; after Close it returns net.ErrClosed.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case <-l.done:
	default:
		select {
		case c := <-l.queue:
			return c, nil
		case <-l.done:
		}
	}
	return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.addr, Err: net.ErrClosed}
}

// Close frees the name at once and resets what was not accepted yet.
func (l *Listener) Close() error {
	l.once.Do(func() {
		l.net.mu.Lock()
		delete(l.net.listeners, string(l.addr))
		l.net.mu.Unlock()
		close(l.done)
		l.drain()
	})
	return nil
}

func (l *Listener) drain() {
	for {
		select {
		case c := <-l.queue:
			c.Reset()
		default:
			return
		}
	}
}

// Addr is the listener's name.
func (l *Listener) Addr() net.Addr { return l.addr }

// Conn is one end of a connection.
type Conn struct {
	local, remote net.Addr
	in, out       *half

	mu     sync.Mutex
	closed bool
	linger bool // false after SetLinger(0): Close resets
}

func pair(a, b net.Addr) (*Conn, *Conn) {
	ab, ba := newHalf(), newHalf()
	return &Conn{local: a, remote: b, in: ba, out: ab, linger: true},
		&Conn{local: b, remote: a, in: ab, out: ba, linger: true}
}

// Read reads what has arrived. Errors: io.EOF after the peer's close or
// half-close, ECONNRESET after a reset, os.ErrDeadlineExceeded, net.ErrClosed.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.in.read(p)
	return n, c.wrap("read", err)
}

// Write blocks while the peer's buffer is full. On an error n bytes were taken.
func (c *Conn) Write(p []byte) (int, error) {
	n, err := c.out.write(p)
	return n, c.wrap("write", err)
}

func (c *Conn) wrap(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.local, Addr: c.remote, Err: err}
}

// Close closes both directions: the peer reads what was written and then
// io.EOF. With received bytes unread, or after SetLinger(0), it is Reset.
func (c *Conn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return c.wrap("close", net.ErrClosed)
	}
	c.closed = true
	graceful := c.linger
	c.mu.Unlock()
	if unread := c.in.closeRead(); unread || !graceful {
		c.out.abort()
		c.in.abort()
	}
	c.out.closeWrite(net.ErrClosed)
	return nil
}

// Reset closes as a TCP reset does: the peer reads ECONNRESET and loses what it
// had not read. It does nothing after Close.
func (c *Conn) Reset() {
	c.mu.Lock()
	c.linger = false
	c.mu.Unlock()
	c.Close()
}

// CloseWrite sends FIN: the peer reads io.EOF, this side may read on.
func (c *Conn) CloseWrite() error {
	c.out.closeWrite(syscall.EPIPE)
	return nil
}

// SetLinger with 0 makes Close a reset, as on a net.TCPConn; another value
// restores the default.
func (c *Conn) SetLinger(sec int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.linger = sec != 0
	return nil
}

// LocalAddr is this end's address.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr is the other end's: a listener's name, or a *net.TCPAddr.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline sets both deadlines; see net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	c.in.setDeadline(&c.in.readBy, t)
	c.out.setDeadline(&c.out.writeBy, t)
	return nil
}

// SetReadDeadline ends pending and later reads at t with
// os.ErrDeadlineExceeded; zero means never.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.in.setDeadline(&c.in.readBy, t)
	return nil
}

// SetWriteDeadline is SetReadDeadline for writes.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.out.setDeadline(&c.out.writeBy, t)
	return nil
}

// half is one direction: a bounded buffer with a reader's and a writer's end.
type half struct {
	mu              sync.Mutex
	cond            *sync.Cond
	buf             []byte
	writeErr        error // set once the writing end is closed: what writes return
	readClosed      bool
	reset           bool
	readBy, writeBy deadline
}

func newHalf() *half {
	h := &half{}
	h.cond = sync.NewCond(&h.mu)
	return h
}

type deadline struct {
	at    time.Time
	timer *time.Timer
}

func (d *deadline) passed() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

func (h *half) setDeadline(d *deadline, t time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.at = t
	// After either end closed nobody waits here for long, and a timer that
	// outlives its connection would only burden the test's clock.
	if !t.IsZero() && !h.readClosed && !h.reset {
		if wait := time.Until(t); wait > 0 {
			d.timer = time.AfterFunc(wait, func() {
				h.mu.Lock()
				defer h.mu.Unlock()
				h.cond.Broadcast()
			})
		}
	}
	h.cond.Broadcast()
}

func (h *half) stopTimers() {
	for _, d := range []*deadline{&h.readBy, &h.writeBy} {
		if d.timer != nil {
			d.timer.Stop()
			d.timer = nil
		}
	}
}

func (h *half) read(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		switch {
		case h.readClosed:
			return 0, net.ErrClosed
		case h.reset:
			return 0, syscall.ECONNRESET
		case h.readBy.passed():
			return 0, os.ErrDeadlineExceeded
		case len(p) == 0:
			return 0, nil
		case len(h.buf) > 0:
			n := copy(p, h.buf)
			if n == len(h.buf) {
				h.buf = h.buf[:0]
			} else {
				h.buf = append(h.buf[:0], h.buf[n:]...)
			}
			h.cond.Broadcast()
			return n, nil
		case h.writeErr != nil:
			return 0, io.EOF
		}
		h.cond.Wait()
	}
}

func (h *half) write(p []byte) (n int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		switch {
		case h.writeErr != nil:
			return n, h.writeErr
		case h.reset:
			return n, syscall.ECONNRESET
		case h.readClosed:
			return n, syscall.EPIPE
		case h.writeBy.passed():
			return n, os.ErrDeadlineExceeded
		case n == len(p):
			return n, nil
		}
		if room := bufferBytes - len(h.buf); room > 0 {
			k := min(room, len(p)-n)
			h.buf = append(h.buf, p[n:n+k]...)
			n += k
			h.cond.Broadcast()
			if n == len(p) {
				return n, nil
			}
			continue
		}
		h.cond.Wait()
	}
}

// closeRead ends reading and reports whether received bytes were unread.
func (h *half) closeRead() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	unread := len(h.buf) > 0
	h.readClosed = true
	h.buf = nil
	h.stopTimers()
	h.cond.Broadcast()
	return unread
}

// closeWrite ends writing; err is what later writes return.
func (h *half) closeWrite(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.writeErr == nil || err == net.ErrClosed {
		h.writeErr = err
	}
	h.cond.Broadcast()
}

func (h *half) abort() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reset = true
	h.buf = nil
	h.stopTimers()
	h.cond.Broadcast()
}

var (
	_ net.Conn     = (*Conn)(nil)
	_ net.Listener = (*Listener)(nil)
)
