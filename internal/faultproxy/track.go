package faultproxy

import "bytes"

// tracker knows where in a direction's byte stream it is.
type tracker struct {
	pos int64 // bytes passed

	// Until the head of the HTTP message has passed, frame is 0.
	head  int // how much of "\r\n\r\n" has been seen
	frame int // the frame that comes next or is being passed, from 1
	off   int64

	// Of the frame being passed. header is incomplete while size is -1.
	header [14]byte
	have   int
	size   int64 // whole frame, header included
}

var headEnd = []byte("\r\n\r\n")

// atBoundary reports whether no frame is half passed.
func (t *tracker) atBoundary() bool { return t.frame == 0 || t.off == 0 }

// reached reports whether a position is here or behind.
func (t *tracker) reached(p Position) bool {
	switch {
	case !p.set:
		return true
	case p.frame == 0:
		return t.pos >= p.byte
	case t.frame != p.frame:
		return t.frame > p.frame
	}
	return t.off >= p.offset
}

// span is how many of n bytes can pass before something may change: a position
// is reached, a header is complete, a frame ends.
func (t *tracker) span(n int, faults []Fault) int {
	k := int64(n)
	switch {
	case t.frame == 0 || t.size < 0:
		k = 1
	default:
		k = min(k, t.size-t.off)
	}
	for _, f := range faults {
		switch {
		case !f.at.set:
		case f.at.frame == 0:
			if d := f.at.byte - t.pos; d > 0 {
				k = min(k, d)
			}
		case f.at.frame == t.frame:
			if d := f.at.offset - t.off; d > 0 {
				k = min(k, d)
			}
		}
	}
	return int(max(k, 1))
}

// pass moves over b, which is at most one span.
func (t *tracker) pass(b []byte) {
	t.pos += int64(len(b))
	if t.frame == 0 {
		for _, c := range b {
			switch {
			case c == headEnd[t.head]:
				t.head++
			case c == headEnd[0]:
				t.head = 1
			default:
				t.head = 0
			}
			if t.head == len(headEnd) {
				t.nextFrame()
			}
		}
		return
	}
	if t.size < 0 {
		t.have += copy(t.header[t.have:], b)
		t.size = frameSize(t.header[:t.have])
	}
	t.off += int64(len(b))
	if t.size >= 0 && t.off >= t.size {
		t.nextFrame()
	}
}

func (t *tracker) nextFrame() {
	t.frame++
	t.off, t.have, t.size = 0, 0, -1
}

// headerLen is the length of a frame's header, or 0 while b does not tell.
func headerLen(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	n := 2
	switch b[1] & 0x7f {
	case 126:
		n += 2
	case 127:
		n += 8
	}
	if b[1]&0x80 != 0 {
		n += 4
	}
	return n
}

// frameSize is the length of a whole frame, or -1 while its header is
// incomplete. A length beyond 2^62, which no peer may send, is cut to that.
func frameSize(header []byte) int64 {
	n := headerLen(header)
	if n == 0 || len(header) < n {
		return -1
	}
	payload := int64(header[1] & 0x7f)
	switch payload {
	case 126:
		payload = int64(header[2])<<8 | int64(header[3])
	case 127:
		payload = 0
		for _, c := range header[2:10] {
			payload = payload<<8 | int64(c)
		}
		if payload < 0 || payload > 1<<62 {
			payload = 1 << 62
		}
	}
	return payload + int64(n)
}

// pongFor turns a whole ping frame into the pong that answers it: unmasked for
// a masked ping and the other way round, as the roles demand. It is nil for
// any other frame.
func pongFor(frame []byte) []byte {
	const fin, ping, pong = 0x80, 0x9, 0xa
	n := headerLen(frame)
	if n == 0 || len(frame) < n || frame[0]&0x0f != ping || frame[1]&0x7f > 125 || len(frame)-n != int(frame[1]&0x7f) {
		return nil
	}
	payload := bytes.Clone(frame[n:])
	if frame[1]&0x80 == 0 {
		// The server's ping: a client masks its answer. A key of zeros is a key.
		return append([]byte{fin | pong, 0x80 | byte(len(payload)), 0, 0, 0, 0}, payload...)
	}
	key := frame[n-4 : n]
	for i := range payload {
		payload[i] ^= key[i&3]
	}
	return append([]byte{fin | pong, byte(len(payload))}, payload...)
}
