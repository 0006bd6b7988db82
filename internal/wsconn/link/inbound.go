package link

import (
	"bufio"
	"io"

	"holdfast/internal/frame"
)

// inboundBytes is the read buffer under the WebSocket code: payload larger than
// this passes it by.
const inboundBytes = 4 << 10

// inbound hands the bytes of frames on as they come, except that a control frame
// is held until it is whole. The WebSocket code allows a control frame that has
// begun five seconds for the rest and ends the connection when they pass; on a
// slow link half a ping may well be on its way for longer.
type inbound struct {
	br    *bufio.Reader
	rest  int64 // of the present data frame's payload
	bare  bool  // what comes are no frames: the WebSocket code will say so
	ready []byte
	buf   [10 + frame.MaxControlPayload + 4]byte // a header, then a control frame's rest
}

func newInbound(r io.Reader) *inbound {
	return &inbound{br: bufio.NewReaderSize(r, inboundBytes)}
}

func (in *inbound) Read(p []byte) (int, error) {
	if len(in.ready) == 0 && in.rest == 0 && !in.bare {
		if err := in.begin(); err != nil {
			return 0, err
		}
	}
	switch {
	case len(in.ready) > 0:
		n := copy(p, in.ready)
		in.ready = in.ready[n:]
		return n, nil
	case in.rest > 0 && in.rest < int64(len(p)):
		p = p[:in.rest]
	}
	n, err := in.br.Read(p)
	if in.rest > 0 {
		in.rest -= int64(n)
	}
	return n, err
}

// begin reads the header of a frame, and all of a control frame, into ready.
func (in *inbound) begin() error {
	have, want := 0, 2
	for {
		n, err := in.br.Read(in.buf[have:want])
		have += n
		in.ready = in.buf[:have]
		if err != nil {
			if have == 0 {
				return err
			}
			// The part goes on, and the error comes again after it.
			in.bare = true
			return nil
		}
		h, length, err := frame.ParseHeader(in.ready)
		switch {
		case err != nil:
			in.bare = true
			return nil
		case length == 0:
			want = max(want, have+1)
		case !h.Op.IsControl():
			in.rest = h.Length
			return nil
		case have == length+int(h.Length):
			return nil
		default:
			want = length + int(h.Length)
		}
	}
}
