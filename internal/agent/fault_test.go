package agent

import (
	"context"
	"net"
	"testing"
	"time"

	"holdfast/internal/faultproxy"
	"holdfast/internal/wire"
)

// behind puts a fault proxy between agent and relay.
func (r *fakeRelay) behind(o *Options) *faultproxy.Proxy {
	r.t.Helper()
	l, err := r.net.Listen("proxy:1")
	if err != nil {
		r.t.Fatal(err)
	}
	p, err := faultproxy.New(faultproxy.Options{Listener: l, Dial: func(ctx context.Context) (net.Conn, error) {
		return r.net.Dial(ctx, relayAddr)
	}})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(p.Close)
	o.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return r.net.Dial(ctx, "proxy:1") }
	return p
}

// TestFaultsOfTheControlPath: the fault meets the first connection only; the
// agent is back within its bound, and not before the fault can be known.
func TestFaultsOfTheControlPath(t *testing.T) {
	// When late faults come: after the first pong, and 2 s after a protocol ping.
	const first = 32 * time.Second
	tests := []struct {
		name  string
		armed []faultproxy.Fault // from the start of the connection
		late  []faultproxy.Fault // after 30 s
		pong  bool               // the relay pongs
		bound time.Duration      // when the loss is noticed
	}{
		// Before the upgrade: the handshake's 10 s.
		{name: "stall before the upgrade", armed: []faultproxy.Fault{faultproxy.Stall(faultproxy.Down)}, pong: true, bound: 10 * time.Second},
		// Before the first pong only the TCP path is judged: 15 + 10 s.
		{name: "stall after the upgrade", armed: []faultproxy.Fault{faultproxy.Stall(faultproxy.Down).At(faultproxy.Frame(1))}, pong: true, bound: 25 * time.Second},
		{name: "stall up after the upgrade", armed: []faultproxy.Fault{faultproxy.Stall(faultproxy.Up).At(faultproxy.Frame(1))}, pong: true, bound: 25 * time.Second},
		{name: "stall inside the first pong", armed: []faultproxy.Fault{faultproxy.Stall(faultproxy.Down).At(faultproxy.InFrame(1, 5))}, pong: true, bound: 25 * time.Second},
		// After it the round trip is: 100 s from the last text frame, at 0 s.
		{name: "stall both", late: []faultproxy.Fault{faultproxy.Stall(faultproxy.Both)}, pong: true, bound: 100 * time.Second},
		{name: "stall up", late: []faultproxy.Fault{faultproxy.Stall(faultproxy.Up)}, pong: true, bound: 100 * time.Second},
		{name: "stall down", late: []faultproxy.Fault{faultproxy.Stall(faultproxy.Down)}, pong: true, bound: 100 * time.Second},
		{name: "an edge answers for a lost relay", late: []faultproxy.Fault{faultproxy.AnswerPings(faultproxy.Up)}, pong: true, bound: 100 * time.Second},
		{name: "reclaimed idle without FIN", armed: []faultproxy.Fault{faultproxy.ReclaimIdle(faultproxy.Reaper{Limit: 15 * time.Second})}, pong: true, bound: 100 * time.Second},
		{name: "reclaimed idle with FIN", armed: []faultproxy.Fault{faultproxy.ReclaimIdle(faultproxy.Reaper{Limit: 15 * time.Second, Fin: true})}, pong: true, bound: 15 * time.Second},
		{name: "cut", late: []faultproxy.Fault{faultproxy.Cut(faultproxy.Both)}, pong: true, bound: first},
		{name: "finish", late: []faultproxy.Fault{faultproxy.Finish(faultproxy.Down)}, pong: true, bound: first},
		// A relay that never pongs: the TCP path alone is judged, all the time.
		{name: "stall, no pong", late: []faultproxy.Fault{faultproxy.Stall(faultproxy.Both)}, bound: 55 * time.Second},
		{name: "cut, no pong", late: []faultproxy.Fault{faultproxy.Cut(faultproxy.Both)}, bound: first},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				relay := newRelay(t)
				relay.control = func(_ int, p *peer) {
					if tt.pong {
						p.live()
					} else {
						p.mute()
					}
				}
				o := relay.options()
				proxy := relay.behind(&o)
				proxy.Arm(tt.armed...)
				a := relay.run(o)
				time.AfterFunc(first, func() { proxy.Apply(tt.late...) })
				time.Sleep(tt.bound - 50*time.Millisecond)
				if n := proxy.Accepted(); n != 1 {
					t.Errorf("%d connections before %v", n, tt.bound)
				}
				// Up to 1 s of backoff, and the dial.
				time.Sleep(1300 * time.Millisecond)
				if n := proxy.Accepted(); n != 2 {
					t.Errorf("%d connections after %v", n, tt.bound)
				}
				if s := a.Status(); s.ConnectedSince.IsZero() || s.Proven != tt.pong || s.LastError == "" {
					t.Errorf("status is %+v", s)
				}
				time.Sleep(10 * time.Hour)
				if n := proxy.Accepted(); n != 2 {
					t.Errorf("%d connections in the end", n)
				}
				a.stop()
				proxy.Close()
			})
		})
	}
}

// TestKeepaliveHoldsAPathThatReclaimsIdleLinks: the heartbeat of 45 s is too
// slow for a path with a limit of 15 s; --keepalive is for that.
func TestKeepaliveHoldsAPathThatReclaimsIdleLinks(t *testing.T) {
	for _, counts := range []faultproxy.Activity{faultproxy.AnyByte, faultproxy.DownBytes, faultproxy.BothWays} {
		bubble(t, func(t *testing.T) {
			relay := newRelay(t)
			relay.control = func(_ int, p *peer) { p.live() }
			o := relay.options()
			o.Keepalive = 10 * time.Second
			proxy := relay.behind(&o)
			proxy.Arm(faultproxy.ReclaimIdle(faultproxy.Reaper{Limit: 15 * time.Second, Counts: counts}))
			a := relay.run(o)
			time.Sleep(10 * time.Hour)
			if n := proxy.Accepted(); n != 1 {
				t.Errorf("counting %v: %d connections", counts, n)
			}
			a.stop()
			proxy.Close()
		})
	}
}

// TestRelayThatBlocksDataConnections: the control connection is fine and no
// stream can be opened; the caller hears so at once, and the status says it.
func TestRelayThatBlocksDataConnections(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := newRelay(t)
		relay.listen("127.0.0.1:22", echoService)
		o := relay.options()
		proxy := relay.behind(&o)
		refused := dialOnce(t, relay, wire.Message{ConnID: connID()})
		proxy.Arm()                      // the control connection
		proxy.Arm(faultproxy.Refuse("")) // the data connection
		a := relay.run(o)
		m := <-refused
		if m.Code != wire.CloseServiceRefused || a.Status().DialBackError == "" || time.Since(relay.start) > time.Second {
			t.Errorf("refused with %+v after %v, status %+v", m, time.Since(relay.start), a.Status())
		}
		a.stop()
		proxy.Close()
	})
}
