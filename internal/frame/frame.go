// Package frame reads and writes WebSocket frames (RFC 6455) as bytes: a header
// parser that takes any split, a reader of small messages for the server's side,
// encoders, and a rewriter that turns what a masked peer sent into unmasked
// frames in place.
//
// It has no socket, no goroutine and no clock, and it imports the standard
// library alone, because the public package live uses it too. It never
// allocates for a length that was only announced.
//
// What a caller will get wrong: the bytes handed in are changed in place, and a
// payload handed out is valid only until the next call.
package frame

import (
	"encoding/binary"
	"errors"
)

// Opcode is the four-bit opcode of a frame (RFC 6455, section 5.2).
type Opcode byte

// The opcodes of RFC 6455. Every other value is a protocol error.
const (
	Continuation Opcode = 0x0
	Text         Opcode = 0x1
	Binary       Opcode = 0x2
	Close        Opcode = 0x8
	Ping         Opcode = 0x9
	Pong         Opcode = 0xA
)

// IsControl reports whether op is a control frame's.
func (op Opcode) IsControl() bool { return op&0x8 != 0 }

func (op Opcode) known() bool {
	return op <= Binary || op >= Close && op <= Pong
}

func (op Opcode) String() string {
	switch op {
	case Continuation:
		return "continuation"
	case Text:
		return "text"
	case Binary:
		return "binary"
	case Close:
		return "close"
	case Ping:
		return "ping"
	case Pong:
		return "pong"
	}
	return "unknown"
}

// Sizes of RFC 6455.
const (
	// MaxHeaderBytes is the longest header: two bytes, a 64-bit length, a mask key.
	MaxHeaderBytes = 14
	// MaxControlPayload is the longest payload of a control frame.
	MaxControlPayload = 125
	// MaxReasonBytes is what a close frame leaves for its reason.
	MaxReasonBytes = MaxControlPayload - 2
)

// Error is what a peer did wrong on the level of frames, with the close code
// that tells it so. The errors of this package are compared with errors.Is.
type Error struct {
	// Code is the close code to answer with.
	Code uint16
	text string
}

func (e *Error) Error() string { return e.text }

// What a peer can do wrong.
var (
	ErrReserved          = &Error{1002, "frame has a reserved bit set"}
	ErrOpcode            = &Error{1002, "frame has an unknown opcode"}
	ErrFragmentedControl = &Error{1002, "control frame is fragmented"}
	ErrLongControl       = &Error{1002, "control frame is longer than 125 bytes"}
	ErrLength            = &Error{1002, "frame length has its highest bit set"}
	ErrUnmasked          = &Error{1002, "client frame is not masked"}
	ErrContinuation      = &Error{1002, "continuation frame without a message"}
	ErrInterleaved       = &Error{1002, "new message inside a fragmented one"}
	ErrClosePayload      = &Error{1002, "close frame has a one-byte payload"}
	ErrCloseCode         = &Error{1002, "close frame has a code that may not be sent"}
	ErrCloseReason       = &Error{1007, "close reason is not UTF-8"}
	ErrTooBig            = &Error{1009, "message is too big"}
)

// CodeOf is the close code to answer err with: that of an Error, else 1011.
func CodeOf(err error) uint16 {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 1011
}

// Header is the header of one frame.
type Header struct {
	Fin    bool
	Op     Opcode
	Masked bool
	// Mask is the key in wire order; it counts only where Masked is set.
	Mask [4]byte
	// Length is the payload's length in bytes, below 2^63.
	Length int64
}

const (
	finBit  = 0x80
	rsvBits = 0x70
	opBits  = 0x0F
	maskBit = 0x80
	lenBits = 0x7F
	len16   = 126
	len64   = 127
)

// ParseHeader reads a header from the start of b. n is its length; n is 0 with a
// nil error where b does not hold all of it yet. Errors come with the first byte
// that shows them: ErrReserved, ErrOpcode, ErrFragmentedControl, ErrLongControl,
// ErrLength. A length in a longer form than it needs is accepted, as other
// implementations do; whether a frame must be masked is the caller's question.
func ParseHeader(b []byte) (h Header, n int, err error) {
	if len(b) == 0 {
		return Header{}, 0, nil
	}
	h.Fin = b[0]&finBit != 0
	h.Op = Opcode(b[0] & opBits)
	switch {
	case b[0]&rsvBits != 0:
		return Header{}, 0, ErrReserved
	case !h.Op.known():
		return Header{}, 0, ErrOpcode
	case h.Op.IsControl() && !h.Fin:
		return Header{}, 0, ErrFragmentedControl
	}
	if len(b) < 2 {
		return Header{}, 0, nil
	}
	h.Masked = b[1]&maskBit != 0
	n = 2
	switch l := b[1] & lenBits; {
	case h.Op.IsControl() && l > MaxControlPayload:
		return Header{}, 0, ErrLongControl
	case l == len16:
		if len(b) < 4 {
			return Header{}, 0, nil
		}
		h.Length, n = int64(binary.BigEndian.Uint16(b[2:])), 4
	case l == len64:
		if len(b) > 2 && b[2]&0x80 != 0 {
			return Header{}, 0, ErrLength
		}
		if len(b) < 10 {
			return Header{}, 0, nil
		}
		h.Length, n = int64(binary.BigEndian.Uint64(b[2:])), 10
	default:
		h.Length = int64(l)
	}
	if h.Masked {
		if len(b) < n+4 {
			return Header{}, 0, nil
		}
		h.Mask = [4]byte(b[n:])
		n += 4
	}
	return h, n, nil
}

// parseMasked is ParseHeader for a peer that must mask. An unmasked frame is
// refused with its second byte, whatever else is wrong with it further on.
func parseMasked(b []byte) (Header, int, error) {
	h, n, err := ParseHeader(b)
	if (err == nil || err == ErrLength) && len(b) >= 2 && b[1]&maskBit == 0 {
		return Header{}, 0, ErrUnmasked
	}
	return h, n, err
}

// partialHeader collects the header of a masked frame over chunks.
type partialHeader struct {
	b [MaxHeaderBytes]byte
	n int
}

// next goes on with b and says how much of it belongs to the header; without ok
// that is all of b and the header is not complete yet.
func (p *partialHeader) next(b []byte) (h Header, used int, ok bool, err error) {
	if p.n == 0 {
		if h, used, err = parseMasked(b); used == 0 && err == nil {
			p.n = copy(p.b[:], b)
			return h, p.n, false, nil
		}
		return h, used, err == nil, err
	}
	had := p.n
	p.n += copy(p.b[had:], b)
	if h, used, err = parseMasked(p.b[:p.n]); used == 0 && err == nil {
		return h, p.n - had, false, nil
	}
	p.n = 0
	return h, max(0, used-had), err == nil, err
}

// headerBytes is the length of h once encoded.
func headerBytes(h Header) int {
	n := 2
	switch {
	case h.Length > 0xFFFF:
		n = 10
	case h.Length > 125:
		n = 4
	}
	if h.Masked {
		n += 4
	}
	return n
}

// putHeader encodes h at the start of b, which must be long enough, and returns
// its length.
func putHeader(b []byte, h Header) int {
	b[0] = byte(h.Op)
	if h.Fin {
		b[0] |= finBit
	}
	n := 2
	switch {
	case h.Length > 0xFFFF:
		b[1] = len64
		binary.BigEndian.PutUint64(b[2:], uint64(h.Length))
		n = 10
	case h.Length > 125:
		b[1] = len16
		binary.BigEndian.PutUint16(b[2:], uint16(h.Length))
		n = 4
	default:
		b[1] = byte(h.Length)
	}
	if h.Masked {
		b[1] |= maskBit
		n += copy(b[n:], h.Mask[:])
	}
	return n
}

// AppendHeader appends h to dst, in the shortest form.
func AppendHeader(dst []byte, h Header) []byte {
	var b [MaxHeaderBytes]byte
	return append(dst, b[:putHeader(b[:], h)]...)
}

// AppendFrame appends one whole unmasked frame, as a server sends it. The
// payload of a control frame must not exceed MaxControlPayload.
func AppendFrame(dst []byte, op Opcode, payload []byte) []byte {
	dst = AppendHeader(dst, Header{Fin: true, Op: op, Length: int64(len(payload))})
	return append(dst, payload...)
}

// sequence holds a peer to the order of data frames: a message starts with text
// or binary, goes on with continuations and ends with FIN.
type sequence struct {
	// open is set inside a fragmented message.
	open bool
}

// next checks h, which must not be a control frame's.
func (s *sequence) next(h Header) error {
	if h.Op == Continuation {
		if !s.open {
			return ErrContinuation
		}
	} else if s.open {
		return ErrInterleaved
	}
	s.open = !h.Fin
	return nil
}
