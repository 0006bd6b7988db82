package relay

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"holdfast/internal/engine"
	"holdfast/internal/wire"
)

// role says what a socket is for.
type role uint8

const (
	roleControl role = iota // an agent's control connection
	roleDevice              // a device's leg of a stream
	roleAgent               // the agent's leg of one
	roleCount
)

func (r role) String() string {
	return [roleCount]string{"control", "device", "agent"}[r]
}

// ender is a socket that can be told to go. end never blocks, may be called
// more than once, and takes itself out of the axes in its own time.
type ender interface {
	end(code wire.CloseCode, reason string)
}

// member is one socket's place in the axes. It is part of the socket's own
// struct and linked through it, so that a parked machine costs no map entry of
// its own here.
type member struct {
	account *accountEntry
	token   *tokenEntry
	machine wire.MachineID
	self    ender
	role    role
	listed  bool

	inAccount links
	inToken   links
}

type links struct{ prev, next *member }

// key names the machine that the socket belongs to or leads to.
func (m *member) key() engine.Key {
	return engine.Key{Account: m.account.id, Machine: m.machine}
}

type accountEntry struct {
	id    engine.AccountID
	first *member
}

// tokenEntry is a token that has sockets or streams open here.
type tokenEntry struct {
	id      string
	device  string
	expires int64 // Unix milliseconds, rounded up; 0 for never
	streams int   // device streams open or being opened
	members int
	first   *member
}

// axes index every socket by account and machine, and by account and token, so
// that a revocation finds exactly those it concerns.
type axes struct {
	mu       sync.Mutex
	accounts map[engine.AccountID]*accountEntry
	tokens   map[string]*tokenEntry
	counts   [roleCount]int
	// nextExpiry is the earliest expiry of a token in tokens, or zero; it may be
	// that of a token which has gone, which costs one walk in vain.
	nextExpiry int64
}

func newAxes() *axes {
	return &axes{accounts: make(map[engine.AccountID]*accountEntry), tokens: make(map[string]*tokenEntry)}
}

// add puts m, whose machine, role and self are set, into the axes under t.
func (a *axes) add(m *member, t engine.Token) {
	a.mu.Lock()
	defer a.mu.Unlock()
	acc := a.accounts[t.Account]
	if acc == nil {
		acc = &accountEntry{id: engine.AccountID(strings.Clone(string(t.Account)))}
		a.accounts[acc.id] = acc
	}
	tok := a.token(t)
	m.account, m.token, m.listed = acc, tok, true
	tok.members++
	a.counts[m.role]++
	if m.inAccount.next = acc.first; acc.first != nil {
		acc.first.inAccount.prev = m
	}
	acc.first = m
	if m.inToken.next = tok.first; tok.first != nil {
		tok.first.inToken.prev = m
	}
	tok.first = m
}

// remove takes m out; a second call does nothing.
func (a *axes) remove(m *member) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !m.listed {
		return
	}
	m.listed = false
	a.counts[m.role]--
	m.token.members--
	if p := m.inAccount.prev; p != nil {
		p.inAccount.next = m.inAccount.next
	} else {
		m.account.first = m.inAccount.next
	}
	if n := m.inAccount.next; n != nil {
		n.inAccount.prev = m.inAccount.prev
	}
	if p := m.inToken.prev; p != nil {
		p.inToken.next = m.inToken.next
	} else {
		m.token.first = m.inToken.next
	}
	if n := m.inToken.next; n != nil {
		n.inToken.prev = m.inToken.prev
	}
	m.inAccount, m.inToken = links{}, links{}
	if m.account.first == nil {
		delete(a.accounts, m.account.id)
	}
	a.dropToken(m.token)
}

// reserve counts one stream of t, up to limit. Each success is undone by one
// release.
func (a *axes) reserve(t engine.Token, limit int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	tok := a.token(t)
	if tok.streams >= limit {
		a.dropToken(tok)
		return false
	}
	tok.streams++
	return true
}

func (a *axes) release(tokenID string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if tok := a.tokens[tokenID]; tok != nil {
		tok.streams--
		a.dropToken(tok)
	}
}

// streams is how many streams of a token are open.
func (a *axes) streams(tokenID string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	if tok := a.tokens[tokenID]; tok != nil {
		return tok.streams
	}
	return 0
}

func (a *axes) token(t engine.Token) *tokenEntry {
	tok := a.tokens[t.ID]
	if tok == nil {
		tok = &tokenEntry{id: strings.Clone(t.ID), device: strings.Clone(t.Device)}
		if !t.Expires.IsZero() {
			tok.expires = t.Expires.Add(time.Millisecond - 1).UnixMilli()
			if a.nextExpiry == 0 || tok.expires < a.nextExpiry {
				a.nextExpiry = tok.expires
			}
		}
		a.tokens[tok.id] = tok
	}
	return tok
}

func (a *axes) dropToken(tok *tokenEntry) {
	if tok.members == 0 && tok.streams == 0 {
		delete(a.tokens, tok.id)
	}
}

// ofAccount gathers the sockets of an account that match.
func (a *axes) ofAccount(id engine.AccountID, match func(*member) bool) []*member {
	a.mu.Lock()
	defer a.mu.Unlock()
	acc := a.accounts[id]
	if acc == nil {
		return nil
	}
	var out []*member
	for m := acc.first; m != nil; m = m.inAccount.next {
		if match(m) {
			out = append(out, m)
		}
	}
	return out
}

// ids lists the accounts that have sockets here.
func (a *axes) ids() []engine.AccountID {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Keys(a.accounts))
}

func (a *axes) ofToken(id string) []*member {
	a.mu.Lock()
	defer a.mu.Unlock()
	tok := a.tokens[id]
	if tok == nil {
		return nil
	}
	return tok.list(nil)
}

func (t *tokenEntry) list(out []*member) []*member {
	for m := t.first; m != nil; m = m.inToken.next {
		out = append(out, m)
	}
	return out
}

// ofRole gathers every socket of a role.
func (a *axes) ofRole(r role) []*member {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make([]*member, 0, a.counts[r])
	for _, acc := range a.accounts {
		for m := acc.first; m != nil; m = m.inAccount.next {
			if m.role == r {
				out = append(out, m)
			}
		}
	}
	return out
}

// expired gathers the sockets whose token is past its time. Expiry goes by the
// wall clock, as the store wrote it.
func (a *axes) expired(now time.Time) []*member {
	unix := now.UnixMilli()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.nextExpiry == 0 || unix < a.nextExpiry {
		return nil
	}
	a.nextExpiry = 0
	var out []*member
	for _, tok := range a.tokens {
		switch {
		case tok.expires == 0:
		case unix >= tok.expires:
			out = tok.list(out)
		case a.nextExpiry == 0 || tok.expires < a.nextExpiry:
			a.nextExpiry = tok.expires
		}
	}
	return out
}

// count is how many sockets have a role.
func (a *axes) count(r role) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.counts[r]
}
