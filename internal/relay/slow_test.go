package relay

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/frame"
	"holdfast/internal/relay/axes"
	"holdfast/internal/wire"
)

// A device that reads 7 KB a second for an hour, and answers each ping
// when it comes to it, is slow and not dead: its stream stays, in order, while
// the machine waits, and what the relay holds for it does not grow.
func TestBubbleSlowReaderForAnHour(t *testing.T) {
	const (
		// 7 KB a second: the 64 KB that the network holds pass within ten seconds, so
		// that a ping behind them is answered in time.
		chunk = 7 << 10
		pause = time.Second
	)
	bubble(t, func(t *testing.T, g *rig) {
		a := g.ready("mini")
		dev := g.rawUpgrade("/connect/mini", g.deviceToken().text)
		agt := g.rawUpgrade(wire.AgentDataPath("mini", a.next().ConnID), a.token.text)
		sent := make(chan int64, 1)
		// Ends when the connection is closed below.
		go func() {
			var n int64
			payload := make([]byte, 32<<10)
			for {
				for i := range payload {
					payload[i] = byte(n + int64(i))
				}
				if _, err := agt.Write(masked(frame.Binary, true, payload)); err != nil {
					sent <- n
					return
				}
				n += int64(len(payload))
			}
		}()
		// Its pongs would have to wait behind its data, so the relay must not expect
		// them of a machine that it does not read from. Ends with the connection.
		go func() { _, _ = io.Copy(io.Discard, agt) }()
		began := time.Now()
		var got int64
		for time.Since(began) < time.Hour {
			h, p, err := readFrame(dev)
			if err != nil || h.Op == frame.Close {
				t.Fatalf("after %v and %d bytes: %v, %v %q", time.Since(began), got, err, h.Op, p)
			}
			if h.Op == frame.Ping {
				write(t, dev, masked(frame.Pong, true, p))
				continue
			}
			for _, b := range p {
				if b != byte(got) {
					t.Fatalf("byte %d is another", got)
				}
				got++
			}
			// As slow as its size says, whatever pieces the relay makes.
			time.Sleep(time.Duration(len(p)) * pause / chunk)
		}
		if n := g.relay.axes.Count(axes.Device); n != 1 {
			t.Errorf("%d streams are left after an hour", n)
		}
		_ = agt.Close()
		synctest.Wait()
		if held := <-sent - got; held > 1<<20 {
			t.Errorf("%d bytes were taken from the machine and not read", held)
		}
		_ = dev.Close()
	})
}

// answerPings reads all and answers pings, until the connection ends.
func answerPings(conn net.Conn) {
	for {
		h, p, err := readFrame(conn)
		if err != nil || h.Op == frame.Close {
			_, _ = io.Copy(io.Discard, conn)
			return
		}
		if h.Op == frame.Ping {
			if _, err := conn.Write(masked(frame.Pong, true, p)); err != nil {
				return
			}
		}
	}
}
