package frame

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/gobwas/ws"
)

// clientFrame encodes a masked frame with gobwas/ws, so that encoder and parser
// are not both ours.
func clientFrame(op Opcode, fin bool, payload string) []byte {
	var b bytes.Buffer
	f := ws.MaskFrameWith(ws.NewFrame(ws.OpCode(op), fin, []byte(payload)), [4]byte{0x37, 0xFA, 0x21, 0x3D})
	if err := ws.WriteFrame(&b, f); err != nil {
		panic(err)
	}
	return b.Bytes()
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

func TestHeadersAgainstGobwas(t *testing.T) {
	for _, length := range []int64{0, 1, 125, 126, 127, 0xFFFF, 0x10000, 1 << 40, 1<<63 - 1} {
		for _, masked := range []bool{false, true} {
			for _, fin := range []bool{false, true} {
				h := Header{Fin: fin, Op: Binary, Masked: masked, Length: length}
				if masked {
					h.Mask = [4]byte{1, 2, 3, 4}
				}
				b := AppendHeader(nil, h)
				if len(b) != headerBytes(h) {
					t.Errorf("%+v has %d bytes, headerBytes says %d", h, len(b), headerBytes(h))
				}
				want, err := ws.ReadHeader(bytes.NewReader(b))
				if err != nil || want.Length != length || want.Masked != masked || want.Fin != fin || want.Mask != h.Mask {
					t.Errorf("gobwas reads %+v as %+v, %v", h, want, err)
				}
				for cut := range b {
					if _, n, err := ParseHeader(b[:cut]); n != 0 || err != nil {
						t.Errorf("%+v cut at %d: n = %d, %v", h, cut, n, err)
					}
				}
				got, n, err := ParseHeader(append(b, "payload"...))
				if got != h || n != len(b) || err != nil {
					t.Errorf("%+v parsed as %+v, %d, %v", h, got, n, err)
				}
			}
		}
	}
}

func TestHeaderErrorsComeWithTheFirstByteThatShowsThem(t *testing.T) {
	for _, c := range []struct {
		bytes []byte
		want  error
	}{
		{[]byte{0xC1}, ErrReserved},
		{[]byte{0xA1}, ErrReserved},
		{[]byte{0x91}, ErrReserved},
		{[]byte{0x83}, ErrOpcode},
		{[]byte{0x87}, ErrOpcode},
		{[]byte{0x8B}, ErrOpcode},
		{[]byte{0x8F}, ErrOpcode},
		{[]byte{0x08}, ErrFragmentedControl},
		{[]byte{0x09}, ErrFragmentedControl},
		{[]byte{0x88, 0xFE}, ErrLongControl},
		{[]byte{0x89, 0xFF}, ErrLongControl},
		{[]byte{0x82, 0xFF, 0x80}, ErrLength},
	} {
		for cut := range c.bytes {
			if _, n, err := ParseHeader(c.bytes[:cut]); n != 0 || err != nil {
				t.Errorf("% x cut at %d: n = %d, %v", c.bytes, cut, n, err)
			}
		}
		if _, _, err := ParseHeader(c.bytes); !errors.Is(err, c.want) {
			t.Errorf("% x: error %v, want %v", c.bytes, err, c.want)
		}
		if CodeOf(c.want) != 1002 {
			t.Errorf("%v has code %d", c.want, CodeOf(c.want))
		}
	}
	if CodeOf(errors.New("other")) != 1011 || CodeOf(fmt.Errorf("read: %w", ErrTooBig)) != 1009 {
		t.Error("CodeOf does not unwrap")
	}
}

func TestClose(t *testing.T) {
	for _, c := range []struct {
		payload string
		code    uint16
		reason  string
		err     error
	}{
		{"", 1005, "", nil},
		{"\x03", 0, "", ErrClosePayload},
		{"\x03\xE8", 1000, "", nil},
		{"\x03\xE8bye", 1000, "bye", nil},
		{"\x0F\xA1\x07", 4001, "\x07", nil},
		{"\x03\xE7", 0, "", ErrCloseCode},
		{"\x03\xEC", 0, "", ErrCloseCode}, // 1004
		{"\x03\xED", 0, "", ErrCloseCode}, // 1005
		{"\x03\xEE", 0, "", ErrCloseCode}, // 1006
		{"\x03\xEF", 1007, "", nil},
		{"\x03\xF6", 1014, "", nil},
		{"\x03\xF7", 0, "", ErrCloseCode}, // 1015
		{"\x0B\xB7", 0, "", ErrCloseCode}, // 2999
		{"\x0B\xB8", 3000, "", nil},
		{"\x13\x87", 4999, "", nil},
		{"\x13\x88", 0, "", ErrCloseCode}, // 5000
		{"\x03\xE8\xFF", 0, "", ErrCloseReason},
		{"\x03\xE8\xE2\x82", 0, "", ErrCloseReason},
	} {
		code, reason, err := ParseClose([]byte(c.payload))
		if code != c.code || reason != c.reason || !errors.Is(err, c.err) {
			t.Errorf("ParseClose(%q) = %d, %q, %v", c.payload, code, reason, err)
		}
	}
	if CodeOf(ErrCloseReason) != 1007 {
		t.Error("a reason that is not UTF-8 is 1007")
	}
	long := strings.Repeat("é", 100)
	for _, c := range []struct {
		code         uint16
		reason, want string
	}{
		{1000, "", "\x88\x02\x03\xE8"},
		{1005, "dropped", "\x88\x00"},
		{1006, "", "\x88\x00"},
		{4409, "x", "\x88\x03\x11\x39x"},
		{4000, long, "\x88\x7C\x0F\xA0" + long[:122]},
	} {
		if got := AppendClose(nil, c.code, c.reason); string(got) != c.want {
			t.Errorf("AppendClose(%d, %.10q…) = %x, want %x", c.code, c.reason, got, c.want)
		}
	}
}

func FuzzCutReason(f *testing.F) {
	f.Add("plain")
	f.Add(strings.Repeat("é", 62))
	f.Add(strings.Repeat("x", 122) + "\U0001F600")
	f.Add(strings.Repeat("\xff", 2000) + "end")
	f.Fuzz(func(t *testing.T, s string) {
		got := CutReason(s)
		if len(got) > MaxReasonBytes || !utf8.ValidString(got) {
			t.Fatalf("%q became %d bytes, %q", s, len(got), got)
		}
		if utf8.ValidString(s) {
			if !strings.HasPrefix(s, got) {
				t.Fatalf("%q is no start of %q", got, s)
			}
			if len(s) > len(got) && len(got) < MaxReasonBytes-utf8.UTFMax+1 {
				t.Fatalf("%d bytes kept of %d", len(got), len(s))
			}
		}
		if _, _, err := ParseClose(AppendClose(nil, 1000, s)[2:]); err != nil {
			t.Fatal(err)
		}
	})
}

func TestMaskAtEveryLengthPositionAndShift(t *testing.T) {
	key := [4]byte{0x12, 0x34, 0x56, 0x78}
	src := make([]byte, 3*maskBlock+maskLong)
	for i := range src {
		src[i] = byte(rand.Uint32())
	}
	lengths := []int{maskLong - 1, maskLong, maskLong + 1, 2*maskBlock + 3, 3*maskBlock + maskLong - 16}
	for n := range 100 {
		lengths = append(lengths, n)
	}
	for _, n := range lengths {
		for pos := range int64(5) {
			for _, shift := range []int{0, 1, 4, 8, 12, 31} {
				buf := append(make([]byte, shift), src[:n]...)
				unmask(buf[:n], buf[shift:], rotate(binary.LittleEndian.Uint32(key[:]), pos))
				for i := range n {
					if want := src[i] ^ key[(pos+int64(i))%4]; buf[i] != want {
						t.Fatalf("length %d, position %d, shift %d: byte %d is %x, want %x", n, pos, shift, i, buf[i], want)
					}
				}
			}
		}
	}
	got := bytes.Clone(src)
	Mask(key, 3, got)
	ws.Cipher(got, key, 3)
	if !bytes.Equal(got, src) {
		t.Error("Mask and ws.Cipher differ")
	}
}

// message is a Message that keeps its payload.
type message struct {
	op      Opcode
	payload string
}

func (m message) String() string { return m.op.String() + " " + m.payload }

// readAll feeds a Reader with chunks and collects what comes out.
func readAll(max int, chunks ...[]byte) (out []message, err error, r *Reader) {
	r = NewReader(max)
	for _, b := range chunks {
		b = bytes.Clone(b)
		for {
			m, n, err := r.Next(b)
			if err != nil {
				return out, err, r
			}
			if m.Op == Continuation {
				break
			}
			out = append(out, message{m.Op, string(m.Payload)})
			b = b[n:]
		}
	}
	return out, nil, r
}

func TestReaderInEverySplit(t *testing.T) {
	stream := join(
		clientFrame(Text, true, "hello"),
		clientFrame(Binary, true, ""),
		clientFrame(Text, false, "a"),
		clientFrame(Ping, true, "p"),
		clientFrame(Continuation, false, ""),
		clientFrame(Pong, true, ""),
		clientFrame(Continuation, true, "bc"),
		clientFrame(Binary, true, strings.Repeat("x", 130)),
		clientFrame(Close, true, "\x03\xE8bye"),
	)
	want := []message{
		{Text, "hello"}, {Binary, ""}, {Ping, "p"}, {Pong, ""}, {Text, "abc"},
		{Binary, strings.Repeat("x", 130)}, {Close, "\x03\xE8bye"},
	}
	check := func(t *testing.T, what string, got []message, err error, r *Reader) {
		t.Helper()
		if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("%s: %q, %v", what, got, err)
		}
		if !r.Idle() || r.Held() != 0 {
			t.Fatalf("%s: idle %v, held %d", what, r.Idle(), r.Held())
		}
	}
	got, err, r := readAll(1000, stream)
	check(t, "at once", got, err, r)
	for i := range stream {
		got, err, r := readAll(1000, stream[:i], stream[i:])
		check(t, fmt.Sprint("split at ", i), got, err, r)
		for j := i; j < len(stream); j += 5 {
			got, err, r := readAll(1000, stream[:i], stream[i:j], stream[j:])
			check(t, fmt.Sprint("split at ", i, " and ", j), got, err, r)
		}
	}
	single := make([][]byte, len(stream))
	for i := range stream {
		single[i] = stream[i : i+1]
	}
	got, err, r = readAll(1000, single...)
	check(t, "byte by byte", got, err, r)
}

func TestReaderRefuses(t *testing.T) {
	header := func(h Header) []byte { return AppendHeader(nil, h) }
	for _, c := range []struct {
		name   string
		stream []byte
		want   error
	}{
		{"unmasked", header(Header{Fin: true, Op: Text, Length: 1}), ErrUnmasked},
		{"unmasked, long form", header(Header{Fin: true, Op: Text, Length: 1 << 20}), ErrUnmasked},
		{"continuation first", clientFrame(Continuation, true, ""), ErrContinuation},
		{"continuation after the end", join(clientFrame(Text, true, "x"), clientFrame(Continuation, true, "")), ErrContinuation},
		{"message inside a message", join(clientFrame(Text, false, "x"), clientFrame(Binary, true, "")), ErrInterleaved},
		{"announced too big", header(Header{Fin: true, Op: Text, Masked: true, Length: 101}), ErrTooBig},
		{"announced enormous", header(Header{Fin: true, Op: Text, Masked: true, Length: 1<<63 - 1}), ErrTooBig},
		{"too big in sum", join(clientFrame(Text, false, strings.Repeat("x", 99)), header(Header{Fin: true, Masked: true, Length: 2})), ErrTooBig},
		{"2^63", []byte{0x82, 0xFF, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, ErrLength},
	} {
		for split := range c.stream {
			if _, err, _ := readAll(100, c.stream[:split], c.stream[split:]); !errors.Is(err, c.want) {
				t.Errorf("%s, split at %d: %v, want %v", c.name, split, err, c.want)
			}
		}
	}
	if _, err, _ := readAll(100, clientFrame(Text, true, strings.Repeat("x", 100))); err != nil {
		t.Errorf("a message of the limit: %v", err)
	}
}

// What is announced and not sent costs nothing, however often it is announced.
func TestReaderAllocatesForBytesOnly(t *testing.T) {
	header := AppendHeader(nil, Header{Fin: true, Op: Binary, Masked: true, Length: 1 << 30})
	r := NewReader(1 << 30)
	if got := testing.AllocsPerRun(10, func() {
		*r = Reader{max: 1 << 30}
		if _, n, err := r.Next(header); n != len(header) || err != nil {
			t.Fatal(n, err)
		}
	}); got != 0 {
		t.Errorf("a header makes %v allocations", got)
	}
	if cap(r.message) != 0 {
		t.Errorf("%d bytes are allocated for an announcement", cap(r.message))
	}
	r = NewReader(4096)
	ping := clientFrame(Text, true, `{"op":"ping"}`)
	b := make([]byte, len(ping))
	if got := testing.AllocsPerRun(100, func() {
		copy(b, ping)
		if m, _, err := r.Next(b); string(m.Payload) != `{"op":"ping"}` || err != nil {
			t.Fatal(m, err)
		}
	}); got != 0 {
		t.Errorf("a heartbeat makes %v allocations", got)
	}
}

// A Reader that takes over from another in the middle of anything goes on as if
// nothing had happened.
func TestAppendHeldAtEverySplit(t *testing.T) {
	stream := join(
		clientFrame(Text, true, "hello"),
		clientFrame(Text, false, ""),
		clientFrame(Ping, true, "ping"),
		clientFrame(Continuation, false, "some"),
		clientFrame(Continuation, true, "thing"),
		clientFrame(Binary, false, strings.Repeat("x", 200)),
		clientFrame(Pong, true, ""),
		clientFrame(Continuation, true, strings.Repeat("y", 130)),
		clientFrame(Close, true, "\x03\xE8"),
	)
	want, err, _ := readAll(1000, stream)
	if err != nil {
		t.Fatal(err)
	}
	for i := range len(stream) + 1 {
		first, err, r := readAll(1000, stream[:i])
		if err != nil {
			t.Fatal(err)
		}
		held := r.AppendHeld(nil)
		if i == 0 && len(held) != 0 {
			t.Fatalf("an idle reader holds %q", held)
		}
		second, err, _ := readAll(1000, held, stream[i:])
		if err != nil || fmt.Sprint(append(first, second...)) != fmt.Sprint(want) {
			t.Fatalf("handed over at %d: %q then %q, %v", i, first, second, err)
		}
	}
}

func FuzzReader(f *testing.F) {
	f.Add(clientFrame(Text, true, "hello"), uint64(1))
	f.Add(join(clientFrame(Text, false, "a"), clientFrame(Ping, true, "p"), clientFrame(Continuation, true, "b")), uint64(2))
	f.Add([]byte{0x88, 0x80, 0, 0, 0, 0}, uint64(3))
	f.Fuzz(func(t *testing.T, stream []byte, seed uint64) {
		const max = 200
		want, wantErr, _ := readAll(max, stream)
		got, err, r := readAll(max, cut(stream, seed)...)
		if fmt.Sprint(got) != fmt.Sprint(want) || !errors.Is(err, wantErr) {
			t.Fatalf("in pieces %q, %v; at once %q, %v", got, err, want, wantErr)
		}
		if r.Held() > max+MaxControlPayload+MaxHeaderBytes {
			t.Fatalf("%d bytes are held", r.Held())
		}
	})
}

// cut splits b at random places that seed decides.
func cut(b []byte, seed uint64) (chunks [][]byte) {
	rnd := rand.New(rand.NewPCG(seed, 0))
	for len(b) > 0 {
		n := min(len(b), 1+rnd.IntN(1+rnd.IntN(64)))
		chunks = append(chunks, b[:n])
		b = b[n:]
	}
	return chunks
}
