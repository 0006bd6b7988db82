package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/account"
	"holdfast/internal/console"
	"holdfast/internal/engine"
	"holdfast/internal/local"
	"holdfast/internal/wire"
)

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
	id, err := parseAccount(c.Account)
	if err != nil {
		return err
	}
	kind := engine.TokenKind(c.Kind)
	if name, err := account.CleanName(c.Name); err != nil || name != c.Name {
		return &console.Failure{Code: console.ExitUsage, Err: fmt.Errorf("--name must be 1 to %d bytes, without control characters and with single blanks only", wire.MaxNameBytes)}
	}
	if c.TTL < 0 {
		return &console.Failure{Code: console.ExitUsage, Err: errors.New("--ttl must be positive")}
	}
	request := account.Request{Account: id, Kind: kind, Name: c.Name, Lifetime: c.TTL}
	if c.Machine != "" {
		if kind != engine.KindAgent {
			return &console.Failure{Code: console.ExitUsage, Err: errors.New("--machine binds an agent's token; a device's token sees all machines of its account")}
		}
		if request.Machine, err = wire.ParseMachineID(c.Machine); err != nil {
			return &console.Failure{Code: console.ExitUsage, Err: fmt.Errorf("--machine: %w", err)}
		}
	}
	store, err := c.open(ctx, a, false)
	if err != nil {
		return err
	}
	defer store.Close()
	accounts, err := account.New(account.Options{Store: store})
	if err != nil {
		return err
	}
	issued, err := accounts.Issue(ctx, request)
	if err != nil {
		return noAccount("create token", id, err)
	}
	t := issued.Token
	if a.JSON {
		out := map[string]any{"token": issued.Text.Secret(), "id": t.ID, "account": id, "kind": kind, "name": t.Name}
		if t.Machine != "" {
			out["machine"] = t.Machine
		}
		if !t.Expires.IsZero() {
			out["expires"] = t.Expires.UTC()
		}
		return a.Emit(out)
	}
	// The token alone on standard output, to be put into a file.
	a.Note("token %s for %s of account %s; keep it in a file of mode 0600, it is not shown again", t.ID, kind, id)
	a.Say("%s", issued.Text.Secret())
	return nil
}

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
	// Streams are open now, and Addresses is from how many the token was used
	// within the last hour: by word of the running relay, absent without one.
	Streams   *int `json:"streams,omitempty"`
	Addresses *int `json:"addresses,omitempty"`
}

func (c *tokenList) Run(ctx context.Context, a *console.App) error {
	store, err := c.open(ctx, a, false)
	if err != nil {
		return err
	}
	defer store.Close()
	tokens, err := listTokens(ctx, store, c.Account)
	if err != nil {
		return err
	}
	uses, running := tokenUses(ctx, a, tokens)
	now := time.Now()
	rows := [][]string{{"ID", "ACCOUNT", "KIND", "NAME", "FOR", "STATE", "STREAMS", "ADDRESSES", "LAST USED"}}
	for _, t := range tokens {
		if a.JSON {
			info := tokenInfo{
				ID: t.ID, Account: t.Account, Kind: t.Kind, Name: t.Name, Machine: t.Machine, Device: t.Device,
				Created: t.Created.UTC(), Expires: t.Expires, Revoked: t.Revoked, Used: t.Used, From: t.From,
			}
			if use, ok := uses[t.ID]; ok {
				info.Streams, info.Addresses = &use.Streams, &use.Addresses
			}
			if err := a.Emit(info); err != nil {
				return err
			}
			continue
		}
		target := string(t.Machine)
		if t.Kind == engine.KindDevice {
			target = t.Device
		}
		streams, addresses := "-", "-"
		if use, ok := uses[t.ID]; ok {
			streams, addresses = strconv.Itoa(use.Streams), strconv.Itoa(use.Addresses)
		}
		rows = append(rows, []string{t.ID, string(t.Account), string(t.Kind), t.Name, dash(target), tokenState(t, now), streams, addresses, lastUse(t, now)})
	}
	if !a.JSON {
		console.Table(a.Out, rows)
		if !running {
			a.Note("no relay runs on this state directory, so open streams are not known")
		}
	}
	return nil
}

// usesTimeout bounds the questions to the running relay: a list without streams
// is better than none.
const usesTimeout = 5 * time.Second

// tokenUses asks the relay that runs on the state directory. Without one, or
// where it is of another version, nothing is known.
func tokenUses(ctx context.Context, a *console.App, tokens []engine.Token) (uses map[string]local.TokenUse, running bool) {
	dir, err := a.Dir()
	if err != nil {
		return nil, false
	}
	ctx, cancel := context.WithTimeout(ctx, usesTimeout)
	defer cancel()
	uses = make(map[string]local.TokenUse, len(tokens))
	for some := range slices.Chunk(tokens, local.MaxTokens) {
		q := local.Request{Op: local.OpTokens}
		for _, t := range some {
			q.Tokens = append(q.Tokens, t.ID)
		}
		answer, err := local.AskRelay(ctx, dir, q)
		if err != nil || answer.Error != "" {
			return nil, false
		}
		for id, use := range answer.Tokens {
			uses[id] = use
		}
	}
	return uses, true
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
	store, err := c.open(ctx, a, false)
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
