package waiting

import (
	"net"
	"time"

	"holdfast/internal/frame"
	"holdfast/internal/wire"
)

// hangupPoll is how often a device whose 4 KiB wait to be forwarded is looked
// at for a hang-up. Its socket is not read any more then, so nothing else would
// show it; half costs twice the system calls, double frees as much later.
const hangupPoll = 250 * time.Millisecond

// Early reads what a device sends before its pair is complete: at most
// wire.MaxPendingBytes, kept as they came, since the pump rewrites them later.
// It looks at the frames only to see the device go.
type Early struct {
	// Over is closed when the device hung up or broke the protocol.
	Over <-chan struct{}

	conn net.Conn
	over chan struct{}
	done chan struct{} // Read has returned
	quit chan struct{} // closed by Stop

	// Of Read until over or done is closed.
	buf    []byte
	next   int // where the next frame header is
	code   wire.CloseCode
	reason string
}

// NewEarly makes an Early of a connection of which head was read already.
func NewEarly(conn net.Conn, head []byte) *Early {
	over := make(chan struct{})
	return &Early{
		Over: over, conn: conn, buf: head,
		over: over, done: make(chan struct{}), quit: make(chan struct{}),
	}
}

// Read is run in a goroutine of its own; Stop ends it and waits.
func (e *Early) Read() {
	defer close(e.done)
	for {
		if e.scan() {
			close(e.over)
			return
		}
		if len(e.buf) >= wire.MaxPendingBytes {
			if e.poll() {
				close(e.over)
			}
			return
		}
		if cap(e.buf) < wire.MaxPendingBytes {
			e.buf = append(make([]byte, 0, wire.MaxPendingBytes), e.buf...)
		}
		n, err := e.conn.Read(e.buf[len(e.buf):wire.MaxPendingBytes])
		e.buf = e.buf[:len(e.buf)+n]
		if err != nil {
			select {
			case <-e.quit:
			default:
				// A close frame may have come with the last bytes.
				e.scan()
				close(e.over)
			}
			return
		}
	}
}

// poll waits for a hang-up behind bytes that stay unread.
func (e *Early) poll() bool {
	tick := time.NewTicker(hangupPoll)
	defer tick.Stop()
	for {
		if hungUp(e.conn) {
			return true
		}
		select {
		case <-e.quit:
			return false
		case <-tick.C:
		}
	}
}

// scan walks over the frame headers in buf. True: the device said goodbye, or
// something that is no WebSocket frame.
func (e *Early) scan() bool {
	for e.next < len(e.buf) {
		h, n, err := frame.ParseHeader(e.buf[e.next:])
		if err == nil && n > 0 && !h.Masked {
			err = frame.ErrUnmasked
		}
		if err != nil {
			e.code, e.reason = wire.CloseCode(frame.CodeOf(err)), err.Error()
			return true
		}
		left := int64(len(e.buf) - e.next - n)
		if n == 0 || h.Op == frame.Close && left < h.Length {
			return false // the rest is to come
		}
		if h.Op == frame.Close {
			payload := append([]byte(nil), e.buf[e.next+n:e.next+n+int(h.Length)]...)
			frame.Mask(h.Mask, 0, payload)
			switch code, _, err := frame.ParseClose(payload); {
			case err != nil:
				e.code, e.reason = wire.CloseCode(frame.CodeOf(err)), err.Error()
			case len(payload) == 0:
				e.code = wire.CloseNormal
			default:
				e.code = wire.CloseCode(code)
			}
			return true
		}
		if left < h.Length {
			// The frame ends behind what is read, perhaps far behind.
			return false
		}
		e.next += n + int(h.Length)
	}
	return false
}

// Farewell is what the device is told after Over: a zero code means that it has
// just gone.
func (e *Early) Farewell() (wire.CloseCode, string) { return e.code, e.reason }

// Stop ends Read and gives what it has. The connection is as before.
func (e *Early) Stop() []byte {
	close(e.quit)
	_ = e.conn.SetReadDeadline(time.Now()) // wakes Read; a closed connection needs no waking
	<-e.done
	_ = e.conn.SetReadDeadline(time.Time{})
	return e.buf
}
