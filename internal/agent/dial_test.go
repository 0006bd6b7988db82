package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/wire"
	"holdfast/internal/wsconn"
)

// dialOnce makes a relay that sends dials to the agent and hands its refusals
// to refused.
func dialOnce(t *testing.T, relay *fakeRelay, dials ...wire.Message) (refused chan wire.Message) {
	t.Helper()
	refused = make(chan wire.Message, len(dials))
	relay.control = func(_ int, p *peer) {
		p.until(wire.OpHello, true)
		for _, m := range dials {
			m.Op = wire.OpDial
			p.send(m)
		}
		for {
			m, err := p.until(wire.OpRefuse, true)
			if err != nil {
				return
			}
			refused <- m
		}
	}
	return refused
}

func echoService(c net.Conn) { io.Copy(c, c) }

func TestDialReachesTheServiceThatIsNamed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := newRelay(t)
		for name, addr := range map[string]string{"sshd": "127.0.0.1:22", "web": "127.0.0.1:80"} {
			relay.listen(addr, func(c net.Conn) {
				io.WriteString(c, "this is "+name)
				io.Copy(io.Discard, c)
			})
		}
		o := relay.options()
		o.Services = map[wire.ServiceName]Service{
			"web": {Addr: "127.0.0.1:80"},
			"ssh": {Handle: func(_ context.Context, c net.Conn, info DialInfo) {
				fmt.Fprintf(c, "this is the built-in server for %q", info.Device)
			}},
		}
		got := make(chan string, 3)
		relay.data = func(_ wire.ConnID, c *websocket.Conn, r *http.Request) {
			if a := r.Header.Get("Authorization"); a != bearer(testToken) {
				t.Errorf("data connection came with %q", a)
			}
			c.Write(context.Background(), websocket.MessageBinary, nil)
			_, b, err := c.Read(context.Background())
			if err != nil {
				t.Error(err)
			}
			got <- string(b)
		}
		dialOnce(t, relay, wire.Message{ConnID: connID()})
		relay.run(o)
		if s := <-got; !strings.Contains(s, "sshd") && !strings.Contains(s, "dGhpcyBpcyBzc2hk") {
			t.Errorf("without a name: %q", s)
		}
	})
	bubble(t, func(t *testing.T) {
		relay := newRelay(t)
		o := relay.options()
		o.Services = map[wire.ServiceName]Service{
			"ssh": {Handle: func(_ context.Context, c net.Conn, info DialInfo) {
				buf := make([]byte, 100)
				n, _ := c.Read(buf)
				fmt.Fprintf(c, "%s, %s", buf[:n], info.Device)
			}},
		}
		relay.data = func(_ wire.ConnID, c *websocket.Conn, _ *http.Request) {
			c.Write(context.Background(), websocket.MessageBinary, []byte("hello"))
			typ, b, err := c.Read(context.Background())
			if err != nil || typ != websocket.MessageBinary || string(b) != "hello, dev1" {
				t.Errorf("got %v %q, %v", typ, b, err)
			}
			// The handler has returned, so the stream ends in an orderly way.
			if _, _, err := c.Read(context.Background()); websocket.CloseStatus(err) != 1000 {
				t.Errorf("the stream ended with %v", err)
			}
		}
		dialOnce(t, relay, wire.Message{ConnID: connID(), Service: "ssh", Device: "dev1"})
		a := relay.run(o)
		time.Sleep(time.Second)
		if s := a.Status(); s.LastDialBack.IsZero() || s.Streams != 0 {
			t.Errorf("status is %+v", s)
		}
	})
}

func TestDialsThatAreRefused(t *testing.T) {
	tests := []struct {
		name    string
		service wire.ServiceName
		proto   string
		change  func(*Options)
		code    wire.CloseCode
		reason  string
	}{
		{name: "sshd is down", code: 4502, reason: "sshd at 127.0.0.1:22: connection refused"},
		{name: "sshd is off", change: func(o *Options) { o.SSHD = "" }, code: 4404, reason: "no sshd"},
		{name: "no such service", service: "web", code: 4404, reason: `no service "web"`},
		{name: "a service is not an address", service: "127.0.0.1", code: 4404, reason: "no service"},
		{name: "unspoken protocol", proto: "holdfast.resume.v1", code: 4502, reason: "does not speak holdfast.resume.v1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				relay := newRelay(t)
				relay.data = func(wire.ConnID, *websocket.Conn, *http.Request) {
					t.Error("the agent dialled back")
				}
				o := relay.options()
				if tt.change != nil {
					tt.change(&o)
				}
				id := connID()
				refused := dialOnce(t, relay, wire.Message{ConnID: id, Service: tt.service, Proto: tt.proto})
				relay.run(o)
				m := <-refused
				if m.ConnID != id || m.Code != tt.code {
					t.Errorf("refused with %+v", m)
				}
				contains(t, "reason", m.Reason, tt.reason)
			})
		})
	}
}

func TestServiceIsGivenFiveSeconds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := newRelay(t)
		o := relay.options()
		o.DialService = func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		refused := dialOnce(t, relay, wire.Message{ConnID: connID()})
		relay.run(o)
		m := <-refused
		if took := time.Since(relay.start).Round(time.Millisecond); took != wire.ServiceTimeout || m.Code != 4502 {
			t.Errorf("refused with %+v after %v", m, took)
		}
		contains(t, "reason", m.Reason, "no answer within 5s")
	})
}

func TestFailedDialBackIsReportedAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := newRelay(t)
		relay.listen("127.0.0.1:22", echoService)
		var dials atomic.Int64
		o := relay.options()
		o.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if dials.Add(1) > 1 {
				return nil, errors.New("new connections are blocked")
			}
			return relay.net.DialContext(ctx, network, addr)
		}
		refused := dialOnce(t, relay, wire.Message{ConnID: connID()})
		a := relay.run(o)
		m := <-refused
		if m.Code != 4502 || time.Since(relay.start) > time.Second {
			t.Errorf("refused with %+v after %v", m, time.Since(relay.start))
		}
		contains(t, "reason", m.Reason, "could not open its data connection")
		contains(t, "status", a.Status().DialBackError, "new connections are blocked")
	})
}

func TestRelayThatNoLongerWaitsIsNotTold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := newRelay(t)
		relay.listen("127.0.0.1:22", echoService)
		gone := http.NewServeMux()
		gone.HandleFunc("/agent-data/", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set(wire.HeaderRefusal, string(wire.RefusalNotFound))
			http.Error(w, "not found", http.StatusNotFound)
		})
		gone.Handle("/", relay)
		relay.server.Handler = gone
		refused := dialOnce(t, relay, wire.Message{ConnID: connID()})
		a := relay.run(relay.options())
		time.Sleep(20 * time.Second)
		if len(refused) != 0 || a.Status().DialBackError == "" {
			t.Errorf("%d refusals, status %+v", len(refused), a.Status())
		}
	})
}

func TestConnIDThatComesTwiceIsIgnored(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := newRelay(t)
		var connects, datas atomic.Int64
		relay.listen("127.0.0.1:22", func(c net.Conn) {
			connects.Add(1)
			io.Copy(io.Discard, c)
		})
		relay.data = func(_ wire.ConnID, c *websocket.Conn, _ *http.Request) {
			datas.Add(1)
			c.Close(websocket.StatusNormalClosure, "")
		}
		id := connID()
		refused := dialOnce(t, relay, wire.Message{ConnID: id}, wire.Message{ConnID: id}, wire.Message{ConnID: id})
		relay.run(relay.options())
		time.Sleep(time.Minute)
		if connects.Load() != 1 || datas.Load() != 1 || len(refused) != 0 {
			t.Errorf("%d connects, %d data connections, %d refusals", connects.Load(), datas.Load(), len(refused))
		}
	})
}

func TestStreamsAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := newRelay(t)
		relay.listen("127.0.0.1:22", echoService)
		quit := make(chan struct{})
		relay.data = func(_ wire.ConnID, c *websocket.Conn, _ *http.Request) { <-quit }
		o := relay.options()
		o.MaxStreams = 3
		var dials []wire.Message
		for range 5 {
			dials = append(dials, wire.Message{ConnID: connID()})
		}
		refused := dialOnce(t, relay, dials...)
		a := relay.run(o)
		for i := range 2 {
			m := <-refused
			if m.Code != 4502 || m.ConnID != dials[3+i].ConnID {
				t.Errorf("refused with %+v", m)
			}
		}
		time.Sleep(time.Second)
		if n := a.Status().Streams; n != 3 {
			t.Errorf("%d streams", n)
		}
		close(quit)
		time.Sleep(time.Second)
		if n := a.Status().Streams; n != 0 {
			t.Errorf("%d streams left", n)
		}
	})
}

func TestRevokeRemovesTheKeyAndEndsTheDevicesStreams(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := newRelay(t)
		relay.listen("127.0.0.1:22", echoService)
		ends := map[string]chan error{"dev1": make(chan error, 2), "dev2": make(chan error, 2)}
		byID := map[wire.ConnID]string{}
		var dials []wire.Message
		for _, device := range []string{"dev1", "dev2", "dev1"} {
			m := wire.Message{Op: wire.OpDial, ConnID: connID(), Device: device}
			byID[m.ConnID] = device
			dials = append(dials, m)
		}
		relay.data = func(id wire.ConnID, c *websocket.Conn, _ *http.Request) {
			_, _, err := c.Read(context.Background())
			ends[byID[id]] <- err
		}
		acked := make(chan wire.Message, 1)
		relay.control = func(_ int, p *peer) {
			p.until(wire.OpHello, true)
			for _, m := range dials {
				p.send(m)
			}
			time.Sleep(time.Second)
			p.send(wire.Message{Op: wire.OpRevoke, Device: "dev1", Key: "ssh-ed25519 AAAA"})
			m, _ := p.until(wire.OpRevoked, true)
			acked <- m
			p.live()
		}
		var removed atomic.Value
		o := relay.options()
		o.Revoke = func(_ context.Context, device, key string) error {
			removed.Store(device + " " + key)
			return nil
		}
		a := relay.run(o)
		for range 2 {
			if err := <-ends["dev1"]; websocket.CloseStatus(err) != 4401 || closeReason(err) != "device revoked" {
				t.Errorf("the device's stream ended with %v", err)
			}
		}
		if m := <-acked; m.Device != "dev1" || m.Key != "ssh-ed25519 AAAA" {
			t.Errorf("acknowledged with %+v", m)
		}
		if removed.Load() != "dev1 ssh-ed25519 AAAA" {
			t.Errorf("removed %v", removed.Load())
		}
		time.Sleep(time.Minute)
		if n := a.Status().Streams; n != 1 || len(ends["dev2"]) != 0 {
			t.Errorf("%d streams are left", n)
		}
	})
}

// TestRevokeThatFailsIsNotAcknowledged: the relay sends it again on the next
// connection.
func TestRevokeThatFailsIsNotAcknowledged(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := newRelay(t)
		var acks atomic.Int64
		relay.control = func(n int, p *peer) {
			p.until(wire.OpHello, true)
			p.send(wire.Message{Op: wire.OpRevoke, Device: "dev1", Key: "k"})
			if n == 1 {
				time.Sleep(time.Second)
				return
			}
			p.until(wire.OpRevoked, true)
			acks.Store(int64(n))
			p.live()
		}
		var calls atomic.Int64
		o := relay.options()
		o.Revoke = func(context.Context, string, string) error {
			if calls.Add(1) == 1 {
				return errors.New("disk full")
			}
			return nil
		}
		relay.run(o)
		time.Sleep(10 * time.Second)
		if acks.Load() != 2 || calls.Load() != 2 {
			t.Errorf("acknowledged on connection %d after %d calls", acks.Load(), calls.Load())
		}
	})
}

// TestStreamsOutliveTheControlConnection: a relay that restarts its control
// plane, or a lost packet there, does not cost a session.
func TestStreamsOutliveTheControlConnection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := newRelay(t)
		relay.listen("127.0.0.1:22", echoService)
		id := connID()
		relay.control = func(n int, p *peer) {
			p.until(wire.OpHello, true)
			if n == 1 {
				p.send(wire.Message{Op: wire.OpDial, ConnID: id})
				time.Sleep(5 * time.Second)
				return
			}
			p.live()
		}
		done := make(chan struct{})
		relay.data = func(_ wire.ConnID, c *websocket.Conn, _ *http.Request) {
			defer close(done)
			for range 20 {
				time.Sleep(time.Second)
				c.Write(context.Background(), websocket.MessageBinary, []byte("x"))
				if _, b, err := c.Read(context.Background()); err != nil || string(b) != "x" {
					t.Errorf("echo: %q, %v", b, err)
					return
				}
			}
		}
		relay.run(relay.options())
		<-done
		if n := len(relay.seen()); n != 2 {
			t.Errorf("%d control connections", n)
		}
	})
}

func TestStopEndsStreams(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := newRelay(t)
		relay.listen("127.0.0.1:22", echoService)
		end := make(chan error, 1)
		relay.data = func(_ wire.ConnID, c *websocket.Conn, _ *http.Request) {
			_, _, err := c.Read(context.Background())
			end <- err
		}
		dialOnce(t, relay, wire.Message{ConnID: connID()})
		a := relay.run(relay.options())
		time.Sleep(time.Second)
		a.stop()
		if err := <-end; websocket.CloseStatus(err) != websocket.StatusGoingAway {
			t.Errorf("the stream ended with %v", err)
		}
	})
}

// TestServiceIsConnectedBeforeTheDialBack: a relay must not pair a device with
// a service that is not there.
func TestServiceIsConnectedBeforeTheDialBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := newRelay(t)
		relay.listen("127.0.0.1:22", echoService)
		var connected atomic.Bool
		o := relay.options()
		o.DialService = func(ctx context.Context, network, addr string) (net.Conn, error) {
			time.Sleep(3 * time.Second)
			connected.Store(true)
			return relay.net.DialContext(ctx, network, addr)
		}
		done := make(chan struct{})
		relay.data = func(wire.ConnID, *websocket.Conn, *http.Request) {
			if !connected.Load() {
				t.Error("dialled back before the service was connected")
			}
			close(done)
		}
		dialOnce(t, relay, wire.Message{ConnID: connID()})
		relay.run(o)
		<-done
		synctest.Wait()
	})
}

// TestHundredsOfStreamsComeAndGo over real sockets: orderly, aborted by the
// relay, ended by the service, refused. Nothing is left.
func TestHundredsOfStreamsComeAndGo(t *testing.T) {
	relay := newLoopbackRelay(t)
	service, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var services sync.WaitGroup
	services.Go(func() {
		for {
			c, err := service.Accept()
			if err != nil {
				return
			}
			services.Go(func() {
				defer c.Close()
				b := make([]byte, 1)
				for {
					if _, err := c.Read(b); err != nil || b[0] == 'q' {
						return
					}
					c.Write(b)
				}
			})
		}
	})
	// So many at once: all together they take a busy machine longer than a dial may.
	const rounds, together = 400, 50
	ended, refused := make(chan struct{}, rounds), make(chan wire.Message, rounds)
	slots := make(chan struct{}, together)
	kinds := map[wire.ConnID]int{}
	var dials []wire.Message
	for i := range rounds {
		m := wire.Message{Op: wire.OpDial, ConnID: connID(), Device: fmt.Sprint(i % 7)}
		if i%4 == 3 {
			m.Service = "none"
		}
		kinds[m.ConnID] = i % 4
		dials = append(dials, m)
	}
	relay.data = func(id wire.ConnID, c *websocket.Conn, _ *http.Request) {
		defer func() { <-slots; ended <- struct{}{} }()
		ctx := context.Background()
		c.Write(ctx, websocket.MessageBinary, []byte("x"))
		if _, b, err := c.Read(ctx); err != nil || string(b) != "x" {
			t.Errorf("echo: %q, %v", b, err)
		}
		switch kinds[id] {
		case 0:
			c.Close(websocket.StatusNormalClosure, "")
		case 1:
			// returns: a hard close
		case 2:
			c.Write(ctx, websocket.MessageBinary, []byte("q"))
			if _, _, err := c.Read(ctx); websocket.CloseStatus(err) != 1000 {
				t.Errorf("the service's end arrived as %v", err)
			}
		}
	}
	relay.control = func(_ int, p *peer) {
		p.until(wire.OpHello, true)
		// Ends with the last dial, or with the test.
		go func() {
			for _, m := range dials {
				select {
				case slots <- struct{}{}:
					p.send(m)
				case <-t.Context().Done():
					return
				}
			}
		}()
		for {
			m, err := p.until(wire.OpRefuse, true)
			if err != nil {
				return
			}
			<-slots
			refused <- m
		}
	}
	o := relay.options()
	o.SSHD = service.Addr().String()
	a := relay.run(o)
	patience := time.After(2 * time.Minute)
	for n := range rounds {
		select {
		case <-ended:
		case m := <-refused:
			if m.Code != wire.CloseNotFound {
				t.Errorf("refused with %+v", m)
			}
		case <-patience:
			t.Fatalf("%d of %d dials were answered; the agent: %+v", n, rounds, a.Status())
		}
	}
	deadline := time.Now().Add(20 * time.Second)
	for a.Status().Streams > 0 && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
	if n := a.Status().Streams; n != 0 {
		t.Errorf("%d streams are left", n)
	}
	a.stop()
	service.Close()
	services.Wait()
}

func TestNodeIsFollowedUnderTheRelaysNameOverTLS(t *testing.T) {
	tests := []struct{ relay, node, want string }{
		{"https://relay.example.org", "n2.relay.example.org", "https://n2.relay.example.org"},
		{"https://relay.example.org/hf", "https://n2.relay.example.org:8443", "https://n2.relay.example.org:8443/hf"},
		{"wss://relay.example.org", "wss://relay.example.org:8443/", "https://relay.example.org:8443"},
		{"https://Relay.Example.org.", "N2.RELAY.example.org", "https://N2.RELAY.example.org"},
		{"https://192.0.2.1", "192.0.2.1:8443", "https://192.0.2.1:8443"},
		{"https://relay.example.org", "http://n2.relay.example.org", ""},
		{"http://relay.example.org", "https://n2.relay.example.org", ""},
		{"https://relay.example.org", "evil.example.org", ""},
		{"https://relay.example.org", "evilrelay.example.org", ""},
		{"https://relay.example.org", "relay.example.org.evil.com", ""},
		{"https://relay.example.org", "https://x@relay.example.org", ""},
		{"https://relay.example.org", "https://n2.relay.example.org/other", ""},
		{"https://relay.example.org", "https://n2.relay.example.org?x=1", ""},
		{"https://relay.example.org", "evil.com#.relay.example.org", ""},
		{"https://192.0.2.1", "a.192.0.2.1", ""},
		{"https://relay.example.org", "", ""},
		{"https://relay.example.org", "https:opaque", ""},
		{"https://relay.example.org", "%zz", ""},
	}
	for _, tt := range tests {
		relay, err := url.Parse(tt.relay)
		if err != nil {
			t.Fatal(err)
		}
		got, err := followNode(relay, tt.node)
		switch {
		case tt.want == "" && err == nil:
			t.Errorf("%s: %q is followed to %v", tt.relay, tt.node, got)
		case tt.want != "" && (err != nil || got.String() != tt.want):
			t.Errorf("%s: %q gives %v, %v; want %s", tt.relay, tt.node, got, err, tt.want)
		}
	}
}

func TestSeenForgetsTheOldest(t *testing.T) {
	var s seen
	first := connID()
	if !s.add(first) || s.add(first) {
		t.Fatal("the first id")
	}
	for range maxSeen {
		if !s.add(connID()) {
			t.Fatal("a new id was known")
		}
	}
	if len(s.set) != maxSeen || len(s.ring) != maxSeen || !s.add(first) {
		t.Errorf("%d ids are kept", len(s.set))
	}
}

func TestOptionsAreChecked(t *testing.T) {
	good := func() Options {
		return Options{
			Relay: &url.URL{Scheme: "https", Host: "relay.example.org"}, Machine: "mini",
			Token: func(context.Context) (wire.Token, error) { return testToken, nil },
		}
	}
	if _, err := New(good()); err != nil {
		t.Fatalf("good options: %v", err)
	}
	handler := func(context.Context, net.Conn, DialInfo) {}
	many := make(map[wire.ServiceName]Service)
	for i := range 200 {
		many[wire.ServiceName(fmt.Sprintf("service-with-a-long-name-%d", i))] = Service{Handle: handler}
	}
	for name, change := range map[string]func(*Options){
		"no relay":          func(o *Options) { o.Relay = nil },
		"plain http":        func(o *Options) { o.Relay.Scheme = "http" },
		"no machine":        func(o *Options) { o.Machine = "" },
		"bad machine":       func(o *Options) { o.Machine = "a/b" },
		"no token":          func(o *Options) { o.Token = nil },
		"bad service name":  func(o *Options) { o.Services = map[wire.ServiceName]Service{"a b": {Handle: handler}} },
		"empty service":     func(o *Options) { o.Services = map[wire.ServiceName]Service{"a": {}} },
		"double service":    func(o *Options) { o.Services = map[wire.ServiceName]Service{"a": {Addr: "h:1", Handle: handler}} },
		"bad address":       func(o *Options) { o.Services = map[wire.ServiceName]Service{"a": {Addr: "22"}} },
		"bad unix address":  func(o *Options) { o.Services = map[wire.ServiceName]Service{"a": {Addr: "unix:"}} },
		"bad sshd":          func(o *Options) { o.SSHD = "localhost" },
		"keepalive too low": func(o *Options) { o.Keepalive = time.Second },
		"negative streams":  func(o *Options) { o.MaxStreams = -1 },
		"hello too big":     func(o *Options) { o.Services = many },
	} {
		o := good()
		change(&o)
		if _, err := New(o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	o := good()
	o.Relay.Scheme = "http"
	if _, err := New(o); !errors.Is(err, wsconn.ErrPlainHTTP) {
		t.Errorf("plain http: %v", err)
	}
}
