package e2e

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"
)

// evil stands in the relay's place: devices talk to it, and it passes on to the
// real relay, records everything, and changes what it is told to.
type evil struct {
	server   *httptest.Server
	upstream string // the real relay

	mu sync.Mutex
	// Everything that passed: WebSocket payloads unmasked, bodies, headers.
	record bytes.Buffer
	// bodies are the requests' and responses' bodies by path.
	requests, responses map[string][]byte
	// flip is the position in a stream, counted over the payloads towards the
	// device or the machine, of the byte of which one bit is changed; 0 is none.
	flipToDevice, flipToMachine int64
	flipped                     int
	// hijack, where set, answers a device's stream instead of the relay.
	hijack func(ws *websocket.Conn)
	// intercept, where set, sees each request and may answer it itself.
	intercept func(w http.ResponseWriter, r *http.Request) bool
}

func newEvil(t *testing.T) *evil {
	t.Helper()
	e := &evil{requests: map[string][]byte{}, responses: map[string][]byte{}}
	e.server = httptest.NewServer(http.HandlerFunc(e.serve))
	t.Cleanup(func() {
		e.server.CloseClientConnections()
		e.server.Close()
	})
	return e
}

func (e *evil) url() string { return e.server.URL }

func (e *evil) serve(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	e.record.WriteString(r.Method + " " + r.URL.String() + "\n")
	r.Header.Write(&e.record)
	hijack, intercept := e.hijack, e.intercept
	e.mu.Unlock()
	if intercept != nil && intercept(w, r) {
		return
	}
	if strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		e.stream(w, r, hijack)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	req, err := http.NewRequestWithContext(r.Context(), r.Method, e.upstream+r.URL.String(), bytes.NewReader(body))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	req.Header = r.Header.Clone()
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return
	}
	e.mu.Lock()
	e.record.Write(body)
	e.record.Write(answer)
	e.requests[r.URL.Path], e.responses[r.URL.Path] = body, answer
	e.mu.Unlock()
	for k, v := range resp.Header {
		w.Header()[k] = v
	}
	w.WriteHeader(resp.StatusCode)
	w.Write(answer)
}

// stream joins a WebSocket of a device or an agent with one to the relay.
func (e *evil) stream(w http.ResponseWriter, r *http.Request, hijack func(*websocket.Conn)) {
	// The relay's refusal of an upgrade reaches the device as it is.
	ctx := context.WithoutCancel(r.Context())
	opts := &websocket.DialOptions{HTTPHeader: http.Header{}, Subprotocols: r.Header.Values("Sec-WebSocket-Protocol")}
	for _, k := range []string{"Authorization", "Holdfast-Instance", "Holdfast-Attempt"} {
		if v := r.Header.Get(k); v != "" {
			opts.HTTPHeader.Set(k, v)
		}
	}
	accept := &websocket.AcceptOptions{Subprotocols: []string{"holdfast.v1"}, InsecureSkipVerify: true}
	if hijack != nil && strings.HasPrefix(r.URL.Path, "/connect/") {
		ws, err := websocket.Accept(w, r, accept)
		if err != nil {
			return
		}
		defer ws.CloseNow()
		ws.SetReadLimit(-1)
		hijack(ws)
		return
	}
	far, resp, err := websocket.Dial(ctx, wsURL(e.upstream)+r.URL.String(), opts)
	if err != nil {
		status := http.StatusBadGateway
		if resp != nil {
			status = resp.StatusCode
			for k, v := range resp.Header {
				w.Header()[k] = v
			}
		}
		w.WriteHeader(status)
		return
	}
	defer far.CloseNow()
	near, err := websocket.Accept(w, r, accept)
	if err != nil {
		return
	}
	defer near.CloseNow()
	near.SetReadLimit(-1)
	far.SetReadLimit(-1)
	var wg sync.WaitGroup
	// Each ends when its source ends, and closes its destination.
	wg.Go(func() { e.copy(ctx, far, near, func() int64 { return e.flipToMachine }) })
	wg.Go(func() { e.copy(ctx, near, far, func() int64 { return e.flipToDevice }) })
	wg.Wait()
}

// copy passes messages on, recorded and perhaps changed.
func (e *evil) copy(ctx context.Context, to, from *websocket.Conn, flipAt func() int64) {
	var position int64
	for {
		kind, b, err := from.Read(ctx)
		if err != nil {
			code := websocket.CloseStatus(err)
			if code < 1000 || code == 1005 || code == 1006 {
				to.CloseNow()
				return
			}
			var ce websocket.CloseError
			if asCloseError(err, &ce) {
				to.Close(ce.Code, ce.Reason)
			}
			return
		}
		e.mu.Lock()
		e.record.Write(b)
		if at := flipAt(); at > 0 && position <= at && at < position+int64(len(b)) {
			b[at-position] ^= 0x10
			e.flipped++
		}
		e.mu.Unlock()
		position += int64(len(b))
		if to.Write(ctx, kind, b) != nil {
			from.CloseNow()
			return
		}
	}
}

// recorded is a copy of everything that passed so far.
func (e *evil) recorded() []byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	return bytes.Clone(e.record.Bytes())
}

func (e *evil) flipAt(toDevice, toMachine int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.flipToDevice, e.flipToMachine, e.flipped = toDevice, toMachine, 0
}

func (e *evil) flips() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.flipped
}

func (e *evil) set(change func(e *evil)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change(e)
}
