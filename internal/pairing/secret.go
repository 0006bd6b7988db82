package pairing

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"unique"

	"holdfast/internal/wire"
)

const (
	// secretBytes is the size of S: 128 bits, which five minutes of guessing do
	// not dent and a QR code carries in 22 characters.
	secretBytes = 16
	// derivedBytes is the size of everything derived with SHA-256.
	derivedBytes = sha256.Size

	relayInfo = "relay" // HKDF info of RelaySecret
	agentInfo = "agent" // HKDF info of AgentKey
)

// redacted is what a secret prints as.
const redacted = "redacted"

// Secret is S, the 128 random bits that a link carries. It prints as "redacted"
// with every verb and wherever a logger meets it; only a link's text shows it.
type Secret struct {
	// A handle of a string, since fmt prints the unexported fields of a struct
	// without asking their methods: of this one it sees an address (of an array's
	// it would print the array). Handles stay comparable.
	value unique.Handle[string]
}

// NewSecret makes a secret.
func NewSecret() Secret {
	var b [secretBytes]byte
	rand.Read(b[:]) // never fails: crypto/rand aborts the process instead
	return secretOf(b)
}

func secretOf(b [secretBytes]byte) Secret { return Secret{unique.Make(string(b[:]))} }

// IsZero reports whether s is no secret.
func (s Secret) IsZero() bool { return s == Secret{} }

func (s Secret) bytes() (b [secretBytes]byte) {
	if !s.IsZero() {
		copy(b[:], s.value.Value())
	}
	return b
}

// Format, String, GoString and LogValue redact.
func (s Secret) Format(f fmt.State, _ rune) { io.WriteString(f, redacted) }
func (s Secret) String() string             { return redacted }
func (s Secret) GoString() string           { return redacted }
func (s Secret) LogValue() slog.Value       { return slog.StringValue(redacted) }

// RelaySecret is HKDF-SHA256(S, info "relay"): what a device shows the relay
// for a token. From it nobody can compute S or AgentKey. It redacts itself like
// Secret; Text is for the body of the one request that carries it.
type RelaySecret struct {
	value unique.Handle[string] // as Secret's
}

// RelaySecret derives what the relay is shown.
func (s Secret) RelaySecret() RelaySecret {
	b := s.derive(relayInfo)
	return RelaySecret{unique.Make(string(b[:]))}
}

// ParseRelaySecret reads what Text wrote. Its error never repeats the input.
func ParseRelaySecret(text string) (RelaySecret, error) {
	b, err := decodeFixed(text)
	if err != nil {
		return RelaySecret{}, fmt.Errorf("relay secret: %w", err)
	}
	return RelaySecret{unique.Make(string(b[:]))}, nil
}

// IsZero reports whether r is no secret.
func (r RelaySecret) IsZero() bool { return r == RelaySecret{} }

// Text is the secret as base64url, 43 characters.
func (r RelaySecret) Text() string {
	if r.IsZero() {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString([]byte(r.value.Value()))
}

// Hash is SHA-256 of the secret: what the agent registers and the relay keeps.
func (r RelaySecret) Hash() [derivedBytes]byte {
	if r.IsZero() {
		return [derivedBytes]byte{}
	}
	return sha256.Sum256([]byte(r.value.Value()))
}

// Format, String, GoString and LogValue redact.
func (r RelaySecret) Format(f fmt.State, _ rune) { io.WriteString(f, redacted) }
func (r RelaySecret) String() string             { return redacted }
func (r RelaySecret) GoString() string           { return redacted }
func (r RelaySecret) LogValue() slog.Value       { return slog.StringValue(redacted) }

// ParseHash reads a hash as /v1/pairings carries it: base64url of 32 bytes.
func ParseHash(text string) ([derivedBytes]byte, error) {
	b, err := decodeFixed(text)
	if err != nil {
		return b, fmt.Errorf("pairing hash: %w", err)
	}
	return b, nil
}

// FormatHash is the text that ParseHash reads.
func FormatHash(hash [derivedBytes]byte) string {
	return base64.RawURLEncoding.EncodeToString(hash[:])
}

func (s Secret) derive(info string) (out [derivedBytes]byte) {
	b := s.bytes()
	key, err := hkdf.Key(sha256.New, b[:], nil, info, derivedBytes)
	if err != nil {
		// Only a length beyond 255 hashes or a FIPS module that forbids the key
		// size can fail; going on with a zero key would let anybody pair.
		panic("pairing: derive " + info + ": " + err.Error())
	}
	copy(out[:], key)
	return out
}

// Proof is HMAC-SHA256 under HKDF-SHA256(S, info "agent") of the SSH session
// identifier, the device's key, the host key and the machine's name: it shows
// that the device knows S, inside this very SSH connection, to this very host
// key. A relay that recorded it can use it nowhere else.
type Proof [derivedBytes]byte

// Binding is what a Proof is bound to. Every field is required.
type Binding struct {
	// SessionID is the SSH connection's exchange hash (RFC 4253 section 7.2).
	SessionID []byte
	// DeviceKey and HostKey are public key blobs (RFC 4253 section 6.6): the
	// ones that this connection authenticated with, never ones that were said.
	DeviceKey []byte
	HostKey   []byte
	Machine   wire.MachineID
}

// Prove computes the proof for b.
func (s Secret) Prove(b Binding) Proof {
	key := s.derive(agentInfo)
	mac := hmac.New(sha256.New, key[:])
	for _, part := range [][]byte{b.SessionID, b.DeviceKey, b.HostKey, []byte(b.Machine)} {
		var length [4]byte
		binary.BigEndian.PutUint32(length[:], uint32(len(part)))
		mac.Write(length[:])
		mac.Write(part)
	}
	return Proof(mac.Sum(nil))
}

// Verify reports whether p proves knowledge of s for b, in constant time. A
// zero secret and a binding with an empty part verify nothing.
func (s Secret) Verify(p Proof, b Binding) bool {
	if s.IsZero() || len(b.SessionID) == 0 || len(b.DeviceKey) == 0 || len(b.HostKey) == 0 || b.Machine == "" {
		return false
	}
	want := s.Prove(b)
	return hmac.Equal(want[:], p[:])
}

// MarshalText writes base64url without padding.
func (p Proof) MarshalText() ([]byte, error) {
	return base64.RawURLEncoding.AppendEncode(nil, p[:]), nil
}

// UnmarshalText reads base64url of exactly 32 bytes.
func (p *Proof) UnmarshalText(text []byte) error {
	b, err := decodeFixed(string(text))
	if err != nil {
		return fmt.Errorf("proof: %w", err)
	}
	*p = b
	return nil
}

// errFixed is the one error of decodeFixed: it must not repeat its input.
var errFixed = fmt.Errorf("not 32 bytes of base64url: %w", wire.ErrSyntax)

func decodeFixed(text string) (out [derivedBytes]byte, err error) {
	b, err := decodeBase64URL(text, derivedBytes)
	if err != nil || len(b) != derivedBytes {
		return out, errFixed
	}
	copy(out[:], b)
	return out, nil
}

var errBase64 = errors.New("not base64url")

// decodeBase64URL refuses line breaks, which encoding/base64 would skip, and
// decodes at most max bytes.
func decodeBase64URL(text string, max int) ([]byte, error) {
	if len(text) > base64.RawURLEncoding.EncodedLen(max) {
		return nil, errBase64
	}
	for i := 0; i < len(text); i++ {
		if !wire.IsBase64URL(text[i]) {
			return nil, errBase64
		}
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil {
		return nil, errBase64
	}
	return b, nil
}
