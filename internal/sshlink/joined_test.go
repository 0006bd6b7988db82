package sshlink

import (
	"bytes"
	"errors"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// notedConn notes every write.
type notedConn struct {
	net.Conn
	fail error

	// mu guards the fields below.
	mu     sync.Mutex
	writes [][]byte
	closed bool
}

func (n *notedConn) Write(p []byte) (int, error) {
	if n.fail != nil {
		return 0, n.fail
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.writes = append(n.writes, bytes.Clone(p))
	return len(p), nil
}

func (n *notedConn) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	return nil
}

func (n *notedConn) lengths() (out []int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, w := range n.writes {
		out = append(out, len(w))
	}
	return out
}

func TestJoinedWritesOnePacketAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		under := &notedConn{}
		c := Joined(under)
		var want []byte
		write := func(n int) {
			p := make([]byte, n)
			for i := range p {
				p[i] = byte(len(want) + i*7)
			}
			want = append(want, p...)
			if got, err := c.Write(p); got != n || err != nil {
				t.Fatalf("Write(%d) = %d, %v", n, got, err)
			}
		}
		for _, n := range []int{16, bufferBytes, 28000, 4095, bufferBytes, 1, bufferBytes, bufferBytes, 32 << 10} {
			write(n)
		}
		wantLengths := []int{16, bufferBytes + 28000, 4095, bufferBytes + 1, 2 * bufferBytes, 32 << 10}
		if got := under.lengths(); !slices.Equal(got, wantLengths) {
			t.Errorf("written in pieces of %v, want %v", got, wantLengths)
		}
		// What nothing follows goes out by itself, and once.
		write(bufferBytes)
		before := len(under.lengths())
		time.Sleep(heldFor + time.Nanosecond)
		synctest.Wait()
		if after := len(under.lengths()); after != before+1 {
			t.Errorf("%d writes after the wait, want one", after-before)
		}
		write(5)
		c.Close()
		if got := bytes.Join(under.writes, nil); !bytes.Equal(got, want) {
			t.Error("other bytes were written than were given")
		}
	})
}

func TestJoinedTellsOfAWriteThatNobodyWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		c := Joined(&notedConn{fail: broken})
		if _, err := c.Write(make([]byte, bufferBytes)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(heldFor + time.Nanosecond)
		synctest.Wait()
		if n, err := c.Write([]byte{1}); n != 0 || !errors.Is(err, broken) {
			t.Errorf("the next write: %d, %v", n, err)
		}
		under := &notedConn{fail: broken}
		c = Joined(under)
		c.Write(make([]byte, bufferBytes))
		if n, err := c.Write([]byte{1}); n != 0 || !errors.Is(err, broken) {
			t.Errorf("the second half: %d, %v", n, err)
		}
		c.Close()
		if _, err := c.Write([]byte{1}); !errors.Is(err, net.ErrClosed) || !under.closed {
			t.Errorf("after Close: %v, closed %v", err, under.closed)
		}
	})
}
