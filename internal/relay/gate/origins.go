package gate

import (
	"hash/maphash"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	// OriginsFor is how long an address counts as one that a token is used from.
	// A phone between Wi-Fi and mobile networks has a handful in an hour; over a
	// day it would have as many as a token that everybody has.
	OriginsFor = time.Hour
	// MaxOrigins is how many addresses of a token are told apart: a person has
	// fewer, and the next thousand of a leaked one say nothing new.
	MaxOrigins = 64
	// maxOrigins bounds the tokens remembered: those with one address at about 40
	// bytes each, those with several at 8 bytes an address. Beyond it new ones
	// are not counted.
	maxOrigins = 1 << 17
	maxShared  = 1 << 13
)

// origins knows from how many addresses each token was used lately. The usual
// token has one, and costs no more than an entry of a map.
type origins struct {
	seed maphash.Seed

	mu   sync.Mutex
	one  map[uint64]origin // by hash of the token's id
	many map[string][]origin
}

// origin is a network, as the gate counts addresses, and when it was last seen:
// seconds since 1970. Each machine pays for one, so both are small: two networks
// of one token look alike once in four thousand million.
type origin struct {
	hash uint32
	at   uint32
}

func newOrigins() origins {
	return origins{seed: maphash.MakeSeed(), one: make(map[uint64]origin), many: make(map[string][]origin)}
}

func (o *origins) note(token string, from netip.Addr, now time.Time) {
	addr := network(from).As16()
	seen := origin{uint32(maphash.Bytes(o.seed, addr[:])), uint32(now.Unix())}
	key := maphash.String(o.seed, token)
	o.mu.Lock()
	defer o.mu.Unlock()
	if list, known := o.many[token]; known {
		o.many[token] = seen.into(list)
		return
	}
	first, known := o.one[key]
	switch {
	case known && first.hash != seen.hash && first.fresh(now) && len(o.many) < maxShared:
		delete(o.one, key)
		o.many[token] = []origin{first, seen}
	case known || len(o.one) < maxOrigins:
		o.one[key] = seen
	}
}

// into puts an origin into the list of a token's. One that is full keeps the
// newest.
func (s origin) into(list []origin) []origin {
	if i := slices.IndexFunc(list, func(x origin) bool { return x.hash == s.hash }); i >= 0 {
		list = slices.Delete(list, i, i+1)
	}
	if len(list) >= MaxOrigins {
		list = slices.Delete(list, 0, 1)
	}
	return append(list, s)
}

func (s origin) fresh(now time.Time) bool {
	return now.Unix()-int64(s.at) < int64(OriginsFor/time.Second)
}

// sweep forgets what is over.
func (o *origins) sweep(now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for key, s := range o.one {
		if !s.fresh(now) {
			delete(o.one, key)
		}
	}
	for token, list := range o.many {
		list = slices.DeleteFunc(list, func(s origin) bool { return !s.fresh(now) })
		if len(list) == 0 {
			delete(o.many, token)
			continue
		}
		o.many[token] = list
	}
}

// Origins is from how many addresses a token was used within OriginsFor, IPv6
// by /64, at most MaxOrigins.
func (g *Gate) Origins(token string) int {
	o, now := &g.origins, time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	if list, shared := o.many[token]; shared {
		return fresh(list, now)
	}
	if s, known := o.one[maphash.String(o.seed, token)]; known && s.fresh(now) {
		return 1
	}
	return 0
}

// MostOrigins is the highest number of Origins that any token has.
func (g *Gate) MostOrigins() int {
	o, now := &g.origins, time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	most := 0
	for _, list := range o.many {
		most = max(most, fresh(list, now))
	}
	if most == 0 {
		for _, s := range o.one {
			if s.fresh(now) {
				return 1
			}
		}
	}
	return most
}

func fresh(list []origin, now time.Time) int {
	n := 0
	for _, s := range list {
		if s.fresh(now) {
			n++
		}
	}
	return n
}
