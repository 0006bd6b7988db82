package pairing

import (
	"crypto/ecdh"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"strings"

	"holdfast/internal/wire"
)

// Key types that devices and the built-in SSH server use. Both exist in
// WebCrypto, the first not everywhere.
const (
	TypeEd25519 = "ssh-ed25519"
	TypeP256    = "ecdsa-sha2-nistp256"
)

const (
	curveP256     = "nistp256"
	ed25519Bytes  = 32
	p256Bytes     = 65 // an uncompressed point: 4, x, y
	maxKeyType    = 64 // the longest of OpenSSH has 46
	maxKeyBytes   = 4 << 10
	maxKeyLine    = maxKeyType + 1 + (maxKeyBytes+2)/3*4
	uncompressed  = 0x04
	lengthPrefix  = 4
	fingerprintOf = "SHA256:"
)

var (
	// ErrKey says that a text is no SSH public key.
	ErrKey = fmt.Errorf("not an SSH public key: %w", wire.ErrSyntax)
	// ErrKeyType says that a key is none of ssh-ed25519 and ecdsa-sha2-nistp256.
	ErrKeyType = fmt.Errorf("key type must be %s or %s: %w", TypeEd25519, TypeP256, wire.ErrSyntax)
)

// Key is an SSH public key: syntactically right, which says nothing about who
// holds the private half. The zero Key is none. Keys are comparable.
type Key struct {
	kind string
	blob string // RFC 4253 section 6.6
}

// ParseKey reads "type base64", with or without a comment, as authorized_keys
// and known_hosts spell it, of whatever type: the base64 must be a blob that
// begins with that very type. Options before the type, line breaks and a second
// key are refused, so the result's Line can be written into such a file.
func ParseKey(line string) (Key, error) {
	if len(line) > maxKeyLine+1024 { // a comment has its place, not more
		return Key{}, fmt.Errorf("longer than %d bytes: %w", maxKeyLine, ErrKey)
	}
	if strings.ContainsAny(line, "\r\n\x00") {
		return Key{}, fmt.Errorf("more than one line: %w", ErrKey)
	}
	fields := strings.Fields(line)
	if len(fields) < 2 {
		return Key{}, fmt.Errorf("want \"type base64\": %w", ErrKey)
	}
	if len(fields[1]) > base64.StdEncoding.EncodedLen(maxKeyBytes) {
		return Key{}, fmt.Errorf("longer than %d bytes: %w", maxKeyBytes, ErrKey)
	}
	blob, err := base64.StdEncoding.Strict().DecodeString(fields[1])
	if err != nil {
		return Key{}, fmt.Errorf("its second word is not base64: %w", ErrKey)
	}
	k, err := ParseKeyBlob(blob)
	if err != nil {
		return Key{}, err
	}
	if k.kind != fields[0] {
		return Key{}, fmt.Errorf("the base64 holds another type than it says: %w", ErrKey)
	}
	return k, nil
}

// ParseKeyBlob reads the wire form of a public key.
func ParseKeyBlob(blob []byte) (Key, error) {
	if len(blob) > maxKeyBytes {
		return Key{}, fmt.Errorf("longer than %d bytes: %w", maxKeyBytes, ErrKey)
	}
	kind, rest, ok := cutString(blob)
	if !ok || len(kind) == 0 || len(kind) > maxKeyType || len(rest) == 0 {
		return Key{}, fmt.Errorf("cut off: %w", ErrKey)
	}
	for _, c := range kind {
		if c <= ' ' || c > '~' || c == '"' || c == ',' || c == '#' || c == '\\' {
			return Key{}, fmt.Errorf("its type has a strange character: %w", ErrKey)
		}
	}
	k := Key{kind: string(kind), blob: string(blob)}
	switch k.kind {
	case TypeEd25519:
		pub, rest, ok := cutString(rest)
		if !ok || len(pub) != ed25519Bytes || len(rest) != 0 {
			return Key{}, fmt.Errorf("%s key of a wrong length: %w", k.kind, ErrKey)
		}
	case TypeP256:
		curve, rest, ok := cutString(rest)
		if !ok || string(curve) != curveP256 {
			return Key{}, fmt.Errorf("%s key of another curve: %w", k.kind, ErrKey)
		}
		point, rest, ok := cutString(rest)
		if !ok || len(point) != p256Bytes || len(rest) != 0 {
			return Key{}, fmt.Errorf("%s key of a wrong length: %w", k.kind, ErrKey)
		}
		if _, err := ecdh.P256().NewPublicKey(point); err != nil {
			return Key{}, fmt.Errorf("%s key that is not on its curve: %w", k.kind, ErrKey)
		}
	}
	return k, nil
}

// ParseDeviceKey reads a key that a device or the built-in server may have:
// ssh-ed25519 or ecdsa-sha2-nistp256, checked to the last byte.
func ParseDeviceKey(line string) (Key, error) {
	k, err := ParseKey(line)
	if err != nil {
		return Key{}, err
	}
	if !k.own() {
		return Key{}, ErrKeyType
	}
	return k, nil
}

func (k Key) own() bool { return k.kind == TypeEd25519 || k.kind == TypeP256 }

// IsZero reports whether k is no key.
func (k Key) IsZero() bool { return k.kind == "" }

// Type is the key's type, such as "ssh-ed25519".
func (k Key) Type() string { return k.kind }

// Blob is the key's wire form, a copy.
func (k Key) Blob() []byte { return []byte(k.blob) }

// Line is "type base64", without a comment and without a line break.
func (k Key) Line() string {
	if k.IsZero() {
		return ""
	}
	return k.kind + " " + base64.StdEncoding.EncodeToString([]byte(k.blob))
}

// Fingerprint is the key's SHA-256 as OpenSSH shows it.
func (k Key) Fingerprint() string {
	sum := sha256.Sum256([]byte(k.blob))
	return fingerprintOf + base64.RawStdEncoding.EncodeToString(sum[:])
}

// String is the type and the fingerprint, which is what a person compares.
func (k Key) String() string { return k.kind + " " + k.Fingerprint() }

// raw is the key without its type: what a link carries.
func (k Key) raw() []byte {
	blob := []byte(k.blob)
	switch k.kind {
	case TypeEd25519:
		return blob[len(blob)-ed25519Bytes:]
	case TypeP256:
		return blob[len(blob)-p256Bytes:]
	}
	return nil
}

func ed25519Key(raw []byte) (Key, error) {
	return ParseKeyBlob(appendString(appendString(nil, []byte(TypeEd25519)), raw))
}

func p256Key(raw []byte) (Key, error) {
	blob := appendString(nil, []byte(TypeP256))
	blob = appendString(blob, []byte(curveP256))
	return ParseKeyBlob(appendString(blob, raw))
}

// cutString takes one SSH string (RFC 4251 section 5) off b.
func cutString(b []byte) (s, rest []byte, ok bool) {
	if len(b) < lengthPrefix {
		return nil, nil, false
	}
	n := binary.BigEndian.Uint32(b)
	b = b[lengthPrefix:]
	if uint64(n) > uint64(len(b)) {
		return nil, nil, false
	}
	return b[:n], b[n:], true
}

func appendString(dst, s []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(s)))
	return append(dst, s...)
}
