package live_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"holdfast/internal/memnet"
	"holdfast/live"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo is a Handler that sends a greeting and each message back.
type echo struct {
	open    func(ctx context.Context, c *live.Conn) error
	message func(ctx context.Context, c *live.Conn, m json.RawMessage) error
	ended   chan live.End
}

func newEcho() *echo { return &echo{ended: make(chan live.End, 8)} }

func (h *echo) Open(ctx context.Context, c *live.Conn) error {
	if h.open != nil {
		return h.open(ctx, c)
	}
	return c.Send("hello")
}

func (h *echo) Message(ctx context.Context, c *live.Conn, m json.RawMessage) error {
	if h.message != nil {
		return h.message(ctx, c, m)
	}
	return c.Send(m)
}

func (h *echo) Close(_ *live.Conn, end live.End) { h.ended <- end }

// site is one http.Server in a bubble with a live server on it.
type site struct {
	live *live.Server
	net  *memnet.Net
}

func newSite(t *testing.T, o live.Options, h live.Handler) site {
	t.Helper()
	s, err := live.New(o)
	if err != nil {
		t.Fatal(err)
	}
	n := memnet.New()
	l, err := n.Listen("site:80")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: s.Handler(func(*http.Request) (live.Handler, error) { return h, nil })}
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
	return site{s, n}
}

func (s site) dial(t *testing.T) *websocket.Conn {
	t.Helper()
	transport := &http.Transport{DialContext: s.net.DialContext}
	c, _, err := websocket.Dial(t.Context(), "ws://site:80/", &websocket.DialOptions{HTTPClient: &http.Client{Transport: transport}})
	if err != nil {
		t.Fatalf("dial: %v", err)
	}
	t.Cleanup(func() { c.CloseNow() })
	return c
}

// raw upgrades by hand and returns the connection, for clients that misbehave.
func (s site) raw(t *testing.T) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, err := s.net.Dial(t.Context(), "site:80")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: site\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("upgrade: %v %v", resp, err)
	}
	return c, r
}

// frameOf is a masked client frame with a zero key.
func frameOf(op byte, payload string) []byte {
	b := []byte{0x80 | op}
	if len(payload) < 126 {
		b = append(b, 0x80|byte(len(payload)))
	} else {
		b = append(b, 0x80|126)
		b = binary.BigEndian.AppendUint16(b, uint16(len(payload)))
	}
	b = append(b, 0, 0, 0, 0)
	return append(b, payload...)
}

// next reads one short server frame.
func next(t *testing.T, r *bufio.Reader) (op byte, payload string) {
	t.Helper()
	b0, err := r.ReadByte()
	if err != nil {
		t.Fatalf("read a frame: %v", err)
	}
	n, err := r.ReadByte()
	if err != nil || n > 125 {
		t.Fatalf("read a frame: length %d, %v", n, err)
	}
	p := make([]byte, n)
	for i := range p {
		if p[i], err = r.ReadByte(); err != nil {
			t.Fatalf("read a frame: %v", err)
		}
	}
	return b0 & 0xF, string(p)
}

func read(t *testing.T, c *websocket.Conn) string {
	t.Helper()
	_, b, err := c.Read(t.Context())
	if err != nil {
		t.Fatalf("read: %v", err)
	}
	return string(b)
}

func write(t *testing.T, c *websocket.Conn, text string) {
	t.Helper()
	if err := c.Write(t.Context(), websocket.MessageText, []byte(text)); err != nil {
		t.Fatalf("write: %v", err)
	}
}

func wantClose(t *testing.T, c *websocket.Conn, code websocket.StatusCode) websocket.CloseError {
	t.Helper()
	for {
		_, b, err := c.Read(t.Context())
		if err == nil {
			t.Logf("before the close: %s", b)
			continue
		}
		var ce websocket.CloseError
		if !errors.As(err, &ce) || ce.Code != code {
			t.Fatalf("got %v, want a close with %d", err, code)
		}
		return ce
	}
}

func TestStateOnOpenThenMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newEcho()
		c := newSite(t, live.Options{}, h).dial(t)
		if got := read(t, c); got != `"hello"` {
			t.Errorf("on open: %s", got)
		}
		write(t, c, `{"a":1}`)
		if got := read(t, c); got != `{"a":1}` {
			t.Errorf("echo: %s", got)
		}
		c.Close(websocket.StatusNormalClosure, "bye")
		if end := <-h.ended; end.Code != 1000 || end.Reason != "bye" {
			t.Errorf("ended with %+v", end)
		}
	})
}

func TestProbesAreAnsweredWhileOpenRuns(t *testing.T) {
	for name, p := range map[string]struct {
		profile    *live.Profile
		ping, pong string
	}{
		"holdfast": {live.Holdfast, `{"op":"ping"}`, `{"op":"pong"}`},
		"hydro":    {live.Hydro, "ping", "pong"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newEcho()
				h.open = func(_ context.Context, c *live.Conn) error {
					time.Sleep(3 * time.Second)
					return c.Send("ready")
				}
				c := newSite(t, live.Options{Profile: p.profile}, h).dial(t)
				start := time.Now()
				write(t, c, `{"n":1}`)
				write(t, c, `{"n":2}`)
				write(t, c, p.ping)
				if got := read(t, c); got != p.pong || time.Since(start) > time.Second {
					t.Fatalf("got %s after %v, want the answer at once", got, time.Since(start))
				}
				for _, want := range []string{`"ready"`, `{"n":1}`, `{"n":2}`} {
					if got := read(t, c); got != want {
						t.Errorf("got %s, want %s: messages wait for Open, in order", got, want)
					}
				}
			})
		})
	}
}

// TestAChannelThatSaysNothingIsOpenedByAQuestion is for pages: they know that a
// channel is open by the first thing it says.
func TestAChannelThatSaysNothingIsOpenedByAQuestion(t *testing.T) {
	for name, c := range map[string]struct {
		profile *live.Profile
		says    bool
		want    string
	}{
		"silent":         {live.Holdfast, false, `{"op":"ping"}`},
		"greets":         {live.Holdfast, true, `"hello"`},
		"silent, hydro":  {live.Hydro, false, `1`}, // as a Hydro server is
		"greeted, hydro": {live.Hydro, true, `"hello"`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newEcho()
				h.open = func(_ context.Context, conn *live.Conn) error {
					time.Sleep(time.Second)
					if c.says {
						return conn.Send("hello")
					}
					return nil
				}
				conn := newSite(t, live.Options{Profile: c.profile}, h).dial(t)
				write(t, conn, `1`)
				start := time.Now()
				if got := read(t, conn); got != c.want || time.Since(start) != time.Second {
					t.Errorf("got %s after %v, want %s when Open has returned", got, time.Since(start), c.want)
				}
				if c.want != `1` {
					if got := read(t, conn); got != `1` {
						t.Errorf("then %s, want the answer to the first message", got)
					}
				}
			})
		})
	}
}

// TestHydroTimes is what a Hydro page sees: asked at 40 s, given up at 80 s, and
// never while it answers.
func TestHydroTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newEcho()
		_, r := newSite(t, live.Options{Profile: live.Hydro}, h).raw(t)
		start := time.Now()
		next(t, r) // the greeting
		if op, p := next(t, r); op != 1 || p != "ping" || time.Since(start).Round(time.Second) != 40*time.Second {
			t.Errorf("got %d %q after %v, want the text ping after 40s", op, p, time.Since(start))
		}
		end := <-h.ended
		if took := time.Since(start).Round(time.Second); took != 80*time.Second || end.Verdict != "probe timed out" {
			t.Errorf("given up after %v as %+v, want 80s", took, end)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		h := newEcho()
		c, r := newSite(t, live.Options{Profile: live.Hydro}, h).raw(t)
		start := time.Now()
		next(t, r)
		for i := range 90 { // an hour
			if _, p := next(t, r); p != "ping" {
				t.Fatalf("got %q", p)
			}
			if at := time.Since(start).Round(time.Second); at != time.Duration(i+1)*40*time.Second {
				t.Fatalf("ping %d at %v", i, at)
			}
			c.Write(frameOf(1, "pong"))
		}
		select {
		case end := <-h.ended:
			t.Errorf("a client that answers was given up: %+v", end)
		default:
		}
	})
}

func TestHalfOpenClientIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newEcho()
		s := newSite(t, live.Options{}, h)
		_, r := s.raw(t)
		start := time.Now()
		next(t, r)
		if op, _ := next(t, r); op != 9 || time.Since(start).Round(time.Second) != 25*time.Second {
			t.Errorf("got opcode %d after %v, want a ping frame after 25s", op, time.Since(start))
		}
		<-h.ended
		if took := time.Since(start); took < 62*time.Second || took > 63*time.Second {
			t.Errorf("given up after %v, want 62.5s", took)
		}
		if st := s.live.Stats(); st.Dead != 1 || st.Open != 0 {
			t.Errorf("stats %+v", st)
		}
	})
}

func TestQuietClientIsKeptForTenHours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newEcho()
		c := newSite(t, live.Options{}, h).dial(t)
		read(t, c)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Hour+time.Second) // not at the moment of a ping
		defer cancel()
		if _, _, err := c.Read(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ten quiet hours ended with %v", err)
		}
		select {
		case end := <-h.ended:
			if end.Verdict != "" {
				t.Errorf("given up: %+v", end)
			}
		case <-time.After(time.Minute):
		}
	})
}

func TestSlowReaderDelaysNobodyAndComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newEcho()
		slow := newEcho()
		first := true
		s, err := live.New(live.Options{MaxQueueBytes: 64 << 10})
		if err != nil {
			t.Fatal(err)
		}
		n := memnet.New()
		l, _ := n.Listen("site:80")
		srv := &http.Server{Handler: s.Handler(func(*http.Request) (live.Handler, error) {
			if first {
				first = false
				return slow, nil
			}
			return h, nil
		})}
		go srv.Serve(l)
		defer srv.Close()
		where := site{s, n}
		where.raw(t) // reads nothing
		good := where.dial(t)
		read(t, good)
		var sent int
		for i := 0; len(slow.ended) == 0 && i < 1000; i++ {
			if err := s.Broadcast(strings.Repeat("x", 4000), nil); err != nil {
				t.Fatal(err)
			}
			sent++
			read(t, good)
			synctest.Wait()
			if st := s.Stats(); st.SlowReaders > 0 {
				break
			}
		}
		end := <-slow.ended
		if end.Code != 1013 || end.Verdict != "slow reader" {
			t.Errorf("the slow reader ended with %+v", end)
		}
		// 64 KiB of the network, 64 KiB of the queue.
		if sent > 40 {
			t.Errorf("%d messages of 4 KB were taken for it", sent)
		}
		write(t, good, `1`)
		if got := read(t, good); got != "1" {
			t.Errorf("the other connection: %s", got)
		}
	})
}

func TestPingsWithoutReadingCostNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newEcho()
		s := newSite(t, live.Options{}, h)
		c, _ := s.raw(t)
		ping := frameOf(9, strings.Repeat("p", 125))
		c.SetWriteDeadline(time.Now().Add(time.Minute))
		var err error
		for i := 0; i < 20000 && err == nil; i++ {
			_, err = c.Write(ping)
		}
		// Its answers fill the network, then one waits, then the write times out.
		end := <-h.ended
		if end.Code != 1006 {
			t.Errorf("ended with %+v", end)
		}
	})
}

func TestBadMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newEcho()
		c := newSite(t, live.Options{MaxMessage: 1000, Rate: live.Rate{Count: 4, Per: time.Minute}}, h).dial(t)
		read(t, c)
		write(t, c, `{nonsense`)
		if got := read(t, c); got != `{"error":{"name":"SyntaxError","params":[]}}` {
			t.Errorf("not JSON: %s", got)
		}
		h.message = func(context.Context, *live.Conn, json.RawMessage) error { return errors.New("secret detail") }
		write(t, c, `1`)
		if got := read(t, c); got != `{"error":{"name":"InternalError","params":[]}}` {
			t.Errorf("a failing handler: %s", got)
		}
		h.message = nil
		for range 3 {
			write(t, c, `2`)
			read(t, c)
		}
		write(t, c, `3`)
		if got := read(t, c); got != `{"error":{"name":"RateLimited","params":[4,60]}}` {
			t.Errorf("over the rate: %s", got)
		}
		time.Sleep(time.Minute)
		write(t, c, `4`)
		if got := read(t, c); got != `4` {
			t.Errorf("a minute later: %s", got)
		}
		write(t, c, `"`+strings.Repeat("x", 1000)+`"`)
		wantClose(t, c, 1009)
	})
}

func TestNotJSONBeforeReadyIsFatal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newEcho()
		h.open = func(ctx context.Context, _ *live.Conn) error {
			<-ctx.Done()
			return ctx.Err()
		}
		c := newSite(t, live.Options{}, h).dial(t)
		write(t, c, `nonsense`)
		if got := read(t, c); !strings.Contains(got, "SyntaxError") {
			t.Errorf("got %s", got)
		}
		wantClose(t, c, 4000)
		if end := <-h.ended; end.Code != 4000 {
			t.Errorf("ended with %+v", end)
		}
	})
}

func TestOpenThatFails(t *testing.T) {
	long := strings.Repeat("é", 100) // 200 bytes: cut between two runes
	for name, c := range map[string]struct {
		err  error
		code websocket.StatusCode
		text string
	}{
		"refused":   {&live.Refusal{Code: 4403, Reason: long}, 4403, ""},
		"an error":  {&live.Error{Name: "PermissionError", Params: []any{"x"}}, 4000, `{"error":{"name":"PermissionError","params":["x"]}}`},
		"a failure": {errors.New("database password is hunter2"), 4000, `{"error":{"name":"InternalError","params":[]}}`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newEcho()
				h.open = func(context.Context, *live.Conn) error { return c.err }
				conn := newSite(t, live.Options{}, h).dial(t)
				if c.text != "" {
					if got := read(t, conn); got != c.text {
						t.Errorf("got %s, want %s", got, c.text)
					}
				}
				ce := wantClose(t, conn, c.code)
				if name == "refused" && ce.Reason != strings.Repeat("é", 61) {
					t.Errorf("reason %q: want 61 whole runes in 123 bytes", ce.Reason)
				}
			})
		})
	}
	t.Run("too late", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := newEcho()
			h.open = func(ctx context.Context, _ *live.Conn) error { <-ctx.Done(); return ctx.Err() }
			conn := newSite(t, live.Options{OpenTimeout: 5 * time.Second}, h).dial(t)
			wantClose(t, conn, 1013)
		})
	})
}

func TestCrossOriginWithCookieIsRefusedBeforeAccept(t *testing.T) {
	s, err := live.New(live.Options{Origins: []string{"https://friend.example"}})
	if err != nil {
		t.Fatal(err)
	}
	accepted := 0
	h := newEcho()
	srv := httptest.NewServer(s.Handler(func(*http.Request) (live.Handler, error) { accepted++; return h, nil }))
	defer srv.Close()
	for _, c := range []struct {
		name, origin, cookie string
		ok                   bool
	}{
		{"another site with a cookie", "https://evil.example", "sid=1", false},
		{"an opaque origin with a cookie", "null", "sid=1", false},
		{"a friend with a cookie", "https://friend.example", "sid=1", true},
		{"the site itself", srv.URL, "sid=1", true},
		{"another site without a cookie", "https://evil.example", "", true},
		{"no browser", "", "sid=1", true},
	} {
		accepted = 0
		header := http.Header{}
		if c.origin != "" {
			header.Set("Origin", c.origin)
		}
		if c.cookie != "" {
			header.Set("Cookie", c.cookie)
		}
		conn, resp, err := websocket.Dial(t.Context(), srv.URL, &websocket.DialOptions{HTTPHeader: header})
		if c.ok != (err == nil) || c.ok != (accepted == 1) {
			t.Errorf("%s: error %v, accepted %d", c.name, err, accepted)
		}
		if !c.ok && (resp == nil || resp.StatusCode != http.StatusForbidden) {
			t.Errorf("%s: answer %v, want 403", c.name, resp)
		}
		if conn != nil {
			conn.CloseNow()
			<-h.ended
		}
	}
	if n := s.Stats().CrossOrigin; n != 2 {
		t.Errorf("counted %d cross-origin requests", n)
	}
}

func TestShutdownSpreadsItsClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newEcho()
		h.ended = make(chan live.End, 100)
		s := newSite(t, live.Options{}, h)
		const n = 50
		delays := make(chan time.Duration, n)
		var wg sync.WaitGroup
		for range n {
			c := s.dial(t)
			read(t, c)
			wg.Go(func() {
				ce := wantClose(t, c, 1012)
				var ms int64
				if _, err := fmt.Sscanf(ce.Reason, "restart after=%d", &ms); err != nil {
					t.Errorf("reason %q", ce.Reason)
				}
				delays <- time.Duration(ms) * time.Millisecond
			})
		}
		if err := s.live.Shutdown(t.Context(), 30*time.Second); err != nil {
			t.Errorf("shut down: %v", err)
		}
		wg.Wait()
		close(delays)
		distinct := map[time.Duration]bool{}
		for d := range delays {
			if d > 30*time.Second {
				t.Errorf("delay %v", d)
			}
			distinct[d/time.Second] = true
		}
		if len(distinct) < 15 {
			t.Errorf("50 delays fall into %d seconds of 30", len(distinct))
		}
		late := s.dial(t)
		wantClose(t, late, 1012)
	})
}

func TestMaximumAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSite(t, live.Options{MaxAge: 10 * time.Minute}, newEcho()).dial(t)
		start := time.Now()
		wantClose(t, c, 1012)
		if took := time.Since(start); took < 9*time.Minute || took > 10*time.Minute {
			t.Errorf("closed after %v, want the last tenth of 10m", took)
		}
	})
}

func TestNewRefusesBadOptions(t *testing.T) {
	for _, o := range []live.Options{
		{MaxMessage: -1}, {MaxQueue: -1}, {Silence: -1}, {MaxAge: -1}, {Keepalive: time.Second}, {Rate: live.Rate{Count: -1}},
	} {
		if _, err := live.New(o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
}
