// Package admin holds the commands by which accounts and tokens are managed on
// the relay's own computer, on its store, whether a relay runs or not.
//
// It never prints a token but the one that it just made. What a caller will get
// wrong: it opens the store beside a running relay, which sees each change
// within a second; it must not be pointed at a copy.
package admin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"

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

// open opens the store for an administrator's command. Where there is none, only
// one that makes an account makes it, since an account may come before the
// relay's first start; for the others a wrong --state would look like an empty
// relay.
func (f StoreFlag) open(ctx context.Context, a *console.App, make bool) (engine.Store, error) {
	dir, err := a.Dir()
	if err != nil {
		return nil, err
	}
	path, err := f.Path(dir)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(path); !make && errors.Is(err, fs.ErrNotExist) {
		return nil, &console.Failure{Code: console.ExitFailed, Err: fmt.Errorf("no relay's store at %s", path), Hint: "give the relay's --state (or --store); holdfast account add starts a new store"}
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
	store, err := c.open(ctx, a, true)
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
	store, err := c.open(ctx, a, false)
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
	store, err := c.open(ctx, a, false)
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
