package push

import (
	"slices"
	"time"

	"holdfast/internal/session"
)

// maxCalls bounds the sessions that wait at once.
const maxCalls = 1024

// A stage is how far a call is.
type stage string

const (
	fresh    stage = "fresh"    // it waits since a moment ago
	open     stage = "open"     // devices are called
	withheld stage = "withheld" // somebody looks at it
	seen     stage = "seen"     // somebody has looked at it and turned away
)

// call is one hand-over: a session that waits.
type call struct {
	n      uint64 // names the hand-over; rising
	kind   session.Kind
	digest string // of what is asked; empty where it cannot be read
	stage  stage
	due    time.Time // with fresh: when devices are called; with withheld: when to look again
	// ended is when the session stopped to wait, zero while it waits.
	ended time.Time
}

// same reports whether a status is the same hand-over. A dialog is read a moment
// after it is known that something is asked, and not on every screen.
func (c *call) same(s session.Status) bool {
	digest := digestOf(s)
	if c.digest != "" && digest != "" {
		return c.digest == digest
	}
	return c.kind == s.Kind
}

func digestOf(s session.Status) string {
	if s.Dialog == nil {
		return ""
	}
	return s.Dialog.Digest
}

// Sync says what runs now: everything, at the beginning and after a gap.
func (p *Pusher) Sync(all []session.Session) {
	now := time.Now()
	p.mu.Lock()
	there := map[session.ID]bool{}
	for _, s := range all {
		there[s.ID] = true
		p.changedLocked(s, now)
	}
	for id := range p.calls {
		if !there[id] {
			p.endLocked(id, now)
		}
	}
	p.synced = true
	p.mu.Unlock()
	p.nudge()
}

// Changed says how a session is now.
func (p *Pusher) Changed(s session.Session) {
	p.mu.Lock()
	p.changedLocked(s, time.Now())
	p.mu.Unlock()
	p.nudge()
}

// Gone says that a session is there no more.
func (p *Pusher) Gone(id session.ID) {
	p.mu.Lock()
	p.endLocked(id, time.Now())
	p.mu.Unlock()
	p.nudge()
}

// LookedAway says that a device looks at these sessions no more, by its own
// word: the person has seen that they wait, where they did.
func (p *Pusher) LookedAway(ids []session.ID) {
	now := time.Now()
	p.mu.Lock()
	for _, id := range ids {
		c := p.calls[id]
		if c == nil || c.stage != withheld {
			continue
		}
		if _, still := p.o.Looking(id, now); !still {
			c.stage = seen
		}
	}
	p.mu.Unlock()
	p.nudge()
}

func (p *Pusher) changedLocked(s session.Session, now time.Time) {
	c := p.calls[s.ID]
	switch s.Status.State {
	case session.Waiting:
	case session.Unknown:
		return // no evidence is no answer
	default:
		p.endLocked(s.ID, now)
		return
	}
	if c != nil && c.same(s.Status) {
		c.ended = time.Time{}
		if d := digestOf(s.Status); d != "" {
			c.digest = d
		}
		c.kind = s.Status.Kind
		return
	}
	if c == nil && len(p.calls) >= maxCalls {
		return
	}
	p.last++
	p.calls[s.ID] = &call{n: p.last, kind: s.Status.Kind, digest: digestOf(s.Status), stage: fresh, due: now.Add(settleTime)}
}

func (p *Pusher) endLocked(id session.ID, now time.Time) {
	if c := p.calls[id]; c != nil && c.ended.IsZero() {
		c.ended = now
	}
}

// advanceLocked moves calls on, and says when the next one is due and whether
// something is to be kept.
func (p *Pusher) advanceLocked(now time.Time) (next time.Time, changed bool) {
	later := func(at time.Time) {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	for id, c := range p.calls {
		if !c.ended.IsZero() {
			if end := c.ended.Add(settleTime); now.Before(end) {
				later(end)
			} else {
				delete(p.calls, id)
				changed = changed || c.stage != fresh
			}
			continue
		}
		if c.stage != fresh && c.stage != withheld {
			continue
		}
		if now.Before(c.due) {
			later(c.due)
			continue
		}
		changed = true
		if until, looking := p.o.Looking(id, now); looking {
			c.stage, c.due = withheld, until
			later(until)
		} else {
			// Also where a lease ended without a word: that page is dead, and
			// whether anybody saw it is not known.
			c.stage = open
		}
	}
	return next, changed
}

// openLocked lists the sessions for which devices are called, the newest first.
func (p *Pusher) openLocked() []session.ID {
	var ids []session.ID
	for id, c := range p.calls {
		if c.stage == open {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b session.ID) int { return int(int64(p.calls[b].n) - int64(p.calls[a].n)) })
	return ids
}
