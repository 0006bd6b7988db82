package sessions

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"golang.org/x/term"

	"holdfast/internal/cli/sessions/source"
	"holdfast/internal/console"
	"holdfast/internal/session"
	"holdfast/internal/session/proto"
)

// tries is how often a reply is sent again after its connection broke; its key
// keeps it from being typed twice.
const tries = 3

// Reply types a text into a session and sends it.
type Reply struct {
	source.Flags
	Append  bool   `help:"Type behind what stands in the input box, instead of refusing."`
	Secret  bool   `help:"The text is a password: read it from the terminal without echo, or from standard input."`
	Session string `arg:"" name:"session" help:"Session: [MACHINE/]ID or [MACHINE/]NAME."`
	Text    string `arg:"" optional:"" help:"Text; - reads it from standard input."`
}

// Help is shown by --help.
func (*Reply) Help() string {
	return "The text is typed as one paste and sent with Enter, once. The command says whether the program was seen to take it; " +
		"where it was not, it ends with 1 and says why. A dialog is answered with holdfast approve."
}

// result is what came of a reply or an approval, as --json prints it.
type result struct {
	Machine string     `json:"machine,omitempty"`
	Session session.ID `json:"session"`
	proto.Outcome
	// Code and Message say why it was refused; State is "refused" then.
	Code    proto.Code `json:"code,omitempty"`
	Message string     `json:"message,omitempty"`
}

// Run replies.
func (c *Reply) Run(ctx context.Context, a *console.App) error {
	text := c.Text
	if c.Secret && text != "" && text != "-" {
		return &console.Failure{Code: console.ExitUsage, Err: errors.New("a password does not belong on a command line"), Hint: "leave it out to be asked, or give - and pipe it in"}
	}
	t, err := c.Find(ctx, a, c.Session)
	if err != nil {
		return err
	}
	defer t.Close()
	waits := t.Session.Status
	ask := c.Secret || waits.State == session.Waiting && waits.Kind == session.Password
	secret := c.Secret
	switch {
	case text == "-":
		if text, err = readAll(a.In); err != nil {
			return err
		}
		secret = ask
	case text == "" && ask && term.IsTerminal(int(a.In.Fd())):
		fmt.Fprintf(a.Err, "Password for %s: ", t.Name())
		b, err := term.ReadPassword(int(a.In.Fd()))
		fmt.Fprintln(a.Err)
		if err != nil {
			return fmt.Errorf("read the password: %w", err)
		}
		text, secret = string(b), true
	case text == "":
		return &console.Failure{Code: console.ExitUsage, Err: errors.New("nothing to reply"), Hint: "give TEXT, or - to read it from standard input"}
	}
	r := proto.Reply{Session: t.Session.ID, Key: rand.Text(), Text: text, Append: c.Append, Secret: secret}
	return act(ctx, a, t, proto.OpReply, r)
}

// readAll reads a text from standard input, within the limit of a reply.
func readAll(in io.Reader) (string, error) {
	b, err := io.ReadAll(io.LimitReader(in, proto.MaxTextBytes+1))
	if err != nil {
		return "", fmt.Errorf("read the text: %w", err)
	}
	if len(b) > proto.MaxTextBytes {
		return "", &console.Failure{Code: console.ExitUsage, Err: fmt.Errorf("the text is longer than %d KiB", proto.MaxTextBytes>>10), Hint: "put it into a file on the machine and name that"}
	}
	return string(b), nil
}

// act makes a request that types, again on a new connection where the first one
// broke, and prints what came of it.
func act(ctx context.Context, a *console.App, t source.Target, op proto.Op, request any) error {
	var o proto.Outcome
	var err error
	for try := range tries {
		if try > 0 {
			a.Note("the connection broke; asking again what came of it")
		}
		if o, err = once(ctx, t, try > 0, op, request); err == nil {
			break
		}
		var refused *proto.Error
		if errors.As(err, &refused) || ctx.Err() != nil {
			break
		}
	}
	out := result{Machine: t.Source.Name, Session: t.Session.ID, Outcome: o}
	var refused *proto.Error
	if errors.As(err, &refused) {
		out.State, out.Code, out.Message, out.Dialog = "refused", refused.Code, refused.Message, refused.Dialog
		if a.JSON {
			if err := a.Emit(out); err != nil {
				return err
			}
		} else if refused.Dialog != nil {
			source.PrintDialog(a.Note, refused.Dialog)
		}
		return refusal(refused, t)
	}
	if err != nil {
		return err
	}
	if a.JSON {
		if err := a.Emit(out); err != nil {
			return err
		}
	}
	if o.State != proto.Accepted {
		return &console.Failure{Code: console.ExitFailed, Err: fmt.Errorf("not confirmed: %s", source.Plain(o.Reason, 1000)), Hint: "holdfast attach " + t.Name() + " shows the terminal"}
	}
	if !a.JSON {
		a.Say("accepted: %s", source.Plain(o.Evidence, 1000))
		if o.Dialog != nil {
			a.Say("\nit asks:")
			source.PrintDialog(a.Say, o.Dialog)
		}
	}
	return nil
}

func once(ctx context.Context, t source.Target, again bool, op proto.Op, request any) (proto.Outcome, error) {
	l := t.Link
	if again {
		var err error
		if l, err = t.Source.Open(ctx, false); err != nil {
			return proto.Outcome{}, err
		}
		defer l.Close()
	}
	var o proto.Outcome
	if err := l.Call(ctx, op, request, &o, nil); err != nil {
		if l.Err() != nil && l.Why() != nil {
			err = l.Why()
		}
		return proto.Outcome{}, err
	}
	return o, nil
}

// refusal says what to do about a refused request.
func refusal(e *proto.Error, t source.Target) error {
	f := &console.Failure{Code: console.ExitFailed, Err: fmt.Errorf("refused: %s", source.Plain(e.Message, 1000))}
	switch e.Code {
	case proto.CodeDialogOpen:
		f.Hint = "holdfast approve " + t.Name() + " answers it"
	case proto.CodeDialogChanged:
		f.Hint = "look again: holdfast approve " + t.Name()
	case proto.CodeComposer:
		f.Err = fmt.Errorf("refused: %s: %q", source.Plain(e.Message, 1000), source.Plain(e.Text, 400))
		f.Hint = "--append types behind it; holdfast attach " + t.Name() + " shows the terminal"
	case proto.CodePassword:
		f.Hint = "holdfast reply --secret " + t.Name() + " asks for it without echo"
	case proto.CodeNoOption:
		f.Hint = "--option ID chooses one of those shown"
	case proto.CodeUnknownOp:
		f.Hint = "update holdfast on the machine"
	case proto.CodeNoComposer, proto.CodeUnclear:
		f.Hint = "holdfast attach " + t.Name() + " shows the terminal"
	}
	return f
}

// Approve answers the dialog of a session.
type Approve struct {
	source.Flags
	Dialog  string `name:"dialog" placeholder:"DIGEST" help:"Digest of the dialog to answer, as holdfast sessions --json prints it."`
	Option  string `name:"option" placeholder:"ID" help:"Choose this option instead of the one that approves."`
	Deny    bool   `name:"deny" help:"Choose the option that denies."`
	Session string `arg:"" name:"session" help:"Session: [MACHINE/]ID or [MACHINE/]NAME."`
}

// Help is shown by --help.
func (*Approve) Help() string {
	return "Without --dialog the dialog is shown and asked about on a terminal; elsewhere that is refused, since nobody would have read it. " +
		"A dialog that is not the one named, or no longer there, is not answered."
}

// Run answers the dialog.
func (c *Approve) Run(ctx context.Context, a *console.App) error {
	if c.Deny && c.Option != "" {
		return &console.Failure{Code: console.ExitUsage, Err: errors.New("--deny and --option exclude one another")}
	}
	asks := term.IsTerminal(int(a.In.Fd())) && term.IsTerminal(int(a.Err.Fd()))
	if c.Dialog == "" && !asks {
		return &console.Failure{Code: console.ExitUsage, Err: errors.New("an approval without --dialog needs a terminal, on which the dialog is read"), Hint: "holdfast sessions --json prints each dialog with its digest; give that as --dialog DIGEST"}
	}
	t, err := c.Find(ctx, a, c.Session)
	if err != nil {
		return err
	}
	defer t.Close()
	r := proto.Approve{Session: t.Session.ID, Digest: c.Dialog, Option: c.Option, Key: rand.Text()}
	if c.Dialog == "" {
		d := t.Session.Status.Dialog
		if d == nil {
			return &console.Failure{Code: console.ExitFailed, Err: fmt.Errorf("no dialog is open in %s: it is %s", t.Name(), source.StateWords(t.Session.Status)), Hint: "holdfast show " + t.Name() + " shows the conversation"}
		}
		r.Digest = d.Digest
		if err := c.ask(a, t, d, &r); err != nil {
			return err
		}
	}
	if r.Option == "" {
		r.Role = session.Approve
		if c.Deny {
			r.Role = session.Deny
		}
	}
	return act(ctx, a, t, proto.OpApprove, r)
}

// ask shows a dialog and lets the person choose.
func (c *Approve) ask(a *console.App, t source.Target, d *session.Dialog, r *proto.Approve) error {
	say := func(format string, args ...any) { fmt.Fprintf(a.Err, format+"\n", args...) }
	say("%s  (%s, %s)\n", t.Name(), source.Plain(t.Session.Tool, 40), source.Evidence(t.Session.Status, time.Now()))
	source.PrintDialog(say, d)
	if c.Deny || c.Option != "" {
		fmt.Fprint(a.Err, "\nSend this answer? [y/N] ")
		switch strings.ToLower(readLine(a.In)) {
		case "y", "yes":
			return nil
		}
		return &console.Failure{Code: console.ExitFailed, Err: errors.New("nothing was sent")}
	}
	fmt.Fprint(a.Err, "\nOption (empty sends nothing): ")
	answer := readLine(a.In)
	for _, o := range d.Options {
		if o.ID == answer {
			r.Option = answer
			return nil
		}
	}
	if answer == "" {
		return &console.Failure{Code: console.ExitFailed, Err: errors.New("nothing was sent")}
	}
	return &console.Failure{Code: console.ExitFailed, Err: fmt.Errorf("the dialog has no option %q; nothing was sent", answer)}
}

// readLine is a line that a person typed; its end may be the end of input.
func readLine(in io.Reader) string {
	s, _ := bufio.NewReader(io.LimitReader(in, 4096)).ReadString('\n')
	return strings.TrimSpace(s)
}
