// Package push calls a person through the browsers that asked for it when a
// session begins to wait, and takes the call back when it waits no more.
//
// It sends no word of a session: a message holds names that only the device can
// read, and has the same size whatever it says. What a caller will get wrong: a
// message tells the whole state of this machine, so one that is lost, late or
// replaced by the service is made good by the next; and "delivered" means that
// the push service took it.
package push

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"holdfast/internal/session"
	"holdfast/internal/webpush"
)

const (
	// settleTime is how long a session must wait before anybody is called, and
	// not wait before the call is taken back: what a program answers by itself
	// within it is no hand-over. Half calls for dialogs that a program closes
	// itself, twice is noticed by a person who waits.
	settleTime = time.Second
	// gapTime is between two messages to one device. What happens meanwhile goes
	// together.
	gapTime = 5 * time.Second
	// keepTime is how long a push service keeps a message for a phone that is
	// off: overnight.
	keepTime = 24 * time.Hour
	// testKeepTime is the same for a test, for which a person waits.
	testKeepTime = time.Minute
	// retryTime is the first wait after a service did not take a message; it
	// doubles up to maxRetryTime, maxTries times. Altogether it is half an hour.
	retryTime    = 2 * time.Second
	maxRetryTime = 5 * time.Minute
	maxTries     = 12
	// testGap keeps a button that is pressed again and again from being a flood.
	testGap = time.Second
)

// Options of New.
type Options struct {
	// File is where subscriptions are kept; required.
	File string
	// Looking says until when a person looks at a session on some device;
	// required.
	Looking func(id session.ID, now time.Time) (until time.Time, ok bool)
	// Known says whether a device is still let in; what is not is forgotten. Nil
	// means that every one is.
	Known func(device string) bool
	// Send sends a message, as webpush.Client does; required.
	Send func(context.Context, *webpush.Subscription, webpush.Message) error
	Log  *slog.Logger // required
}

// Pusher calls devices. Run must be called for it to do anything.
type Pusher struct {
	o    Options
	wake chan struct{} // something may be due
	wg   sync.WaitGroup

	// mu guards the fields below, and the file.
	mu      sync.Mutex
	ctx     context.Context // of Run; nil before
	calls   map[session.ID]*call
	devices map[string]*device
	last    uint64 // the number of the newest call
	synced  bool   // it was said what waits now
}

// New reads the subscriptions. A file that is damaged is an error for as long
// as it is there.
func New(o Options) (*Pusher, error) {
	if o.File == "" || o.Looking == nil || o.Send == nil || o.Log == nil {
		return nil, errors.New("push: file, looks, sender and log are required")
	}
	p := &Pusher{o: o, wake: make(chan struct{}, 1), calls: map[session.ID]*call{}, devices: map[string]*device{}}
	return p, p.load()
}

// Run calls until ctx ends, and returns when nothing of it runs any more.
func (p *Pusher) Run(ctx context.Context) {
	defer p.wg.Wait()
	p.mu.Lock()
	p.ctx = ctx
	p.mu.Unlock()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		case <-timer.C:
		}
		p.mu.Lock()
		next := p.stepLocked(time.Now())
		p.mu.Unlock()
		if next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(max(0, time.Until(next)))
		}
	}
}

// stepLocked does what is due, and says when to ask again; zero for when
// something happens.
func (p *Pusher) stepLocked(now time.Time) time.Time {
	if !p.synced {
		return time.Time{}
	}
	next, changed := p.advanceLocked(now)
	for id, d := range p.devices {
		if d.sub == nil {
			continue
		}
		if p.o.Known != nil && !p.o.Known(id) {
			delete(p.devices, id)
			changed = true
			continue
		}
		if at := p.sendLocked(id, d, now); !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	if changed {
		p.keepLocked()
	}
	return next
}

func (p *Pusher) nudge() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}
