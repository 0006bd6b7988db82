package wire

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"unique"
)

// Token is a bearer secret: "hf_" and base64url. It prints as "hf_redacted"
// with every verb and wherever a logger meets it; only Secret gives the text.
type Token struct {
	// A handle, since fmt prints the unexported fields of a struct without asking
	// their methods: of a handle it sees an address. Handles stay comparable.
	secret unique.Handle[string]
}

// tokenPrefix makes a token recognisable in a leak and to secret scanners.
const tokenPrefix = "hf_"

// maxTokenBytes bounds a token before it is hashed. Ours have 46 bytes.
const maxTokenBytes = 256

var (
	// ErrNoToken says that the request carries no bearer token at all.
	ErrNoToken = errors.New("no bearer token")
	// ErrTwoTokens says that a request carries two different tokens.
	ErrTwoTokens = fmt.Errorf("two different tokens: %w", ErrSyntax)
	// ErrTokenInQuery says that a token, or a key that is meant for one, is in
	// the query, where every proxy on the way would log it.
	ErrTokenInQuery = fmt.Errorf("a token in the query would be logged; send it in a header: %w", ErrSyntax)
	// ErrTokenSyntax says that what stands for a token is not "hf_" and base64url.
	ErrTokenSyntax = fmt.Errorf("token is not hf_ and base64url: %w", ErrSyntax)
)

// NewToken makes a token of 256 random bits.
func NewToken() Token {
	var b [32]byte
	rand.Read(b[:]) // never fails: crypto/rand aborts the process instead
	return tokenOf(tokenPrefix + base64.RawURLEncoding.EncodeToString(b[:]))
}

// ParseToken checks the form of a token. Its error never repeats the input.
func ParseToken(s string) (Token, error) {
	rest, ok := strings.CutPrefix(s, tokenPrefix)
	if !ok || rest == "" || len(s) > maxTokenBytes {
		return Token{}, ErrTokenSyntax
	}
	for i := 0; i < len(rest); i++ {
		if !IsBase64URL(rest[i]) {
			return Token{}, ErrTokenSyntax
		}
	}
	return tokenOf(s), nil
}

func tokenOf(s string) Token { return Token{unique.Make(s)} }

// Secret is the token's text, for a header or a file of mode 0600. The zero
// Token has none.
func (t Token) Secret() string {
	if t.IsZero() {
		return ""
	}
	return t.secret.Value()
}

// IsZero reports whether t is no token.
func (t Token) IsZero() bool { return t == Token{} }

// Hash is what a store keeps of a token: SHA-256 of its text. A token has 256
// random bits, so a slow hash would add nothing.
func (t Token) Hash() [sha256.Size]byte { return sha256.Sum256([]byte(t.Secret())) }

// redactedToken is what every token prints as.
const redactedToken = tokenPrefix + "redacted"

// Format, String, GoString and LogValue redact, with every verb.
func (t Token) Format(f fmt.State, _ rune) { io.WriteString(f, redactedToken) }
func (t Token) String() string             { return redactedToken }
func (t Token) GoString() string           { return redactedToken }
func (t Token) LogValue() slog.Value       { return slog.StringValue(redactedToken) }

// RequestToken finds the one token of a request: in Authorization: Bearer, or
// as the subprotocol holdfast.bearer.T. The same token in both is one token.
// Errors: ErrNoToken, or one that wraps ErrSyntax. It looks into the query
// first, since a token there is refused even beside a good one.
func RequestToken(h http.Header, query url.Values) (Token, error) {
	if queryHoldsToken(query) {
		return Token{}, ErrTokenInQuery
	}
	var texts []string
	for _, v := range h.Values("Authorization") {
		// A tab is no blank to RFC 9110, but whoever sent it meant one.
		scheme := v
		if i := strings.IndexAny(v, " \t"); i >= 0 {
			scheme = v[:i]
		}
		if strings.EqualFold(scheme, "Bearer") {
			texts = append(texts, strings.TrimSpace(v[len(scheme):]))
		}
	}
	for _, p := range Subprotocols(h) {
		if t, ok := strings.CutPrefix(p, BearerPrefix); ok {
			texts = append(texts, t)
		}
	}
	if len(texts) == 0 {
		return Token{}, ErrNoToken
	}
	for _, t := range texts[1:] {
		if t != texts[0] {
			return Token{}, ErrTwoTokens
		}
	}
	return ParseToken(texts[0])
}

// queryHoldsToken reports whether a key or a value of the query is, or looks
// like, a token.
func queryHoldsToken(query url.Values) bool {
	for key, values := range query {
		switch strings.ToLower(key) {
		case "token", "access_token", "bearer":
			return true
		}
		if looksLikeToken(key) {
			return true
		}
		for _, v := range values {
			if looksLikeToken(v) {
				return true
			}
		}
	}
	return false
}

// looksLikeToken finds "hf_" followed by 16 or more characters of base64url
// anywhere, and "hf_" at the start followed by anything at all.
func looksLikeToken(s string) bool {
	for at := 0; ; {
		i := strings.Index(s[at:], tokenPrefix)
		if i < 0 {
			return false
		}
		at += i + len(tokenPrefix)
		n := 0
		for at+n < len(s) && IsBase64URL(s[at+n]) {
			n++
		}
		if n >= 16 || i == 0 && at == len(tokenPrefix) && n > 0 {
			return true
		}
	}
}

// Subprotocols lists what the request offers, in order.
func Subprotocols(h http.Header) []string {
	var out []string
	for _, v := range h.Values("Sec-WebSocket-Protocol") {
		for p := range strings.SplitSeq(v, ",") {
			if p = strings.TrimSpace(p); p != "" {
				out = append(out, p)
			}
		}
	}
	return out
}

// Selection is the answer to the offered subprotocols.
type Selection struct {
	// Protocol is echoed in the handshake; empty where nothing may be echoed.
	Protocol string
	// Understood is false where every versioned subprotocol offered is strange:
	// with Protocol set the socket is accepted and closed 4426 (a browser cannot
	// see a refused upgrade), without it the upgrade is refused with 426.
	Understood bool
}

// SelectSubprotocol picks the first offered versioned subprotocol that is in
// understood. A client that offers none speaks version 1. fromBrowser says that
// the request carries an Origin.
func SelectSubprotocol(offered []string, fromBrowser bool, understood ...string) Selection {
	first := ""
	for _, p := range offered {
		if !isVersion(p) {
			continue
		}
		for _, u := range understood {
			if p == u {
				return Selection{Protocol: p, Understood: true}
			}
		}
		if first == "" {
			first = p
		}
	}
	switch {
	case first == "":
		return Selection{Understood: true}
	case fromBrowser:
		return Selection{Protocol: first}
	default:
		return Selection{}
	}
}

// isVersion reports whether p is a versioned subprotocol. What no handshake may
// echo, such as a blank (RFC 9110 section 5.6.2), is none.
func isVersion(p string) bool {
	if !strings.HasPrefix(p, subprotocolPrefix) && !strings.HasPrefix(p, resumePrefix) {
		return false
	}
	for i := 0; i < len(p); i++ {
		if !IsBase64URL(p[i]) && !strings.ContainsRune("!#$%&'*+.^`|~", rune(p[i])) {
			return false
		}
	}
	return true
}
