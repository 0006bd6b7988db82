package webpush

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"
)

const (
	saltBytes = 16
	// lastRecord delimits the data of a record after which none follows (RFC 8188,
	// section 2).
	lastRecord = 2
	tagBytes   = 16
	// tokenTime is how long a token is valid. RFC 8292 allows 24 hours; a clock
	// that is an hour off must do.
	tokenTime = 12 * time.Hour
)

// encrypt seals a text for the browser, under keys that are used once.
func (s *Subscription) encrypt(text []byte) ([]byte, error) {
	once, err := ecdh.P256().GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("encrypt a push message: %w", err)
	}
	salt := make([]byte, saltBytes)
	rand.Read(salt) // never fails
	return seal(s.browser, s.auth, once, salt, text, PlainBytes)
}

// seal is RFC 8291, section 3.4, in the one record of RFC 8188 that RFC 8291
// allows: text, delimiter and zeros up to plainBytes, where that is more.
func seal(browser *ecdh.PublicKey, auth []byte, once *ecdh.PrivateKey, salt, text []byte, plainBytes int) ([]byte, error) {
	fail := func(err error) ([]byte, error) { return nil, fmt.Errorf("encrypt a push message: %w", err) }
	shared, err := once.ECDH(browser)
	if err != nil {
		return fail(err)
	}
	ours := once.PublicKey().Bytes()
	info := "WebPush: info\x00" + string(browser.Bytes()) + string(ours)
	ikm, err := hkdf.Key(sha256.New, shared, auth, info, 32)
	if err != nil {
		return fail(err)
	}
	prk, err := hkdf.Extract(sha256.New, ikm, salt)
	if err != nil {
		return fail(err)
	}
	key, err := hkdf.Expand(sha256.New, prk, "Content-Encoding: aes128gcm\x00", 16)
	if err != nil {
		return fail(err)
	}
	nonce, err := hkdf.Expand(sha256.New, prk, "Content-Encoding: nonce\x00", 12)
	if err != nil {
		return fail(err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return fail(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		return fail(err)
	}
	plain := make([]byte, max(plainBytes, len(text)+1))
	copy(plain, text)
	plain[len(text)] = lastRecord

	// The header: salt, record size, length of the key, key.
	const recordBytes = 4096
	out := make([]byte, 0, saltBytes+4+1+len(ours)+len(plain)+tagBytes)
	out = append(out, salt...)
	out = binary.BigEndian.AppendUint32(out, recordBytes)
	out = append(out, byte(len(ours)))
	out = append(out, ours...)
	return gcm.Seal(out, nonce, plain, nil), nil
}

// authorization is the header by which the service knows that the message is of
// whom the subscription was made for (RFC 8292, section 2).
func (s *Subscription) authorization(now time.Time) (string, error) {
	claims := struct {
		Aud string `json:"aud"`
		Exp int64  `json:"exp"`
		Sub string `json:"sub,omitempty"`
	}{s.endpoint.Scheme + "://" + s.endpoint.Host, now.Add(tokenTime).Unix(), s.subject}
	body, err := json.Marshal(claims)
	if err != nil {
		return "", fmt.Errorf("sign a push message: %w", err)
	}
	b64 := base64.RawURLEncoding
	signed := b64.EncodeToString([]byte(`{"typ":"JWT","alg":"ES256"}`)) + "." + b64.EncodeToString(body)
	sum := sha256.Sum256([]byte(signed))
	r, v, err := ecdsa.Sign(rand.Reader, s.vapid, sum[:])
	if err != nil {
		return "", fmt.Errorf("sign a push message: %w", err)
	}
	// JWS wants the two numbers side by side (RFC 7518, section 3.4).
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	v.FillBytes(signature[32:])
	public, err := s.vapid.PublicKey.Bytes()
	if err != nil {
		return "", fmt.Errorf("sign a push message: %w", err)
	}
	return "vapid t=" + signed + "." + b64.EncodeToString(signature) + ", k=" + b64.EncodeToString(public), nil
}
