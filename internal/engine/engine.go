// Package engine keeps what a relay must remember and finds who holds a
// machine: the Store (accounts, machines, devices, token hashes, notices) and
// the Router (who holds machine M's control connection).
//
// It never sees a token's text, only its hash, and never a byte of a stream.
// What a caller will get wrong: a machine's name is unique within its account
// only, so every index uses Key; and nothing read from a Store may be kept past
// the next Change, which may have revoked it.
package engine

import (
	"context"
	"errors"
	"time"

	"holdfast/internal/wire"
)

// AccountID is an account's name: the syntax of a wire.MachineID. "owner" is
// the account that `holdfast up` makes.
type AccountID string

// Key names a machine for good: the name within its account.
type Key struct {
	Account AccountID
	Machine wire.MachineID
}

// String is the key for errors and logs: "account/machine".
func (k Key) String() string { return string(k.Account) + "/" + string(k.Machine) }

// TokenKind says which routes a token opens.
type TokenKind string

// The two kinds of token.
const (
	KindAgent  TokenKind = "agent"
	KindDevice TokenKind = "device"
)

// Errors of a Store. Everything else that it returns means that the store
// itself failed (503 for a peer, never 401).
var (
	ErrNotFound = errors.New("not found")
	ErrExists   = errors.New("exists already")
	// ErrBoundElsewhere says that an agent token belongs to another machine.
	ErrBoundElsewhere = errors.New("token belongs to another machine")
	// ErrReplaced says that another instance won this machine less than
	// wire.ReplacedHold ago: 4409.
	ErrReplaced = errors.New("replaced by another instance")
	// ErrStaleAttempt says that a higher attempt of the same instance came first.
	ErrStaleAttempt = errors.New("a later attempt of this instance came first")
	// ErrPruned says that changes were dropped from the log before they were
	// read: everything that an earlier answer allowed must be asked again.
	ErrPruned = errors.New("older changes are gone from the log")
	// ErrNoHolder says that nobody holds the machine's control connection: 1013.
	ErrNoHolder = errors.New("machine agent offline")
)

// Account owns machines, devices and tokens.
type Account struct {
	ID      AccountID
	Created time.Time
}

// Token is a bearer token at rest.
type Token struct {
	ID      string // public: what `token list` shows and `token revoke` takes
	Hash    [32]byte
	Account AccountID
	Kind    TokenKind
	Name    string
	// Machine is the machine that an agent token is bound to; empty until its
	// first use.
	Machine wire.MachineID
	// Device is the device that a device token was given to by pairing; empty
	// for one that an administrator made.
	Device  string
	Created time.Time
	// Expires and Revoked are zero for "never".
	Expires time.Time
	Revoked time.Time
	// Used and From say when and from which address the token last opened a
	// connection; written in batches, so up to a minute late.
	Used time.Time
	From string
}

// Machine is a computer that runs an agent.
type Machine struct {
	Key
	Created time.Time
	// Epoch rises with each control connection that took the name. Instance and
	// Attempt are those of the newest.
	Epoch    uint64
	Instance wire.Instance
	Attempt  uint64
	// Seen is when a control connection last took the name.
	Seen time.Time
}

// Device is a phone, tablet or laptop of an account.
type Device struct {
	ID      string
	Account AccountID
	Name    string
	Key     string // SSH public key, "type base64", no comment
	Created time.Time
	Revoked time.Time
	Used    time.Time // newest use of its tokens
}

// Revocation is a device's key that one machine has yet to remove.
type Revocation struct {
	Device string
	Key    string
}

// Pairing is an open pairing link as the relay knows it: the hash of
// HKDF(S, "relay"), never S.
type Pairing struct {
	Hash    [32]byte
	Account AccountID
	Machine wire.MachineID
	Expires time.Time
}

// Notice is what the relay's operator tells an account.
type Notice struct {
	// ID sorts by the time of posting.
	ID      string
	Account AccountID
	Text    string
	Posted  time.Time
	Read    time.Time // first acknowledgement; zero for unread
}

// NoticeQuery chooses among an account's notices.
type NoticeQuery struct {
	Unread bool   // only those
	After  string // only those with a greater id
	Limit  int    // at most so many; zero means MaxNotices
}

// Bounds of the notices that a Store keeps.
const (
	// NoticeAge is how long a notice is kept: who was away for a season needs no
	// news of the last one.
	NoticeAge = 90 * 24 * time.Hour
	// MaxNotices is how many of an account are kept; then the oldest goes.
	MaxNotices = 1_000
)

// Change is one entry of the store's log of changes that close sockets or
// concern agents. Fields that do not apply are empty.
type Change struct {
	Seq     int64
	Kind    ChangeKind
	Account AccountID
	Machine wire.MachineID
	Token   string // Token.ID
	Device  string // Device.ID
}

// ChangeKind says what a Change ended.
type ChangeKind string

// The kinds of change.
const (
	ChangeAccount ChangeKind = "account" // account removed: everything of it closes 4401
	ChangeToken   ChangeKind = "token"   // token revoked: its sockets close 4401
	ChangeDevice  ChangeKind = "device"  // device revoked: sockets 4401, agents get revoke
	ChangeMachine ChangeKind = "machine" // machine removed: its sockets close 4404
	// ChangeNotice: the notices of an account have changed, or, without an
	// account, those of all. It closes nothing.
	ChangeNotice ChangeKind = "notice"
)

// Store is what a relay remembers. Every method is safe for concurrent use,
// durable when it returns, and atomic: an error means that nothing changed.
type Store interface {
	AddAccount(ctx context.Context, id AccountID) error // ErrExists
	Accounts(ctx context.Context) ([]Account, error)
	// RemoveAccount removes the account with all that it owns: ErrNotFound.
	RemoveAccount(ctx context.Context, id AccountID) error

	// AddToken stores a token; its account must exist (ErrNotFound). A bound
	// agent token makes its machine.
	AddToken(ctx context.Context, t Token) error
	// TokenByHash finds revoked and expired tokens too, so that a refusal can
	// say which it is: ErrNotFound.
	TokenByHash(ctx context.Context, hash [32]byte) (Token, error)
	Tokens(ctx context.Context, account AccountID) ([]Token, error)
	// RevokeToken revokes a token and closes the pairing that it came from. It
	// does nothing to one that is revoked already: ErrNotFound.
	RevokeToken(ctx context.Context, account AccountID, id string) error
	// BindToken binds an unbound agent token to a machine, which it makes if
	// need be; for a bound one it only compares: ErrBoundElsewhere. ErrNotFound:
	// no such agent token, or its machine was removed.
	BindToken(ctx context.Context, id string, machine wire.MachineID) error
	// TouchTokens notes the last use of tokens, by Token.ID.
	TouchTokens(ctx context.Context, uses map[string]Use) error

	Machine(ctx context.Context, k Key) (Machine, error) // ErrNotFound
	Machines(ctx context.Context, account AccountID) ([]Machine, error)
	// RemoveMachine removes a machine and revokes the tokens that are bound to
	// it, so that it does not come back by itself: ErrNotFound.
	RemoveMachine(ctx context.Context, k Key) error
	// Claim takes the next epoch of a machine for a control connection, in one
	// statement: it refuses a lower attempt of the same instance
	// (ErrStaleAttempt) and an instance that was replaced by another within
	// wire.ReplacedHold (ErrReplaced). An empty instance always wins. ErrNotFound:
	// no such machine.
	Claim(ctx context.Context, k Key, instance wire.Instance, attempt uint64) (epoch uint64, err error)

	Devices(ctx context.Context, account AccountID) ([]Device, error)
	// RevokeDevice revokes a device and its tokens, closes the pairings that it
	// might repeat, and notes its key for every machine of the account. It does
	// nothing to a device that is revoked already: ErrNotFound.
	RevokeDevice(ctx context.Context, account AccountID, id string) error
	// Revocations lists what a machine has not acknowledged.
	Revocations(ctx context.Context, k Key) ([]Revocation, error)
	AckRevocation(ctx context.Context, k Key, r Revocation) error

	// AddPairing opens a pairing; where a machine has 16 open ones, the one that
	// ends first gives way. ErrExists, and ErrNotFound where the machine is not
	// there.
	AddPairing(ctx context.Context, p Pairing) error
	// RemovePairing closes a pairing; who knows the hash may: ErrNotFound.
	RemovePairing(ctx context.Context, hash [32]byte) error
	// RedeemPairing gives a device its token: it finds the pairing by hash,
	// binds it to the first device key that comes, makes or renews the device
	// of that key, revokes the token that an earlier redemption of this pairing
	// gave it, and stores t with Account and Device filled in. ErrNotFound:
	// unknown, expired, or bound to another key.
	RedeemPairing(ctx context.Context, hash [32]byte, d Device, t Token) (Device, Pairing, error)

	// PostNotice keeps a text for one account (ErrNotFound), or, where n.Account is
	// empty, for each that there is, and says for how many. The id is n.ID, or one
	// that it makes. A text that wire.CheckNotice refuses is an error that wraps
	// wire.ErrSyntax. What is older than NoticeAge, or beyond MaxNotices of an
	// account, goes.
	PostNotice(ctx context.Context, n Notice) (id string, accounts int, err error)
	// Notices lists those of an account that are not older than NoticeAge, by id:
	// the oldest first.
	Notices(ctx context.Context, account AccountID, q NoticeQuery) ([]Notice, error)
	// Notice finds one of them: ErrNotFound.
	Notice(ctx context.Context, account AccountID, id string) (Notice, error)
	// AckNotice marks a notice read; a second time changes nothing. ErrNotFound.
	AckNotice(ctx context.Context, account AccountID, id string) error

	// Changes returns the log after a sequence number, oldest first, at most
	// 1,000 entries. Changes(ctx, -1) returns only the newest entry, or none:
	// where to start. ErrPruned: entries after that number are gone (the log
	// keeps 5,000), so everything must be asked again and the log followed from
	// its newest entry.
	Changes(ctx context.Context, after int64) ([]Change, error)
	// Wake is signalled (capacity 1, never closed) when the log may have grown,
	// by this process or another, at most 250 ms late.
	Wake() <-chan struct{}

	// Ping reports whether the store answers.
	Ping(ctx context.Context) error
	Close() error
}

// Use is a token's last use.
type Use struct {
	At   time.Time
	From string
}

// Holder is a control connection that can deliver a message to its agent.
type Holder interface {
	// Deliver queues m and returns; it never blocks on the network. The error
	// says that this socket is no longer the one.
	Deliver(m wire.Message) error
}

// Router knows who holds a machine's control connection. Nothing is kept that
// could go stale: the answer comes from the holder or from nobody.
type Router interface {
	// Hold makes h the holder of k if epoch is higher than the present holder's,
	// and returns the holder it replaced, if any. ErrStaleAttempt: a higher
	// epoch holds the name already.
	Hold(k Key, epoch uint64, h Holder) (replaced Holder, err error)
	// Release ends h's hold; it does nothing if h is not the holder any more.
	Release(k Key, h Holder)
	// Deliver hands m to the holder: ErrNoHolder, or the holder's error.
	Deliver(ctx context.Context, k Key, m wire.Message) error
	// Holds reports whether h is what Deliver would reach.
	Holds(k Key, h Holder) bool
	// Ping reports whether the router answers.
	Ping(ctx context.Context) error
	Close() error
}
