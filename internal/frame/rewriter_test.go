package frame

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// result is what comes out of a Rewriter.
type result struct {
	messages []message // complete ones, then the open one with opcode Continuation
	control  []message
	frames   int
	err      error
}

// rewrite runs chunks through a Rewriter as a pump would and puts its output
// together. Every chunk's output must be whole unmasked frames.
func rewrite(t *testing.T, w *Rewriter, chunks ...[]byte) (res result) {
	t.Helper()
	var open []byte
	var op Opcode
	inMessage := false
	for _, c := range chunks {
		buf := append(make([]byte, Headroom), c...)
		var out []byte
		out, res.err = w.Rewrite(buf, Headroom, len(buf), func(op Opcode, payload []byte) {
			res.control = append(res.control, message{op, string(payload)})
		})
		for len(out) > 0 {
			h, n, err := ParseHeader(out)
			if n == 0 || err != nil || h.Masked || h.Op.IsControl() || h.Length > int64(len(out)-n) {
				t.Fatalf("output has header %+v, %v, before %d bytes", h, err, len(out)-n)
			}
			if (h.Op == Continuation) != inMessage {
				t.Fatalf("output has a %s frame, inside a message: %v", h.Op, inMessage)
			}
			if h.Op != Continuation {
				op = h.Op
			}
			open = append(open, out[n:n+int(h.Length)]...)
			out = out[n+int(h.Length):]
			res.frames++
			if inMessage = !h.Fin; h.Fin {
				res.messages = append(res.messages, message{op, string(open)})
				open = nil
			}
		}
		if res.err != nil {
			break
		}
	}
	if inMessage {
		res.messages = append(res.messages, message{Continuation, string(open)})
	}
	return res
}

// model is what a Rewriter must make of a stream, from a reader that copies
// everything and knows no chunks.
func model(stream []byte) (res result) {
	var open []byte
	var op Opcode
	inMessage := false
	defer func() {
		// An open message shows only once a byte of it, or an empty fragment, did.
		if inMessage {
			res.messages = append(res.messages, message{Continuation, string(open)})
		}
	}()
	for {
		h, n, err := parseMasked(stream)
		if err != nil {
			res.err = err
			return res
		}
		if n == 0 {
			return res
		}
		stream = stream[n:]
		have := int(min(h.Length, int64(len(stream))))
		payload := bytes.Clone(stream[:have])
		stream = stream[have:]
		for i := range payload {
			payload[i] ^= h.Mask[i%4]
		}
		if h.Op.IsControl() {
			if int64(have) < h.Length {
				return res
			}
			res.control = append(res.control, message{h.Op, string(payload)})
			if h.Op == Close {
				return res
			}
			continue
		}
		if (h.Op == Continuation) != inMessage {
			res.err = ErrContinuation
			if inMessage {
				res.err = ErrInterleaved
			}
			return res
		}
		if have == 0 && h.Length > 0 {
			return res // nothing to forward yet
		}
		if h.Op != Continuation {
			op = h.Op
		}
		open = append(open, payload...)
		inMessage = true
		if h.Fin && int64(have) == h.Length {
			inMessage = false
			res.messages = append(res.messages, message{op, string(open)})
			open = nil
		}
		if int64(have) < h.Length {
			return res
		}
	}
}

func same(t *testing.T, what string, got, want result) {
	t.Helper()
	if !slices.Equal(got.messages, want.messages) || !slices.Equal(got.control, want.control) || !errors.Is(got.err, want.err) {
		t.Fatalf("%s:\n got %.200q, control %q, %v\nwant %.200q, control %q, %v",
			what, got.messages, got.control, got.err, want.messages, want.control, want.err)
	}
}

func TestRewriterInEverySplit(t *testing.T) {
	stream := join(
		clientFrame(Binary, true, "hello"),
		clientFrame(Binary, true, ""),
		clientFrame(Text, false, ""),
		clientFrame(Continuation, false, "ab"),
		clientFrame(Ping, true, "in between"),
		clientFrame(Continuation, true, "c"),
		clientFrame(Pong, true, ""),
		clientFrame(Binary, true, strings.Repeat("long", 33)),
		clientFrame(Text, true, "q"),
		clientFrame(Close, true, "\x03\xE8bye"),
		clientFrame(Binary, true, "ignored"),
	)
	want := result{
		messages: []message{{Binary, "hello"}, {Binary, ""}, {Text, "abc"}, {Binary, strings.Repeat("long", 33)}, {Text, "q"}},
		control:  []message{{Ping, "in between"}, {Pong, ""}, {Close, "\x03\xE8bye"}},
	}
	same(t, "the model", model(stream), want)
	for i := range stream {
		for j := i; j <= len(stream); j++ {
			w := new(Rewriter)
			same(t, fmt.Sprintf("split at %d and %d", i, j), rewrite(t, w, stream[:i], stream[i:j], stream[j:]), want)
			if !w.Closed() || !w.SawText() || w.Bytes() != int64(len("hello")+3+132+1) {
				t.Fatalf("closed %v, text %v, %d bytes", w.Closed(), w.SawText(), w.Bytes())
			}
		}
	}
	single := make([][]byte, len(stream))
	for i := range stream {
		single[i] = stream[i : i+1]
	}
	same(t, "byte by byte", rewrite(t, new(Rewriter), single...), want)
}

// A chunk is forwarded for what it is: nothing waits for the rest of a frame.
func TestRewriterForwardsAtOnce(t *testing.T) {
	f := clientFrame(Binary, true, strings.Repeat("x", 1<<20))
	for _, size := range []int{1, 100, 4096, 128 << 10} {
		w := new(Rewriter)
		sent := 0
		for c := range slices.Chunk(f[:min(len(f), 1000*size)], size) {
			buf := append(make([]byte, Headroom), c...)
			if _, err := w.Rewrite(buf, Headroom, len(buf), nil); err != nil {
				t.Fatal(err)
			}
			sent += len(c)
			if want := max(0, sent-MaxHeaderBytes); w.Bytes() != int64(want) {
				t.Fatalf("%d bytes of payload came in chunks of %d, %d were forwarded", want, size, w.Bytes())
			}
		}
	}
}

func TestRewriterForwardsWhatCameBeforeAnError(t *testing.T) {
	good := join(clientFrame(Binary, true, "first"), clientFrame(Text, false, "second"))
	for _, c := range []struct {
		name string
		bad  []byte
		want error
	}{
		{"unmasked", AppendFrame(nil, Binary, []byte("x")), ErrUnmasked},
		{"unmasked, long form", AppendHeader(nil, Header{Op: Binary, Length: 1 << 33}), ErrUnmasked},
		{"interleaved", clientFrame(Text, true, ""), ErrInterleaved},
		{"reserved", []byte{0xC0, 0x80}, ErrReserved},
		{"opcode", []byte{0x84, 0x80}, ErrOpcode},
		{"2^63", []byte{0x80, 0xFF, 0xFF, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, ErrLength},
	} {
		stream := join(good, c.bad)
		want := result{messages: []message{{Binary, "first"}, {Continuation, "second"}}, err: c.want}
		same(t, c.name+", the model", model(stream), want)
		for split := range stream {
			same(t, fmt.Sprintf("%s, split at %d", c.name, split), rewrite(t, new(Rewriter), stream[:split], stream[split:]), want)
		}
	}
	if got := rewrite(t, new(Rewriter), clientFrame(Continuation, true, "x")); !errors.Is(got.err, ErrContinuation) {
		t.Errorf("continuation first: %v", got.err)
	}
}

func TestRewriterAllocatesNothing(t *testing.T) {
	stream := join(clientFrame(Binary, true, strings.Repeat("x", 3000)), clientFrame(Ping, true, "p"), clientFrame(Text, true, "y"))
	w := new(Rewriter)
	buf := make([]byte, Headroom+len(stream))
	control := func(Opcode, []byte) {}
	if got := testing.AllocsPerRun(100, func() {
		copy(buf[Headroom:], stream)
		if _, err := w.Rewrite(buf, Headroom, len(buf), control); err != nil {
			t.Fatal(err)
		}
	}); got != 0 {
		t.Errorf("%v allocations", got)
	}
}

// randomStream is a stream of frames in legal order.
func randomStream(rnd *rand.Rand, n int) []byte {
	var b []byte
	inMessage := false
	for range n {
		size := rnd.IntN(1 + rnd.IntN(1+rnd.IntN(3000)))
		payload := strings.Repeat(string(rune('a'+rnd.IntN(26))), size)
		switch k := rnd.IntN(10); {
		case k == 0:
			b = append(b, clientFrame(Ping, true, payload[:min(size, 125)])...)
		case k == 1:
			b = append(b, clientFrame(Pong, true, payload[:min(size, 125)])...)
		default:
			op := Continuation
			if !inMessage {
				op = Text + Opcode(rnd.IntN(2))
			}
			inMessage = k < 5
			b = append(b, clientFrame(op, !inMessage, payload)...)
		}
	}
	return b
}

func TestRewriterOnRandomStreams(t *testing.T) {
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		stream := randomStream(rnd, 40)
		want := model(stream)
		same(t, fmt.Sprint("seed ", seed), rewrite(t, new(Rewriter), cut(stream, seed)...), want)
		var large [][]byte
		for c := range slices.Chunk(stream, 1+rnd.IntN(8000)) {
			large = append(large, c)
		}
		same(t, fmt.Sprint("seed ", seed, " in large chunks"), rewrite(t, new(Rewriter), large...), want)
	}
}

func FuzzRewriter(f *testing.F) {
	for seed := range uint64(5) {
		f.Add(randomStream(rand.New(rand.NewPCG(seed, 2)), 8), seed)
	}
	f.Add([]byte{0x82, 0xFE, 0, 1, 1, 2, 3, 4, 5}, uint64(7)) // a length in a longer form than it needs
	f.Add([]byte{0x82, 0xFF, 0, 0, 0, 0, 0, 0, 0, 2, 1, 2, 3, 4, 5, 6}, uint64(8))
	f.Fuzz(func(t *testing.T, stream []byte, seed uint64) {
		want := model(stream)
		same(t, "at once", rewrite(t, new(Rewriter), stream), want)
		same(t, "in pieces", rewrite(t, new(Rewriter), cut(stream, seed)...), want)
	})
}

func BenchmarkUnmask(b *testing.B) {
	for _, size := range []int{16, 64, 512, 1024, 4 << 10, 32 << 10, 128 << 10} {
		buf := make([]byte, size+8)
		for _, shift := range []int{0, 4} {
			b.Run(fmt.Sprintf("%d/shift=%d", size, shift), func(b *testing.B) {
				b.SetBytes(int64(size))
				for b.Loop() {
					unmask(buf[:size], buf[shift:shift+size], 0x12345678)
				}
			})
		}
	}
}

func BenchmarkRewrite(b *testing.B) {
	for _, size := range []int{64, 512, 4 << 10, 32 << 10, 256 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			var stream []byte
			f := clientFrame(Binary, true, strings.Repeat("x", size))
			for len(stream) < 128<<10 {
				stream = append(stream, f...)
			}
			stream = stream[:128<<10]
			buf := make([]byte, Headroom+len(stream))
			b.SetBytes(int64(len(stream)))
			for b.Loop() {
				copy(buf[Headroom:], stream)
				if _, err := new(Rewriter).Rewrite(buf, Headroom, len(buf), nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
