// Package jsonapi is the relay's JSON interface under /v1: what a token may do,
// which machines, devices and notices an account has, and the relay's part of
// pairing.
//
// It never holds a connection and never says anything of another account. What
// a caller will get wrong: pages call it from any origin with a bearer token in
// a header, so there are no cookies and no Origin check; and the state of a
// machine is asked of its holder for each answer, never remembered.
package jsonapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"holdfast/internal/account"
	"holdfast/internal/engine"
	"holdfast/internal/pairing"
	"holdfast/internal/relay/gate"
	"holdfast/internal/wire"
)

// pairingsPerMinute is how many links a token may open in a minute: a person
// opens one at a time, and each is a row until it ends.
const pairingsPerMinute = 30

// Options of New; all are required.
type Options struct {
	Store engine.Store
	Gate  *gate.Gate
	Log   *slog.Logger
	// Held reports whether anybody holds the machine's control connection now.
	Held func(ctx context.Context, k engine.Key) (bool, error)
	// Describe says what is known about machines now, and may take a few seconds
	// to prove them.
	Describe func(ctx context.Context, machines []engine.Machine) ([]wire.MachineInfo, error)
	// Over says how long a token is over a limit of streams, zero for not.
	Over func(t engine.Token) time.Duration
	// Refused counts a refusal.
	Refused func(code wire.Refusal)
}

// API is an http.Handler for every path that begins with /v1/, but the live
// channels.
type API struct {
	Options
	accounts *account.Accounts
	opened   *gate.Windows[string] // pairing links of a token in this minute
}

// New makes an API.
func New(o Options) (*API, error) {
	if o.Store == nil || o.Gate == nil || o.Log == nil || o.Held == nil || o.Describe == nil || o.Over == nil || o.Refused == nil {
		return nil, errors.New("jsonapi: every option is required")
	}
	accounts, err := account.New(account.Options{Store: o.Store})
	if err != nil {
		return nil, err
	}
	return &API{Options: o, accounts: accounts, opened: gate.NewWindows[string](pairingsPerMinute, time.Minute)}, nil
}

// call is one authenticated request.
type call struct {
	*http.Request
	token engine.Token
	rest  string // of the path, behind the route
}

type handler func(a *API, w http.ResponseWriter, c call) *gate.Refusal

// routes holds, for each path, its methods. A path that ends in a slash takes
// one more segment.
var routes = map[string]map[string]handler{
	wire.PathAccess:         {http.MethodGet: (*API).access},
	wire.PathMachines:       {http.MethodGet: (*API).machines},
	wire.PathDevices:        {http.MethodGet: (*API).devices},
	wire.PathDevices + "/":  {http.MethodDelete: (*API).revokeDevice},
	wire.PathPairings:       {http.MethodPost: (*API).openPairing},
	wire.PathPairings + "/": {http.MethodDelete: (*API).closePairing},
	wire.PathRedeem:         {http.MethodPost: (*API).redeem},
	wire.PathNotices:        {http.MethodGet: (*API).notices},
	wire.PathNotices + "/":  {http.MethodPost: (*API).readNotice},
}

// ServeHTTP answers one request.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Access-Control-Expose-Headers", "Retry-After, "+wire.HeaderRefusal)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	methods, rest := route(r.URL.EscapedPath())
	if methods == nil {
		a.refuse(w, gate.Refuse(http.StatusNotFound, wire.RefusalNotFound, "there is no such path under /v1"))
		return
	}
	if r.Method == http.MethodOptions {
		h.Set("Access-Control-Allow-Methods", allow(methods))
		h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type")
		h.Set("Access-Control-Max-Age", "7200") // the longest that Chromium keeps it
		w.WriteHeader(http.StatusNoContent)
		return
	}
	serve := methods[r.Method]
	if serve == nil {
		h.Set("Allow", allow(methods))
		a.refuse(w, gate.Refuse(http.StatusMethodNotAllowed, wire.RefusalSyntax, "this path takes "+allow(methods)))
		return
	}
	c := call{Request: r, rest: rest}
	if r.URL.EscapedPath() != wire.PathRedeem {
		var ref *gate.Refusal
		if c.token, ref = a.Gate.Token(r); ref != nil {
			a.refuse(w, ref)
			return
		}
	} else if ref := gate.Query(r); ref != nil {
		a.refuse(w, ref)
		return
	}
	// In a copy: the server must go on to see its own body in r, or it would ask
	// for one that nobody has read (Expect: 100-continue) before it answers.
	bounded := *r
	bounded.Body = http.MaxBytesReader(w, r.Body, wire.MaxAPIBodyBytes)
	c.Request = &bounded
	if ref := serve(a, w, c); ref != nil {
		a.refuse(w, ref)
	}
}

func route(path string) (methods map[string]handler, rest string) {
	// The one path with a segment in its middle.
	if strings.HasPrefix(path, wire.PathNotices+"/") {
		id, ok := strings.CutSuffix(path[len(wire.PathNotices)+1:], wire.AckSuffix)
		if !ok || id == "" || strings.Contains(id, "/") {
			return nil, ""
		}
		return routes[wire.PathNotices+"/"], id
	}
	i := strings.LastIndexByte(path, '/') + 1
	switch {
	case i == len(path):
		return nil, ""
	case routes[path] != nil:
		return routes[path], ""
	}
	return routes[path[:i]], path[i:]
}

func allow(methods map[string]handler) string {
	out := http.MethodOptions
	for m := range methods {
		out = m + ", " + out // every path has one method
	}
	return out
}

func (a *API) refuse(w http.ResponseWriter, ref *gate.Refusal) {
	a.Refused(ref.Code)
	ref.WriteProblem(w)
}

// access lets a page learn why a socket did not open, which a browser hides
// from it.
func (a *API) access(w http.ResponseWriter, c call) *gate.Refusal {
	out := wire.Access{Account: string(c.token.Account), Kind: string(c.token.Kind), Device: c.token.Device}
	if !c.token.Expires.IsZero() {
		out.Expires = new(c.token.Expires.UTC())
	}
	if names, asked := c.URL.Query()["machine"]; asked {
		if len(names) != 1 {
			return gate.Refuse(http.StatusBadRequest, wire.RefusalPath, "machine is given more than once")
		}
		m, err := wire.ParseMachineID(names[0])
		if err != nil {
			return gate.Refuse(http.StatusBadRequest, wire.RefusalPath, err.Error())
		}
		k := engine.Key{Account: c.token.Account, Machine: m}
		if c.token.Kind == engine.KindAgent && c.token.Machine != m {
			return gate.NotAllowed()
		}
		switch _, err := a.Store.Machine(c.Context(), k); {
		case errors.Is(err, engine.ErrNotFound):
			return gate.NotAllowed()
		case err != nil:
			return a.Gate.Unavailable("look up a machine", err)
		}
		held, err := a.Held(c.Context(), k)
		if err != nil {
			return a.Gate.Unavailable("ask for a machine's holder", err)
		}
		out.Machine, out.State = m, wire.StateOffline
		if held {
			out.State = wire.StateConnected
		}
	}
	if wait := a.Over(c.token); wait > 0 {
		return gate.TooMany(wait, "this token has too many streams; close some, or wait")
	}
	return a.answer(w, http.StatusOK, out)
}

func (a *API) machines(w http.ResponseWriter, c call) *gate.Refusal {
	list, err := a.Store.Machines(c.Context(), c.token.Account)
	if err != nil {
		return a.Gate.Unavailable("list machines", err)
	}
	infos, err := a.Describe(c.Context(), list)
	if err != nil {
		return a.Gate.Unavailable("ask for the machines' holders", err)
	}
	return a.answer(w, http.StatusOK, wire.Machines{Account: string(c.token.Account), Machines: infos})
}

func (a *API) devices(w http.ResponseWriter, c call) *gate.Refusal {
	list, err := a.Store.Devices(c.Context(), c.token.Account)
	if err != nil {
		return a.Gate.Unavailable("list devices", err)
	}
	out := wire.Devices{Devices: []wire.DeviceInfo{}}
	for _, d := range list {
		if !d.Revoked.IsZero() {
			continue
		}
		info := wire.DeviceInfo{ID: d.ID, Name: d.Name, Key: d.Key, Created: d.Created.UTC(), This: d.ID == c.token.Device}
		if !d.Used.IsZero() {
			info.Used = new(d.Used.UTC())
		}
		out.Devices = append(out.Devices, info)
	}
	return a.answer(w, http.StatusOK, out)
}

func (a *API) revokeDevice(w http.ResponseWriter, c call) *gate.Refusal {
	switch err := a.Store.RevokeDevice(c.Context(), c.token.Account, c.rest); {
	case errors.Is(err, engine.ErrNotFound):
		return gate.Refuse(http.StatusNotFound, wire.RefusalNotFound, "this account has no such device")
	case err != nil:
		return a.Gate.Unavailable("revoke a device", err)
	}
	a.Log.Info("device revoked", "account", c.token.Account)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (a *API) openPairing(w http.ResponseWriter, c call) *gate.Refusal {
	if c.token.Kind != engine.KindAgent {
		return gate.NotAllowed()
	}
	if c.token.Machine == "" {
		return gate.Refuse(http.StatusForbidden, wire.RefusalNotAllowed,
			"this agent token is not bound to a machine yet: let its agent connect first")
	}
	var in wire.OpenPairing
	if ref := read(c, &in); ref != nil {
		return ref
	}
	hash, err := parseHash(in.Hash)
	if err != nil {
		return syntax(err)
	}
	if in.TTLSeconds < 0 || in.TTLSeconds > int(wire.MaxPairingTTL/time.Second) {
		return syntax(account.ErrTTL)
	}
	if wait, ok := a.opened.Take(c.token.ID, time.Now()); !ok {
		return gate.TooMany(wait, "too many pairing links in a minute")
	}
	k := engine.Key{Account: c.token.Account, Machine: c.token.Machine}
	expires, err := a.accounts.OpenPairing(c.Context(), k, hash, time.Duration(in.TTLSeconds)*time.Second)
	switch {
	case errors.Is(err, wire.ErrSyntax):
		return syntax(err)
	case errors.Is(err, engine.ErrExists):
		return gate.Refuse(http.StatusConflict, wire.RefusalSyntax, "this pairing is open already: make a new secret")
	case errors.Is(err, engine.ErrNotFound):
		return gate.NotAllowed() // the machine or its account went meanwhile
	case err != nil:
		return a.Gate.Unavailable("open a pairing", err)
	}
	a.Log.Info("pairing opened", "account", k.Account, "machine", k.Machine)
	return a.answer(w, http.StatusCreated, wire.PairingOpened{Expires: expires})
}

func syntax(err error) *gate.Refusal {
	return gate.Refuse(http.StatusBadRequest, wire.RefusalSyntax, err.Error())
}

// closePairing asks for no more than the account's token: whoever knows the
// hash made the secret or holds the link.
func (a *API) closePairing(w http.ResponseWriter, c call) *gate.Refusal {
	hash, err := parseHash(c.rest)
	if err != nil {
		return gate.Refuse(http.StatusBadRequest, wire.RefusalPath, err.Error())
	}
	if err := a.Store.RemovePairing(c.Context(), hash); err != nil && !errors.Is(err, engine.ErrNotFound) {
		return a.Gate.Unavailable("close a pairing", err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// redeem is the one request without a token: the secret of an open link stands
// in its place, and guessing it counts as a failed authentication.
func (a *API) redeem(w http.ResponseWriter, c call) *gate.Refusal {
	var in wire.RedeemPairing
	if ref := read(c, &in); ref != nil {
		return ref
	}
	secret, err := pairing.ParseRelaySecret(in.Secret)
	if err != nil {
		return syntax(err)
	}
	got, err := a.accounts.Redeem(c.Context(), secret, in.Key, in.Name)
	switch {
	case errors.Is(err, wire.ErrSyntax):
		return syntax(err)
	case errors.Is(err, account.ErrNoPairing):
		ref := a.Gate.Fail(c.Request, wire.RefusalNotFound,
			"this pairing link is unknown, has expired, or was used by another device: make a new one with holdfast pair")
		if ref.Status == http.StatusUnauthorized {
			ref.Status = http.StatusNotFound
		}
		return ref
	case err != nil:
		return a.Gate.Unavailable("redeem a pairing", err)
	}
	a.Log.Info("device paired", "account", got.Device.Account, "machine", got.Machine)
	return a.answer(w, http.StatusOK, wire.PairingRedeemed{
		Token: got.Text.Secret(), Device: got.Device.ID, Account: string(got.Device.Account), Machine: got.Machine,
	})
}

func (a *API) answer(w http.ResponseWriter, status int, v any) *gate.Refusal {
	b, err := json.Marshal(v)
	if err != nil {
		a.Log.Error("encode an answer", "err", err)
		return gate.Refuse(http.StatusInternalServerError, wire.RefusalUnavailable, "the relay could not write its answer")
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n')) // an error means that the peer has gone
	return nil
}

func read(c call, into any) *gate.Refusal {
	dec := json.NewDecoder(c.Body)
	err := dec.Decode(into)
	var tooBig *http.MaxBytesError
	switch {
	case errors.As(err, &tooBig):
		return gate.Refuse(http.StatusRequestEntityTooLarge, wire.RefusalSyntax,
			fmt.Sprintf("the body is over %d bytes", tooBig.Limit))
	case err != nil || dec.More():
		return gate.Refuse(http.StatusBadRequest, wire.RefusalSyntax, "the body is not the JSON object that this path takes")
	}
	return nil
}

// parseHash also takes the padding that some encoders add.
func parseHash(s string) ([32]byte, error) { return pairing.ParseHash(strings.TrimSuffix(s, "=")) }
