package act

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"holdfast/internal/session"
	"holdfast/internal/session/proto"
	"holdfast/internal/session/screen"
)

// Reply types a text and sends it with Enter. Errors, after which nothing was
// typed: *proto.Error with the codes no-session, dialog-open, composer,
// no-composer, password, not-password, key-used and syntax, or what tmux said.
func (a *Actor) Reply(ctx context.Context, r proto.Reply, receipt func(proto.Stage)) (proto.Outcome, error) {
	text := Clean(r.Text)
	if r.Secret {
		text = cleanSecret(r.Text)
	}
	if text == "" && !r.Secret {
		return proto.Outcome{}, proto.Errorf(proto.CodeSyntax, "the text is empty; the key Enter has a request of its own")
	}
	told := text
	if r.Secret {
		told = "" // the digest is kept on disk, where a password could be guessed from it
	}
	print := a.fingerprint("reply", string(r.Session), told, fmt.Sprint(r.Append, r.Secret, r.Draft))
	return a.once(ctx, r.Key, print, receipt, func(ctx context.Context, report func(proto.Stage)) (proto.Outcome, error) {
		release, err := a.hold(ctx, r.Session)
		if err != nil {
			return proto.Outcome{}, err
		}
		defer release()
		defer a.o.Changed(r.Session)
		p, v, err := a.ready(ctx, r.Session)
		if err != nil {
			return proto.Outcome{}, err
		}
		if boxed[v.Tool] && v.Composer == nil && v.Dialog == nil {
			// It may be drawing just now.
			if v, _, err = a.await(ctx, r.Session, p, drawnWithin, func(v view) bool { return v.Composer != nil || v.Dialog != nil || v.Dead }); err != nil {
				return proto.Outcome{}, fmt.Errorf("read the session's screen: %w", err)
			}
		}
		t := &typing{a: a, id: r.Session, p: p, before: v, report: report}
		if err := t.check(r); err != nil {
			return proto.Outcome{}, err
		}
		if r.Secret {
			return t.secret(ctx, text)
		}
		return t.text(ctx, text, r.Draft)
	})
}

// typing is one text on its way into a pane.
type typing struct {
	a      *Actor
	id     session.ID
	p      Pane
	before view
	report func(proto.Stage)
}

// check refuses what would do another thing than the person means.
func (t *typing) check(r proto.Reply) error {
	v := t.before
	switch {
	case v.secret() && !r.Secret:
		return proto.Errorf(proto.CodePassword, "the program asks for a password; send it as a secret")
	case !v.secret() && r.Secret:
		return proto.Errorf(proto.CodeNotPassword, "nothing asks for a password now, so it was not typed")
	case r.Secret:
		return nil
	case v.Dialog != nil && fullScreen[v.Tool]:
		return &proto.Error{Code: proto.CodeDialogOpen, Message: "a dialog is open, which the text would answer by accident", Dialog: v.Dialog}
	case v.Composer == nil && boxed[v.Tool]:
		return proto.Errorf(proto.CodeNoComposer, "no input box is on the screen; look at the terminal")
	case v.Composer != nil && v.Composer.Text != "" && !r.Append:
		return &proto.Error{Code: proto.CodeComposer, Message: "something stands in the input box already", Text: v.Composer.Text}
	}
	return nil
}

func unconfirmed(format string, args ...any) (proto.Outcome, error) {
	return proto.Outcome{State: proto.Unconfirmed, Reason: fmt.Sprintf(format, args...)}, nil
}

// untold is the outcome of typing that failed: only a refusal says that nothing
// arrived. A server that gave no answer in time may still do what it was told.
func untold(err error, format string, args ...any) (proto.Outcome, error) {
	var refused *proto.Error
	if errors.As(err, &refused) {
		return proto.Outcome{}, err
	}
	return unconfirmed(format, args...)
}

func accepted(v view, evidence string) (proto.Outcome, error) {
	return proto.Outcome{State: proto.Accepted, Evidence: evidence, Dialog: v.Dialog}, nil
}

// blocked reports whether a dialog has come up that was not there before, and
// that a key would answer.
func (t *typing) blocked(v view) bool {
	return v.Dialog != nil && fullScreen[v.Tool] && v.base != t.before.base
}

// text pastes, looks whether that shows, presses Enter and looks what comes of
// it.
func (t *typing) text(ctx context.Context, text string, draft bool) (proto.Outcome, error) {
	if err := t.p.Paste(ctx, []byte(text)); err != nil {
		return untold(err, "it is not known whether the text was pasted (%v); Enter was not pressed", err)
	}
	boxed := t.before.Composer != nil
	typed, shown, err := t.a.await(ctx, t.id, t.p, typedWithin, func(v view) bool {
		switch {
		case v.Dead || t.blocked(v):
			return true
		case boxed:
			return v.Composer != nil && v.Composer.Text != t.before.Composer.Text
		}
		return !slices.Equal(v.Screen.Lines, t.before.Screen.Lines)
	})
	switch {
	case err != nil:
		return unconfirmed("the text was pasted, and then the screen could not be read (%v); Enter was not pressed", err)
	case typed.Dead:
		return unconfirmed("the program ended while the text was being typed")
	case t.blocked(typed):
		o, _ := unconfirmed("a dialog came up while the text was being typed, so Enter was not pressed")
		o.Dialog = typed.Dialog
		return o, nil
	case boxed && !shown:
		return unconfirmed("the text was pasted and did not show up in the input box; Enter was not pressed")
	}
	t.report(proto.Typed)
	if draft {
		return accepted(typed, "the text stands in the input box")
	}
	if err := sleep(ctx, settleTime); err != nil {
		return unconfirmed("the text was typed, and time ran out before Enter was pressed")
	}
	// The last look before Enter, which would answer a dialog.
	if typed, err = t.a.look(ctx, t.id, t.p); err != nil {
		return unconfirmed("the text was typed, and then the screen could not be read (%v); Enter was not pressed", err)
	}
	if t.blocked(typed) {
		o, _ := unconfirmed("a dialog came up, so Enter was not pressed; the text may stand in the input box")
		o.Dialog = typed.Dialog
		return o, nil
	}
	pressed := time.Now()
	if err := t.p.Keys(ctx, "Enter"); err != nil {
		return unconfirmed("the text was typed, and Enter could not be pressed: %v", err)
	}
	return t.confirm(ctx, typed, pressed)
}

// confirm looks for evidence that the program took the text.
func (t *typing) confirm(ctx context.Context, typed view, pressed time.Time) (proto.Outcome, error) {
	evidence := ""
	v, ok, err := t.a.await(ctx, t.id, t.p, acceptedWithin, func(v view) bool {
		evidence = t.evidence(typed, v, pressed)
		return evidence != ""
	})
	switch {
	case ok:
		return accepted(v, evidence)
	case err != nil:
		return unconfirmed("Enter was pressed, and then the screen could not be read: %v", err)
	case v.Composer != nil && v.Composer.Text != "":
		return unconfirmed("the text still stands in the input box after Enter; look at the terminal")
	}
	return unconfirmed("Enter was pressed and the program has shown no reaction within %d s", int(acceptedWithin.Seconds()))
}

// evidence is what shows that the text was taken, or empty.
func (t *typing) evidence(typed, v view, pressed time.Time) string {
	if t.before.Composer != nil {
		switch {
		case v.Composer != nil && v.Composer.Text == "":
			return "the input box emptied"
		case t.blocked(v):
			return "the program went on and asks something"
		case v.Composer == nil && v.State == session.Working:
			return "the program works on it"
		}
	} else {
		switch {
		case v.Dead:
			return "the program ended after it"
		case v.PID != typed.PID && v.PID != 0:
			return "another program runs after it"
		case t.before.Dialog != nil && v.base != t.before.base && reacted(typed.Screen, v.Screen):
			return "the question went"
		case t.before.Dialog == nil && !fullScreen[v.Tool] && reacted(typed.Screen, v.Screen):
			return "the program printed something after it"
		}
	}
	s, ok := t.a.o.Session(t.id)
	if !ok || s.Status.State != session.Working || len(s.Status.Evidence) == 0 {
		return ""
	}
	// Only what says it by itself and after Enter: the screen was looked at above.
	switch e := s.Status.Evidence[0]; e.Source {
	case session.FromRegistry, session.FromHook, session.FromTranscript, session.FromOSC:
		if e.At.After(pressed) {
			return "the program says that it works: " + string(e.Source)
		}
	}
	return ""
}

// reacted reports whether a screen shows more than the cursor in the next line,
// which the terminal does by itself when Enter is pressed.
func reacted(before, after screen.Screen) bool {
	was, is := trimmed(before.Lines), trimmed(after.Lines)
	for shift := 0; shift <= 2 && shift <= len(was); shift++ {
		if slices.Equal(was[shift:], is) {
			return false
		}
	}
	return true
}

// trimmed are lines without the empty ones at the end.
func trimmed(lines []string) []string {
	for len(lines) > 0 && lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}

// secret types a password as keys: nothing shows it, so nothing but the prompt
// can tell what came of it.
func (t *typing) secret(ctx context.Context, text string) (proto.Outcome, error) {
	if text != "" {
		if err := t.p.Type(ctx, []byte(text)); err != nil {
			// The error of a tool may hold its arguments.
			return untold(err, "it is not known whether the password was typed; Enter was not pressed")
		}
	}
	typed, err := t.a.look(ctx, t.id, t.p)
	if err == nil && !typed.secret() {
		return unconfirmed("the prompt went away while the password was being typed; Enter was not pressed. What was typed may show on the screen")
	}
	t.report(proto.Typed)
	if err := t.p.Keys(ctx, "Enter"); err != nil {
		return unconfirmed("the password was typed, and Enter could not be pressed")
	}
	again := false
	v, ok, err := t.a.await(ctx, t.id, t.p, acceptedWithin, func(v view) bool {
		again = v.secret() && reacted(t.before.Screen, v.Screen)
		return v.Dead || !v.secret() || again
	})
	switch {
	case err != nil:
		return unconfirmed("the password was typed, and then the screen could not be read")
	case again:
		return accepted(v, "the program took it and asks again: it may have been wrong")
	case ok:
		return accepted(v, "the prompt went")
	}
	return unconfirmed("the program still asks for the password")
}
