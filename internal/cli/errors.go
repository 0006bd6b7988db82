package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"holdfast/internal/client"
	"holdfast/internal/state"
	"holdfast/internal/wire"
)

// Exit codes.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitUnreachable = 3
	exitDenied      = 4
)

// failure is an error with what to do about it and the exit code.
type failure struct {
	code int
	err  error
	hint string
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// exitStatus is the exit code of a program that has said all itself.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// report prints an error and gives its exit code.
func report(w io.Writer, err error) int {
	if err == nil {
		return exitOK
	}
	var status exitStatus
	if errors.As(err, &status) {
		return int(status)
	}
	f := explain(err)
	fmt.Fprintf(w, "holdfast: error: %s\n", oneLine(f.err.Error()))
	if f.hint != "" {
		fmt.Fprintf(w, "holdfast: hint: %s\n", f.hint)
	}
	return f.code
}

// oneLine keeps an error on its line, whatever library wrote it.
func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

// explain adds hint and exit code to an error that has none yet.
func explain(err error) *failure {
	var f *failure
	if errors.As(err, &f) {
		// Keep what was wrapped around it.
		return &failure{code: f.code, err: err, hint: f.hint}
	}
	var relay *client.RelayError
	var hop *client.Failure
	switch {
	case errors.As(err, &hop):
		code := exitUnreachable
		if hop.Denied {
			code = exitDenied
		}
		return &failure{code: code, err: err}
	case errors.As(err, &relay):
		return explainRelay(relay, err)
	case unreachable(err):
		return &failure{code: exitUnreachable, err: err, hint: "check this computer's network and the relay's address"}
	case errors.Is(err, context.Canceled):
		return &failure{code: exitFailed, err: errors.New("interrupted")}
	case errors.Is(err, state.ErrLocked):
		return &failure{code: exitFailed, err: err, hint: "stop it first, or give this one its own --state DIR"}
	case errors.Is(err, state.ErrNotRunning):
		return &failure{code: exitFailed, err: err, hint: "start `holdfast up` or `holdfast agent` there, or give its --state DIR"}
	case errors.Is(err, client.ErrUnknownMachine):
		return &failure{code: exitFailed, err: err, hint: "holdfast machines lists the machines; pair with `holdfast pair` there and `holdfast join LINK` here"}
	case errors.Is(err, client.ErrNameTaken):
		return &failure{code: exitFailed, err: err, hint: "choose another name for the new machine with --as NAME"}
	case errors.Is(err, client.ErrUnquotable):
		return &failure{code: exitFailed, err: err, hint: "give a --state DIR without such characters"}
	case errors.Is(err, client.ErrNoHostKey):
		return &failure{code: exitDenied, err: err, hint: "pair again once that service runs, or use another with --service"}
	}
	return &failure{code: exitFailed, err: err}
}

// unreachable reports whether err is a network's: a request that found nobody.
func unreachable(err error) bool {
	var op *net.OpError
	var dns *net.DNSError
	return errors.As(err, &op) || errors.As(err, &dns) || errors.Is(err, context.DeadlineExceeded)
}

// explainRelay says what a relay's refusal asks for.
func explainRelay(e *client.RelayError, err error) *failure {
	f := &failure{code: exitUnreachable, err: err}
	switch {
	case e.Refusal == "":
		f.hint = "is that the relay's address? Something else answers there: a captive portal, a proxy, or another server"
	case e.Denied():
		f.code = exitDenied
		f.hint = "pair again: holdfast pair on the machine, holdfast join LINK here"
	case e.Refusal == wire.RefusalLimit:
		f.hint = "wait"
		if e.RetryAfter > 0 {
			f.hint = fmt.Sprintf("try again in %d s", int(e.RetryAfter.Seconds()))
		}
	case e.Refusal == wire.RefusalUnavailable:
		f.hint = "try again in a moment"
	case e.Refusal == wire.RefusalNotFound, e.Refusal == wire.RefusalSyntax, e.Refusal == wire.RefusalPath:
		f.code = exitFailed
	}
	return f
}
