package sock

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast/internal/memnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func tcpPair(t *testing.T) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if b, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

func pairs(t *testing.T, f func(t *testing.T, a, b net.Conn)) {
	t.Run("TCP", func(t *testing.T) {
		a, b := tcpPair(t)
		f(t, a, b)
	})
	t.Run("memnet", func(t *testing.T) {
		a, b := memnet.Pipe()
		defer a.Close()
		defer b.Close()
		f(t, a, b)
	})
}

func TestReaderReadsEverythingAndThenTheEnd(t *testing.T) {
	pairs(t, func(t *testing.T, a, b net.Conn) {
		want := make([]byte, 3*ChunkBytes+17)
		rand.Read(want)
		go func() {
			a.Write(want[:5])
			a.Write(want[5:])
			a.Close()
		}()
		var got []byte
		r := NewReader(b)
		for {
			c, n, err := r.Read()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if n < 1 || n > ChunkBytes {
				t.Fatalf("%d bytes in a chunk", n)
			}
			got = append(got, c.Buf[Headroom:Headroom+n]...)
			c.Release()
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("%d bytes came of %d, or others", len(got), len(want))
		}
	})
}

func TestReaderEndsByDeadlineAndByClose(t *testing.T) {
	pairs(t, func(t *testing.T, a, b net.Conn) {
		r := NewReader(b)
		b.SetReadDeadline(time.Now().Add(time.Millisecond))
		if _, _, err := r.Read(); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("after the deadline: %v", err)
		}
		b.SetReadDeadline(time.Time{})
		go a.Write([]byte("x"))
		c, n, err := r.Read()
		if n != 1 || err != nil || c.Buf[Headroom] != 'x' {
			t.Fatalf("after a deadline that passed: %d, %v", n, err)
		}
		c.Release()
		time.AfterFunc(time.Millisecond, func() { b.Close() })
		if _, _, err := r.Read(); !errors.Is(err, net.ErrClosed) {
			t.Fatalf("after close: %v", err)
		}
	})
}
