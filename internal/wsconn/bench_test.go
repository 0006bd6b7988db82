package wsconn

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/coder/websocket"

	"holdfast/internal/wire"
)

// loopbackStream connects a stream to f over real TCP.
func loopbackStream(b testing.TB, secure bool, f func(c *websocket.Conn)) *Stream {
	b.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{wire.SubprotocolV1}})
		if err != nil {
			return
		}
		defer c.CloseNow()
		c.SetReadLimit(-1)
		f(c)
	}))
	if secure {
		server.StartTLS()
	} else {
		server.Start()
	}
	b.Cleanup(server.Close)
	u, err := url.Parse(server.URL)
	if err != nil {
		b.Fatal(err)
	}
	o := Options{Relay: u, Path: "/connect/mini", Token: testToken}
	if secure {
		o.TLS = server.Client().Transport.(*http.Transport).TLSClientConfig
	}
	s, err := DialStream(context.Background(), o, StreamOptions{Side: DeviceSide, Liveness: dataConfig()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(s.CloseNow)
	return s
}

func drain(c *websocket.Conn) {
	for {
		_, r, err := c.Reader(context.Background())
		if err != nil {
			return
		}
		if _, err := io.Copy(io.Discard, r); err != nil {
			return
		}
	}
}

func BenchmarkStreamWrite(b *testing.B) {
	s := loopbackStream(b, false, drain)
	buf := make([]byte, wire.MaxMessageBytes)
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		if _, err := s.Write(buf); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkStreamRead(b *testing.B) {
	buf := make([]byte, wire.MaxMessageBytes)
	s := loopbackStream(b, false, func(c *websocket.Conn) {
		for c.Write(context.Background(), websocket.MessageBinary, buf) == nil {
		}
	})
	in := make([]byte, wire.MaxMessageBytes)
	b.SetBytes(int64(len(in)))
	for b.Loop() {
		if _, err := io.ReadFull(s, in); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkWriteOfTheLibrary is what BenchmarkStreamWrite is held against: the
// same messages without our link.
func BenchmarkWriteOfTheLibrary(b *testing.B) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, err := websocket.Accept(w, r, nil); err == nil {
			c.SetReadLimit(-1)
			drain(c)
			c.CloseNow()
		}
	}))
	defer server.Close()
	c, _, err := websocket.Dial(context.Background(), server.URL, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer c.CloseNow()
	buf := make([]byte, wire.MaxMessageBytes)
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		if err := c.Write(context.Background(), websocket.MessageBinary, buf); err != nil {
			b.Fatal(err)
		}
	}
}
