package relay

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/engine"
	"holdfast/internal/frame"
	"holdfast/internal/relay/axes"
	"holdfast/internal/wire"
)

func TestNoHolderIs1013(t *testing.T) {
	g := newRig(t)
	g.agentToken("mini")
	dev := g.device("mini", g.deviceToken(), "")
	wantClose(t, dev, wire.CloseTryLater, "machine agent offline")
}

func TestDialSaysWhatTheDeviceAsked(t *testing.T) {
	g := newRig(t)
	a := g.ready("mini")
	dev := g.redeem("mini")
	g.device("mini", issued{text: dev.Token}, "web")
	m := a.next()
	if m.Op != wire.OpDial || m.Service != "web" || m.Device != dev.Device || m.Proto != wire.SubprotocolV1 || m.ConnID == "" {
		t.Errorf("got %+v", m)
	}
	g.device("mini", issued{text: dev.Token}, "")
	if n := a.next(); n.Service != "" || n.ConnID == m.ConnID {
		t.Errorf("got %+v", n)
	}
}

// exchange sends one message each way and compares.
func exchange(t *testing.T, from, to *websocket.Conn, typ websocket.MessageType, b []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	sent := make(chan error, 1)
	go func() { sent <- from.Write(ctx, typ, b) }()
	gotType, got, err := to.Read(ctx)
	if err != nil || gotType != typ || !bytes.Equal(got, b) {
		t.Fatalf("sent %v of %d bytes, got %v of %d bytes, %v", typ, len(b), gotType, len(got), err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
}

func TestStreamKeepsMessages(t *testing.T) {
	g := newRig(t)
	a := g.ready("mini")
	dev, agt := g.pair(a, g.deviceToken())
	for _, n := range []int{0, 1, 125, 126, 4096, 65535, 65536, 1 << 20} {
		b := make([]byte, n)
		rand.Read(b)
		exchange(t, dev, agt, websocket.MessageBinary, b)
		exchange(t, agt, dev, websocket.MessageBinary, b)
	}
	exchange(t, agt, dev, websocket.MessageText, []byte("aGVsbG8="))
	exchange(t, agt, dev, websocket.MessageText, nil)
	exchange(t, dev, agt, websocket.MessageText, []byte("\xff not UTF-8: the receiver's business"))
	_ = agt.Close(websocket.StatusCode(4502), "gone \x1b[2J away")
	ce := closeOf(t, dev, 5*time.Second)
	if ce.Code != 4502 || ce.Reason != "gone [2J away" {
		t.Errorf("device was told %d %q", ce.Code, ce.Reason)
	}
	eventually(t, "the stream is counted", func() bool { return g.metric("holdfast_relay_text_streams_total") == 1 })
}

func TestAbortOfEitherSideEndsTheOther(t *testing.T) {
	for _, side := range []string{"device", "agent"} {
		t.Run(side, func(t *testing.T) {
			g := newRig(t)
			a := g.ready("mini")
			dev, agt := g.pair(a, g.deviceToken())
			exchange(t, dev, agt, websocket.MessageBinary, []byte("x"))
			gone, left := dev, agt
			if side == "agent" {
				gone, left = agt, dev
			}
			_ = gone.CloseNow()
			closeOf(t, left, 10*time.Second)
			eventually(t, "nothing is left", func() bool {
				return g.relay.axes.Count(axes.Device)+g.relay.axes.Count(axes.Agent) == 0
			})
			a.pong()
		})
	}
}

func TestRefuse(t *testing.T) {
	g := newRig(t)
	a := g.ready("mini")
	device := g.deviceToken()
	for _, tt := range []struct {
		code, want wire.CloseCode
		reason     string
		told       string
	}{
		{4502, 4502, "connection \x00refused", "connection refused"},
		{4403, 4403, "shell is off", "shell is off"},
		{4404, 4404, "no service web", "no service web"},
		{4409, 4502, "an agent may not say that", "an agent may not say that"},
		{0, 4502, "", ""},
		{4502, 4502, strings.Repeat("é", 200), strings.Repeat("é", 61)},
	} {
		dev := g.device("mini", device, "")
		a.send(wire.Message{Op: wire.OpRefuse, ConnID: a.next().ConnID, Code: tt.code, Reason: tt.reason})
		ce := closeOf(t, dev, 5*time.Second)
		if ce.Code != websocket.StatusCode(tt.want) || ce.Reason != tt.told {
			t.Errorf("refuse %d %q: device was told %d %q", tt.code, tt.reason, ce.Code, ce.Reason)
		}
	}
	a.send(wire.Message{Op: wire.OpRefuse, ConnID: "nobody.knows", Code: 4502})
	a.pong()
}

func TestRefuseOfAnotherMachineIsIgnored(t *testing.T) {
	g := newRig(t)
	a, b := g.ready("mini"), g.ready("maxi")
	dev := g.device("mini", g.deviceToken(), "")
	m := a.next()
	b.send(wire.Message{Op: wire.OpRefuse, ConnID: m.ConnID, Code: 4502})
	b.pong()
	exchange(t, dev, a.dialBack(m), websocket.MessageBinary, []byte("still there"))
}

// dataStatus opens a data connection that must be refused.
func (a *agent) dataStatus(machine wire.MachineID, tok issued, id wire.ConnID) int {
	a.t.Helper()
	ws, resp, err := a.rig.open(wire.AgentDataPath(machine, id), header(tok.text))
	if err == nil {
		_ = ws.CloseNow()
		return 101
	}
	if resp == nil {
		a.t.Fatal(err)
	}
	return resp.StatusCode
}

func TestConnIDIsGoodOnceAndForItsMachine(t *testing.T) {
	g := newRig(t)
	a, b := g.ready("mini"), g.ready("maxi")
	bobs := g.token("bob", engine.KindAgent, "mini") // same name, another account
	device := g.deviceToken()
	dev := g.device("mini", device, "")
	m := a.next()
	if got := b.dataStatus("maxi", b.token, m.ConnID); got != 404 {
		t.Errorf("another machine: got %d", got)
	}
	if got := a.dataStatus("mini", bobs, m.ConnID); got != 404 {
		t.Errorf("another account's machine of that name: got %d", got)
	}
	if got := a.dataStatus("mini", b.token, m.ConnID); got != 403 {
		t.Errorf("another machine's token: got %d", got)
	}
	if got := a.dataStatus("mini", a.token, m.ConnID+"x"); got != 404 {
		t.Errorf("a changed id: got %d", got)
	}
	agt := a.dialBack(m)
	exchange(t, dev, agt, websocket.MessageBinary, []byte("paired"))
	if got := a.dataStatus("mini", a.token, m.ConnID); got != 404 {
		t.Errorf("used: got %d", got)
	}
	_ = agt.CloseNow()
	if got := a.dataStatus("mini", a.token, m.ConnID); got != 404 {
		t.Errorf("used and ended: got %d", got)
	}
	refused := g.device("mini", device, "")
	m = a.next()
	a.send(wire.Message{Op: wire.OpRefuse, ConnID: m.ConnID, Code: 4502})
	wantClose(t, refused, 4502, "")
	if got := a.dataStatus("mini", a.token, m.ConnID); got != 404 {
		t.Errorf("refused: got %d", got)
	}
}

// rawDevice opens a stream by hand and gives the dial that it caused.
func (g *rig) rawDevice(a *agent, tok issued) (net.Conn, wire.Message) {
	g.t.Helper()
	conn := g.rawUpgrade(wire.ConnectPath(a.machine, ""), tok.text)
	return conn, a.next()
}

func TestHangUpBeforeThePairFreesTheDial(t *testing.T) {
	g := newRig(t)
	a := g.ready("mini")
	device := g.deviceToken()
	full := masked(frame.Binary, true, make([]byte, 64<<10)) // far more than is read
	for _, tt := range []struct {
		name string
		go_  func(net.Conn)
		code uint16 // that the device is told; 0 where it has gone
	}{
		{"close frame", func(c net.Conn) { write(t, c, masked(frame.Close, true, []byte{0x03, 0xe8})) }, 1000},
		{"close frame behind data", func(c net.Conn) {
			write(t, c, append(masked(frame.Binary, true, []byte("SSH-2.0-x\r\n")), masked(frame.Close, true, nil)...))
		}, 1000},
		{"close frame in two pieces", func(c net.Conn) {
			b := masked(frame.Close, true, []byte{0x03, 0xe9, 'b', 'y', 'e'})
			write(t, c, b[:3])
			time.Sleep(20 * time.Millisecond)
			write(t, c, b[3:])
		}, 1001},
		{"FIN", func(c net.Conn) { _ = c.(*net.TCPConn).CloseWrite() }, 0},
		{"FIN behind data", func(c net.Conn) {
			write(t, c, masked(frame.Binary, true, []byte("SSH-2.0-x\r\n")))
			_ = c.(*net.TCPConn).CloseWrite()
		}, 0},
		{"FIN behind more than is read", func(c net.Conn) { write(t, c, full); _ = c.(*net.TCPConn).CloseWrite() }, 0},
		{"reset", func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0); _ = c.Close() }, 0},
		{"reset behind more than is read", func(c net.Conn) {
			write(t, c, full)
			_ = c.(*net.TCPConn).SetLinger(0)
			_ = c.Close()
		}, 0},
		{"unmasked frame", func(c net.Conn) { write(t, c, frame.AppendFrame(nil, frame.Binary, []byte("x"))) }, 1002},
		{"reserved bits", func(c net.Conn) { write(t, c, []byte{0xf2, 0x80, 1, 2, 3, 4}) }, 1002},
		{"length of 2^63", func(c net.Conn) {
			write(t, c, []byte{0x82, 0xff, 0x80, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4})
		}, 1002},
	} {
		t.Run(tt.name, func(t *testing.T) {
			conn, m := g.rawDevice(a, device)
			tt.go_(conn)
			eventually(t, "the dial is forgotten", func() bool { return g.relay.dials.Count() == 0 })
			if got := a.dataStatus("mini", a.token, m.ConnID); got != 404 {
				t.Errorf("connection id: got %d", got)
			}
			if tt.code != 0 {
				if code, _, err := closeCode(conn); err != nil || code != tt.code {
					t.Errorf("device was told %d, %v; want %d", code, err, tt.code)
				}
				_ = conn.Close()
			}
			eventually(t, "the device's socket is gone", func() bool { return g.relay.axes.Count(axes.Device) == 0 })
		})
	}
}

func write(t *testing.T, c io.Writer, b []byte) {
	t.Helper()
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
}

// What a device sends before the pair is complete arrives whole and in order,
// whether it fits what is read early or not, and is not read further than that.
func TestBytesBeforeThePairWait(t *testing.T) {
	for _, n := range []int{1, 100, wire.MaxPendingBytes - 8, wire.MaxPendingBytes, wire.MaxPendingBytes + 1, 200 << 10} {
		g := newRig(t)
		a := g.ready("mini")
		conn, m := g.rawDevice(a, g.deviceToken())
		payload := make([]byte, n)
		rand.Read(payload)
		write(t, conn, masked(frame.Ping, true, []byte("early")))
		write(t, conn, masked(frame.Binary, false, payload[:n/2]))
		write(t, conn, masked(frame.Continuation, true, payload[n/2:]))
		agt := a.dialBack(m)
		agt.SetReadLimit(-1)
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		typ, got, err := agt.Read(ctx)
		cancel()
		if err != nil || typ != websocket.MessageBinary || !bytes.Equal(got, payload) {
			t.Errorf("%d bytes: got %v of %d bytes, %v", n, typ, len(got), err)
		}
		if h, p, err := readFrame(conn); err != nil || h.Op != frame.Pong || string(p) != "early" {
			t.Errorf("%d bytes: the early ping was answered with %v %q %v", n, h.Op, p, err)
		}
	}
}

// Bytes that come in one packet with the upgrade request are not lost.
func TestBytesBehindTheHandshake(t *testing.T) {
	g := newRig(t)
	a := g.ready("mini")
	conn, err := g.dialer(g.ctx(), "tcp", g.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	head := "GET /connect/mini HTTP/1.1\r\nHost: relay\r\nUpgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\n" +
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + rawKey + "\r\nAuthorization: Bearer " + g.deviceToken().text + "\r\n\r\n"
	write(t, conn, append([]byte(head), masked(frame.Binary, true, []byte("first words"))...))
	m := a.next()
	// The same for the agent's leg.
	back, err := g.dialer(g.ctx(), "tcp", g.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer back.Close()
	head = "GET " + wire.AgentDataPath("mini", m.ConnID) + " HTTP/1.1\r\nHost: relay\r\nUpgrade: websocket\r\nConnection: upgrade\r\n" +
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + rawKey + "\r\nAuthorization: Bearer " + a.token.text + "\r\n\r\n"
	write(t, back, append([]byte(head), masked(frame.Binary, true, []byte("SSH-2.0-first"))...))
	for conn, want := range map[net.Conn]string{conn: "SSH-2.0-first", back: "first words"} {
		if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if err := skipHeader(conn); err != nil {
			t.Fatal(err)
		}
		if h, p, err := readFrame(conn); err != nil || h.Op != frame.Binary || string(p) != want {
			t.Errorf("got %v %q %v, want %q", h.Op, p, err, want)
		}
	}
}

// skipHeader reads up to the empty line.
func skipHeader(r io.Reader) error {
	var b []byte
	for !bytes.HasSuffix(b, []byte("\r\n\r\n")) {
		var one [1]byte
		if _, err := io.ReadFull(r, one[:]); err != nil {
			return err
		}
		b = append(b, one[0])
	}
	if !bytes.HasPrefix(b, []byte("HTTP/1.1 101 ")) {
		return errors.New(string(b))
	}
	return nil
}

func TestOldAgentWithoutHelloInstanceOrSubprotocol(t *testing.T) {
	g := newRig(t)
	tok := g.agentToken("mini")
	ws := g.mustOpen("/agent/mini", header(tok.text))
	dev := g.mustOpen("/connect/mini", header(g.deviceToken().text))
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_, b, err := ws.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil || m["op"] != "dial" {
		t.Fatalf("got %s, %v", b, err)
	}
	agt := g.mustOpen("/agent-data/mini/"+m["connId"].(string), header(tok.text))
	exchange(t, agt, dev, websocket.MessageText, []byte("U1NILTIuMC1vbGQNCg=="))
	exchange(t, dev, agt, websocket.MessageBinary, []byte("SSH-2.0-new\r\n"))
}

// The agent's side breaks after its connection id was used up: the device
// learns it, and nothing stays.
func TestAgentDiesRightAfterDialBack(t *testing.T) {
	g := newRig(t)
	a := g.ready("mini")
	dev := g.device("mini", g.deviceToken(), "")
	agt := a.dialBack(a.next())
	_ = agt.CloseNow()
	closeOf(t, dev, 10*time.Second)
	eventually(t, "nothing is left", func() bool {
		return g.relay.axes.Count(axes.Device)+g.relay.axes.Count(axes.Agent)+g.relay.dials.Count() == 0
	})
}
