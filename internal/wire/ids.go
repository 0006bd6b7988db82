package wire

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// MachineID names a machine within its account: 1 to 64 of A-Z a-z 0-9 . _ -,
// the first alphanumeric. "mini" of two accounts is two machines, so every
// index uses (account, machine).
type MachineID string

// ServiceName names a service of a machine, in the syntax of a MachineID. The
// empty name is the machine's own sshd.
type ServiceName string

// ServiceSSH is the agent's built-in SSH server.
const ServiceSSH ServiceName = "ssh"

// ConnID names one dial: a node tag and 128 random bits. It is unguessable,
// usable once, and only by the machine it was sent to.
type ConnID string

// Instance names one process start of an agent: 128 random bits.
type Instance string

// ErrSyntax is wrapped by every parse error of this package.
var ErrSyntax = errors.New("bad syntax")

// ParseMachineID checks s and says what is wrong with it, wrapping ErrSyntax.
func ParseMachineID(s string) (MachineID, error) {
	if err := checkName("machine name", s); err != nil {
		return "", err
	}
	return MachineID(s), nil
}

// ParseServiceName checks s, wrapping ErrSyntax. Empty is an error here: "no
// service named" is the absence of the parameter.
func ParseServiceName(s string) (ServiceName, error) {
	if err := checkName("service name", s); err != nil {
		return "", err
	}
	return ServiceName(s), nil
}

func checkName(what, s string) error {
	if s == "" {
		return fmt.Errorf("%s is empty: %w", what, ErrSyntax)
	}
	if len(s) > MaxNameBytes {
		return fmt.Errorf("%s is longer than %d bytes: %w", what, MaxNameBytes, ErrSyntax)
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case isAlnum(c):
		case i > 0 && (c == '.' || c == '_' || c == '-'):
		default:
			return fmt.Errorf("%s has %q at position %d: %w", what, c, i, ErrSyntax)
		}
	}
	return nil
}

func isAlnum(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// IsBase64URL reports whether c is of the alphabet of RFC 4648, section 5.
func IsBase64URL(c byte) bool { return isAlnum(c) || c == '_' || c == '-' }

// random128 is 128 bits of crypto/rand as 22 characters of base64url.
func random128() string {
	var b [16]byte
	rand.Read(b[:]) // never fails: crypto/rand aborts the process instead
	return base64.RawURLEncoding.EncodeToString(b[:])
}

const (
	// maxConnIDBytes bounds a connID; ours have at most 39 bytes.
	maxConnIDBytes = 128
	// maxInstanceBytes bounds an instance: with the words around it, it stays
	// under MaxReasonBytes.
	maxInstanceBytes = 64
)

// NewConnID makes a connID of node, which must be 1 to 16 letters or digits.
func NewConnID(node string) ConnID { return ConnID(node + "." + random128()) }

// ParseConnID checks only that s can be one element of a path: 1 to 128 of
// A-Z a-z 0-9 . _ ~ -, the first not a dot. The form of NewConnID is this
// relay's own business: to an agent, and to a relay of another version, a connID
// is opaque, and an unknown, used or foreign one is refused with 404 without
// saying which.
func ParseConnID(s string) (ConnID, error) {
	if s == "" || len(s) > maxConnIDBytes || s[0] == '.' {
		return "", fmt.Errorf("connection id: %w", ErrSyntax)
	}
	for i := 0; i < len(s); i++ {
		if c := s[i]; !IsBase64URL(c) && c != '.' && c != '~' {
			return "", fmt.Errorf("connection id: %w", ErrSyntax)
		}
	}
	return ConnID(s), nil
}

// NewInstance makes the name of this process start.
func NewInstance() Instance { return Instance(random128()) }

// ParseInstance checks the value of Holdfast-Instance: 1 to 64 of A-Z a-z 0-9
// and . _ ~ : + / = -, so that an agent may spell its 128 bits as it likes and the
// name fits into a close reason.
func ParseInstance(s string) (Instance, error) {
	if s == "" || len(s) > maxInstanceBytes {
		return "", fmt.Errorf("instance: %w", ErrSyntax)
	}
	for i := 0; i < len(s); i++ {
		if !IsBase64URL(s[i]) && !strings.ContainsRune(".~:+/=", rune(s[i])) {
			return "", fmt.Errorf("instance: %w", ErrSyntax)
		}
	}
	return Instance(s), nil
}

// ParseAttempt reads the value of Holdfast-Attempt: a decimal from 1 below 2^63.
func ParseAttempt(s string) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, 63)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("attempt: %w", ErrSyntax)
	}
	return n, nil
}
