// Package account issues, verifies and revokes what an account gives out: the
// tokens of agents and devices, and the pairings by which a device gets its
// token. It stands above an engine.Store, which keeps only hashes.
//
// It holds nothing between two calls: each Verify asks the store, so that a
// revocation is never answered from memory. What a caller will get wrong: the
// text of a token is seen once, in the result of Issue or Redeem, and cannot be
// had again; and an error of Verify that is none of ErrUnknown, ErrExpired and
// ErrRevoked is the store's failure, which is 503 and never 401.
package account

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"holdfast/internal/engine"
	"holdfast/internal/pairing"
	"holdfast/internal/wire"
)

// Owner is the account that `holdfast up` makes.
const Owner engine.AccountID = "owner"

var (
	// ErrUnknown says that no token has this text; of an account that was
	// removed, all tokens are unknown.
	ErrUnknown = errors.New("token is unknown")
	// ErrExpired says that a token's time is over.
	ErrExpired = errors.New("token has expired")
	// ErrRevoked says that a token was revoked.
	ErrRevoked = errors.New("token was revoked")
	// ErrNoPairing says that no link is open for a relay secret, or that it
	// belongs to another key: one answer for both.
	ErrNoPairing = errors.New("no pairing link is open for this: make a new one with `holdfast pair`")
	// ErrTTL says that a pairing is to stay open for longer than it may.
	ErrTTL = fmt.Errorf("a pairing link stays open for at least 1 s and at most %v: %w", wire.MaxPairingTTL, wire.ErrSyntax)
	// ErrName says that a name is empty once it is fit to be shown.
	ErrName = fmt.Errorf("name is empty: %w", wire.ErrSyntax)
)

// Options are the options of New.
type Options struct {
	Store engine.Store     // required
	Now   func() time.Time // wall clock; nil means time.Now
}

// Accounts issues, verifies and revokes. It is safe for concurrent use.
type Accounts struct {
	store engine.Store
	now   func() time.Time
}

// New makes an Accounts over a store, which stays the caller's to close.
func New(o Options) (*Accounts, error) {
	if o.Store == nil {
		return nil, errors.New("account: Options.Store is required")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Accounts{store: o.Store, now: o.Now}, nil
}

// ParseID checks an account's name: the syntax of a machine's.
func ParseID(s string) (engine.AccountID, error) {
	if _, err := wire.ParseMachineID(s); err != nil {
		return "", fmt.Errorf("account name %q: %w: use 1 to %d letters, digits, dots, dashes and underscores, a letter or digit first",
			wire.CleanText(s, wire.MaxNameBytes), wire.ErrSyntax, wire.MaxNameBytes)
	}
	return engine.AccountID(s), nil
}

// CleanName makes a name that a person gave a device or a token fit to be shown:
// no control characters, one blank between words, at most wire.MaxNameBytes.
// Error: ErrName.
func CleanName(s string) (string, error) {
	// Cut first, so that a long input costs no more than a short one.
	s = s[:min(len(s), 8*wire.MaxNameBytes)]
	s = strings.TrimSpace(wire.CleanText(strings.Join(strings.Fields(s), " "), wire.MaxNameBytes))
	if s == "" {
		return "", ErrName
	}
	return s, nil
}

// NewID makes a public identifier: a prefix letter and 50 random bits in ten
// characters that cannot be mistaken for each other when read aloud.
func NewID(prefix string) string {
	const letters = "abcdefghjkmnpqrstuvwxyz023456789" // 32, without i l o 1
	var b [10]byte
	rand.Read(b[:]) // never fails: crypto/rand aborts the process instead
	for i := range b {
		b[i] = letters[b[i]%byte(len(letters))]
	}
	return prefix + string(b[:])
}

// Prefixes of identifiers.
const (
	tokenIDPrefix  = "t"
	deviceIDPrefix = "d"
)

// maxIDTries bounds the search for an identifier that is not taken. With 2^50
// of them a second try is as good as never needed.
const maxIDTries = 3

// Create makes an account: engine.ErrExists, or one that wraps wire.ErrSyntax.
func (a *Accounts) Create(ctx context.Context, name string) (engine.AccountID, error) {
	id, err := ParseID(name)
	if err != nil {
		return "", err
	}
	return id, a.store.AddAccount(ctx, id)
}

// Request says which token to issue.
type Request struct {
	Account engine.AccountID // required; must exist
	Kind    engine.TokenKind // required
	Name    string           // required: what a person calls it
	// Machine binds an agent token at once; empty leaves that to its first use.
	Machine wire.MachineID
	// Lifetime is how long the token is good for; zero means for ever.
	Lifetime time.Duration
	// Text is the token's own, for who must have written it down before; zero
	// makes one.
	Text wire.Token
}

// Issued is a new token.
type Issued struct {
	// Text is shown once; the store has only its hash.
	Text  wire.Token
	Token engine.Token
}

// Issue makes a token. Errors: engine.ErrNotFound for an account that is not
// there, one that wraps wire.ErrSyntax, or the store's failure.
func (a *Accounts) Issue(ctx context.Context, r Request) (Issued, error) {
	doing := fmt.Sprintf("issue a token for account %q", r.Account)
	token, err := a.prepare(r)
	if err != nil {
		return Issued{}, fmt.Errorf("%s: %w", doing, err)
	}
	for try := 1; ; try++ {
		text := r.Text
		if text.IsZero() {
			text = wire.NewToken()
		}
		token.ID, token.Hash = NewID(tokenIDPrefix), text.Hash()
		err := a.store.AddToken(ctx, token)
		if err == nil {
			return Issued{Text: text, Token: token}, nil
		}
		if !errors.Is(err, engine.ErrExists) || try == maxIDTries {
			return Issued{}, fmt.Errorf("%s: %w", doing, err)
		}
	}
}

func (a *Accounts) prepare(r Request) (engine.Token, error) {
	name, err := CleanName(r.Name)
	if err != nil {
		return engine.Token{}, err
	}
	switch r.Kind {
	case engine.KindAgent:
	case engine.KindDevice:
		if r.Machine != "" {
			return engine.Token{}, fmt.Errorf("a device token sees all machines of its account and is bound to none: %w", wire.ErrSyntax)
		}
	default:
		return engine.Token{}, fmt.Errorf("kind %q is neither agent nor device: %w", r.Kind, wire.ErrSyntax)
	}
	if r.Machine != "" {
		if _, err := wire.ParseMachineID(string(r.Machine)); err != nil {
			return engine.Token{}, err
		}
	}
	if r.Lifetime < 0 {
		return engine.Token{}, fmt.Errorf("lifetime is negative: %w", wire.ErrSyntax)
	}
	now := a.stamp()
	t := engine.Token{Account: r.Account, Kind: r.Kind, Name: name, Machine: r.Machine, Created: now}
	if r.Lifetime > 0 {
		t.Expires = now.Add(r.Lifetime)
	}
	return t, nil
}

// stamp is now as a store gives it back: in UTC, with microseconds.
func (a *Accounts) stamp() time.Time { return a.now().UTC().Truncate(time.Microsecond) }

// Verify finds the token with this hash. Errors: ErrUnknown, ErrRevoked,
// ErrExpired (these two with the token in the result), or the store's failure.
// It costs one look-up whatever the answer: how long it takes says nothing about
// a token's text.
func (a *Accounts) Verify(ctx context.Context, hash [32]byte) (engine.Token, error) {
	t, err := a.store.TokenByHash(ctx, hash)
	switch {
	case errors.Is(err, engine.ErrNotFound):
		return engine.Token{}, ErrUnknown
	case err != nil:
		return engine.Token{}, fmt.Errorf("verify a token: %w", err)
	}
	return t, State(t, a.now())
}

// State says whether a token is good at now: nil, ErrRevoked or ErrExpired.
// Revoked comes first: it is what somebody did.
func State(t engine.Token, now time.Time) error {
	switch {
	case !t.Revoked.IsZero():
		return ErrRevoked
	case !t.Expires.IsZero() && !now.Before(t.Expires):
		return ErrExpired
	}
	return nil
}

// Revoke revokes a token by its public id: engine.ErrNotFound.
func (a *Accounts) Revoke(ctx context.Context, account engine.AccountID, id string) error {
	return a.store.RevokeToken(ctx, account, id)
}

// OpenPairing registers the hash of a link's relay secret for a machine and
// says until when. Errors: ErrTTL, engine.ErrExists, engine.ErrNotFound for a
// machine that is not there, or the store's failure.
func (a *Accounts) OpenPairing(ctx context.Context, k engine.Key, hash [32]byte, ttl time.Duration) (time.Time, error) {
	if ttl < time.Second || ttl > wire.MaxPairingTTL {
		return time.Time{}, ErrTTL
	}
	p := engine.Pairing{Hash: hash, Account: k.Account, Machine: k.Machine, Expires: a.stamp().Add(ttl)}
	if err := a.store.AddPairing(ctx, p); err != nil {
		return time.Time{}, err
	}
	return p.Expires, nil
}

// Redeemed is what a device gets for a link's relay secret.
type Redeemed struct {
	Text    wire.Token // shown once
	Device  engine.Device
	Machine wire.MachineID
}

// Redeem gives a device the token of an open pairing. The link belongs to the
// first key that comes; that key may repeat until the link expires, and each
// time its new token replaces the one before. key is "type base64", with or
// without a comment. Errors: ErrNoPairing, one that wraps wire.ErrSyntax, or the
// store's failure.
func (a *Accounts) Redeem(ctx context.Context, secret pairing.RelaySecret, key, name string) (Redeemed, error) {
	k, err := pairing.ParseDeviceKey(key)
	if err != nil {
		return Redeemed{}, fmt.Errorf("device key: %w", err)
	}
	if name, err = CleanName(name); err != nil {
		return Redeemed{}, fmt.Errorf("device %w", err)
	}
	if secret.IsZero() {
		return Redeemed{}, ErrNoPairing
	}
	now := a.stamp()
	for try := 1; ; try++ {
		text := wire.NewToken()
		d, p, err := a.store.RedeemPairing(ctx, secret.Hash(),
			engine.Device{ID: NewID(deviceIDPrefix), Name: name, Key: k.Line(), Created: now},
			engine.Token{ID: NewID(tokenIDPrefix), Hash: text.Hash(), Kind: engine.KindDevice, Name: name, Created: now})
		switch {
		case err == nil:
			return Redeemed{Text: text, Device: d, Machine: p.Machine}, nil
		case errors.Is(err, engine.ErrNotFound):
			return Redeemed{}, ErrNoPairing
		case !errors.Is(err, engine.ErrExists) || try == maxIDTries:
			return Redeemed{}, fmt.Errorf("redeem a pairing: %w", err)
		}
	}
}
