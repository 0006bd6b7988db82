package wsconn

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/wire"
	"holdfast/internal/wsconn/link"
)

func TestStreamSendsBinaryOfAtMost32KiB(t *testing.T) {
	data := make([]byte, 300_000)
	rand.Read(data)
	got := make(chan []byte, 1)
	relay := serveWS(t, func(c *websocket.Conn, _ *http.Request) {
		var all []byte
		for len(all) < len(data) {
			typ, b, err := c.Read(context.Background())
			if err != nil {
				t.Errorf("read: %v", err)
				break
			}
			if typ != websocket.MessageBinary || len(b) > wire.MaxMessageBytes {
				t.Errorf("got a message of type %v and %d bytes", typ, len(b))
			}
			all = append(all, b...)
		}
		got <- all
	})
	s := relay.stream(t, StreamOptions{})
	if n, err := s.Write(data); n != len(data) || err != nil {
		t.Fatalf("Write: %d, %v", n, err)
	}
	if !bytes.Equal(<-got, data) {
		t.Fatal("what arrived differs from what was sent")
	}
}

// TestLongMessageIsReadInPieces sends one message of 8 MiB in one frame and
// checks that its first bytes are handed on while the rest is not yet sent.
func TestLongMessageIsReadInPieces(t *testing.T) {
	const size = 8 << 20
	data := make([]byte, size)
	rand.Read(data)
	first := make(chan struct{})
	relay := serveRaw(t, wire.SubprotocolV1, func(c net.Conn, br *bufio.Reader) {
		h := []byte{0x82, 127, 0, 0, 0, 0, 0, 0, 0, 0}
		binary.BigEndian.PutUint64(h[2:], size)
		c.Write(h)
		c.Write(data[:100_000])
		<-first
		c.Write(data[100_000:])
		readFrame(br) // until the close
	})
	s := relay.stream(t, StreamOptions{})
	buf := make([]byte, 50_000)
	if _, err := io.ReadFull(s, buf); err != nil {
		t.Fatal(err)
	}
	close(first)
	rest := make([]byte, size-len(buf))
	if _, err := io.ReadFull(s, rest); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(append(buf, rest...), data) {
		t.Fatal("what arrived differs from what was sent")
	}
}

func TestEveryPairingOfBase64AndBinary(t *testing.T) {
	const hello, answer = "SSH-2.0-device\r\n", "SSH-2.0-machine\r\n"
	b64 := base64.StdEncoding.EncodeToString
	tests := []struct {
		name string
		side Side
		peer websocket.MessageType // what the other end speaks
		// want is the type of our message before and after the peer's first one.
		before, after websocket.MessageType
	}{
		{"device, agent in binary", DeviceSide, websocket.MessageBinary, websocket.MessageBinary, websocket.MessageBinary},
		{"device, agent in text", DeviceSide, websocket.MessageText, websocket.MessageBinary, websocket.MessageBinary},
		{"agent, device in binary", AgentSide, websocket.MessageBinary, websocket.MessageText, websocket.MessageBinary},
		{"agent, device in text", AgentSide, websocket.MessageText, websocket.MessageText, websocket.MessageText},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			expect := func(c *websocket.Conn, want websocket.MessageType, text string) {
				typ, b, err := c.Read(context.Background())
				if err != nil {
					t.Errorf("read: %v", err)
					return
				}
				if typ == websocket.MessageText {
					if b, err = base64.StdEncoding.DecodeString(string(b)); err != nil {
						t.Errorf("text is not base64: %v", err)
					}
				}
				if typ != want || string(b) != text {
					t.Errorf("got type %v and %q, want type %v and %q", typ, b, want, text)
				}
			}
			relay := serveWS(t, func(c *websocket.Conn, _ *http.Request) {
				expect(c, tt.before, hello)
				payload := answer
				if tt.peer == websocket.MessageText {
					payload = b64([]byte(answer))
					c.Write(context.Background(), websocket.MessageText, nil) // ignored
				}
				c.Write(context.Background(), tt.peer, []byte(payload))
				expect(c, tt.after, hello)
				c.Close(websocket.StatusNormalClosure, "")
			})
			s := relay.stream(t, StreamOptions{Side: tt.side, Base64Compat: true})
			io.WriteString(s, hello)
			buf := make([]byte, len(answer))
			if _, err := io.ReadFull(s, buf); err != nil || string(buf) != answer {
				t.Fatalf("got %q, %v", buf, err)
			}
			io.WriteString(s, hello)
			if n, err := s.Read(buf); n != 0 || err != io.EOF {
				t.Fatalf("at the end: %d, %v", n, err)
			}
			if s.TextMode() != (tt.peer == websocket.MessageText) {
				t.Errorf("TextMode is %v", s.TextMode())
			}
		})
	}
}

func TestAgentStaysBinaryAfterOneBinaryFrame(t *testing.T) {
	types := make(chan websocket.MessageType, 10)
	relay := serveWS(t, func(c *websocket.Conn, _ *http.Request) {
		next := func() {
			typ, _, err := c.Read(context.Background())
			if err != nil {
				t.Errorf("read: %v", err)
			}
			types <- typ
		}
		c.Write(context.Background(), websocket.MessageBinary, nil) // empty, and still binary
		c.Write(context.Background(), websocket.MessageText, []byte("AAAA"))
		next()
		c.Write(context.Background(), websocket.MessageText, []byte("AAAA"))
		next()
	})
	s := relay.stream(t, StreamOptions{Side: AgentSide, Base64Compat: true})
	buf := make([]byte, 3)
	for range 2 {
		if _, err := io.ReadFull(s, buf); err != nil {
			t.Fatal(err)
		}
		s.Write([]byte("x"))
		if typ := <-types; typ != websocket.MessageBinary {
			t.Fatalf("answered with type %v", typ)
		}
	}
}

func TestLongTextIsCutForTheOlderPeer(t *testing.T) {
	data := make([]byte, 100_000)
	rand.Read(data)
	relay := serveWS(t, func(c *websocket.Conn, _ *http.Request) {
		for {
			typ, b, err := c.Read(context.Background())
			if err != nil {
				return
			}
			if typ != websocket.MessageText || len(b) > wire.MaxMessageBytes {
				t.Errorf("got type %v, %d bytes", typ, len(b))
			}
			c.Write(context.Background(), typ, b)
		}
	})
	s := relay.stream(t, StreamOptions{Side: AgentSide, Base64Compat: true})
	go s.Write(data)
	got := make([]byte, len(data))
	if _, err := io.ReadFull(s, got); err != nil || !bytes.Equal(got, data) {
		t.Fatalf("what came back differs: %v", err)
	}
}

func TestBadTextEndsTheStreamWith1007(t *testing.T) {
	for name, text := range map[string]string{
		"not base64": "hello world", "no padding": "QQ", "trailing bits": "QR==", "url alphabet": "-_-_",
	} {
		t.Run(name, func(t *testing.T) {
			code := make(chan websocket.StatusCode, 1)
			relay := serveWS(t, func(c *websocket.Conn, _ *http.Request) {
				c.Write(context.Background(), websocket.MessageText, []byte("QUJD"))
				c.Write(context.Background(), websocket.MessageText, []byte(text))
				for {
					if _, _, err := c.Read(context.Background()); err != nil {
						code <- websocket.CloseStatus(err)
						return
					}
				}
			})
			s := relay.stream(t, StreamOptions{Base64Compat: true})
			got, err := io.ReadAll(s)
			if !strings.HasPrefix(string(got), "ABC") || !errors.Is(err, ErrBadText) {
				t.Errorf("read %q, %v", got, err)
			}
			if c := <-code; c != 1007 {
				t.Errorf("the peer saw %v", c)
			}
		})
	}
}

func TestTextIsRefusedWhereOlderPeersCannotBe(t *testing.T) {
	code := make(chan websocket.StatusCode, 1)
	relay := serveWS(t, func(c *websocket.Conn, _ *http.Request) {
		c.Write(context.Background(), websocket.MessageText, []byte("QUJD"))
		_, _, err := c.Read(context.Background())
		code <- websocket.CloseStatus(err)
	})
	s := relay.stream(t, StreamOptions{})
	if _, err := io.ReadAll(s); CloseCodeOf(err) != wire.CloseUnsupported {
		t.Errorf("read: %v", err)
	}
	if c := <-code; c != 1003 {
		t.Errorf("the peer saw %v", c)
	}
}

func TestCloseCodesReachTheReader(t *testing.T) {
	tests := []struct {
		code websocket.StatusCode
		eof  bool
	}{{1000, true}, {1001, false}, {1012, false}, {4401, false}, {4502, false}}
	for _, tt := range tests {
		relay := serveWS(t, func(c *websocket.Conn, _ *http.Request) {
			c.Write(context.Background(), websocket.MessageBinary, []byte("last words"))
			c.Close(tt.code, "why \u202eso")
		})
		s := relay.stream(t, StreamOptions{})
		got, err := io.ReadAll(s)
		if string(got) != "last words" || (err == nil) != tt.eof {
			t.Errorf("%d: read %q, %v", tt.code, got, err)
		}
		var c *CloseError
		if !errors.As(s.Err(), &c) || c.Code != wire.CloseCode(tt.code) || c.Reason != "why so" {
			t.Errorf("%d: Err is %v", tt.code, s.Err())
		}
		if _, err := s.Write([]byte("x")); !errors.As(err, &c) {
			t.Errorf("%d: Write after the end: %v", tt.code, err)
		}
	}
}

func TestAConnectionThatBreaksIs1006(t *testing.T) {
	relay := serveWS(t, func(c *websocket.Conn, _ *http.Request) {
		c.Write(context.Background(), websocket.MessageBinary, []byte("last words"))
	})
	s := relay.stream(t, StreamOptions{})
	got, err := io.ReadAll(s)
	if string(got) != "last words" || CloseCodeOf(err) != wire.CloseAbnormal {
		t.Errorf("read %q, %v", got, err)
	}
}

func TestCloseSendsWhatWaitsAnd1000(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789"), 20_000)
	type end struct {
		bytes int
		code  websocket.StatusCode
	}
	ended := make(chan end, 1)
	relay := serveWS(t, func(c *websocket.Conn, _ *http.Request) {
		var e end
		for {
			_, b, err := c.Read(context.Background())
			if err != nil {
				e.code = websocket.CloseStatus(err)
				ended <- e
				return
			}
			e.bytes += len(b)
		}
	})
	s := relay.stream(t, StreamOptions{})
	s.Write(data)
	s.Close()
	if e := <-ended; e != (end{len(data), 1000}) {
		t.Errorf("the peer saw %+v", e)
	}
	if _, err := s.Read(make([]byte, 1)); !errors.Is(err, ErrClosed) {
		t.Errorf("Read after Close: %v", err)
	}
	s.Close() // again does nothing
}

func TestCloseWaitsTwoSecondsForAMutePeer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		quit := make(chan struct{})
		relay := serveRaw(t, wire.SubprotocolV1, func(net.Conn, *bufio.Reader) { <-quit })
		s := relay.stream(t, StreamOptions{})
		s.Write([]byte("x"))
		start := time.Now()
		s.Close()
		within(t, "Close", time.Since(start), wire.DrainTimeout)
		close(quit)
	})
}

func TestCloseGivesUpAPeerThatTakesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		quit := make(chan struct{})
		relay := serveRaw(t, wire.SubprotocolV1, func(net.Conn, *bufio.Reader) { <-quit })
		s := relay.stream(t, StreamOptions{})
		go s.Write(make([]byte, 1<<20))
		synctest.Wait()
		start := time.Now()
		s.Close()
		within(t, "Close", time.Since(start), link.FlushTimeout+wire.DrainTimeout)
		close(quit)
	})
}

func TestCloseSoonReturnsWithin4s(t *testing.T) {
	bubble(t, func(t *testing.T) {
		quit := make(chan struct{})
		relay := serveRaw(t, wire.SubprotocolV1, func(net.Conn, *bufio.Reader) { <-quit })
		s := relay.stream(t, StreamOptions{})
		go s.Write(make([]byte, 1<<20))
		synctest.Wait()
		start := time.Now()
		s.CloseSoon(wire.CloseGoingAway, "agent stops")
		within(t, "CloseSoon", time.Since(start), 2*wire.DrainTimeout)
		close(quit)
	})
}

// TestNothingIsReadAfterClose: bytes that come while the close is answered are
// nobody's.
func TestNothingIsReadAfterClose(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := serveRaw(t, wire.SubprotocolV1, func(c net.Conn, br *bufio.Reader) {
			for {
				op, _, err := readFrame(br)
				if err != nil {
					return
				}
				if op == 8 {
					c.Write([]byte{0x82, 1, 'x'})
					time.Sleep(time.Second)
					c.Write([]byte{0x88, 2, 3, 0xe8})
				}
			}
		})
		s := relay.stream(t, StreamOptions{})
		read := make(chan error, 1)
		go func() {
			n, err := s.Read(make([]byte, 1))
			if n != 0 {
				t.Error("a byte was read")
			}
			read <- err
		}()
		synctest.Wait()
		s.Close()
		if err := <-read; !errors.Is(err, ErrClosed) {
			t.Errorf("Read: %v", err)
		}
		if _, err := s.Write([]byte("x")); !errors.Is(err, ErrClosed) {
			t.Errorf("Write: %v", err)
		}
	})
}

// TestCloseAnswersThePeerBehindABulkOfData checks that a close frame of the
// peer does not cost what was already accepted for sending.
func TestCloseAnswersThePeerBehindABulkOfData(t *testing.T) {
	bubble(t, func(t *testing.T) {
		got := make(chan int, 1)
		var wrote atomic.Int64
		relay := serveRaw(t, wire.SubprotocolV1, func(c net.Conn, br *bufio.Reader) {
			time.Sleep(time.Second) // let the writer fill everything on the way
			c.Write([]byte{0x88, 2, 0x03, 0xe8})
			total := 0
			for {
				op, b, err := readFrame(br)
				if err != nil || op == 8 {
					break
				}
				total += len(b)
			}
			got <- total
		})
		s := relay.stream(t, StreamOptions{})
		go func() {
			for {
				n, err := s.Write(make([]byte, 1000))
				wrote.Add(int64(n))
				if err != nil {
					return
				}
			}
		}()
		io.ReadAll(s)
		total := <-got
		s.Close()
		synctest.Wait()
		if total == 0 || int64(total) != wrote.Load() {
			t.Errorf("the peer got %d bytes of %d", total, wrote.Load())
		}
	})
}

func TestReadDeadlineEndsTheStream(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := serveWS(t, echo)
		s := relay.stream(t, StreamOptions{})
		s.SetReadDeadline(time.Now().Add(3 * time.Second))
		s.SetReadDeadline(time.Time{})
		s.Write([]byte("x"))
		buf := make([]byte, 10)
		if n, err := s.Read(buf); n != 1 || err != nil {
			t.Fatalf("read: %d, %v", n, err)
		}
		s.SetReadDeadline(time.Now().Add(3 * time.Second))
		start := time.Now()
		if _, err := s.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read: %v", err)
		}
		within(t, "Read", time.Since(start), 3*time.Second)
	})
}

func TestWriteDeadlineLeavesTheStreamUsable(t *testing.T) {
	bubble(t, func(t *testing.T) {
		read := make(chan struct{})
		relay := serveRaw(t, wire.SubprotocolV1, func(c net.Conn, br *bufio.Reader) {
			<-read
			io.Copy(io.Discard, br)
		})
		s := relay.stream(t, StreamOptions{})
		s.SetWriteDeadline(time.Now().Add(3 * time.Second))
		start := time.Now()
		n, err := s.Write(make([]byte, 1<<20))
		if !errors.Is(err, os.ErrDeadlineExceeded) || n <= 0 {
			t.Errorf("write: %d, %v", n, err)
		}
		within(t, "Write", time.Since(start), 3*time.Second)
		s.SetWriteDeadline(time.Time{})
		close(read)
		if _, err := s.Write([]byte("x")); err != nil {
			t.Errorf("write after the deadline: %v", err)
		}
		s.CloseNow()
	})
}

// TestStreamHoldsAFixedNumberOfBytes checks that a peer that reads nothing
// makes the writer wait instead of filling memory.
func TestStreamHoldsAFixedNumberOfBytes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		quit := make(chan struct{})
		relay := serveRaw(t, wire.SubprotocolV1, func(net.Conn, *bufio.Reader) { <-quit })
		s := relay.stream(t, StreamOptions{})
		var wrote atomic.Int64
		go func() {
			for {
				n, err := s.Write(make([]byte, 10_000))
				wrote.Add(int64(n))
				if err != nil {
					return
				}
			}
		}()
		synctest.Wait()
		// memnet holds 64 KiB, the link two buffers.
		if n := wrote.Load(); n > 64<<10+2*link.BufferBytes {
			t.Errorf("%d bytes were taken", n)
		}
		close(quit)
		s.CloseNow()
	})
}
