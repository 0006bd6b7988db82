package relay

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"holdfast/internal/engine"
)

const (
	// usesInterval is how late the store may learn of a token's use.
	usesInterval = 30 * time.Second
	// usesMax bounds what waits to be written, at about 100 bytes each.
	usesMax = 4096
)

// uses gathers when and from where tokens were used, to write them in batches.
type uses struct {
	mu     sync.Mutex
	waits  map[string]engine.Use
	oldest time.Time
}

// touch notes that a token opened a connection.
func (r *Relay) touch(token string, from netip.Addr) {
	u := engine.Use{At: time.Now()}
	if from.IsValid() {
		u.From = from.String()
	}
	r.uses.mu.Lock()
	defer r.uses.mu.Unlock()
	if r.uses.waits == nil {
		r.uses.waits = make(map[string]engine.Use)
		r.uses.oldest = u.At
	}
	if _, known := r.uses.waits[token]; known || len(r.uses.waits) < usesMax {
		r.uses.waits[token] = u
	}
}

func (u *uses) due(now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.waits) >= usesMax/2 || len(u.waits) > 0 && now.Sub(u.oldest) >= usesInterval
}

func (r *Relay) flushUses(ctx context.Context) {
	r.uses.mu.Lock()
	batch := r.uses.waits
	r.uses.waits = nil
	r.uses.mu.Unlock()
	if len(batch) == 0 {
		return
	}
	if err := r.store.TouchTokens(ctx, batch); err != nil {
		r.log.Warn("note the use of tokens", "err", err)
	}
}
