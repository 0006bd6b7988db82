package wire

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Op names a control message.
type Op string

// The control messages of version 1.
const (
	OpPing    Op = "ping"    // agent to relay: would a dial reach me?
	OpPong    Op = "pong"    // relay to agent, from the code that would deliver a dial
	OpHello   Op = "hello"   // agent to relay: optional introduction
	OpDial    Op = "dial"    // relay to agent: connect a service and dial back
	OpRefuse  Op = "refuse"  // agent to relay: the service cannot be reached
	OpRevoke  Op = "revoke"  // relay to agent: remove a device's key, end its streams
	OpRevoked Op = "revoked" // agent to relay: done
	OpDrain   Op = "drain"   // relay to agent: come back after a delay
)

// Features that a hello can list.
const (
	// FeatureRevoke says that the agent acknowledges revoke.
	FeatureRevoke = "revoke"
	// FeatureDrain says that the agent honours drain.
	FeatureDrain = "drain"
)

// Message is one control message. Which fields count depends on Op; the others
// are zero after DecodeControl and left out by EncodeControl.
type Message struct {
	Op Op `json:"op"`

	// hello
	Version  string        `json:"version,omitempty"`
	Features []string      `json:"features,omitempty"`
	Services []ServiceName `json:"services,omitempty"`
	Presence string        `json:"presence,omitempty"` // opaque to the relay

	// dial, refuse
	ConnID  ConnID      `json:"connId,omitempty"`
	Service ServiceName `json:"service,omitempty"`
	Device  string      `json:"device,omitempty"` // also revoke, revoked: the device's id
	Proto   string      `json:"proto,omitempty"`
	Node    string      `json:"node,omitempty"`
	Code    CloseCode   `json:"code,omitempty"`
	Reason  string      `json:"reason,omitempty"`

	// revoke, revoked: the device's SSH public key as authorized_keys writes it
	Key string `json:"key,omitempty"`

	// drain: milliseconds
	AfterMs int64 `json:"afterMs,omitempty"`
}

// opFields lists, for each op, the fields that count. A field of another op is
// ignored whatever its type, so that a later version may use it.
var opFields = map[Op][]string{
	OpPing:    nil,
	OpPong:    nil,
	OpHello:   {"version", "features", "services", "presence"},
	OpDial:    {"connId", "service", "device", "proto", "node"},
	OpRefuse:  {"connId", "code", "reason"},
	OpRevoke:  {"device", "key"},
	OpRevoked: {"device", "key"},
	OpDrain:   {"afterMs"},
}

var (
	// ErrTooBig says that a control message exceeds MaxControlBytes; the
	// receiver closes with 1009.
	ErrTooBig = errors.New("control message is too big")
	// ErrMalformed says that a control message is to be dropped and counted.
	ErrMalformed = errors.New("malformed control message")
	// ErrUnknownOp says that a well-formed message is of a later version; it is
	// ignored.
	ErrUnknownOp = errors.New("unknown op")
)

// heartbeat is a ping as our agents write it. Idle machines send nothing else,
// and parsing it as JSON was a sixth of what their heartbeat cost a relay.
const heartbeat = `{"op":"ping"}`

// DecodeControl decodes the payload of one text frame. Keys match exactly, and
// only the fields of the message's op are looked at. Errors: ErrTooBig,
// ErrMalformed, ErrUnknownOp (with Op set in the result).
func DecodeControl(b []byte) (Message, error) {
	if len(b) > MaxControlBytes {
		return Message{}, ErrTooBig
	}
	if string(b) == heartbeat {
		return Message{Op: OpPing}, nil
	}
	if !utf8.Valid(b) {
		return Message{}, fmt.Errorf("bad UTF-8: %w", ErrMalformed)
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(b, &raw); err != nil || raw == nil {
		return Message{}, fmt.Errorf("not a JSON object: %w", ErrMalformed)
	}
	var op string
	if json.Unmarshal(raw["op"], &op) != nil || op == "" {
		return Message{}, fmt.Errorf("no op: %w", ErrMalformed)
	}
	m := Message{Op: Op(op)}
	fields, known := opFields[m.Op]
	if !known {
		return m, ErrUnknownOp
	}
	// Only the op's own fields go into the struct.
	own := make(map[string]json.RawMessage, len(fields))
	for _, f := range fields {
		if v, ok := raw[f]; ok {
			own[f] = v
		}
	}
	// A number that is no close code is none: RefuseCode names one in its place,
	// and the device hears of the refusal at once.
	if v, ok := own["code"]; ok {
		var code CloseCode
		var number float64
		if json.Unmarshal(v, &code) != nil && json.Unmarshal(v, &number) == nil {
			delete(own, "code")
		}
	}
	if len(own) == 0 {
		return m, nil
	}
	trimmed, err := json.Marshal(own)
	if err != nil {
		return Message{}, fmt.Errorf("%s: %w", op, ErrMalformed)
	}
	if err := json.Unmarshal(trimmed, &m); err != nil {
		return Message{}, fmt.Errorf("%s: a field has the wrong type: %w", op, ErrMalformed)
	}
	if m.AfterMs < 0 {
		return Message{}, fmt.Errorf("drain: negative delay: %w", ErrMalformed)
	}
	return m, nil
}

// EncodeControl encodes m for one text frame. Error: ErrTooBig.
func EncodeControl(m Message) ([]byte, error) {
	b, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", m.Op, err)
	}
	if len(b) > MaxControlBytes {
		return nil, fmt.Errorf("encode %s of %d bytes: %w", m.Op, len(b), ErrTooBig)
	}
	return b, nil
}

// RefuseCode is the code that the relay passes on for an agent's refuse: one
// of 4403, 4404 and 4502, and 4502 for everything else an agent may say.
func RefuseCode(c CloseCode) CloseCode {
	switch c {
	case CloseForbidden, CloseNotFound:
		return c
	}
	return CloseServiceRefused
}

// CleanReason makes a reason that came from a peer, or that may hold anything,
// safe to show and to send: CleanText at MaxReasonBytes.
func CleanReason(s string) string { return CleanText(s, MaxReasonBytes) }

// CleanText makes text from a peer safe to show in a terminal, a log or a page
// that escapes HTML: control characters, format characters such as bidirectional
// overrides, line separators and broken UTF-8 are removed, and what is left is
// cut at max bytes on a rune boundary.
func CleanText(s string, max int) string {
	// Cut first, generously, so that a long input costs no more than a short one.
	if len(s) > 8*max {
		s = s[:8*max]
	}
	s = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || unicode.IsControl(r) || unicode.Is(unicode.Cf, r) ||
			r == '\u2028' || r == '\u2029' {
			return -1
		}
		return r
	}, s)
	if len(s) <= max {
		return s
	}
	for !utf8.RuneStart(s[max]) {
		max--
	}
	return s[:max]
}

// DecodeBase64 decodes the payload of a text frame of an older peer: standard
// base64 with padding, in which CR and LF are skipped. It appends to dst and
// returns it; on an error, which closes the stream with 1007, dst is unchanged.
// Empty text decodes to nothing.
func DecodeBase64(dst, text []byte) ([]byte, error) {
	out, err := base64.StdEncoding.Strict().AppendDecode(dst, text)
	if err != nil {
		return dst, fmt.Errorf("text frame is not base64: %w", ErrSyntax)
	}
	return out, nil
}

// EncodeBase64 appends the text that an older peer understands.
func EncodeBase64(dst, data []byte) []byte {
	return base64.StdEncoding.AppendEncode(dst, data)
}
