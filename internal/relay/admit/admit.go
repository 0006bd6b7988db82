// Package admit is the last step of a request that becomes a socket of the
// relay: the version that both speak, the upgrade that only closes again, and
// the question that is asked once more when the socket is in the axes.
//
// It verifies no token the first time; package gate does. What a caller will get
// wrong: a socket must be in the axes before Recheck is asked, or a revocation,
// or a drain, in between is missed.
package admit

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"holdfast/internal/engine"
	"holdfast/internal/liveness"
	"holdfast/internal/relay/changes"
	"holdfast/internal/relay/gate"
	"holdfast/internal/relay/handshake"
	"holdfast/internal/relay/meter"
	"holdfast/internal/wire"
)

// Base is how soon somebody is told to come back who came while the relay was
// told to go: nobody is told sooner.
const Base = time.Second

// Options of New; all are required.
type Options struct {
	Store engine.Store
	Gate  *gate.Gate
	Meter *meter.Meter
	Log   *slog.Logger
	// Background runs f in a goroutine that the owner waits for, or reports
	// that it does so no more; Context ends what f does.
	Background func(f func()) bool
	Context    context.Context
}

// Door is safe for concurrent use.
type Door struct {
	Options
	draining atomic.Bool
}

// New makes a Door.
func New(o Options) (*Door, error) {
	if o.Store == nil || o.Gate == nil || o.Meter == nil || o.Log == nil || o.Background == nil || o.Context == nil {
		return nil, errors.New("admit: every option is required")
	}
	return &Door{Options: o}, nil
}

// Shut lets nobody in until Open; those who are past the handshake already learn
// it from Recheck.
func (d *Door) Shut() { d.draining.Store(true) }

// Open ends Shut.
func (d *Door) Open() { d.draining.Store(false) }

// IsShut reports whether the relay is about to go.
func (d *Door) IsShut() bool { return d.draining.Load() }

// Draining is the refusal of a relay that is about to go, or nil.
func (d *Door) Draining() *gate.Refusal {
	if !d.draining.Load() {
		return nil
	}
	ref := gate.Refuse(http.StatusServiceUnavailable, wire.RefusalUnavailable, "this relay is restarting; come back soon")
	ref.RetryAfter = Base
	return ref
}

// Route parses the path of a WebSocket route.
func Route(req *http.Request) (wire.Route, *gate.Refusal) {
	rt, err := wire.ParseRoute(req.URL)
	if err != nil {
		return wire.Route{}, gate.Refuse(http.StatusBadRequest, wire.RefusalPath, err.Error())
	}
	return rt, nil
}

// Refuse counts a refusal and answers with it.
func (d *Door) Refuse(w http.ResponseWriter, ref *gate.Refusal) {
	d.Meter.Refused(ref.Code)
	ref.WriteLine(w)
}

// Negotiated is the last question before an upgrade: whether one is asked for,
// and in a version that is understood. If not, it has answered: 400 and 426, or
// for a browser, which could not see that, a socket that closes 4426.
func (d *Door) Negotiated(w http.ResponseWriter, req *http.Request, hs handshake.Request) bool {
	if hs.Plain {
		d.Refuse(w, gate.Refuse(http.StatusBadRequest, wire.RefusalSyntax,
			"this route takes WebSocket handshakes only; a proxy on the way may have removed Upgrade"))
		return false
	}
	sel := hs.Selected
	if sel.Understood {
		return true
	}
	const line = "this relay speaks " + wire.SubprotocolV1
	offered := make([]string, 0, 2)
	for _, p := range wire.Subprotocols(req.Header) {
		if !strings.HasPrefix(p, wire.BearerPrefix) {
			offered = append(offered, p)
		}
	}
	reason := wire.CleanReason(line + ", not " + strings.Join(offered, ", "))
	if sel.Protocol == "" {
		d.Refuse(w, gate.Refuse(http.StatusUpgradeRequired, wire.RefusalVersion, reason))
		return false
	}
	d.Accept(w, req, sel.Protocol, wire.CloseVersion, reason)
	return false
}

// Accept upgrades only to close with a code, for peers that would not see a
// refusal, or not believe it.
func (d *Door) Accept(w http.ResponseWriter, req *http.Request, protocol string, code wire.CloseCode, reason string) {
	conn, _, err := handshake.Upgrade(w, req, protocol)
	if err != nil {
		return
	}
	d.Own(conn, func() { d.Part(conn, code, reason) })
}

// Failure turns an error of the store or router that a route got into its
// refusal.
func (d *Door) Failure(doing string, err error) *gate.Refusal {
	if errors.Is(err, engine.ErrNotFound) || errors.Is(err, engine.ErrBoundElsewhere) {
		return gate.NotAllowed()
	}
	return d.Gate.Unavailable(doing, err)
}

// Own is Background for what a connection is handed to.
func (d *Door) Own(conn net.Conn, f func()) {
	if !d.Background(f) {
		_ = conn.Close() // whoever is closing has nothing to say to it
	}
}

// Part takes leave of a connection. A zero code means that the peer has hung up
// already.
func (d *Door) Part(conn net.Conn, code wire.CloseCode, reason string) {
	if code == 0 {
		_ = conn.Close()
		return
	}
	d.Meter.Closed(code)
	handshake.Farewell(conn, code, reason)
}

// Recheck asks again about a socket that is in the axes by now: whether the relay
// still takes sockets, the token is good and the machine is there. A zero code
// means yes.
func (d *Door) Recheck(k engine.Key, t engine.Token) (wire.CloseCode, string) {
	if code, reason := d.RecheckToken(d.Context, t); code != 0 {
		return code, reason
	}
	switch _, err := d.Store.Machine(d.Context, k); {
	case errors.Is(err, engine.ErrNotFound):
		return wire.CloseNotFound, changes.ReasonMachine
	case err != nil:
		return d.storeFails(k, err)
	}
	return 0, ""
}

// RecheckToken is Recheck of a socket that belongs to no machine.
func (d *Door) RecheckToken(ctx context.Context, t engine.Token) (wire.CloseCode, string) {
	if d.draining.Load() {
		return wire.CloseRestart, liveness.RestartReason(Base)
	}
	switch ref, err := d.Gate.Recheck(ctx, t); {
	case err != nil:
		return d.storeFails(engine.Key{Account: t.Account}, err)
	case ref == wire.RefusalTokenExpired:
		return wire.CloseUnauthorized, changes.ReasonExpired
	case ref == wire.RefusalTokenUnknown:
		// A store forgets tokens with their account only.
		return wire.CloseUnauthorized, changes.ReasonAccount
	case ref != "":
		return wire.CloseUnauthorized, changes.ReasonRevoked
	}
	return 0, ""
}

func (d *Door) storeFails(k engine.Key, err error) (wire.CloseCode, string) {
	d.Log.Error("the store fails", "account", k.Account, "machine", k.Machine, "err", err)
	return wire.CloseInternal, "the relay cannot reach its store"
}
