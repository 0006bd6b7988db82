// Package axes indexes the relay's sockets twice: by account, machine and role,
// and by account and token. A revocation finds exactly the sockets that it
// concerns, wherever they are in their lives.
//
// It closes nothing itself and asks no store. What a caller will get wrong: a
// Member is part of the socket's own struct and is linked through, so it must
// not be copied, and it must be removed when the socket is gone.
package axes

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"holdfast/internal/engine"
	"holdfast/internal/wire"
)

// Role says what a socket is for.
type Role uint8

// The roles.
const (
	Control Role = iota // an agent's control connection
	Device              // a device's leg of a stream
	Agent               // the agent's leg of one
	Live                // a live channel's connection
	Roles               // how many there are
)

func (r Role) String() string {
	return [Roles]string{"control", "device", "agent", "live"}[r]
}

// Ender is a socket that can be told to go. End never blocks, may be called
// more than once, and takes the socket out of the axes in its own time.
type Ender interface {
	End(code wire.CloseCode, reason string)
}

// Member is one socket's place in the axes. It is part of the socket's own
// struct and linked through it, so that a parked machine costs no map entry of
// its own here.
type Member struct {
	account *accountEntry
	token   *tokenEntry
	machine wire.MachineID
	self    Ender
	role    Role
	listed  bool

	inAccount links
	inToken   links
}

type links struct{ prev, next *Member }

// Init says what the socket is: before Add, once.
func (m *Member) Init(self Ender, machine wire.MachineID, role Role) {
	m.self, m.machine, m.role = self, machine, role
}

// Self is the socket.
func (m *Member) Self() Ender { return m.self }

// Key names the machine that the socket belongs to or leads to; only after Add.
func (m *Member) Key() engine.Key {
	return engine.Key{Account: m.account.id, Machine: m.machine}
}

// Token is what the axes know of the socket's token; only after Add.
func (m *Member) Token() engine.Token {
	t := engine.Token{ID: m.token.id, Account: m.account.id}
	if m.token.device != nil {
		t.Device = *m.token.device
	}
	if m.token.expires != 0 {
		t.Expires = time.UnixMilli(m.token.expires)
	}
	return t
}

type accountEntry struct {
	id    engine.AccountID
	first *Member
}

// tokenEntry is a token that has sockets or streams open here.
type tokenEntry struct {
	id      string
	device  *string // nil for a token of no device
	expires int64   // Unix milliseconds, rounded up; 0 for never
	streams int32   // device streams open or being opened
	members int32
	first   *Member
}

// Axes is the index. It is safe for concurrent use.
type Axes struct {
	mu       sync.Mutex
	accounts map[engine.AccountID]*accountEntry
	tokens   map[string]*tokenEntry
	counts   [Roles]int
	// nextExpiry is the earliest expiry of a token in tokens, or zero; it may be
	// that of a token which has gone, which costs one walk in vain.
	nextExpiry int64
}

// New makes an empty index.
func New() *Axes {
	return &Axes{accounts: make(map[engine.AccountID]*accountEntry), tokens: make(map[string]*tokenEntry)}
}

// Add puts m, whose machine, role and self are set, into the axes under t.
func (a *Axes) Add(m *Member, t engine.Token) {
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

// Remove takes m out; a second call does nothing.
func (a *Axes) Remove(m *Member) {
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

// Reserve counts one stream of t, up to limit. Each success is undone by one
// Release.
func (a *Axes) Reserve(t engine.Token, limit int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	tok := a.token(t)
	if int(tok.streams) >= limit {
		a.dropToken(tok)
		return false
	}
	tok.streams++
	return true
}

// Release undoes one Reserve.
func (a *Axes) Release(tokenID string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if tok := a.tokens[tokenID]; tok != nil {
		tok.streams--
		a.dropToken(tok)
	}
}

// Streams is how many streams of a token are open.
func (a *Axes) Streams(tokenID string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	if tok := a.tokens[tokenID]; tok != nil {
		return int(tok.streams)
	}
	return 0
}

func (a *Axes) token(t engine.Token) *tokenEntry {
	tok := a.tokens[t.ID]
	if tok == nil {
		tok = &tokenEntry{id: strings.Clone(t.ID)}
		if t.Device != "" {
			tok.device = new(strings.Clone(t.Device))
		}
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

func (a *Axes) dropToken(tok *tokenEntry) {
	if tok.members == 0 && tok.streams == 0 {
		delete(a.tokens, tok.id)
	}
}

// OfAccount gathers every socket of an account.
func (a *Axes) OfAccount(id engine.AccountID) []*Member {
	return a.match(id, func(*Member) bool { return true })
}

// OfMachine gathers every socket of a machine, and every stream to it.
func (a *Axes) OfMachine(k engine.Key) []*Member {
	return a.match(k.Account, func(m *Member) bool { return m.machine == k.Machine })
}

// OfDevice gathers the sockets of a device's tokens.
func (a *Axes) OfDevice(id engine.AccountID, device string) []*Member {
	return a.match(id, func(m *Member) bool { return m.token.device != nil && *m.token.device == device })
}

// Controls gathers the control connections of an account.
func (a *Axes) Controls(id engine.AccountID) []*Member {
	return a.match(id, func(m *Member) bool { return m.role == Control })
}

// Except gathers the sockets of an account whose token, or whose machine, is not
// among those that are good.
func (a *Axes) Except(id engine.AccountID, tokens map[string]bool, machines map[wire.MachineID]bool) (token, machine []*Member) {
	token = a.match(id, func(m *Member) bool { return !tokens[m.token.id] })
	machine = a.match(id, func(m *Member) bool { return m.machine != "" && !machines[m.machine] })
	return token, machine
}

func (a *Axes) match(id engine.AccountID, match func(*Member) bool) []*Member {
	a.mu.Lock()
	defer a.mu.Unlock()
	acc := a.accounts[id]
	if acc == nil {
		return nil
	}
	var out []*Member
	for m := acc.first; m != nil; m = m.inAccount.next {
		if match(m) {
			out = append(out, m)
		}
	}
	return out
}

// Accounts lists the accounts that have sockets here.
func (a *Axes) Accounts() []engine.AccountID {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Keys(a.accounts))
}

// OfToken gathers the sockets of a token.
func (a *Axes) OfToken(id string) []*Member {
	a.mu.Lock()
	defer a.mu.Unlock()
	tok := a.tokens[id]
	if tok == nil {
		return nil
	}
	return tok.list(nil)
}

func (t *tokenEntry) list(out []*Member) []*Member {
	for m := t.first; m != nil; m = m.inToken.next {
		out = append(out, m)
	}
	return out
}

// OfRole gathers every socket of a role.
func (a *Axes) OfRole(r Role) []*Member {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make([]*Member, 0, a.counts[r])
	for _, acc := range a.accounts {
		for m := acc.first; m != nil; m = m.inAccount.next {
			if m.role == r {
				out = append(out, m)
			}
		}
	}
	return out
}

// Expired gathers the sockets whose token is past its time. Expiry goes by the
// wall clock, as the store wrote it.
func (a *Axes) Expired(now time.Time) []*Member {
	unix := now.UnixMilli()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.nextExpiry == 0 || unix < a.nextExpiry {
		return nil
	}
	a.nextExpiry = 0
	var out []*Member
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

// Total is how many sockets there are.
func (a *Axes) Total() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for _, c := range a.counts {
		n += c
	}
	return n
}

// Count is how many sockets have a role.
func (a *Axes) Count(r Role) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.counts[r]
}

// EndAll tells each socket to go.
func EndAll(list []*Member, code wire.CloseCode, reason string) {
	for _, m := range list {
		m.self.End(code, reason)
	}
}
