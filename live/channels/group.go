package channels

import (
	"sync"

	"holdfast/live"
)

// group is the open connections of each key: of a person, of an id.
type group[K comparable] struct {
	mu      sync.Mutex
	members map[K]map[*live.Conn]struct{}
}

func newGroup[K comparable]() *group[K] {
	return &group[K]{members: make(map[K]map[*live.Conn]struct{})}
}

func (g *group[K]) join(k K, c *live.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	set := g.members[k]
	if set == nil {
		set = make(map[*live.Conn]struct{})
		g.members[k] = set
	}
	set[c] = struct{}{}
}

func (g *group[K]) leave(k K, c *live.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if set := g.members[k]; set != nil {
		delete(set, c)
		if len(set) == 0 {
			delete(g.members, k)
		}
	}
}

// of lists the connections of one key.
func (g *group[K]) of(k K) []*live.Conn {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make([]*live.Conn, 0, len(g.members[k]))
	for c := range g.members[k] {
		out = append(out, c)
	}
	return out
}

// keys lists every key that has a connection.
func (g *group[K]) keys() []K {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make([]K, 0, len(g.members))
	for k := range g.members {
		out = append(out, k)
	}
	return out
}
