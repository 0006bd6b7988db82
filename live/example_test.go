package live_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"holdfast/live"
)

// score is a channel: it says the score on open, and again when somebody scores.
type score struct {
	mu     sync.Mutex
	points int
	server *live.Server
}

func (s *score) Open(_ context.Context, c *live.Conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.Send(map[string]int{"points": s.points})
}

func (s *score) Message(_ context.Context, _ *live.Conn, message json.RawMessage) error {
	var m struct{ Scored int }
	if json.Unmarshal(message, &m) != nil || m.Scored < 1 {
		return &live.Error{Name: "BadRequest"} // soft: the connection stays
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.points += m.Scored
	return s.server.Broadcast(map[string]int{"points": s.points}, nil)
}

func (*score) Close(*live.Conn, live.End) {}

// A channel that everybody sees and may change. The client here is a Go program;
// in a page it is the package @holdfast/live.
func Example() {
	server, err := live.New(live.Options{})
	if err != nil {
		log.Fatal(err)
	}
	channel := &score{server: server}
	site := httptest.NewServer(server.Handler(func(*http.Request) (live.Handler, error) { return channel, nil }))
	defer site.Close()

	ctx := context.Background()
	c, _, err := websocket.Dial(ctx, site.URL, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.CloseNow()
	read := func() {
		_, message, err := c.Read(ctx)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(string(message))
	}
	read()
	for _, message := range []string{`{"scored":2}`, `{"scored":"many"}`} {
		if err := c.Write(ctx, websocket.MessageText, []byte(message)); err != nil {
			log.Fatal(err)
		}
		read()
	}
	// Output:
	// {"points":0}
	// {"points":2}
	// {"error":{"name":"BadRequest","params":[]}}
}

// guarded is a channel that not everybody may open.
type guarded struct{ account string }

func (g guarded) Open(_ context.Context, c *live.Conn) error {
	if g.account != "alice" {
		// A page sees this code; a refused upgrade a browser would hide.
		return &live.Refusal{Code: 4403, Reason: "not your contest"}
	}
	return c.Send("welcome")
}

func (guarded) Message(context.Context, *live.Conn, json.RawMessage) error { return nil }
func (guarded) Close(*live.Conn, live.End)                                 {}

// Who a person is comes from the request; whether they may is decided in Open.
func ExampleServer_Handler() {
	server, err := live.New(live.Options{})
	if err != nil {
		log.Fatal(err)
	}
	site := httptest.NewServer(server.Handler(func(r *http.Request) (live.Handler, error) {
		return guarded{account: r.Header.Get("Account")}, nil // from a session, in real life
	}))
	defer site.Close()
	for _, account := range []string{"alice", "bob"} {
		c, _, err := websocket.Dial(context.Background(), site.URL, &websocket.DialOptions{HTTPHeader: http.Header{"Account": {account}}})
		if err != nil {
			log.Fatal(err)
		}
		_, message, err := c.Read(context.Background())
		fmt.Println(account, string(message), int(websocket.CloseStatus(err)))
		c.CloseNow()
	}
	// Output:
	// alice "welcome" -1
	// bob  4403
}

// A planned restart: each page is told to come back after a delay of its own, so
// that the new process does not meet all of them in one second.
func ExampleServer_Shutdown() {
	server, err := live.New(live.Options{})
	if err != nil {
		log.Fatal(err)
	}
	site := httptest.NewServer(server.Handler(func(*http.Request) (live.Handler, error) { return &score{server: server}, nil }))
	defer site.Close()
	c, _, err := websocket.Dial(context.Background(), site.URL, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.CloseNow()
	if _, _, err := c.Read(context.Background()); err != nil {
		log.Fatal(err)
	}
	stopped := make(chan error)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		stopped <- server.Shutdown(ctx, 20*time.Second)
	}()
	_, _, err = c.Read(context.Background())
	var end websocket.CloseError
	errors.As(err, &end)
	fmt.Println(int(end.Code), strings.HasPrefix(end.Reason, "restart after="), <-stopped)
	// Output: 1012 true <nil>
}
