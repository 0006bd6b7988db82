package frame

import "encoding/binary"

// Message is one message, or one control frame.
type Message struct {
	// Op is Text, Binary, Close, Ping or Pong; Continuation (zero) means that
	// there is no message yet.
	Op Opcode
	// Payload is unmasked and valid until the next call of the Reader.
	Payload []byte
}

// Reader puts the small messages of one client together on the server's side. It
// is fed with bytes in any split and holds only what is incomplete: while Idle
// it holds nothing that the connection needs, so one Reader can serve many
// connections in turn and be left with one only while that has a partial frame.
// The zero value is not usable; see NewReader.
type Reader struct {
	max int
	seq sequence
	op  Opcode // of the fragmented message in progress

	header partialHeader

	// The frame whose header is complete and whose payload is not.
	inFrame bool
	current Header
	got     int64

	message   []byte // payload of the data message so far
	control   []byte // payload of the control frame so far
	delivered bool   // message was handed out by the last call
}

// keepBytes is how much buffer a Reader keeps for its next message: a control
// message fits, a large one of a live channel does not stay.
const keepBytes = 4 << 10

// NewReader makes a Reader that takes messages of at most maxMessage bytes.
func NewReader(maxMessage int) *Reader { return &Reader{max: maxMessage} }

// Idle reports whether r holds no part of a frame or message.
func (r *Reader) Idle() bool {
	return r.header.n == 0 && !r.inFrame && !r.seq.open
}

// Held is how many bytes of a peer r holds.
func (r *Reader) Held() int {
	if r.delivered {
		return 0
	}
	return r.header.n + len(r.message) + len(r.control)
}

// AppendHeld appends what r holds as the bytes of a client that another Reader, fed
// with them first, takes up where r stands. r must not be used afterwards.
func (r *Reader) AppendHeld(dst []byte) []byte {
	message, got := r.message, int64(0)
	if r.delivered {
		message = nil
	}
	inData := r.inFrame && !r.current.Op.IsControl()
	if inData {
		got = r.got
	}
	// The fragments that are complete become one. A key of zero masks nothing.
	if before := int64(len(message)) - got; inData && r.current.Op == Continuation || !inData && r.seq.open {
		dst = AppendHeader(dst, Header{Op: r.op, Masked: true, Length: before})
		dst = append(dst, message[:before]...)
		message = message[before:]
	}
	if r.inFrame {
		if !inData {
			message = r.control
		}
		dst = AppendHeader(dst, r.current)
		at := len(dst)
		dst = append(dst, message...)
		Mask(r.current.Mask, 0, dst[at:])
	}
	return append(dst, r.header.b[:r.header.n]...)
}

// Next reads at most one message from b and says how many bytes of b it used up;
// with no message in m it used all of them. b is changed in place, and m.Payload
// may lie in it. Errors: those of ParseHeader, ErrUnmasked, ErrContinuation,
// ErrInterleaved, ErrTooBig; after one the Reader must not be used again.
func (r *Reader) Next(b []byte) (m Message, n int, err error) {
	if r.delivered {
		r.delivered = false
		r.message = r.message[:0]
		if cap(r.message) > keepBytes {
			r.message = nil
		}
	}
	for {
		if !r.inFrame {
			used, ok, err := r.readHeader(b[n:])
			n += used
			if err != nil || !ok {
				return Message{}, n, err
			}
			// The common case: a whole message lies in b, and nothing is copied.
			if h := r.current; h.Fin && int64(len(b)-n) >= h.Length && (h.Op.IsControl() || h.Op != Continuation) {
				payload := b[n : n+int(h.Length) : n+int(h.Length)]
				unmask(payload, payload, binary.LittleEndian.Uint32(h.Mask[:]))
				r.inFrame = false
				return Message{h.Op, payload}, n + int(h.Length), nil
			}
		}
		done, used := r.readPayload(b[n:])
		n += used
		if !done {
			return Message{}, n, nil
		}
		r.inFrame = false
		switch {
		case r.current.Op.IsControl():
			m = Message{r.current.Op, r.control}
			r.control = r.control[:0]
			return m, n, nil
		case r.current.Fin:
			r.delivered = true
			return Message{r.op, r.message}, n, nil
		}
	}
}

// readHeader collects a header from b; ok says that r.current is complete.
func (r *Reader) readHeader(b []byte) (used int, ok bool, err error) {
	h, used, ok, err := r.header.next(b)
	if err != nil || !ok {
		return used, false, err
	}
	if !h.Op.IsControl() {
		if err := r.seq.next(h); err != nil {
			return used, false, err
		}
		if h.Op != Continuation {
			r.op = h.Op
		}
		if h.Length > int64(r.max-len(r.message)) {
			return used, false, ErrTooBig
		}
	}
	r.inFrame, r.current, r.got = true, h, 0
	return used, true, nil
}

// readPayload takes what b has of the current frame's payload. The buffers grow
// with what has arrived, never with what was announced.
func (r *Reader) readPayload(b []byte) (done bool, used int) {
	used = int(min(r.current.Length-r.got, int64(len(b))))
	dst := &r.message
	if r.current.Op.IsControl() {
		dst = &r.control
	}
	at := len(*dst)
	*dst = append(*dst, b[:used]...)
	Mask(r.current.Mask, r.got, (*dst)[at:])
	r.got += int64(used)
	return r.got == r.current.Length, used
}
