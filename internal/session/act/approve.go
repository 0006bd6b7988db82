package act

import (
	"context"
	"fmt"
	"slices"

	"holdfast/internal/session"
	"holdfast/internal/session/proto"
	"holdfast/internal/session/screen/keys"
)

// goneLooks is in how many looks one after the other a dialog must be missing: a
// redraw may leave it out of one.
const goneLooks = 2

// Approve answers the dialog that a digest names, if that very dialog is on the
// screen now. Errors, after which nothing was pressed: *proto.Error with the
// codes no-session, dialog-changed, no-option and key-used, or what tmux said.
func (a *Actor) Approve(ctx context.Context, r proto.Approve, receipt func(proto.Stage)) (proto.Outcome, error) {
	print := a.fingerprint("approve", string(r.Session), r.Digest, r.Option, string(r.Role))
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
		switch {
		case v.Dialog == nil:
			return proto.Outcome{}, proto.Errorf(proto.CodeDialogChanged, "the dialog is gone: it was answered, or the program went on")
		case v.Dialog.Digest != r.Digest:
			return proto.Outcome{}, &proto.Error{Code: proto.CodeDialogChanged, Message: "another dialog is open now", Dialog: v.Dialog}
		}
		option, err := choose(v.Dialog, r.Option, r.Role)
		if err != nil {
			return proto.Outcome{}, err
		}
		keys, err := keys.Of(v.Tool, v.Dialog, option)
		if err != nil {
			return proto.Outcome{}, proto.Errorf(proto.CodeNoOption, "it is not known which keys choose %q: %v", option, err)
		}
		// Noted first: a process that is killed in between must not leave a digest
		// that is good for a second answer.
		a.answered(r.Session)
		if err := p.Keys(ctx, keys...); err != nil {
			return untold(err, "it is not known whether the keys were pressed: %v", err)
		}
		report(proto.Typed)
		return a.awaitAnswer(ctx, r.Session, p, v)
	})
}

// awaitAnswer waits for a dialog to go.
func (a *Actor) awaitAnswer(ctx context.Context, id session.ID, p Pane, before view) (proto.Outcome, error) {
	missing := 0
	v, gone, err := a.await(ctx, id, p, dialogWithin, func(v view) bool {
		if v.base == before.base {
			missing = 0
			return false
		}
		missing++
		// Another dialog, or the end, is no redraw.
		return v.Dead || v.Dialog != nil || missing >= goneLooks
	})
	switch {
	case err != nil:
		return unconfirmed("the keys were pressed, and then the screen could not be read: %v", err)
	case !gone:
		return unconfirmed("the keys were pressed and a dialog with the same words is still there; look at the terminal")
	case v.Dead:
		return accepted(v, "the program ended after it")
	case v.Dialog != nil:
		return accepted(v, "the dialog went, and another is open")
	}
	return accepted(v, "the dialog went")
}

// choose finds an option by its id or by its role.
func choose(d *session.Dialog, id string, role session.Role) (string, error) {
	i := slices.IndexFunc(d.Options, func(o session.Option) bool {
		return id != "" && o.ID == id || id == "" && o.Role == role
	})
	switch {
	case i >= 0:
		return d.Options[i].ID, nil
	case id != "":
		return "", &proto.Error{Code: proto.CodeNoOption, Message: fmt.Sprintf("the dialog has no option %q", id), Dialog: d}
	}
	return "", &proto.Error{Code: proto.CodeNoOption, Message: fmt.Sprintf("no option of the dialog is known to mean %q; choose one by its id", role), Dialog: d}
}

// Keys presses keys.
func (a *Actor) Keys(ctx context.Context, r proto.Keys) error {
	ctx, cancel := context.WithTimeout(ctx, actionTime)
	defer cancel()
	release, err := a.hold(ctx, r.Session)
	if err != nil {
		return err
	}
	defer release()
	p, _, err := a.ready(ctx, r.Session)
	if err != nil {
		return err
	}
	if err := p.Keys(ctx, r.Keys...); err != nil {
		return fmt.Errorf("press the keys: %w", err)
	}
	a.o.Changed(r.Session)
	return nil
}
