package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"time"

	"holdfast/internal/agent"
	"holdfast/internal/console"
	"holdfast/internal/state"
	"holdfast/internal/up"
	"holdfast/internal/wire"
	"holdfast/internal/wsconn"
)

// Up runs relay and agent for this machine.
type Up struct {
	console.Connection
	agentFlags
	relayFlags
	Listen string `name:"listen" env:"HOLDFAST_LISTEN" default:"127.0.0.1:7700" placeholder:"ADDR" help:"Address of the relay (default ${default})."`
	Name   string `name:"name" env:"HOLDFAST_NAME" placeholder:"M" help:"Name of this machine (default: its host name)."`
	Relay  string `name:"relay" env:"HOLDFAST_RELAY" placeholder:"URL" help:"Use this relay instead of one of its own."`
}

// Run serves until a signal.
func (c *Up) Run(ctx context.Context, a *console.App) error {
	surviveReaders()
	dir, err := a.Dir()
	if err != nil {
		return err
	}
	u := &upRun{App: a, c: c, dir: dir, log: a.Logger(slog.LevelWarn)}
	u.upgrades = newUpgrades(a, dir, u.log)
	if done, err := u.upgrades.inherit(&u.from); done || err != nil {
		return err
	}
	unlock, err := u.upgrades.lock("up")
	if err != nil {
		return err
	}
	defer unlock()
	warnRoot(a, c.Shell == "off")
	if c.Relay != "" {
		return u.onRelay(ctx)
	}
	return u.alone(ctx)
}

// upRun is one run of `up`.
type upRun struct {
	*console.App
	c   *Up
	dir state.Dir
	log *slog.Logger

	relay  *up.Relay // nil with --relay
	public *url.URL  // where devices reach the relay
	agent  *up.Agent
	paired chan [2]string // id and name of devices that were paired
	linked bool           // a link was printed

	upgrades *upgrades
	from     up.RelayOptions // with what a former process has handed over
}

// alone runs a relay of its own.
func (u *upRun) alone(ctx context.Context) (err error) {
	ro, err := u.c.relayFlags.options(u.c.Listen, u.dir, u.c.Connection, u.log)
	if err != nil {
		return err
	}
	ro.StorePath, ro.Inherited = u.dir.Path(state.StoreFile), u.from.Inherited
	o, err := u.c.agentFlags.options(u.App, u.dir, u.c.Connection, u.log)
	if err != nil {
		return err
	}
	if u.relay, err = up.StartRelay(ctx, ro); err != nil {
		return explainListen(err)
	}
	// The agent ends first: its relay tells its devices why.
	defer func() { err = errors.Join(err, u.relay.Drain()) }()
	id, err := settle(u.dir, "", u.c.Name)
	if err != nil {
		return err
	}
	token, err := up.OwnToken(ctx, u.dir, u.relay.Store, id.Machine)
	if err != nil {
		return err
	}
	u.upgrades.serves(u.relay, id.Machine)
	u.public = u.relay.Public
	o.Machine, o.Relay, o.Public = id.Machine, u.relay.Local, u.public
	o.Token = func(context.Context) (wire.Token, error) { return token, nil }
	return u.serve(ctx, o, func() error {
		if u.JSON {
			err = emit(u.App, newListeningEvent(u.relay))
		} else {
			u.Say("Holdfast runs: relay and agent for machine %q.\n", id.Machine)
			u.Say("  address   %s%s", u.public, here(u.public))
		}
		if err == nil && u.relay.Kept != nil {
			err = u.upgrades.tell(u.relay.Kept)
		}
		return err
	})
}

// here marks an address that nobody else can reach.
func here(public *url.URL) string {
	if wsconn.IsLoopback(public.Hostname()) {
		return "  (this computer only)"
	}
	return ""
}

// onRelay runs the agent alone.
func (u *upRun) onRelay(ctx context.Context) error {
	f := agentRelay{Connection: u.c.Connection, agentFlags: u.c.agentFlags, Relay: u.c.Relay, Machine: u.c.Name}
	relay, o, err := f.target(u.App, u.dir)
	if err != nil {
		return err
	}
	o.Log = u.log
	u.public = relay
	return u.serve(ctx, o, func() error {
		if u.JSON {
			return emit(u.App, map[string]string{"event": "relay", "url": relay.String()})
		}
		u.Say("Holdfast runs: agent for machine %q.\n", o.Machine)
		u.Say("  relay     %s", relay)
		return nil
	})
}

// serve runs the agent until a signal or an end. Nothing is announced before the
// agent has found its files sound.
func (u *upRun) serve(ctx context.Context, o up.AgentOptions, announce func() error) (err error) {
	u.paired = make(chan [2]string, 8)
	o.Paired = func(id, name string) {
		select {
		case u.paired <- [2]string{id, name}:
		default: // it is only told, and told eight times already
		}
	}
	if u.agent, err = up.StartAgent(o); err != nil {
		return err
	}
	defer u.agent.Close()
	if err := announce(); err != nil {
		return err
	}
	if !u.JSON {
		u.Say("  machine   %s  (user %s)\n", o.Machine, u.agent.User())
	}
	var failed <-chan error
	if u.relay != nil {
		failed = u.relay.Failed()
		if err := u.printLink(ctx); err != nil {
			return err
		}
	}
	watch := newConnectionWatch(u.agent)
	for {
		select {
		case <-ctx.Done():
			u.log.Info("stopping")
			return nil
		case err := <-failed:
			return err
		case <-u.upgrades.asked:
			u.upgrades.try(ctx)
		case err := <-u.agent.Ended():
			if errors.Is(err, agent.ErrReplaced) {
				return replaced(err)
			}
			return err
		case d := <-u.paired:
			err = u.tellPaired(d[0], d[1])
		case <-watch.tick.C:
			if changed, connected, why := watch.look(); changed {
				err = u.tellMachine(ctx, o.Machine, connected, why)
			}
		}
		if err != nil {
			return err
		}
	}
}

// printLink opens and prints the first pairing link.
func (u *upRun) printLink(ctx context.Context) error {
	link, expires, err := u.agent.OpenLink(ctx)
	if err != nil {
		return err
	}
	u.linked = true
	if u.JSON {
		return emit(u.App, map[string]any{"event": "link", "link": link, "expires": expires.UTC()})
	}
	if err := u.App.PrintLink(link, expires); err != nil {
		return err
	}
	if u.relay != nil && wsconn.IsLoopback(u.public.Hostname()) {
		u.Say("\n%s", u.waysOut())
	}
	u.Say("\nAnother link, later:  %s", u.Words("pair"))
	return nil
}

// waysOut says how the relay in this process, on loopback, can be reached from
// elsewhere.
func (u *upRun) waysOut() string {
	return fmt.Sprintf(`Other computers cannot reach that address. For them, stop this and use one of:
  %s up --relay URL --token-file FILE
      a relay that exists
  %[1]s up --listen :443 --acme-domain NAME
      this computer, if others reach it at that name; it gets a certificate
  %[1]s up --listen :443 --tls-cert FILE --tls-key FILE --public-url https://NAME
      the same, with a certificate that you have
  %[1]s up --public-url https://NAME
      a reverse proxy, or your tailnet's https name, that leads to %s`,
		u.Program, u.relay.Listening.Host)
}

func (u *upRun) tellPaired(id, name string) error {
	if u.JSON {
		return emit(u.App, map[string]string{"event": "paired", "device": id, "name": name})
	}
	u.Say("paired with %q (%s); take it back with: %s", name, id, u.Words("devices", "revoke", id))
	return nil
}

// proofTimeout bounds a question to the relay, its dial-back included.
const proofTimeout = 15 * time.Second

// tellMachine tells that the machine's connection came or went. When it came,
// the relay is asked for a dial-back: connected is not yet reachable.
func (u *upRun) tellMachine(ctx context.Context, m wire.MachineID, connected bool, why string) error {
	if connected && !u.linked {
		if err := u.printLink(ctx); err != nil {
			// The relay was there a moment ago; the next connection tries again.
			console.Report(u.Err, err)
		}
	}
	e := machineEvent{Event: "machine", Machine: m, State: wire.StateOffline, Reason: why, Reachable: new(false)}
	if connected {
		ctx, cancel := context.WithTimeout(ctx, proofTimeout)
		info, err := u.agent.Machine(ctx)
		cancel()
		switch {
		case err != nil:
			e.State, e.Reason = wire.StateConnected, err.Error()
		default:
			e.State, e.Reason = info.State, info.Reason
			*e.Reachable = info.State == wire.StateReachable
		}
	}
	if u.JSON {
		return emit(u.App, e)
	}
	info := wire.MachineInfo{State: e.State, Reason: e.Reason}
	if *e.Reachable {
		info.ProvenAt = new(time.Now())
	}
	words := console.StateWords(info, time.Now())
	if e.Reason != "" && e.State != wire.StateUnreachable {
		words += ": " + console.OneLine(e.Reason)
	}
	u.Say("%s  %s: %s", time.Now().Format("15:04:05"), m, words)
	return nil
}
