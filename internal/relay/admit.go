package relay

import (
	"errors"
	"net/http"
	"strings"

	"holdfast/internal/engine"
	"holdfast/internal/relay/gate"
	"holdfast/internal/relay/handshake"
	"holdfast/internal/wire"
)

// negotiated is the last question before an upgrade: whether one is asked for,
// and in a version that is understood. If not, it has answered: 400 and 426, or
// for a browser, which could not see that, a socket that closes 4426.
func (r *Relay) negotiated(w http.ResponseWriter, req *http.Request, hs handshake.Request) bool {
	if hs.Plain {
		r.refuse(w, gate.Refuse(http.StatusBadRequest, wire.RefusalSyntax,
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
		r.refuse(w, gate.Refuse(http.StatusUpgradeRequired, wire.RefusalVersion, reason))
		return false
	}
	r.accept(w, req, sel.Protocol, wire.CloseVersion, reason)
	return false
}

// accept upgrades only to close with a code, for peers that would not see a
// refusal, or not believe it.
func (r *Relay) accept(w http.ResponseWriter, req *http.Request, protocol string, code wire.CloseCode, reason string) {
	conn, _, err := handshake.Upgrade(w, req, protocol)
	if err != nil {
		return
	}
	r.meter.Closed(code)
	r.own(conn, func() { handshake.Farewell(conn, code, reason) })
}

// failure turns an error of the store or router that a route got into its
// refusal.
func (r *Relay) failure(doing string, err error) *gate.Refusal {
	if errors.Is(err, engine.ErrNotFound) || errors.Is(err, engine.ErrBoundElsewhere) {
		return gate.NotAllowed()
	}
	return r.gate.Unavailable(doing, err)
}

// serveChannel is /v1/live/{channel}, its token verified.
func (r *Relay) serveChannel(w http.ResponseWriter, req *http.Request, hs handshake.Request, t engine.Token) *gate.Refusal {
	rt, ref := parseRoute(req)
	if ref != nil {
		return ref
	}
	if !r.feeds.Has(rt.Channel) {
		return gate.Refuse(http.StatusNotFound, wire.RefusalNotFound, "this relay has no such channel")
	}
	if ref := r.overStreams(t); ref != nil {
		return ref
	}
	if !r.negotiated(w, req, hs) {
		return nil
	}
	r.gate.Touch(t, req)
	r.feeds.Serve(w, req, t)
	return nil
}
