package liveness

import (
	"testing"
	"time"
)

// at is s seconds on both clocks.
func at(s float64) Instant {
	d := time.Duration(s * float64(time.Second))
	return Instant{Wall: d, Mono: d}
}

func TestAgentNeverJudgesARelayThatNeverPongs(t *testing.T) {
	c := AgentControl()
	var j Judge
	j.Start(&c, at(0))
	e := j.Opened(at(0))
	if e.Probes != ProbeApplication {
		t.Fatalf("no application ping right after the upgrade: %+v", e)
	}
	for now := e.Next; now < 24*time.Hour; now = e.Next {
		e = j.Tick(Instant{Wall: now, Mono: now})
		if e.Dead != 0 {
			t.Fatalf("an old relay was judged %v after %v", e.Dead, now)
		}
		if e.Probes&ProbeProtocol != 0 {
			// It answers protocol pings, as every WebSocket end does.
			e = j.Inbound(Instant{Wall: now, Mono: now}, InFrame)
		}
	}
	// The same relay is judged once its TCP path is gone.
	last := e.Next
	for e.Dead == 0 {
		e = j.Tick(Instant{Wall: e.Next, Mono: e.Next})
		if e.Next != Never {
			last = e.Next
		}
	}
	if e.Dead != ProbeTimedOut || last > 24*time.Hour+25*time.Second {
		t.Errorf("a lost path of an old relay: %v at %v", e.Dead, last)
	}
}
