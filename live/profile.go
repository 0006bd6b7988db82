package live

import (
	"net/http"
	"net/url"
	"strings"
	"time"

	"holdfast/internal/liveness"
)

// Profile is how the two ends of a channel ask each other whether they live.
// Profiles are data; these two exist.
type Profile struct {
	// Name is "holdfast" or "hydro".
	Name string
	// ping and pong are whole text messages: the application's question, which
	// either side may send, and its answer.
	ping, pong string
	// protocols are the subprotocols that are selected when offered.
	protocols []string
	// asksByText says that the server's own question is ping and not a ping
	// frame of RFC 6455.
	asksByText bool
	// greets says that the server asks ping once Open has returned, where the
	// channel itself has sent nothing: a client takes whatever comes first, but
	// an answer to its own question, as the sign that the channel is open.
	greets    bool
	keepalive time.Duration
	silence   time.Duration // zero: two and a half keepalives
}

var (
	// Holdfast asks with {"op":"ping"} and keeps links awake with ping frames
	// every 25 s, below the 60 s of common proxies and half of the 30 s below
	// which a phone's radio would never sleep.
	Holdfast = &Profile{
		Name: "holdfast",
		ping: `{"op":"ping"}`, pong: `{"op":"pong"}`,
		protocols: []string{"holdfast.v1"},
		greets:    true,
		keepalive: 25 * time.Second,
	}
	// Hydro is what pages of a Hydro site speak: the texts ping and pong, asked
	// after 40 s without a word, given up after 80 s.
	Hydro = &Profile{
		Name: "hydro",
		ping: "ping", pong: "pong",
		asksByText: true,
		keepalive:  40 * time.Second,
		silence:    80 * time.Second,
	}
)

func (p *Profile) selects(offered string) bool {
	for _, known := range p.protocols {
		if offered == known {
			return true
		}
	}
	return false
}

// config is the judge's view of the options.
func (p *Profile) config(keepalive, silence, open time.Duration) liveness.Config {
	if keepalive == 0 {
		keepalive = p.keepalive
	}
	if silence == 0 {
		silence = p.silence
	}
	beat := keepalive
	if beat < 0 {
		beat = p.keepalive
	}
	if silence == 0 {
		silence = beat * 5 / 2
	}
	idle := silence / 2 // without a keepalive the judge's question is the only one
	if keepalive > 0 {
		idle = min(idle, beat)
	}
	t := liveness.Track{Probe: liveness.ProbeProtocol, Counts: liveness.InByte, Idle: idle, Window: silence - idle}
	c := liveness.Config{Ready: open}
	if p.asksByText {
		// The question after a quiet spell is the keepalive, as a Hydro server's is.
		t.Probe, t.Counts = liveness.ProbeApplication, liveness.InFrame
	} else if keepalive > 0 {
		c.Keepalive = keepalive
	}
	c.Tracks = []liveness.Track{t}
	return c
}

// originAllowed refuses a page of another site that would use the person's
// cookies: a WebSocket is not bound by the same-origin rule. Bearer tokens and
// clients that are no browsers are not concerned.
func (s *Server) originAllowed(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" || r.Header.Get("Cookie") == "" {
		return true
	}
	for _, o := range s.opt.Origins {
		if o == "*" || strings.EqualFold(o, origin) {
			return true
		}
	}
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, r.Host)
}
