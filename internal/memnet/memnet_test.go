package memnet

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// connect returns both ends of one connection through a listener.
func connect(t *testing.T, n *Net) (client, server net.Conn) {
	t.Helper()
	l, err := n.Listen("relay:443")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err = n.Dial(context.Background(), "relay:443")
	if err != nil {
		t.Fatal(err)
	}
	server, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return client, server
}

func TestBytesCrossBothWays(t *testing.T) {
	client, server := connect(t, New())
	defer client.Close()
	defer server.Close()
	big := bytes.Repeat([]byte("0123456789abcdef"), 64<<10) // 1 MiB: many buffers full
	var wg sync.WaitGroup
	for _, dir := range [][2]net.Conn{{client, server}, {server, client}} {
		wg.Go(func() {
			if n, err := dir[0].Write(big); n != len(big) || err != nil {
				t.Errorf("write: %d, %v", n, err)
			}
		})
		wg.Go(func() {
			got := make([]byte, len(big))
			if _, err := io.ReadFull(dir[1], got); err != nil || !bytes.Equal(got, big) {
				t.Errorf("read: equal %v, %v", bytes.Equal(got, big), err)
			}
		})
	}
	wg.Wait()
}

func TestAFullBufferBlocksTheWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := Pipe()
		defer b.Close()
		var took int
		done := make(chan struct{})
		go func() { // ends when b closes
			defer close(done)
			took, _ = a.Write(make([]byte, 3*bufferBytes))
		}()
		synctest.Wait()
		if got := len(b.in.buf); got != bufferBytes {
			t.Errorf("the buffer holds %d bytes, want %d", got, bufferBytes)
		}
		if _, err := io.ReadFull(b, make([]byte, bufferBytes)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		b.Close()
		<-done
		if took != 2*bufferBytes {
			t.Errorf("the writer got rid of %d bytes, want %d", took, 2*bufferBytes)
		}
	})
}

func TestDeadlinesAreExactInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := Pipe()
		defer a.Close()
		defer b.Close()
		start := time.Now()
		a.SetReadDeadline(start.Add(90 * time.Minute))
		_, err := a.Read(make([]byte, 1))
		if !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != 90*time.Minute {
			t.Errorf("read: %v after %v", err, time.Since(start))
		}
		var timeout net.Error
		if !errors.As(err, &timeout) || !timeout.Timeout() {
			t.Errorf("%v is no time-out", err)
		}
		// A deadline in the past fails even with bytes there, and removing it
		// makes them readable again.
		b.Write([]byte("x"))
		if _, err := a.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read past the deadline: %v", err)
		}
		a.SetReadDeadline(time.Time{})
		if n, err := a.Read(make([]byte, 1)); n != 1 || err != nil {
			t.Errorf("read without a deadline: %d, %v", n, err)
		}
		start = time.Now()
		a.SetWriteDeadline(start.Add(time.Second))
		n, err := a.Write(make([]byte, bufferBytes+1))
		if n != bufferBytes || !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("write: %d, %v after %v", n, err, time.Since(start))
		}
		// A deadline set while a read waits ends it.
		errs := make(chan error, 1)
		go func() { // ends by the deadline
			_, err := b.Read(make([]byte, 2*bufferBytes))
			if err == nil {
				_, err = b.Read(make([]byte, 1))
			}
			errs <- err
		}()
		synctest.Wait()
		b.SetDeadline(time.Now())
		if err := <-errs; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read interrupted by a deadline: %v", err)
		}
	})
}

func TestHalfCloseLeavesTheOtherDirection(t *testing.T) {
	a, b := Pipe()
	a.Write([]byte("last"))
	a.CloseWrite()
	if got, err := io.ReadAll(b); string(got) != "last" || err != nil {
		t.Errorf("peer read %q, %v", got, err)
	}
	if _, err := a.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("write after CloseWrite: %v", err)
	}
	b.Write([]byte("answer"))
	b.Close()
	if got, err := io.ReadAll(a); string(got) != "answer" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	a.Close()
	if _, err := a.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("read after Close: %v", err)
	}
	if _, err := a.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("write after Close: %v", err)
	}
	if err := a.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("second Close: %v", err)
	}
}

func TestCloseWithUnreadBytesResets(t *testing.T) {
	a, b := Pipe()
	a.Write([]byte("never read"))
	b.Write([]byte("lost with the reset"))
	b.Close()
	if n, err := a.Read(make([]byte, 8)); n != 0 || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read: %d, %v", n, err)
	}
	a.Close()

	c, d := Pipe()
	d.Write([]byte("x"))
	d.SetLinger(0)
	d.Close()
	if _, err := c.Read(make([]byte, 8)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read after SetLinger(0) and Close: %v", err)
	}
	if _, err := c.Write([]byte("x")); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("write after a reset: %v", err)
	}
}

func TestWriteToAClosedPeerFails(t *testing.T) {
	a, b := Pipe()
	b.Close()
	if _, err := a.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("write: %v", err)
	}
}

func TestDialErrorsAreThoseOfTCP(t *testing.T) {
	n := New()
	if _, err := n.Dial(context.Background(), "nobody:1"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial where nobody listens: %v", err)
	}
	l, err := n.Listen("a:1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.Listen("a:1"); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("listen twice: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := n.Dial(ctx, "a:1"); !errors.Is(err, context.Canceled) {
		t.Errorf("dial with a cancelled context: %v", err)
	}
	waiting, err := n.Dial(context.Background(), "a:1")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept after close: %v", err)
	}
	if _, err := waiting.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a connection left in the backlog: %v", err)
	}
	if _, err := n.Dial(context.Background(), "a:1"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial after close: %v", err)
	}
	if l, err = n.Listen("a:1"); err != nil {
		t.Errorf("the name is not free again: %v", err)
	} else {
		l.Close()
	}
}

func TestAFullBacklogHonoursTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New()
		l, err := n.Listen("a:1")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		for range backlog {
			if _, err := n.Dial(t.Context(), "a:1"); err != nil {
				t.Fatal(err)
			}
		}
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if _, err := n.Dial(ctx, "a:1"); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 3*time.Second {
			t.Errorf("dial: %v after %v", err, time.Since(start))
		}
	})
}

func TestAddresses(t *testing.T) {
	n := New()
	l, err := n.Listen("relay:443")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := n.DialFrom(context.Background(), netip.MustParseAddrPort("198.51.100.7:1234"), "relay:443")
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if got := s.RemoteAddr().String(); got != "198.51.100.7:1234" {
		t.Errorf("the server sees %s", got)
	}
	if got := c.RemoteAddr().String(); got != "relay:443" {
		t.Errorf("the client sees %s", got)
	}
	d, err := n.DialContext(context.Background(), "tcp", "relay:443")
	if err != nil {
		t.Fatal(err)
	}
	if ap, err := netip.ParseAddrPort(d.LocalAddr().String()); err != nil || !ap.Addr().IsLoopback() {
		t.Errorf("the default source is %v, %v", d.LocalAddr(), err)
	}
}
