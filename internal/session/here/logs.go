package here

import (
	"sync"
	"time"

	"holdfast/internal/session"
	"holdfast/internal/session/conversation"
)

const (
	// keepLog is how long a transcript stays open that nobody reads: a person who
	// scrolls asks for the next page within seconds.
	keepLog = time.Minute
	// maxLogs bounds the open ones that nobody reads, of which each holds a file
	// and an index.
	maxLogs = 8
)

// logs keeps transcripts open for a while, since what was read of one serves the
// next page.
type logs struct {
	// mu guards the field below.
	mu   sync.Mutex
	byID map[logKey]*openLog
}

type logKey struct {
	id  session.ID
	ref conversation.Ref
}

type openLog struct {
	log   *conversation.Log
	users int
	used  time.Time
	stale bool // to be closed by its last user
}

// open finds or opens a transcript. release must be called once.
func (l *logs) open(id session.ID, ref conversation.Ref) (*conversation.Log, func(), error) {
	now := time.Now()
	key := logKey{id, ref}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sweep(now)
	o := l.byID[key]
	if o == nil {
		log, err := conversation.Open(ref)
		if err != nil {
			return nil, nil, refusalOf(err)
		}
		if l.byID == nil {
			l.byID = map[logKey]*openLog{}
		}
		o = &openLog{log: log}
		l.byID[key] = o
	}
	o.users++
	return o.log, func() { l.release(o) }, nil
}

func (l *logs) release(o *openLog) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o.users--
	o.used = time.Now()
	if o.users == 0 && o.stale {
		o.log.Close()
	}
}

// sweep closes what is idle. Its caller holds mu.
func (l *logs) sweep(now time.Time) {
	idle := 0
	for _, o := range l.byID {
		if o.users == 0 {
			idle++
		}
	}
	for key, o := range l.byID {
		if o.users == 0 && (idle > maxLogs || now.Sub(o.used) > keepLog) {
			o.log.Close()
			delete(l.byID, key)
			idle--
		}
	}
}

// forget lets go of the transcripts of a session that is gone.
func (l *logs) forget(id session.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, o := range l.byID {
		if id != "" && key.id != id {
			continue
		}
		delete(l.byID, key)
		if o.stale = true; o.users == 0 {
			o.log.Close()
		}
	}
}

// close lets go of all.
func (l *logs) close() { l.forget("") }
