package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"holdfast/internal/wire"
	"holdfast/internal/wsconn"
)

// maxSeen is how many connIDs are remembered, to ignore one that comes again. A
// relay uses each once, within wire.DialTimeout.
const maxSeen = 4096

// seen remembers the newest connIDs.
type seen struct {
	set  map[wire.ConnID]bool
	ring []wire.ConnID
	at   int
}

// add reports whether id is new.
func (s *seen) add(id wire.ConnID) bool {
	if s.set[id] {
		return false
	}
	if s.set == nil {
		s.set = make(map[wire.ConnID]bool)
	}
	if len(s.ring) < maxSeen {
		s.ring = append(s.ring, id)
	} else {
		delete(s.set, s.ring[s.at])
		s.ring[s.at] = id
		s.at = (s.at + 1) % maxSeen
	}
	s.set[id] = true
	return true
}

// stream is one dial, from its message to the end of its bytes.
type stream struct {
	id     wire.ConnID
	device string
	cancel context.CancelCauseFunc

	conn *wsconn.Stream // guarded by Agent.mu; nil until the dial-back succeeded
	a    *Agent
}

// end closes the stream, or gives its dial up.
func (s *stream) end(code wire.CloseCode, reason string) {
	s.a.mu.Lock()
	conn := s.conn
	s.a.mu.Unlock()
	if conn != nil {
		conn.CloseSoon(code, reason)
	}
	s.cancel(errors.New(reason))
}

// endDevice ends every stream of a device.
func (a *Agent) endDevice(device string) {
	if device == "" {
		return
	}
	a.mu.Lock()
	var found []*stream
	for _, s := range a.streams {
		if s.device == device {
			found = append(found, s)
		}
	}
	a.mu.Unlock()
	for _, s := range found {
		// Side by side: a peer that takes nothing must not keep the next one open.
		a.work.Go(func() { s.end(wire.CloseUnauthorized, "device revoked") }) // ends within CloseSoon's limits
	}
}

// refusal is why a dial is not served.
type refusal struct {
	code   wire.CloseCode
	reason string
}

func (r *refusal) Error() string { return r.reason }

// dial begins to serve a dial that came on c. It returns at once.
func (a *Agent) dial(ctx context.Context, c *wsconn.Control, m wire.Message) {
	id, err := wire.ParseConnID(string(m.ConnID))
	if err != nil {
		a.mu.Lock()
		a.status.Dropped++
		a.mu.Unlock()
		return
	}
	a.mu.Lock()
	if a.stopping {
		a.mu.Unlock()
		return
	}
	fresh := a.seen.add(id)
	full := len(a.streams) >= a.opt.MaxStreams
	var s *stream
	if fresh && !full {
		var streamCtx context.Context
		s = &stream{id: id, device: m.Device, a: a}
		streamCtx, s.cancel = context.WithCancelCause(a.ctx)
		a.streams[id] = s
		a.work.Go(func() { a.serve(streamCtx, c, s, m) }) // ends with streamCtx, the stream or its service
	}
	a.mu.Unlock()
	switch {
	case !fresh:
		a.log.Debug("dial came twice", "conn", string(id))
	case full:
		a.refuse(c, id, &refusal{wire.CloseServiceRefused, fmt.Sprintf("machine has %d streams open, its limit", a.opt.MaxStreams)})
	}
}

func (a *Agent) refuse(c *wsconn.Control, id wire.ConnID, r *refusal) {
	a.log.Info("dial refused", "conn", string(id), "code", int(r.code), "err", r.reason)
	if err := send(c, wire.Message{Op: wire.OpRefuse, ConnID: id, Code: r.code, Reason: wire.CleanReason(r.reason)}); err != nil {
		a.log.Debug("refuse not sent", "conn", string(id), "err", err)
	}
}

// serve connects the service, dials back and passes bytes until either ends.
func (a *Agent) serve(ctx context.Context, c *wsconn.Control, s *stream, m wire.Message) {
	log := a.log.With("conn", string(s.id))
	defer func() {
		s.cancel(nil)
		a.mu.Lock()
		delete(a.streams, s.id)
		a.mu.Unlock()
	}()
	start := time.Now()
	handle, local, err := a.service(ctx, m)
	if err == nil {
		err = a.dialBack(ctx, s, m)
	}
	if err != nil {
		if local != nil {
			local.Close()
		}
		var r *refusal
		if errors.As(err, &r) && ctx.Err() == nil {
			a.refuse(c, s.id, r)
		}
		return
	}
	log.Info("stream open", "service", string(m.Service), "device", m.Device, "took", time.Since(start))
	if handle != nil {
		stop := context.AfterFunc(ctx, s.conn.CloseNow)
		handle(ctx, s.conn, DialInfo{Conn: s.id, Device: m.Device})
		stop()
		s.conn.Close()
	} else {
		err = wsconn.Join(ctx, s.conn, local)
	}
	log.Info("stream closed", "took", time.Since(start), "text", s.conn.TextMode(), "err", err)
}

// service finds what the dial asks for and connects it.
func (a *Agent) service(ctx context.Context, m wire.Message) (handle func(context.Context, net.Conn, DialInfo), local net.Conn, err error) {
	if m.Proto != "" && m.Proto != wire.SubprotocolV1 {
		return nil, nil, &refusal{wire.CloseServiceRefused, "machine does not speak " + m.Proto}
	}
	name, addr := "sshd", a.opt.SSHD
	if m.Service != "" {
		s, ok := a.opt.Services[m.Service]
		if !ok {
			return nil, nil, &refusal{wire.CloseNotFound, fmt.Sprintf("machine has no service %q", m.Service)}
		}
		if s.Handle != nil {
			return s.Handle, nil, nil
		}
		name, addr = string(m.Service), s.Addr
	}
	if addr == "" {
		return nil, nil, &refusal{wire.CloseNotFound, "machine offers no sshd; use the built-in server: service ssh"}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, wire.ServiceTimeout,
		fmt.Errorf("no answer within %v", wire.ServiceTimeout))
	defer cancel()
	network, target := "tcp", addr
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		network, target = "unix", path
	}
	local, err = a.opt.DialService(ctx, network, target)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		var op *net.OpError
		if errors.As(err, &op) {
			err = op.Err // the address is in the sentence already
		}
		return nil, nil, &refusal{wire.CloseServiceRefused, fmt.Sprintf("%s at %s: %v", name, addr, err)}
	}
	return nil, local, nil
}

// dialBack opens the machine's half of the stream.
func (a *Agent) dialBack(ctx context.Context, s *stream, m wire.Message) error {
	o, err := a.dialOptions(ctx)
	if err == nil {
		o.Path = wire.AgentDataPath(a.opt.Machine, s.id)
		if m.Node != "" {
			node, nodeErr := followNode(a.opt.Relay, m.Node)
			if nodeErr == nil {
				o.Relay = node
			} else {
				a.log.Warn("the dial's node is not followed", "conn", string(s.id), "err", nodeErr)
			}
		}
		var conn *wsconn.Stream
		conn, err = wsconn.DialStream(ctx, o, wsconn.StreamOptions{
			Side: wsconn.AgentSide, Base64Compat: true, Liveness: &a.data,
		})
		if err == nil {
			a.mu.Lock()
			s.conn = conn
			a.status.LastDialBack, a.status.DialBackError = time.Now(), ""
			a.mu.Unlock()
			return nil
		}
	}
	a.mu.Lock()
	a.status.DialBackError = err.Error()
	a.mu.Unlock()
	a.log.Warn("dial-back did not reach the relay", "conn", string(s.id), "err", err)
	var answer *wsconn.Refusal
	if errors.As(err, &answer) && answer.Believed() {
		return err // the relay knows: the device has gone, or the time is over
	}
	return &refusal{wire.CloseServiceRefused, "machine could not open its data connection: " + err.Error()}
}

// followNode turns a dial's node into a base URL. It is followed over TLS only,
// and only to the configured relay's host or a name under it: a relay must not
// be able to send the token elsewhere.
func followNode(relay *url.URL, node string) (*url.URL, error) {
	if !strings.Contains(node, "://") {
		node = "https://" + node
	}
	u, err := url.Parse(node)
	if err != nil || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Opaque != "" || (u.Path != "" && u.Path != "/") {
		return nil, errors.New("node is not a host")
	}
	if u.Scheme != "https" && u.Scheme != "wss" || relay.Scheme != "https" && relay.Scheme != "wss" {
		return nil, errors.New("node is not reached over TLS")
	}
	base, host := canonical(relay.Hostname()), canonical(u.Hostname())
	if _, err := netip.ParseAddr(base); err == nil && host != base {
		return nil, errors.New("node is not under the relay's address")
	}
	if host == "" || host != base && !strings.HasSuffix(host, "."+base) {
		return nil, errors.New("node is not under the relay's name")
	}
	return &url.URL{Scheme: "https", Host: u.Host, Path: relay.Path}, nil
}

func canonical(host string) string { return strings.ToLower(strings.TrimSuffix(host, ".")) }

// CheckAddr checks the form of a service's address: HOST:PORT or unix:/PATH. The
// error wraps wire.ErrSyntax.
func CheckAddr(addr string) error {
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		if path == "" {
			return fmt.Errorf("address %q has no path: %w", addr, wire.ErrSyntax)
		}
		return nil
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil || host == "" || port == "" {
		return fmt.Errorf("address %q is not HOST:PORT: %w", addr, wire.ErrSyntax)
	}
	return nil
}
