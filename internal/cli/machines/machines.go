// Package machines holds the command that lists machines and whether a device
// could get in, once or for as long as somebody looks.
//
// It never says that a machine is online: it says when that was proven last, and
// when what it shows is stale. What a caller will get wrong: without --watch each
// relay is asked once, and one that fails is an error beside the others' answers;
// with it a failure is shown and tried again.
package machines

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"holdfast/internal/client"
	"holdfast/internal/console"
	"holdfast/internal/local"
	"holdfast/internal/state"
	"holdfast/internal/wire"
)

// watchInterval is how often --watch asks on a machine itself, where there is no
// device's token to follow the account with: the relay proves a machine at most
// once in 30 s, so asking more often would only show the age grow.
const watchInterval = 10 * time.Second

// Machines lists machines and whether a device could get in.
type Machines struct {
	console.Connection
	Watch bool `help:"Go on: keep the table up to date on a terminal, else print a line whenever something changes."`
	Ack   bool `help:"With --watch: mark the relay's notices read once they are shown."`
}

// machineLine is one machine as --json prints it.
type machineLine struct {
	Name   string `json:"name"` // what this computer calls it; its own name where not paired
	Relay  string `json:"relay"`
	Paired bool   `json:"paired"`
	Here   bool   `json:"here,omitempty"`  // it is this computer's own agent that says so
	Error  string `json:"error,omitempty"` // its relay could not be asked
	wire.MachineInfo
	ahead time.Duration // of the relay's clock, as far as it is known
}

// words is the state for a person.
func (l machineLine) words(now time.Time) string {
	if l.Error != "" {
		return "unknown: " + l.Error
	}
	s := console.StateWords(l.MachineInfo, now.Add(l.ahead))
	if !l.Paired && !l.Here {
		s += "  (pair: run holdfast pair there, holdfast join LINK here)"
	}
	return s
}

// Run lists the machines once, or goes on with it.
func (c *Machines) Run(ctx context.Context, a *console.App) error {
	if c.Ack && !c.Watch {
		return &console.Failure{Code: console.ExitUsage, Err: errors.New("--ack goes with --watch")}
	}
	if c.Watch {
		accounts, err := c.accounts(a)
		switch {
		case err != nil:
			return err
		case len(accounts) > 0:
			return c.follow(ctx, a, accounts)
		}
	}
	lines, failed, err := c.collect(ctx, a)
	if err != nil {
		return err
	}
	if err := c.printAll(a, lines); err != nil {
		return err
	}
	if !c.Watch {
		return failed
	}
	last := map[string]string{}
	changed(last, lines)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(watchInterval):
		}
		lines, _, err := c.collect(ctx, a)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if err := c.printAll(a, changed(last, lines)); err != nil {
			return err
		}
	}
}

// changed gives the lines whose state is not the one in last, and notes them
// there.
func changed(last map[string]string, lines []machineLine) (out []machineLine) {
	for _, l := range lines {
		key, now := l.Relay+" "+l.Name, string(l.State)+" "+l.Reason+" "+l.Error
		if last[key] != now {
			out = append(out, l)
		}
		last[key] = now
	}
	return out
}

func (c *Machines) printAll(a *console.App, lines []machineLine) error {
	now := time.Now()
	var rows [][]string
	for _, l := range lines {
		if a.JSON {
			if err := a.Emit(l); err != nil {
				return err
			}
			continue
		}
		row := []string{l.Name, l.words(now)}
		if c.Watch {
			row = append([]string{now.Local().Format("15:04:05")}, row...)
		}
		rows = append(rows, row)
	}
	console.Table(a.Out, rows)
	return nil
}

// relayAccount is one account at one relay.
type relayAccount struct{ relay, account string }

// accounts are those that this computer is paired with, with the machines of
// each.
func (c *Machines) accounts(a *console.App) (map[relayAccount][]client.Machine, error) {
	dir, err := a.Dir()
	if err != nil {
		return nil, err
	}
	paired, err := client.NewStore(dir).All()
	if err != nil {
		return nil, err
	}
	byRelay := map[relayAccount][]client.Machine{}
	for _, m := range paired {
		k := relayAccount{m.Relay, m.Account}
		byRelay[k] = append(byRelay[k], m)
	}
	return byRelay, nil
}

// collect asks every relay that this computer is paired through, and, on a
// machine itself, the one that its agent is on. failed is a relay's failure,
// beside which the others' answers are still good.
func (c *Machines) collect(ctx context.Context, a *console.App) (lines []machineLine, failed, err error) {
	byRelay, err := c.accounts(a)
	if err != nil {
		return nil, nil, err
	}
	if len(byRelay) == 0 {
		answer, err := a.Ask(ctx, local.Request{Op: local.OpMachines})
		if errors.Is(err, state.ErrNotRunning) {
			return nil, nil, &console.Failure{Code: console.ExitFailed, Err: errors.New("this computer is not paired with any machine"), Hint: "run holdfast up on a machine, and holdfast join LINK here with the link that it prints"}
		}
		if err != nil {
			return nil, nil, err
		}
		if answer.Machines != nil {
			for _, info := range answer.Machines.Machines {
				lines = append(lines, machineLine{Name: string(info.Machine), Relay: answer.Relay, Here: true, MachineInfo: info})
			}
		}
		return lines, nil, nil
	}
	dialer := a.Dialer(c.Connection)
	for key, known := range byRelay {
		got, err := askMachines(ctx, dialer, known)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("ask relay %s: %w", key.relay, err))
		}
		lines = append(lines, merge(key.relay, known, got, err)...)
	}
	slices.SortFunc(lines, func(x, y machineLine) int {
		return strings.Compare(x.Name+" "+x.Relay, y.Name+" "+y.Relay)
	})
	return lines, failed, nil
}

// askMachines asks with each of the account's tokens until one is taken: those
// of machines that were paired at different times end at different times.
func askMachines(ctx context.Context, d client.Dialer, known []client.Machine) (got []wire.MachineInfo, err error) {
	for _, m := range known {
		var target client.Target
		if target, err = m.Target(""); err != nil {
			continue
		}
		var api *client.API
		if api, err = d.API(target); err != nil {
			return nil, err
		}
		var answer wire.Machines
		answer, err = api.Machines(ctx)
		api.Close()
		if err == nil {
			return answer.Machines, nil
		}
		var refused *client.RelayError
		if !errors.As(err, &refused) || !refused.Denied() {
			return nil, err
		}
	}
	return nil, err
}

// merge puts what this computer knows beside what the relay said.
func merge(relay string, known []client.Machine, got []wire.MachineInfo, failed error) []machineLine {
	var lines []machineLine
	for _, m := range known {
		l := machineLine{Name: m.Name, Relay: relay, Paired: true}
		i := slices.IndexFunc(got, func(info wire.MachineInfo) bool { return info.Machine == m.Machine })
		switch {
		case i >= 0:
			l.MachineInfo = got[i]
		case failed != nil:
			l.Machine, l.Error = m.Machine, "its relay does not answer"
			var refused *client.RelayError
			if errors.As(failed, &refused) && refused.Denied() {
				l.Error = "this computer's token is not valid any more"
			}
		default:
			l.Machine, l.Error = m.Machine, "its relay does not know it any more"
		}
		lines = append(lines, l)
	}
	for _, info := range got {
		if !slices.ContainsFunc(known, func(m client.Machine) bool { return m.Machine == info.Machine }) {
			lines = append(lines, machineLine{Name: string(info.Machine), Relay: relay, MachineInfo: info})
		}
	}
	return lines
}
