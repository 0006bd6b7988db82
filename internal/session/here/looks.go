package here

import (
	"sync"
	"time"

	"holdfast/internal/session"
	"holdfast/internal/session/proto"
)

// looks keeps which device looks at what, in each of its views: a tab that is
// hidden takes back nothing of one that is not.
type looks struct {
	// away, where it is not nil, hears of sessions that a device looks at no more
	// by its own word.
	away func([]session.ID)

	// mu guards the field below.
	mu    sync.Mutex
	views map[view]look
}

type view struct {
	device, name string
}

type look struct {
	sessions map[session.ID]bool
	until    time.Time
}

// maxLooks bounds the views that look: a person has some devices, a machine is
// shared by few.
const maxLooks = 256

// Look replaces what a view of a device looks at.
func (l *looks) Look(device, name string, ids []session.ID) proto.Looking {
	until, away := l.replace(view{device, name}, ids, time.Now())
	// Not under mu, since who hears it asks looking.
	if l.away != nil && len(away) > 0 {
		l.away(away)
	}
	return proto.Looking{Until: until.UTC()}
}

func (l *looks) replace(v view, ids []session.ID, now time.Time) (until time.Time, away []session.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for w, k := range l.views {
		if !now.Before(k.until) {
			delete(l.views, w)
		}
	}
	before, known := l.views[v]
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
		delete(l.views, v)
		return now, away
	}
	if l.views == nil {
		l.views = map[view]look{}
	}
	if !known {
		l.makeRoom(v.device)
	}
	if known || len(l.views) < maxLooks {
		l.views[v] = k
	}
	return k.until, away
}

// makeRoom forgets a device's oldest look where it has as many as it may. Its
// caller holds mu.
func (l *looks) makeRoom(device string) {
	n := 0
	var oldest view
	for w, k := range l.views {
		if w.device != device {
			continue
		}
		if n++; n == 1 || k.until.Before(l.views[oldest].until) {
			oldest = w
		}
	}
	if n >= proto.MaxViews {
		delete(l.views, oldest)
	}
}

// looking says until when somebody looks at a session, where nothing renews it.
func (l *looks) looking(id session.ID, now time.Time) (until time.Time, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range l.views {
		if now.Before(k.until) && k.sessions[id] && k.until.After(until) {
			until, ok = k.until, true
		}
	}
	return until, ok
}
