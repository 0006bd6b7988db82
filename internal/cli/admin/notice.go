package admin

import (
	"context"
	"fmt"

	"holdfast/internal/console"
	"holdfast/internal/engine"
	"holdfast/internal/wire"
)

// Notice tells the people of the relay's accounts something.
type Notice struct {
	Post noticePost `cmd:"" help:"Post a notice to all accounts, or to one; their devices show it until somebody has read it."`
}

type noticePost struct {
	StoreFlag
	Account string `placeholder:"A" help:"Only to this account (default: to all)."`
	Text    string `arg:"" help:"What to say: one paragraph of at most 4096 bytes."`
}

func (c *noticePost) Run(ctx context.Context, a *console.App) error {
	n := engine.Notice{Text: c.Text}
	if c.Account != "" {
		id, err := parseAccount(c.Account)
		if err != nil {
			return err
		}
		n.Account = id
	}
	if err := wire.CheckNotice(c.Text); err != nil {
		return &console.Failure{Code: console.ExitUsage, Err: err, Hint: fmt.Sprintf("a notice is one paragraph of 1 to %d bytes, without line breaks and other control characters", wire.MaxNoticeBytes)}
	}
	store, err := c.open(ctx, a, false)
	if err != nil {
		return err
	}
	defer store.Close()
	id, accounts, err := store.PostNotice(ctx, n)
	if err != nil {
		return noAccount("post a notice", n.Account, err)
	}
	if a.JSON {
		return a.Emit(map[string]any{"posted": id, "accounts": accounts})
	}
	switch {
	case accounts == 0:
		a.Note("there is no account yet, so nobody will see it")
	case n.Account != "":
		a.Note("posted to account %s", n.Account)
	case accounts == 1:
		a.Note("posted to the one account that there is")
	default:
		a.Note("posted to all %d accounts", accounts)
	}
	a.Say("%s", id)
	return nil
}
