package channels_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"holdfast/internal/memnet"
	"holdfast/live"
	"holdfast/live/channels"
	"holdfast/live/livetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemory(t *testing.T) { livetest.Storage(t, channels.NewMemory()) }

// serve runs a live server in the bubble; each connection gets what channel
// makes of the request's path.
func serve(t *testing.T, channel func(path string) live.Handler) func(path string) *websocket.Conn {
	t.Helper()
	s, err := live.New(live.Options{})
	if err != nil {
		t.Fatal(err)
	}
	n := memnet.New()
	l, err := n.Listen("site:80")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: s.Handler(func(r *http.Request) (live.Handler, error) { return channel(r.URL.Path), nil })}
	done := make(chan struct{})
	go func() {
		defer close(done)
		srv.Serve(l)
	}()
	t.Cleanup(func() {
		srv.Close()
		<-done
		for s.Stats().Open > 0 { // what the clients have left is closed by the server too
			time.Sleep(time.Millisecond)
		}
	})
	return func(path string) *websocket.Conn {
		t.Helper()
		transport := &http.Transport{DialContext: n.DialContext}
		c, _, err := websocket.Dial(t.Context(), "ws://site:80"+path, &websocket.DialOptions{HTTPClient: &http.Client{Transport: transport}})
		if err != nil {
			t.Fatalf("dial: %v", err)
		}
		t.Cleanup(func() { c.CloseNow() })
		return c
	}
}

// read is the next message of the channel itself; the question with which the
// server opens one that has said nothing is passed over.
func read(t *testing.T, c *websocket.Conn) string {
	t.Helper()
	for {
		_, b, err := c.Read(t.Context())
		if err != nil {
			t.Fatalf("read: %v", err)
		}
		if string(b) != `{"op":"ping"}` {
			return string(b)
		}
	}
}

func want(t *testing.T, c *websocket.Conn, texts ...string) {
	t.Helper()
	for _, w := range texts {
		if got := read(t, c); got != w {
			t.Errorf("got %s, want %s", got, w)
		}
	}
}

func write(t *testing.T, c *websocket.Conn, text string) {
	t.Helper()
	if err := c.Write(t.Context(), websocket.MessageText, []byte(text)); err != nil {
		t.Fatalf("write: %v", err)
	}
}

func wantClose(t *testing.T, c *websocket.Conn, code websocket.StatusCode) {
	t.Helper()
	_, b, err := c.Read(t.Context())
	if got := websocket.CloseStatus(err); got != code {
		t.Fatalf("got %s, %v; want a close with %d", b, err, code)
	}
}

// silent fails if anything comes within d.
func silent(t *testing.T, c *websocket.Conn, d time.Duration) {
	t.Helper()
	got := make(chan string, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, b, err := c.Read(ctx)
		if err == nil {
			got <- string(b)
		}
		close(got)
	}()
	select {
	case m := <-got:
		t.Errorf("unexpected %s", m)
	case <-time.After(d):
	}
	cancel() // ends the connection: the last thing a test asks of it
	<-got
}

func ids(inbox string) string {
	var m struct{ Inbox []channels.Notice }
	if err := json.Unmarshal([]byte(inbox), &m); err != nil || m.Inbox == nil {
		return "not an inbox: " + inbox
	}
	var out []string
	for _, n := range m.Inbox {
		out = append(out, n.ID)
	}
	return strings.Join(out, " ")
}

func TestInbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := channels.NewInbox(channels.InboxOptions{Storage: channels.NewMemory(), Limit: 2,
			For: func(person string, n channels.Notice) bool {
				return !strings.HasPrefix(n.ID, "b") || person == "ann"
			}})
		if err != nil {
			t.Fatal(err)
		}
		dial := serve(t, func(path string) live.Handler { return b.Channel(path[1:]) })
		post := func(id string) {
			t.Helper()
			if err := b.Post(t.Context(), channels.Notice{ID: id, At: time.Now(), Data: json.RawMessage(`"text"`)}); err != nil {
				t.Fatal(err)
			}
		}
		ack := func(c *websocket.Conn, id string) { write(t, c, `{"op":"acknowledge","id":"`+id+`"}`) }
		next := func(c *websocket.Conn, want string) {
			t.Helper()
			if got := ids(read(t, c)); got != want {
				t.Errorf("inbox %q, want %q", got, want)
			}
		}
		post("a")
		one, two, bob := dial("/ann"), dial("/ann"), dial("/bob")
		next(one, "a")
		next(two, "a")
		next(bob, "a")
		post("b")
		next(one, "a b")
		next(two, "a b")
		post("c") // beyond the limit: pushed all the same, as the first two
		next(one, "a b")
		next(two, "a b")
		next(bob, "a c")

		ack(one, "a")
		next(one, "b c")
		next(two, "b c") // the other connection of the same person
		ack(two, "a")    // again: nothing changes, nothing is pushed
		ack(two, "nothing")
		want(t, two, `{"error":{"name":"NotFound","params":["nothing"]}}`)
		ack(bob, "b")
		want(t, bob, `{"error":{"name":"NotFound","params":["b"]}}`)
		write(t, bob, `{"op":"dance"}`)
		want(t, bob, `{"error":{"name":"BadRequest","params":[]}}`)
		next(dial("/ann"), "b c") // a reconnect is in sync by its first message
		if err := b.Post(t.Context(), channels.Notice{ID: "c"}); !errors.Is(err, channels.ErrConflict) {
			t.Errorf("the same id twice: %v", err)
		}
	})
}

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		state := map[string]int{"a": 1, "b": 1}
		set := func(id string, v int) { mu.Lock(); state[id] = v; mu.Unlock() }
		w, err := channels.NewWatch(channels.WatchOptions{MaxIDs: 3, Load: func(_ context.Context, _ *live.Conn, id string) (any, error) {
			mu.Lock()
			defer mu.Unlock()
			v, ok := state[id]
			if !ok {
				return nil, channels.ErrNoItem
			}
			return fmt.Sprintf("%s%d", id, v), nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		c := serve(t, func(string) live.Handler { return w.Channel() })("/")
		write(t, c, `{"op":"watch","ids":["a","b","x"]}`)
		want(t, c, `"a1"`, `"b1"`, `{"error":{"name":"NotFound","params":["x"]}}`)
		start := time.Now()
		for i := 2; i <= 50; i++ {
			set("a", i)
			w.Changed("a")
		}
		want(t, c, `"a50"`)
		if took := time.Since(start); took != 100*time.Millisecond {
			t.Errorf("50 changes came as one after %v, want 100ms", took)
		}
		w.Changed("b")
		write(t, c, `{"op":"watch","ids":["b"]}`) // replaces: a is not watched any more
		want(t, c, `"b1"`)
		set("a", 99)
		w.Changed("a")
		set("b", 2)
		w.Changed("b")
		want(t, c, `"b2"`)
		write(t, c, `{"op":"watch","ids":["1","2","3","4"]}`)
		want(t, c, `{"error":{"name":"TooMany","params":[3]}}`)
		write(t, c, `{"op":"watch","ids":[""]}`)
		want(t, c, `{"error":{"name":"BadRequest","params":["id"]}}`)
		silent(t, c, time.Minute)
	})
}

// TestWatchLosesNoChange changes items from many goroutines while they are
// flushed: the last state of each must arrive.
func TestWatchLosesNoChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		state := map[string]int{}
		w, err := channels.NewWatch(channels.WatchOptions{Load: func(_ context.Context, _ *live.Conn, id string) (any, error) {
			mu.Lock()
			v := state[id]
			mu.Unlock()
			time.Sleep(7 * time.Millisecond) // a slow read: changes come meanwhile
			return map[string]any{"id": id, "v": v}, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		c := serve(t, func(string) live.Handler { return w.Channel() })("/")
		write(t, c, `{"op":"watch","ids":["0","1","2","3"]}`)
		const last = 200
		var wg sync.WaitGroup
		for id := range 4 {
			wg.Go(func() {
				for v := 1; v <= last; v++ {
					time.Sleep(time.Duration(1+(id+v)%5) * time.Millisecond)
					mu.Lock()
					state[fmt.Sprint(id)] = v
					mu.Unlock()
					w.Changed(fmt.Sprint(id))
				}
			})
		}
		done := map[string]bool{}
		for len(done) < 4 {
			var m struct {
				ID string
				V  int
			}
			if err := json.Unmarshal([]byte(read(t, c)), &m); err != nil {
				t.Fatal(err)
			}
			if done[m.ID] = m.V == last; !done[m.ID] {
				delete(done, m.ID)
			}
		}
		wg.Wait()
	})
}

func TestDetail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		state, terminal := 1, false
		d, err := channels.NewDetail(channels.DetailOptions{Load: func(_ context.Context, id string) (any, bool, error) {
			if id != "r" {
				return nil, false, channels.ErrNoItem
			}
			mu.Lock()
			defer mu.Unlock()
			return state, terminal, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		set := func(s int, end bool) {
			mu.Lock()
			state, terminal = s, end
			mu.Unlock()
			d.Changed("r")
		}
		dial := serve(t, func(path string) live.Handler { return d.Channel(path[1:]) })
		wantClose(t, dial("/unknown"), 4404)
		c := dial("/r")
		want(t, c, "1")
		start := time.Now()
		for s := 2; s <= 9; s++ {
			set(s, false)
		}
		want(t, c, "9") // the trailing state of a burst, one second after the first
		if took := time.Since(start); took != time.Second {
			t.Errorf("throttled to %v, want 1s", took)
		}
		time.Sleep(5 * time.Second)
		set(10, true)
		want(t, c, "10")
		time.Sleep(20 * time.Second)
		set(11, false) // taken up again: the end is off
		want(t, c, "11")
		time.Sleep(time.Minute)
		set(12, true)
		want(t, c, "12")
		start = time.Now()
		wantClose(t, c, 4001)
		if took := time.Since(start).Round(time.Second); took != 30*time.Second {
			t.Errorf("ended %v after the terminal state, want 30s", took)
		}
		again := dial("/r") // a page that comes back is shown the end, then ended again
		want(t, again, "12")
		wantClose(t, again, 4001)
	})
}

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := channels.NewRun(64 << 10)
		if err != nil {
			t.Fatal(err)
		}
		dial := serve(t, func(string) live.Handler { return r.Channel() })
		// collect reads until the end, or until it has n bytes.
		collect := func(c *websocket.Conn, from int64, n int) (got []byte, gap int64, ended bool) {
			write(t, c, fmt.Sprintf(`{"op":"run","from":%d}`, from))
			pos := from
			for n < 0 || len(got) < n {
				var m struct {
					At   *int64
					Data string
					Gap  *struct{ From, To int64 }
					End  *int64
				}
				if err := json.Unmarshal([]byte(read(t, c)), &m); err != nil {
					t.Fatal(err)
				}
				switch {
				case m.End != nil:
					if *m.End != pos {
						t.Errorf("ended at %d, have %d", *m.End, pos)
					}
					return got, gap, true
				case m.Gap != nil:
					gap = m.Gap.To - m.Gap.From
					pos = m.Gap.To
				default:
					if *m.At != pos {
						t.Fatalf("a piece at %d, have %d", *m.At, pos)
					}
					b, err := base64.StdEncoding.DecodeString(m.Data)
					if err != nil {
						t.Fatal(err)
					}
					got = append(got, b...)
					pos += int64(len(b))
				}
			}
			return got, gap, false
		}
		var all []byte
		put := func(n int) {
			for range n {
				line := fmt.Appendf(nil, "line %d\n", len(all))
				all = append(all, line...)
				r.Write(line)
			}
		}
		put(1000)
		first := dial("/")
		got, _, _ := collect(first, 0, len(all)-500)
		first.CloseNow()
		put(200)
		second := dial("/")
		more, gap, _ := collect(second, int64(len(got)), len(all)-len(got))
		if gap != 0 || string(got)+string(more) != string(all) {
			t.Errorf("after a reconnect: %d + %d bytes of %d, gap %d", len(got), len(more), len(all), gap)
		}
		put(20000) // far more than is kept
		r.Finish(map[string]int{"exit": 3})
		late := dial("/")
		rest, gap, ended := collect(late, 0, -1)
		if !ended || gap != int64(len(all)-len(rest)) || !strings.HasSuffix(string(all), string(rest)) || len(rest) != 64<<10 {
			t.Errorf("a late client: %d bytes, gap %d of %d, ended %v", len(rest), gap, len(all), ended)
		}
		wantClose(t, late, 4001)
		bad := dial("/")
		write(t, bad, fmt.Sprintf(`{"op":"run","from":%d}`, len(all)+1))
		want(t, bad, fmt.Sprintf(`{"error":{"name":"BadPosition","params":[%d]}}`, len(all)+1))
		if _, err := r.Write([]byte("x")); err == nil {
			t.Error("a finished run took output")
		}
	})
}

func TestLeaseRules(t *testing.T) {
	begin := time.Date(2026, 1, 1, 10, 0, 0, 0, time.UTC)
	at := func(s int) time.Time { return begin.Add(time.Duration(s) * time.Second) }
	type report struct {
		holder, subject string
		active          bool
		second          int
		elapsed, total  int // expected, in seconds
	}
	for name, reports := range map[string][]report{
		"each report credits the time since the last": {
			{"x", "p", true, 0, 0, 0}, {"x", "p", true, 10, 10, 10}, {"x", "p", true, 20, 20, 20}},
		"a gap over the age credits nothing": {
			{"x", "p", true, 0, 0, 0}, {"x", "p", true, 31, 0, 0}, {"x", "p", true, 41, 10, 10}},
		"a reconnect within the age loses nothing": {
			{"x", "p", true, 0, 0, 0}, {"y", "p", true, 30, 30, 30}},
		"a late farewell of an old connection stops nothing": {
			{"x", "p", true, 0, 0, 0}, {"y", "p", true, 5, 5, 5}, {"x", "p", false, 6, 5, 5}, {"y", "p", true, 10, 10, 10}},
		"inactive credits up to now, then nothing": {
			{"x", "p", true, 0, 0, 0}, {"x", "p", false, 7, 7, 7}, {"x", "p", true, 20, 7, 7}, {"x", "p", true, 30, 17, 17}},
		"a clock that goes back credits nothing negative": {
			{"x", "p", true, 10, 0, 0}, {"x", "p", true, 2, 0, 0}, {"x", "p", true, 15, 5, 5}},
		"the time goes to the subject that was left": {
			{"x", "p", true, 0, 0, 0}, {"x", "q", true, 10, 0, 10}, {"x", "q", true, 15, 5, 15}},
		"before the beginning and after the end is clipped": {
			{"x", "p", true, -10, 0, 0}, {"x", "p", true, 5, 0, 0}, {"x", "p", true, 20, 15, 15},
			{"x", "p", true, 95, 15, 15}, {"x", "p", true, 110, 20, 20}, {"x", "p", true, 115, 20, 20}},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := channels.NewLease(channels.LeaseOptions{Storage: channels.NewMemory(),
				Bounds: func(context.Context, string, string) (time.Time, time.Time, error) { return at(0), at(100), nil }})
			if err != nil {
				t.Fatal(err)
			}
			for i, r := range reports {
				c, err := l.Report(t.Context(), "ann", r.subject, r.holder, r.active, at(r.second))
				if err != nil {
					t.Fatal(err)
				}
				if c.Elapsed != time.Duration(r.elapsed)*time.Second || c.Total != time.Duration(r.total)*time.Second {
					t.Errorf("report %d: %v of %v, want %ds of %ds", i, c.Elapsed, c.Total, r.elapsed, r.total)
				}
			}
		})
	}
}

func TestLeaseOfManyTabsCountsOnce(t *testing.T) {
	l, err := channels.NewLease(channels.LeaseOptions{Storage: channels.NewMemory()})
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	for s := 0; s <= 60; s += 10 {
		var wg sync.WaitGroup
		for tab := range 3 {
			wg.Go(func() {
				_, err := l.Report(t.Context(), "ann", "p", fmt.Sprint(tab), true, begin.Add(time.Duration(s)*time.Second))
				var soft *live.Error
				if err != nil && !errors.As(err, &soft) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	if c, err := l.Credit(t.Context(), "ann", "p"); err != nil || c.Total != time.Minute {
		t.Errorf("three tabs for a minute: %v, %v", c.Total, err)
	}
}

func TestLeaseChannel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := channels.NewLease(channels.LeaseOptions{Storage: channels.NewMemory()})
		if err != nil {
			t.Fatal(err)
		}
		dial := serve(t, func(string) live.Handler { return l.Channel("ann", "p") })
		c := dial("/")
		want(t, c, `{"elapsed":0,"ready":true}`)
		write(t, c, `{"active":true}`)
		want(t, c, `{"elapsed":0,"total":0}`)
		time.Sleep(10 * time.Second)
		write(t, c, `{"active":true}`)
		want(t, c, `{"elapsed":10000,"total":10000}`)
		write(t, c, `{"active":"yes"}`)
		want(t, c, `{"error":{"name":"BadRequest","params":[]}}`)
		// The link dies without a word; the page is back 20 s after its last report.
		time.Sleep(20 * time.Second)
		again := dial("/")
		want(t, again, `{"elapsed":10000,"ready":true}`)
		write(t, again, `{"active":true}`)
		want(t, again, `{"elapsed":30000,"total":30000}`)
		c.CloseNow() // the old tab's farewell comes late
		time.Sleep(5 * time.Second)
		write(t, again, `{"active":true}`)
		want(t, again, `{"elapsed":35000,"total":35000}`)
	})
}

// TestHalfOpenLinkCostsNoMoreThanTheLease cuts the link of a page that reports
// every ten seconds, without either end being told: what the page does meanwhile
// is not credited beyond the lease, and a page that is back within the lease
// loses nothing.
func TestHalfOpenLinkCostsNoMoreThanTheLease(t *testing.T) {
	for name, c := range map[string]struct {
		away    time.Duration // from the last report that arrived to the first on a new link
		credits time.Duration
	}{
		"back within the lease": {29 * time.Second, 30*time.Second + 29*time.Second + 10*time.Second},
		"back after it":         {31 * time.Second, 30*time.Second + 10*time.Second},
		"away for an hour":      {time.Hour, 30*time.Second + 10*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, err := channels.NewLease(channels.LeaseOptions{Storage: channels.NewMemory()})
				if err != nil {
					t.Fatal(err)
				}
				dial := serve(t, func(string) live.Handler { return l.Channel("ann", "p") })
				reports := func(c *websocket.Conn, n int) (total time.Duration) {
					t.Helper()
					read(t, c) // ready
					for i := range n {
						if i > 0 {
							time.Sleep(10 * time.Second)
						}
						write(t, c, `{"active":true}`)
						var m struct{ Total int64 }
						if err := json.Unmarshal([]byte(read(t, c)), &m); err != nil {
							t.Fatal(err)
						}
						total = time.Duration(m.Total) * time.Millisecond
					}
					return total
				}
				// Nobody reads this connection any more, and it says nothing: to the
				// server it is open until its own judge finds out.
				if got := reports(dial("/"), 4); got != 30*time.Second {
					t.Fatalf("credited %v before the fault, want 30s", got)
				}
				time.Sleep(c.away)
				if got := reports(dial("/"), 2); got != c.credits {
					t.Errorf("credited %v, want %v", got, c.credits)
				}
			})
		})
	}
}
