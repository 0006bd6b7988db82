package sessions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"holdfast/internal/cli/sessions/backlog"
	"holdfast/internal/cli/sessions/source"
	"holdfast/internal/console"
	"holdfast/internal/session/conversation"
	"holdfast/internal/session/conversation/scrollback"
	"holdfast/internal/session/proto"
)

// Show prints the conversation of a session, or its scrollback.
type Show struct {
	source.Flags
	Limit      int    `name:"limit" default:"20" placeholder:"N" help:"How many items of the conversation, or lines of the scrollback in tens (default ${default})."`
	Before     string `name:"before" placeholder:"CURSOR" help:"Items above this cursor, which --json prints with each item."`
	Search     string `name:"search" placeholder:"TEXT" help:"Only items that hold this text."`
	Follow     bool   `name:"follow" help:"Go on, and print what is added."`
	Scrollback bool   `name:"scrollback" help:"The terminal's scrollback, also where a conversation is known."`
	Session    string `arg:"" name:"session" help:"Session: [MACHINE/]ID or [MACHINE/]NAME."`
}

// Help is shown by --help.
func (*Show) Help() string {
	return "The conversation comes from the transcript that the tool in the session keeps; a session without one shows the scrollback of its terminal. " +
		"What was shown counts as seen, unless --json asked for it."
}

// Run prints.
func (c *Show) Run(ctx context.Context, a *console.App) error {
	if c.Limit < 1 || c.Limit > proto.MaxPage {
		return &console.Failure{Code: console.ExitUsage, Err: fmt.Errorf("--limit must be between 1 and %d", proto.MaxPage)}
	}
	if c.Scrollback && (c.Follow || c.Search != "" || c.Before != "") {
		return &console.Failure{Code: console.ExitUsage, Err: errors.New("--follow, --search and --before are about a conversation, not the scrollback")}
	}
	t, err := c.Find(ctx, a, c.Session)
	if err != nil {
		return err
	}
	defer t.Close()
	l := t.Link
	if c.Scrollback {
		return c.scrollback(ctx, a, t, l)
	}
	err = c.conversation(ctx, a, t, l)
	var refused *proto.Error
	if errors.As(err, &refused) && (refused.Code == proto.CodeNotFound || refused.Code == proto.CodeUnclear) &&
		!c.Follow && c.Search == "" && c.Before == "" {
		if t.Session.Conversation || refused.Code == proto.CodeUnclear {
			a.Note("%s; this is the scrollback", source.Plain(refused.Message, 300))
		}
		return c.scrollback(ctx, a, t, l)
	}
	if errors.As(err, &refused) {
		return refusal(refused, t)
	}
	return err
}

func (c *Show) conversation(ctx context.Context, a *console.App, t source.Target, l *source.Link) error {
	if c.Search != "" {
		return c.search(ctx, a, t, l)
	}
	var page conversation.Page
	r := proto.Page{Session: t.Session.ID, Before: c.Before, Limit: c.Limit}
	if err := l.Call(ctx, proto.OpConversation, r, &page, nil); err != nil {
		return err
	}
	if err := c.print(a, t, page.Items); err != nil {
		return err
	}
	if !a.JSON && c.Before == "" {
		if err := seen(ctx, t); err != nil {
			return err
		}
	}
	if !a.JSON && page.Before != "" && !c.Follow {
		a.Note("there is more above: --before %s", page.Before)
	}
	if !c.Follow {
		return nil
	}
	waits := backlog.New()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	failed := make(chan error, 1)
	// Ends with ctx or the follow; its error is waited for below.
	go func() {
		failed <- l.Follow(ctx, proto.Follow{Session: t.Session.ID, From: string(page.After)}, func(m json.RawMessage) {
			if err := waits.Add(m); err != nil {
				cancel(err)
			}
		})
	}()
	print := func() error {
		for _, m := range waits.Take() {
			var change conversation.Change
			if err := json.Unmarshal(m, &change); err != nil {
				return fmt.Errorf("read the conversation: %w", err)
			}
			if err := c.print(a, t, change.Items); err != nil {
				return err
			}
		}
		return nil
	}
	for {
		select {
		case <-waits.Some:
			if err := print(); err != nil {
				return err
			}
		case err := <-failed:
			if p := print(); p != nil {
				return p
			}
			if errors.Is(context.Cause(ctx), backlog.ErrFull) {
				return fmt.Errorf("follow the conversation: %w", backlog.ErrFull)
			}
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
}

// seen tells the machine that the person was shown a session as it is now. What a
// script reads, nobody has seen.
func seen(ctx context.Context, t source.Target) error {
	return t.Link.Call(ctx, proto.OpSeen, proto.On{Session: t.Session.ID}, nil, nil)
}

// search prints what holds a text, the newest first.
func (c *Show) search(ctx context.Context, a *console.App, t source.Target, l *source.Link) error {
	var found conversation.Found
	r := proto.Search{Session: t.Session.ID, Query: c.Search, Before: c.Before, Limit: c.Limit}
	if err := l.Call(ctx, proto.OpSearch, r, &found, nil); err != nil {
		return err
	}
	for _, h := range found.Hits {
		if a.JSON {
			if err := a.Emit(h); err != nil {
				return err
			}
			continue
		}
		when := ""
		if !h.Item.Time.IsZero() {
			when = h.Item.Time.Local().Format("2006-01-02 15:04:05") + "  "
		}
		a.Say("%s%s: %s", when, source.Plain(string(h.Item.Kind), 20), source.Plain(h.Snippet, 400))
	}
	if !a.JSON && found.Before != "" {
		a.Note("not everything was searched: --before %s goes on", found.Before)
	}
	return nil
}

func (c *Show) print(a *console.App, t source.Target, items []conversation.Item) error {
	for _, it := range items {
		if a.JSON {
			if err := a.Emit(it); err != nil {
				return err
			}
			continue
		}
		a.Say("%s\n", source.ItemText(t.Session.Tool, it))
	}
	return nil
}

func (c *Show) scrollback(ctx context.Context, a *console.App, t source.Target, l *source.Link) error {
	var answer struct {
		Lines []json.RawMessage `json:"lines"`
	}
	r := proto.Scrollback{Session: t.Session.ID, Lines: min(10*c.Limit, proto.MaxLines)}
	if err := l.Call(ctx, proto.OpScrollback, r, &answer, nil); err != nil {
		var refused *proto.Error
		if errors.As(err, &refused) {
			return refusal(refused, t)
		}
		return err
	}
	for _, raw := range answer.Lines {
		if a.JSON {
			if err := a.Emit(raw); err != nil {
				return err
			}
			continue
		}
		var row scrollback.Row
		if err := json.Unmarshal(raw, &row); err != nil {
			return fmt.Errorf("read the scrollback: %w", err)
		}
		a.Say("%s", conversation.Plain(row.Text()))
	}
	if !a.JSON {
		return seen(ctx, t)
	}
	return nil
}

// conversationLines are the last items of a conversation, for a screen.
func conversationLines(ctx context.Context, t source.Target, l *source.Link) ([]string, error) {
	var page conversation.Page
	if err := l.Call(ctx, proto.OpConversation, proto.Page{Session: t.Session.ID}, &page, nil); err != nil {
		return nil, err
	}
	var out []string
	for _, it := range page.Items {
		out = append(out, strings.Split(source.ItemText(t.Session.Tool, it)+"\n", "\n")...)
	}
	return out, nil
}

// scrollbackLines are the last lines of a terminal, for a screen.
func scrollbackLines(ctx context.Context, t source.Target, l *source.Link) ([]string, error) {
	var answer struct {
		Lines []scrollback.Row `json:"lines"`
	}
	if err := l.Call(ctx, proto.OpScrollback, proto.Scrollback{Session: t.Session.ID}, &answer, nil); err != nil {
		return nil, err
	}
	var out []string
	for _, row := range answer.Lines {
		out = append(out, conversation.Plain(row.Text()))
	}
	return out, nil
}
