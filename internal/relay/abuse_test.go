package relay

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"holdfast/internal/wire"
)

// Requests that are too big in one way or another are refused or cut, and cost
// no more than their limit.
func TestOversizeRequests(t *testing.T) {
	g := newRig(t)
	device := g.deviceToken()
	g.agentToken("mini")
	status := func(method, path string, headers ...string) int {
		_, resp := g.rawRequest(method, path, headers...)
		return resp.StatusCode
	}
	long := strings.Repeat("x", 2*maxHeaderBytes)
	if got := status("GET", "/connect/mini", upgradeHeaders(device.text, "X-Long", long)...); got != 431 {
		t.Errorf("one long header: %d", got)
	}
	var many []string
	for i := range 2000 {
		many = append(many, fmt.Sprintf("X-%d", i), "some value")
	}
	if got := status("GET", "/connect/mini", upgradeHeaders(device.text, many...)...); got != 431 {
		t.Errorf("2,000 headers: %d", got)
	}
	// A body that is said to be huge is not read to its end.
	conn, err := g.dialer(context.Background(), "tcp", g.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(15 * time.Second))
	body := `{"secret":"` + strings.Repeat("x", 4*wire.MaxAPIBodyBytes)
	if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: relay\r\nContent-Length: 1000000000\r\n\r\n%s", wire.PathRedeem, body); err != nil {
		t.Fatal(err)
	}
	if b, _ := io.ReadAll(io.LimitReader(conn, 12)); string(b) != "HTTP/1.1 413" {
		t.Errorf("a huge body: %q", b)
	}
	if got := status("GET", "/connect/mini", upgradeHeaders(device.text)...); got != 101 {
		t.Errorf("afterwards a good request gets %d", got)
	}
}

// A thousand connections of one address that say nothing: a good token of the
// same address gets in meanwhile, and they are cut down to the limit.
func TestConnectionFloodOfAnAddress(t *testing.T) {
	const flood = 1000
	g := newRig(t)
	device := g.deviceToken()
	a := g.ready("mini")
	files := descriptors(t)
	closed := make(chan struct{}, flood)
	conns := make([]net.Conn, 0, flood)
	for range flood {
		conn, err := g.dialer(context.Background(), "tcp", g.addr)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
		go func() { // ends when either side closes conn
			_, _ = io.Copy(io.Discard, conn)
			closed <- struct{}{}
		}()
	}
	dev, _ := g.pair(a, device)
	for i := range flood - 100 {
		select {
		case <-closed:
		case <-time.After(30 * time.Second):
			t.Fatalf("only %d were closed", i)
		}
	}
	_ = dev.CloseNow()
	for _, conn := range conns {
		_ = conn.Close()
	}
	for range 100 {
		<-closed
	}
	eventually(t, "descriptors are back", func() bool { return descriptors(t) <= files+5 })
	a.pong()
}

// The defaults are those of the protocol, and over 1,000 open streams a token
// gets 429 with Retry-After.
func TestDefaultLimitsOfAToken(t *testing.T) {
	g := newRig(t)
	var l Limits
	must(t, l.complete())
	if l != (Limits{Streams: 1000, NewStreams: 200, Failures: 20, Handshakes: 100}) {
		t.Fatalf("limits %+v", l)
	}
	device := g.deviceToken()
	g.agentToken("mini")
	for range 1000 {
		if !g.relay.axes.Reserve(device.Token, l.Streams) {
			t.Fatal("refused below the limit")
		}
	}
	_, resp := g.rawRequest("GET", "/connect/mini", upgradeHeaders(device.text)...)
	if resp.StatusCode != 429 || resp.Header.Get("Retry-After") == "" || resp.Header.Get(wire.HeaderRefusal) != "limit" {
		t.Errorf("the 1,001st: %s %v", resp.Status, resp.Header)
	}
	for range 1000 {
		g.relay.axes.Release(device.ID)
	}
}
