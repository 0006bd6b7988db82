package wsconn

import (
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/liveness"
	"holdfast/internal/wire"
	"holdfast/internal/wsconn/link"
)

// Side says which end of a stream this is. Older peers speak base64 in text
// frames, and the two ends meet them differently.
type Side int

// The sides of a stream.
const (
	// DeviceSide sends binary always; what comes may be text.
	DeviceSide Side = iota + 1
	// AgentSide answers in text until it has seen one binary frame, then in
	// binary for good: the peer may be older.
	AgentSide
)

// textBytes is what fits a message of wire.MaxMessageBytes as base64.
const textBytes = wire.MaxMessageBytes / 4 * 3

// StreamOptions say what a stream is.
type StreamOptions struct {
	// Side is required.
	Side Side
	// Base64Compat also accepts base64 in text frames; without it text ends the
	// stream with 1003. It belongs on the relay path only, where older peers are.
	Base64Compat bool
	// Liveness judges the leg, required; it must not change. liveness.Data, with
	// typing where a person types.
	Liveness *liveness.Config
}

// Stream is an open data connection as a net.Conn.
//
// Read gives io.EOF after a normal close of the peer; every other end is Err's.
// A message is read in pieces, whatever its size. Write cuts into messages of
// at most 32 KiB; a nil error means that the bytes are on their way, not that
// they arrived. Close sends 1000 and takes up to 2 s where the peer does not
// answer; see CloseWith. A read deadline that passes while Read waits ends the
// stream, a write deadline does not.
type Stream struct {
	*conn
	side   Side
	compat bool
	typing bool
	text   atomic.Bool  // the peer has sent text
	binary atomic.Bool  // the peer has sent a binary message
	heard  atomic.Int64 // when a byte of the stream last came, since epoch

	waiting atomic.Bool // somebody is in Read

	readMu  sync.Mutex
	message io.Reader // the rest of the present message, nil between two
	base64  *tail     // below message where that decodes text

	writeMu sync.Mutex
	encoded []byte

	readBy, writeBy deadline
}

// DialStream opens a data connection. Cancelling ctx after the return does
// nothing. For the errors see Options and DialError.
func DialStream(ctx context.Context, o Options, so StreamOptions) (*Stream, error) {
	if so.Side != DeviceSide && so.Side != AgentSide {
		return nil, errors.New("stream options: side is required")
	}
	if so.Liveness == nil {
		return nil, errors.New("stream options: liveness is required")
	}
	if err := so.Liveness.Validate(); err != nil {
		return nil, err
	}
	base, err := dial(ctx, &o)
	if err != nil {
		return nil, err
	}
	s := &Stream{conn: base, side: so.Side, compat: so.Base64Compat, typing: so.Liveness.Typing != nil}
	s.ws.SetReadLimit(-1) // read in pieces, so that no size matters
	s.readBy.init(func() {
		if s.waiting.Load() {
			s.fail(os.ErrDeadlineExceeded)
		}
	})
	s.writeBy.init(nil)
	s.heard.Store(int64(time.Since(epoch)))
	s.start(so.Liveness, o.Log)
	return s, nil
}

// epoch is the start of the times in Stream.heard.
var epoch = time.Now()

// Read implements net.Conn.
func (s *Stream) Read(p []byte) (int, error) {
	s.readMu.Lock()
	defer s.readMu.Unlock()
	if len(p) == 0 {
		return 0, nil
	}
	s.waiting.Store(true)
	defer s.waiting.Store(false)
	if s.readBy.passed() {
		return 0, os.ErrDeadlineExceeded
	}
	s.beginRead()
	defer s.endRead()
	for {
		if s.message == nil {
			if err := s.nextMessage(); err != nil {
				return 0, err
			}
		}
		n, err := s.message.Read(p)
		switch {
		case err == io.EOF && (s.base64 == nil || s.base64.err == io.EOF || s.base64.err == nil):
			s.message, s.base64 = nil, nil
		case err != nil:
			return n, s.readError(err)
		}
		if n > 0 {
			// What comes after this side has closed is nobody's any more: a device
			// that was revoked must not get another byte in.
			if over := s.Err(); over != nil {
				return 0, over
			}
			s.heard.Store(int64(time.Since(epoch)))
			return n, nil
		}
	}
}

// nextMessage waits for a message that holds bytes of the stream.
func (s *Stream) nextMessage() error {
	typ, r, err := s.ws.Reader(context.Background())
	if err != nil {
		return s.readError(err)
	}
	if typ == websocket.MessageBinary {
		s.binary.Store(true)
		s.message = r
		return nil
	}
	if !s.compat {
		const reason = "text frame in a binary stream"
		s.refuse(&CloseError{Code: wire.CloseUnsupported, Reason: reason}, wire.CloseUnsupported, reason)
		return s.Err()
	}
	s.text.Store(true)
	s.base64 = &tail{r: r}
	s.message = base64.NewDecoder(base64.StdEncoding.Strict(), s.base64)
	return nil
}

// tail remembers how the reader below a decoder ended, to tell a broken
// connection from bad text.
type tail struct {
	r   io.Reader
	err error
}

func (t *tail) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	if err != nil {
		t.err = err
	}
	return n, err
}

func (s *Stream) readError(err error) error {
	if s.base64 != nil && (s.base64.err == nil || s.base64.err == io.EOF) {
		s.message, s.base64 = nil, nil
		s.refuse(ErrBadText, wire.CloseInvalidData, "text is not base64")
		return s.Err()
	}
	err = s.broken(err)
	if c := (*CloseError)(nil); errors.As(err, &c) && (c.Code == wire.CloseNormal || c.Code == wire.CloseNoStatus) {
		return io.EOF
	}
	return err
}

// refuse ends the stream for what the peer sent.
func (s *Stream) refuse(why error, code wire.CloseCode, reason string) {
	if s.beginBye(why) {
		// Not here: the reader, who found it, is not to wait. Ends within the
		// limits of CloseWith.
		go s.sayBye(code, reason, link.FlushTimeout)
	}
}

// Write implements net.Conn.
func (s *Stream) Write(p []byte) (int, error) {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	written := 0
	for len(p) > 0 {
		if over := s.Err(); over != nil {
			return written, over
		}
		expired := s.writeBy.channel()
		if err := s.link.WaitRoom(expired); err != nil {
			return written, s.writeError(err)
		}
		typ, limit := websocket.MessageBinary, wire.MaxMessageBytes
		if s.answersText() {
			typ, limit = websocket.MessageText, textBytes
		}
		chunk := p[:min(len(p), limit)]
		out := chunk
		if typ == websocket.MessageText {
			s.encoded = wire.EncodeBase64(s.encoded[:0], chunk)
			out = s.encoded
		} else {
			s.encoded = nil
		}
		unsent := 0
		if s.typing {
			unsent = s.link.Unsent()
		}
		if err := s.ws.Write(context.Background(), typ, out); err != nil {
			return written, s.writeError(err)
		}
		if s.typing {
			s.act(s.event(func(j *liveness.Judge, now liveness.Instant) liveness.Effects {
				return j.Sent(now, len(chunk), unsent)
			}))
		}
		written += len(chunk)
		p = p[len(chunk):]
	}
	return written, nil
}

// answersText reports whether the next message is to be base64.
func (s *Stream) answersText() bool {
	return s.side == AgentSide && s.compat && !s.binary.Load()
}

// TextMode reports whether the peer has sent text: an older one.
func (s *Stream) TextMode() bool { return s.text.Load() }

// quiet is how long no byte of the stream has come.
func (s *Stream) quiet() time.Duration {
	return time.Since(epoch) - time.Duration(s.heard.Load())
}

// Close implements net.Conn: CloseWith 1000. As after every end that this side
// made, a Read that waits returns when the peer has answered, with nothing.
func (s *Stream) Close() error {
	s.CloseWith(wire.CloseNormal, "")
	return nil
}

// LocalAddr and RemoteAddr are those of the TCP connection: a proxy's where one
// is in between.
func (s *Stream) LocalAddr() net.Addr  { return s.link.Raw().LocalAddr() }
func (s *Stream) RemoteAddr() net.Addr { return s.link.Raw().RemoteAddr() }

// SetDeadline implements net.Conn.
func (s *Stream) SetDeadline(t time.Time) error {
	s.readBy.set(t)
	s.writeBy.set(t)
	return nil
}

// SetReadDeadline implements net.Conn. If it passes while Read waits the stream
// is over.
func (s *Stream) SetReadDeadline(t time.Time) error {
	s.readBy.set(t)
	return nil
}

// SetWriteDeadline implements net.Conn.
func (s *Stream) SetWriteDeadline(t time.Time) error {
	s.writeBy.set(t)
	return nil
}

// deadline is a moment that can be moved and waited for.
type deadline struct {
	fire func() // called when it passes; may be nil

	mu    sync.Mutex
	moved int // how often it was moved: a timer of an earlier setting does nothing
	timer *time.Timer
	past  chan struct{} // closed while it has passed
}

func (d *deadline) init(fire func()) {
	d.fire = fire
	d.past = make(chan struct{})
}

func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.moved++
	moved := d.moved
	if d.hasPassed() {
		d.past = make(chan struct{})
	}
	wait := time.Until(t)
	if !t.IsZero() && wait > 0 {
		d.timer = time.AfterFunc(wait, func() { d.pass(moved) })
	}
	d.mu.Unlock()
	if !t.IsZero() && wait <= 0 {
		d.pass(moved)
	}
}

func (d *deadline) pass(moved int) {
	d.mu.Lock()
	stale := d.moved != moved
	if !stale {
		close(d.past)
	}
	d.mu.Unlock()
	if !stale && d.fire != nil {
		d.fire()
	}
}

// hasPassed is called with mu held.
func (d *deadline) hasPassed() bool {
	select {
	case <-d.past:
		return true
	default:
		return false
	}
}

func (d *deadline) passed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.hasPassed()
}

func (d *deadline) channel() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.past
}

var _ net.Conn = (*Stream)(nil)
