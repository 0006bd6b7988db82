package agent

import (
	"time"

	"holdfast/internal/liveness"
	"holdfast/internal/wire"
	"holdfast/internal/wsconn"
)

// Status is what an agent knows about itself. Every time is of this computer's
// clock, and zero where the thing never happened.
type Status struct {
	Machine  wire.MachineID `json:"machine"`
	Relay    string         `json:"relay"`
	Instance wire.Instance  `json:"instance"`
	// Phase is waiting, dialing, open (connected, no answer yet), up or stopped.
	Phase   string `json:"phase"`
	Attempt uint64 `json:"attempt"`
	// ConnectedSince is zero while there is no control connection.
	ConnectedSince time.Time `json:"connectedSince,omitzero"`
	// Proven says that the relay has answered on this connection that a dial
	// would arrive; LastPong is when it last did, on any.
	Proven   bool      `json:"proven"`
	LastPong time.Time `json:"lastPong,omitzero"`
	// LastError is why the newest attempt or connection failed, Hint what to do.
	LastError   string    `json:"lastError,omitempty"`
	LastErrorAt time.Time `json:"lastErrorAt,omitzero"`
	Hint        string    `json:"hint,omitempty"`
	// Refused says that the relay does not want this agent; it is asked again
	// hourly.
	Refused     bool      `json:"refused"`
	NextAttempt time.Time `json:"nextAttempt,omitzero"`
	// Streams are open now. LastDialBack is when one last reached the relay,
	// DialBackError why the newest one that failed did, since that time.
	Streams       int       `json:"streams"`
	LastDialBack  time.Time `json:"lastDialBack,omitzero"`
	DialBackError string    `json:"dialBackError,omitempty"`
	// Dropped counts control messages that could not be read.
	Dropped int64 `json:"dropped"`
}

// Status is a snapshot.
func (a *Agent) Status() Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.status
	s.Phase = a.funnel.Phase().String()
	for _, e := range a.streams {
		if e.conn != nil {
			s.Streams++
		}
	}
	if a.live != nil {
		s.Dropped += a.live.conn.Strange()
	}
	return s
}

// note keeps the status after an event of the funnel. It is called with mu held.
func (a *Agent) note(now time.Time, act liveness.Action) {
	s := &a.status
	if a.live == nil {
		s.ConnectedSince, s.Proven = time.Time{}, false
	}
	s.NextAttempt = time.Time{}
	if act.Phase == liveness.Waiting {
		s.NextAttempt = now.Add(act.Next - a.clock.At(now).Mono)
	}
}

// fail notes an error and passes the failure to the funnel.
func (a *Agent) fail(socket liveness.Socket, why liveness.Failure, err error) {
	a.apply(func(now liveness.Instant) liveness.Action {
		current := a.live != nil && a.live.socket == socket || a.live == nil && a.status.Attempt == uint64(socket)
		act := a.funnel.Fail(now, socket, why)
		if a.old != nil && a.old.socket == socket {
			a.old = nil
		}
		if !current || a.stopping {
			return act
		}
		s := &a.status
		s.LastError, s.LastErrorAt, s.Hint = err.Error(), time.Now(), wsconn.HintOf(err)
		s.Refused = act.Phase == liveness.Waiting && liveness.Holdfast.Class(why.Code) == liveness.Stop &&
			act.Next-now.Mono > liveness.UnattendedRetry/2
		attrs := []any{"err", err, "cause", why.Cause.String(), "code", why.Code}
		if act.Phase == liveness.Waiting {
			attrs = append(attrs, "wait", (act.Next - now.Mono).Round(time.Millisecond))
		}
		if s.Refused {
			a.log.Error("the relay refuses this agent; it will be asked again", attrs...)
		} else {
			a.log.Warn("control connection lost", attrs...)
		}
		return act
	})
}
