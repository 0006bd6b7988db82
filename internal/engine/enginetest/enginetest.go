// Package enginetest holds the conformance tests of engine's two interfaces:
// what a relay counts on, whichever implementation it was given. It is for tests
// only and knows nothing of SQLite.
//
// What a caller will get wrong: the open functions must give a fresh, empty
// instance each time, and close it when the test ends.
package enginetest

import (
	"errors"
	"sync"
	"testing"
	"time"

	"holdfast/internal/engine"
	"holdfast/internal/wire"
)

// Clock is a wall clock that a test sets.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// NewClock starts at a fixed day.
func NewClock() *Clock {
	return &Clock{now: time.Date(2030, 5, 17, 10, 0, 0, 123456000, time.UTC)}
}

// Now is the clock's time.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Add moves the clock, also backwards.
func (c *Clock) Add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t testing.TB, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("error %v, want %v", got, want)
	}
}

// hashOf is a hash that differs for each name.
func hashOf(name string) (h [32]byte) {
	copy(h[:], "hash of "+name)
	return h
}

var mini = engine.Key{Account: "owner", Machine: "mini"}

// owner makes the account of most tests, with a machine "mini" and the agent
// token "t-mini" that is bound to it.
func owner(t testing.TB, s engine.Store) {
	t.Helper()
	must(t, s.AddAccount(t.Context(), "owner"))
	must(t, s.AddToken(t.Context(), agentToken("t-mini", "owner", "mini")))
}

func agentToken(id string, a engine.AccountID, m wire.MachineID) engine.Token {
	return engine.Token{ID: id, Hash: hashOf(id), Account: a, Kind: engine.KindAgent, Name: id, Machine: m}
}

func deviceToken(id string, a engine.AccountID) engine.Token {
	return engine.Token{ID: id, Hash: hashOf(id), Account: a, Kind: engine.KindDevice, Name: id}
}
