package serve

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"holdfast/internal/agent"
	"holdfast/internal/client"
	"holdfast/internal/console"
	"holdfast/internal/state"
	"holdfast/internal/up"
	"holdfast/internal/wire"
)

// tokenEnv holds an agent's token, for containers.
const tokenEnv = "HOLDFAST_TOKEN"

// agentFlags are the flags of an agent, alone or in `up`.
type agentFlags struct {
	SSHD      string   `name:"sshd" env:"HOLDFAST_SSHD" default:"127.0.0.1:22" placeholder:"ADDR|off" help:"The machine's own sshd (default ${default})."`
	Shell     string   `name:"shell" env:"HOLDFAST_SHELL" enum:"on,off" default:"on" placeholder:"on|off" help:"Whether the built-in SSH server gives paired devices a shell (default on)."`
	Sessions  string   `name:"sessions" env:"HOLDFAST_SESSIONS" enum:"on,off" default:"on" placeholder:"on|off" help:"off: watch no tmux session, and offer none to devices."`
	Service   []string `name:"service" env:"HOLDFAST_SERVICE" placeholder:"NAME=ADDR" help:"Offer another service: HOST:PORT or unix:/PATH."`
	TokenFile string   `name:"token-file" env:"HOLDFAST_TOKEN_FILE" placeholder:"FILE" type:"path" help:"File that holds the agent's token (or HOLDFAST_TOKEN in the environment)."`
}

// options are up's, with relay, machine and token left to fill in.
func (f agentFlags) options(a *console.App, dir state.Dir, c console.Connection, log *slog.Logger) (up.AgentOptions, error) {
	o := up.AgentOptions{
		Dir: dir, ShellOff: f.Shell == "off", SessionsOff: f.Sessions == "off", Environ: a.Environ, Version: a.Version,
		Keepalive: c.Keepalive, InsecureHTTP: c.InsecureHTTP, Proxy: a.Proxy, Log: log,
		Services: map[wire.ServiceName]string{},
	}
	// The person's own word for the home directory, if it is one.
	if home := a.Getenv("HOME"); filepath.IsAbs(home) {
		o.Home = home
	}
	if f.SSHD != "off" && f.SSHD != "" {
		if err := agent.CheckAddr(f.SSHD); err != nil {
			return o, &console.Failure{Code: console.ExitUsage, Err: fmt.Errorf("--sshd %q: want HOST:PORT or off", f.SSHD)}
		}
		o.SSHD = f.SSHD
	}
	for _, s := range f.Service {
		name, addr, ok := strings.Cut(s, "=")
		n, err := wire.ParseServiceName(name)
		if !ok || err != nil || agent.CheckAddr(addr) != nil {
			return o, &console.Failure{Code: console.ExitUsage, Err: fmt.Errorf("--service %q: want NAME=HOST:PORT or NAME=unix:/PATH", s)}
		}
		if n == wire.ServiceSSH {
			return o, &console.Failure{Code: console.ExitUsage, Err: errors.New("--service ssh: that name is the built-in SSH server's")}
		}
		o.Services[n] = addr
	}
	return o, nil
}

// tokenSource finds the token for a relay that exists: the file, else the
// environment, else what the state directory was given for the same relay
// before. The file is read at every attempt, so that it can be exchanged.
func (f agentFlags) tokenSource(a *console.App, dir state.Dir, relay string) (func(context.Context) (wire.Token, error), error) {
	if f.TokenFile != "" {
		if _, err := up.ReadToken(f.TokenFile); err != nil {
			return nil, &console.Failure{Code: console.ExitFailed, Err: err, Hint: "holdfast token create --kind agent on the relay's computer prints a token to put there"}
		}
		return func(context.Context) (wire.Token, error) { return up.ReadToken(f.TokenFile) }, nil
	}
	if text := a.Getenv(tokenEnv); text != "" {
		t, err := wire.ParseToken(strings.TrimSpace(text))
		if err != nil {
			return nil, &console.Failure{Code: console.ExitUsage, Err: fmt.Errorf("%s: %w", tokenEnv, err)}
		}
		return func(context.Context) (wire.Token, error) { return t, nil }, nil
	}
	if id, err := up.LoadIdentity(dir); err == nil && id.Relay == relay && dir.Has(state.AgentTokenFile) {
		path := dir.Path(state.AgentTokenFile)
		return func(context.Context) (wire.Token, error) { return up.ReadToken(path) }, nil
	}
	return nil, &console.Failure{Code: console.ExitUsage, Err: errors.New("an agent needs a token for its relay"), Hint: "give --token-file FILE or " + tokenEnv + "; holdfast token create --kind agent on the relay's computer prints one"}
}

// settle decides which machine this state directory is.
func settle(dir state.Dir, relay, name string) (up.Identity, error) {
	var asked wire.MachineID
	if name != "" {
		var err error
		if asked, err = wire.ParseMachineID(name); err != nil {
			return up.Identity{}, &console.Failure{Code: console.ExitUsage, Err: err}
		}
	}
	// A host without a name gets a fixed one.
	hostname, _ := os.Hostname()
	id, err := up.Settle(dir, relay, asked, hostname)
	var other *up.MachineError
	if errors.As(err, &other) {
		return id, &console.Failure{Code: console.ExitUsage, Err: err, Hint: "leave the name out, or give the other machine its own --state DIR"}
	}
	return id, err
}

// warnRoot says what running as root means.
func warnRoot(a *console.App, shellOff bool) {
	if os.Geteuid() == 0 && !shellOff {
		a.Note("warning: this runs as root, so every paired device gets a root shell; run it as yourself, or with --shell off")
	}
}

// Agent runs the agent alone, or installs it as a service. The flags stand here,
// so that its own help shows them.
type Agent struct {
	agentRelay
	// Launchd starts again whatever ends, so there an agent that was replaced
	// stays and does nothing.
	StayReplaced bool         `name:"stay-when-replaced" hidden:"" help:"Stay idle instead of ending when another agent has taken the name."`
	Run          agentRun     `cmd:"" default:"withargs" hidden:"" help:"Run the agent."`
	Install      agentInstall `cmd:"" help:"Install the agent as a user service of systemd or launchd."`
}

// agentRelay are the flags that say who the agent is and where.
type agentRelay struct {
	console.Connection
	agentFlags
	Relay   string `name:"relay" env:"HOLDFAST_RELAY" placeholder:"URL" help:"The relay to be reached through."`
	Machine string `name:"machine" env:"HOLDFAST_MACHINE" placeholder:"M" help:"Name of this machine (default: its host name)."`
}

// target settles relay, machine and token.
func (f agentRelay) target(a *console.App, dir state.Dir) (*url.URL, up.AgentOptions, error) {
	var none up.AgentOptions
	if f.Relay == "" {
		id, err := up.LoadIdentity(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, none, err
		}
		if f.Relay = id.Relay; f.Relay == "" {
			return nil, none, &console.Failure{Code: console.ExitUsage, Err: errors.New("missing flag --relay=URL"), Hint: "give the address of a relay; holdfast up makes one of its own"}
		}
	}
	relay, err := client.ParseRelayURL(f.Relay, f.InsecureHTTP)
	if err != nil {
		err = fmt.Errorf("--relay: %w", err)
		if errors.Is(err, wire.ErrSyntax) {
			err = &console.Failure{Code: console.ExitUsage, Err: err, Hint: "give an https URL without query, such as https://relay.example"}
		}
		return nil, none, err
	}
	o, err := f.options(a, dir, f.Connection, a.Logger(slog.LevelInfo))
	if err != nil {
		return nil, none, err
	}
	if o.Token, err = f.tokenSource(a, dir, relay.String()); err != nil {
		return nil, none, err
	}
	id, err := settle(dir, relay.String(), f.Machine)
	if err != nil {
		return nil, none, err
	}
	o.Machine, o.Relay, o.Public = id.Machine, relay, relay
	return relay, o, nil
}

type agentRun struct{}

// machineEvent tells whether this machine can be reached.
type machineEvent struct {
	Event   string            `json:"event"` // "machine"
	Machine wire.MachineID    `json:"machine"`
	State   wire.MachineState `json:"state"`
	// Reachable says that a dial-back through the relay reached the machine;
	// only `up` asks for that.
	Reachable *bool  `json:"reachable,omitempty"`
	Reason    string `json:"reason,omitempty"`
}

// Run runs the agent until a signal.
func (*agentRun) Run(ctx context.Context, a *console.App, c *Agent) error {
	surviveReaders()
	dir, err := a.Dir()
	if err != nil {
		return err
	}
	unlock, err := dir.Lock("agent")
	if err != nil {
		return err
	}
	defer unlock()
	relay, o, err := c.target(a, dir)
	if err != nil {
		return err
	}
	warnRoot(a, o.ShellOff)
	ag, err := up.StartAgent(o)
	if err != nil {
		return err
	}
	defer ag.Close()
	if !a.JSON {
		a.Say("agent for machine %q on relay %s (user %s)", o.Machine, relay, ag.User())
	}
	watch := newConnectionWatch(ag)
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-ag.Ended():
			return c.ended(ctx, a, err)
		case <-watch.tick.C:
		}
		if changed, up, why := watch.look(); changed {
			e := machineEvent{Event: "machine", Machine: o.Machine, State: wire.StateOffline, Reason: why}
			if up {
				e.State = wire.StateConnected
			}
			if a.JSON {
				err = emit(a, e)
			} else if up {
				a.Say("connected; a device is let in by: %s", a.Words("pair"))
			} else {
				a.Say("not connected: %s", console.OneLine(why))
				if ag.Status().Refused {
					a.Say("the relay is asked again hourly; if the token was made for another name, give that by --machine, " +
						"else make a new token at the relay: holdfast token create")
				}
			}
			if err != nil {
				return err
			}
		}
	}
}

// ended turns the agent's end into an exit code.
func (c *Agent) ended(ctx context.Context, a *console.App, err error) error {
	if !errors.Is(err, agent.ErrReplaced) {
		return err
	}
	f := replaced(err)
	if !c.StayReplaced {
		return f
	}
	console.Report(a.Err, f)
	a.Note("staying idle, because it would only be started again")
	<-ctx.Done()
	return nil
}

// replaced is the error of an agent whose name another one took.
func replaced(err error) *console.Failure {
	return &console.Failure{Code: console.ExitDenied, Err: err, Hint: "two computers run as the same machine: was a state directory copied? Stop one, or give one its own name and token"}
}

// connectionWatch tells when an agent's connection has come or gone.
type connectionWatch struct {
	agent *up.Agent
	tick  *time.Ticker
	known bool
	up    bool
	began time.Time
}

// lookInterval is how often the agent's state is looked at: it costs a lock.
const lookInterval = 100 * time.Millisecond

// firstPatience is how long a first connection may take before it is called
// missing: a handshake's limit.
const firstPatience = 10 * time.Second

func newConnectionWatch(ag *up.Agent) *connectionWatch {
	return &connectionWatch{agent: ag, tick: time.NewTicker(lookInterval), began: time.Now()}
}

// look reports a change: whether the relay has answered that a dial would
// arrive, and if not why.
func (w *connectionWatch) look() (changed, connected bool, why string) {
	s := w.agent.Status()
	connected = s.Proven
	if !connected {
		why = s.LastError
	}
	if !connected && !w.known && !s.Refused && time.Since(w.began) < firstPatience {
		return false, false, ""
	}
	changed = !w.known || connected != w.up
	w.known, w.up = true, connected
	return changed, connected, why
}
