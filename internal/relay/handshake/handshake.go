// Package handshake is the HTTP side of a WebSocket: whether a request is a good
// handshake, its upgrade, and taking leave of a connection that has no other
// owner.
//
// It knows no token and writes no refusal. What a caller will get wrong: after
// Upgrade the request's context says nothing about the connection any more.
package handshake

import (
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/gobwas/ws"

	"holdfast/internal/frame"
	"holdfast/internal/relay/gate"
	"holdfast/internal/wire"
)

// writeTimeout bounds one small write of the relay's own: a close frame, a
// handshake's answer.
const writeTimeout = wire.DrainTimeout

// Request is what a WebSocket request says beside its token and path.
type Request struct {
	// Plain is set for a request that asks for no upgrade at all. It is told so
	// last, when its token and path are good: whoever comes with a browser or
	// curl, or through a proxy that removes Upgrade, learns the more useful first.
	Plain    bool
	Selected wire.Selection
	// Instance and Attempt are an agent's; empty and 0 for an older one.
	Instance wire.Instance
	Attempt  uint64
}

// Parse checks the syntax of a WebSocket request: RFC 6455, section
// 4.2.1, and our own headers. Every failure is 400.
func Parse(r *http.Request) (Request, *gate.Refusal) {
	bad := func(text string) (Request, *gate.Refusal) {
		return Request{}, gate.Refuse(http.StatusBadRequest, wire.RefusalSyntax, text)
	}
	h := r.Header
	switch {
	case r.Method != http.MethodGet || !r.ProtoAtLeast(1, 1) || r.Host == "":
		return bad("a WebSocket handshake is a GET of HTTP/1.1 with a Host")
	case r.ContentLength != 0:
		// The body would be read as the first frames of the stream.
		return bad("a WebSocket handshake has no body")
	case !listHas(h.Values("Upgrade"), "websocket"):
	case !listHas(h.Values("Connection"), "upgrade"):
		return bad("a WebSocket handshake has Upgrade in Connection")
	case len(h.Values("Sec-Websocket-Version")) != 1 || h.Get("Sec-Websocket-Version") != "13":
		return bad("this relay speaks version 13 of the WebSocket protocol")
	case len(h.Values("Sec-Websocket-Key")) != 1 || !validKey(h.Get("Sec-Websocket-Key")):
		return bad("Sec-WebSocket-Key must be 16 bytes of base64")
	}
	offered := wire.Subprotocols(h)
	for _, p := range offered {
		if !isToken(p) {
			return bad("Sec-WebSocket-Protocol is not a list of tokens")
		}
	}
	out := Request{Plain: !listHas(h.Values("Upgrade"), "websocket")}
	out.Selected = wire.SelectSubprotocol(offered, h.Get("Origin") != "", wire.SubprotocolV1)
	var err error
	if v := h.Values(wire.HeaderInstance); len(v) > 0 {
		if out.Instance, err = wire.ParseInstance(v[0]); err != nil || len(v) > 1 {
			return bad(wire.HeaderInstance + " must be one name of 1 to 64 letters and digits")
		}
		out.Attempt = 1 // an instance that does not count its attempts has one
	}
	if v := h.Values(wire.HeaderAttempt); len(v) > 0 {
		if out.Attempt, err = wire.ParseAttempt(v[0]); err != nil || len(v) > 1 {
			return bad(wire.HeaderAttempt + " must be one number from 1")
		}
	}
	return out, nil
}

// listHas finds a token in the lists of a header's values (RFC 9110, 5.6.1).
func listHas(values []string, token string) bool {
	for _, v := range values {
		for e := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(strings.TrimSpace(e), token) {
				return true
			}
		}
	}
	return false
}

func validKey(s string) bool {
	b, err := base64.StdEncoding.DecodeString(s)
	return err == nil && len(b) == 16 && len(s) == 24
}

// isToken is RFC 9110, section 5.6.2.
func isToken(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
			return false
		}
	}
	return s != ""
}

// Upgrade answers 101 and takes the connection over. head is what the peer sent
// behind its request already. The caller owns conn.
func Upgrade(w http.ResponseWriter, r *http.Request, protocol string) (conn net.Conn, head []byte, err error) {
	// Parse has accepted more spellings than the library reads, and the
	// choice of subprotocol is ours.
	h := r.Header
	h["Upgrade"], h["Connection"] = []string{"websocket"}, []string{"Upgrade"}
	up := ws.HTTPUpgrader{Timeout: writeTimeout}
	if protocol == "" {
		delete(h, "Sec-Websocket-Protocol")
	} else {
		h["Sec-Websocket-Protocol"] = []string{protocol}
		up.Protocol = func(p string) bool { return p == protocol }
	}
	conn, rw, _, err := up.Upgrade(r, w)
	if err != nil {
		if conn != nil {
			_ = conn.Close() // the peer has gone, or the server was shut down
		}
		return nil, nil, fmt.Errorf("upgrade: %w", err)
	}
	// A copy: the buffer belongs to the server's pool.
	if n := rw.Reader.Buffered(); n > 0 {
		b, err := rw.Reader.Peek(n)
		if err != nil {
			_ = conn.Close()
			return nil, nil, fmt.Errorf("upgrade: %w", err)
		}
		head = append([]byte(nil), b...)
	}
	return conn, head, nil
}

// Farewell sends a close frame, shuts the sending side, reads on for at most
// wire.DrainTimeout, since a hard close would lose the code, and closes.
func Farewell(conn net.Conn, code wire.CloseCode, reason string) {
	defer conn.Close()
	until := time.Now().Add(wire.DrainTimeout)
	if conn.SetDeadline(until) != nil {
		return
	}
	if _, err := conn.Write(frame.AppendClose(nil, uint16(code), reason)); err != nil {
		return
	}
	if half, ok := conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() != nil {
		return
	}
	// What still comes is nobody's.
	_, _ = io.Copy(io.Discard, struct{ io.Reader }{conn})
}
