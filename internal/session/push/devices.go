package push

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"holdfast/internal/session"
	"holdfast/internal/session/proto"
	"holdfast/internal/webpush"
)

// maxDevices bounds the devices that are called: a person has five.
const maxDevices = 32

// device is one that asked to be called.
type device struct {
	raw   webpush.Raw
	sub   *webpush.Subscription // nil once the service has ended it
	host  string                // of the push service
	as    string                // what the device calls this machine
	since time.Time
	// told are the hand-overs that the device was told of, by session.
	told map[session.ID]uint64

	next    time.Time // no message before
	tries   int       // that failed since one was taken
	sending bool
	tested  time.Time

	delivered, failed time.Time
	why               string // of failed
}

// Subscribe has a device called from now on, for what begins to wait from now
// on. It replaces what that device asked for before.
func (p *Pusher) Subscribe(id string, r proto.PushSubscribe) (proto.PushState, error) {
	if id == "" {
		return proto.PushState{}, proto.Errorf(proto.CodeFailed, "only a device that is paired can be called")
	}
	raw := webpush.Raw{Endpoint: r.Endpoint, P256dh: r.P256dh, Auth: r.Auth, VAPID: r.VAPID, Subject: r.Subject}
	sub, err := webpush.New(raw)
	if err != nil {
		return proto.PushState{}, &proto.Error{Code: proto.CodeSyntax, Message: err.Error()}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.nudge()
	before := p.devices[id]
	if before == nil && len(p.devices) >= maxDevices {
		p.forgetLocked()
		if len(p.devices) >= maxDevices {
			return proto.PushState{}, proto.Errorf(proto.CodeLimit, "%d devices are called already: turn notifications off on one", maxDevices)
		}
	}
	if before != nil && before.sub != nil && before.raw == raw && before.as == r.As {
		return before.state(), nil
	}
	d := &device{raw: raw, sub: sub, host: sub.Host(), as: r.As, since: time.Now().UTC(), told: map[session.ID]uint64{}}
	for _, s := range p.openLocked() {
		d.told[s] = p.calls[s].n
	}
	p.devices[id] = d
	if err := p.writeLocked(); err != nil {
		if before == nil {
			delete(p.devices, id)
		} else {
			p.devices[id] = before
		}
		return proto.PushState{}, err
	}
	return d.state(), nil
}

// Unsubscribe ends that a device is called.
func (p *Pusher) Unsubscribe(id string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.devices[id] == nil {
		return nil
	}
	delete(p.devices, id)
	return p.writeLocked()
}

// Forget ends that devices are called which are not let in any more.
func (p *Pusher) Forget() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.forgetLocked() {
		return p.writeLocked()
	}
	return nil
}

func (p *Pusher) forgetLocked() bool {
	n := len(p.devices)
	maps.DeleteFunc(p.devices, func(id string, d *device) bool { return p.o.Known != nil && !p.o.Known(id) })
	return len(p.devices) < n
}

// State says how it stands with a device.
func (p *Pusher) State(id string) proto.PushState {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d := p.devices[id]; d != nil {
		return d.state()
	}
	return proto.PushState{}
}

// States says how it stands with every device, by id.
func (p *Pusher) States() map[string]proto.PushState {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[string]proto.PushState{}
	for id, d := range p.devices {
		out[id] = d.state()
	}
	return out
}

func (d *device) state() proto.PushState {
	s := proto.PushState{On: d.sub != nil, Ended: d.sub == nil, Service: d.host, Since: d.since, Delivered: d.delivered, Failed: d.failed, Why: d.why}
	if d.tries > 0 {
		s.Again = d.next
	}
	return s
}

// Test sends a message that says that it is a test, and returns when the push
// service has taken it.
func (p *Pusher) Test(ctx context.Context, id string) (proto.PushState, error) {
	now := time.Now()
	p.mu.Lock()
	d := p.devices[id]
	switch {
	case d == nil:
		p.mu.Unlock()
		return proto.PushState{}, proto.Errorf(proto.CodeNotFound, "this device has not asked this machine for notifications")
	case d.sub == nil:
		p.mu.Unlock()
		return proto.PushState{}, proto.Errorf(proto.CodeFailed, "%s", d.why)
	case now.Sub(d.tested) < testGap:
		p.mu.Unlock()
		return proto.PushState{}, proto.Errorf(proto.CodeBusy, "a test was sent a moment ago")
	}
	d.tested = now
	sub, as := d.sub, d.as
	p.mu.Unlock()
	text, err := message{V: 1, As: as, Test: true}.encode()
	if err != nil {
		return proto.PushState{}, err
	}
	err = p.o.Send(ctx, sub, webpush.Message{Text: text, TTL: testKeepTime, Topic: topicOf(as, "test"), Urgency: webpush.High})
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.devices[id] != d || d.sub != sub {
		return proto.PushState{}, proto.Errorf(proto.CodeFailed, "notifications were turned off meanwhile")
	}
	if ctx.Err() != nil {
		return proto.PushState{}, context.Cause(ctx)
	}
	p.noteLocked(id, d, err)
	if err != nil {
		return proto.PushState{}, proto.Errorf(proto.CodeFailed, "%s", d.why)
	}
	return d.state(), nil
}

// noteLocked keeps what came of a message.
func (p *Pusher) noteLocked(id string, d *device, err error) {
	now := time.Now().UTC()
	switch {
	case err == nil:
		d.delivered = now
	case errors.Is(err, webpush.ErrGone):
		d.failed, d.why = now, err.Error()+": turn notifications off and on again on this device"
		// What was kept of it is of no use to anybody.
		d.sub, d.raw, d.told = nil, webpush.Raw{}, nil
		p.o.Log.Warn("a device is called no more: its push service has ended the subscription", "device", id)
	default:
		d.failed, d.why = now, err.Error()
		p.o.Log.Warn("a device was not called", "device", id, "err", err)
	}
	p.keepLocked()
}

// sendLocked begins to send what a device was not told, where that is due. It
// says when it will be; zero for nothing to say, or being said.
func (p *Pusher) sendLocked(id string, d *device, now time.Time) time.Time {
	if d.sending {
		return time.Time{}
	}
	told := map[session.ID]uint64{}
	var first, old []session.ID
	for _, s := range p.openLocked() {
		told[s] = p.calls[s].n
		if d.told[s] == told[s] {
			old = append(old, s)
		} else {
			first = append(first, s)
		}
	}
	// A dialog that follows another is told of when it has stood for a moment;
	// until then the session waits, as the device knows.
	for s, n := range d.told {
		if c := p.calls[s]; c != nil && c.stage == fresh {
			told[s] = n
			old = append(old, s)
		}
	}
	if len(first) == 0 && len(old) == len(d.told) {
		return time.Time{}
	}
	if now.Before(d.next) {
		return d.next
	}
	m := message{V: 1, As: d.as}
	for i, s := range slices.Concat(first, old) {
		if i >= maxOpen {
			m.More++
			continue
		}
		m.Open = append(m.Open, nameOf(d.as, s))
		if i < len(first) {
			m.New++
		}
	}
	text, err := m.encode()
	if err != nil {
		p.o.Log.Error("a push message was not made", "err", err)
		return time.Time{}
	}
	// To take a call back is worth no battery.
	urgency := webpush.Normal
	if len(first) > 0 {
		urgency = webpush.High
	}
	d.sending = true
	ctx, sub := p.ctx, d.sub
	// Ends with the request, which ctx and its own time limit end; Run waits.
	p.wg.Go(func() {
		err := p.o.Send(ctx, sub, webpush.Message{Text: text, TTL: keepTime, Topic: topicOf(d.as, "state"), Urgency: urgency})
		p.mu.Lock()
		defer p.mu.Unlock()
		defer p.nudge()
		d.sending = false
		if ctx.Err() != nil || p.devices[id] != d || d.sub != sub {
			return
		}
		d.next = time.Now().Add(gapTime)
		if err == nil {
			d.tries = 0
			d.told = told
		} else if wait, again := d.again(err); again {
			d.tries++
			d.next = time.Now().Add(wait)
		} else {
			// Given up: the next hand-over is tried afresh.
			d.tries = 0
			d.told = told
		}
		p.noteLocked(id, d, err)
	})
	return time.Time{}
}

// again says whether and after what time a message is tried again.
func (d *device) again(err error) (time.Duration, bool) {
	if !errors.Is(err, webpush.ErrLater) || d.tries+1 >= maxTries {
		return 0, false
	}
	wait := min(retryTime<<d.tries, maxRetryTime)
	// Between half and all of it, so that machines do not come together.
	wait = wait/2 + rand.N(wait/2)
	var a *webpush.Answer
	if errors.As(err, &a) {
		wait = max(wait, a.After)
	}
	return wait, true
}
