// Package wire gives every byte between relay, agent and device its meaning:
// routes, identifiers, control messages, limits, close codes, refusals and the
// base64 form that older peers speak. It is types and pure functions only: it
// opens no socket, starts no goroutine and reads no clock.
//
// The words are those of docs/protocol.md, the numbers too. What a caller will
// get wrong: a parsed value is syntactically right and nothing more; whether a
// token is known or a machine exists is the relay's question.
package wire

import "time"

// Subprotocols offered and selected in the WebSocket handshake.
const (
	// SubprotocolV1 is a plain stream or control connection, version 1.
	SubprotocolV1 = "holdfast.v1"
	// subprotocolPrefix and resumePrefix start every versioned subprotocol.
	subprotocolPrefix = "holdfast.v"
	resumePrefix      = "holdfast.resume.v"
	// BearerPrefix starts the subprotocol by which a browser carries its token.
	// It is never echoed: proxies log the selected subprotocol.
	BearerPrefix = "holdfast.bearer."
)

// Request and response headers of our own.
const (
	// HeaderInstance names one process start of an agent: 128 random bits.
	HeaderInstance = "Holdfast-Instance"
	// HeaderAttempt counts an instance's control connections, from 1, rising.
	HeaderAttempt = "Holdfast-Attempt"
	// HeaderRefusal marks a refusal as the relay's own. Without it an agent does
	// not believe a 401 or 403, which a captive portal may have said.
	HeaderRefusal = "Holdfast-Refusal"
)

// Limits that a peer is held to before anything is allocated for it.
const (
	// MaxControlBytes is the largest control message. Half would not hold a
	// hello with its services; twice doubles what an unpaired device can park.
	MaxControlBytes = 4 << 10
	// MaxPendingBytes is what the relay reads from a device before its pair is
	// complete: an SSH version line and KEXINIT fit, a flood does not.
	MaxPendingBytes = 4 << 10
	// MaxMessageBytes is the largest message our own senders use. Longer ones
	// from other senders pass the relay all the same.
	MaxMessageBytes = 32 << 10
	// MaxReasonBytes is what RFC 6455 leaves for a close reason.
	MaxReasonBytes = 123
	// MaxNameBytes bounds the names of services, devices and tokens.
	MaxNameBytes = 64
)

// Times of version 1, as docs/liveness.md explains them.
const (
	// DialTimeout is how long the relay waits for the machine to dial back.
	DialTimeout = 10 * time.Second
	// ServiceTimeout is how long the agent tries to reach a service.
	ServiceTimeout = 5 * time.Second
	// DrainTimeout bounds reading on after a close frame was sent.
	DrainTimeout = 2 * time.Second
	// QuietTimeout ends a stream whose one source ended, once the other
	// direction was quiet for so long: WebSocket has no half-close.
	QuietTimeout = 5 * time.Second
	// ReplacedHold is how long a replaced instance is answered with 4409.
	ReplacedHold = time.Hour
)

// CloseCode is a WebSocket close code. What each asks of the peer (come back,
// stop, later) is data of package liveness.
type CloseCode uint16

// Close codes of RFC 6455 and of Holdfast.
const (
	CloseNormal      CloseCode = 1000
	CloseGoingAway   CloseCode = 1001
	CloseProtocol    CloseCode = 1002
	CloseUnsupported CloseCode = 1003
	CloseNoStatus    CloseCode = 1005 // never sent
	CloseAbnormal    CloseCode = 1006 // never sent
	CloseInvalidData CloseCode = 1007
	ClosePolicy      CloseCode = 1008
	CloseTooBig      CloseCode = 1009
	CloseInternal    CloseCode = 1011
	CloseRestart     CloseCode = 1012
	CloseTryLater    CloseCode = 1013 // no control connection is held for the machine

	CloseHandlerError   CloseCode = 4000
	CloseEnded          CloseCode = 4001
	CloseNoDialBack     CloseCode = 4104
	CloseLimit          CloseCode = 4129
	CloseUnauthorized   CloseCode = 4401 // token revoked or expired
	CloseForbidden      CloseCode = 4403
	CloseNotFound       CloseCode = 4404 // machine removed while connected, or no such service
	CloseReplaced       CloseCode = 4409
	CloseVersion        CloseCode = 4426
	CloseServiceRefused CloseCode = 4502
)

// Refusal is the code in the Holdfast-Refusal header.
type Refusal string

// Refusals, in the order in which a request is refused. Those of one HTTP
// status tell the holder of a token what to do and nobody else anything.
const (
	RefusalSyntax       Refusal = "syntax"        // 400
	RefusalTokenMissing Refusal = "token-missing" // 401
	RefusalTokenUnknown Refusal = "token-unknown" // 401
	RefusalTokenExpired Refusal = "token-expired" // 401
	RefusalTokenRevoked Refusal = "token-revoked" // 401
	RefusalPath         Refusal = "path"          // 400
	RefusalNotAllowed   Refusal = "not-allowed"   // 403, for every reason alike
	RefusalLimit        Refusal = "limit"         // 429, with Retry-After
	RefusalNotFound     Refusal = "not-found"     // 404
	RefusalVersion      Refusal = "version"       // 426
	RefusalUnavailable  Refusal = "unavailable"   // 503, the store fails
)
