package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpproxy"

	"holdfast/internal/pairing"
	"holdfast/internal/wire"
	"holdfast/internal/wsconn"
)

const (
	// apiTimeout bounds one request, dial-back of a machine included: ten
	// seconds of that, and as much for a slow path. Half cuts a proof short.
	apiTimeout = 20 * time.Second
	// maxAnswerBytes bounds an answer: the list of 1,000 machines with their
	// services is about 500 KB.
	maxAnswerBytes = 2 << 20
	// maxProblemBytes bounds an error, of which one line is shown.
	maxProblemBytes = 16 << 10
)

// ParseRelayURL reads the URL of a relay: http or https, a host, and perhaps a
// path; no user, query or fragment. Plain http is taken for this computer only
// (wsconn.ErrPlainHTTP) unless insecure is set. A trailing slash is dropped.
func ParseRelayURL(s string, insecure bool) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil {
		// The error of url.Parse repeats its input, which may be a pasted link.
		return nil, fmt.Errorf("relay URL: %w", wire.ErrSyntax)
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("relay URL does not start with https:// or http://: %w", wire.ErrSyntax)
	}
	if err := wsconn.CheckRelay(u, insecure); err != nil {
		return nil, err
	}
	u.Path = strings.TrimRight(u.Path, "/")
	u.RawPath = ""
	return u, nil
}

// RelayError is a relay's refusal of a request, or what somebody else said in
// its place.
type RelayError struct {
	Doing      string // "list machines"
	Relay      string // its URL
	Status     int
	Refusal    wire.Refusal // empty: it was not the relay that answered
	Detail     string       // what the relay says to do, cleaned
	RetryAfter time.Duration
}

func (e *RelayError) Error() string {
	said := e.Detail
	if said == "" {
		said = http.StatusText(e.Status)
	}
	if e.Refusal == "" {
		return fmt.Sprintf("%s at %s: %d %s (the answer is not from a Holdfast relay)", e.Doing, e.Relay, e.Status, said)
	}
	return fmt.Sprintf("%s at %s: %s (%d)", e.Doing, e.Relay, said, e.Status)
}

// Denied reports whether the relay itself said that this may not be: asking
// again with the same token is useless.
func (e *RelayError) Denied() bool {
	return e.Refusal != "" && (e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden)
}

// APIOptions are those of NewAPI.
type APIOptions struct {
	Relay *url.URL   // required
	Token wire.Token // required but for Redeem
	// Proxy holds the values of HTTPS_PROXY, HTTP_PROXY and NO_PROXY; nil uses
	// none.
	Proxy *httpproxy.Config
}

// API asks one relay with one token. It is safe for concurrent use.
type API struct {
	relay *url.URL
	token wire.Token
	http  *http.Client
}

// NewAPI makes an API; Close ends its idle connections.
func NewAPI(o APIOptions) (*API, error) {
	if o.Relay == nil {
		return nil, errors.New("relay API: no relay")
	}
	var proxy func(*http.Request) (*url.URL, error)
	if o.Proxy != nil {
		find := o.Proxy.ProxyFunc()
		proxy = func(r *http.Request) (*url.URL, error) { return find(r.URL) }
	}
	return &API{relay: o.Relay, token: o.Token, http: &http.Client{
		Timeout: apiTimeout,
		Transport: &http.Transport{
			Proxy:               proxy,
			TLSHandshakeTimeout: 10 * time.Second,
			IdleConnTimeout:     30 * time.Second,
			ForceAttemptHTTP2:   true,
			// A header longer than this is nobody's whom we talk to.
			MaxResponseHeaderBytes: 32 << 10,
		},
		// A redirect could carry the token elsewhere; a relay sends none.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Close ends the connections that are kept for the next request.
func (a *API) Close() { a.http.CloseIdleConnections() }

// Access asks what the token may do, and whether machine is there; machine may
// be empty.
func (a *API) Access(ctx context.Context, machine wire.MachineID) (wire.Access, error) {
	path := wire.PathAccess
	if machine != "" {
		path += "?machine=" + url.QueryEscape(string(machine))
	}
	var out wire.Access
	err := a.call(ctx, "ask for access", http.MethodGet, path, nil, &out)
	return out, err
}

// Machines lists the machines of the account, with what the relay knows of each.
func (a *API) Machines(ctx context.Context) (wire.Machines, error) {
	var out wire.Machines
	err := a.call(ctx, "list machines", http.MethodGet, wire.PathMachines, nil, &out)
	return out, err
}

// Devices lists the devices that may enter.
func (a *API) Devices(ctx context.Context) ([]wire.DeviceInfo, error) {
	var out wire.Devices
	err := a.call(ctx, "list devices", http.MethodGet, wire.PathDevices, nil, &out)
	return out.Devices, err
}

// RevokeDevice revokes a device by its id.
func (a *API) RevokeDevice(ctx context.Context, id string) error {
	return a.call(ctx, "revoke device", http.MethodDelete, wire.PathDevices+"/"+url.PathEscape(id), nil, nil)
}

// OpenPairing tells the relay the hash of a link's relay secret. The token must
// be an agent's.
func (a *API) OpenPairing(ctx context.Context, hash [32]byte, ttl time.Duration) (wire.PairingOpened, error) {
	var out wire.PairingOpened
	err := a.call(ctx, "open a pairing link", http.MethodPost, wire.PathPairings, wire.OpenPairing{
		Hash: pairing.FormatHash(hash), TTLSeconds: int(ttl.Seconds()),
	}, &out)
	return out, err
}

// ClosePairing takes a link back.
func (a *API) ClosePairing(ctx context.Context, hash [32]byte) error {
	return a.call(ctx, "close a pairing link", http.MethodDelete,
		wire.PathPairings+"/"+pairing.FormatHash(hash), nil, nil)
}

// Redeem exchanges a link's relay secret for a token of this device's own.
func (a *API) Redeem(ctx context.Context, r wire.RedeemPairing) (wire.PairingRedeemed, error) {
	var out wire.PairingRedeemed
	err := a.call(ctx, "redeem the pairing link", http.MethodPost, wire.PathRedeem, r, &out)
	return out, err
}

func (a *API) call(ctx context.Context, doing, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("%s: encode request: %w", doing, err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, a.relay.String()+path, body)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	req.Header.Set("Accept", "application/json, application/problem+json")
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if !a.token.IsZero() {
		req.Header.Set("Authorization", "Bearer "+a.token.Secret())
	}
	resp, err := a.http.Do(req)
	if err != nil {
		// Not the *url.Error: a pairing's hash is in the URL.
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return fmt.Errorf("%s at %s: %w", doing, a.relay, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return a.refusal(doing, resp)
	}
	if out == nil {
		return nil
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes+1))
	if err != nil {
		return fmt.Errorf("%s at %s: read answer: %w", doing, a.relay, err)
	}
	if len(b) > maxAnswerBytes {
		return fmt.Errorf("%s at %s: the answer has more than %d bytes", doing, a.relay, maxAnswerBytes)
	}
	if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); kind != "application/json" {
		// A portal's page, or another server at that address.
		return &RelayError{Doing: doing, Relay: a.relay.String(), Status: resp.StatusCode}
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("%s at %s: the answer is not understood: %w", doing, a.relay, err)
	}
	return nil
}

func (a *API) refusal(doing string, resp *http.Response) error {
	e := &RelayError{
		Doing: doing, Relay: a.relay.String(), Status: resp.StatusCode,
		Refusal: wire.Refusal(wire.CleanReason(resp.Header.Get(wire.HeaderRefusal))),
	}
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 {
		e.RetryAfter = time.Duration(min(s, 3600)) * time.Second
	}
	if resp.StatusCode/100 == 3 {
		e.Detail = "it redirects elsewhere; give the address it redirects to"
		return e
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxProblemBytes))
	if err != nil {
		return e
	}
	var p wire.Problem
	if json.Unmarshal(b, &p) == nil {
		e.Detail = wire.CleanReason(p.Detail)
		if e.Detail == "" {
			e.Detail = wire.CleanReason(p.Title)
		}
	}
	return e
}
