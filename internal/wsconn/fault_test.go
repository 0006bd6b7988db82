package wsconn

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/faultproxy"
	"holdfast/internal/liveness"
)

// behind puts a fault proxy in front of r and makes o dial it.
func (r *fakeRelay) behind(t *testing.T, o *Options) *faultproxy.Proxy {
	t.Helper()
	l, err := r.net.Listen("proxy:1")
	if err != nil {
		t.Fatal(err)
	}
	p, err := faultproxy.New(faultproxy.Options{Listener: l, Dial: func(ctx context.Context) (net.Conn, error) {
		return r.net.Dial(ctx, relayAddr)
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	o.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return r.net.Dial(ctx, "proxy:1") }
	return p
}

// TestFaultsOfADataPath: each fault ends the stream in its time, and not
// before.
func TestFaultsOfADataPath(t *testing.T) {
	// Pings leave at 15 s, 30 s, …; the fault comes at 40 s on an idle path, when
	// the last byte came at 30 s.
	const last, quietEnd = 30 * time.Second, 25 * time.Second
	tests := []struct {
		name  string
		fault faultproxy.Fault
		bulk  bool // the relay sends all the time
		want  time.Duration
		dead  bool // judged, not told
	}{
		{"stall both", faultproxy.Stall(faultproxy.Both), false, last + quietEnd, true},
		{"stall up", faultproxy.Stall(faultproxy.Up), false, last + quietEnd, true},
		{"stall down", faultproxy.Stall(faultproxy.Down), false, last + quietEnd, true},
		{"stall down in bulk", faultproxy.Stall(faultproxy.Down), true, 40*time.Second + quietEnd, true},
		{"cut", faultproxy.Cut(faultproxy.Both), false, 40 * time.Second, false},
		{"end of the stream", faultproxy.Finish(faultproxy.Down), false, 40 * time.Second, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				relay := serveWS(t, func(c *websocket.Conn, _ *http.Request) {
					if tt.bulk {
						c.CloseRead(context.Background())
						for {
							if c.Write(context.Background(), websocket.MessageBinary, make([]byte, 10_000)) != nil {
								return
							}
							time.Sleep(100 * time.Millisecond)
						}
					}
					echo(c, nil)
				})
				o := relay.options()
				proxy := relay.behind(t, &o)
				s, err := DialStream(t.Context(), o, StreamOptions{Side: DeviceSide, Liveness: dataConfig()})
				if err != nil {
					t.Fatal(err)
				}
				defer s.CloseNow()
				start := time.Now()
				time.AfterFunc(40*time.Second, func() { proxy.Apply(tt.fault) })
				_, err = io.Copy(io.Discard, s)
				took := time.Since(start)
				if took < tt.want-200*time.Millisecond || took > tt.want+200*time.Millisecond {
					t.Errorf("ended after %v, want %v", took, tt.want)
				}
				if errors.Is(err, ErrDead) != tt.dead || err == nil {
					t.Errorf("ended with %v", err)
				}
				proxy.Close()
			})
		})
	}
}

// TestSlowPathsAreNeverCut: a message of 1 MiB at 10 KB/s takes 105 s each way.
func TestSlowPathsAreNeverCut(t *testing.T) {
	paths := map[string][]faultproxy.Fault{
		"10 KB/s":        {faultproxy.Trickle(faultproxy.Both, 10_000)},
		"down 10 KB/s":   {faultproxy.Trickle(faultproxy.Down, 10_000)},
		"up 10 KB/s":     {faultproxy.Trickle(faultproxy.Up, 10_000)},
		"RTT 500 ms":     {faultproxy.Delay(faultproxy.Both, 250*time.Millisecond), faultproxy.Trickle(faultproxy.Both, 200_000)},
		"40 bytes/s":     {faultproxy.Trickle(faultproxy.Both, 40)},
		"RTT 9 s (moon)": {faultproxy.Delay(faultproxy.Both, 4500*time.Millisecond)},
	}
	for name, faults := range paths {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				size := 1 << 20
				if name == "40 bytes/s" {
					size = 40_000 // 1,000 s
				}
				data := make([]byte, size)
				for i := range data {
					data[i] = byte(i * i >> 3)
				}
				relay := serveWS(t, func(c *websocket.Conn, _ *http.Request) {
					over := make(chan struct{})
					defer close(over)
					go func() { // a relay pings whether or not it was answered
						for {
							select {
							case <-over:
								return
							case <-time.After(liveness.DataIdle):
								go c.Ping(context.Background())
							}
						}
					}()
					var got []byte
					for len(got) < size {
						_, b, err := c.Read(context.Background())
						if err != nil {
							t.Errorf("the relay reads: %v", err)
							return
						}
						got = append(got, b...)
					}
					c.Write(context.Background(), websocket.MessageBinary, got) // one message
					c.Read(context.Background())
				})
				o := relay.options()
				proxy := relay.behind(t, &o)
				s, err := DialStream(t.Context(), o, StreamOptions{Side: DeviceSide, Liveness: dataConfig()})
				if err != nil {
					t.Fatal(err)
				}
				proxy.Apply(faults...)
				go s.Write(data)
				got := make([]byte, size)
				if n, err := io.ReadFull(s, got); err != nil || sha256.Sum256(got) != sha256.Sum256(data) {
					t.Errorf("%d bytes came back: %v", n, err)
				}
				s.CloseNow()
				proxy.Close()
			})
		})
	}
}

// TestFaultsOfADial: a handshake that cannot end well says where it failed.
func TestFaultsOfADial(t *testing.T) {
	tests := []struct {
		fault faultproxy.Fault
		hop   Hop
		took  time.Duration
	}{
		{faultproxy.Stall(faultproxy.Up).At(faultproxy.Byte(0)), HopUpgrade, liveness.HandshakeTimeout},
		{faultproxy.Stall(faultproxy.Down).At(faultproxy.Byte(20)), HopUpgrade, liveness.HandshakeTimeout},
		{faultproxy.Cut(faultproxy.Down).At(faultproxy.Byte(20)), HopUpgrade, 0},
		{faultproxy.Refuse(""), HopUpgrade, 0},
		{faultproxy.Refuse("HTTP/1.1 302 Found\r\nLocation: http://portal.example/\r\nContent-Length: 0\r\n\r\n"), HopUpgrade, 0},
		{faultproxy.Corrupt(faultproxy.Down, 1).At(faultproxy.Byte(9)), HopUpgrade, 0},
	}
	for i, tt := range tests {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				relay := serveWS(t, echo)
				o := relay.options()
				proxy := relay.behind(t, &o)
				proxy.Arm(tt.fault)
				start := time.Now()
				err := dialTo(t, o)
				if d := time.Since(start); d < tt.took || d > tt.took+4*time.Second {
					t.Errorf("took %v, want %v", d, tt.took)
				}
				if hopOf(t, err) != tt.hop {
					t.Errorf("got %v", err)
				}
				if err := dialTo(t, o); err != nil {
					t.Errorf("the next dial: %v", err)
				}
				proxy.Close()
			})
		})
	}
}
