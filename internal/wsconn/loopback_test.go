package wsconn

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/coder/websocket"

	"holdfast/internal/wire"
)

// TestOverRealSockets: TCP and TLS of the kernel and the standard library close
// otherwise than memory does.
func TestOverRealSockets(t *testing.T) {
	for name, secure := range map[string]bool{"tcp": false, "tls": true} {
		t.Run(name+", bytes both ways", func(t *testing.T) {
			s := loopbackStream(t, secure, func(c *websocket.Conn) { echo(c, nil) })
			data := make([]byte, 10<<20)
			rand.Read(data)
			var wg sync.WaitGroup
			wg.Go(func() {
				if _, err := s.Write(data); err != nil {
					t.Errorf("write: %v", err)
				}
			})
			got := make([]byte, len(data))
			if n, err := io.ReadFull(s, got); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes came back, or others: %v", n, err)
			}
			wg.Wait()
			s.Close()
		})
		t.Run(name+", our close arrives behind all bytes", func(t *testing.T) {
			type end struct {
				n    int
				code websocket.StatusCode
			}
			ended := make(chan end, 1)
			s := loopbackStream(t, secure, func(c *websocket.Conn) {
				var e end
				for {
					_, b, err := c.Read(context.Background())
					if err != nil {
						e.code = websocket.CloseStatus(err)
						ended <- e
						return
					}
					e.n += len(b)
				}
			})
			if _, err := s.Write(make([]byte, 3<<20)); err != nil {
				t.Fatal(err)
			}
			s.CloseWith(wire.CloseServiceRefused, "because")
			if e := <-ended; e != (end{3 << 20, 4502}) {
				t.Errorf("the peer saw %+v", e)
			}
		})
		t.Run(name+", the peer's close arrives behind all bytes", func(t *testing.T) {
			s := loopbackStream(t, secure, func(c *websocket.Conn) {
				c.Write(context.Background(), websocket.MessageBinary, make([]byte, 3<<20))
				c.Close(4401, "token revoked")
			})
			var c *CloseError
			got, err := io.ReadAll(s)
			if len(got) != 3<<20 || !errors.As(err, &c) || c.Code != wire.CloseUnauthorized {
				t.Errorf("%d bytes, %v", len(got), err)
			}
			s.Close()
		})
		t.Run(name+", a peer that is gone", func(t *testing.T) {
			s := loopbackStream(t, secure, func(c *websocket.Conn) {})
			if _, err := io.ReadAll(s); CloseCodeOf(err) != wire.CloseAbnormal {
				t.Errorf("read: %v", err)
			}
			s.Close()
		})
		t.Run(name+", given up while both sides are busy", func(t *testing.T) {
			s := loopbackStream(t, secure, func(c *websocket.Conn) {
				go drain(c)
				for c.Write(context.Background(), websocket.MessageBinary, make([]byte, 1000)) == nil {
				}
			})
			var wg sync.WaitGroup
			wg.Go(func() { io.Copy(io.Discard, s) })
			wg.Go(func() {
				for {
					if _, err := s.Write(make([]byte, 1000)); err != nil {
						return
					}
				}
			})
			io.ReadFull(s, make([]byte, 100_000))
			s.CloseNow()
			wg.Wait()
			if !errors.Is(s.Err(), ErrClosed) {
				t.Errorf("Err is %v", s.Err())
			}
		})
	}
}

// TestJoinWithARealService joins a stream with a TCP service that ends first.
func TestJoinWithARealService(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var wg sync.WaitGroup
	wg.Go(func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		b := make([]byte, 5)
		io.ReadFull(c, b)
		io.WriteString(c, "bye "+string(b))
	})
	end := make(chan string, 1)
	s := loopbackStream(t, false, func(c *websocket.Conn) {
		c.Write(context.Background(), websocket.MessageBinary, []byte("hello"))
		_, b, err := c.Read(context.Background())
		if err != nil {
			t.Errorf("read: %v", err)
		}
		c.Close(websocket.StatusNormalClosure, "")
		end <- string(b)
	})
	local, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if err := Join(t.Context(), s, local); err != nil {
		t.Errorf("Join: %v", err)
	}
	if got := <-end; got != "bye hello" {
		t.Errorf("the device got %q", got)
	}
	wg.Wait()
}
