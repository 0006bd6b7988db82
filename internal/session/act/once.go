package act

import (
	"bytes"
	"context"
	"crypto/sha256"
	"time"

	"holdfast/internal/session/act/journal"
	"holdfast/internal/session/proto"
)

const (
	// keepTime is how long a key is remembered.
	keepTime = journal.KeepTime
	// maxKept bounds the keys, of which each costs some hundred bytes.
	maxKept = 2000
)

// entry is an action that is being done, or was.
type entry struct {
	key   string
	print [sha256.Size]byte
	ended time.Time // zero while it is being done

	// These are guarded by Actor.mu; changed is replaced whenever one of them is.
	stage   proto.Stage
	outcome proto.Outcome
	err     error
	over    bool
	changed chan struct{}
}

// once does an action at most once for a key. Who asks again with the key gets
// what came of the first, from the stage that it is at. An error is forgotten:
// nothing was typed, so the key is free again. Without a key there is nothing
// to find again.
func (a *Actor) once(ctx context.Context, key string, print [sha256.Size]byte, receipt func(proto.Stage), do func(context.Context, func(proto.Stage)) (proto.Outcome, error)) (proto.Outcome, error) {
	a.mu.Lock()
	e := a.done[key]
	switch {
	case a.closed:
		a.mu.Unlock()
		return proto.Outcome{}, proto.Errorf(proto.CodeFailed, "holdfast on the machine is ending")
	case key != "" && e != nil && e.print != print:
		a.mu.Unlock()
		return proto.Outcome{}, proto.Errorf(proto.CodeKeyUsed, "the key was used for another text")
	case key == "" || e == nil:
		e = &entry{key: key, print: print, stage: proto.Sent, changed: make(chan struct{})}
		if key != "" {
			a.remember(e)
		}
		// Ends within actionTime, or with Close, which waits.
		a.wg.Go(func() {
			ctx, cancel := context.WithTimeout(a.ctx, actionTime)
			defer cancel()
			outcome, found, err := a.before(key, print[:])
			if err == nil && !found {
				outcome, err = do(ctx, func(s proto.Stage) { a.progress(e, func() { e.stage = s }) })
				a.after(key, outcome, err)
			}
			a.progress(e, func() {
				e.outcome, e.err, e.over, e.ended = outcome, err, true, time.Now()
				if err != nil && a.done[key] == e {
					delete(a.done, key)
				}
			})
		})
	}
	a.mu.Unlock()

	told := map[proto.Stage]bool{}
	for {
		a.mu.Lock()
		stage, over, changed, outcome, err := e.stage, e.over, e.changed, e.outcome, e.err
		a.mu.Unlock()
		if over && err != nil {
			return proto.Outcome{}, err
		}
		if !told[stage] {
			told[stage] = true
			receipt(stage)
		}
		if over {
			return outcome, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return proto.Outcome{}, context.Cause(ctx)
		}
	}
}

// before notes that an action begins. found says that an earlier process of this
// machine began it: what came of that is the answer.
func (a *Actor) before(key string, print []byte) (o proto.Outcome, found bool, err error) {
	if a.o.Journal == nil || key == "" {
		return o, false, nil
	}
	was, found, err := a.o.Journal.Begin(key, print, time.Now())
	switch {
	case err != nil:
		a.o.Log.Error("an action was refused, since it cannot be noted", "err", err)
		return o, false, proto.Errorf(proto.CodeFailed, "nothing was typed: the machine cannot write to its state directory, and a repeat would be typed twice")
	case !found:
		return o, false, nil
	case !bytes.Equal(was.Print, print):
		return o, true, proto.Errorf(proto.CodeKeyUsed, "the key was used for another text")
	case was.Outcome == nil:
		o, err = unconfirmed("it was begun, and holdfast on the machine ended before it saw what came of it; look at the terminal")
		return o, true, err
	}
	return *was.Outcome, true, nil
}

// after notes what came of an action.
func (a *Actor) after(key string, o proto.Outcome, err error) {
	if a.o.Journal == nil || key == "" {
		return
	}
	end := &o
	if err != nil {
		end = nil
	}
	if err := a.o.Journal.End(key, end); err != nil {
		a.o.Log.Error("what came of an action cannot be noted", "err", err)
	}
}

func (a *Actor) progress(e *entry, change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
	close(e.changed)
	e.changed = make(chan struct{})
}

// remember keeps an entry and forgets the oldest. Its caller holds mu.
func (a *Actor) remember(e *entry) {
	a.done[e.key] = e
	a.order = append(a.order, e.key)
	now := time.Now()
	for len(a.order) > 0 {
		oldest := a.done[a.order[0]]
		switch {
		case oldest == nil: // it failed
		case !oldest.over:
			return
		case len(a.order) <= maxKept && now.Sub(oldest.ended) < keepTime:
			return
		default:
			delete(a.done, oldest.key)
		}
		a.order = a.order[1:]
	}
}
