package pump

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"holdfast/internal/frame"
	"holdfast/internal/wire"
)

// frozenStream is a stream that the test freezes and resumes, as often as it
// likes, with its state written down in between.
type frozenStream struct {
	pump   *Pump
	result chan Result
}

func (s *frozenStream) run(p *Pump) {
	s.pump, s.result = p, make(chan Result, 1)
	p.Start(func(r Result) { s.result <- r })
}

// move freezes and goes on. It returns the end of a stream that was over.
func (s *frozenStream) move(t *testing.T) (end Result, over bool) {
	t.Helper()
	s.pump.Freeze()
	r := <-s.result
	if r.Frozen == nil {
		return r, true
	}
	written, err := json.Marshal(r.Frozen.State)
	if err != nil {
		t.Fatal(err)
	}
	f := Frozen{Device: r.Frozen.Device, Agent: r.Frozen.Agent}
	if err := json.Unmarshal(written, &f.State); err != nil {
		t.Fatal(err)
	}
	if f.State.Over {
		if err := Finish(f, Options{}); err != nil {
			t.Error(err)
		}
		return r, true
	}
	p, err := Resume(f, Options{})
	if err != nil {
		t.Fatal(err)
	}
	s.run(p)
	return Result{}, false
}

// sendFrames sends payload as masked frames of every kind and size, in pieces
// that end anywhere, with pings in between, then a close frame.
func sendFrames(conn net.Conn, payload []byte, seed uint64) error {
	r := rand.New(rand.NewPCG(seed, 1))
	frameOf := func(h frame.Header, p []byte) []byte {
		h.Masked, h.Length = true, int64(len(p))
		for i := range h.Mask {
			h.Mask[i] = byte(r.Uint32())
		}
		b := frame.AppendHeader(nil, h)
		at := len(b)
		b = append(b, p...)
		frame.Mask(h.Mask, 0, b[at:])
		return b
	}
	var all []byte
	open := false
	for len(payload) > 0 {
		n := min(len(payload), []int{0, 1, 100, 125, 126, 4096, 32 << 10, 70_000, 300_000}[r.IntN(9)])
		h := frame.Header{Op: frame.Binary, Fin: r.IntN(2) == 0}
		if open {
			h.Op = frame.Continuation
		}
		open = !h.Fin
		all = append(all, frameOf(h, payload[:n])...)
		payload = payload[n:]
		if r.IntN(4) == 0 {
			all = append(all, frameOf(frame.Header{Op: frame.Ping, Fin: true}, []byte("still there?"))...)
		}
	}
	if open {
		all = append(all, frameOf(frame.Header{Op: frame.Continuation, Fin: true}, nil)...)
	}
	all = append(all, frameOf(frame.Header{Op: frame.Close, Fin: true}, []byte("\x03\xe8done"))...)
	for len(all) > 0 {
		n := min(len(all), 1+r.IntN(64<<10))
		if _, err := conn.Write(all[:n]); err != nil {
			return err
		}
		all = all[n:]
	}
	return nil
}

// takeFrames reads frames until a close frame and returns the payload of the
// data frames. It reads slowly now and then, so that writes to it block.
func takeFrames(conn net.Conn, slow bool) (payload []byte, code uint16, err error) {
	r := rand.New(rand.NewPCG(7, 7))
	buf := make([]byte, 48<<10)
	var rest []byte
	for {
		if slow && r.IntN(8) == 0 {
			time.Sleep(2 * time.Millisecond)
		}
		n, rerr := conn.Read(buf)
		rest = append(rest, buf[:n]...)
		for {
			h, hn, err := frame.ParseHeader(rest)
			if err != nil {
				return payload, 0, err
			}
			if hn == 0 || int64(len(rest)-hn) < h.Length {
				break
			}
			p := rest[hn : hn+int(h.Length)]
			switch {
			case h.Op == frame.Close:
				code, _, err := frame.ParseClose(p)
				return payload, code, err
			case !h.Op.IsControl():
				payload = append(payload, p...)
			}
			rest = rest[hn+int(h.Length):]
		}
		if rerr != nil {
			return payload, 0, rerr
		}
	}
}

// TestFrozenStreamsLoseNothing moves a busy stream from pump to pump until it has
// ended by its close frame, which comes from the device.
func TestFrozenStreamsLoseNothing(t *testing.T) {
	const size = 2 << 20
	for _, pr := range pairings {
		for _, slow := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, slow reader %v", pr.name, slow), func(t *testing.T) {
				r := start(t, pr.pair, Options{})
				s := &frozenStream{pump: r.pump, result: r.result}
				sent := make([]byte, size)
				rand.NewChaCha8([32]byte{1}).Read(sent)
				failed := make(chan error, 2)
				// Both end with the stream or by the deadline.
				for _, e := range r.ends {
					e.Conn.SetDeadline(time.Now().Add(60 * time.Second))
				}
				go func() { failed <- sendFrames(r.ends[Device].Conn, sent, 3) }()
				go func() {
					// The device must read too: pings are answered there.
					_, err := io.Copy(io.Discard, r.ends[Device].Conn)
					failed <- err
				}()
				type taken struct {
					payload []byte
					code    uint16
					err     error
				}
				got := make(chan taken, 1)
				go func() {
					p, code, err := takeFrames(r.ends[Agent].Conn, slow)
					r.ends[Agent].Conn.Close()
					got <- taken{p, code, err}
				}()
				moves := 0
				for over := false; !over; moves++ {
					_, over = s.move(t)
					if !over {
						time.Sleep(time.Duration(moves%5) * time.Millisecond)
					}
				}
				g := <-got
				if g.err != nil || g.code != uint16(wire.CloseNormal) || !bytes.Equal(g.payload, sent) {
					t.Fatalf("after %d moves: %d of %d bytes (equal: %v), code %d, %v",
						moves, len(g.payload), size, bytes.Equal(g.payload, sent), g.code, g.err)
				}
				for range 2 {
					if err := <-failed; err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, io.ErrClosedPipe) {
						t.Error("the device's side:", err)
					}
				}
				if moves < 3 {
					t.Errorf("only %d moves: nothing was tested", moves)
				}
			})
		}
	}
}

// TestFrozenStreamOwesItsCloseFrame stops a stream between the close frame and
// its delivery.
func TestFrozenStreamOwesItsCloseFrame(t *testing.T) {
	r := start(t, tcpPair, Options{})
	s := &frozenStream{pump: r.pump, result: r.result}
	// As if Stop came right after Freeze began: nobody can be told yet.
	s.pump.freeze.Do(func() { close(s.pump.frozen) })
	s.pump.Stop(wire.CloseUnauthorized, "token revoked")
	s.pump.Freeze()
	res := <-s.result
	s.pump.Stop(wire.CloseNotFound, "too late")
	if res.Frozen == nil || !res.Frozen.State.Over || res.Cause != CauseStopped {
		t.Fatalf("frozen and stopped: %+v", res)
	}
	done := make(chan error, 1)
	go func() { done <- Finish(*res.Frozen, Options{}) }()
	for side, e := range r.ends {
		e.SetDeadline(time.Now().Add(10 * time.Second))
		payload, code, err := takeFrames(e.Conn, false)
		if err != nil || code != uint16(wire.CloseUnauthorized) || len(payload) > 0 {
			t.Errorf("%v was told %d, %v after %d bytes", Side(side), code, err, len(payload))
		}
		e.Conn.Close()
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
