// Package pairing is the pairing link and what is derived from its secret: the
// link's text, the secret that the relay is shown, the proof that the agent is
// shown inside SSH, and the one line each way of the `pair` subsystem. It is
// types and pure functions: no sockets, no files, no clock.
//
// What a caller will get wrong: a link is a bearer secret for five minutes, so
// its text goes to a screen or a file of mode 0600 and never into a log; the
// proof must be bound to the keys that SSH authenticated, not to keys that a
// message names; and a parsed link says nothing about being in time (Expired).
package pairing

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"holdfast/internal/wire"
)

// TTL is how long a link is valid. Half of it is too short to find the phone
// and type; twice doubles the time in which a photograph of the screen pairs.
const TTL = wire.MaxPairingTTL

const (
	// maxLinkBytes bounds a link before it is looked at: a relay's URL, twice
	// (base and fragment), and the rest of the fragment.
	maxLinkBytes = 1024
	// maxRelayBytes bounds a relay's URL, so that with both host keys and the
	// longest machine name a fragment stays under 450 bytes, and the QR code of
	// the usual link, of 270 bytes, stays readable on a terminal.
	maxRelayBytes = 120
	// maxHostKeys bounds the keys in a link: one of each type and room for one
	// rotation.
	maxHostKeys = 4
	// checkBytes is what a link has of its SHA-256, against a slip in copying.
	checkBytes = 4

	// fragmentV1 starts the fragment of version 1. The rest is base64url: no
	// character of a fragment needs escaping in a URL or quoting in a shell.
	fragmentV1 = "hf1."
	// fragmentAny starts the fragment of any version.
	fragmentAny = "hf"

	tagEd25519 = 1
	tagP256    = 2
)

var (
	// ErrNotLink says that a text is no pairing link at all.
	ErrNotLink = errors.New("not a pairing link")
	// ErrCutOff says that a link ends too early.
	ErrCutOff = errors.New("the pairing link is cut off: copy all of it")
	// ErrDamaged says that a link is whole in length but not what was printed.
	ErrDamaged = errors.New("the pairing link is damaged: a character was changed, added or left out")
	// ErrVersion says that a link is of a later version.
	ErrVersion = errors.New("the pairing link is of a later version: update holdfast here")
	// ErrExpired says that a link's time is over.
	ErrExpired = errors.New("the pairing link has expired: make a new one with `holdfast pair`")
)

// Link is a pairing link.
type Link struct {
	// Relay is the public URL under which devices reach the relay: http or
	// https, no query, no fragment, no trailing slash.
	Relay   string
	Machine wire.MachineID
	// HostKeys are those of the machine's built-in SSH server, best first: 1 to
	// 4, of the types that ParseDeviceKey takes.
	HostKeys []Key
	Secret   Secret
	// Expires has whole seconds.
	Expires time.Time
}

// Encode is the link's text, `RELAY/#FRAGMENT`. It is a secret until the link
// expires. Error: a field that ParseLink would not give back.
func (l Link) Encode() (string, error) {
	fragment, err := l.Fragment()
	if err != nil {
		return "", err
	}
	return l.Relay + "/#" + fragment, nil
}

// Fragment is the part behind the '#', for a page that is served from somewhere
// else than the relay.
//
// It is "hf1." and base64url of: S (16 bytes), expiry (uint32 big endian, Unix
// seconds), relay URL and machine (each a length byte and the text), the number
// of host keys and for each a type byte (1 ed25519, 2 P-256) and the raw key
// (32 bytes, or 65 of an uncompressed point), and the first 4 bytes of SHA-256
// of all before. A reader ignores what stands between the keys and that sum.
func (l Link) Fragment() (string, error) {
	if err := l.check(); err != nil {
		return "", fmt.Errorf("encode pairing link: %w", err)
	}
	s := l.Secret.bytes()
	body := append([]byte(nil), s[:]...)
	body = binary.BigEndian.AppendUint32(body, uint32(l.Expires.Unix()))
	body = append(body, byte(len(l.Relay)))
	body = append(body, l.Relay...)
	body = append(body, byte(len(l.Machine)))
	body = append(body, l.Machine...)
	body = append(body, byte(len(l.HostKeys)))
	for _, k := range l.HostKeys {
		tag := byte(tagEd25519)
		if k.kind == TypeP256 {
			tag = tagP256
		}
		body = append(body, tag)
		body = append(body, k.raw()...)
	}
	sum := sha256.Sum256(body)
	body = append(body, sum[:checkBytes]...)
	return fragmentV1 + base64.RawURLEncoding.EncodeToString(body), nil
}

// Expired reports whether the link's time is over at now. A device's clock may
// be wrong by more than a link lives: the relay and the agent decide, and this
// only spares a person the wait.
func (l Link) Expired(now time.Time) bool { return !now.Before(l.Expires) }

// String names the link without its secret.
func (l Link) String() string {
	return fmt.Sprintf("pairing link for %s at %s", l.Machine, l.Relay)
}

// ParseLink reads a link as a person pastes it: blanks and line breaks, which a
// narrow terminal adds, are left out. The relay is the one of the fragment: the
// page may have come from somewhere else. Errors, none of which repeats the
// input: ErrNotLink, ErrCutOff, ErrDamaged, ErrVersion.
func ParseLink(text string) (Link, error) {
	if len(text) > 2*maxLinkBytes {
		return Link{}, fmt.Errorf("longer than %d bytes: %w", maxLinkBytes, ErrNotLink)
	}
	text = strings.Map(func(r rune) rune {
		if r == ' ' || r == '\t' || r == '\r' || r == '\n' {
			return -1
		}
		return r
	}, text)
	if len(text) > maxLinkBytes {
		return Link{}, fmt.Errorf("longer than %d bytes: %w", maxLinkBytes, ErrNotLink)
	}
	page, fragment, found := strings.Cut(text, "#")
	u, err := url.Parse(page)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return Link{}, fmt.Errorf("it does not begin with the address of a relay: %w", ErrNotLink)
	}
	if !found {
		// What is missing is the whole secret part: a browser's address bar or a
		// chat may have dropped it.
		return Link{}, fmt.Errorf("nothing follows the address: %w", ErrCutOff)
	}
	return ParseFragment(fragment)
}

// ParseFragment reads what Fragment wrote; errors as ParseLink.
func ParseFragment(fragment string) (Link, error) {
	if len(fragment) > maxLinkBytes {
		return Link{}, fmt.Errorf("longer than %d bytes: %w", maxLinkBytes, ErrNotLink)
	}
	text, ok := strings.CutPrefix(fragment, fragmentV1)
	if !ok {
		return Link{}, versionError(fragment)
	}
	body, whole, err := decodeBody(text)
	if err != nil {
		return Link{}, err
	}
	l, used, err := readBody(body)
	if err != nil {
		return Link{}, err
	}
	if len(body)-used < checkBytes {
		return Link{}, ErrCutOff
	}
	sum := sha256.Sum256(body[:len(body)-checkBytes])
	if !whole || string(sum[:checkBytes]) != string(body[len(body)-checkBytes:]) {
		return Link{}, ErrDamaged
	}
	if err := l.check(); err != nil {
		return Link{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return l, nil
}

// versionError tells a later version ("hf2.…") and the beginning of a link from
// something else.
func versionError(fragment string) error {
	if strings.HasPrefix(fragmentV1, fragment) {
		return ErrCutOff
	}
	rest, ok := strings.CutPrefix(fragment, fragmentAny)
	digits, _, dot := strings.Cut(rest, ".")
	if !ok || !dot || digits == "" || strings.Trim(digits, "0123456789") != "" {
		return ErrNotLink
	}
	return ErrVersion
}

// decodeBody decodes as much of text as is there, so that a link that was cut
// between two characters is called cut off and not damaged; whole is false where
// the text cannot be what an encoder wrote.
func decodeBody(text string) (body []byte, whole bool, err error) {
	for i := 0; i < len(text); i++ {
		if !wire.IsBase64URL(text[i]) {
			return nil, false, ErrDamaged
		}
	}
	if body, err := base64.RawURLEncoding.Strict().DecodeString(text); err == nil {
		return body, true, nil
	}
	// A lone last character holds no byte; stray low bits are another's.
	if len(text)%4 == 1 {
		text = text[:len(text)-1]
	}
	body, err = base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return nil, false, ErrDamaged
	}
	return body, false, nil
}

// readBody takes the fields off body and says how much of it they used.
func readBody(body []byte) (l Link, used int, err error) {
	rest := body
	take := func(n int) []byte {
		if len(rest) < n {
			err = ErrCutOff
			rest = nil
			return make([]byte, n) // n is at most 255
		}
		b := rest[:n]
		rest = rest[n:]
		return b
	}
	l.Secret = secretOf([secretBytes]byte(take(secretBytes)))
	l.Expires = time.Unix(int64(binary.BigEndian.Uint32(take(4))), 0).UTC()
	l.Relay = string(take(int(take(1)[0])))
	l.Machine = wire.MachineID(take(int(take(1)[0])))
	count := int(take(1)[0])
	if err == nil && (count == 0 || count > maxHostKeys) {
		return Link{}, 0, ErrDamaged
	}
	for range count {
		var k Key
		var keyErr error
		switch tag := take(1)[0]; {
		case err != nil:
			return Link{}, 0, err
		case tag == tagEd25519:
			if raw := take(ed25519Bytes); err == nil {
				k, keyErr = ed25519Key(raw)
			}
		case tag == tagP256:
			if raw := take(p256Bytes); err == nil {
				k, keyErr = p256Key(raw)
			}
		default:
			return Link{}, 0, ErrDamaged
		}
		if keyErr != nil {
			return Link{}, 0, ErrDamaged
		}
		l.HostKeys = append(l.HostKeys, k)
	}
	if err != nil {
		return Link{}, 0, err
	}
	return l, len(body) - len(rest), nil
}

func (l Link) check() error {
	if err := CheckRelayURL(l.Relay); err != nil {
		return err
	}
	if _, err := wire.ParseMachineID(string(l.Machine)); err != nil {
		return err
	}
	if len(l.HostKeys) == 0 || len(l.HostKeys) > maxHostKeys {
		return fmt.Errorf("%d host keys, want 1 to %d", len(l.HostKeys), maxHostKeys)
	}
	for _, k := range l.HostKeys {
		if !k.own() {
			return fmt.Errorf("host key %s: %w", k.kind, ErrKeyType)
		}
	}
	if l.Secret.IsZero() || l.Secret.bytes() == [secretBytes]byte{} {
		return errors.New("no secret")
	}
	if s := l.Expires.Unix(); s <= 0 || s > 1<<32-1 {
		return errors.New("expiry is out of range")
	}
	return nil
}

// CheckRelayURL checks the URL that a link may carry: http or https with a
// host, no user, query, fragment, escape or trailing slash, at most 120 bytes.
func CheckRelayURL(relay string) error {
	if len(relay) > maxRelayBytes {
		return fmt.Errorf("relay URL is longer than %d bytes: %w", maxRelayBytes, wire.ErrSyntax)
	}
	u, err := url.Parse(relay)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Opaque != "" {
		return fmt.Errorf("relay URL is not http://host or https://host: %w", wire.ErrSyntax)
	}
	if u.User != nil || strings.ContainsAny(relay, "?#%") {
		return fmt.Errorf("relay URL has a user, a query, a fragment or an escape: %w", wire.ErrSyntax)
	}
	if strings.HasSuffix(relay, "/") {
		return fmt.Errorf("relay URL ends in a slash: %w", wire.ErrSyntax)
	}
	for i := 0; i < len(relay); i++ {
		if relay[i] <= ' ' || relay[i] > '~' {
			return fmt.Errorf("relay URL has a blank or a character that is not ASCII: %w", wire.ErrSyntax)
		}
	}
	return nil
}
