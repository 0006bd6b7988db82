// Package webpush sends messages to a browser through its vendor's push service:
// RFC 8030, encrypted for the browser (RFC 8291) and signed with the key that
// the subscription was made for (RFC 8292).
//
// It keeps nothing, retries nothing and never follows a redirect. What a caller
// will get wrong: an endpoint is a secret, for whoever has it and the key can
// send; it belongs into no log and no error. The service sees the sizes and
// times of messages, so every message has the same size here, and what it says
// is up to the caller.
package webpush

import (
	"bytes"
	"context"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	// MaxEndpointBytes bounds an endpoint. The services' have 150 to 700 bytes.
	MaxEndpointBytes = 2 << 10
	// MaxSubjectBytes bounds the contact in a token.
	MaxSubjectBytes = 512
	// PlainBytes is how long every message is before encryption, padding and its
	// delimiter included. Half holds 8 ids, twice costs a phone a packet more.
	PlainBytes = 512
	// MaxMessageBytes is what fits into a message.
	MaxMessageBytes = PlainBytes - 1

	// MaxTTL is the longest time that a service is asked to keep a message.
	MaxTTL = 28 * 24 * time.Hour
	// sendTimeout bounds one request. A service answers within a second.
	sendTimeout = 20 * time.Second
	// maxRetryAfter bounds what a service may ask to wait.
	maxRetryAfter = time.Hour
)

// A Subscription is where one browser takes messages, and the keys for it.
type Subscription struct {
	endpoint *url.URL
	browser  *ecdh.PublicKey // p256dh
	auth     []byte          // 16 bytes
	vapid    *ecdsa.PrivateKey
	subject  string
}

// Raw is a Subscription as it travels and is kept: base64url without padding.
type Raw struct {
	Endpoint string `json:"endpoint"` // https
	P256dh   string `json:"p256dh"`   // the browser's public key, 65 bytes
	Auth     string `json:"auth"`     // the browser's secret, 16 bytes
	VAPID    string `json:"vapid"`    // the private key that the subscription was made for, 32 bytes
	// Subject is whom a push service can reach, an https or mailto address;
	// optional, though some services refuse a message without one.
	Subject string `json:"subject,omitempty"`
}

// New checks a subscription. Its errors name the field and never its value.
func New(r Raw) (*Subscription, error) {
	u, err := endpoint(r.Endpoint)
	if err != nil {
		return nil, err
	}
	s := &Subscription{endpoint: u, subject: r.Subject}
	if err := checkSubject(r.Subject); err != nil {
		return nil, err
	}
	point, err := decode("p256dh", r.P256dh, 65)
	if err != nil {
		return nil, err
	}
	if s.browser, err = ecdh.P256().NewPublicKey(point); err != nil {
		return nil, errors.New("p256dh is no point of the curve P-256")
	}
	if s.auth, err = decode("auth", r.Auth, 16); err != nil {
		return nil, err
	}
	scalar, err := decode("vapid", r.VAPID, 32)
	if err != nil {
		return nil, err
	}
	if s.vapid, err = ecdsa.ParseRawPrivateKey(elliptic.P256(), scalar); err != nil {
		return nil, errors.New("vapid is no private key of the curve P-256")
	}
	return s, nil
}

func endpoint(text string) (*url.URL, error) {
	if len(text) > MaxEndpointBytes {
		return nil, fmt.Errorf("the endpoint has %d bytes, at most %d are allowed", len(text), MaxEndpointBytes)
	}
	u, err := url.Parse(text)
	// The parser's own words hold the address.
	if err != nil || u.Host == "" || u.Hostname() == "" || u.Opaque != "" {
		return nil, errors.New("the endpoint is no address")
	}
	switch {
	case u.Scheme != "https":
		return nil, errors.New("the endpoint is not https")
	case u.User != nil:
		return nil, errors.New("the endpoint holds a user name")
	case u.Fragment != "":
		return nil, errors.New("the endpoint holds a fragment")
	}
	return u, nil
}

func checkSubject(s string) error {
	if s == "" {
		return nil
	}
	u, err := url.Parse(s)
	if len(s) > MaxSubjectBytes || err != nil || u.Scheme != "https" && u.Scheme != "mailto" || u.User != nil {
		return errors.New("the subject is no https or mailto address")
	}
	return nil
}

func decode(what, text string, want int) ([]byte, error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(b) != want {
		return nil, fmt.Errorf("%s is not %d bytes in base64url without padding", what, want)
	}
	return b, nil
}

// Host is the push service's name, and all of the endpoint that may be shown.
func (s *Subscription) Host() string { return s.endpoint.Hostname() }

// An Urgency is how much battery a message is worth (RFC 8030, section 5.3).
type Urgency string

// The urgencies that are sent.
const (
	Normal Urgency = "normal"
	High   Urgency = "high"
)

// Message is one message.
type Message struct {
	Text []byte // at most MaxMessageBytes
	// TTL is how long the service keeps it for a browser that is away.
	TTL time.Duration
	// Topic makes it replace a message that waits with the same topic: 1 to 32
	// characters of base64url, which the service can read. Empty for none.
	Topic   string
	Urgency Urgency
}

// Errors of Send, beside those of the network, which never hold the endpoint.
var (
	// ErrGone says that the subscription ended and will never work again.
	ErrGone = errors.New("the push service has ended the subscription")
	// ErrRefused says that the service does not take this message.
	ErrRefused = errors.New("the push service refuses the message")
	// ErrLater says that the service, or the path to it, may work later.
	ErrLater = errors.New("the push service could not be reached or does not take messages now")
)

// An Answer is why a message was not taken. It is ErrGone, ErrRefused or
// ErrLater.
type Answer struct {
	kind   error
	Status int    // of HTTP; 0 where none came
	Detail string // what failed, where no status came
	// After is what the service asks to wait, at most an hour; zero where it
	// does not say.
	After time.Duration
}

func (a *Answer) Error() string {
	if a.Status != 0 {
		return fmt.Sprintf("%v (status %d)", a.kind, a.Status)
	}
	return fmt.Sprintf("%v: %s", a.kind, a.Detail)
}

// Unwrap makes errors.Is work.
func (a *Answer) Unwrap() error { return a.kind }

// Client sends. Close frees its connections.
type Client struct{ http *http.Client }

// NewClient makes a Client. proxy may be nil; it is asked with the endpoint.
func NewClient(proxy func(*url.URL) (*url.URL, error)) *Client {
	t := &http.Transport{
		ForceAttemptHTTP2: true, MaxIdleConns: 8, IdleConnTimeout: 30 * time.Second,
		TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: sendTimeout,
		// A service's answer has ten short headers.
		MaxResponseHeaderBytes: 16 << 10,
	}
	if proxy != nil {
		t.Proxy = func(r *http.Request) (*url.URL, error) { return proxy(r.URL) }
	}
	return &Client{&http.Client{
		Transport: t, Timeout: sendTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Close frees the idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Send sends one message and returns when the service has taken it, which does
// not mean that the browser has it. The error is an *Answer, or the caller's
// mistake.
func (c *Client) Send(ctx context.Context, s *Subscription, m Message) error {
	if len(m.Text) > MaxMessageBytes {
		return fmt.Errorf("send a push message: it has %d bytes, at most %d are allowed", len(m.Text), MaxMessageBytes)
	}
	if m.TTL < 0 || m.TTL > MaxTTL {
		return fmt.Errorf("send a push message: a time to live of %v", m.TTL)
	}
	if !topicOK(m.Topic) {
		return errors.New("send a push message: its topic is not 1 to 32 characters of base64url")
	}
	body, err := s.encrypt(m.Text)
	if err != nil {
		return err
	}
	token, err := s.authorization(time.Now())
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.endpoint.String(), bytes.NewReader(body))
	if err != nil {
		return errors.New("send a push message: the endpoint is no address")
	}
	req.Header.Set("Authorization", token)
	req.Header.Set("Content-Encoding", "aes128gcm")
	req.Header.Set("Content-Type", "application/octet-stream")
	req.Header.Set("TTL", strconv.Itoa(int(m.TTL/time.Second)))
	if m.Topic != "" {
		req.Header.Set("Topic", m.Topic)
	}
	if m.Urgency != "" {
		req.Header.Set("Urgency", string(m.Urgency))
	}
	req.Header.Set("User-Agent", "holdfast")
	resp, err := c.http.Do(req)
	if err != nil {
		// url.Error names the address.
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err
		}
		return &Answer{kind: ErrLater, Detail: s.hide(err.Error())}
	}
	defer resp.Body.Close()
	// What it says is for nobody; a little is read so that the connection serves again.
	io.Copy(io.Discard, io.LimitReader(resp.Body, 4<<10))
	return judge(resp)
}

// hide takes what names the endpoint out of a text.
func (s *Subscription) hide(text string) string {
	for _, secret := range []string{s.endpoint.String(), s.endpoint.RequestURI()} {
		if len(secret) > 1 {
			text = strings.ReplaceAll(text, secret, "…")
		}
	}
	return text
}

func topicOK(t string) bool {
	for _, r := range t {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_') {
			return false
		}
	}
	return len(t) <= 32
}

// judge says what an answer means (RFC 8030, sections 5 and 8.4).
func judge(resp *http.Response) error {
	a := &Answer{Status: resp.StatusCode}
	switch code := resp.StatusCode; {
	case code >= 200 && code < 300:
		return nil
	case code == http.StatusNotFound || code == http.StatusGone:
		a.kind = ErrGone
	case code == http.StatusTooManyRequests || code == http.StatusRequestTimeout || code >= 500:
		a.kind = ErrLater
		a.After = retryAfter(resp.Header.Get("Retry-After"), time.Now())
	default:
		a.kind = ErrRefused
	}
	return a
}

func retryAfter(text string, now time.Time) time.Duration {
	if n, err := strconv.Atoi(text); err == nil {
		return min(max(0, time.Duration(min(n, 1<<20))*time.Second), maxRetryAfter)
	}
	if at, err := http.ParseTime(text); err == nil {
		return min(max(0, at.Sub(now)), maxRetryAfter)
	}
	return 0
}

// NewAnswer makes the answer of a service, for tests of those who send. kind is
// ErrGone, ErrRefused or ErrLater.
func NewAnswer(kind error, status int, after time.Duration) *Answer {
	return &Answer{kind: kind, Status: status, After: after}
}
