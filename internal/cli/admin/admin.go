// Package admin holds the commands by which accounts and tokens are managed on
// the relay's own computer, on its store, whether a relay runs or not.
//
// It never prints a token but the one that it just made. What a caller will get
// wrong: it opens the store beside a running relay, which sees each change
// within a second; it must not be pointed at a copy.
package admin

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"holdfast/internal/console"
	"holdfast/internal/engine"
	"holdfast/internal/state"
	"holdfast/internal/wire"
)

// StoreFlag says where a relay keeps its store.
type StoreFlag struct {
	Store string `name:"store" env:"HOLDFAST_STORE" placeholder:"URL" help:"Store of the relay: sqlite:PATH (default: relay.db in the state directory)."`
}

// Path is the file of the store.
func (f StoreFlag) Path(dir state.Dir) (string, error) {
	if f.Store == "" {
		return dir.Path(state.StoreFile), nil
	}
	u, err := url.Parse(f.Store)
	if err != nil || u.Scheme != "sqlite" {
		return "", &console.Failure{Code: console.ExitUsage, Err: errors.New("--store: only sqlite:PATH is known")}
	}
	path := u.Opaque
	if path == "" {
		path = u.Host + u.Path
	}
	if path, err = url.PathUnescape(path); err != nil || path == "" {
		return "", &console.Failure{Code: console.ExitUsage, Err: errors.New("--store: sqlite: needs a path")}
	}
	return filepath.Abs(path)
}

// open opens the store for an administrator's command. It makes one where there
// is none: an account may come before the relay's first start.
func (f StoreFlag) open(ctx context.Context, a *console.App) (engine.Store, error) {
	dir, err := a.Dir()
	if err != nil {
		return nil, err
	}
	path, err := f.Path(dir)
	if err != nil {
		return nil, err
	}
	return engine.OpenSQLite(ctx, path, engine.SQLiteOptions{NoFollow: true})
}

func parseAccount(s string) (engine.AccountID, error) {
	// An account has the syntax of a machine's name, but must not be called one.
	if _, err := wire.ParseMachineID(s); err != nil {
		return "", &console.Failure{Code: console.ExitUsage, Err: fmt.Errorf("account %q: %w", s, wire.ErrSyntax), Hint: "1 to 64 letters, digits, dots, underscores and dashes, the first a letter or digit"}
	}
	return engine.AccountID(s), nil
}

// noAccount explains ErrNotFound and ErrExists of an account.
func noAccount(doing string, id engine.AccountID, err error) error {
	switch {
	case errors.Is(err, engine.ErrNotFound):
		return &console.Failure{Code: console.ExitFailed, Err: fmt.Errorf("%s: no account %q", doing, id), Hint: "holdfast account list shows the accounts; holdfast account add makes one"}
	case errors.Is(err, engine.ErrExists):
		return &console.Failure{Code: console.ExitFailed, Err: fmt.Errorf("%s: account %q exists already", doing, id)}
	}
	return fmt.Errorf("%s %q: %w", doing, id, err)
}

// Account manages the accounts of the relay on this computer.
type Account struct {
	Add    accountAdd    `cmd:"" help:"Make an account."`
	List   accountList   `cmd:"" help:"List the accounts."`
	Remove accountRemove `cmd:"" help:"Remove an account with its machines, devices and tokens; their connections end."`
}

type accountAdd struct {
	StoreFlag
	Name string `arg:"" help:"Name of the account."`
}

func (c *accountAdd) Run(ctx context.Context, a *console.App) error {
	id, err := parseAccount(c.Name)
	if err != nil {
		return err
	}
	store, err := c.open(ctx, a)
	if err != nil {
		return err
	}
	defer store.Close()
	if err := store.AddAccount(ctx, id); err != nil {
		return noAccount("add account", id, err)
	}
	if a.JSON {
		return a.Emit(map[string]any{"account": id})
	}
	a.Say("%s", id)
	return nil
}

type accountList struct{ StoreFlag }

func (c *accountList) Run(ctx context.Context, a *console.App) error {
	store, err := c.open(ctx, a)
	if err != nil {
		return err
	}
	defer store.Close()
	accounts, err := store.Accounts(ctx)
	if err != nil {
		return err
	}
	var rows [][]string
	for _, acc := range accounts {
		machines, err := store.Machines(ctx, acc.ID)
		if err != nil {
			return err
		}
		devices, err := store.Devices(ctx, acc.ID)
		if err != nil {
			return err
		}
		if a.JSON {
			if err := a.Emit(map[string]any{"account": acc.ID, "created": acc.Created.UTC(), "machines": len(machines), "devices": len(devices)}); err != nil {
				return err
			}
			continue
		}
		rows = append(rows, []string{string(acc.ID), fmt.Sprintf("%d machines", len(machines)), fmt.Sprintf("%d devices", len(devices)), "since " + acc.Created.Local().Format("2006-01-02")})
	}
	console.Table(a.Out, rows)
	return nil
}

type accountRemove struct {
	StoreFlag
	Name string `arg:"" help:"Name of the account."`
}

func (c *accountRemove) Run(ctx context.Context, a *console.App) error {
	id, err := parseAccount(c.Name)
	if err != nil {
		return err
	}
	store, err := c.open(ctx, a)
	if err != nil {
		return err
	}
	defer store.Close()
	if err := store.RemoveAccount(ctx, id); err != nil {
		return noAccount("remove account", id, err)
	}
	if a.JSON {
		return a.Emit(map[string]any{"removed": id})
	}
	a.Say("removed %s", id)
	return nil
}

// Token manages its tokens.
type Token struct {
	Create tokenCreate `cmd:"" help:"Make a token and print it; it is not shown again."`
	List   tokenList   `cmd:"" help:"List tokens, without their text."`
	Revoke tokenRevoke `cmd:"" help:"Revoke a token; its connections end within a second."`
}

type tokenCreate struct {
	StoreFlag
	Account string        `required:"" placeholder:"A" help:"Account that the token belongs to."`
	Kind    string        `required:"" enum:"agent,device" placeholder:"KIND" help:"agent for a machine, device for what reaches machines."`
	Name    string        `required:"" placeholder:"N" help:"What token list calls it."`
	Machine string        `placeholder:"M" help:"Bind an agent token to this machine; else its first use binds it."`
	TTL     time.Duration `name:"ttl" placeholder:"DUR" help:"How long the token is valid (default: until revoked)."`
}

func (c *tokenCreate) Run(ctx context.Context, a *console.App) error {
	account, err := parseAccount(c.Account)
	if err != nil {
		return err
	}
	kind := engine.TokenKind(c.Kind)
	name := wire.CleanText(c.Name, wire.MaxNameBytes)
	if name == "" || name != c.Name {
		return &console.Failure{Code: console.ExitUsage, Err: fmt.Errorf("--name must be 1 to %d bytes without control characters", wire.MaxNameBytes)}
	}
	if c.TTL < 0 {
		return &console.Failure{Code: console.ExitUsage, Err: errors.New("--ttl must be positive")}
	}
	now := time.Now()
	text := wire.NewToken()
	t := engine.Token{
		ID: newID(), Hash: text.Hash(), Account: account, Kind: kind, Name: name, Created: now,
	}
	if c.Machine != "" {
		if kind != engine.KindAgent {
			return &console.Failure{Code: console.ExitUsage, Err: errors.New("--machine binds an agent's token; a device's token sees all machines of its account")}
		}
		if t.Machine, err = wire.ParseMachineID(c.Machine); err != nil {
			return &console.Failure{Code: console.ExitUsage, Err: fmt.Errorf("--machine: %w", err)}
		}
	}
	if c.TTL > 0 {
		t.Expires = now.Add(c.TTL)
	}
	store, err := c.open(ctx, a)
	if err != nil {
		return err
	}
	defer store.Close()
	if err := store.AddToken(ctx, t); err != nil {
		return noAccount("create token", account, err)
	}
	if a.JSON {
		out := map[string]any{"token": text.Secret(), "id": t.ID, "account": account, "kind": kind, "name": t.Name}
		if t.Machine != "" {
			out["machine"] = t.Machine
		}
		if !t.Expires.IsZero() {
			out["expires"] = t.Expires.UTC()
		}
		return a.Emit(out)
	}
	// The token alone on standard output, to be put into a file.
	a.Note("token %s for %s of account %s; keep it in a file of mode 0600, it is not shown again", t.ID, kind, account)
	a.Say("%s", text.Secret())
	return nil
}

// newID names a token in public: 80 random bits, so that two never meet; it is
// no secret.
func newID() string { return "t-" + strings.ToLower(rand.Text()[:16]) }

type tokenList struct {
	StoreFlag
	Account string `placeholder:"A" help:"Only this account (default: all)."`
}

type tokenInfo struct {
	ID      string           `json:"id"`
	Account engine.AccountID `json:"account"`
	Kind    engine.TokenKind `json:"kind"`
	Name    string           `json:"name"`
	Machine wire.MachineID   `json:"machine,omitempty"`
	Device  string           `json:"device,omitempty"`
	Created time.Time        `json:"created"`
	Expires time.Time        `json:"expires,omitzero"`
	Revoked time.Time        `json:"revoked,omitzero"`
	Used    time.Time        `json:"used,omitzero"`
	From    string           `json:"from,omitempty"`
}

func (c *tokenList) Run(ctx context.Context, a *console.App) error {
	store, err := c.open(ctx, a)
	if err != nil {
		return err
	}
	defer store.Close()
	tokens, err := listTokens(ctx, store, c.Account)
	if err != nil {
		return err
	}
	now := time.Now()
	rows := [][]string{{"ID", "ACCOUNT", "KIND", "NAME", "FOR", "STATE", "LAST USED"}}
	for _, t := range tokens {
		if a.JSON {
			if err := a.Emit(tokenInfo{
				ID: t.ID, Account: t.Account, Kind: t.Kind, Name: t.Name, Machine: t.Machine, Device: t.Device,
				Created: t.Created.UTC(), Expires: t.Expires, Revoked: t.Revoked, Used: t.Used, From: t.From,
			}); err != nil {
				return err
			}
			continue
		}
		target := string(t.Machine)
		if t.Kind == engine.KindDevice {
			target = t.Device
		}
		rows = append(rows, []string{t.ID, string(t.Account), string(t.Kind), t.Name, dash(target), tokenState(t, now), lastUse(t, now)})
	}
	if !a.JSON {
		console.Table(a.Out, rows)
	}
	return nil
}

func listTokens(ctx context.Context, store engine.Store, account string) ([]engine.Token, error) {
	accounts, err := store.Accounts(ctx)
	if err != nil {
		return nil, err
	}
	if account != "" {
		id, err := parseAccount(account)
		if err != nil {
			return nil, err
		}
		accounts = slices.DeleteFunc(accounts, func(a engine.Account) bool { return a.ID != id })
		if len(accounts) == 0 {
			return nil, noAccount("list tokens", id, engine.ErrNotFound)
		}
	}
	var all []engine.Token
	for _, acc := range accounts {
		tokens, err := store.Tokens(ctx, acc.ID)
		if err != nil {
			return nil, noAccount("list tokens", acc.ID, err)
		}
		all = append(all, tokens...)
	}
	return all, nil
}

func tokenState(t engine.Token, now time.Time) string {
	switch {
	case !t.Revoked.IsZero():
		return "revoked " + console.Ago(t.Revoked, now)
	case !t.Expires.IsZero() && !now.Before(t.Expires):
		return "expired " + console.Ago(t.Expires, now)
	case !t.Expires.IsZero():
		return "valid until " + t.Expires.Local().Format("2006-01-02 15:04")
	}
	return "valid"
}

func lastUse(t engine.Token, now time.Time) string {
	if t.Used.IsZero() {
		return "never"
	}
	if t.From == "" {
		return console.Ago(t.Used, now)
	}
	return console.Ago(t.Used, now) + " from " + t.From
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

type tokenRevoke struct {
	StoreFlag
	Account string `placeholder:"A" help:"Account of the token (default: look in all)."`
	ID      string `arg:"" help:"Id of the token, as token list shows it."`
}

func (c *tokenRevoke) Run(ctx context.Context, a *console.App) error {
	if strings.HasPrefix(c.ID, "hf_") {
		return &console.Failure{Code: console.ExitUsage, Err: errors.New("token revoke takes a token's id, not its text"), Hint: "holdfast token list shows the ids"}
	}
	store, err := c.open(ctx, a)
	if err != nil {
		return err
	}
	defer store.Close()
	tokens, err := listTokens(ctx, store, c.Account)
	if err != nil {
		return err
	}
	for _, t := range tokens {
		if t.ID != c.ID {
			continue
		}
		if err := store.RevokeToken(ctx, t.Account, t.ID); err != nil {
			return fmt.Errorf("revoke token %s: %w", t.ID, err)
		}
		if a.JSON {
			return a.Emit(map[string]any{"revoked": t.ID})
		}
		a.Say("revoked %s", t.ID)
		return nil
	}
	return &console.Failure{Code: console.ExitFailed, Err: fmt.Errorf("revoke token: no token %q", c.ID), Hint: "holdfast token list shows the ids"}
}
