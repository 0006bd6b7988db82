package up

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/http/httpproxy"

	"holdfast/internal/agent"
	"holdfast/internal/client"
	"holdfast/internal/local"
	"holdfast/internal/netwatch"
	"holdfast/internal/pairing"
	"holdfast/internal/session/here"
	"holdfast/internal/session/proto"
	"holdfast/internal/sshserver"
	"holdfast/internal/state"
	"holdfast/internal/wire"
)

// AgentOptions are those of StartAgent.
type AgentOptions struct {
	Dir state.Dir // required, locked
	// Relay is where the agent connects, Public what pairing links say: required.
	Relay, Public *url.URL
	Machine       wire.MachineID // required
	// Token is asked at every attempt; required.
	Token func(context.Context) (wire.Token, error)
	// SSHD is the address of the machine's own sshd; empty offers none.
	SSHD string
	// Services are further ones by name, HOST:PORT or unix:/PATH each.
	Services map[wire.ServiceName]string
	ShellOff bool
	// Home is where shells start and authorized_keys is; empty means the one of
	// the user database. Environ is the environment of this process, for shells.
	Home    string
	Environ []string
	Version string
	// SessionsOff leaves the sessions of this machine unwatched and not offered.
	SessionsOff bool
	// Keepalive, InsecureHTTP and Proxy are those of agent.Options.
	Keepalive    time.Duration
	InsecureHTTP bool
	Proxy        *httpproxy.Config
	// Netwatch is how sleep, clock steps and network changes are noticed; its zero
	// value watches this computer.
	Netwatch netwatch.Options
	// Paired, if not nil, is told of each device that was paired.
	Paired func(id, name string)
	Log    *slog.Logger // required
}

// Agent is a machine's agent that runs: control connection, SSH server, pairing
// links, and the local socket.
type Agent struct {
	o      AgentOptions
	agent  *agent.Agent
	server *sshserver.Server
	keys   *sshserver.HostKeys
	here   *here.Here // nil with SessionsOff
	socket *local.Server

	cancel context.CancelFunc
	wg     sync.WaitGroup
	ended  chan error // capacity 1
}

// StartAgent loads or makes the machine's keys, and runs until Close.
func StartAgent(o AgentOptions) (_ *Agent, err error) {
	if o.Relay == nil || o.Public == nil || o.Token == nil || o.Log == nil {
		return nil, errors.New("start agent: relay, token and log are required")
	}
	a := &Agent{o: o, ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	a.cancel = cancel
	defer func() {
		if err != nil {
			a.Close()
		}
	}()
	stateDir := o.Dir.Path("")
	if a.keys, err = sshserver.LoadOrCreateHostKeys(stateDir); err != nil {
		return nil, err
	}
	devices, err := sshserver.OpenDeviceKeys(stateDir)
	if err != nil {
		return nil, err
	}
	so := sshserver.Options{
		Machine: o.Machine, HostKeys: a.keys, Devices: devices, Home: o.Home, Environ: o.Environ,
		ShellOff: o.ShellOff, SSHD: o.SSHD, LinkClosed: func(s pairing.Secret) { a.takeBack(ctx, s) },
		Logger: o.Log,
	}
	var streams map[local.Op]local.StreamHandler
	if !o.SessionsOff {
		if a.here, err = startHere(o, devices); err != nil {
			return nil, err
		}
		so.Subsystems = map[string]sshserver.Subsystem{
			proto.Subsystem: func(ctx context.Context, stream io.ReadWriteCloser, d sshserver.Device) {
				a.sessions(ctx, stream, d.ID)
			},
		}
		streams = map[local.Op]local.StreamHandler{
			local.OpSessions: func(ctx context.Context, stream io.ReadWriteCloser, q local.Request) {
				a.sessions(ctx, stream, q.Device)
			},
		}
	}
	if o.Paired != nil {
		so.Paired = func(d sshserver.Device) { o.Paired(d.ID, d.Name) }
	}
	if a.server, err = sshserver.New(so); err != nil {
		return nil, err
	}
	services := map[wire.ServiceName]agent.Service{
		wire.ServiceSSH: {Handle: func(ctx context.Context, conn net.Conn, info agent.DialInfo) {
			// Serve owns conn and ends with it; closing makes it end with ctx too.
			stop := context.AfterFunc(ctx, func() { conn.Close() })
			defer stop()
			a.server.Serve(conn, info.Device)
		}},
	}
	for name, addr := range o.Services {
		if name == wire.ServiceSSH {
			return nil, fmt.Errorf("service %q is the built-in SSH server", name)
		}
		services[name] = agent.Service{Addr: addr}
	}
	if a.agent, err = agent.New(agent.Options{
		Relay: o.Relay, Machine: o.Machine, Token: o.Token, SSHD: o.SSHD, Services: services,
		Revoke:  func(_ context.Context, device, key string) error { return a.letOut(device, key) },
		Version: o.Version, Keepalive: o.Keepalive, Proxy: o.Proxy, InsecureHTTP: o.InsecureHTTP,
		Log: o.Log,
	}); err != nil {
		return nil, err
	}
	if a.socket, err = local.Serve(o.Dir, a.answer, streams, o.Log); err != nil {
		return nil, err
	}
	watch := o.Netwatch
	if watch.Logger == nil {
		watch.Logger = o.Log
	}
	// Both ended by Close, which cancels ctx, the first also by another agent;
	// Close waits.
	a.wg.Go(func() { a.ended <- a.agent.Run(ctx) })
	a.wg.Go(func() {
		netwatch.Watch(ctx, watch, func(k netwatch.Kind) {
			o.Log.Info("links are probed", "cause", k.String())
			a.agent.Wake()
		})
	})
	return a, nil
}

// startHere begins to watch the sessions of this machine.
func startHere(o AgentOptions, devices *sshserver.DeviceKeys) (*here.Here, error) {
	home := o.Home
	if home == "" {
		var err error
		if home, err = os.UserHomeDir(); err != nil {
			return nil, fmt.Errorf("find the home directory: %w", err)
		}
	}
	calls := &here.PushOptions{Known: func(id string) bool {
		return slices.ContainsFunc(devices.All(), func(d sshserver.Device) bool { return d.ID == id })
	}}
	if o.Proxy != nil {
		calls.Proxy = o.Proxy.ProxyFunc()
	}
	return here.New(here.Options{
		StateDir: o.Dir.Path(""), Home: home, Environ: o.Environ, Machine: string(o.Machine),
		Program: "holdfast " + o.Version, Push: calls, Log: o.Log,
	})
}

// letOut ends that a device is let in, and that it is called.
func (a *Agent) letOut(device, key string) error {
	err := a.server.Revoke(device, key)
	if a.here != nil {
		err = errors.Join(err, a.here.ForgetDevices())
	}
	return err
}

// calls says how it stands with the devices that asked to be called when a
// session waits.
func (a *Agent) calls() []local.Call {
	if a.here == nil {
		return nil
	}
	states := a.here.PushStates()
	var out []local.Call
	for _, d := range a.server.Devices() {
		if s, ok := states[d.ID]; ok {
			out = append(out, local.Call{Device: d.ID, Name: d.Name, PushState: s})
		}
	}
	return out
}

// sessions serves one device.
func (a *Agent) sessions(ctx context.Context, stream io.ReadWriteCloser, device string) {
	if err := a.here.Serve(ctx, stream, device); err != nil && ctx.Err() == nil {
		a.o.Log.Info("a device's sessions ended", "device", device, "err", err)
	}
}

// Ended gives the error that ended the agent: agent.ErrReplaced.
func (a *Agent) Ended() <-chan error { return a.ended }

// Status is what the agent knows about itself.
func (a *Agent) Status() agent.Status { return a.agent.Status() }

// User is the OS user that paired devices become.
func (a *Agent) User() string { return a.server.User() }

// Close ends the agent, its sessions and its socket.
func (a *Agent) Close() {
	if a.socket != nil {
		a.socket.Close()
	}
	a.cancel()
	if a.server != nil {
		a.server.Close()
	}
	if a.here != nil {
		a.here.Close()
	}
	a.wg.Wait()
}

// api asks the agent's relay.
func (a *Agent) api(ctx context.Context) (*client.API, error) {
	token, err := a.o.Token(ctx)
	if err != nil {
		return nil, err
	}
	return client.NewAPI(client.APIOptions{Relay: a.o.Relay, Token: token, Proxy: a.o.Proxy})
}

// OpenLink opens a pairing link at the relay and here.
func (a *Agent) OpenLink(ctx context.Context) (text string, expires time.Time, err error) {
	api, err := a.api(ctx)
	if err != nil {
		return "", time.Time{}, err
	}
	defer api.Close()
	secret := pairing.NewSecret()
	hash := secret.RelaySecret().Hash()
	opened, err := api.OpenPairing(ctx, hash, pairing.TTL)
	if err != nil {
		return "", time.Time{}, err
	}
	// Whichever clock is behind decides; a link has whole seconds.
	expires = time.Now().Add(pairing.TTL)
	if opened.Expires.Before(expires) && opened.Expires.After(time.Now()) {
		expires = opened.Expires
	}
	expires = expires.Truncate(time.Second)
	text, err = pairing.Link{
		Relay: a.o.Public.String(), Machine: a.o.Machine, HostKeys: a.keys.Public(), Secret: secret, Expires: expires,
	}.Encode()
	if err == nil {
		err = a.server.OpenLink(secret, expires)
	}
	if err != nil {
		return "", time.Time{}, errors.Join(err, api.ClosePairing(ctx, hash))
	}
	return text, expires, nil
}

// takeBack closes a link at the relay that was closed here. The relay forgets it
// within minutes anyway, so a failure is only logged.
func (a *Agent) takeBack(ctx context.Context, secret pairing.Secret) {
	// Ends within the API's own time limit or with the agent; Close waits.
	a.wg.Go(func() {
		api, err := a.api(ctx)
		if err == nil {
			defer api.Close()
			err = api.ClosePairing(ctx, secret.RelaySecret().Hash())
		}
		if err != nil && ctx.Err() == nil {
			a.o.Log.Warn("a closed pairing link is still open at the relay until it expires", "err", err)
		}
	})
}

// Machine asks the relay about this machine: whether a device can really get in,
// which the relay finds out by a dial-back.
func (a *Agent) Machine(ctx context.Context) (wire.MachineInfo, error) {
	list, err := a.machines(ctx)
	if err != nil {
		return wire.MachineInfo{}, err
	}
	i := slices.IndexFunc(list.Machines, func(m wire.MachineInfo) bool { return m.Machine == a.o.Machine })
	if i < 0 {
		return wire.MachineInfo{Machine: a.o.Machine, State: wire.StateOffline}, nil
	}
	return list.Machines[i], nil
}

func (a *Agent) machines(ctx context.Context) (wire.Machines, error) {
	api, err := a.api(ctx)
	if err != nil {
		return wire.Machines{}, err
	}
	defer api.Close()
	return api.Machines(ctx)
}

// answer serves the local socket.
func (a *Agent) answer(ctx context.Context, q local.Request) local.Answer {
	var out local.Answer
	var err error
	switch q.Op {
	case local.OpPair:
		out.Link, out.Expires, err = a.OpenLink(ctx)
	case local.OpDevices:
		out.Devices, err = a.devices(ctx)
	case local.OpRevoke:
		err = a.revoke(ctx, q.Device)
	case local.OpMachines:
		out.Relay = a.o.Public.String()
		var list wire.Machines
		list, err = a.machines(ctx)
		out.Machines = &list
	case local.OpStatus:
		out.Agent, err = json.Marshal(a.Status())
		out.Calls = a.calls()
	default:
		err = fmt.Errorf("the holdfast that is running does not know %q: it is of another version; restart it", q.Op)
	}
	if err != nil {
		return a.explain(err)
	}
	return out
}

// explain tells the asking process what went wrong between here and the relay.
func (a *Agent) explain(err error) local.Answer {
	out := local.Answer{Error: err.Error()}
	var refused *client.RelayError
	if errors.As(err, &refused) {
		out.Denied = refused.Denied()
		if out.Denied {
			out.Hint = "the relay does not accept this machine's token; make a new one there with holdfast token create"
		}
		return out
	}
	if s := a.agent.Status(); s.LastError != "" && s.ConnectedSince.IsZero() {
		out.Hint = "the agent is not connected: " + s.LastError
	}
	return out
}

// devices lists who may enter: what the relay says, with the devices that only
// this machine knows.
func (a *Agent) devices(ctx context.Context) ([]wire.DeviceInfo, error) {
	api, err := a.api(ctx)
	if err != nil {
		return nil, err
	}
	defer api.Close()
	list, err := api.Devices(ctx)
	if err != nil {
		return nil, err
	}
	for _, d := range a.server.Devices() {
		if slices.ContainsFunc(list, func(l wire.DeviceInfo) bool { return l.Key == d.Key.Line() }) {
			continue
		}
		info := wire.DeviceInfo{ID: d.ID, Name: d.Name, Key: d.Key.Line(), Created: d.Added}
		if !d.Used.IsZero() {
			info.Used = &d.Used
		}
		list = append(list, info)
	}
	return list, nil
}

// revoke takes a device's rights away, here at once and at the relay for every
// machine of the account. What could be done is done even if the other fails.
func (a *Agent) revoke(ctx context.Context, id string) error {
	if id == "" {
		return errors.New("revoke device: no id")
	}
	known := slices.ContainsFunc(a.server.Devices(), func(d sshserver.Device) bool { return d.ID == id })
	here := a.letOut(id, "")
	api, err := a.api(ctx)
	if err == nil {
		defer api.Close()
		err = api.RevokeDevice(ctx, id)
	}
	var refused *client.RelayError
	if known && errors.As(err, &refused) && refused.Status == http.StatusNotFound {
		err = nil // only this machine knew it
	}
	if err != nil && known {
		err = fmt.Errorf("this machine lets it in no more, but the relay could not be told, so its token still works: %w", err)
	}
	return errors.Join(here, err)
}
