package wsconn

import (
	"bufio"
	"context"
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"holdfast/internal/liveness"
	"holdfast/internal/memnet"
	"holdfast/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testToken is what tests look for in errors.
var testToken = wire.NewToken()

// relayAddr is where the tests' relays listen.
const relayAddr = "127.0.0.1:7700"

// fakeRelay serves handler in memory until the test ends.
type fakeRelay struct {
	net    *memnet.Net
	server *http.Server
	served chan error

	handlers sync.WaitGroup

	mu      sync.Mutex
	stopped bool
	conns   []*websocket.Conn
}

func serve(t *testing.T, handler http.HandlerFunc) *fakeRelay {
	t.Helper()
	r := &fakeRelay{net: memnet.New(), served: make(chan error, 1)}
	l, err := r.net.Listen(relayAddr)
	if err != nil {
		t.Fatal(err)
	}
	r.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		if r.stopped {
			r.mu.Unlock()
			return
		}
		r.handlers.Add(1)
		r.mu.Unlock()
		defer r.handlers.Done()
		handler(w, req)
	})}
	go func() { r.served <- r.server.Serve(l) }()
	t.Cleanup(r.stop)
	return r
}

func (r *fakeRelay) stop() {
	r.server.Close()
	r.mu.Lock()
	r.stopped = true
	for _, c := range r.conns {
		c.CloseNow()
	}
	r.mu.Unlock()
	<-r.served
	r.handlers.Wait()
}

// serveWS accepts a WebSocket and hands it to f; the connection is closed hard
// when f returns.
func serveWS(t *testing.T, f func(c *websocket.Conn, r *http.Request)) *fakeRelay {
	t.Helper()
	var relay *fakeRelay
	relay = serve(t, func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{wire.SubprotocolV1}})
		if err != nil {
			return
		}
		relay.mu.Lock()
		relay.conns = append(relay.conns, c)
		relay.mu.Unlock()
		c.SetReadLimit(-1)
		f(c, r)
		c.CloseNow()
	})
	return relay
}

// serveRaw answers the upgrade and hands over the bare connection.
func serveRaw(t *testing.T, subprotocol string, f func(c net.Conn, br *bufio.Reader)) *fakeRelay {
	t.Helper()
	return serve(t, func(w http.ResponseWriter, r *http.Request) {
		sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
		c, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		answer := "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " +
			base64.StdEncoding.EncodeToString(sum[:]) + "\r\n"
		if subprotocol != "" {
			answer += "Sec-WebSocket-Protocol: " + subprotocol + "\r\n"
		}
		io.WriteString(c, answer+"\r\n")
		f(c, rw.Reader)
	})
}

func (r *fakeRelay) options() Options {
	return Options{
		Relay:       &url.URL{Scheme: "http", Host: relayAddr},
		Path:        "/connect/mini",
		Token:       testToken,
		DialContext: r.net.DialContext,
	}
}

func dataConfig() *liveness.Config {
	c := liveness.Data()
	return &c
}

func (r *fakeRelay) stream(t *testing.T, so StreamOptions) *Stream {
	t.Helper()
	if so.Liveness == nil {
		so.Liveness = dataConfig()
	}
	if so.Side == 0 {
		so.Side = DeviceSide
	}
	s, err := DialStream(t.Context(), r.options(), so)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.CloseNow)
	return s
}

// bubble runs f where time is virtual. Cleanups of the test inside run before
// the bubble ends.
func bubble(t *testing.T, f func(t *testing.T)) { synctest.Test(t, f) }

// echo sends every message back as it came.
func echo(c *websocket.Conn, _ *http.Request) {
	for {
		typ, b, err := c.Read(context.Background())
		if err != nil {
			return
		}
		if c.Write(context.Background(), typ, b) != nil {
			return
		}
	}
}

// readFrame reads one frame of a client and unmasks it.
func readFrame(br *bufio.Reader) (op byte, payload []byte, err error) {
	var h [2]byte
	if _, err := io.ReadFull(br, h[:]); err != nil {
		return 0, nil, err
	}
	n := int(h[1] & 0x7f)
	ext := map[int]int{126: 2, 127: 8}[n]
	if ext > 0 {
		b := make([]byte, ext)
		if _, err := io.ReadFull(br, b); err != nil {
			return 0, nil, err
		}
		n = 0
		for _, x := range b {
			n = n<<8 | int(x)
		}
	}
	if h[1]&0x80 == 0 {
		return 0, nil, errors.New("frame of a client is not masked")
	}
	var key [4]byte
	if _, err := io.ReadFull(br, key[:]); err != nil {
		return 0, nil, err
	}
	payload = make([]byte, n)
	if _, err := io.ReadFull(br, payload); err != nil {
		return 0, nil, err
	}
	for i := range payload {
		payload[i] ^= key[i%4]
	}
	return h[0] & 0x0f, payload, nil
}

// within fails the test if d took another time than want, to the millisecond.
func within(t *testing.T, what string, d, want time.Duration) {
	t.Helper()
	if d.Round(time.Millisecond) != want {
		t.Errorf("%s took %v, want %v", what, d, want)
	}
}
