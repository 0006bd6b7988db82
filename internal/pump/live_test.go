package pump

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gobwas/ws"

	"holdfast/internal/frame"
	"holdfast/internal/wire"
)

// bubble runs f over memnet in virtual time.
func bubble(t *testing.T, o Options, f func(t *testing.T, r *rig)) {
	synctest.Test(t, func(t *testing.T) {
		f(t, start(t, memPair, o))
	})
}

// answer reads for a time and answers pings, as a living peer does. It returns
// when each ping came.
func (p *peer) answer(t *testing.T, d time.Duration) (pings []time.Duration) {
	t.Helper()
	begin := time.Now()
	p.SetReadDeadline(begin.Add(d))
	defer p.SetReadDeadline(time.Time{})
	for {
		f, err := ws.ReadFrame(p)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return pings
		}
		if err != nil {
			t.Errorf("read: %v", err)
			return pings
		}
		if f.Header.OpCode == ws.OpPing {
			pings = append(pings, time.Since(begin))
			p.Write(frameBytes(frame.Pong, true, string(f.Payload)))
		}
	}
}

func TestBothLegsArePingedEvery15s(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, r *rig) {
		done := make(chan []time.Duration)
		for _, e := range r.ends {
			go func() { done <- e.answer(t, time.Hour) }()
		}
		for range r.ends {
			pings := <-done
			if len(pings) < 239 || len(pings) > 241 {
				t.Fatalf("%d pings in an hour", len(pings))
			}
			for i, at := range pings {
				if want := time.Duration(i+1) * 15 * time.Second; at != want {
					t.Fatalf("ping %d came after %v, want %v", i, at, want)
				}
			}
		}
		r.pump.Stop(wire.CloseGoingAway, "")
		<-r.result
	})
}

func TestKeepaliveOptionPingsMoreOften(t *testing.T) {
	bubble(t, Options{Keepalive: 5 * time.Second}, func(t *testing.T, r *rig) {
		go r.ends[Agent].answer(t, time.Minute)
		if pings := r.ends[Device].answer(t, time.Minute); len(pings) < 11 || pings[0] != 5*time.Second {
			t.Fatalf("pings after %v", pings)
		}
		r.pump.Stop(wire.CloseGoingAway, "")
		<-r.result
	})
}

func TestSilentLegIsDeadAfter25s(t *testing.T) {
	for _, silent := range []Side{Device, Agent} {
		bubble(t, Options{}, func(t *testing.T, r *rig) {
			begin := time.Now()
			other := r.ends[silent.other()]
			go func() {
				for range 6 {
					time.Sleep(4 * time.Second)
					other.Write(frameBytes(frame.Pong, true, ""))
				}
			}()
			op, payload, err := other.read()
			if took := time.Since(begin); took != 25*time.Second {
				t.Fatalf("noticed after %v", took)
			}
			code, reason, perr := frame.ParseClose([]byte(payload))
			if err != nil || perr != nil || op != frame.Close || code != 1011 ||
				reason != "the "+silent.String()+" gave no sign of life for 25s" {
				t.Fatalf("read %s %d %q, %v", op, code, reason, err)
			}
			other.Close()
			if res := <-r.result; res.Cause != CauseDead || res.By != silent {
				t.Fatalf("result %+v", res)
			}
			// It is told, in case only its sending side is gone.
			op, payload, err = r.ends[silent].read()
			if op != frame.Close || !strings.Contains(payload, "no sign of life") {
				t.Fatalf("the silent side reads %s %q, %v", op, payload, err)
			}
		})
	}
}

// The 25 s count from the last byte, wherever that falls between two pings.
func TestSilentLegIsDeadAfter25sWheneverItFellSilent(t *testing.T) {
	for last := time.Second; last < 15*time.Second; last += time.Second {
		bubble(t, Options{}, func(t *testing.T, r *rig) {
			begin := time.Now()
			go func() {
				for time.Since(begin) < last+20*time.Second {
					time.Sleep(4 * time.Second)
					r.ends[Agent].Write(frameBytes(frame.Pong, true, ""))
				}
			}()
			time.Sleep(last)
			r.ends[Device].Write(frameBytes(frame.Pong, true, ""))
			op, _, err := r.ends[Agent].read()
			if took := time.Since(begin); op != frame.Close || err != nil || took != last+25*time.Second {
				t.Errorf("silent since %v: %s after %v (%v), want the close frame 25 s later", last, op, took, err)
			}
			r.ends[Agent].Close()
			<-r.result
		})
	}
}

// Any inbound byte is life: a message that trickles in over an hour is not cut.
func TestLongMessageOnASlowLinkIsNotCut(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, r *rig) {
		go func() {
			f := frameBytes(frame.Binary, true, strings.Repeat("x", 300))
			for i := range f {
				r.ends[Device].Write(f[i : i+1])
				time.Sleep(12 * time.Second)
			}
			r.ends[Device].Write(closeBytes(1000, ""))
		}()
		go func() {
			for r.pump.Stats().ToAgent < 300 {
				time.Sleep(10 * time.Second)
				r.ends[Agent].Write(frameBytes(frame.Pong, true, ""))
			}
		}()
		r.ends[Agent].want(t, frame.Binary, strings.Repeat("x", 300))
		r.ends[Agent].wantClose(t, 1000, "")
		r.ends[Device].Close()
		if res := <-r.result; res.Cause != CauseClosed {
			t.Fatalf("result %+v", res)
		}
	})
}

// The agent sends to a device that has stopped reading for an hour, as ssh under
// Ctrl-Z, and goes on pinging. Nobody is cut: the agent, which is not read, is
// pinged all the time; the device is heard.
func TestStoppedReaderIsNotADeadPath(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, r *rig) {
		d, a := r.ends[Device], r.ends[Agent]
		total := 0
		go func() {
			for range 50 { // more than all buffers
				a.Write(frameBytes(frame.Binary, true, strings.Repeat("x", 32<<10)))
			}
			a.Write(closeBytes(1000, ""))
		}()
		stop := make(chan struct{})
		go func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(15 * time.Second):
					d.Write(frameBytes(frame.Ping, true, ""))
				}
			}
		}()
		// The agent reads all the time, and needs a sign of life every 25 s.
		pings := make(chan []time.Duration, 1)
		go func() {
			a.SetReadDeadline(time.Now().Add(time.Hour))
			var at []time.Duration
			begin := time.Now()
			for {
				f, err := ws.ReadFrame(a)
				if err != nil {
					pings <- at
					return
				}
				if f.Header.OpCode == ws.OpPing {
					at = append(at, time.Since(begin))
				}
			}
		}()
		time.Sleep(time.Hour)
		if got := <-pings; len(got) < 239 {
			t.Fatalf("the blocked side got %d pings in an hour", len(got))
		}
		select {
		case res := <-r.result:
			t.Fatalf("cut: %+v", res)
		default:
		}
		close(stop)
		a.SetReadDeadline(time.Time{})
		for {
			op, payload, err := d.read()
			if err != nil {
				t.Fatal(err)
			}
			if op == frame.Close {
				break
			}
			total += len(payload)
		}
		if total != 50*32<<10 {
			t.Fatalf("%d bytes came", total)
		}
		d.Close()
		a.Close()
		if res := <-r.result; res.Cause != CauseClosed || res.By != Agent {
			t.Fatalf("result %+v", res)
		}
	})
}

// A device that reads slowly and never pings by itself has not been asked while
// our ping waits behind data that moves.
func TestSlowReaderThatNeverPingsIsNotCut(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, r *rig) {
		d, a := r.ends[Device], r.ends[Agent]
		const size = 1 << 20
		go func() {
			for range size / (32 << 10) {
				a.Write(frameBytes(frame.Binary, true, strings.Repeat("x", 32<<10)))
			}
			a.Write(closeBytes(1000, ""))
			io.Copy(io.Discard, a)
		}()
		slow := &peer{Conn: &trickle{Conn: d.Conn, rate: 7 << 10}}
		total := 0
		for total < size {
			op, payload, err := slow.read()
			if err != nil || op != frame.Binary {
				t.Fatalf("after %d bytes: %s %v", total, op, err)
			}
			total += len(payload)
			if len(slow.pings) > 0 { // its library answers what it comes upon
				slow.pings = nil
				d.Write(frameBytes(frame.Pong, true, ""))
			}
		}
		d.Close()
		<-r.result
	})
}

// trickle reads at a rate of bytes a second.
type trickle struct {
	net.Conn
	rate int
}

func (c *trickle) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p[:min(len(p), c.rate/4)])
	time.Sleep(time.Duration(n) * time.Second / time.Duration(c.rate))
	return n, err
}

// A path that dies under a bulk transfer is noticed as soon as any other.
func TestDeadPathUnderLoadIsNoticed(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, r *rig) {
		a := r.ends[Agent]
		go func() {
			for {
				if _, err := a.Write(frameBytes(frame.Binary, true, strings.Repeat("x", 32<<10))); err != nil {
					return
				}
			}
		}()
		begin := time.Now()
		op, payload, err := a.read() // the device reads and sends nothing at all
		if took := time.Since(begin); op != frame.Close || took < 25*time.Second || took > 41*time.Second {
			t.Fatalf("read %s %q, %v after %v", op, payload, err, took)
		}
		a.Close()
		if res := <-r.result; res.Cause != CauseDead || res.By != Device {
			t.Fatalf("result %+v", res)
		}
	})
}

// After a close frame a peer that does not hang up is read for 2 s.
func TestDrainEndsAfter2s(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, r *rig) {
		begin := time.Now()
		r.ends[Device].Write(closeBytes(1000, ""))
		flood := make(chan struct{})
		go func() {
			defer close(flood)
			for { // a flood does not prolong it
				if _, err := r.ends[Agent].Write(frameBytes(frame.Binary, true, "more")); err != nil {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
		}()
		<-r.result
		if took := time.Since(begin); took != 2*time.Second {
			t.Errorf("it took %v", took)
		}
		<-flood
	})
}

// Two peers that read nothing cannot hold a revoked stream open.
func TestStopEndsInTimeInTheBubble(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, r *rig) {
		for _, e := range r.ends {
			go func() {
				for {
					if _, err := e.Write(frameBytes(frame.Binary, true, strings.Repeat("x", 32<<10))); err != nil {
						return
					}
				}
			}()
		}
		time.Sleep(time.Second)
		begin := time.Now()
		r.pump.Stop(wire.CloseUnauthorized, "token revoked")
		<-r.result
		if took := time.Since(begin); took > time.Second {
			t.Fatalf("it took %v", took)
		}
	})
}
