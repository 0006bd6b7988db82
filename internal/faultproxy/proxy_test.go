package faultproxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"holdfast/internal/memnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// env is a proxy in front of a listener, on one of the two floors.
type env struct {
	t     *testing.T
	proxy *Proxy
	dial  func() (net.Conn, error)
	back  net.Listener
	// mute is how long nothing must arrive before the test believes it.
	mute time.Duration
}

const floorLimit = 20 * time.Second

// floors runs a scenario over memnet in a bubble and over loopback.
func floors(t *testing.T, scenario func(e *env)) {
	t.Run("bubble", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := memnet.New()
			back, err := n.Listen("relay:1")
			if err != nil {
				t.Fatal(err)
			}
			defer back.Close()
			front, err := n.Listen("proxy:1")
			if err != nil {
				t.Fatal(err)
			}
			p, err := New(Options{Listener: front, Dial: func(ctx context.Context) (net.Conn, error) { return n.Dial(ctx, "relay:1") }})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			scenario(&env{t: t, proxy: p, back: back, mute: time.Hour,
				dial: func() (net.Conn, error) { return n.Dial(t.Context(), "proxy:1") }})
		})
	})
	t.Run("loopback", func(t *testing.T) {
		back, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer back.Close()
		p, err := Loopback(back.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		scenario(&env{t: t, proxy: p, back: back, mute: 200 * time.Millisecond,
			dial: func() (net.Conn, error) { return net.Dial("tcp", p.Addr().String()) }})
	})
}

const (
	request  = "GET /agent/mini HTTP/1.1\r\nUpgrade: websocket\r\n\r\n"
	response = "HTTP/1.1 101 Switching Protocols\r\n\r\n"
)

// raw connects both ends without a handshake.
func (e *env) raw() (client, server net.Conn) {
	e.t.Helper()
	client, err := e.dial()
	if err != nil {
		e.t.Fatal(err)
	}
	server, err = e.back.Accept()
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

// upgraded connects both ends with one.
func (e *env) upgraded() (client, server net.Conn) {
	e.t.Helper()
	client, server = e.raw()
	e.send(client, []byte(request))
	e.expect(server, []byte(request))
	e.send(server, []byte(response))
	e.expect(client, []byte(response))
	return client, server
}

func (e *env) send(c net.Conn, b []byte) {
	e.t.Helper()
	c.SetWriteDeadline(time.Now().Add(floorLimit))
	if _, err := c.Write(b); err != nil {
		e.t.Fatalf("send: %v", err)
	}
}

// expect reads exactly b.
func (e *env) expect(c net.Conn, b []byte) {
	e.t.Helper()
	c.SetReadDeadline(time.Now().Add(floorLimit))
	got := make([]byte, len(b))
	if n, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, b) {
		e.t.Fatalf("read %q, %v; want %q", got[:n], err, b)
	}
}

// silent expects no byte and no end for a while.
func (e *env) silent(c net.Conn) {
	e.t.Helper()
	c.SetReadDeadline(time.Now().Add(e.mute))
	b := make([]byte, 64)
	if n, err := c.Read(b); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		e.t.Fatalf("read %q, %v; want nothing", b[:n], err)
	}
}

// ends expects the connection to end with no more bytes.
func (e *env) ends(c net.Conn, want error) {
	e.t.Helper()
	c.SetReadDeadline(time.Now().Add(floorLimit))
	b := make([]byte, 64)
	n, err := c.Read(b)
	if n != 0 || !errors.Is(err, want) {
		e.t.Fatalf("read %q, %v; want %v", b[:n], err, want)
	}
}

// frame builds one: op, payload, masked for the client's side.
func frame(op byte, payload string, masked bool) []byte {
	b := []byte{0x80 | op}
	n, mask := len(payload), byte(0)
	if masked {
		mask = 0x80
	}
	switch {
	case n < 126:
		b = append(b, mask|byte(n))
	case n < 1<<16:
		b = append(b, mask|126, byte(n>>8), byte(n))
	default:
		b = append(b, mask|127, 0, 0, 0, 0, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	}
	if !masked {
		return append(b, payload...)
	}
	key := []byte{1, 2, 3, 4}
	b = append(b, key...)
	for i := range n {
		b = append(b, payload[i]^key[i&3])
	}
	return b
}

func up(payload string) []byte   { return frame(1, payload, true) }
func down(payload string) []byte { return frame(1, payload, false) }

func TestBytesPassUnchanged(t *testing.T) {
	floors(t, func(e *env) {
		client, server := e.upgraded()
		big := string(bytes.Repeat([]byte("holdfast"), 100_000)) // a 64-bit length
		for _, text := range []string{"", "a", string(make([]byte, 300)), big} {
			done := make(chan struct{})
			go func() { // ends when the server has read it
				defer close(done)
				client.Write(up(text))
			}()
			e.expect(server, up(text))
			<-done
			go func() { server.Write(down(text)) }() // ends when the client has read it
			e.expect(client, down(text))
		}
		l := e.proxy.Links()[0]
		if _, frames := l.Passed(Up); frames != 4 {
			e.t.Errorf("%d frames passed up, want 4", frames)
		}
		client.Close()
		e.ends(server, io.EOF)
		server.Close()
		<-l.Done()
	})
}

func TestStallIsHalfOpen(t *testing.T) {
	floors(t, func(e *env) {
		client, server := e.upgraded()
		e.proxy.StallAll(Both)
		e.send(client, up("lost?"))
		e.send(server, down("lost too?"))
		e.silent(server)
		e.silent(client)
		// Not even the end gets through.
		client.Close()
		e.silent(server)
		e.proxy.ResumeAll(Up)
		e.expect(server, up("lost?"))
	})
}

func TestStallOneDirection(t *testing.T) {
	floors(t, func(e *env) {
		client, server := e.upgraded()
		e.proxy.StallAll(Down)
		e.send(client, up("arrives"))
		e.expect(server, up("arrives"))
		e.send(server, down("does not"))
		e.silent(client)
		e.proxy.ResumeAll(Down)
		e.expect(client, down("does not"))
	})
}

func TestStallAtPositions(t *testing.T) {
	for name, at := range map[string]Position{
		"before the upgrade": Byte(0), "after the upgrade": Frame(1), "after the first frame": Frame(2),
		"mid-header": InFrame(2, 1), "mid-payload": InFrame(2, 5), "at a byte": Byte(int64(len(response)) + 3),
	} {
		t.Run(name, func(t *testing.T) {
			floors(t, func(e *env) {
				e.proxy.Arm(Stall(Down).At(at))
				client, server := e.raw()
				e.send(client, []byte(request))
				e.expect(server, []byte(request))
				all := append([]byte(response), append(down("one"), down("two, the second")...)...)
				e.send(server, all)
				n := map[string]int{
					"before the upgrade": 0, "after the upgrade": len(response), "after the first frame": len(response) + 5,
					"mid-header": len(response) + 6, "mid-payload": len(response) + 10, "at a byte": len(response) + 3,
				}[name]
				e.expect(client, all[:n])
				e.silent(client)
				e.send(client, up("the other way is open"))
				e.expect(server, up("the other way is open"))
				e.proxy.ResumeAll(Down)
				e.expect(client, all[n:])
			})
		})
	}
}

func TestStalledSendersBlockInTheEnd(t *testing.T) {
	floors(t, func(e *env) {
		_, server := e.upgraded()
		e.proxy.StallAll(Down)
		server.SetWriteDeadline(time.Now().Add(time.Second))
		// More than the queue and the buffers of four sockets hold.
		header := []byte{0x82, 127, 0, 0, 0, 0, 2, 0, 0, 0} // 32 MiB
		if n, err := server.Write(append(header, make([]byte, 32<<20)...)); !errors.Is(err, os.ErrDeadlineExceeded) {
			e.t.Errorf("a stalled link took %d bytes: %v", n, err)
		}
	})
}

func TestCut(t *testing.T) {
	floors(t, func(e *env) {
		client, server := e.upgraded()
		e.proxy.CutAll()
		e.ends(client, syscall.ECONNRESET)
		e.ends(server, syscall.ECONNRESET)
		if err := e.proxy.WaitLinks(e.t.Context(), 0); err != nil {
			e.t.Error(err)
		}
	})
}

func TestCutAfterAFrame(t *testing.T) {
	floors(t, func(e *env) {
		e.proxy.Arm(Cut(Up).At(Frame(2)))
		client, server := e.upgraded()
		e.send(client, up("hello"))
		// A reset may overtake the bytes before it, so only the end is certain.
		server.SetReadDeadline(time.Now().Add(floorLimit))
		if _, err := io.ReadAll(server); !errors.Is(err, syscall.ECONNRESET) {
			e.t.Errorf("server: %v", err)
		}
		e.ends(client, syscall.ECONNRESET)
		// Armed for one connection only.
		client, server = e.upgraded()
		e.send(client, up("hello"))
		e.expect(server, up("hello"))
		e.send(client, up("again"))
		e.expect(server, up("again"))
	})
}

func TestFinish(t *testing.T) {
	floors(t, func(e *env) {
		e.proxy.Arm(Finish(Down).At(InFrame(1, 4)))
		client, server := e.upgraded()
		e.send(server, down("cut short"))
		e.expect(client, down("cut short")[:4])
		e.ends(client, io.EOF)
		e.send(client, up("still heard"))
		e.expect(server, up("still heard"))
		e.proxy.FinishAll(Up)
		e.ends(server, io.EOF)
	})
}

func TestDelay(t *testing.T) {
	floors(t, func(e *env) {
		e.proxy.Arm(Delay(Down, 300*time.Millisecond).At(Frame(1)))
		client, server := e.upgraded()
		start := time.Now()
		for range 100 {
			e.send(server, down("x"))
		}
		for range 100 {
			e.expect(client, down("x"))
		}
		// All of them together took one delay: throughput stays.
		if took := time.Since(start); took < 300*time.Millisecond || took > 10*time.Second {
			e.t.Errorf("took %v", took)
		}
		start = time.Now()
		e.send(client, up("x"))
		e.expect(server, up("x"))
		if took := time.Since(start); e.mute == time.Hour && took != 0 {
			e.t.Errorf("the other direction took %v", took)
		}
	})
}

func TestTrickle(t *testing.T) {
	floors(t, func(e *env) {
		client, server := e.upgraded()
		e.proxy.Apply(Trickle(Up, 10_000))
		text := string(make([]byte, 5000))
		start := time.Now()
		e.send(client, up(text))
		e.expect(server, up(text))
		if took := time.Since(start); took < 400*time.Millisecond || took > 10*time.Second {
			e.t.Errorf("5,008 bytes at 10,000 a second took %v", took)
		}
		e.proxy.Apply(Trickle(Up, 0))
		e.send(client, up(text))
		e.expect(server, up(text))
	})
}

func TestRefuse(t *testing.T) {
	floors(t, func(e *env) {
		e.proxy.Arm(Refuse(""))
		portal := "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"
		e.proxy.Arm(Refuse(portal))
		e.refused()
		client, err := e.dial()
		if err != nil {
			e.t.Fatal(err)
		}
		defer client.Close()
		e.send(client, []byte(request))
		e.expect(client, []byte(portal))
		e.ends(client, io.EOF)
		client, server := e.upgraded()
		e.send(client, up("welcome"))
		e.expect(server, up("welcome"))
		if e.proxy.Accepted() != 3 || e.proxy.Refused() != 2 {
			e.t.Errorf("accepted %d, refused %d", e.proxy.Accepted(), e.proxy.Refused())
		}
	})
}

func TestArmEveryAndDisarm(t *testing.T) {
	floors(t, func(e *env) {
		e.proxy.ArmEvery(Refuse(""))
		for range 3 {
			e.refused()
		}
		e.proxy.Disarm()
		client, server := e.upgraded()
		e.send(server, down("x"))
		e.expect(client, down("x"))
	})
}

func TestCorrupt(t *testing.T) {
	floors(t, func(e *env) {
		e.proxy.Arm(Corrupt(Down, 0).At(InFrame(2, 2)), Corrupt(Up, 7).At(Byte(int64(len(request)))))
		client, server := e.upgraded()
		e.send(server, append(down("a"), down("a")...))
		e.expect(client, append(down("a"), down("`")...)) // 'a' with bit 0 flipped
		want := up("b")
		want[0] ^= 0x80
		e.send(client, up("b"))
		e.expect(server, want)
		e.send(client, up("b"))
		e.expect(server, up("b"))
	})
}

func TestSwap(t *testing.T) {
	floors(t, func(e *env) {
		e.proxy.Arm(Swap(Up).At(Frame(2)))
		client, server := e.upgraded()
		for _, text := range []string{"one", "two", "three, longer", "four"} {
			e.send(client, up(text))
		}
		for _, text := range []string{"one", "three, longer", "two", "four"} {
			e.expect(server, up(text))
		}
	})
}

func TestAnswerPings(t *testing.T) {
	floors(t, func(e *env) {
		client, server := e.upgraded()
		e.proxy.Apply(AnswerPings(Up))
		e.ends(server, syscall.ECONNRESET)
		e.send(client, up("ping of the application"))
		e.send(client, frame(9, "are you there", true))
		e.expect(client, frame(10, "are you there", false))
		e.silent(client)
		e.send(client, up(string(make([]byte, 70_000))))
		e.send(client, frame(9, "", true))
		e.expect(client, frame(10, "", false))
		client.Close()
		if err := e.proxy.WaitLinks(e.t.Context(), 0); err != nil {
			e.t.Error(err)
		}
	})
}

func TestAnswerPingsForTheListeningSide(t *testing.T) {
	floors(t, func(e *env) {
		e.proxy.Arm(AnswerPings(Down).At(Frame(2)))
		client, server := e.upgraded()
		e.send(server, down("one"))
		e.endsEarly(client, down("one"))
		e.send(server, frame(9, "hm", false))
		want := []byte{0x8a, 0x82, 0, 0, 0, 0, 'h', 'm'}
		e.expect(server, want)
	})
}

// refused dials and is reset, which on loopback may be faster than the dial.
func (e *env) refused() {
	e.t.Helper()
	client, err := e.dial()
	if errors.Is(err, syscall.ECONNRESET) {
		return
	}
	if err != nil {
		e.t.Fatal(err)
	}
	defer client.Close()
	e.ends(client, syscall.ECONNRESET)
}

// endsEarly accepts bytes that a reset may have overtaken.
func (e *env) endsEarly(c net.Conn, maybe []byte) {
	e.t.Helper()
	c.SetReadDeadline(time.Now().Add(floorLimit))
	got, err := io.ReadAll(c)
	if !errors.Is(err, syscall.ECONNRESET) || !bytes.HasPrefix(maybe, got) {
		e.t.Fatalf("read %q, %v", got, err)
	}
}

func TestAnEdgeWaitsForTheFrameOnItsWay(t *testing.T) {
	floors(t, func(e *env) {
		client, server := e.upgraded()
		e.send(server, down("in two parts")[:5])
		e.expect(client, down("in two parts")[:5])
		e.proxy.Apply(AnswerPings(Up))
		e.send(server, down("in two parts")[5:])
		e.expect(client, down("in two parts")[5:])
		e.send(client, frame(9, "now", true))
		e.expect(client, frame(10, "now", false))
		e.ends(server, syscall.ECONNRESET)
	})
}

func TestReclaimIdle(t *testing.T) {
	for _, fin := range []bool{false, true} {
		floors(t, func(e *env) {
			limit := 400 * time.Millisecond
			if e.mute == time.Hour {
				limit = 15 * time.Second
			}
			e.proxy.Arm(ReclaimIdle(Reaper{Limit: limit, Fin: fin}))
			client, server := e.upgraded()
			for range 3 {
				time.Sleep(limit / 2)
				e.send(client, up("life"))
				e.expect(server, up("life"))
			}
			time.Sleep(2 * limit)
			if fin {
				e.ends(client, io.EOF)
				e.ends(server, io.EOF)
				return
			}
			e.send(client, up("into the void"))
			e.silent(server)
			e.proxy.ResumeAll(Both)
			e.silent(server)
		})
	}
}

func TestReapersCountWhatTheySay(t *testing.T) {
	for _, c := range []struct {
		counts Activity
		moves  Direction
		lives  bool
	}{
		{AnyByte, Up, true}, {AnyByte, Down, true},
		{DownBytes, Up, false}, {DownBytes, Down, true},
		{BothWays, Up, false}, {BothWays, Down, false}, {BothWays, Both, true},
	} {
		t.Run(c.counts.String()+" "+c.moves.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := memnet.New()
				back, err := n.Listen("relay:1")
				if err != nil {
					t.Fatal(err)
				}
				defer back.Close()
				front, err := n.Listen("proxy:1")
				if err != nil {
					t.Fatal(err)
				}
				p, err := New(Options{Listener: front, Dial: func(ctx context.Context) (net.Conn, error) { return n.Dial(ctx, "relay:1") }})
				if err != nil {
					t.Fatal(err)
				}
				defer p.Close()
				e := &env{t: t, proxy: p, back: back, mute: time.Minute,
					dial: func() (net.Conn, error) { return n.Dial(t.Context(), "proxy:1") }}
				p.Arm(ReclaimIdle(Reaper{Limit: time.Minute, Counts: c.counts}))
				client, server := e.upgraded()
				// Ten minutes in which only these directions move.
				for range 20 {
					time.Sleep(30 * time.Second)
					if c.moves&Up != 0 {
						e.send(client, up("x"))
					}
					if c.moves&Down != 0 {
						e.send(server, down("x"))
					}
				}
				synctest.Wait()
				e.send(server, down("end"))
				if c.lives {
					client.SetReadDeadline(time.Now().Add(time.Second))
					got, _ := io.ReadAll(client)
					if !bytes.HasSuffix(got, down("end")) {
						t.Errorf("dropped: %q", got)
					}
					return
				}
				client.SetReadDeadline(time.Now().Add(time.Minute))
				got, err := io.ReadAll(client)
				if bytes.HasSuffix(got, down("end")) || !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("kept: %q, %v", got, err)
				}
			})
		})
	}
}

func TestReaperProfiles(t *testing.T) {
	all := Reapers()
	if len(all) != 8 {
		t.Errorf("%d profiles", len(all))
	}
	for _, r := range all {
		if r.Limit < 15*time.Second || r.Limit > 300*time.Second || r.Fin {
			t.Errorf("%+v", r)
		}
	}
}

func TestADialThatFailsIsARefusal(t *testing.T) {
	n := memnet.New()
	front, err := n.Listen("proxy:1")
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(Options{Listener: front, Dial: func(ctx context.Context) (net.Conn, error) { return n.Dial(ctx, "nobody:1") }})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	c, err := n.Dial(t.Context(), "proxy:1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read: %v", err)
	}
	if p.Refused() != 1 {
		t.Errorf("refused %d", p.Refused())
	}
	if _, err := New(Options{}); err == nil {
		t.Error("a proxy without options starts")
	}
}

// TestPositionsHoldHoweverTheBytesAreCut feeds the same stream in pieces of
// every size.
func TestPositionsHoldHoweverTheBytesAreCut(t *testing.T) {
	stream := []byte(response)
	starts := []int64{}
	for _, text := range []string{"", "x", string(make([]byte, 125)), string(make([]byte, 126)), string(make([]byte, 66_000)), "end"} {
		for _, masked := range []bool{false, true} {
			starts = append(starts, int64(len(stream)))
			stream = append(stream, frame(2, text, masked)...)
		}
	}
	for size := 1; size < 400; size += 7 {
		var tr tracker
		var got []int64
		for rest := stream; len(rest) > 0; {
			chunk := rest[:min(size, len(rest))]
			rest = rest[len(chunk):]
			for len(chunk) > 0 {
				n := tr.span(len(chunk), nil)
				before := tr.frame
				tr.pass(chunk[:n])
				if tr.frame != before {
					got = append(got, tr.pos)
				}
				chunk = chunk[n:]
			}
		}
		if want := append(starts[:len(starts):len(starts)], int64(len(stream))); !equal(got, want) {
			t.Fatalf("pieces of %d: boundaries at %v, want %v", size, got, want)
		}
	}
}

func equal(a, b []int64) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func TestAnAnnouncedLengthAllocatesNothing(t *testing.T) {
	floors(t, func(e *env) {
		client, server := e.upgraded()
		e.proxy.Apply(Swap(Up))
		huge := []byte{0x82, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4, 'x'}
		e.send(client, huge)
		e.silent(server) // held back as the first of two
		if _, frames := e.proxy.Links()[0].Passed(Up); frames != 0 {
			e.t.Errorf("%d frames", frames)
		}
	})
}
