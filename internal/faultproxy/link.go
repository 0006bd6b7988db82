package faultproxy

import (
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

const (
	// chunkBytes is the most that one read takes.
	chunkBytes = 32 << 10
	// queueChunks is how many chunks wait in one direction: with a delay of a
	// second it still passes 8 MiB/s, and a stalled direction accepts as much.
	queueChunks = 256
	// trickleStep is how often a trickling direction delivers.
	trickleStep = 50 * time.Millisecond
	// maxHeldBytes bounds the frame that a swap holds back; a larger one passes
	// unswapped.
	maxHeldBytes = 4 << 20
)

// Link is one connection through a Proxy.
type Link struct {
	proxy    *Proxy
	up, down *pipe
	done     chan struct{}
	once     sync.Once
}

func newLink(p *Proxy, client, server net.Conn, faults []Fault) *Link {
	l := &Link{proxy: p, done: make(chan struct{})}
	l.up = newPipe(l, Up, client, server)
	l.down = newPipe(l, Down, server, client)
	l.Apply(faults...)
	return l
}

// Apply puts faults into the link: those with no position fire now, those whose
// position has passed too. Refuse does nothing here.
func (l *Link) Apply(faults ...Fault) {
	for _, f := range faults {
		switch f.kind {
		case refuse:
		case reclaimIdle:
			// Stopped by the link's end, awaited by the proxy's Close.
			l.proxy.wait.Go(func() { l.reap(f.reaper) })
		default:
			for _, p := range l.pipes(f.dir) {
				p.arm(f)
			}
		}
	}
}

// Resume ends stalls; what was accepted meanwhile is delivered.
func (l *Link) Resume(d Direction) {
	for _, p := range l.pipes(d) {
		p.resume()
	}
}

// Passed is how many bytes of the direction were read, and how many whole
// frames.
func (l *Link) Passed(d Direction) (bytes int64, frames int) {
	for _, p := range l.pipes(d) {
		p.mu.Lock()
		bytes += p.track.pos
		frames += max(0, p.track.frame-1)
		p.mu.Unlock()
	}
	return bytes, frames
}

// Done is closed when the link has ended on both sides.
func (l *Link) Done() <-chan struct{} { return l.done }

func (l *Link) pipes(d Direction) (p []*pipe) {
	if d&Up != 0 {
		p = append(p, l.up)
	}
	if d&Down != 0 {
		p = append(p, l.down)
	}
	return p
}

// run serves the link until it has ended.
func (l *Link) run() {
	var wait sync.WaitGroup
	for _, p := range l.pipes(Both) {
		// Both end with the link: cut closes their connections and done.
		wait.Go(p.read)
		wait.Go(p.deliver)
	}
	wait.Wait()
	l.cut()
}

// cut resets both sides.
func (l *Link) cut() {
	l.once.Do(func() {
		close(l.done)
		reset(l.up.src)
		reset(l.down.src)
	})
}

// close ends a link whose two directions have both been finished.
func (l *Link) close() {
	l.once.Do(func() {
		close(l.done)
		l.up.src.Close()
		l.down.src.Close()
	})
}

// reap is a middlebox that watches for idleness.
func (l *Link) reap(r Reaper) {
	for {
		up, down := l.up.lastMove(), l.down.lastMove()
		last := down
		switch r.Counts {
		case AnyByte:
			if up.After(down) {
				last = up
			}
		case BothWays:
			if up.Before(down) {
				last = up
			}
		}
		wait := time.Until(last.Add(r.Limit))
		if wait <= 0 {
			break
		}
		if !sleep(wait, l.done) {
			return
		}
	}
	for _, p := range l.pipes(Both) {
		if r.Fin {
			p.apply(Finish(p.dir))
			continue
		}
		p.mu.Lock()
		p.gone = true
		p.mu.Unlock()
		p.apply(Stall(p.dir))
	}
}

// sleep reports false if done was closed first.
func sleep(d time.Duration, done <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-done:
		return false
	}
}

// pipe is one direction of a link: read follows positions and queues, deliver
// obeys the clock.
type pipe struct {
	link     *Link
	dir      Direction
	src, dst net.Conn
	queue    chan item

	mu      sync.Mutex
	track   tracker
	faults  []Fault
	moved   time.Time
	stalled chan struct{} // closed by resume; nil: not stalled
	gone    bool          // reaped: no resume
	wrote   bool          // FIN was sent to dst
	delay   time.Duration
	rate    int
	// edge is the frame from which on the far side is gone and this proxy
	// answers pings; 0 none. leaving: this direction's source is to be left once
	// the frame that is on its way has passed.
	edge    int
	leaving bool

	// Of the reading goroutine.
	ping    []byte // the frame that an edge looks at
	swapped int    // frame that is held back; 0 none
	held    []byte
}

type item struct {
	data  []byte
	at    time.Time // when it was read
	fault *Fault    // to apply instead of data
	end   error     // the source ended: io.EOF or a reset
}

func newPipe(l *Link, dir Direction, src, dst net.Conn) *pipe {
	return &pipe{link: l, dir: dir, src: src, dst: dst, queue: make(chan item, queueChunks), moved: time.Now()}
}

func (p *pipe) other() *pipe {
	if p.dir == Up {
		return p.link.down
	}
	return p.link.up
}

func (p *pipe) lastMove() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.moved
}

// arm takes a fault; one whose place is here fires now.
func (p *pipe) arm(f Fault) {
	p.mu.Lock()
	waits := f.kind == corrupt || f.kind == swap || f.at.set && !p.track.reached(f.at)
	if waits {
		p.faults = append(p.faults, f)
	}
	p.mu.Unlock()
	if !waits {
		p.apply(f)
	}
}

// apply makes a fault happen now.
func (p *pipe) apply(f Fault) {
	p.happen(f)
	if f.kind == answerPings {
		// Not under our lock: those of two pipes are never held together.
		p.other().leave()
	}
}

func (p *pipe) happen(f Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch f.kind {
	case stall:
		if p.stalled == nil {
			p.stalled = make(chan struct{})
		}
	case cut:
		p.link.cut()
	case finish:
		p.finish()
	case delay:
		p.delay = f.d
	case trickle:
		p.rate = f.rate
	case answerPings:
		p.edge = max(1, p.track.frame)
		if !p.track.atBoundary() {
			p.edge++
		}
	}
}

// finish sends FIN. The lock is held.
func (p *pipe) finish() {
	if p.wrote {
		return
	}
	p.wrote = true
	if w, ok := p.dst.(interface{ CloseWrite() error }); ok {
		w.CloseWrite()
	} else {
		p.dst.Close()
	}
}

func (p *pipe) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stalled != nil && !p.gone {
		close(p.stalled)
		p.stalled = nil
	}
}

// leave ends the connection to this pipe's source as soon as the upgrade is
// done and no frame is on its way: a pong of the proxy's own must not stand in
// the middle of one.
func (p *pipe) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leaving = true
	if p.left() {
		reset(p.src)
	}
}

// left reports whether leave can happen, or has. The lock is held.
func (p *pipe) left() bool { return p.leaving && p.track.frame > 0 && p.track.atBoundary() }

// put queues for deliver; false means that the link has ended.
func (p *pipe) put(i item) bool {
	select {
	case p.queue <- i:
		return true
	case <-p.link.done:
		return false
	}
}

func (p *pipe) read() {
	buf := make([]byte, chunkBytes)
	for {
		n, err := p.src.Read(buf)
		if n > 0 && !p.feed(buf[:n]) {
			return
		}
		if err != nil {
			p.mu.Lock()
			left := p.left()
			p.mu.Unlock()
			if left {
				// The far side is gone and the near one must not hear of it;
				// deliver stays for the pongs.
				return
			}
			if !errors.Is(err, io.EOF) {
				err = net.ErrClosed
			}
			p.put(item{end: err, at: time.Now()})
			return
		}
	}
}

// feed passes bytes that were read, with the faults that lie in them.
func (p *pipe) feed(b []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]byte, 0, len(b))
	for len(b) > 0 {
		for _, f := range p.fire(b) {
			// In the order of the bytes: what is before the place goes first.
			if !p.flush(&out) || !p.putUnlocked(item{fault: &f}) {
				return false
			}
		}
		n := p.track.span(len(b), p.faults)
		frame := p.track.frame
		p.track.pass(b[:n])
		out = p.transform(out, b[:n], frame)
		b = b[n:]
		if p.left() {
			p.flush(&out)
			reset(p.src)
			return true // the next read ends this goroutine
		}
	}
	for _, f := range p.fire(nil) {
		if !p.flush(&out) || !p.putUnlocked(item{fault: &f}) {
			return false
		}
	}
	return p.flush(&out)
}

// fire takes out the faults whose place is reached. Those that change bytes are
// done here, if there are bytes; the others are returned. The lock is held.
func (p *pipe) fire(b []byte) (due []Fault) {
	p.faults = slices.DeleteFunc(p.faults, func(f Fault) bool {
		if !p.track.reached(f.at) {
			return false
		}
		switch f.kind {
		case corrupt:
			if len(b) == 0 {
				return false
			}
			b[0] ^= 1 << f.bit
		case swap:
			if p.track.frame == 0 || !p.track.atBoundary() || p.swapped != 0 {
				return false
			}
			p.swapped = p.track.frame
		default:
			due = append(due, f)
		}
		return true
	})
	return due
}

// transform appends to out what becomes of bytes of one frame. The lock is held.
func (p *pipe) transform(out, b []byte, frame int) []byte {
	whole := p.track.frame != frame // b ends its frame
	if p.edge > 0 && frame > 0 {
		if frame < p.edge {
			return out
		}
		if len(p.ping)+len(b) <= len(p.track.header)+125 {
			p.ping = append(p.ping, b...)
		}
		if whole {
			if pong := pongFor(p.ping); pong != nil {
				p.other().inject(pong)
			}
			p.ping = p.ping[:0]
		}
		return out
	}
	switch {
	case p.swapped == 0:
		return append(out, b...)
	case frame == p.swapped: // held back
		if p.held = append(p.held, b...); len(p.held) > maxHeldBytes {
			out, p.held, p.swapped = append(out, p.held...), nil, 0
		}
	default: // the one after it goes first
		if out = append(out, b...); whole {
			out, p.held, p.swapped = append(out, p.held...), nil, 0
		}
	}
	return out
}

// inject queues bytes of the proxy's own. It drops them when the queue is
// full, as the edge that it plays would.
func (p *pipe) inject(b []byte) {
	select {
	case p.queue <- item{data: b, at: time.Now()}:
	default:
	}
}

// flush queues what was gathered. The lock is held.
func (p *pipe) flush(out *[]byte) bool {
	if len(*out) == 0 {
		return true
	}
	i := item{data: *out, at: time.Now()}
	*out = nil
	return p.putUnlocked(i)
}

// putUnlocked is put for a caller that holds the lock: the queue may be full
// for as long as the direction is stalled.
func (p *pipe) putUnlocked(i item) bool {
	p.mu.Unlock()
	defer p.mu.Lock()
	return p.put(i)
}

// deliver writes what is queued, when it is due.
func (p *pipe) deliver() {
	for {
		var i item
		select {
		case i = <-p.queue:
		case <-p.link.done:
			return
		}
		if i.fault != nil {
			p.apply(*i.fault)
			continue
		}
		p.mu.Lock()
		wait := time.Until(i.at.Add(p.delay))
		p.mu.Unlock()
		if wait > 0 && !sleep(wait, p.link.done) {
			return
		}
		if !p.gate() {
			return
		}
		if i.end != nil {
			p.ended(i.end)
			continue
		}
		if !p.write(i.data) {
			return
		}
	}
}

// gate waits while the direction is stalled; false means that the link ended.
func (p *pipe) gate() bool {
	for {
		p.mu.Lock()
		stalled := p.stalled
		p.mu.Unlock()
		if stalled == nil {
			return true
		}
		select {
		case <-stalled:
		case <-p.link.done:
			return false
		}
	}
}

// ended passes the end of the source on.
func (p *pipe) ended(err error) {
	if !errors.Is(err, io.EOF) {
		p.link.cut()
		return
	}
	p.mu.Lock()
	p.finish()
	edge := p.edge > 0
	p.mu.Unlock()
	o := p.other()
	o.mu.Lock()
	both := o.wrote
	o.mu.Unlock()
	if both || edge {
		p.link.close()
	}
}

// write delivers at the direction's rate. A destination that is gone is its
// own reader's to report; the bytes are dropped.
func (p *pipe) write(b []byte) bool {
	for len(b) > 0 {
		if !p.gate() {
			return false
		}
		p.mu.Lock()
		rate, wrote := p.rate, p.wrote
		if !wrote {
			p.moved = time.Now()
		}
		p.mu.Unlock()
		if wrote {
			return true
		}
		n := len(b)
		if rate > 0 {
			// Whole bytes, as many steps as it takes for one.
			n = min(n, max(1, int(int64(rate)*int64(trickleStep)/int64(time.Second))))
		}
		if _, err := p.dst.Write(b[:n]); err != nil {
			return true
		}
		b = b[n:]
		if rate > 0 && !sleep(time.Duration(n)*time.Second/time.Duration(rate), p.link.done) {
			return false
		}
	}
	return true
}
