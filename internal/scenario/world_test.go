package scenario

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast/internal/account"
	"holdfast/internal/agent"
	"holdfast/internal/client"
	"holdfast/internal/engine"
	"holdfast/internal/faultproxy"
	"holdfast/internal/memnet"
	"holdfast/internal/relay"
	"holdfast/internal/wire"
	"holdfast/internal/wsconn"
)

func TestMain(m *testing.M) {
	code := m.Run()
	printMatrix(os.Stdout)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// long says, inside a test so that a cached result is not taken for another, whether the tests that wait for long in real time run.
func long() bool { return os.Getenv("HOLDFAST_LONG") != "" }

// The names on every floor. The first three are taken for loopback.
const (
	relayAddr      = "relay.localhost:80"
	agentPathAddr  = "agent-path.localhost:80"
	devicePathAddr = "device-path.localhost:80"
	sshdAddr       = "sshd.localhost:22"
)

// floor is a network with names.
type floor interface {
	listen(name string) (net.Listener, error)
	DialContext(ctx context.Context, network, addr string) (net.Conn, error)
	// virtual says that time is a bubble's.
	virtual() bool
}

// inMemory is package memnet inside a bubble.
type inMemory struct{ *memnet.Net }

func (f inMemory) listen(name string) (net.Listener, error) { return f.Listen(name) }
func (inMemory) virtual() bool                              { return true }

// onLoopback gives each name a free port of 127.0.0.1.
type onLoopback struct {
	mu    sync.Mutex
	ports map[string]string
}

func (f *onLoopback) listen(name string) (net.Listener, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ports == nil {
		f.ports = make(map[string]string)
	}
	f.ports[name] = l.Addr().String()
	return l, nil
}

func (f *onLoopback) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	f.mu.Lock()
	real := f.ports[addr]
	f.mu.Unlock()
	if real == "" {
		return nil, fmt.Errorf("dial %s: no such name", addr)
	}
	var d net.Dialer
	return d.DialContext(ctx, network, real)
}

func (*onLoopback) virtual() bool { return false }

// world is a relay with its store, one machine whose agent comes in over
// agentPath, and a device that comes in over devicePath.
type world struct {
	floor
	store  engine.Store
	router engine.Router
	relay  *relay.Relay
	served chan error

	agentPath, devicePath *faultproxy.Proxy
	sshd                  *service
	events                *record

	agentToken, deviceToken wire.Token
	agentOptions            agent.Options
	agent                   *agent.Agent
	stopAgent               context.CancelFunc
	agentDone               chan error
}

const machine = wire.MachineID("mini")

// newWorld starts everything but the agent.
func newWorld(f floor, change ...func(*relay.Options)) (*world, error) {
	return newWorldOn(f, engine.NewMemoryRouter(), change...)
}

// newWorldOn is newWorld with a router of the test's.
func newWorldOn(f floor, router engine.Router, change ...func(*relay.Options)) (w *world, err error) {
	w = &world{floor: f, router: router, events: &record{}}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	ctx := context.Background()
	if w.store, err = engine.OpenSQLite(ctx, engine.InMemory, engine.SQLiteOptions{}); err != nil {
		return w, err
	}
	accounts, err := account.New(account.Options{Store: w.store})
	if err != nil {
		return w, err
	}
	if _, err := accounts.Create(ctx, "ann"); err != nil {
		return w, err
	}
	issue := func(kind engine.TokenKind, m wire.MachineID) (wire.Token, error) {
		i, err := accounts.Issue(ctx, account.Request{Account: "ann", Kind: kind, Name: "test", Machine: m})
		return i.Text, err
	}
	if w.agentToken, err = issue(engine.KindAgent, machine); err != nil {
		return w, err
	}
	if w.deviceToken, err = issue(engine.KindDevice, ""); err != nil {
		return w, err
	}
	if err := w.startRelay(change...); err != nil {
		return w, err
	}
	path := func(name string) (*faultproxy.Proxy, error) {
		l, err := f.listen(name)
		if err != nil {
			return nil, err
		}
		return faultproxy.New(faultproxy.Options{Listener: l, Dial: func(ctx context.Context) (net.Conn, error) {
			return f.DialContext(ctx, "tcp", relayAddr)
		}})
	}
	if w.agentPath, err = path(agentPathAddr); err != nil {
		return w, err
	}
	if w.devicePath, err = path(devicePathAddr); err != nil {
		return w, err
	}
	l, err := f.listen(sshdAddr)
	if err != nil {
		return w, err
	}
	w.sshd = serve(l)
	w.agentOptions = w.optionsOfAgent()
	return w, nil
}

// optionsOfAgent are those of the machine's agent.
func (w *world) optionsOfAgent() agent.Options {
	return agent.Options{
		Relay: &url.URL{Scheme: "http", Host: agentPathAddr}, Machine: machine,
		Token: func(context.Context) (wire.Token, error) { return w.agentToken, nil },
		SSHD:  sshdAddr, Version: "test", Log: slog.New(w.events),
		DialContext: w.DialContext, DialService: w.DialContext,
	}
}

// startRelay starts a relay on the store, for the first time or again.
func (w *world) startRelay(change ...func(*relay.Options)) error {
	o := relay.Options{Store: w.store, Router: w.router, Log: relayLog(), Goroutines: w.virtual()}
	for _, f := range change {
		f(&o)
	}
	l, err := w.listen(relayAddr)
	if err != nil {
		return err
	}
	r, err := relay.New(o)
	if err != nil {
		l.Close()
		return err
	}
	w.relay, w.served = r, make(chan error, 1)
	served := w.served
	go func() { served <- r.Serve(l) }() // ended and waited for by stopRelay
	return nil
}

// relayLog shows what the relay says if HOLDFAST_TEST_LOG is set.
func relayLog() *slog.Logger {
	if os.Getenv("HOLDFAST_TEST_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, nil))
}

func (w *world) stopRelay() {
	if w.relay != nil {
		w.relay.Close()
		<-w.served
		w.relay = nil
	}
}

// startAgent starts the machine's agent.
func (w *world) startAgent() error {
	a, err := agent.New(w.agentOptions)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	w.agent, w.stopAgent, w.agentDone = a, cancel, make(chan error, 1)
	done := w.agentDone
	go func() { done <- a.Run(ctx) }() // ended and waited for by close
	return nil
}

// close ends everything; faults that still hold something are resolved by the
// end of the paths.
func (w *world) close() {
	for _, p := range []*faultproxy.Proxy{w.devicePath, w.agentPath} {
		if p != nil {
			p.Close()
		}
	}
	if w.agent != nil {
		w.stopAgent()
		<-w.agentDone
	}
	w.stopRelay()
	if w.sshd != nil {
		w.sshd.close()
	}
	w.router.Close()
	if w.store != nil {
		w.store.Close()
	}
}

// poll is how often it is looked; no figure is taken from it, and in a bubble
// every look costs as much as on a real clock.
func (w *world) poll() time.Duration {
	if w.virtual() {
		return 20 * time.Millisecond
	}
	return time.Millisecond
}

// waitUntil polls, because what it waits for has no event of its own.
func (w *world) waitUntil(what string, limit time.Duration, ok func() bool) error {
	for began := time.Now(); !ok(); time.Sleep(w.poll()) {
		if time.Since(began) > limit {
			return fmt.Errorf("waited %v for this: %s", limit, what)
		}
	}
	return nil
}

// ready waits until the relay has answered the agent.
func (w *world) ready() error {
	return w.waitUntil("the agent is up", patience, func() bool { return w.agent.Status().Proven })
}

// patience is for what takes no time at all in a bubble, on a loaded machine.
const patience = 30 * time.Second

// target is the machine's sshd, as the device's side names it.
func (w *world) target() client.Target {
	return client.Target{Relay: "http://" + devicePathAddr, Token: w.deviceToken, Machine: machine, Name: "mini"}
}

// session is a device's stream, joined with standard input and output as
// holdfast proxy does it.
type session struct {
	stream *wsconn.Stream
	// far is what the person's ssh holds of standard input and output.
	far   *memnet.Conn
	done  chan struct{}
	err   error     // of Join; valid once done is closed
	ended time.Time // the same
}

// open opens a stream over the device's path. The error is for the person.
func (w *world) open(ctx context.Context) (*session, error) { return w.openWith(ctx, 0) }

// openWith is open with a --keepalive; zero is the default.
func (w *world) openWith(ctx context.Context, keepalive time.Duration) (*session, error) {
	stream, err := client.Dialer{DialContext: w.DialContext, Keepalive: keepalive}.Stream(ctx, w.target(), true)
	if err != nil {
		return nil, client.Diagnose(err, w.target())
	}
	s := &session{stream: stream, done: make(chan struct{})}
	var near *memnet.Conn
	s.far, near = memnet.Pipe()
	go func() { // ends with either side; close waits for it
		defer close(s.done)
		s.err = wsconn.Join(context.Background(), stream, near)
		s.ended = time.Now()
	}()
	return s, nil
}

// close hangs up on this side.
func (s *session) close() {
	s.far.Reset()
	<-s.done
}

// says is what the person reads of the stream's end.
func (s *session) says(t client.Target) string {
	if s.err == nil {
		return ""
	}
	return client.Diagnose(s.err, t).Error()
}

// pace is the pause between two pieces of a copy: 3 MiB/s. The race detector,
// under which -short is given, makes each piece ten times as dear.
func pace() time.Duration {
	if testing.Short() {
		return 20 * time.Millisecond
	}
	return 5 * time.Millisecond
}

// The first byte of a stream tells the service what to do.
const (
	echo = 'e' // send everything back
	pour = 'p' // send for ever
	sink = 's' // take everything
)

// echoed does one round trip of a byte on a stream that was begun with echo.
func (s *session) echoed(limit time.Duration) error {
	if _, err := s.far.Write([]byte{'x'}); err != nil {
		return fmt.Errorf("type a byte: %w", err)
	}
	s.far.SetReadDeadline(time.Now().Add(limit))
	defer s.far.SetReadDeadline(time.Time{})
	if _, err := io.ReadFull(s.far, make([]byte, 1)); err != nil {
		return fmt.Errorf("wait for the echo: %w", err)
	}
	return nil
}

// works opens a stream and does a round trip on it.
func (w *world) works() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := w.open(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	if _, err := s.far.Write([]byte{echo}); err != nil {
		return err
	}
	return s.echoed(patience)
}

// service is what the machine's sshd is played by.
type service struct {
	l    net.Listener
	wait sync.WaitGroup

	mu    sync.Mutex
	conns []*served
}

// served is one connection of a service.
type served struct {
	conn net.Conn

	mu    sync.Mutex
	taken int64
	ended time.Time
}

func serve(l net.Listener) *service {
	s := &service{l: l}
	s.wait.Go(func() { // ended and waited for by close
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			v := &served{conn: c}
			s.mu.Lock()
			s.conns = append(s.conns, v)
			s.mu.Unlock()
			s.wait.Go(v.run) // ends with the connection
		}
	})
	return s
}

func (v *served) run() {
	defer func() {
		v.conn.Close()
		v.mu.Lock()
		v.ended = time.Now()
		v.mu.Unlock()
	}()
	first := make([]byte, 1)
	if _, err := io.ReadFull(v.conn, first); err != nil {
		return
	}
	switch first[0] {
	case pour:
		// As much as is taken, in pieces that make whole frames.
		buf := make([]byte, 16<<10)
		for i := range buf {
			buf[i] = byte(i)
		}
		for {
			if _, err := v.conn.Write(buf); err != nil {
				return
			}
			time.Sleep(pace()) // virtual time passes only while everybody waits
		}
	case sink, echo:
		buf := make([]byte, 32<<10)
		for {
			n, err := v.conn.Read(buf)
			v.mu.Lock()
			v.taken += int64(n)
			v.mu.Unlock()
			if err != nil {
				return
			}
			if first[0] == echo {
				if _, err := v.conn.Write(buf[:n]); err != nil {
					return
				}
			}
		}
	}
}

// last is the newest connection, or nil.
func (s *service) last() *served {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.conns) == 0 {
		return nil
	}
	return s.conns[len(s.conns)-1]
}

func (v *served) end() (at time.Time, over bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.ended, !v.ended.IsZero()
}

func (v *served) bytes() int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.taken
}

func (s *service) close() {
	s.l.Close()
	s.mu.Lock()
	for _, v := range s.conns {
		v.conn.Close()
	}
	s.mu.Unlock()
	s.wait.Wait()
}

// event is one line of the agent's log: what happened to its control
// connection, and when.
type event struct {
	at   time.Time
	text string
	err  string
	code int64
	wait time.Duration
}

// What the agent logs; the tests read it as a person would.
const (
	connected = "connected to the relay"
	lost      = "control connection lost"
	refused   = "the relay refuses this agent; it will be asked again"
	asked     = "the relay asks to reconnect"
)

// record keeps the events of an agent's control connection.
type record struct {
	mu   sync.Mutex
	list []event
}

func (*record) Enabled(context.Context, slog.Level) bool { return true }
func (r *record) WithAttrs([]slog.Attr) slog.Handler     { return r }
func (r *record) WithGroup(string) slog.Handler          { return r }

func (r *record) Handle(_ context.Context, line slog.Record) error {
	switch line.Message {
	case connected, lost, refused, asked:
	default:
		return nil
	}
	e := event{at: time.Now(), text: line.Message}
	line.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "err":
			e.err = fmt.Sprint(a.Value.Any())
		case "code":
			e.code = int64(asInt(a.Value.Any()))
		case "wait":
			e.wait = a.Value.Duration()
		}
		return true
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, e)
	return nil
}

func asInt(v any) int64 {
	switch n := v.(type) {
	case int64:
		return n
	case uint64:
		return int64(n)
	case uint16:
		return int64(n)
	case int:
		return int64(n)
	}
	return 0
}

// since are the events of a kind from a time on.
func (r *record) since(t time.Time, text string) (out []event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.list {
		if e.text == text && !e.at.Before(t) {
			out = append(out, e)
		}
	}
	return out
}
