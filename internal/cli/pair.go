package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"holdfast/internal/client"
	"holdfast/internal/local"
	"holdfast/internal/pairing"
	"holdfast/internal/sshlink"
	"holdfast/internal/wire"
	"holdfast/internal/wsconn"
)

// dialer reaches machines with the flags of a command.
func (a *app) dialer(c connection) client.Dialer {
	return client.Dialer{
		Proxy: a.proxies(), InsecureHTTP: c.InsecureHTTP, Keepalive: c.Keepalive,
		// A command that a person waits for says once what went wrong, at its end.
		Log: a.logger(slog.LevelError),
	}
}

// ask puts a question to the up or agent that runs on the state directory.
func (a *app) ask(ctx context.Context, q local.Request) (local.Answer, error) {
	dir, err := a.dir()
	if err != nil {
		return local.Answer{}, err
	}
	answer, err := local.Ask(ctx, dir, q)
	if err != nil {
		return local.Answer{}, err
	}
	if answer.Error != "" {
		f := &failure{code: exitFailed, err: errors.New(answer.Error), hint: answer.Hint}
		if answer.Denied {
			f.code = exitDenied
		}
		return local.Answer{}, f
	}
	return answer, nil
}

type pairCommand struct{}

// Run asks the running up or agent for a link.
func (*pairCommand) Run(ctx context.Context, a *app) error {
	answer, err := a.ask(ctx, local.Request{Op: local.OpPair})
	if err != nil {
		return err
	}
	if a.JSON {
		return a.emit(map[string]any{"link": answer.Link, "expires": answer.Expires.UTC()})
	}
	return a.printLink(answer.Link, answer.Expires)
}

// printLink prints a pairing link for a person: as text, as a QR code, and what
// to type on another computer.
func (a *app) printLink(link string, expires time.Time) error {
	where := "on another device"
	if l, err := pairing.ParseLink(link); err == nil && onlyHere(l.Relay) {
		where = "on this computer only"
	}
	a.say("Pair %s until %s (valid %s, for one device):\n\n  %s\n", where,
		expires.Local().Format("15:04:05"), remaining(time.Until(expires)), link)
	if err := a.printQR(link); err != nil {
		return err
	}
	a.say("\nOn a computer:  %s", a.words("join", link))
	return nil
}

// onlyHere reports whether a relay's URL leads to this computer from this
// computer only.
func onlyHere(relay string) bool {
	u, err := client.ParseRelayURL(relay, true)
	return err == nil && wsconn.IsLoopback(u.Hostname())
}

// remaining says how long something is still valid.
func remaining(d time.Duration) string {
	d = d.Round(time.Second)
	if d > 2*time.Minute {
		return fmt.Sprintf("%d minutes", int(d.Round(time.Minute).Minutes()))
	}
	return fmt.Sprintf("%d seconds", int(d.Seconds()))
}

type joinCommand struct {
	connection
	As   string `name:"as" placeholder:"NAME" help:"What to call the machine here (default: its own name)."`
	Name string `name:"name" placeholder:"N" help:"What the machine is to call this computer (default: the host name)."`
	Link string `arg:"" help:"The pairing link, or - to read it from standard input."`
}

// Run pairs this computer.
func (c *joinCommand) Run(ctx context.Context, a *app) error {
	text := c.Link
	if text == "-" {
		var err error
		if text, err = readLink(a.In); err != nil {
			return err
		}
	}
	link, err := pairing.ParseLink(text)
	if err != nil {
		return &failure{code: exitUsage, err: fmt.Errorf("read the pairing link: %w", err), hint: linkHint(err)}
	}
	if link.Expired(time.Now()) {
		return explainJoin(pairing.ErrExpired)
	}
	if c.As != "" {
		if _, err := wire.ParseMachineID(c.As); err != nil {
			return &failure{code: exitUsage, err: fmt.Errorf("--as: %w", err)}
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
	dir, err := a.dir()
	if err != nil {
		return err
	}
	joined, err := client.Join(ctx, client.JoinOptions{
		Dir: dir, Dialer: a.dialer(c.connection), Link: link, Name: c.As, Device: device,
	})
	if err != nil {
		return explainJoin(err)
	}
	o, err := a.openSSH(ctx, dir, c.connection)
	if err != nil {
		return err
	}
	if err := o.Refresh(); err != nil {
		a.note("note: the installed ssh-config is not up to date: %v", err)
	}
	return c.print(a, joined)
}

func (c *joinCommand) print(a *app, j client.Joined) error {
	m := j.Machine
	service := "sshd"
	if m.Service != "" {
		service = string(m.Service)
	}
	if a.JSON {
		return a.emit(map[string]any{
			"machine": m.Name, "relay": m.Relay, "account": m.Account, "device": m.Device,
			"user": m.User, "service": service, "why": j.Why, "shell": j.Shell,
		})
	}
	a.say("Paired with %s (user %s).", m.Name, m.User)
	switch {
	case m.Service == "":
		a.say("Default service: the machine's own sshd, which lets this computer in.")
	case j.Shell:
		a.say("Default service: the SSH server built into the agent, because %s.", j.Why)
	default:
		a.say("No shell: the built-in SSH server gives none (--shell off there), and %s.", j.Why)
		return nil
	}
	a.say("\n  %-40s log in", a.words("ssh", m.Name))
	a.say("  %-40s let plain ssh, scp and git reach it as %q", a.words("ssh-config", "--install"), m.Name)
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
func explainJoin(err error) error {
	var hostKey *sshlink.HostKeyError
	var refused *sshlink.RefusedError
	again := "run holdfast pair on the machine for a new link"
	switch {
	case errors.Is(err, pairing.ErrExpired), errors.Is(err, client.ErrLinkUsed):
		return &failure{code: exitDenied, err: err}
	case errors.Is(err, client.ErrNotMachine):
		return &failure{code: exitDenied, err: err, hint: again}
	case errors.As(err, &hostKey):
		return &failure{code: exitDenied, err: err, hint: "whoever answered is not the machine that printed the link; do not trust this relay or network until you know why"}
	case errors.As(err, &refused):
		return &failure{code: exitDenied, err: err, hint: again}
	case errors.Is(err, sshlink.ErrDenied):
		return &failure{code: exitDenied, err: fmt.Errorf("%w: no link is open on the machine", err), hint: again}
	case errors.Is(err, wsconn.ErrPlainHTTP):
		return &failure{code: exitDenied, err: err, hint: "use a relay with https, or say --insecure-http if the network in between is yours"}
	}
	return err
}
