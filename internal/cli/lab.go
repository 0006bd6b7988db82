package cli

import (
	"context"
	"errors"
	"fmt"

	"holdfast/internal/console"
	"holdfast/internal/lab"
)

// labCommand plays failures for a person to watch.
type labCommand struct {
	Scene string `arg:"" optional:"" help:"Scene to play; without it they are listed."`
}

// Help is shown by --help.
func (*labCommand) Help() string {
	return "Relay, agent and device run in this process over loopback with an edge between them that fails. " +
		"Time runs faster than it is told, and nothing on this computer is changed."
}

// Run lists the scenes or plays one.
func (c *labCommand) Run(ctx context.Context, a *console.App) error {
	if c.Scene == "" {
		for _, s := range lab.Scenes() {
			if a.JSON {
				if err := a.Emit(s); err != nil {
					return err
				}
				continue
			}
			a.Say("%-16s%s", s.Name, s.Shows)
		}
		if !a.JSON {
			a.Say("\nholdfast lab SCENE plays one, in less than a minute.")
		}
		return nil
	}
	var failed error
	err := lab.Run(ctx, c.Scene, func(l lab.Line) {
		if a.JSON {
			failed = errors.Join(failed, a.Emit(l))
			return
		}
		a.Say("%6.1f s  %-7s %s", l.At, l.Who, l.Text)
	})
	switch {
	case errors.Is(err, lab.ErrUnknown):
		return &console.Failure{Code: console.ExitUsage, Err: fmt.Errorf("lab: %w", err), Hint: "holdfast lab lists them"}
	case err != nil:
		return err
	}
	return failed
}
