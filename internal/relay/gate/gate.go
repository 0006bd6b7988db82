// Package gate decides who comes in: it finds a request's token, asks the store
// about it, and says in one line why not. It counts failed authentications and
// unfinished handshakes of an address, which is all that an address is ever
// refused for.
//
// It never upgrades a connection, never keeps what the store said, and never
// repeats any part of a token or of a query in an answer or a log. What a caller
// will get wrong: a token that passes here has a kind and an account and
// nothing more; whether it may use the route is the caller's question, and it
// must be asked again once the socket is in the registry.
package gate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"holdfast/internal/account"
	"holdfast/internal/engine"
	"holdfast/internal/wire"
)

// Defaults of Options.
const (
	// DefaultFailures is how many failed authentications an address may have in
	// a minute: a person with a wrong token tries a few times. At twice as many
	// a guesser gains nothing either; the answer only stops being precise.
	DefaultFailures = 20
	// DefaultHandshakes is how many unfinished handshakes of one address are
	// borne: an office behind one NAT that comes back at once has tens.
	DefaultHandshakes = 100
)

// storeTimeout bounds a question to the store: an agent's own handshake
// time-out is longer, so it still reads the 503.
const storeTimeout = 5 * time.Second

// Options of New.
type Options struct {
	Store engine.Store // required
	Log   *slog.Logger // required
	// TrustedProxies are believed in X-Forwarded-For. Empty means that nobody is.
	TrustedProxies []netip.Prefix
	// Failures is how many failed authentications an address may have in a
	// minute before it gets 429 in place of 401; zero means DefaultFailures.
	Failures int
	// Handshakes is how many unfinished handshakes an address may have; zero
	// means DefaultHandshakes.
	Handshakes int
}

// Gate is safe for concurrent use.
type Gate struct {
	store      engine.Store
	accounts   *account.Accounts
	log        *slog.Logger
	proxies    []netip.Prefix
	failures   *Windows[netip.Addr]
	handshakes int
	pending    pending
	uses       uses
	origins    origins
}

// New makes a Gate.
func New(o Options) (*Gate, error) {
	if o.Store == nil || o.Log == nil {
		return nil, errors.New("gate: Store and Log are required")
	}
	if o.Failures < 0 || o.Handshakes < 0 {
		return nil, errors.New("gate: a limit is negative")
	}
	if o.Failures == 0 {
		o.Failures = DefaultFailures
	}
	if o.Handshakes == 0 {
		o.Handshakes = DefaultHandshakes
	}
	accounts, err := account.New(account.Options{Store: o.Store})
	if err != nil {
		return nil, fmt.Errorf("gate: %w", err)
	}
	return &Gate{
		store:      o.Store,
		accounts:   accounts,
		log:        o.Log,
		proxies:    o.TrustedProxies,
		failures:   NewWindows[netip.Addr](o.Failures, time.Minute),
		handshakes: o.Handshakes,
		pending:    newPending(),
		origins:    newOrigins(),
	}, nil
}

// Token verifies the one token of a request: syntax (400), then whether there
// is one that is known, not revoked and not expired (401, or 429 for an address
// that failed too often), or 503. The refusal is nil if it passed.
func (g *Gate) Token(r *http.Request) (engine.Token, *Refusal) {
	if ref := Query(r); ref != nil {
		return engine.Token{}, ref
	}
	bearer, err := wire.RequestToken(r.Header, r.URL.Query())
	switch {
	case errors.Is(err, wire.ErrNoToken):
		return engine.Token{}, g.Fail(r, wire.RefusalTokenMissing,
			"a bearer token is needed: send Authorization: Bearer, or the subprotocol holdfast.bearer.")
	case err != nil:
		return engine.Token{}, Refuse(http.StatusBadRequest, wire.RefusalSyntax, err.Error())
	}
	t, code, err := g.verify(r.Context(), bearer.Hash())
	switch {
	case err != nil:
		return engine.Token{}, g.Unavailable("let a request in", err)
	case code == "":
		return t, nil
	case code == wire.RefusalTokenUnknown:
		return engine.Token{}, g.Fail(r, code, "this token is unknown here: make a new one, or pair again")
	case code == wire.RefusalTokenRevoked:
		return engine.Token{}, g.Fail(r, code, "this token was revoked: make a new one, or pair again")
	default:
		return engine.Token{}, g.Fail(r, code, "this token has expired: make a new one, or pair again")
	}
}

// Query refuses a query that cannot be parsed whole, since a token could hide in
// the rest, or that holds a token. It is for requests that need none; Token
// looks by itself.
func Query(r *http.Request) *Refusal {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return Refuse(http.StatusBadRequest, wire.RefusalSyntax, "the query cannot be parsed")
	}
	// Without headers nothing but the query can be at fault.
	if _, err := wire.RequestToken(nil, query); errors.Is(err, wire.ErrTokenInQuery) {
		return Refuse(http.StatusBadRequest, wire.RefusalSyntax, err.Error())
	}
	return nil
}

// Recheck asks the store about a token again, now that its socket is in the
// registry, so that a revocation in between is not missed. The code is empty if
// the token is as good as before.
func (g *Gate) Recheck(ctx context.Context, t engine.Token) (wire.Refusal, error) {
	now, code, err := g.verify(ctx, t.Hash)
	switch {
	case err != nil:
		return "", fmt.Errorf("check a token again: %w", err)
	case code == "" && (now.ID != t.ID || now.Account != t.Account):
		return wire.RefusalTokenUnknown, nil
	}
	return code, nil
}

// verify asks the store about a token. The code says why it is not good; err is
// the store's failure.
func (g *Gate) verify(ctx context.Context, hash [32]byte) (engine.Token, wire.Refusal, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	t, err := g.accounts.Verify(ctx, hash)
	switch {
	case errors.Is(err, account.ErrUnknown):
		return t, wire.RefusalTokenUnknown, nil
	case errors.Is(err, account.ErrRevoked):
		return t, wire.RefusalTokenRevoked, nil
	case errors.Is(err, account.ErrExpired):
		return t, wire.RefusalTokenExpired, nil
	}
	return t, "", err
}

// Fail counts a failed authentication of the request's address and gives its
// refusal: 401, or 429 once the address failed too often. A good token never
// comes here, so that thousands behind one address are not locked out.
func (g *Gate) Fail(r *http.Request, code wire.Refusal, line string) *Refusal {
	if wait, ok := g.failures.Take(network(g.Client(r)), time.Now()); !ok {
		return TooMany(wait, "too many failed authentications from this address; wait, then try with a good token")
	}
	return Refuse(http.StatusUnauthorized, code, line)
}

// Unavailable logs a failure of the store and gives its refusal, 503. The peer
// learns nothing but that it should come back.
func (g *Gate) Unavailable(doing string, err error) *Refusal {
	g.log.Error("the store fails", "err", fmt.Errorf("%s: %w", doing, err))
	ref := Refuse(http.StatusServiceUnavailable, wire.RefusalUnavailable, "the relay cannot reach its store; try again soon")
	ref.RetryAfter = 5 * time.Second
	return ref
}

// Client is the address that a request came from: the TCP peer's, or, where
// that is a trusted proxy, the last address in X-Forwarded-For that is none.
// The zero Addr stands for what is no address, such as a Unix socket.
func (g *Gate) Client(r *http.Request) netip.Addr {
	peer := parseAddr(r.RemoteAddr)
	if !g.trusted(peer) {
		return peer
	}
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for i := len(hops) - 1; i >= 0; i-- {
		hop := parseAddr(strings.TrimSpace(hops[i]))
		if !hop.IsValid() {
			break // whatever stands further left is not vouched for
		}
		peer = hop
		if !g.trusted(hop) {
			break
		}
	}
	return peer
}

func (g *Gate) trusted(a netip.Addr) bool {
	for _, p := range g.proxies {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// parseAddr reads an address with or without port; the zero Addr stands for
// everything else, such as a Unix socket.
func parseAddr(s string) netip.Addr {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return ap.Addr().Unmap().WithZone("")
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Addr{}
	}
	return a.Unmap().WithZone("")
}

// network is what an address counts as: IPv6 by /64, which one subscriber holds
// whole.
func network(a netip.Addr) netip.Addr {
	if !a.Is6() {
		return a
	}
	p, err := a.Prefix(64)
	if err != nil {
		return a
	}
	return p.Addr()
}
