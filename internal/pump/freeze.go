package pump

import (
	"errors"
	"io"
	"net"
	"os"
	"time"

	"holdfast/internal/frame"
)

// past is a deadline that stops reads and writes at once.
var past = time.Unix(1, 0)

// Frozen is a stream that was stopped where it stood, to go on in another Pump,
// which may be another process's.
type Frozen struct {
	// Device and Agent are the connections; their deadlines are over.
	Device, Agent net.Conn
	State         State
}

// State is what a stream knows beside its connections. It can be written down.
type State struct {
	// Over says that the stream had ended and was only being taken leave of:
	// Finish is what is left to do.
	Over bool
	Legs [2]LegState // by Side
}

// LegState is the part of one leg.
type LegState struct {
	Carried frame.Carried // of what comes from it
	Unsent  []byte        // what it has yet to be sent, in whole frames but for the first
}

// Freeze stops the pump where it stands, without a word to either side: Run
// returns soon, with Result.Frozen. What was read is part of the state, what was
// not stays in the sockets. It must not be used for connections over crypto/tls,
// which a write that was stopped breaks.
func (p *Pump) Freeze() {
	p.freeze.Do(func() { close(p.frozen) })
	for i := range p.legs {
		p.legs[i].conn.SetDeadline(past)
	}
}

func (p *Pump) isFrozen() bool {
	select {
	case <-p.frozen:
		return true
	default:
		return false
	}
}

// stoppedBy reports whether err is what Freeze does to reads and writes.
func (p *Pump) stoppedBy(err error) bool {
	return err != nil && p.isFrozen() && errors.Is(err, os.ErrDeadlineExceeded)
}

// export is the end of Run after Freeze.
func (p *Pump) export() Result {
	f := &Frozen{Device: p.legs[Device].conn, Agent: p.legs[Agent].conn}
	r := Result{Cause: CauseFrozen}
	over := true
	p.once.Do(func() { over = false }) // from here on Stop does nothing
	p.aside.Wait()
	if over {
		r, f.State.Over = p.result, true
	}
	for i := range p.legs {
		l := &p.legs[i]
		l.flush() // into unsent
		f.State.Legs[i] = LegState{Carried: l.rewriter.Carry(), Unsent: l.unsent}
	}
	r.Stats, r.Frozen = p.Stats(), f
	return r
}

// Resume makes the Pump that goes on with a frozen stream. Each side is judged
// afresh.
func Resume(f Frozen, o Options) (*Pump, error) {
	p, err := New(Leg{Conn: f.Device}, Leg{Conn: f.Agent}, o)
	if err != nil {
		return nil, err
	}
	for i := range p.legs {
		l, s := &p.legs[i], &f.State.Legs[i]
		l.rewriter = frame.NewCarried(s.Carried)
		l.pending, l.unsent = s.Carried.Rest, s.Unsent
		l.forwarded.Store(s.Carried.Bytes)
		l.text.Store(s.Carried.Text)
		l.conn.SetDeadline(time.Time{})
	}
	return p, nil
}

// Finish does what is left to do for a frozen stream that is Over: each side gets
// the rest of what it was to be sent, and o.CloseTimeout to hang up. It blocks
// that long at most.
func Finish(f Frozen, o Options) error {
	if err := o.complete(); err != nil {
		return err
	}
	done := make(chan struct{}, 2)
	for side, conn := range [2]net.Conn{Device: f.Device, Agent: f.Agent} {
		// Ends by the deadline that it sets; waited for below.
		go func() {
			defer func() { done <- struct{}{} }()
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(o.CloseTimeout))
			if _, err := conn.Write(f.State.Legs[side].Unsent); err != nil {
				return // it has gone, or does not read
			}
			if c, ok := conn.(interface{ CloseWrite() error }); ok {
				c.CloseWrite()
			}
			io.Copy(io.Discard, struct{ io.Reader }{conn})
		}()
	}
	<-done
	<-done
	return nil
}

// flushUnsent writes what a frozen pump had to leave for l; from, which is read
// for l, waits meanwhile. An error shows at the next write.
func (l *leg) flushUnsent(from *leg) {
	l.writing <- struct{}{}
	n := len(l.unsent)
	<-l.writing
	if n == 0 {
		return
	}
	from.pause()
	err := l.writeData(nil)
	from.resume()
	if err != nil && !l.pump.stoppedBy(err) {
		l.writeFailed(err)
	}
}
