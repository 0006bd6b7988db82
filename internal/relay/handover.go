package relay

import (
	"context"
	"math"
	"net"
	"syscall"
	"time"

	"holdfast/internal/engine"
	"holdfast/internal/pump"
	"holdfast/internal/relay/axes"
	"holdfast/internal/relay/controls"
	"holdfast/internal/relay/handover"
	"holdfast/internal/wire"
)

const (
	// freezeDials is how long dials that wait for their machine may take to find
	// it: most need a few milliseconds, and nobody is stopped meanwhile.
	freezeDials = 300 * time.Millisecond
	// freezeStreams bounds the time in which all streams stand still: each has
	// only to be woken.
	freezeStreams = 5 * time.Second
)

// frozenStream is a stream that stands still.
type frozenStream struct {
	stream *stream
	*pump.Frozen
}

func (r *Relay) pumpOptions() pump.Options { return pump.Options{Keepalive: r.keepalive} }

// Sockets is how many there are: two for a stream.
func (r *Relay) Sockets() int { return r.axes.Total() }

// Freeze prepares the hand-over of every socket of plain TCP to another process:
// they stand still until Thaw, and nothing is read or written. Those that cannot
// be handed over, and those of machine except, are told to come back, before.
// Nobody must accept connections meanwhile.
func (r *Relay) Freeze(ctx context.Context, except engine.Key) *handover.State {
	r.gate.Flush(ctx)
	for until := time.Now().Add(freezeDials); r.dials.Count() > 0 && time.Now().Before(until); {
		time.Sleep(drainPoll / 4)
	}
	r.door.Shut()
	keep := r.dismiss(ctx, except)

	out := &handover.State{Began: time.Now(), Changes: r.changes.Position()}
	arrived := r.stand.Close(len(keep))
	for _, s := range keep {
		s.mu.Lock()
		s.pump.Freeze()
		s.mu.Unlock()
	}
	tick := time.NewTicker(drainPoll / 4)
	defer tick.Stop()
	for late := time.Now().Add(freezeStreams); len(out.Streams) < min(len(keep), r.axes.Count(axes.Device)) && time.Now().Before(late); {
		select {
		case f := <-arrived:
			t := handover.Stream{Machine: f.stream.legs[pump.Device].Key().Machine, Began: f.stream.began, State: f.State}
			var err error
			for side, conn := range [2]net.Conn{pump.Device: f.Device, pump.Agent: f.Agent} {
				t.Tokens[side] = handover.TokenOf(f.stream.legs[side].Token())
				if err == nil {
					t.FDs[side], err = handover.FD(conn.(syscall.Conn))
				}
			}
			if err == nil {
				out.Streams = append(out.Streams, t)
			}
		case <-tick.C: // one may have ended by itself
		}
	}
	out.Controls = r.controls.Freeze()
	return out
}

// dismiss tells those who cannot come along to come back, waits for them to go,
// and returns the streams that can.
func (r *Relay) dismiss(ctx context.Context, except engine.Key) (keep []*stream) {
	var agents, others []*axes.Member
	for _, m := range r.axes.OfRole(axes.Control) {
		if !m.Self().(*controls.Conn).Stays() || m.Key() == except {
			agents = append(agents, m)
		}
	}
	for _, m := range r.axes.OfRole(axes.Device) {
		s := m.Self().(*leg).stream
		s.mu.Lock()
		stays := s.pump != nil && s.plain
		s.mu.Unlock()
		if stays && m.Key() != except {
			keep = append(keep, s)
		} else {
			others = append(others, m)
		}
	}
	others = append(others, r.axes.OfRole(axes.Live)...)
	for _, m := range r.axes.OfRole(axes.Agent) {
		if _, paired := m.Self().(*leg); !paired { // a proof's
			others = append(others, m)
		}
	}
	gone := len(agents) + len(others)
	if gone == 0 {
		return keep
	}
	r.farewell(agents, others)
	ctx, cancel := context.WithTimeout(ctx, wire.DrainTimeout)
	defer cancel()
	tick := time.NewTicker(drainPoll)
	defer tick.Stop()
	for before := r.axes.Total(); r.axes.Total() > before-gone; {
		select {
		case <-ctx.Done():
			return keep
		case <-tick.C:
		}
	}
	return keep
}

// Thaw goes on after a Freeze whose hand-over did not come about.
func (r *Relay) Thaw() {
	r.stand.Open()
	r.door.Open()
	r.controls.Thaw()
}

// pumpOn runs a stream's pump to its end, over every Freeze.
func (s *stream) pumpOn(p *pump.Pump) pump.Result {
	r := s.relay
	counted := r.meter.Open(func() pump.Stats {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.pump.Stats()
	})
	for s.pumps(p); ; s.pumps(p) {
		res := p.Run()
		if f := res.Frozen; f != nil {
			err := r.stand.Stand(r.ctx, frozenStream{s, f})
			switch {
			case err == nil && f.State.Over:
				err = pump.Finish(*f, r.pumpOptions())
			case err == nil:
				if p, err = pump.Resume(*f, r.pumpOptions()); err == nil {
					continue
				}
			}
			if err != nil {
				_ = f.Device.Close() // the relay is closing
				_ = f.Agent.Close()
			}
		}
		counted.Close(res)
		return res
	}
}

// pumps makes p the stream's pump.
func (s *stream) pumps(p *pump.Pump) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pump = p
	if s.halted {
		p.StopEach(s.told[pump.Device], s.told[pump.Agent])
	}
}

// adopt goes on with what a former process has handed over.
func (r *Relay) adopt(from *handover.State) {
	r.changes.StartAt(from.Changes)
	failed := func(what string, m wire.MachineID, err error) {
		from.Dropped++
		r.log.Warn("take over a "+what, "machine", m, "err", err)
	}
	for _, h := range from.Controls {
		if err := r.controls.Adopt(h); err != nil {
			failed("control connection", h.Machine, err)
		}
	}
	for _, t := range from.Streams {
		if err := r.adoptStream(t); err != nil {
			failed("stream", t.Machine, err)
		}
	}
}

func (r *Relay) adoptStream(t handover.Stream) error {
	f := pump.Frozen{State: t.State}
	var err error
	if f.Device, err = handover.Conn(t.FDs[pump.Device]); err != nil {
		handover.CloseAll(t.FDs[pump.Agent:])
		return err
	}
	if f.Agent, err = handover.Conn(t.FDs[pump.Agent]); err != nil {
		_ = f.Device.Close()
		return err
	}
	p, err := pump.Resume(f, r.pumpOptions())
	if err != nil {
		return err
	}
	s := r.newStream(t.Machine, "")
	s.began, s.plain = t.Began, true
	device := t.Tokens[pump.Device].Engine()
	r.axes.Reserve(device, math.MaxInt32)
	for side := range s.legs {
		r.axes.Add(&s.legs[side].Member, t.Tokens[side].Engine())
	}
	s.pumps(p)
	// Ends when the stream does, which Close brings about and waits for.
	r.background(func() {
		if f.State.Over {
			_ = pump.Finish(f, r.pumpOptions())
			s.leave(device.ID)
			return
		}
		s.carry(p, r.log.With("account", device.Account, "machine", t.Machine), device.ID)
	})
	return nil
}
