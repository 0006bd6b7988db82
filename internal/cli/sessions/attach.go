package sessions

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/term"

	"holdfast/internal/cli/reach"
	"holdfast/internal/cli/sessions/source"
	"holdfast/internal/client"
	"holdfast/internal/console"
	"holdfast/internal/session/proto"
	"holdfast/internal/state"
	"holdfast/internal/wire"
)

// Attach shows a session in this terminal.
type Attach struct {
	source.Flags
	Fit     bool   `help:"Let the size of this terminal count, also for others who look at the session."`
	Session string `arg:"" name:"session" help:"Session: [MACHINE/]ID or [MACHINE/]NAME."`
}

// Help is shown by --help.
func (*Attach) Help() string {
	return "Attaches to the session with the machine's tmux, through OpenSSH. Others who look at it keep their size, unless --fit. " +
		"tmux's own key for detaching (C-b d) comes back here."
}

// Run replaces this process with ssh, or with tmux on this computer.
func (c *Attach) Run(ctx context.Context, a *console.App) error {
	if !term.IsTerminal(int(a.In.Fd())) || !term.IsTerminal(int(a.Out.Fd())) {
		return &console.Failure{Code: console.ExitUsage, Err: errors.New("a session is shown in a terminal, and this is none"), Hint: "holdfast show prints what is in it"}
	}
	dir, err := a.Dir()
	if err != nil {
		return err
	}
	t, err := c.Find(ctx, a, c.Session)
	if err != nil {
		return err
	}
	args, err := attachCommand(ctx, a, c.Connection, dir, t, c.Fit)
	t.Close() // before this process becomes another
	if err != nil {
		return err
	}
	path, err := exec.LookPath(args[0])
	if err != nil {
		return &console.Failure{Code: console.ExitFailed, Err: fmt.Errorf("%s is not on the PATH", args[0]), Hint: "install it"}
	}
	env := a.Environ
	if t.Source.Machine == nil {
		env = withoutTmux(env)
	}
	if err := syscall.Exec(path, args, env); err != nil {
		return fmt.Errorf("start %s: %w", path, err)
	}
	return nil
}

// attachCommand is what shows a session in this terminal.
func attachCommand(ctx context.Context, a *console.App, conn console.Connection, dir state.Dir, t source.Target, fit bool) ([]string, error) {
	var at proto.Attach
	if err := t.Link.Call(ctx, proto.OpAttach, proto.On{Session: t.Session.ID}, &at, nil); err != nil {
		var refused *proto.Error
		if errors.As(err, &refused) {
			return nil, refusal(refused, t)
		}
		return nil, err
	}
	args := at.Args
	if fit {
		args = at.Fit
	}
	if len(args) == 0 {
		return nil, errors.New("the machine did not say how to attach")
	}
	m := t.Source.Machine
	if m == nil {
		return args, nil
	}
	words := make([]string, len(args))
	for i, w := range args {
		if strings.ContainsAny(w, "\x00\n\r") {
			return nil, errors.New("the machine's words for attaching cannot be used")
		}
		words[i] = client.ShellQuote(w)
	}
	o, err := reach.OpenSSH(ctx, a, dir, conn)
	if err != nil {
		return nil, err
	}
	service := m.Service
	if service == "" && len(m.SSHDKeys) == 0 {
		service = wire.ServiceSSH
	}
	return o.Args(*m, service, []string{"-t"}, []string{"exec " + strings.Join(words, " ")})
}

// withoutTmux is an environment in which tmux does not think of being nested.
func withoutTmux(env []string) []string {
	var out []string
	for _, v := range env {
		if !strings.HasPrefix(v, "TMUX=") && !strings.HasPrefix(v, "TMUX_PANE=") {
			out = append(out, v)
		}
	}
	return out
}
