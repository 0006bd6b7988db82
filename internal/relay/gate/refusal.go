package gate

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"time"

	"holdfast/internal/wire"
)

// Refusal is an answer other than yes. Line is one plain line that says what
// happened and what to do.
type Refusal struct {
	Status     int
	Code       wire.Refusal
	Line       string
	RetryAfter time.Duration // none if zero
}

// Refuse makes a Refusal.
func Refuse(status int, code wire.Refusal, line string) *Refusal {
	return &Refusal{Status: status, Code: code, Line: line}
}

// TooMany is 429: over a limit, for that long.
func TooMany(wait time.Duration, line string) *Refusal {
	return &Refusal{Status: http.StatusTooManyRequests, Code: wire.RefusalLimit, Line: line, RetryAfter: max(wait, time.Second)}
}

// NotAllowed is 403. It has one text, so that it tells nobody whether a machine
// exists.
func NotAllowed() *Refusal {
	return Refuse(http.StatusForbidden, wire.RefusalNotAllowed,
		"this token may not do that: the machine is not of its account, or the token is of the wrong kind")
}

// WriteLine answers as the WebSocket routes do: one plain line.
func (ref *Refusal) WriteLine(w http.ResponseWriter) {
	ref.header(w.Header())
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(ref.Status)
	// An error here means that the peer has gone, which ends the request anyway.
	_, _ = io.WriteString(w, ref.Line+"\n")
}

// WriteProblem answers as /v1 does: RFC 9457.
func (ref *Refusal) WriteProblem(w http.ResponseWriter) {
	ref.header(w.Header())
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(ref.Status)
	// As above.
	_ = json.NewEncoder(w).Encode(wire.Problem{
		Type:   "about:blank",
		Title:  http.StatusText(ref.Status),
		Status: ref.Status,
		Detail: ref.Line,
		Code:   ref.Code,
	})
}

func (ref *Refusal) header(h http.Header) {
	h.Set(wire.HeaderRefusal, string(ref.Code))
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	switch {
	case ref.RetryAfter > 0:
		// Whole seconds, rounded up: a client that comes back exactly then is in.
		h.Set("Retry-After", strconv.FormatInt(int64((ref.RetryAfter+time.Second-1)/time.Second), 10))
	case ref.Status == http.StatusUnauthorized:
		h.Set("WWW-Authenticate", "Bearer")
	}
}
