package here

import (
	"sync"
	"time"

	"holdfast/internal/session"
	"holdfast/internal/session/proto"
)

// looks keeps which device looks at what.
type looks struct {
	// away, where it is not nil, hears of sessions that a device looks at no more
	// by its own word.
	away func([]session.ID)

	// mu guards the field below.
	mu       sync.Mutex
	byDevice map[string]look
}

type look struct {
	sessions map[session.ID]bool
	until    time.Time
}

// maxLooks bounds the devices that look: a person has some, a machine is shared
// by few.
const maxLooks = 256

// Look replaces what a device looks at.
func (l *looks) Look(device string, ids []session.ID) proto.Looking {
	until, away := l.replace(device, ids, time.Now())
	// Not under mu, since who hears it asks looking.
	if l.away != nil && len(away) > 0 {
		l.away(away)
	}
	return proto.Looking{Until: until.UTC()}
}

func (l *looks) replace(device string, ids []session.ID, now time.Time) (until time.Time, away []session.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for d, k := range l.byDevice {
		if !now.Before(k.until) {
			delete(l.byDevice, d)
		}
	}
	before, known := l.byDevice[device]
	k := look{sessions: map[session.ID]bool{}, until: now.Add(proto.LeaseTime)}
	for _, id := range ids {
		k.sessions[id] = true
	}
	for id := range before.sessions {
		if !k.sessions[id] {
			away = append(away, id)
		}
	}
	if len(ids) == 0 {
		delete(l.byDevice, device)
		return now, away
	}
	if l.byDevice == nil {
		l.byDevice = map[string]look{}
	}
	if known || len(l.byDevice) < maxLooks {
		l.byDevice[device] = k
	}
	return k.until, away
}

// looking says until when somebody looks at a session, where nothing renews it.
func (l *looks) looking(id session.ID, now time.Time) (until time.Time, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range l.byDevice {
		if now.Before(k.until) && k.sessions[id] && k.until.After(until) {
			until, ok = k.until, true
		}
	}
	return until, ok
}
