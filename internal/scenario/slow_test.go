package scenario

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/client"
	"holdfast/internal/faultproxy"
	"holdfast/internal/netwatch"
	"holdfast/internal/wire"
)

// Links on which a person would despair, and which do their job.
func TestHealthyButSlowLinksAreNeverCut(t *testing.T) {
	slow := []faultproxy.Fault{faultproxy.Trickle(both, 200_000), faultproxy.Delay(both, 250*time.Millisecond)}
	for _, way := range []string{"down", "up"} {
		t.Run("200 KB/s and a round trip of 500 ms, a copy "+way, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				w.devicePath.ArmEvery(slow...)
				w.agentPath.Apply(slow...) // the control connection too
				s, err := w.open(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				defer s.close()
				const copied = 60_000_000 // five minutes of it
				began := time.Now()
				first := byte(pour)
				if way == "up" {
					first = sink
				}
				if _, err := s.far.Write([]byte{first}); err != nil {
					t.Fatal(err)
				}
				if way == "down" {
					if _, err := io.CopyN(io.Discard, s.far, copied); err != nil {
						t.Fatalf("after %v: %v (%v)", time.Since(began), err, s.err)
					}
				} else {
					piece := make([]byte, 32<<10)
					for sent := 0; sent < copied; sent += len(piece) {
						if _, err := s.far.Write(piece); err != nil {
							t.Fatalf("after %v: %v (%v)", time.Since(began), err, s.err)
						}
					}
					if n := w.sshd.last().bytes(); n < copied-10<<20 { // what the path holds
						t.Errorf("%d bytes have come", n)
					}
				}
				if took := time.Since(began); took < 4*time.Minute {
					t.Errorf("took %v: the link was not slow", took)
				}
				if over := w.events.since(began, lost); len(over) > 0 {
					t.Errorf("the control connection was given up: %+v", over)
				}
			})
		})
	}
}

// A message of 1 MiB at 10 KB/s takes 105 s, in which no other frame of that
// direction can come.
func TestLongMessageAt10KBIsNotCut(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.devicePath.ArmEvery(faultproxy.Trickle(both, 10_000))
		ctx := context.Background()
		ws, _, err := websocket.Dial(ctx, "ws://"+devicePathAddr+wire.ConnectPath(machine, ""), &websocket.DialOptions{
			HTTPClient:   &http.Client{Transport: &http.Transport{DialContext: w.DialContext}},
			HTTPHeader:   http.Header{"Authorization": {"Bearer " + w.deviceToken.Secret()}},
			Subprotocols: []string{wire.SubprotocolV1},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer ws.CloseNow()
		message := make([]byte, 1<<20)
		message[0] = sink
		began := time.Now()
		reading := ws.CloseRead(ctx) // answers the relay's pings as they come
		if err := ws.Write(ctx, websocket.MessageBinary, message); err != nil {
			t.Fatalf("after %v: %v", time.Since(began), err)
		}
		if err := w.waitUntil("the message is there", 3*time.Minute, func() bool {
			v := w.sshd.last()
			return v != nil && v.bytes() == int64(len(message))-1
		}); err != nil {
			t.Errorf("%v (reader: %v)", err, reading.Err())
		}
		if took := time.Since(began); took < 100*time.Second {
			t.Errorf("took %v: the link was not slow", took)
		}
	})
}

// ssh is under Ctrl-Z for an hour, with a program's output waiting: nobody on
// the way gives the stream up, and not one byte is missing afterwards.
func TestStoppedReaderForAnHourIsNotCut(t *testing.T) {
	c := cell{row: row{link: deviceLeg, fault: "none", verdict: kept}, dir: both, moment: readerStopped}
	inBubble(t, func(t *testing.T, w *world) {
		s, err := w.open(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		defer s.close()
		if _, err := s.far.Write([]byte{pour}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		select {
		case <-s.done:
			t.Fatalf("cut: %v", s.err)
		default:
		}
		if err := c.stillWorks(w, s); err != nil {
			t.Error(err)
		}
	})
}

// asleep is a computer's two clocks, of which only the wall's goes on while it
// sleeps.
type asleep struct {
	start time.Time
	slept atomic.Int64
}

func (a *asleep) clock() (wall time.Time, mono time.Duration) {
	return time.Now().Add(time.Duration(a.slept.Load())), time.Since(a.start)
}

// The computer sleeps for ten minutes, and everything that it was connected to
// has forgotten it. Nothing waits for its idle time: the wake probes, and both
// verdicts fall 10 s later.
func TestTenMinutesOfSleepAreNoticed(t *testing.T) {
	for _, survives := range []bool{false, true} {
		name := "the links are dead"
		if survives {
			name = "the links have survived"
		}
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				s, err := w.open(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				defer s.close()
				if _, err := s.far.Write([]byte{echo}); err != nil {
					t.Fatal(err)
				}
				if err := s.echoed(time.Second); err != nil {
					t.Fatal(err)
				}
				a := &asleep{start: time.Now()}
				ctx, cancel := context.WithCancel(context.Background())
				o := netwatch.Options{Clock: a.clock, Changes: make(chan struct{})}
				agentWatched, deviceWatched := make(chan struct{}), make(chan struct{})
				// Both end with ctx, and are waited for.
				go func() {
					defer close(agentWatched)
					netwatch.Watch(ctx, o, func(netwatch.Kind) { w.agent.Wake() })
				}()
				go func() {
					defer close(deviceWatched)
					client.Watch(ctx, s.stream, o)
				}()
				defer func() {
					cancel()
					<-agentWatched
					<-deviceWatched
				}()
				time.Sleep(3 * time.Second)
				// Ten minutes that the monotonic clock does not see. The bubble's
				// own clock cannot jump, so what the links do in them is done here.
				if !survives {
					w.agentPath.StallAll(both)
					w.devicePath.StallAll(both)
				}
				woke := time.Now()
				a.slept.Store(int64(10 * time.Minute))
				time.Sleep(20 * time.Second)
				over := w.events.since(woke, lost)
				if survives {
					select {
					case <-s.done:
						t.Fatalf("the stream was cut: %v", s.err)
					default:
					}
					if len(over) > 0 {
						t.Fatalf("the control connection was given up: %+v", over)
					}
					if err := s.echoed(time.Second); err != nil {
						t.Error(err)
					}
					return
				}
				// One tick of the watch, then one window.
				limit := 5*time.Second + 10*time.Second
				if len(over) != 1 || over[0].at.Sub(woke) > limit {
					t.Fatalf("control connection: %+v, want one verdict within %v", over, limit)
				}
				select {
				case <-s.done:
				default:
					t.Fatal("the stream is still believed in")
				}
				if took := s.ended.Sub(woke); took > limit {
					t.Errorf("the stream was given up after %v, want within %v", took, limit)
				}
				if back := w.events.since(over[0].at, connected); len(back) != 1 || back[0].at.Sub(over[0].at) > time.Second {
					t.Errorf("back: %+v", back)
				}
				if err := w.works(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// The network changes under both: a wake, not a verdict, and a path that did not
// survive is known to be dead 10 s later.
func TestNetworkChangeProbesAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		s, err := w.open(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		defer s.close()
		changes := make(chan struct{})
		ctx, cancel := context.WithCancel(context.Background())
		watched := make(chan struct{})
		go func() { // ends with ctx or the stream, and is waited for
			defer close(watched)
			client.Watch(ctx, s.stream, netwatch.Options{Changes: changes})
		}()
		time.Sleep(time.Second)
		w.devicePath.StallAll(both)
		at := time.Now()
		changes <- struct{}{}
		<-s.done
		if took, want := s.ended.Sub(at), 10250*time.Millisecond; took != want {
			t.Errorf("given up after %v, want %v: the burst settles, then one window", took, want)
		}
		cancel()
		<-watched
	})
}
