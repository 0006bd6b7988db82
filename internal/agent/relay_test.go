package agent

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"holdfast/internal/memnet"
	"holdfast/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const relayAddr = "127.0.0.1:7700"

// fakeRelay plays the relay. Its functions may be nil; they run on the
// connection's goroutine, and the connection is closed hard when they return.
type fakeRelay struct {
	t      *testing.T
	net    *memnet.Net // nil on a real socket
	addr   string
	server *http.Server
	served chan error
	start  time.Time

	// refuse answers an upgrade of the control route instead of accepting it,
	// and says that it did. n counts the attempts, from 1.
	refuse  func(n int, w http.ResponseWriter, r *http.Request) bool
	control func(n int, c *peer)
	data    func(id wire.ConnID, c *websocket.Conn, r *http.Request)

	handlers sync.WaitGroup

	mu       sync.Mutex
	stopped  bool
	attempts []attempt
	conns    []*websocket.Conn
}

// attempt is one upgrade of the control route.
type attempt struct {
	at       time.Duration // since the relay started
	instance string
	attempt  string
	auth     string
}

// peer is the relay's end of a control connection.
type peer struct {
	*websocket.Conn
	t *testing.T
}

func newRelay(t *testing.T) *fakeRelay {
	t.Helper()
	n := memnet.New()
	l, err := n.Listen(relayAddr)
	if err != nil {
		t.Fatal(err)
	}
	return serveRelay(t, n, l)
}

// newLoopbackRelay listens on a real socket.
func newLoopbackRelay(t *testing.T) *fakeRelay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveRelay(t, nil, l)
}

func serveRelay(t *testing.T, n *memnet.Net, l net.Listener) *fakeRelay {
	r := &fakeRelay{t: t, net: n, addr: l.Addr().String(), served: make(chan error, 1), start: time.Now()}
	r.server = &http.Server{Handler: r}
	go func() { r.served <- r.server.Serve(l) }()
	t.Cleanup(func() {
		r.server.Close()
		r.mu.Lock()
		r.stopped = true
		for _, c := range r.conns {
			c.CloseNow()
		}
		r.mu.Unlock()
		<-r.served
		r.handlers.Wait()
	})
	return r
}

func (r *fakeRelay) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	if r.stopped {
		r.mu.Unlock()
		return
	}
	r.handlers.Add(1)
	r.mu.Unlock()
	defer r.handlers.Done()
	route, err := wire.ParseRoute(req.URL)
	if err != nil {
		r.t.Errorf("the agent asked for %s: %v", req.URL, err)
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	n := 0
	if route.Kind == wire.RouteAgent {
		r.mu.Lock()
		r.attempts = append(r.attempts, attempt{
			at:       time.Since(r.start),
			instance: req.Header.Get(wire.HeaderInstance),
			attempt:  req.Header.Get(wire.HeaderAttempt),
			auth:     req.Header.Get("Authorization"),
		})
		n = len(r.attempts)
		r.mu.Unlock()
		if r.refuse != nil && r.refuse(n, w, req) {
			return
		}
	}
	c, err := websocket.Accept(w, req, &websocket.AcceptOptions{Subprotocols: []string{wire.SubprotocolV1}})
	if err != nil {
		return
	}
	defer c.CloseNow()
	r.mu.Lock()
	r.conns = append(r.conns, c)
	r.mu.Unlock()
	c.SetReadLimit(-1)
	switch {
	case route.Kind == wire.RouteAgent && r.control != nil:
		r.control(n, &peer{c, r.t})
	case route.Kind == wire.RouteAgentData && r.data != nil:
		r.data(route.Conn, c, req)
	}
}

func (r *fakeRelay) seen() []attempt {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]attempt(nil), r.attempts...)
}

// next reads one message of the agent.
func (p *peer) next() (wire.Message, error) {
	typ, b, err := p.Read(context.Background())
	if err != nil {
		return wire.Message{}, err
	}
	if typ != websocket.MessageText {
		p.t.Errorf("control message of type %v", typ)
	}
	m, err := wire.DecodeControl(b)
	if err != nil {
		p.t.Errorf("the agent sent %q: %v", b, err)
	}
	return m, nil
}

// until reads until a message of op comes; pings are answered if pong is set.
func (p *peer) until(op wire.Op, pong bool) (wire.Message, error) {
	for {
		m, err := p.next()
		if err != nil {
			return m, err
		}
		if m.Op == wire.OpPing && pong {
			p.send(wire.Message{Op: wire.OpPong})
		}
		if m.Op == op {
			return m, nil
		}
	}
}

// live answers pings until the connection ends, and returns how.
func (p *peer) live() error {
	_, err := p.until("nothing", true)
	return err
}

// mute reads and answers nothing but protocol pings, as an edge does.
func (p *peer) mute() error {
	_, err := p.until("nothing", false)
	return err
}

func (p *peer) send(m wire.Message) {
	b, err := json.Marshal(m)
	if err != nil {
		p.t.Error(err)
	}
	p.Write(context.Background(), websocket.MessageText, b)
}

// options are those of an agent whose services are in the relay's network too.
func (r *fakeRelay) options() Options {
	o := Options{
		Relay:   &url.URL{Scheme: "http", Host: r.addr},
		Machine: "mini",
		Token:   func(context.Context) (wire.Token, error) { return testToken, nil },
		Version: "1.2.3",
		SSHD:    "127.0.0.1:22",
	}
	if r.net != nil {
		o.DialContext, o.DialService = r.net.DialContext, r.net.DialContext
	}
	return o
}

var testToken = wire.NewToken()

// running is an agent under test.
type running struct {
	*Agent
	t      *testing.T
	cancel context.CancelFunc
	done   chan error
}

func (r *fakeRelay) run(o Options) *running {
	r.t.Helper()
	a, err := New(o)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	run := &running{Agent: a, t: r.t, cancel: cancel, done: make(chan error, 1)}
	go func() { run.done <- a.Run(ctx) }()
	r.t.Cleanup(run.stop)
	return run
}

func (a *running) stop() {
	a.cancel()
	if err := <-a.done; !errors.Is(err, context.Canceled) && !errors.Is(err, ErrReplaced) {
		a.t.Errorf("Run returned %v", err)
	}
	a.done <- context.Canceled // stop may be called again
}

// listen serves a service in the relay's network.
func (r *fakeRelay) listen(addr string, f func(c net.Conn)) {
	r.t.Helper()
	l, err := r.net.Listen(addr)
	if err != nil {
		r.t.Fatal(err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				f(c)
			}()
		}
	}()
	r.t.Cleanup(func() { l.Close() })
}

func bubble(t *testing.T, f func(t *testing.T)) { synctest.Test(t, f) }

// gaps are the times between attempts.
func gaps(all []attempt) []time.Duration {
	var out []time.Duration
	for i := 1; i < len(all); i++ {
		out = append(out, all[i].at-all[i-1].at)
	}
	return out
}

func connID() wire.ConnID { return wire.NewConnID("n1") }

func bearer(token wire.Token) string { return "Bearer " + token.Secret() }

func closeReason(err error) string {
	var c websocket.CloseError
	if errors.As(err, &c) {
		return c.Reason
	}
	return ""
}

func contains(t *testing.T, what, s, want string) {
	t.Helper()
	if !strings.Contains(s, want) {
		t.Errorf("%s is %q, want %q in it", what, s, want)
	}
}
