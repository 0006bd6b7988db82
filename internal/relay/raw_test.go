package relay

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"holdfast/internal/frame"
)

const rawKey = "dGhlIHNhbXBsZSBub25jZQ=="

// rawUpgrade opens a WebSocket by hand and gives the bare connection.
func (g *rig) rawUpgrade(path, token string, more ...string) net.Conn {
	g.t.Helper()
	conn, resp := g.rawRequest("GET", path, append([]string{
		"Authorization", "Bearer " + token, "Upgrade", "websocket", "Connection", "Upgrade",
		"Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", rawKey,
	}, more...)...)
	if resp.StatusCode != http.StatusSwitchingProtocols {
		g.t.Fatalf("upgrade %s: %s", path, resp.Status)
	}
	return conn
}

// rawRequest sends a request exactly as given and reads the answer's header.
func (g *rig) rawRequest(method, path string, headers ...string) (net.Conn, *http.Response) {
	g.t.Helper()
	conn, err := g.dialer(context.Background(), "tcp", g.addr)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = conn.Close() })
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: relay\r\n", method, path)
	for i := 0; i < len(headers); i += 2 {
		fmt.Fprintf(&b, "%s: %s\r\n", headers[i], headers[i+1])
	}
	b.WriteString("\r\n")
	if _, err := io.WriteString(conn, b.String()); err != nil {
		g.t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		g.t.Fatal(err)
	}
	// One byte at a time, so that nothing behind the header is swallowed.
	resp, err := http.ReadResponse(bufio.NewReaderSize(oneByte{conn}, 16), nil)
	if err != nil {
		g.t.Fatalf("%s %s: %v", method, path, err)
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		g.t.Fatal(err)
	}
	return conn, resp
}

type oneByte struct{ r io.Reader }

func (o oneByte) Read(p []byte) (int, error) { return o.r.Read(p[:min(1, len(p))]) }

// masked encodes one frame as a client sends it.
func masked(op frame.Opcode, fin bool, payload []byte) []byte {
	key := [4]byte{1, 2, 3, 4}
	out := frame.AppendHeader(nil, frame.Header{Fin: fin, Op: op, Masked: true, Mask: key, Length: int64(len(payload))})
	at := len(out)
	out = append(out, payload...)
	frame.Mask(key, 0, out[at:])
	return out
}

// readFrame reads one unmasked frame.
func readFrame(r io.Reader) (frame.Header, []byte, error) {
	var b []byte
	for {
		var one [1]byte
		if _, err := io.ReadFull(r, one[:]); err != nil {
			return frame.Header{}, nil, err
		}
		b = append(b, one[0])
		h, n, err := frame.ParseHeader(b)
		if err != nil {
			return h, nil, err
		}
		if n > 0 {
			payload := make([]byte, h.Length)
			_, err := io.ReadFull(r, payload)
			return h, payload, err
		}
	}
}

// closeCode reads frames until a close frame.
func closeCode(r io.Reader) (uint16, string, error) {
	for {
		h, p, err := readFrame(r)
		if err != nil {
			return 0, "", err
		}
		if h.Op == frame.Close {
			if len(p) < 2 {
				return 1005, "", nil
			}
			return binary.BigEndian.Uint16(p), string(p[2:]), nil
		}
	}
}
