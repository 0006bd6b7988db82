// Package lab plays failures of connections for a person to watch: a relay, an
// agent and a device in one process over loopback, the real code of all three,
// with an edge between them that misbehaves. Each scene takes less than a minute
// and says who believes what at which time.
//
// It proves nothing that the tests do not prove exactly, touches no state of
// this computer and opens no port but on loopback. What a caller will get wrong:
// time runs faster than it is told, because the idle times and windows of agent
// and device are divided by the scene's factor; the relay's own are not.
package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"sync"
	"time"

	"holdfast/internal/account"
	"holdfast/internal/agent"
	"holdfast/internal/client"
	"holdfast/internal/engine"
	"holdfast/internal/liveness"
	"holdfast/internal/relay"
	"holdfast/internal/wire"
	"holdfast/internal/wsconn"
)

// Line is something that was done or is believed.
type Line struct {
	Scene string `json:"scene"`
	// At is the time of the story, in seconds since its start.
	At float64 `json:"at"`
	// Who is lab, agent, relay, edge or device.
	Who  string `json:"who"`
	Text string `json:"text"`
}

// Scene is one failure.
type Scene struct {
	Name  string `json:"name"`
	Shows string `json:"shows"`
	// Factor is how much faster than told time runs.
	Factor int `json:"factor"`

	play func(s *stage) error
}

// Scenes are all of them, in the order in which they are best watched.
func Scenes() []Scene {
	return []Scene{
		{"ghost", "an edge answers protocol pings for a relay that has lost the socket", 5, ghostScene},
		{"half-open", "a device's link delivers nothing any more, and nobody says so", 2, halfOpenScene},
		{"idle", "an edge drops idle links without FIN", 10, idleScene},
		{"old-relay", "a relay that never answers the application ping is left alone", 20, oldRelayScene},
		{"stopped-reader", "ssh is under Ctrl-Z while output waits, and is not cut", 3, stoppedReaderScene},
	}
}

// ErrUnknown says that there is no such scene.
var ErrUnknown = errors.New("no such scene")

// Run plays the scene called name and gives each line to tell, one at a time.
// The error says that what should have been noticed was not, or what should have
// lived did not.
func Run(ctx context.Context, name string, tell func(Line)) error {
	for _, scene := range Scenes() {
		if scene.Name != name {
			continue
		}
		s := &stage{ctx: ctx, scene: scene, tell: tell, began: time.Now()}
		defer s.close()
		err := s.setUp()
		s.began = time.Now()
		if err == nil {
			err = scene.play(s)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return fmt.Errorf("scene %q: %w", name, err)
		}
		return nil
	}
	return fmt.Errorf("%q: %w", name, ErrUnknown)
}

const machine = wire.MachineID("mini")

// stage holds the parts of a running scene.
type stage struct {
	ctx   context.Context
	scene Scene
	began time.Time

	tellMu sync.Mutex
	tell   func(Line)

	store       engine.Store
	router      engine.Router
	relay       *relay.Relay
	relayURL    *url.URL
	agentToken  wire.Token
	deviceToken wire.Token
	edge        *edge
	agent       *agent.Agent
	service     net.Listener

	cancel context.CancelFunc
	wait   sync.WaitGroup
}

func (s *stage) say(who, format string, args ...any) {
	s.tellMu.Lock()
	defer s.tellMu.Unlock()
	at := time.Since(s.began) * time.Duration(s.scene.Factor)
	s.tell(Line{Scene: s.scene.Name, At: at.Round(100 * time.Millisecond).Seconds(), Who: who, Text: fmt.Sprintf(format, args...)})
}

// sleep waits for so much of the story's time.
func (s *stage) sleep(told time.Duration) error {
	timer := time.NewTimer(s.real(told))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
}

func (s *stage) real(told time.Duration) time.Duration { return told / time.Duration(s.scene.Factor) }

// scaled divides the times of a configuration by the scene's factor. A keepalive
// that would be shorter than allowed is left out: the question of a quiet link
// does its work.
func (s *stage) scaled(c liveness.Config) *liveness.Config {
	tracks := make([]liveness.Track, len(c.Tracks))
	for i, t := range c.Tracks {
		t.Idle, t.Window, t.Beat = s.real(t.Idle), s.real(t.Window), s.real(t.Beat)
		tracks[i] = t
	}
	c.Tracks = tracks
	if c.Keepalive = s.real(c.Keepalive); c.Keepalive < liveness.MinKeepalive {
		c.Keepalive = 0
	}
	return &c
}

// setUp starts relay, service and an edge that is not started yet.
func (s *stage) setUp() error {
	ctx, cancel := context.WithCancel(s.ctx)
	s.cancel = cancel
	var err error
	if s.store, err = engine.OpenSQLite(ctx, engine.InMemory, engine.SQLiteOptions{}); err != nil {
		return err
	}
	accounts, err := account.New(account.Options{Store: s.store})
	if err != nil {
		return err
	}
	if _, err := accounts.Create(ctx, "lab"); err != nil {
		return err
	}
	for _, t := range []struct {
		kind    engine.TokenKind
		machine wire.MachineID
		into    *wire.Token
	}{{engine.KindAgent, machine, &s.agentToken}, {engine.KindDevice, "", &s.deviceToken}} {
		issued, err := accounts.Issue(ctx, account.Request{Account: "lab", Kind: t.kind, Name: "lab", Machine: t.machine})
		if err != nil {
			return err
		}
		*t.into = issued.Text
	}
	s.router = engine.NewMemoryRouter()
	if s.relay, err = relay.New(relay.Options{
		Store: s.store, Router: s.router, Log: slog.New(slog.DiscardHandler), Keepalive: liveness.MinKeepalive,
	}); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.relayURL = &url.URL{Scheme: "http", Host: l.Addr().String()}
	s.wait.Go(func() { s.relay.Serve(l) }) // ended and waited for by close
	if s.service, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return err
	}
	s.wait.Go(s.serve) // the same
	s.edge, err = newEdge(s.relayURL.Host, func(text string) { s.say("edge", "%s", text) })
	return err
}

// close ends everything that was started.
func (s *stage) close() {
	if s.edge != nil {
		s.edge.close()
	}
	s.cancel()
	if s.relay != nil {
		s.relay.Close()
	}
	if s.service != nil {
		s.service.Close()
	}
	s.wait.Wait()
	if s.router != nil {
		s.router.Close()
	}
	if s.store != nil {
		s.store.Close()
	}
}

func (s *stage) edgeURL() *url.URL {
	return &url.URL{Scheme: "http", Host: s.edge.l.Addr().String()}
}

// startAgent starts the machine's agent on a relay's address and waits until it
// is connected.
func (s *stage) startAgent(at *url.URL) error {
	a, err := agent.New(agent.Options{
		Relay: at, Machine: machine, Token: func(context.Context) (wire.Token, error) { return s.agentToken, nil },
		SSHD: s.service.Addr().String(), Version: "lab",
		Control: s.scaled(liveness.AgentControl()), Data: s.scaled(liveness.Data()),
	})
	if err != nil {
		return err
	}
	s.agent = a
	ctx, cancel := context.WithCancel(s.ctx)
	before := s.cancel
	s.cancel = func() { cancel(); before() }
	s.wait.Go(func() { a.Run(ctx) }) // ended and waited for by close
	return s.until("the agent is connected", 10*time.Second, func() bool { return !a.Status().ConnectedSince.IsZero() })
}

// until waits for something in real time.
func (s *stage) until(what string, limit time.Duration, ok func() bool) error {
	for began := time.Now(); !ok(); {
		if time.Since(began) > limit {
			return fmt.Errorf("%v are over, and not yet: %s", (limit * time.Duration(s.scene.Factor)).Round(time.Second), what)
		}
		if err := s.ctx.Err(); err != nil {
			return context.Cause(s.ctx)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil
}

// sayAgent says what the agent believes.
func (s *stage) sayAgent() {
	st := s.agent.Status()
	switch {
	case st.ConnectedSince.IsZero():
		s.say("agent", "not connected: %s", st.LastError)
	case !st.Proven:
		s.say("agent", "connected, but the relay has never said that a dial would reach me")
	default:
		ago := time.Since(st.LastPong) * time.Duration(s.scene.Factor)
		s.say("agent", "connected; the relay last said so %v ago", ago.Round(time.Second))
	}
}

// sayRelay asks the relay itself, past the edge.
func (s *stage) sayRelay() error {
	state, err := s.relayState()
	if err != nil {
		return err
	}
	switch state {
	case wire.StateOffline:
		s.say("relay", "%s: offline, nobody holds that name", machine)
	default:
		s.say("relay", "%s: %s", machine, state)
	}
	return nil
}

func (s *stage) relayState() (wire.MachineState, error) {
	api, err := client.NewAPI(client.APIOptions{Relay: s.relayURL, Token: s.deviceToken})
	if err != nil {
		return "", err
	}
	defer api.Close()
	list, err := api.Machines(s.ctx)
	if err != nil {
		return "", err
	}
	for _, m := range list.Machines {
		if m.Machine == machine {
			return m.State, nil
		}
	}
	return wire.StateOffline, nil
}

func (s *stage) target(at *url.URL) client.Target {
	return client.Target{Relay: at.String(), Token: s.deviceToken, Machine: machine}
}

// dial opens a device's stream, judged at the scene's speed, and reads what the
// machine's service says first.
func (s *stage) dial(at *url.URL) (*wsconn.Stream, error) {
	stream, err := wsconn.DialStream(s.ctx, wsconn.Options{
		Relay: at, Path: wire.ConnectPath(machine, ""), Token: s.deviceToken,
	}, wsconn.StreamOptions{Side: wsconn.DeviceSide, Base64Compat: true, Liveness: s.scaled(liveness.Data())})
	if err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(stream, make([]byte, len(banner))); err != nil {
		stream.CloseNow()
		return nil, err
	}
	return stream, nil
}

// enter has a device try to get in, and says how that went.
func (s *stage) enter() error {
	stream, err := s.dial(s.relayURL)
	if err == nil {
		defer stream.CloseNow()
		if err = roundTrip(stream); err == nil {
			s.say("device", "in: a byte went to the machine and came back")
			return nil
		}
	}
	s.say("device", "%v", client.Diagnose(err, s.target(s.relayURL)))
	return err
}
