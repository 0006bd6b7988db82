package gate

import (
	"context"
	"net/http"
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

// Touch notes that a token opened a connection; Flush writes it.
func (g *Gate) Touch(t engine.Token, r *http.Request) {
	u := engine.Use{At: time.Now()}
	if from := g.Client(r); from.IsValid() {
		u.From = from.String()
		g.origins.note(t.ID, from, u.At)
	}
	g.uses.mu.Lock()
	defer g.uses.mu.Unlock()
	if g.uses.waits == nil {
		g.uses.waits = make(map[string]engine.Use)
		g.uses.oldest = u.At
	}
	if _, known := g.uses.waits[t.ID]; known || len(g.uses.waits) < usesMax {
		g.uses.waits[t.ID] = u
	}
}

// Due reports whether it is time to Flush.
func (g *Gate) Due(now time.Time) bool {
	u := &g.uses
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.waits) >= usesMax/2 || len(u.waits) > 0 && now.Sub(u.oldest) >= usesInterval
}

// Flush writes what waits, and forgets what is too old to count. A store that fails loses it: it is a convenience.
func (g *Gate) Flush(ctx context.Context) {
	g.uses.mu.Lock()
	batch := g.uses.waits
	g.uses.waits = nil
	g.uses.mu.Unlock()
	g.origins.sweep(time.Now())
	if len(batch) == 0 {
		return
	}
	if err := g.store.TouchTokens(ctx, batch); err != nil {
		g.log.Warn("note the use of tokens", "err", err)
	}
}
