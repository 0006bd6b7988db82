package console

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
	"holdfast/internal/wsconn"
)

// Exit codes.
const (
	ExitOK          = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitUnreachable = 3
	ExitDenied      = 4
)

// Failure is an error with what to do about it and the exit code.
type Failure struct {
	Code int
	Err  error
	Hint string
}

func (f *Failure) Error() string { return f.Err.Error() }
func (f *Failure) Unwrap() error { return f.Err }

// Report prints an error and gives its exit code.
func Report(w io.Writer, err error) int {
	if err == nil {
		return ExitOK
	}
	f := Explain(err)
	fmt.Fprintf(w, "holdfast: error: %s\n", OneLine(f.Err.Error()))
	if f.Hint != "" {
		fmt.Fprintf(w, "holdfast: hint: %s\n", f.Hint)
	}
	return f.Code
}

// OneLine keeps an error on its line, whatever library wrote it.
func OneLine(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

// Explain adds hint and exit code to an error that has none yet.
func Explain(err error) *Failure {
	var f *Failure
	if errors.As(err, &f) {
		// Keep what was wrapped around it.
		return &Failure{Code: f.Code, Err: err, Hint: f.Hint}
	}
	var relay *client.RelayError
	var hop *client.Failure
	switch {
	case errors.As(err, &hop):
		code := ExitUnreachable
		if hop.Denied {
			code = ExitDenied
		}
		return &Failure{Code: code, Err: err}
	case errors.As(err, &relay):
		return explainRelay(relay, err)
	case unreachable(err):
		return &Failure{Code: ExitUnreachable, Err: err, Hint: "check this computer's network and the relay's address"}
	case errors.Is(err, wsconn.ErrPlainHTTP):
		return &Failure{Code: ExitDenied, Err: err, Hint: "use a relay with https, or say --insecure-http if the network in between is yours"}
	case errors.Is(err, context.Canceled):
		return &Failure{Code: ExitFailed, Err: errors.New("interrupted")}
	case errors.Is(err, state.ErrLocked):
		return &Failure{Code: ExitFailed, Err: err, Hint: "stop it first, or give this one its own --state DIR"}
	case errors.Is(err, state.ErrNotRunning):
		return &Failure{Code: ExitFailed, Err: err, Hint: "start `holdfast up` or `holdfast agent` there, or give its --state DIR"}
	case errors.Is(err, client.ErrUnknownMachine):
		return &Failure{Code: ExitFailed, Err: err, Hint: "holdfast machines lists the machines; pair with `holdfast pair` there and `holdfast join LINK` here"}
	case errors.Is(err, client.ErrNameTaken):
		return &Failure{Code: ExitFailed, Err: err, Hint: "choose another name for the new machine with --as NAME"}
	case errors.Is(err, client.ErrUnquotable):
		return &Failure{Code: ExitFailed, Err: err, Hint: "give a --state DIR without such characters"}
	case errors.Is(err, client.ErrNoHostKey):
		return &Failure{Code: ExitDenied, Err: err, Hint: "pair again once that service runs, or use another with --service"}
	}
	return &Failure{Code: ExitFailed, Err: err}
}

// unreachable reports whether err is a network's: a request that found nobody.
func unreachable(err error) bool {
	var op *net.OpError
	var dns *net.DNSError
	return errors.As(err, &op) || errors.As(err, &dns) || errors.Is(err, context.DeadlineExceeded)
}

// explainRelay says what a relay's refusal asks for.
func explainRelay(e *client.RelayError, err error) *Failure {
	f := &Failure{Code: ExitUnreachable, Err: err}
	switch {
	case e.Refusal == "":
		f.Hint = "is that the relay's address? Something else answers there: a captive portal, a proxy, or another server"
	case e.Denied():
		f.Code = ExitDenied
		f.Hint = "pair again: holdfast pair on the machine, holdfast join LINK here"
	case e.Refusal == wire.RefusalLimit:
		f.Hint = "wait"
		if e.RetryAfter > 0 {
			f.Hint = fmt.Sprintf("try again in %d s", int(e.RetryAfter.Seconds()))
		}
	case e.Refusal == wire.RefusalUnavailable:
		f.Hint = "try again in a moment"
	case e.Refusal == wire.RefusalNotFound, e.Refusal == wire.RefusalSyntax, e.Refusal == wire.RefusalPath:
		f.Code = ExitFailed
	}
	return f
}
