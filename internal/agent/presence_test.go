package agent

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/wire"
)

func TestFirstWordsArePingAndHello(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := newRelay(t)
		first := make(chan wire.Message, 2)
		relay.control = func(_ int, p *peer) {
			for range 2 {
				m, err := p.next()
				if err != nil {
					t.Error(err)
				}
				first <- m
			}
			p.live()
		}
		o := relay.options()
		o.Services = map[wire.ServiceName]Service{"web": {Addr: "127.0.0.1:80"}, "db": {Addr: "unix:/run/db"}}
		blob := []byte{0, 1, 2}
		o.Presence = func() []byte { return blob }
		a := relay.run(o)
		if m := <-first; m.Op != wire.OpPing {
			t.Errorf("first message is %q", m.Op)
		}
		m := <-first
		if m.Op != wire.OpHello || m.Version != "1.2.3" || !slices.Equal(m.Services, []wire.ServiceName{"db", "web"}) ||
			!slices.Equal(m.Features, []string{"revoke", "drain"}) || m.Presence != "AAEC" {
			t.Errorf("second message is %+v", m)
		}
		at := relay.seen()[0]
		if at.instance != string(a.Instance()) || at.attempt != "1" || at.auth != bearer(testToken) {
			t.Errorf("headers are %+v", at)
		}
		if _, err := wire.ParseInstance(at.instance); err != nil {
			t.Error(err)
		}
	})
}

// A presence is asked for at each connect, and one that does not fit leaves the
// rest of the hello as it is.
func TestPresenceIsAskedAtEachConnect(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := newRelay(t)
		hellos := make(chan wire.Message, 4)
		relay.control = func(_ int, p *peer) {
			for range 2 {
				m, err := p.next()
				if err != nil {
					return
				}
				if m.Op == wire.OpHello {
					hellos <- m
				}
			}
		}
		o := relay.options()
		blobs := [][]byte{make([]byte, wire.MaxPresenceBytes), {7}, make([]byte, wire.MaxPresenceBytes+1)}
		asked := 0
		o.Presence = func() []byte {
			asked++
			return blobs[min(asked, len(blobs))-1]
		}
		relay.run(o)
		// The first question is New's own, to see whether a hello can be made.
		if m := <-hellos; m.Presence != "Bw==" {
			t.Errorf("first hello %+v", m)
		}
		if m := <-hellos; m.Presence != "" || m.Version != "1.2.3" {
			t.Errorf("a hello with too much: %+v", m)
		}
	})
}

// TestRelayThatNeverPongsIsLeftAloneForADay guards the pongSeen rule: without
// it every agent would cut a healthy connection to an older relay each 100 s.
func TestRelayThatNeverPongsIsLeftAloneForADay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := newRelay(t)
		relay.control = func(_ int, p *peer) { p.mute() }
		a := relay.run(relay.options())
		time.Sleep(24 * time.Hour)
		if n := len(relay.seen()); n != 1 {
			t.Errorf("%d connections in a day", n)
		}
		if s := a.Status(); s.Proven || s.Phase != "up" || s.ConnectedSince.IsZero() {
			t.Errorf("status is %+v", s)
		}
	})
}

// TestEdgeThatAnswersForALostRelayIsLeftAfter100s is the ghost: TCP and
// protocol pings work, but nobody would deliver a dial.
func TestEdgeThatAnswersForALostRelayIsLeftAfter100s(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := newRelay(t)
		relay.control = func(n int, p *peer) {
			if n > 1 {
				p.live()
				return
			}
			p.until(wire.OpPing, true)
			p.mute()
		}
		a := relay.run(relay.options())
		time.Sleep(99 * time.Second)
		if n := len(relay.seen()); n != 1 {
			t.Fatalf("%d connections after 99 s", n)
		}
		time.Sleep(1100 * time.Millisecond) // dead at 100 s, and up to 1 s of backoff
		time.Sleep(time.Second)
		if n := len(relay.seen()); n != 2 {
			t.Errorf("%d connections after 102 s", n)
		}
		synctest.Wait()
		if s := a.Status(); !s.Proven || !strings.Contains(s.LastError, "no answer") {
			t.Errorf("status is %+v", s)
		}
	})
}

func TestHealthyRelayIsKeptAndProven(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := newRelay(t)
		relay.control = func(_ int, p *peer) { p.live() }
		a := relay.run(relay.options())
		time.Sleep(10 * time.Hour)
		s := a.Status()
		if len(relay.seen()) != 1 || !s.Proven || time.Since(s.LastPong) > 45*time.Second {
			t.Errorf("%d connections, status %+v", len(relay.seen()), s)
		}
	})
}

func TestDeadTCPPathIsNoticedWithoutPongs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := newRelay(t)
		quit := make(chan struct{})
		relay.control = func(int, *peer) { <-quit } // reads nothing, so no protocol pong either
		relay.run(relay.options())
		time.Sleep(24900 * time.Millisecond)
		if n := len(relay.seen()); n != 1 {
			t.Errorf("%d connections before 25 s", n)
		}
		time.Sleep(1200 * time.Millisecond)
		if n := len(relay.seen()); n != 2 {
			t.Errorf("%d connections after 26.1 s", n)
		}
		close(quit)
	})
}

func TestBackoffGrowsToThirtySecondsAndAttemptsRise(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := newRelay(t)
		relay.refuse = func(_ int, w http.ResponseWriter, _ *http.Request) bool {
			http.Error(w, "bad gateway", http.StatusBadGateway)
			return true
		}
		relay.run(relay.options())
		time.Sleep(time.Hour)
		all := relay.seen()
		if len(all) < 3600/30 {
			t.Errorf("only %d attempts in an hour", len(all))
		}
		var longest time.Duration
		for i, gap := range gaps(all) {
			ceiling := min(time.Second<<min(i, 10), 30*time.Second)
			if ceiling < 250*time.Millisecond || gap > ceiling+250*time.Millisecond {
				t.Errorf("gap %d is %v, ceiling %v", i, gap, ceiling)
			}
			longest = max(longest, gap)
		}
		if longest < 15*time.Second {
			t.Errorf("the longest wait is %v: the backoff did not grow", longest)
		}
		for i, at := range all {
			if at.attempt != strconv.Itoa(i+1) || at.instance != all[0].instance {
				t.Fatalf("attempt %d is %+v", i, at)
			}
		}
	})
}

// TestOpenIsNotReady: a relay that accepts and closes at once, or falls over
// after some seconds, is met with growing waits.
func TestOpenIsNotReady(t *testing.T) {
	for name, up := range map[string]time.Duration{"at once": 0, "after 8 s": 8 * time.Second} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				relay := newRelay(t)
				relay.control = func(_ int, p *peer) {
					p.until(wire.OpHello, true)
					time.Sleep(up)
					p.Close(websocket.StatusGoingAway, "")
				}
				relay.run(relay.options())
				time.Sleep(time.Hour)
				all := gaps(relay.seen())
				late := all[len(all)-20:]
				if slices.Max(late) < 15*time.Second+up {
					t.Errorf("the last waits are %v", late)
				}
			})
		})
	}
}

func TestStableConnectionResetsTheBackoff(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := newRelay(t)
		relay.control = func(_ int, p *peer) {
			p.until(wire.OpHello, true)
			time.Sleep(11 * time.Second)
			p.Close(websocket.StatusGoingAway, "")
		}
		relay.run(relay.options())
		time.Sleep(time.Hour)
		for i, gap := range gaps(relay.seen()) {
			if gap > 12100*time.Millisecond {
				t.Errorf("gap %d is %v", i, gap)
			}
		}
	})
}

func TestRestartDelayIsHonoured(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := newRelay(t)
		relay.control = func(n int, p *peer) {
			p.until(wire.OpHello, true)
			if n == 1 {
				time.Sleep(time.Minute)
				p.Close(websocket.StatusServiceRestart, "restart after=17000")
				return
			}
			p.live()
		}
		relay.run(relay.options())
		time.Sleep(2 * time.Minute)
		if g := gaps(relay.seen()); len(g) != 1 || g[0].Round(time.Millisecond) != 77*time.Second {
			t.Errorf("gaps are %v", g)
		}
	})
}

// TestDrainServesUntilTheNextConnectionIsThere: reconnecting on request costs
// no moment in which a dial would not arrive.
func TestDrainServesUntilTheNextConnectionIsThere(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := newRelay(t)
		var openAt2, closedAt1 atomic.Int64
		code := make(chan websocket.StatusCode, 1)
		relay.control = func(n int, p *peer) {
			p.until(wire.OpHello, true)
			if n > 1 {
				openAt2.Store(int64(time.Since(relay.start)))
				p.live()
				return
			}
			p.send(wire.Message{Op: wire.OpDrain, AfterMs: 7000})
			err := p.live()
			closedAt1.Store(int64(time.Since(relay.start)))
			code <- websocket.CloseStatus(err)
		}
		relay.run(relay.options())
		if c := <-code; c != websocket.StatusNormalClosure {
			t.Errorf("the old connection ended with %v", c)
		}
		all := relay.seen()
		if g := gaps(all); len(g) != 1 || g[0].Round(time.Millisecond) != 7*time.Second {
			t.Errorf("gaps are %v", g)
		}
		if closedAt1.Load() < openAt2.Load() {
			t.Errorf("closed at %d before the next was open at %d", closedAt1.Load(), openAt2.Load())
		}
	})
}

func TestAnotherInstanceEndsRun(t *testing.T) {
	for name, reason := range map[string]string{
		"named": wire.ReplacedReason("AAAAAAAAAAAAAAAAAAAAAA"), "older agent": wire.ReplacedReason(""),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				relay := newRelay(t)
				relay.control = func(_ int, p *peer) {
					p.until(wire.OpHello, true)
					p.Close(4409, reason)
				}
				a, err := New(relay.options())
				if err != nil {
					t.Fatal(err)
				}
				err = a.Run(t.Context())
				var replaced *ReplacedError
				if !errors.Is(err, ErrReplaced) || !errors.As(err, &replaced) || replaced.Winner != wire.ReplacedBy(reason) {
					t.Errorf("Run returned %v", err)
				}
				if len(relay.seen()) != 1 || a.Status().Phase != "stopped" {
					t.Errorf("%d attempts, status %+v", len(relay.seen()), a.Status())
				}
			})
		})
	}
}

func TestOwnInstanceComesBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := newRelay(t)
		relay.control = func(n int, p *peer) {
			p.until(wire.OpHello, true)
			if n == 1 {
				p.Close(4409, wire.ReplacedReason(wire.Instance(relay.seen()[0].instance)))
				return
			}
			p.live()
		}
		relay.run(relay.options())
		time.Sleep(5 * time.Second)
		if n := len(relay.seen()); n != 2 {
			t.Errorf("%d connections", n)
		}
	})
}

func answer(status int, code wire.Refusal) func(int, http.ResponseWriter, *http.Request) bool {
	return func(_ int, w http.ResponseWriter, _ *http.Request) bool {
		if code != "" {
			w.Header().Set(wire.HeaderRefusal, string(code))
		}
		http.Error(w, "go away", status)
		return true
	}
}

func TestTerminalAnswersAreAskedAgainHourly(t *testing.T) {
	tests := []struct {
		status int
		code   wire.Refusal
	}{
		{401, wire.RefusalTokenRevoked}, {403, wire.RefusalNotAllowed}, {400, wire.RefusalSyntax}, {426, wire.RefusalVersion},
	}
	for _, tt := range tests {
		t.Run(string(tt.code), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				relay := newRelay(t)
				relay.refuse = answer(tt.status, tt.code)
				a := relay.run(relay.options())
				time.Sleep(30 * time.Minute)
				if s := a.Status(); !s.Refused || s.NextAttempt.IsZero() {
					t.Errorf("status is %+v", s)
				} else {
					contains(t, "last error", s.LastError, string(tt.code))
				}
				time.Sleep(24 * time.Hour)
				all := gaps(relay.seen())
				if len(all) < 19 || len(all) > 32 {
					t.Errorf("%d attempts in a day", len(all))
				}
				for _, g := range all {
					if g < 45*time.Minute || g > 75*time.Minute {
						t.Errorf("asked again after %v", g)
					}
				}
			})
		})
	}
}

func TestRetryDoesNotWaitForTheHour(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := newRelay(t)
		relay.refuse = func(n int, w http.ResponseWriter, r *http.Request) bool {
			return n == 1 && answer(401, wire.RefusalTokenExpired)(n, w, r)
		}
		relay.control = func(_ int, p *peer) { p.live() }
		a := relay.run(relay.options())
		time.Sleep(time.Minute)
		a.Wake() // no person's act: the network changed
		time.Sleep(time.Minute)
		if n := len(relay.seen()); n != 1 {
			t.Errorf("%d attempts after a wake", n)
		}
		a.Retry()
		time.Sleep(time.Second)
		if s := a.Status(); s.Refused || !s.Proven {
			t.Errorf("status is %+v", s)
		}
		a.Retry()
		time.Sleep(time.Second)
		if n := len(relay.seen()); n != 2 {
			t.Errorf("%d attempts: a live connection was replaced", n)
		}
	})
}

func TestTerminalCloseCodesAreAskedAgainHourly(t *testing.T) {
	for _, code := range []websocket.StatusCode{1008, 4000, 4001, 4401, 4403, 4404, 4426, 4410, 4099} {
		bubble(t, func(t *testing.T) {
			relay := newRelay(t)
			relay.control = func(_ int, p *peer) {
				p.until(wire.OpHello, true)
				p.Close(code, "because")
			}
			a := relay.run(relay.options())
			time.Sleep(10 * time.Minute)
			if n := len(relay.seen()); n != 1 || !a.Status().Refused {
				t.Errorf("%d: %d attempts, status %+v", code, n, a.Status())
			}
			time.Sleep(70 * time.Minute)
			if n := len(relay.seen()); n != 2 {
				t.Errorf("%d: %d attempts after 80 minutes", code, n)
			}
		})
	}
}

// TestCaptivePortalIsNotBelieved: a 401 without our header says nothing about
// the token.
func TestCaptivePortalIsNotBelieved(t *testing.T) {
	for _, status := range []int{401, 403} {
		bubble(t, func(t *testing.T) {
			relay := newRelay(t)
			relay.refuse = answer(status, "")
			a := relay.run(relay.options())
			time.Sleep(10 * time.Minute)
			if n := len(relay.seen()); n < 20 || a.Status().Refused {
				t.Errorf("%d: %d attempts in ten minutes, status %+v", status, n, a.Status())
			}
		})
	}
}

func TestRetryAfterIsHonoured(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := newRelay(t)
		relay.refuse = func(n int, w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("Retry-After", "90")
			return answer(429, wire.RefusalLimit)(n, w, r)
		}
		relay.run(relay.options())
		time.Sleep(10 * time.Minute)
		for _, g := range gaps(relay.seen()) {
			if g < 90*time.Second {
				t.Errorf("came back after %v", g)
			}
		}
	})
}

func TestTokenIsReadAnewForEachAttempt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := newRelay(t)
		relay.control = func(_ int, p *peer) { p.until(wire.OpHello, true) }
		tokens := []wire.Token{wire.NewToken(), wire.NewToken()}
		var calls atomic.Int64
		o := relay.options()
		o.Token = func(context.Context) (wire.Token, error) {
			n := calls.Add(1)
			if n == 2 {
				return wire.Token{}, errors.New("agent.token: no such file")
			}
			return tokens[min(n-1, 1)], nil
		}
		a := relay.run(o)
		for len(relay.seen()) < 1 {
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(time.Millisecond)
		for calls.Load() < 2 {
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		contains(t, "last error", a.Status().LastError, "no such file")
		time.Sleep(30 * time.Second)
		all := relay.seen()
		if len(all) < 2 || all[0].auth != bearer(tokens[0]) || all[1].auth != bearer(tokens[1]) {
			t.Errorf("attempts are %+v", all)
		}
	})
}

func TestGarbageIsDroppedAndCounted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := newRelay(t)
		relay.control = func(_ int, p *peer) {
			p.until(wire.OpHello, true)
			ctx := context.Background()
			for _, s := range []string{"", "{", "[]", "null", `{"op":7}`, "\xff\xfe", strings.Repeat("[", 4000), `{"op":"drain","afterMs":-1}`, `{"op":"dial","connId":"../../etc"}`} {
				p.Write(ctx, websocket.MessageText, []byte(s))
			}
			p.Write(ctx, websocket.MessageBinary, []byte(`{"op":"drain","afterMs":1}`))
			p.Write(ctx, websocket.MessageText, []byte(`{"op":"party","afterMs":1}`))
			p.live()
		}
		a := relay.run(relay.options())
		time.Sleep(time.Hour)
		if s := a.Status(); len(relay.seen()) != 1 || s.Dropped != 10 {
			t.Errorf("%d connections, %d dropped", len(relay.seen()), s.Dropped)
		}
	})
}

func TestOversizeControlMessageCloses1009(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := newRelay(t)
		code := make(chan websocket.StatusCode, 1)
		relay.control = func(n int, p *peer) {
			p.until(wire.OpHello, true)
			if n > 1 {
				p.live()
				return
			}
			p.Write(context.Background(), websocket.MessageText, []byte(`{"op":"`+strings.Repeat("x", wire.MaxControlBytes)+`"}`))
			code <- websocket.CloseStatus(p.live())
		}
		relay.run(relay.options())
		if c := <-code; c != websocket.StatusMessageTooBig {
			t.Errorf("closed with %v", c)
		}
		time.Sleep(5 * time.Second)
		if n := len(relay.seen()); n != 2 {
			t.Errorf("%d connections", n)
		}
	})
}

func TestStopSaysGoodbye(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := newRelay(t)
		end := make(chan error, 1)
		relay.control = func(_ int, p *peer) {
			p.until(wire.OpHello, true)
			end <- p.live()
		}
		a := relay.run(relay.options())
		time.Sleep(time.Second)
		a.stop()
		if err := <-end; websocket.CloseStatus(err) != websocket.StatusGoingAway || closeReason(err) != "agent stops" {
			t.Errorf("the relay saw %v", err)
		}
	})
}

func TestWakeSkipsTheWaitAndProbes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		relay := newRelay(t)
		var pings atomic.Int64
		relay.refuse = func(n int, w http.ResponseWriter, r *http.Request) bool {
			return n <= 20 && answer(502, "")(n, w, r)
		}
		relay.control = func(_ int, p *peer) {
			for {
				if _, err := p.until(wire.OpPing, true); err != nil {
					return
				}
				pings.Add(1)
			}
		}
		a := relay.run(relay.options())
		for len(relay.seen()) < 20 {
			time.Sleep(time.Second)
		}
		before := time.Now()
		a.Wake()
		time.Sleep(time.Second)
		if all := relay.seen(); len(all) != 21 || time.Since(before) > 2*time.Second {
			t.Fatalf("%d attempts", len(all))
		}
		n := pings.Load()
		time.Sleep(time.Second)
		a.Wake()
		synctest.Wait()
		if pings.Load() != n+1 {
			t.Errorf("%d pings after waking, %d before", pings.Load(), n)
		}
	})
}
