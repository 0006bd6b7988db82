package feed

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/client"
	"holdfast/internal/memnet"
	"holdfast/internal/netwatch"
	"holdfast/internal/wire"
)

// feedRelay plays the relay of a feed, in virtual time.
type feedRelay struct {
	t      *testing.T
	serve  func(n int, p *feedPeer) // the nth connection, from 1
	refuse func(w http.ResponseWriter, r *http.Request) bool

	mu     sync.Mutex
	opened int
	tokens []string
	wg     sync.WaitGroup
	done   chan struct{}
}

// feedPeer is one connection, at the relay's end.
type feedPeer struct {
	*websocket.Conn
	over chan struct{} // the connection has ended, or the test
}

const firstState = `{"op":"machines","now":"2000-01-01T00:10:00Z","full":true,"machines":[{"machine":"mini","state":"connected","presence":"AAEC"}]}`

func (p *feedPeer) text(s string) {
	_ = p.Write(context.Background(), websocket.MessageText, []byte(s))
}

// hold reads until the connection is over, and answers pings.
func (p *feedPeer) hold(other func(string)) {
	for {
		_, b, err := p.Read(context.Background())
		switch {
		case err != nil:
			return
		case strings.Contains(string(b), `"ping"`):
			p.text(`{"op":"pong"}`)
		case other != nil:
			other(string(b))
		}
	}
}

// wait waits, unless everything ends before.
func (p *feedPeer) wait(d time.Duration) {
	select {
	case <-time.After(d):
	case <-p.over:
	}
}

func (r *feedRelay) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	r.opened++
	n := r.opened
	r.tokens = append(r.tokens, strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer "))
	r.wg.Add(1)
	r.mu.Unlock()
	defer r.wg.Done()
	if req.URL.Path != wire.PathAccount || r.refuse != nil && r.refuse(w, req) {
		return
	}
	ws, err := websocket.Accept(w, req, &websocket.AcceptOptions{Subprotocols: []string{wire.SubprotocolV1}})
	if err != nil {
		return
	}
	defer ws.CloseNow()
	r.serve(n, &feedPeer{ws, r.done})
}

// follow runs a feed against r and gives what it told in the end.
func (r *feedRelay) follow(d time.Duration, tokens []string, use func(f *Feed, s State)) (states []State, err error) {
	r.t.Helper()
	const addr = "127.0.0.1:7700"
	network := memnet.New()
	l, err := network.Listen(addr)
	if err != nil {
		r.t.Fatal(err)
	}
	server := &http.Server{Handler: r}
	go server.Serve(l) // Close ends it
	r.done = make(chan struct{})
	defer func() {
		close(r.done)
		server.Close()
		r.wg.Wait()
	}()
	var targets []client.Target
	for _, s := range tokens {
		token, err := wire.ParseToken(s)
		if err != nil {
			r.t.Fatal(err)
		}
		targets = append(targets, client.Target{Relay: "http://" + addr, Token: token})
	}
	var f *Feed
	f, err = New(client.Dialer{DialContext: network.DialContext}, targets, func(s State) {
		states = append(states, s)
		if use != nil {
			use(f, s)
		}
	})
	if err != nil {
		r.t.Fatal(err)
	}
	f.Netwatch = netwatch.Options{Changes: make(chan struct{})}
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	err = f.Run(ctx)
	return states, err
}

func newest(t *testing.T, states []State) State {
	t.Helper()
	if len(states) == 0 {
		t.Fatal("nothing was told")
	}
	return states[len(states)-1]
}

func TestFeedFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &feedRelay{t: t, serve: func(_ int, p *feedPeer) {
			go func() { // ends with the test
				p.text(firstState)
				p.text(`{"op":"notices","notices":[{"id":"n1","at":"2000-01-01T00:00:00Z","text":"moved"}]}`)
				p.wait(time.Minute)
				p.text(`{"op":"machines","now":"2000-01-01T00:11:00Z","machines":[{"machine":"mini","state":"reachable"},{"machine":"studio","state":"offline"}]}`)
				p.wait(time.Minute)
				p.text(`{"op":"machines","now":"2000-01-01T00:12:00Z","full":true,"machines":[{"machine":"studio","state":"offline"}]}`)
			}()
			p.hold(nil)
		}}
		states, err := r.follow(10*time.Minute, []string{"hf_one"}, nil)
		if err != nil || r.opened != 1 {
			t.Errorf("%d connections, %v", r.opened, err)
		}
		if s := states[0]; !s.Live || len(s.Machines) != 1 || s.Machines[0].Presence != "AAEC" || s.Ahead.Round(time.Second) != 10*time.Minute {
			t.Errorf("first %+v", s)
		}
		if s := newest(t, states); !s.Live || len(s.Machines) != 1 || s.Machines[0].Machine != "studio" || len(s.Notices) != 1 {
			t.Errorf("last %+v", s)
		}
		for _, s := range states {
			if len(s.Machines) == 2 && s.Machines[0].State != wire.StateReachable {
				t.Errorf("in between %+v", s)
			}
		}
	})
}

// A link that delivers nothing any more is found by a question, what was known
// is kept as stale, and the feed comes back by itself.
func TestFeedLeavesADeadLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &feedRelay{t: t, serve: func(n int, p *feedPeer) {
			p.text(firstState)
			if n == 1 {
				p.wait(time.Hour) // and reads nothing
				return
			}
			p.hold(nil)
		}}
		began := time.Now()
		var stale, back time.Duration
		states, err := r.follow(5*time.Minute, []string{"hf_one"}, func(_ *Feed, s State) {
			switch {
			case !s.Live && stale == 0:
				stale = time.Since(began)
				if len(s.Machines) != 1 || s.Err == nil || time.Since(s.Heard) < idle {
					t.Errorf("stale: %+v", s)
				}
			case s.Live && stale != 0 && back == 0:
				back = time.Since(began)
			}
		})
		if err != nil || stale < idle || stale > idle+15*time.Second || back == 0 || back > stale+5*time.Second {
			t.Errorf("stale after %v, back after %v, %d states: %v", stale, back, len(states), err)
		}
	})
}

// A relay that opens the channel and says nothing is not taken for a working one.
func TestFeedWaitsForTheFirstStateOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &feedRelay{t: t, serve: func(n int, p *feedPeer) {
			if n > 1 {
				p.text(firstState)
			}
			p.hold(nil)
		}}
		states, err := r.follow(time.Minute, []string{"hf_one"}, nil)
		if s := newest(t, states); err != nil || !s.Live || r.opened != 2 {
			t.Errorf("%d connections, %+v, %v", r.opened, s, err)
		}
		if s := states[0]; s.Live || !errors.Is(s.Err, errNotReady) || s.Machines != nil {
			t.Errorf("first %+v", s)
		}
	})
}

// An acknowledgement that a lost connection took with it is sent again; one that
// arrived is not.
func TestFeedAcknowledges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const unread = `{"op":"notices","notices":[{"id":"n1","at":"2000-01-01T00:00:00Z","text":"moved"}]}`
		got := make(map[int]int)
		r := &feedRelay{t: t}
		r.serve = func(n int, p *feedPeer) {
			p.text(firstState)
			p.text(unread)
			p.hold(func(s string) {
				if !strings.Contains(s, `"acknowledge"`) || !strings.Contains(s, `"n1"`) {
					t.Errorf("got %s", s)
				}
				r.mu.Lock()
				got[n]++
				r.mu.Unlock()
				if n == 1 {
					_ = p.CloseNow() // as if it had not arrived
					return
				}
				p.text(`{"op":"notices","notices":[]}`)
			})
		}
		states, err := r.follow(time.Minute, []string{"hf_one"}, func(f *Feed, s State) {
			for _, n := range s.Notices {
				f.Acknowledge(n.ID)
			}
		})
		if s := newest(t, states); err != nil || len(s.Notices) != 0 || got[1] != 1 || got[2] != 1 {
			t.Errorf("sent %v; %+v, %v", got, s, err)
		}
	})
}

func TestFeedIgnoresWhatItDoesNotKnow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &feedRelay{t: t, serve: func(_ int, p *feedPeer) {
			p.text(`{"op":"greeting","x":[1]}`)
			p.text(strings.Replace(firstState, `"full"`, `"colour":"red","full"`, 1))
			p.text(`{"error":{"name":"Strange","params":[{}]}}`)
			p.text(`[]`)
			p.text(`{"op":"sessions","sessions":{}}`)
			p.hold(nil)
		}}
		states, err := r.follow(10*time.Minute, []string{"hf_one"}, nil)
		if s := newest(t, states); err != nil || r.opened != 1 || !s.Live || len(s.Machines) != 1 {
			t.Errorf("%d connections, %+v, %v", r.opened, s, err)
		}
	})
}

// What the relay cannot read is stale, and the connection stays.
func TestFeedOfARelayWithoutItsStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &feedRelay{t: t, serve: func(_ int, p *feedPeer) {
			p.text(firstState)
			p.text(`{"error":{"name":"Unavailable","params":[]}}`)
			p.hold(nil)
		}}
		states, err := r.follow(time.Minute, []string{"hf_one"}, nil)
		if s := newest(t, states); err != nil || r.opened != 1 || s.Live || len(s.Machines) != 1 || s.Err == nil {
			t.Errorf("%d connections, %+v, %v", r.opened, s, err)
		}
	})
}

// A refusal ends it, another token of the account is tried first, and an older
// relay is named as what it is.
func TestFeedOfAnOlderRelay(t *testing.T) {
	for _, c := range []struct {
		name   string
		status int
		code   wire.Refusal
		tries  int
		words  string
	}{
		{"older", http.StatusNotFound, wire.RefusalNotFound, 2, "too old"},
		{"revoked", http.StatusUnauthorized, wire.RefusalTokenRevoked, 2, "pair again"},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := &feedRelay{t: t, refuse: func(w http.ResponseWriter, _ *http.Request) bool {
				w.Header().Set(wire.HeaderRefusal, string(c.code))
				w.WriteHeader(c.status)
				return true
			}}
			_, err := r.follow(time.Hour, []string{"hf_one", "hf_two"}, nil)
			var failure *client.Failure
			if !errors.As(err, &failure) || !failure.Denied || !strings.Contains(err.Error(), c.words) || r.opened != c.tries {
				t.Errorf("%s: %d tries of %v: %v", c.name, r.opened, r.tokens, err)
			}
		})
	}
}
