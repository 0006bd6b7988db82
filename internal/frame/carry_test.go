package frame

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// TestCarriedRewriterGoesOn stops a Rewriter at every byte of a stream with
// every kind of frame, and has another one go on from what was written down.
func TestCarriedRewriterGoesOn(t *testing.T) {
	masked := func(fin bool, op Opcode, payload string) []byte {
		h := Header{Fin: fin, Op: op, Masked: true, Length: int64(len(payload))}
		binary.LittleEndian.PutUint32(h.Mask[:], 0x9d3c07a1)
		b := AppendHeader(nil, h)
		at := len(b)
		b = append(b, payload...)
		Mask(h.Mask, 0, b[at:])
		return b
	}
	long := string(bytes.Repeat([]byte("0123456789abcdef"), 20)) // two bytes of length
	var in []byte
	for _, f := range [][]byte{
		masked(true, Binary, "whole"),
		masked(false, Text, "first "), masked(true, Ping, "are you there"), masked(false, Continuation, ""),
		masked(false, Continuation, long), masked(true, Continuation, "last"),
		masked(true, Binary, ""), masked(true, Pong, ""), masked(true, Binary, long),
		masked(true, Close, "\x03\xe8bye"), []byte("what follows is ignored"),
	} {
		in = append(in, f...)
	}
	// flow is what a reader of the output sees: messages, and controls in order.
	type flow struct {
		messages []string
		controls []string
	}
	read := func(cuts ...int) flow {
		var got flow
		var w Rewriter
		var out []byte
		feed := func(b []byte) {
			buf := append(make([]byte, Headroom), b...)
			o, err := w.Rewrite(buf, Headroom, len(buf), func(op Opcode, p []byte) {
				got.controls = append(got.controls, op.String()+" "+string(p))
			})
			if err != nil {
				t.Fatalf("cut at %v: %v", cuts, err)
			}
			out = append(out, o...)
		}
		from := 0
		for _, cut := range cuts {
			feed(in[from:cut])
			c := w.Carry()
			w = NewCarried(c)
			feed(c.Rest)
			from = cut
		}
		feed(in[from:])
		if !w.Closed() || !w.SawText() || w.Bytes() != int64(len("wholefirst last")+2*len(long)) {
			t.Fatalf("cut at %v: closed %v, text %v, %d bytes", cuts, w.Closed(), w.SawText(), w.Bytes())
		}
		var message string
		for b := out; len(b) > 0; {
			h, n, err := ParseHeader(b)
			if err != nil || n == 0 || int64(len(b)-n) < h.Length {
				t.Fatalf("cut at %v: the output is not of whole frames: %v", cuts, err)
			}
			if h.Op != Continuation {
				message += h.Op.String() + " "
			}
			message += string(b[n : n+int(h.Length)])
			if b = b[n+int(h.Length):]; h.Fin {
				got.messages = append(got.messages, message)
				message = ""
			}
		}
		if message != "" {
			t.Fatalf("cut at %v: the last message has no end", cuts)
		}
		return got
	}
	same := func(want, got flow, cuts ...int) {
		for _, p := range [][2][]string{{want.messages, got.messages}, {want.controls, got.controls}} {
			if len(p[0]) != len(p[1]) {
				t.Fatalf("cut at %v: got %q, want %q", cuts, p[1], p[0])
			}
			for i := range p[0] {
				if p[0][i] != p[1][i] {
					t.Fatalf("cut at %v: got %q, want %q", cuts, p[1], p[0])
				}
			}
		}
	}
	want := read()
	for cut := range len(in) + 1 {
		same(want, read(cut), cut)
		same(want, read(cut, cut), cut, cut)
		if cut < len(in) {
			same(want, read(cut, cut+1), cut, cut+1)
		}
	}
}
