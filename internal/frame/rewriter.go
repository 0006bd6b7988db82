package frame

import "encoding/binary"

// Headroom is the free space that Rewrite needs before its input: the longest
// unmasked header, for a piece whose own header came in an earlier chunk.
const Headroom = 16

// Rewriter turns the frames of a masked peer, chunk by chunk as they are read,
// into unmasked frames for another peer: headers are rewritten and payloads
// unmasked where they lie. A frame that a chunk does not hold to its end is
// forwarded as a fragment of what has come, so each chunk's output consists of
// whole frames and anything may be sent behind it. Messages keep their type,
// bytes and ends; fragments are not kept. Control frames are taken out.
//
// Text is not validated. The zero value is ready for use.
type Rewriter struct {
	seq sequence

	header partialHeader

	// The data frame whose payload is not complete: what is left of it, the key
	// that its next byte meets, and what its next piece's header says.
	left int64
	key  uint32
	op   Opcode
	fin  bool

	// The control frame whose payload is not complete.
	inControl bool
	control   Header
	got       int
	payload   [MaxControlPayload]byte

	sawText bool
	closed  bool
	bytes   int64
}

// SawText reports whether a text frame was forwarded.
func (w *Rewriter) SawText() bool { return w.sawText }

// Closed reports whether a close frame was seen. What follows it is ignored.
func (w *Rewriter) Closed() bool { return w.closed }

// Bytes is how much payload of data frames was forwarded so far.
func (w *Rewriter) Bytes() int64 { return w.bytes }

// Rewrite takes the input buf[from:to], where from is at least Headroom, and
// returns the output, which lies somewhere in buf[:to]. Control frames are
// handed to control in their order; the payload is valid during the call only.
// With an error, out holds what came before it and is good to forward; the
// Rewriter must not be used again. Errors: those of ParseHeader, ErrUnmasked,
// ErrContinuation, ErrInterleaved.
func (w *Rewriter) Rewrite(buf []byte, from, to int, control func(op Opcode, payload []byte)) (out []byte, err error) {
	// The output is buf[start:end]; it never overtakes the input, since every
	// header shrinks by the four bytes of the mask key at least, and a piece that
	// has no header in this chunk finds Headroom before it.
	r, start, end := from, from, from
	empty := true
	for !w.closed {
		switch {
		case w.left > 0:
			n := int(min(w.left, int64(to-r)))
			if n == 0 {
				return buf[start:end], nil
			}
			w.left -= int64(n)
			w.bytes += int64(n)
			h := Header{Fin: w.fin && w.left == 0, Op: w.op, Length: int64(n)}
			if empty {
				// The first piece stays where it is, its header in front of it.
				start = r - headerBytes(h)
				end, empty = start, false
			}
			end += putHeader(buf[end:], h)
			unmask(buf[end:end+n], buf[r:r+n], w.key)
			w.key = rotate(w.key, int64(n))
			w.op = Continuation
			end += n
			r += n
		case w.inControl:
			n := copy(w.payload[w.got:w.control.Length], buf[r:to])
			w.got += n
			r += n
			if w.got < int(w.control.Length) {
				return buf[start:end], nil
			}
			w.inControl = false
			payload := w.payload[:w.got]
			Mask(w.control.Mask, 0, payload)
			w.closed = w.control.Op == Close
			control(w.control.Op, payload)
		default:
			h, n, ok, err := w.header.next(buf[r:to])
			r += n
			if err != nil || !ok {
				return buf[start:end], err
			}
			if h.Op.IsControl() {
				w.inControl, w.control, w.got = true, h, 0
				continue
			}
			if err := w.seq.next(h); err != nil {
				return buf[start:end], err
			}
			if h.Op == Text {
				w.sawText = true
			}
			if h.Length == 0 {
				// No payload to hang a header on: it is forwarded as it is.
				if empty {
					start = r - 2
					end, empty = start, false
				}
				end += putHeader(buf[end:], Header{Fin: h.Fin, Op: h.Op})
				continue
			}
			w.left, w.op, w.fin = h.Length, h.Op, h.Fin
			w.key = binary.LittleEndian.Uint32(h.Mask[:])
		}
	}
	return buf[start:end], nil
}
