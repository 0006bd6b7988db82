package relay

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/frame"
	"holdfast/internal/memnet"
	"holdfast/internal/relay/axes"
	"holdfast/internal/relay/changes"
	"holdfast/internal/relay/controls"
	"holdfast/internal/wire"
)

// bubble runs f with a relay on a network in memory and virtual time.
func bubble(t *testing.T, f func(t *testing.T, g *rig), change ...func(*Options)) {
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New()
		l, err := n.Listen("relay:80")
		if err != nil {
			t.Fatal(err)
		}
		change = append(change, func(o *Options) { o.Goroutines = true })
		f(t, newRigOn(t, l, n.DialContext, change...))
	})
}

// lastedUntilClose reads frames until the close frame, answering nothing, and
// says how long that took.
func lastedUntilClose(t *testing.T, conn net.Conn) (time.Duration, uint16, string) {
	t.Helper()
	began := time.Now()
	code, reason, err := closeCode(conn)
	if err != nil {
		t.Fatal(err)
	}
	return time.Since(began), code, reason
}

// roughly allows for the ticks of what keeps the time.
func roughly(t *testing.T, what string, got, want, slack time.Duration) {
	t.Helper()
	if got < want || got > want+slack {
		t.Errorf("%s took %v, want %v", what, got, want)
	}
}

func TestBubbleDialTimeout(t *testing.T) {
	bubble(t, func(t *testing.T, g *rig) {
		a := g.ready("mini")
		dev := g.rawUpgrade("/connect/mini", g.deviceToken().text)
		m := a.next()
		took, code, _ := lastedUntilClose(t, dev)
		roughly(t, "the time-out", took, wire.DialTimeout, time.Second)
		if code != uint16(wire.CloseNoDialBack) {
			t.Errorf("closed %d", code)
		}
		if got := a.dataStatus("mini", a.token, m.ConnID); got != 404 {
			t.Errorf("after its time the connection id gives %d", got)
		}
	})
}

func TestBubbleReapingASilentAgent(t *testing.T) {
	for _, tt := range []struct {
		name string
		keep func(conn net.Conn) // sent every 40 s
		ping bool                // an application ping first
		reap bool
	}{
		{"nothing", nil, false, true},
		{"protocol pings of an older agent", func(c net.Conn) { write(t, c, masked(frame.Ping, true, nil)) }, false, false},
		{"pongs of an older agent", func(c net.Conn) { write(t, c, masked(frame.Pong, true, nil)) }, false, false},
		{"protocol pings of one that sent an application ping", func(c net.Conn) { write(t, c, masked(frame.Ping, true, nil)) }, true, true},
		{"text", func(c net.Conn) { write(t, c, masked(frame.Text, true, []byte(`{"op":"ping"}`))) }, true, false},
		{"unknown text", func(c net.Conn) { write(t, c, masked(frame.Text, true, []byte("?"))) }, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, g *rig) {
				conn := g.rawUpgrade("/agent/mini", g.agentToken("mini").text)
				go func() { _, _ = io.Copy(io.Discard, conn) }() // ends with conn
				if tt.ping {
					write(t, conn, masked(frame.Text, true, []byte(`{"op":"ping"}`)))
				}
				began := time.Now()
				synctest.Wait()
				for time.Since(began) < 20*time.Minute && g.relay.axes.Count(axes.Control) == 1 {
					time.Sleep(40 * time.Second)
					if tt.keep != nil && g.relay.axes.Count(axes.Control) == 1 {
						tt.keep(conn)
					}
				}
				if got := g.relay.axes.Count(axes.Control) == 0; got != tt.reap {
					t.Fatalf("reaped: %v, want %v", got, tt.reap)
				}
				if tt.reap {
					roughly(t, "reaping", time.Since(began), controls.ReapAfter, 45*time.Second)
				}
				if n := g.metric("holdfast_relay_reaps_total"); (n == 1) != tt.reap {
					t.Errorf("counted %v reaps", n)
				}
				_ = conn.Close()
			})
		})
	}
}

func TestBubbleReapTime(t *testing.T) {
	bubble(t, func(t *testing.T, g *rig) {
		conn := g.rawUpgrade("/agent/mini", g.agentToken("mini").text)
		took, code, _ := lastedUntilClose(t, conn)
		roughly(t, "reaping", took, controls.ReapAfter, 3*time.Second)
		if code != uint16(wire.CloseGoingAway) {
			t.Errorf("closed %d", code)
		}
	})
}

// Both legs are pinged every 15 s; one that answers nothing is dead after 10 s
// more, and the other is told.
func TestBubbleHalfOpenLegs(t *testing.T) {
	for _, mute := range []string{"device", "agent"} {
		t.Run(mute, func(t *testing.T) {
			bubble(t, func(t *testing.T, g *rig) {
				a := g.ready("mini")
				dev := g.rawUpgrade("/connect/mini", g.deviceToken().text)
				agt := g.rawUpgrade(wire.AgentDataPath("mini", a.next().ConnID), a.token.text)
				dead, live := dev, agt
				if mute == "agent" {
					dead, live = agt, dev
				}
				began := time.Now()
				pings := 0
				for {
					h, p, err := readFrame(live)
					if err != nil {
						t.Fatal(err)
					}
					if h.Op == frame.Ping {
						pings++
						write(t, live, masked(frame.Pong, true, p))
					}
					if h.Op == frame.Close {
						break
					}
				}
				roughly(t, "noticing", time.Since(began), 25*time.Second, time.Second)
				if pings != 1 {
					t.Errorf("the live leg got %d pings in 25 s", pings)
				}
				_ = live.Close()
				_ = dead.Close()
			})
		})
	}
}

func TestBubbleAnsweringLegsLiveForHours(t *testing.T) {
	bubble(t, func(t *testing.T, g *rig) {
		a := g.ready("mini")
		dev := g.rawUpgrade("/connect/mini", g.deviceToken().text)
		agt := g.rawUpgrade(wire.AgentDataPath("mini", a.next().ConnID), a.token.text)
		go answerPings(dev) // both end with their connection
		go answerPings(agt)
		time.Sleep(3 * time.Hour)
		if n := g.relay.axes.Count(axes.Device); n != 1 {
			t.Errorf("%d streams are left", n)
		}
		_ = dev.Close()
		_ = agt.Close()
	})
}

func TestBubbleControlKeepalive(t *testing.T) {
	bubble(t, func(t *testing.T, g *rig) {
		conn := g.rawUpgrade("/agent/mini", g.agentToken("mini").text)
		began := time.Now()
		for range 3 {
			if h, _, err := readFrame(conn); err != nil || h.Op != frame.Ping {
				t.Fatalf("got %v, %v", h.Op, err)
			}
		}
		roughly(t, "three pings", time.Since(began), 50*time.Second, 11*time.Second)
		_ = conn.Close()
	}, func(o *Options) { o.ControlKeepalive = 20 * time.Second })
}

func TestBubbleNoControlKeepaliveByDefault(t *testing.T) {
	bubble(t, func(t *testing.T, g *rig) {
		conn := g.rawUpgrade("/agent/mini", g.agentToken("mini").text)
		if err := conn.SetReadDeadline(time.Now().Add(140 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if h, _, err := readFrame(conn); err == nil {
			t.Errorf("got a %v frame", h.Op)
		}
		_ = conn.Close()
	})
}

// A token's expiry is not late, and one years away costs nothing.
func TestBubbleExpiry(t *testing.T) {
	bubble(t, func(t *testing.T, g *rig) {
		tok := g.tokenFor("ann", "agent", "mini", time.Minute)
		g.agentToken("other")
		conn := g.rawUpgrade("/agent/mini", tok.text)
		took, code, reason := lastedUntilClose(t, conn)
		roughly(t, "expiry", took, 59*time.Second, 2*time.Second)
		if code != uint16(wire.CloseUnauthorized) || reason != changes.ReasonExpired {
			t.Errorf("closed %d %q", code, reason)
		}
		_ = conn.Close()
	})
}

// A peer that never finishes its header does not keep its socket.
func TestBubbleSlowloris(t *testing.T) {
	bubble(t, func(t *testing.T, g *rig) {
		conn, err := g.dialer(context.Background(), "tcp", g.addr)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		stopped := make(chan struct{})
		go func() { // ends with conn
			defer close(stopped)
			for _, b := range []byte("GET /connect/mini HTTP/1.1\r\nHost: relay\r\nX-Long: aaaaaaaaaaaaaaaaaaa") {
				if _, err := conn.Write([]byte{b}); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		}()
		_, _ = io.Copy(io.Discard, conn)
		if took := time.Since(began); took > readHeaderTimeout+time.Second {
			t.Errorf("it was borne for %v", took)
		}
		_ = conn.Close()
		<-stopped
	})
}
