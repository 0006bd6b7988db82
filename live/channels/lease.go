package channels

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"holdfast/live"
)

// Lease credits time that is proven to be spent. A client reports every ten
// seconds whether it is active; a report credits the time since the one before
// if that is at most MaxAge ago, and nothing otherwise. So a dead link costs at
// most MaxAge, a reconnect within it costs nothing, and no close event is needed.
//
// A report that a connection is not active counts only from the connection that
// holds the lease: a late farewell of an old tab cannot stop the present one. A
// clock that goes back never credits negative time.
//
// Wire: the server sends {"ready":true,"elapsed":MS} on open; the client sends
// {"active":true|false}; the server answers each with {"elapsed":MS,"total":MS}.
type Lease struct{ opt LeaseOptions }

// LeaseOptions configure NewLease.
type LeaseOptions struct {
	// Storage is required. Bucket is where the leases are, "lease" if empty.
	Storage Storage
	Bucket  string
	// MaxAge is how old a proof may be to be credited; zero means 30 s.
	MaxAge time.Duration
	// Bounds clip what is credited, for a person who may begin later or end
	// sooner than others; nil means no bounds. A zero time is no bound.
	Bounds func(ctx context.Context, person, subject string) (begin, end time.Time, err error)
	// Log hears of a lease that could not be closed; nil means silence.
	Log *slog.Logger
}

// Credit is what a person has so far.
type Credit struct {
	Elapsed time.Duration // of one subject
	Total   time.Duration // of all
}

// NewLease makes a Lease.
func NewLease(o LeaseOptions) (*Lease, error) {
	if o.Storage == nil {
		return nil, errors.New("lease: Storage is required")
	}
	if o.MaxAge < 0 {
		return nil, errors.New("lease: MaxAge is negative")
	}
	setDefault(&o.Bucket, "lease")
	setDefault(&o.MaxAge, 30*time.Second)
	return &Lease{o}, nil
}

// leaseState is what is stored for a person.
type leaseState struct {
	Holder  string           `json:"holder,omitempty"` // the connection that reported last
	Subject string           `json:"subject,omitempty"`
	At      time.Time        `json:"at"`
	Credit  map[string]int64 `json:"credit"` // subject → milliseconds
}

// leaseTries bounds the retries of two connections of one person that report
// at the same moment.
const leaseTries = 5

// Report settles one report of a connection that calls itself holder.
func (l *Lease) Report(ctx context.Context, person, subject, holder string, active bool, now time.Time) (Credit, error) {
	for range leaseTries {
		c, err := l.report(ctx, person, subject, holder, active, now.UTC())
		if !errors.Is(err, ErrConflict) {
			return c, err
		}
	}
	return Credit{}, &live.Error{Name: "Retry"}
}

func (l *Lease) report(ctx context.Context, person, subject, holder string, active bool, now time.Time) (Credit, error) {
	state, revision, err := l.load(ctx, person)
	if err != nil {
		return Credit{}, err
	}
	if !active && state.Holder != holder {
		return state.credit(subject), nil
	}
	if now.Before(state.At) {
		now = state.At
	}
	if state.Holder != "" && now.Sub(state.At) <= l.opt.MaxAge {
		from, to := state.At, now
		begin, end, err := l.bounds(ctx, person, state.Subject)
		if err != nil {
			return Credit{}, err
		}
		if from.Before(begin) {
			from = begin
		}
		if !end.IsZero() && to.After(end) {
			to = end
		}
		if d := to.Sub(from); d > 0 {
			state.Credit[state.Subject] += d.Milliseconds()
		}
	}
	begin, end, err := l.bounds(ctx, person, subject)
	if err != nil {
		return Credit{}, err
	}
	inside := !now.Before(begin) && (end.IsZero() || now.Before(end))
	state.Holder, state.Subject = "", ""
	if active && inside {
		state.Holder, state.Subject = holder, subject
	}
	state.At = now
	value, err := json.Marshal(state)
	if err != nil {
		return Credit{}, fmt.Errorf("settle a lease: %w", err)
	}
	if err := l.opt.Storage.Save(ctx, l.opt.Bucket, person, value, revision); err != nil {
		return Credit{}, err
	}
	return state.credit(subject), nil
}

func (l *Lease) bounds(ctx context.Context, person, subject string) (begin, end time.Time, err error) {
	if l.opt.Bounds == nil {
		return time.Time{}, time.Time{}, nil
	}
	return l.opt.Bounds(ctx, person, subject)
}

func (l *Lease) load(ctx context.Context, person string) (leaseState, int64, error) {
	state := leaseState{Credit: map[string]int64{}}
	value, revision, err := l.opt.Storage.Load(ctx, l.opt.Bucket, person)
	if err != nil {
		return state, 0, err
	}
	if value != nil {
		if err := json.Unmarshal(value, &state); err != nil {
			return state, 0, fmt.Errorf("read a lease: %w", err)
		}
	}
	return state, revision, nil
}

func (s *leaseState) credit(subject string) Credit {
	c := Credit{Elapsed: time.Duration(s.Credit[subject]) * time.Millisecond}
	for _, ms := range s.Credit {
		c.Total += time.Duration(ms) * time.Millisecond
	}
	return c
}

// Credit reads what a person has, without a report.
func (l *Lease) Credit(ctx context.Context, person, subject string) (Credit, error) {
	state, _, err := l.load(ctx, person)
	return state.credit(subject), err
}

// Channel is the Handler of one connection of a person who is at a subject.
func (l *Lease) Channel(person, subject string) live.Handler {
	return &leaseChannel{lease: l, person: person, subject: subject, holder: rand.Text()}
}

type leaseChannel struct {
	lease                   *Lease
	person, subject, holder string
}

func (h *leaseChannel) Open(ctx context.Context, c *live.Conn) error {
	credit, err := h.lease.Credit(ctx, h.person, h.subject)
	if err != nil {
		return err
	}
	return c.Send(map[string]any{"ready": true, "elapsed": credit.Elapsed.Milliseconds()})
}

func (h *leaseChannel) Message(ctx context.Context, c *live.Conn, message json.RawMessage) error {
	var m struct {
		Active *bool `json:"active"`
	}
	if json.Unmarshal(message, &m) != nil || m.Active == nil {
		return &live.Error{Name: "BadRequest"}
	}
	credit, err := h.lease.Report(ctx, h.person, h.subject, h.holder, *m.Active, time.Now())
	if err != nil {
		return err
	}
	return c.Send(map[string]int64{"elapsed": credit.Elapsed.Milliseconds(), "total": credit.Total.Milliseconds()})
}

// Close reports that this connection is not active any more; whether that
// arrives in time does not matter.
func (h *leaseChannel) Close(_ *live.Conn, _ live.End) {
	ctx, cancel := context.WithTimeout(context.Background(), h.lease.opt.MaxAge)
	defer cancel()
	if _, err := h.lease.Report(ctx, h.person, h.subject, h.holder, false, time.Now()); err != nil && h.lease.opt.Log != nil {
		h.lease.opt.Log.Warn("a lease was not closed; it ends by time", "err", err)
	}
}
