package link

import (
	"bytes"
	"io"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"

	"holdfast/internal/frame"
)

// pieces is a reader that gives the sizes it was told, then everything.
type pieces struct {
	data  []byte
	sizes []int
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.data) == 0 {
		return 0, io.EOF
	}
	n := min(len(b), len(p.data))
	if len(p.sizes) > 0 {
		n = min(n, p.sizes[0])
		p.sizes = p.sizes[1:]
	}
	copy(b, p.data[:n])
	p.data = p.data[n:]
	return n, nil
}

// TestInboundChangesNothing: whatever comes, frames or not, however it is cut
// and read, the same bytes go on.
func TestInboundChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var data []byte
		for range rapid.IntRange(0, 12).Draw(t, "frames") {
			op := rapid.SampledFrom([]frame.Opcode{1, 2, 0, 8, 9, 10}).Draw(t, "op")
			limit := 70_000
			if op.IsControl() {
				limit = frame.MaxControlPayload
			}
			data = frame.AppendFrame(data, op, make([]byte, rapid.IntRange(0, limit).Draw(t, "length")))
		}
		data = append(data, rapid.SliceOfN(rapid.Byte(), 0, 50).Draw(t, "garbage")...)
		in := newInbound(&pieces{data, rapid.SliceOfN(rapid.IntRange(1, 5000), 0, 100).Draw(t, "pieces")})
		var got []byte
		for {
			buf := make([]byte, rapid.IntRange(1, 40_000).Draw(t, "buffer"))
			n, err := in.Read(buf)
			got = append(got, buf[:n]...)
			if err != nil {
				if err != io.EOF {
					t.Fatal(err)
				}
				break
			}
		}
		if !bytes.Equal(got, data) {
			t.Fatalf("%d bytes went in, %d came out, or others", len(data), len(got))
		}
	})
}

func TestControlFramesComeWhole(t *testing.T) {
	data := frame.AppendFrame(nil, frame.Ping, []byte("0123456789"))
	data = frame.AppendFrame(data, frame.Binary, []byte("abc"))
	data = frame.AppendFrame(data, frame.Close, frame.AppendClose(nil, 1000, "bye")[2:])
	in := newInbound(iotest.OneByteReader(bytes.NewReader(data)))
	for _, want := range []int{12, 2, 1, 1, 1, 7} {
		n, err := in.Read(make([]byte, 100))
		if n != want || err != nil {
			t.Errorf("read %d, %v, want %d", n, err, want)
		}
	}
}
