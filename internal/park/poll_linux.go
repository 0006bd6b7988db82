package park

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/frame"
	"holdfast/internal/sock"
)

const (
	// pollBytes is read at once, into one buffer a poller: four of the largest
	// control messages. What is left in the socket makes another event.
	pollBytes = 16 << 10
	// pollEvents are taken at once.
	pollEvents = 128
	// slotPage is the unit in which the table of connections grows; doubling a
	// slice instead would leave half of it unused at worst.
	slotPage = 512
	// wakeSlot stands for the poller's own descriptor in an event.
	wakeSlot = -1
)

// parked is the part of a connection in epoll. Everything that changes in it
// belongs to the poller's goroutine.
type parked struct {
	poller *poller
	// reader is set only while a frame or message is incomplete.
	reader *frame.Reader
	fd     int32
	slot   int32
	// discard says that what comes is not looked at any more.
	discard bool
}

// leaving is how a closing connection ends if its peer does not hang up first.
type leaving struct {
	timer *time.Timer
	end   End
}

// pollers is one poller for each processor.
type pollers struct {
	lot  *Lot
	list []*poller
	next atomic.Uint32
}

// poller serves the connections of one epoll instance on one goroutine. That
// goroutine alone reads and closes their descriptors; writing is done by whoever
// holds Conn.mu.
type poller struct {
	lot  *Lot
	epfd int
	wake int // an eventfd

	mu sync.Mutex
	// pages hold the connections by slot; a slot's generation rises whenever it
	// is freed, so that an event of its former holder is known for what it is.
	pages  []*[slotPage]slot
	free   []int32
	drops  []drop // what others want dropped
	closed bool   // the goroutine is to end
	ended  bool   // it has, and its descriptors are closed
	// paused is closed by the goroutine when it stands still, resumed by others
	// when it is to go on. Both are nil otherwise.
	paused, resumed chan struct{}

	// Of the goroutine: the reader for whoever has nothing incomplete.
	spare *frame.Reader
	buf   [pollBytes]byte
}

type slot struct {
	conn *Conn
	gen  int32
}

type drop struct {
	conn *Conn
	end  End
}

func newPollers(l *Lot) (*pollers, error) {
	ps := &pollers{lot: l}
	for range runtime.GOMAXPROCS(0) {
		p, err := newPoller(l)
		if err != nil {
			ps.close()
			return nil, err
		}
		ps.list = append(ps.list, p)
		l.running.Add(1)
		// Ends by close, which wakes it; Lot.Close waits for it.
		go p.run()
	}
	return ps, nil
}

func newPoller(l *Lot) (*poller, error) {
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make an epoll instance: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(epfd)
		return nil, fmt.Errorf("make an eventfd: %w", err)
	}
	p := &poller{lot: l, epfd: epfd, wake: wake, spare: frame.NewReader(l.opt.MaxMessage)}
	if err := p.control(unix.EPOLL_CTL_ADD, wake, unix.EPOLLIN, wakeSlot, 0); err != nil {
		unix.Close(epfd)
		unix.Close(wake)
		return nil, err
	}
	return p, nil
}

func (p *poller) control(op, fd int, events uint32, slot, gen int32) error {
	// The event's data is ours: slot and generation.
	ev := unix.EpollEvent{Events: events, Fd: slot, Pad: gen}
	if err := unix.EpollCtl(p.epfd, op, fd, &ev); err != nil {
		return fmt.Errorf("watch a socket with epoll: %w", err)
	}
	return nil
}

func (ps *pollers) close() {
	for _, p := range ps.list {
		p.mu.Lock()
		p.closed = true
		p.wakeUp()
		p.mu.Unlock()
		p.resume()
	}
}

// wakeUp has the goroutine look at closed and drops. mu is held: the eventfd is
// closed under it, and its number may be somebody else's then.
func (p *poller) wakeUp() {
	if p.ended {
		return
	}
	one := [8]byte{1} // a counter in the machine's order; any value but zero wakes
	unix.Write(p.wake, one[:])
}

// park takes the descriptor of a TCP socket, plain or under the TLS of a listener
// of ours, out of the runtime. It returns neither connection nor error for any
// other kind of net.Conn.
func (ps *pollers) park(conn net.Conn, pending []byte, h Handler) (*Conn, error) {
	var sec *secure
	tcp, ok := conn.(*net.TCPConn)
	if t, is := conn.(*tls.Conn); is {
		s, ours := t.NetConn().(*sock.Switch)
		if !ours || s.TCPConn == nil {
			return nil, nil
		}
		tcp, ok, sec = s.TCPConn, true, &secure{conn: t, sock: s}
	}
	if !ok {
		return nil, nil
	}
	fd, err := detach(tcp)
	if err != nil {
		return nil, fmt.Errorf("park a connection: %w", err)
	}
	p := ps.choose()
	c := &Conn{lot: ps.lot, handler: h, parked: parked{poller: p, fd: int32(fd)}}
	if sec != nil {
		c.kind, c.rare = secured, &rare{secure: sec}
	}
	if err := p.admit(c); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("park a connection: %w", err)
	}
	if sec != nil {
		sec.fd = fd
		sec.sock.Unblock(sec.read)
	}
	// Only the descriptor of our own is left: the runtime forgets the socket.
	tcp.Close()
	if len(pending) > 0 {
		p.feed(c, frame.NewReader(ps.lot.opt.MaxMessage), pending)
	}
	if sec != nil {
		// crypto/tls may hold records that it has read already.
		p.feedBuffered(c)
	}
	p.begin(c)
	return c, nil
}

// choose returns the poller whose turn it is.
func (ps *pollers) choose() *poller {
	return ps.list[int(ps.next.Add(1))%len(ps.list)]
}

// detach returns a descriptor of its own for a socket of the runtime.
func detach(tcp *net.TCPConn) (fd int, err error) {
	rc, err := tcp.SyscallConn()
	if err != nil {
		return -1, err
	}
	cerr := rc.Control(func(s uintptr) {
		fd, err = unix.FcntlInt(s, unix.F_DUPFD_CLOEXEC, 0)
	})
	if cerr != nil {
		return -1, cerr
	}
	if err != nil {
		return -1, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return -1, err
	}
	// The heartbeat of the agent and the owner's reaping judge this connection;
	// keep-alives of the kernel would be packets for nothing on every idle one.
	unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0)
	return fd, nil
}

// admit gives c a slot and has epoll know its socket, without watching it yet.
func (p *poller) admit(c *Conn) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	if len(p.free) == 0 {
		base := int32(len(p.pages) * slotPage)
		p.pages = append(p.pages, new([slotPage]slot))
		for i := int32(slotPage - 1); i >= 0; i-- {
			p.free = append(p.free, base+i)
		}
	}
	c.slot = p.free[len(p.free)-1]
	s := p.at(c.slot)
	if err := p.control(unix.EPOLL_CTL_ADD, int(c.fd), 0, c.slot, s.gen); err != nil {
		return err
	}
	p.free = p.free[:len(p.free)-1]
	p.lot.epoll.Add(1)
	return nil
}

func (p *poller) at(i int32) *slot { return &p.pages[i/slotPage][i%slotPage] }

// begin lets events of c come.
func (p *poller) begin(c *Conn) {
	p.mu.Lock()
	late := p.closed
	if !late {
		p.at(c.slot).conn = c
	}
	p.mu.Unlock()
	if late {
		p.drop(c, End{Code: 1006, Err: ErrClosed}) // the goroutine never saw it
		return
	}
	c.mu.Lock()
	c.watch()
	c.mu.Unlock()
}

// watch tells epoll what c waits for. mu is held.
func (c *Conn) watch() {
	if c.state == dropped {
		return
	}
	events := uint32(unix.EPOLLIN)
	if c.waitOut {
		events |= unix.EPOLLOUT
	}
	p := c.poller
	p.mu.Lock()
	gen := p.at(c.slot).gen
	p.mu.Unlock()
	if err := p.control(unix.EPOLL_CTL_MOD, int(c.fd), events, c.slot, gen); err != nil {
		p.ask(c, lost(err))
	}
}

// ask has the poller's goroutine drop c.
func (p *poller) ask(c *Conn, e End) {
	p.mu.Lock()
	p.drops = append(p.drops, drop{c, e})
	p.wakeUp()
	p.mu.Unlock()
}

// run serves until the Lot is closed.
func (p *poller) run() {
	defer p.lot.running.Done()
	events := make([]unix.EpollEvent, pollEvents)
	for {
		n, err := unix.EpollWait(p.epfd, events, -1)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			// Only a descriptor that is not ours any more does this: a defect that
			// must not go on in silence.
			panic(fmt.Sprintf("park: wait for events: %v", err))
		}
		for _, ev := range events[:n] {
			if ev.Fd == wakeSlot {
				if p.woken() {
					return
				}
				continue
			}
			if c := p.holder(ev.Fd, ev.Pad); c != nil {
				p.serve(c, ev.Events)
			}
		}
	}
}

// holder is the connection of a slot, unless the event is of a former one.
func (p *poller) holder(i, gen int32) *Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.at(i); s.gen == gen {
		return s.conn
	}
	return nil
}

// woken does what others asked for, and reports whether the poller has ended.
func (p *poller) woken() (ended bool) {
	var count [8]byte
	unix.Read(p.wake, count[:])
	p.standStill()
	p.mu.Lock()
	drops := p.drops
	p.drops = nil
	ended = p.closed
	if ended {
		for _, page := range p.pages {
			for _, s := range page {
				if s.conn != nil {
					drops = append(drops, drop{s.conn, End{Code: 1006, Err: ErrClosed}})
				}
			}
		}
	}
	p.mu.Unlock()
	for _, d := range drops {
		p.drop(d.conn, d.end)
	}
	if ended {
		p.mu.Lock()
		p.ended = true
		unix.Close(p.epfd)
		unix.Close(p.wake)
		p.mu.Unlock()
	}
	return ended
}

// serve handles one event of c.
func (p *poller) serve(c *Conn, events uint32) {
	if events&unix.EPOLLOUT != 0 {
		c.mu.Lock()
		c.waitOut = false
		c.writeOn()
		if !c.waitOut {
			c.watch()
		}
		c.mu.Unlock()
	}
	if events&^unix.EPOLLOUT == 0 {
		return
	}
	if c.kind == secured {
		p.readTLS(c)
		return
	}
	n, err := unix.Read(int(c.fd), p.buf[:])
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
		return
	case err != nil:
		p.drop(c, lost(fmt.Errorf("read from a parked connection: %w", err)))
	case n == 0:
		p.drop(c, lost(io.EOF))
	case !c.discard:
		p.feedAny(c, p.buf[:n])
	}
}

// feedAny feeds c by the reader it has, or else by the spare one.
func (p *poller) feedAny(c *Conn, b []byte) {
	if c.reader != nil {
		p.feed(c, c.reader, b)
		return
	}
	r := p.spare
	p.feed(c, r, b)
	if c.reader == r || c.discard {
		p.spare = frame.NewReader(p.lot.opt.MaxMessage)
	}
}

// feed handles what was read, and leaves r with c only if something in it is
// incomplete.
func (p *poller) feed(c *Conn, r *frame.Reader, b []byte) {
	held := r.Held()
	more := c.feed(r, b)
	if !more {
		c.discard = true // r is not to be used after an error
	}
	left := r.Held()
	if c.discard || r.Idle() {
		c.reader, left = nil, 0
	} else {
		c.reader = r
	}
	p.lot.held.Add(int64(left - held))
}

// pushPlain writes frames, and has what the socket does not take wait. mu is held.
func (c *Conn) pushPlain(frames []byte) {
	if len(c.unsent()) == 0 {
		frames = frames[c.write(frames):]
	}
	c.keep(frames)
	c.shutAfterAll()
}

// writeOn goes on writing what waits. mu is held.
func (c *Conn) writeOn() {
	c.taken(c.write(c.unsent()))
	c.shutAfterAll()
}

// shutAfterAll shuts the sending side once the close frame has gone. mu is held.
func (c *Conn) shutAfterAll() {
	if c.state == closing && len(c.unsent()) == 0 {
		unix.Shutdown(int(c.fd), unix.SHUT_WR) // only tells the peer sooner
	}
}

// write writes what the socket takes of b, has epoll wait where it takes no more,
// and returns how much is done with. mu is held.
func (c *Conn) write(b []byte) (done int) {
	if c.waitOut || c.state == dropped || c.state == frozen {
		return 0
	}
	for done < len(b) {
		n, err := unix.Write(int(c.fd), b[done:])
		switch err {
		case nil:
			done += n
		case unix.EINTR:
		case unix.EAGAIN:
			c.waitOut = true
			c.watch()
			return done
		default:
			// The next event tells the poller too; nothing more can be sent.
			if c.state == open {
				c.state = closing
				c.poller.ask(c, lost(fmt.Errorf("write to a parked connection: %w", err)))
			}
			return len(b)
		}
	}
	return done
}

// dropParkedAfter bounds what is left of a closing connection. mu is held.
func (c *Conn) dropParkedAfter(d time.Duration, e End) {
	if c.rare == nil {
		c.rare = new(rare)
	}
	c.rare.leaving = &leaving{end: e, timer: time.AfterFunc(d, func() { c.poller.ask(c, e) })}
}

// drop closes c's socket. Only the poller's goroutine calls it, once begin has
// shown c to it.
func (p *poller) drop(c *Conn, e End) {
	c.mu.Lock()
	if c.state == dropped {
		c.mu.Unlock()
		return
	}
	c.state = dropped
	if c.rare != nil && c.rare.leaving != nil {
		// However the socket ends now, the connection ended before.
		c.rare.leaving.timer.Stop()
		e = c.rare.leaving.end
	}
	fd := int(c.fd)
	c.fd = -1
	c.mu.Unlock()

	p.mu.Lock()
	s := p.at(c.slot)
	s.conn = nil
	s.gen++
	p.free = append(p.free, c.slot)
	p.mu.Unlock()
	unix.Close(fd) // takes it out of epoll too
	if c.reader != nil {
		p.lot.held.Add(-int64(c.reader.Held()))
		c.reader = nil
	}
	p.lot.epoll.Add(-1)
	c.gone(e)
}
