// Package sessions holds the commands that show and answer the sessions of
// machines: sessions, show, attach, reply and approve.
//
// What it prints of a session comes from a program on another computer, and is
// cleaned before a terminal gets it. What a caller will get wrong: one machine
// that is away must not hold up or spoil the others.
package sessions

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"golang.org/x/term"

	"holdfast/internal/cli/sessions/source"
	"holdfast/internal/console"
	"holdfast/internal/session"
)

// Commands are the commands of this package.
type Commands struct {
	Sessions List    `cmd:"" group:"sessions" help:"List what runs on the machines, what waits for you first."`
	Show     Show    `cmd:"" group:"sessions" help:"Print the conversation of a session, or its scrollback."`
	Attach   Attach  `cmd:"" group:"sessions" help:"Show a session in this terminal."`
	Reply    Reply   `cmd:"" group:"sessions" help:"Type a text into a session and send it."`
	Approve  Approve `cmd:"" group:"sessions" help:"Answer the dialog of a session."`
}

// List lists the sessions of machines.
type List struct {
	source.Flags
	Watch   bool   `help:"Go on, with live changes; on a terminal as a full-screen list."`
	Waiting bool   `help:"Only those that wait for you."`
	Stdio   bool   `name:"stdio" help:"Speak the sessions protocol on standard input and output, for this computer."`
	Machine string `arg:"" optional:"" help:"Machine, as holdfast machines lists it (default: all that this computer is paired with)."`
}

// Help is shown by --help.
func (*List) Help() string {
	return "Sessions that wait for you come first. A machine that cannot be reached is listed with the reason, and holds nothing up. " +
		"Where this computer is not paired with any machine, its own sessions are listed."
}

// line is one session as --json prints it.
type line struct {
	Machine string `json:"machine,omitempty"`
	session.Session
}

// gone is a session that ended, as --watch --json prints it.
type gone struct {
	Machine string     `json:"machine,omitempty"`
	Gone    session.ID `json:"gone"`
}

// Run lists the sessions once, or goes on with it.
func (c *List) Run(ctx context.Context, a *console.App) error {
	if c.Stdio {
		if c.Machine != "" || c.Watch || c.Waiting {
			return &console.Failure{Code: console.ExitUsage, Err: errors.New("--stdio speaks a protocol, and takes no machine and no other flag")}
		}
		return stdio(ctx, a)
	}
	sources, err := c.Sources(a, c.Machine)
	if err != nil {
		return err
	}
	if c.Watch {
		return c.watch(ctx, a, sources)
	}
	dir, err := a.Dir()
	if err != nil {
		return err
	}
	seen := source.OpenSeen(dir)
	all := source.Collect(ctx, sources)
	defer source.HangUp(all, nil)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var list []source.Named
	var failed error
	answered := 0
	for _, f := range all {
		if f.Err != nil {
			failed = errors.Join(failed, f.Err)
			continue
		}
		answered++
		seen.Note(f.Source, time.Now())
		for _, s := range f.Sessions {
			if !c.Waiting || s.Status.State == session.Waiting {
				list = append(list, source.Named{Machine: f.Source.Name, Session: s})
			}
		}
	}
	seen.Save()
	source.Sort(list)
	if err := c.print(a, list, all, seen); err != nil {
		return err
	}
	if answered == 0 && failed != nil {
		return failed
	}
	return nil
}

func (c *List) print(a *console.App, list []source.Named, all []source.Found, seen *source.Seen) error {
	now := time.Now()
	if a.JSON {
		for _, s := range list {
			if err := a.Emit(line{s.Machine, s.Session}); err != nil {
				return err
			}
		}
		for _, f := range all {
			if f.Err != nil {
				if err := a.Emit(seen.Away(f.Source, f.Err)); err != nil {
					return err
				}
			}
		}
		return nil
	}
	source.Table(a.Out, source.Rows(list, now))
	reachable := 0
	for _, f := range all {
		if f.Err == nil {
			reachable++
			continue
		}
		a.Say("not reached: %s", seen.Away(f.Source, f.Err).Words(now))
	}
	if len(list) == 0 && reachable > 0 {
		if c.Waiting {
			a.Note("nothing waits for you")
		} else {
			a.Note("no tmux session runs")
		}
	}
	return nil
}

// stdio joins standard input and output to this computer's side of the protocol.
func stdio(ctx context.Context, a *console.App) error {
	dir, err := a.Dir()
	if err != nil {
		return err
	}
	stream, err := source.Own(ctx, a, dir)
	if err != nil {
		return err
	}
	defer stream.Close()
	stop := context.AfterFunc(ctx, func() { stream.Close() })
	defer stop()
	// Ends with standard input, which nothing can interrupt; the process ends with
	// the other direction and does not wait for it.
	go func() {
		io.Copy(stream, a.In)
		if half, ok := stream.(interface{ CloseWrite() error }); ok {
			half.CloseWrite() // what was asked is still answered
			return
		}
		stream.Close()
	}()
	_, err = io.Copy(a.Out, stream)
	if ctx.Err() != nil || errors.Is(err, io.ErrClosedPipe) || source.Closed(err) {
		return nil
	}
	return err
}

// watch follows all sources.
func (c *List) watch(ctx context.Context, a *console.App, sources []source.Source) error {
	if !a.JSON && term.IsTerminal(int(a.Out.Fd())) && term.IsTerminal(int(a.In.Fd())) {
		return c.screen(ctx, a, sources)
	}
	dir, err := a.Dir()
	if err != nil {
		return err
	}
	seen := source.OpenSeen(dir)
	defer seen.Save()
	printed := map[string]map[session.ID]string{}
	for u := range source.Follow(ctx, sources) {
		now := time.Now()
		if u.Err != nil {
			m := seen.Away(u.Source, u.Err)
			if a.JSON {
				err = a.Emit(m)
			} else {
				a.Say("%s  not reached: %s", now.Local().Format("15:04:05"), m.Words(now))
			}
			if err != nil {
				return err
			}
			continue
		}
		seen.Note(u.Source, now)
		last := printed[u.Source.Name]
		if last == nil {
			last = map[session.ID]string{}
			printed[u.Source.Name] = last
		}
		if err := c.changes(a, u, last, now); err != nil {
			return err
		}
	}
	return nil
}

// changes prints what is new in an update.
func (c *List) changes(a *console.App, u source.Update, last map[session.ID]string, now time.Time) error {
	var list []source.Named
	there := map[session.ID]bool{}
	for _, s := range u.Sessions {
		if c.Waiting && s.Status.State != session.Waiting {
			continue
		}
		there[s.ID] = true
		key := mark(s)
		if last[s.ID] == key {
			continue
		}
		last[s.ID] = key
		list = append(list, source.Named{Machine: u.Source.Name, Session: s})
	}
	source.Sort(list)
	if a.JSON {
		for _, s := range list {
			if err := a.Emit(line{s.Machine, s.Session}); err != nil {
				return err
			}
		}
	} else {
		table := source.Rows(list, now)
		for i := range table {
			table[i] = slices.Insert(table[i], 0, now.Local().Format("15:04:05"))
		}
		source.Table(a.Out, table)
	}
	for id := range last {
		if there[id] {
			continue
		}
		delete(last, id)
		if a.JSON {
			if err := a.Emit(gone{u.Source.Name, id}); err != nil {
				return err
			}
			continue
		}
		name := string(id)
		if u.Source.Name != "" {
			name = u.Source.Name + "/" + name
		}
		word := "gone"
		if c.Waiting {
			word = "waits no more"
		}
		a.Say("%s  %s: %s", now.Local().Format("15:04:05"), name, word)
	}
	return nil
}

// mark is what must change for a session to be printed again.
func mark(s session.Session) string {
	dialog := ""
	if d := s.Status.Dialog; d != nil {
		dialog = d.Digest
	}
	return string(s.Status.State) + "\x00" + string(s.Status.Kind) + "\x00" + dialog + "\x00" + s.Status.Since.String() + "\x00" + s.Name + "\x00" + s.Tool
}
