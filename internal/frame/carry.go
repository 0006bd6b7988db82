package frame

import "encoding/binary"

// Carried is what a Rewriter knows, in a form that can be written down and taken
// up by another one, in another process.
type Carried struct {
	// Rest are the bytes that the other Rewriter must be fed with first: of a frame
	// whose end has not come, in the words of the peer.
	Rest []byte
	// Open says that Rest, and what follows, is inside a fragmented message.
	Open bool
	// Bytes, Text and Closed are Rewriter's Bytes, SawText and Closed.
	Bytes  int64
	Text   bool
	Closed bool
}

// Carry says where w stands. w may be used afterwards, and so may what is made
// of the result, but not both.
func (w *Rewriter) Carry() Carried {
	c := Carried{Open: w.seq.open, Bytes: w.bytes, Text: w.sawText, Closed: w.closed}
	switch {
	case w.closed:
	case w.left > 0:
		// What is left of the frame becomes a frame of its own, of the message that
		// is under way if a piece of it has gone already.
		h := Header{Fin: w.fin, Op: w.op, Masked: true, Length: w.left}
		binary.LittleEndian.PutUint32(h.Mask[:], w.key)
		c.Open = w.op == Continuation
		c.Rest = AppendHeader(nil, h)
	case w.inControl:
		c.Rest = append(AppendHeader(nil, w.control), w.payload[:w.got]...) // masked yet
	default:
		c.Rest = append([]byte(nil), w.header.b[:w.header.n]...)
	}
	return c
}

// NewCarried makes the Rewriter that goes on where c stands, once it was fed with
// c.Rest.
func NewCarried(c Carried) Rewriter {
	return Rewriter{seq: sequence{open: c.Open}, bytes: c.Bytes, sawText: c.Text, closed: c.Closed}
}
