// Package reach holds the commands of a person who reaches machines: pair and
// join, ssh and proxy, machines and devices.
//
// What it knows of relays and OpenSSH is package client's; here are flags, words
// and exit codes. What a caller will get wrong: ssh replaces the process, so
// nothing after it runs, a deferred function included.
package reach

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"holdfast/internal/client"
	"holdfast/internal/console"
	"holdfast/internal/local"
	"holdfast/internal/pairing"
	"holdfast/internal/sshlink"
	"holdfast/internal/wire"
)

// Pair prints a new pairing link for this machine.
type Pair struct{}

// Run asks the running up or agent for a link.
func (*Pair) Run(ctx context.Context, a *console.App) error {
	answer, err := a.Ask(ctx, local.Request{Op: local.OpPair})
	if err != nil {
		return err
	}
	if a.JSON {
		return a.Emit(map[string]any{"link": answer.Link, "expires": answer.Expires.UTC()})
	}
	return a.PrintLink(answer.Link, answer.Expires)
}

// Join pairs this computer with a machine.
type Join struct {
	console.Connection
	As   string `name:"as" placeholder:"NAME" help:"What to call the machine here (default: its own name)."`
	Name string `name:"name" placeholder:"N" help:"What the machine is to call this computer (default: the host name)."`
	Link string `arg:"" help:"The pairing link, or - to read it from standard input."`
}

// Run pairs this computer.
func (c *Join) Run(ctx context.Context, a *console.App) error {
	text := c.Link
	if text == "-" {
		var err error
		if text, err = readLink(a.In); err != nil {
			return err
		}
	}
	link, err := pairing.ParseLink(text)
	if err != nil {
		return &console.Failure{Code: console.ExitUsage, Err: fmt.Errorf("read the pairing link: %w", err), Hint: linkHint(err)}
	}
	if c.As != "" {
		if _, err := wire.ParseMachineID(c.As); err != nil {
			return &console.Failure{Code: console.ExitUsage, Err: fmt.Errorf("--as: %w", err)}
		}
	}
	device := c.Name
	if device == "" {
		// A name that cannot be found out is no reason not to pair.
		device, _ = os.Hostname()
	}
	if device = wire.CleanText(device, wire.MaxNameBytes); device == "" {
		device = "computer"
	}
	dir, err := a.Dir()
	if err != nil {
		return err
	}
	joined, err := client.Join(ctx, client.JoinOptions{
		Dir: dir, Dialer: a.Dialer(c.Connection), Link: link, Name: c.As, Device: device,
	})
	if err != nil {
		return explainJoin(err, link)
	}
	o, err := OpenSSH(ctx, a, dir, c.Connection)
	if err != nil {
		return err
	}
	if err := o.Refresh(); err != nil {
		a.Note("note: the installed ssh-config is not up to date: %v", err)
	}
	return c.print(a, joined)
}

func (c *Join) print(a *console.App, j client.Joined) error {
	m := j.Machine
	service := "sshd"
	if m.Service != "" {
		service = string(m.Service)
	}
	if a.JSON {
		return a.Emit(map[string]any{
			"machine": m.Name, "relay": m.Relay, "account": m.Account, "device": m.Device,
			"user": m.User, "service": service, "why": j.Why, "shell": j.Shell,
		})
	}
	a.Say("Paired with %s (user %s).", m.Name, m.User)
	switch {
	case m.Service == "":
		a.Say("Default service: the machine's own sshd, which lets this computer in.")
	case j.Shell:
		a.Say("Default service: the SSH server built into the agent, because %s.", j.Why)
	default:
		a.Say("No shell: the built-in SSH server gives none (--shell off there), and %s.", j.Why)
		return nil
	}
	a.Say("\nTo log in:  %s", a.Words("ssh", m.Name))
	a.Say("To let plain ssh, scp and git reach it as %q:  %s", m.Name, a.Words("ssh-config", "--install"))
	return nil
}

// maxLinkText bounds what is read as a link: a link has at most 1 KiB, and a
// narrow terminal adds line breaks.
const maxLinkText = 4 << 10

// readLink reads a link that a person types, pipes or pastes: up to an empty
// line or the end.
func readLink(r io.Reader) (string, error) {
	scan := bufio.NewScanner(io.LimitReader(r, maxLinkText))
	var b strings.Builder
	for scan.Scan() {
		line := strings.TrimSpace(scan.Text())
		if line == "" && b.Len() > 0 {
			break
		}
		b.WriteString(line)
		// A whole link on one line needs no end of input.
		if _, err := pairing.ParseLink(b.String()); err == nil {
			break
		}
	}
	if err := scan.Err(); err != nil {
		return "", fmt.Errorf("read the pairing link: %w", err)
	}
	return b.String(), nil
}

func linkHint(err error) string {
	if errors.Is(err, pairing.ErrVersion) {
		return ""
	}
	return "a link is https://RELAY/#hf1.… as holdfast up or holdfast pair prints it; quote it for the shell"
}

// explainJoin adds exit codes and hints to the errors of client.Join.
func explainJoin(err error, link pairing.Link) error {
	var hostKey *sshlink.HostKeyError
	var refused *sshlink.RefusedError
	again := "run holdfast pair on the machine for a new link"
	switch {
	case errors.Is(err, pairing.ErrExpired), errors.Is(err, client.ErrLinkUsed):
		return &console.Failure{Code: console.ExitDenied, Err: err}
	case errors.Is(err, client.ErrNotMachine):
		return &console.Failure{Code: console.ExitDenied, Err: err, Hint: again}
	case errors.As(err, &hostKey):
		return &console.Failure{Code: console.ExitDenied, Err: err, Hint: "whoever answered is not the machine that printed the link; do not trust this relay or network until you know why"}
	case errors.As(err, &refused):
		return &console.Failure{Code: console.ExitDenied, Err: err, Hint: again}
	case errors.Is(err, sshlink.ErrDenied):
		return &console.Failure{Code: console.ExitDenied, Err: fmt.Errorf("%w: no link is open on the machine", err), Hint: again}
	}
	f := console.Explain(err)
	if f.Code == console.ExitUnreachable && console.OnlyHere(link.Relay) {
		f.Hint = "this link is for the computer that printed it; for others the machine needs a relay that they can reach"
	}
	return f
}
