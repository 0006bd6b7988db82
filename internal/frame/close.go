package frame

import (
	"encoding/binary"
	"strings"
	"unicode/utf8"
)

// codeNoStatus is what a close frame without a payload means; it is never sent.
const codeNoStatus = 1005

// ValidCode reports whether code may stand in a close frame (RFC 6455, section
// 7.4, with the codes registered since: 1012 to 1014).
func ValidCode(code uint16) bool {
	switch {
	case code < 1000, code >= 5000:
		return false
	case code >= 3000:
		return true
	}
	return code <= 1003 || code >= 1007 && code <= 1014
}

// ParseClose reads the payload of a close frame. No payload is 1005. Errors:
// ErrClosePayload, ErrCloseCode, ErrCloseReason; the reason may hold anything
// else that is UTF-8, control characters included.
func ParseClose(payload []byte) (code uint16, reason string, err error) {
	switch len(payload) {
	case 0:
		return codeNoStatus, "", nil
	case 1:
		return 0, "", ErrClosePayload
	}
	code = binary.BigEndian.Uint16(payload)
	if !ValidCode(code) {
		return 0, "", ErrCloseCode
	}
	if !utf8.Valid(payload[2:]) {
		return 0, "", ErrCloseReason
	}
	return code, string(payload[2:]), nil
}

// AppendClose appends an unmasked close frame. A code that may not be sent, such
// as 1005, makes a frame without payload. The reason is cut by CutReason.
func AppendClose(dst []byte, code uint16, reason string) []byte {
	if !ValidCode(code) {
		return AppendFrame(dst, Close, nil)
	}
	var b [MaxControlPayload]byte
	binary.BigEndian.PutUint16(b[:], code)
	n := 2 + copy(b[2:], CutReason(reason))
	return AppendFrame(dst, Close, b[:n])
}

// CutReason makes s fit into a close frame: broken UTF-8 removed, then cut at
// 123 bytes on a rune boundary.
func CutReason(s string) string {
	// A rune has at most four bytes, so nothing past this point can survive the
	// cut; a long input must not cost more than a short one.
	if max := utf8.UTFMax * MaxReasonBytes; len(s) > max {
		s = s[:max]
	}
	s = strings.ToValidUTF8(s, "")
	if len(s) <= MaxReasonBytes {
		return s
	}
	cut := MaxReasonBytes
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut]
}
