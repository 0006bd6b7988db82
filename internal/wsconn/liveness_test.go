package wsconn

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/frame"
	"holdfast/internal/liveness"
	"holdfast/internal/wire"
)

// stall reads nothing and says nothing until quit is closed: a path that is
// gone.
func stall(quit chan struct{}) func(net.Conn, *bufio.Reader) {
	return func(net.Conn, *bufio.Reader) { <-quit }
}

func TestDeadPathIsNoticedIn25s(t *testing.T) {
	bubble(t, func(t *testing.T) {
		quit := make(chan struct{})
		relay := serveRaw(t, wire.SubprotocolV1, stall(quit))
		s := relay.stream(t, StreamOptions{})
		start := time.Now()
		_, err := s.Read(make([]byte, 1))
		within(t, "Read", time.Since(start), 25*time.Second)
		if !errors.Is(err, ErrDead) || !errors.Is(s.Err(), ErrDead) {
			t.Errorf("Read: %v, Err: %v", err, s.Err())
		}
		if _, err := s.Write([]byte("x")); !errors.Is(err, ErrDead) {
			t.Errorf("Write: %v", err)
		}
		close(quit)
	})
}

func TestHealthyQuietStreamIsKeptAndPinged(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var pings atomic.Int64
		relay := serveRaw(t, wire.SubprotocolV1, func(c net.Conn, br *bufio.Reader) {
			for {
				op, payload, err := readFrame(br)
				if err != nil {
					return
				}
				if op == 9 {
					pings.Add(1)
					c.Write(append([]byte{0x8a, byte(len(payload))}, payload...))
				}
			}
		})
		s := relay.stream(t, StreamOptions{})
		go s.Read(make([]byte, 1))
		time.Sleep(time.Hour + time.Second)
		if s.Err() != nil || pings.Load() != 3600/15 || s.State() != liveness.Alive {
			t.Errorf("Err %v, %d pings, %v", s.Err(), pings.Load(), s.State())
		}
		s.CloseNow()
	})
}

func TestKeepaliveIsSentAsOftenAsAsked(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var pings atomic.Int64
		relay := serveRaw(t, wire.SubprotocolV1, func(c net.Conn, br *bufio.Reader) {
			for {
				op, payload, err := readFrame(br)
				if err != nil {
					return
				}
				if op == 9 {
					pings.Add(1)
					c.Write(append([]byte{0x8a, byte(len(payload))}, payload...))
				}
			}
		})
		cfg, err := liveness.Data().WithKeepalive(5 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		s := relay.stream(t, StreamOptions{Liveness: &cfg})
		go s.Read(make([]byte, 1))
		time.Sleep(time.Minute + time.Second)
		if pings.Load() != 12 {
			t.Errorf("%d pings in a minute", pings.Load())
		}
		s.CloseNow()
	})
}

// TestAnyByteIsLife sends one message of 1,000 bytes at a byte each 20 s: the
// middle of a frame counts.
func TestAnyByteIsLife(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := serveRaw(t, wire.SubprotocolV1, func(c net.Conn, br *bufio.Reader) {
			go io.Copy(io.Discard, br) // never a pong
			c.Write([]byte{0x82, 126, 1000 >> 8, 1000 & 0xff})
			for range 1000 {
				time.Sleep(20 * time.Second)
				if _, err := c.Write([]byte("x")); err != nil {
					return
				}
			}
			c.Write([]byte{0x88, 2, 3, 0xe8})
			time.Sleep(time.Second)
		})
		s := relay.stream(t, StreamOptions{})
		got, err := io.ReadAll(s)
		if len(got) != 1000 || err != nil {
			t.Errorf("read %d bytes, %v", len(got), err)
		}
	})
}

// TestStoppedReaderIsNotADeadPath: a program under Ctrl-Z reads nothing for an
// hour while the path is healthy; pings go on, and nothing is judged.
func TestStoppedReaderIsNotADeadPath(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var pings, sent atomic.Int64
		relay := serveRaw(t, wire.SubprotocolV1, func(c net.Conn, br *bufio.Reader) {
			go func() {
				frame := append([]byte{0x82, 126, 1000 >> 8, 1000 & 0xff}, make([]byte, 1000)...)
				for {
					if _, err := c.Write(frame); err != nil {
						return
					}
					sent.Add(1000)
				}
			}()
			for {
				op, _, err := readFrame(br)
				if err != nil {
					return
				}
				if op == 9 {
					pings.Add(1) // and no pong gets through behind the data
				}
			}
		})
		s := relay.stream(t, StreamOptions{})
		if _, err := s.Read(make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if s.Err() != nil || pings.Load() < 239 {
			t.Fatalf("after an hour: %v, %d pings", s.Err(), pings.Load())
		}
		before := sent.Load()
		buf := make([]byte, 1<<20)
		if _, err := io.ReadFull(s, buf); err != nil {
			t.Errorf("reading on: %v", err)
		}
		synctest.Wait()
		if sent.Load() <= before {
			t.Error("nothing more came")
		}
		s.CloseNow()
	})
}

// TestReadingOnOverADeadPathIsJudgedAfresh: what happened while nobody read
// does not count, and then the usual time does.
func TestReadingOnOverADeadPathIsJudgedAfresh(t *testing.T) {
	bubble(t, func(t *testing.T) {
		quit := make(chan struct{})
		relay := serveRaw(t, wire.SubprotocolV1, func(c net.Conn, _ *bufio.Reader) {
			c.Write([]byte{0x82, 1, 'x'})
			<-quit
		})
		s := relay.stream(t, StreamOptions{})
		s.Read(make([]byte, 1))
		time.Sleep(time.Hour)
		start := time.Now()
		_, err := s.Read(make([]byte, 1))
		if d := time.Since(start); !errors.Is(err, ErrDead) || d < 10*time.Second || d > 26*time.Second {
			t.Errorf("Read: %v after %v", err, d)
		}
		close(quit)
	})
}

// TestBlockedWriterIsNotADeadPath: the far program is stopped, so the relay has
// stopped reading from us; its pings say that it lives. The pongs that we owe
// must not cost the stream either.
func TestBlockedWriterIsNotADeadPath(t *testing.T) {
	bubble(t, func(t *testing.T) {
		goOn := make(chan struct{})
		var got atomic.Int64
		var pinging sync.WaitGroup
		relay := serveRaw(t, wire.SubprotocolV1, func(c net.Conn, br *bufio.Reader) {
			pinging.Go(func() {
				for {
					time.Sleep(15 * time.Second)
					if _, err := c.Write([]byte{0x89, 4, 'p', 'i', 'n', 'g'}); err != nil {
						return
					}
				}
			})
			<-goOn
			for {
				op, b, err := readFrame(br)
				if err != nil {
					return
				}
				if op == 2 {
					got.Add(int64(len(b)))
				}
			}
		})
		s := relay.stream(t, StreamOptions{})
		go s.Read(make([]byte, 1))
		wrote := make(chan error, 1)
		go func() {
			_, err := s.Write(make([]byte, 1<<20))
			wrote <- err
		}()
		time.Sleep(3 * time.Hour)
		if s.Err() != nil {
			t.Fatalf("after three hours: %v", s.Err())
		}
		close(goOn)
		if err := <-wrote; err != nil {
			t.Errorf("Write: %v", err)
		}
		time.Sleep(time.Second)
		if got.Load() != 1<<20 {
			t.Errorf("%d bytes arrived", got.Load())
		}
		s.CloseNow()
		pinging.Wait()
	})
}

// TestCloseFrameHasRoomBehindABlockedPeer: an hour of pings and pongs has filled
// what is kept for them, and the code is sent all the same.
func TestCloseFrameHasRoomBehindABlockedPeer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		goOn, over := make(chan struct{}), make(chan struct{})
		code := make(chan int, 1)
		var pinging sync.WaitGroup
		relay := serveRaw(t, wire.SubprotocolV1, func(c net.Conn, br *bufio.Reader) {
			pinging.Go(func() {
				for {
					select {
					case <-over:
						return
					case <-time.After(5 * time.Second):
						c.Write(append([]byte{0x89, 125}, make([]byte, 125)...))
					}
				}
			})
			<-goOn
			for {
				op, b, err := readFrame(br)
				if err != nil {
					return
				}
				if op == 8 {
					code <- int(b[0])<<8 | int(b[1])
					return
				}
			}
		})
		s := relay.stream(t, StreamOptions{})
		go s.Read(make([]byte, 1))
		go s.Write(make([]byte, 1<<20))
		time.Sleep(time.Hour)
		if s.Err() != nil {
			t.Fatalf("after an hour: %v", s.Err())
		}
		time.AfterFunc(time.Second, func() { close(goOn) })
		s.CloseWith(wire.CloseUnauthorized, "device revoked")
		if c := <-code; c != 4401 {
			t.Errorf("the peer saw %d", c)
		}
		close(over)
		pinging.Wait()
	})
}

// TestDeadPathUnderABlockedWriter: a relay of version 1 pings what it has
// stopped reading from, so silence is death even while we cannot send.
func TestDeadPathUnderABlockedWriter(t *testing.T) {
	bubble(t, func(t *testing.T) {
		quit := make(chan struct{})
		relay := serveRaw(t, wire.SubprotocolV1, stall(quit))
		s := relay.stream(t, StreamOptions{})
		go s.Read(make([]byte, 1))
		start := time.Now()
		_, err := s.Write(make([]byte, 1<<20))
		within(t, "Write", time.Since(start), 25*time.Second)
		if !errors.Is(err, ErrDead) {
			t.Errorf("Write: %v", err)
		}
		close(quit)
	})
}

// TestOlderRelayUnderABlockedWriterIsNotJudged: it does not ping, so its
// silence proves nothing.
func TestOlderRelayUnderABlockedWriterIsNotJudged(t *testing.T) {
	bubble(t, func(t *testing.T) {
		quit := make(chan struct{})
		relay := serveRaw(t, "", stall(quit))
		s := relay.stream(t, StreamOptions{})
		go s.Read(make([]byte, 1))
		go s.Write(make([]byte, 1<<20))
		time.Sleep(time.Hour)
		if s.Err() != nil {
			t.Errorf("after an hour: %v", s.Err())
		}
		close(quit)
		s.CloseNow()
	})
}

func TestDeadPathWhileTypingIsNoticedIn5s(t *testing.T) {
	bubble(t, func(t *testing.T) {
		quit := make(chan struct{})
		relay := serveRaw(t, wire.SubprotocolV1, stall(quit))
		cfg := liveness.Data().WithTyping()
		s := relay.stream(t, StreamOptions{Liveness: &cfg})
		go s.Read(make([]byte, 1))
		time.Sleep(3 * time.Second)
		s.Write([]byte("l"))
		start := time.Now()
		<-s.Done()
		within(t, "noticing", time.Since(start), 5*time.Second)
		if !errors.Is(s.Err(), ErrDead) {
			t.Errorf("Err: %v", s.Err())
		}
		close(quit)
	})
}

// TestProgramThatDoesNotEchoIsNotCut: the relay's pong answers for the leg.
func TestProgramThatDoesNotEchoIsNotCut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := serveWS(t, func(c *websocket.Conn, _ *http.Request) {
			for {
				if _, _, err := c.Read(context.Background()); err != nil {
					return
				}
			}
		})
		cfg := liveness.Data().WithTyping()
		s := relay.stream(t, StreamOptions{Liveness: &cfg})
		go s.Read(make([]byte, 1))
		for range 1000 {
			if _, err := s.Write([]byte("x")); err != nil {
				t.Fatalf("Write: %v", err)
			}
			time.Sleep(1500 * time.Millisecond)
		}
		s.CloseNow()
	})
}

// TestWakeProbesAtOnce: after a sleep nobody waits for the next ping.
func TestWakeProbesAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		quit := make(chan struct{})
		relay := serveRaw(t, wire.SubprotocolV1, stall(quit))
		s := relay.stream(t, StreamOptions{})
		go s.Read(make([]byte, 1))
		time.Sleep(5 * time.Second)
		s.Wake()
		start := time.Now()
		<-s.Done()
		within(t, "noticing", time.Since(start), liveness.DataWindow)
		close(quit)
	})
}

func TestPingsOfThePeerAreAnswered(t *testing.T) {
	answers := make(chan string, 3)
	relay := serveRaw(t, wire.SubprotocolV1, func(c net.Conn, br *bufio.Reader) {
		for _, p := range []string{"one", "two", "three"} {
			c.Write(append([]byte{0x89, byte(len(p))}, p...))
			for {
				op, b, err := readFrame(br)
				if err != nil {
					t.Error(err)
					break
				}
				if op == 10 {
					answers <- string(b)
					break
				}
			}
		}
	})
	s := relay.stream(t, StreamOptions{})
	go s.Read(make([]byte, 1))
	for _, want := range []string{"one", "two", "three"} {
		if got := <-answers; got != want {
			t.Errorf("answered %q, want %q", got, want)
		}
	}
}

// TestPingThatTrickles: a ping whose bytes come 8 s apart is slower than the
// WebSocket code allows, and is answered all the same.
func TestPingThatTrickles(t *testing.T) {
	bubble(t, func(t *testing.T) {
		answer := make(chan string, 1)
		relay := serveRaw(t, wire.SubprotocolV1, func(c net.Conn, br *bufio.Reader) {
			for _, b := range frame.AppendFrame(nil, frame.Ping, []byte("slow")) {
				c.Write([]byte{b})
				time.Sleep(8 * time.Second)
			}
			for {
				op, b, err := readFrame(br)
				if err != nil {
					return
				}
				if op == 10 {
					answer <- string(b)
				}
			}
		})
		s := relay.stream(t, StreamOptions{})
		go s.Read(make([]byte, 1))
		if got := <-answer; got != "slow" || s.Err() != nil {
			t.Errorf("answered %q, %v", got, s.Err())
		}
		s.CloseNow()
	})
}
