package wsconn

import (
	"errors"
	"fmt"

	"holdfast/internal/wire"
	"holdfast/internal/wsconn/reach"
)

// What callers meet of package reach.
type (
	Options          = reach.Options
	Hop              = reach.Hop
	DialError        = reach.DialError
	Refusal          = reach.Refusal
	NotRelayError    = reach.NotRelayError
	CertificateError = reach.CertificateError
	ProxyError       = reach.ProxyError
)

// The hops of a dial.
const (
	HopDNS     = reach.HopDNS
	HopTCP     = reach.HopTCP
	HopProxy   = reach.HopProxy
	HopTLS     = reach.HopTLS
	HopUpgrade = reach.HopUpgrade
)

// ErrPlainHTTP is reach.ErrPlainHTTP.
var ErrPlainHTTP = reach.ErrPlainHTTP

// Errors that have no more to say than their text.
var (
	// ErrClosed says that this side closed the connection.
	ErrClosed = errors.New("connection closed by this side")
	// ErrDead says that no byte came although one was asked for: the path is
	// gone, whatever the kernel still believes.
	ErrDead = errors.New("no answer: the path is dead")
	// ErrFull says that a control connection does not take what is written.
	ErrFull = errors.New("too much waits to be sent")
	// ErrBadText says that the peer sent text that is not base64: 1007.
	ErrBadText = errors.New("text frame is not base64")
)

// CloseError is the end of an established connection: a close frame of the
// peer, or 1006 where the connection broke without one.
type CloseError struct {
	Code   wire.CloseCode
	Reason string // made safe to show
	// Cause is what broke a connection without a close frame.
	Cause error
}

func (e *CloseError) Error() string {
	s := fmt.Sprintf("closed with %d", e.Code)
	if e.Reason != "" {
		s += " " + e.Reason
	}
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

func (e *CloseError) Unwrap() error { return e.Cause }

// CloseCodeOf returns the close code by which err ended a connection, or 1006.
func CloseCodeOf(err error) wire.CloseCode {
	var c *CloseError
	if errors.As(err, &c) {
		return c.Code
	}
	return wire.CloseAbnormal
}
