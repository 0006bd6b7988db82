package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"time"

	"holdfast/internal/console"
	"holdfast/internal/relay/handover"
	"holdfast/internal/state"
	"holdfast/internal/up"
	"holdfast/internal/wire"
)

const (
	// lockPatience is how long the process after an upgrade waits for the lock of
	// its directory, which went free for a moment: a command may have taken it to
	// find out that nobody runs.
	lockPatience = 5 * time.Second
	lockPoll     = 5 * time.Millisecond
	// upgradePatience is how long the command waits for the running relay: the
	// check of the new program, the farewell of what cannot come along, the start.
	upgradePatience = 60 * time.Second
	// upgradePoll is how often it looks for the outcome.
	upgradePoll = 50 * time.Millisecond
	// maxUpgradeBytes bounds the file with the outcome.
	maxUpgradeBytes = 16 << 10
)

// outcome is how an upgrade went: an event, and what the command prints.
type outcome struct {
	Event   string    `json:"event"` // "upgraded" or "upgrade-failed"
	PID     int       `json:"pid"`
	At      time.Time `json:"at"`
	Version string    `json:"version"` // of the program that runs now
	// Of a success: what was kept, what was told to come back, and how long nothing
	// moved.
	From     string  `json:"from,omitempty"`
	Machines int     `json:"machines"`
	Streams  int     `json:"streams"`
	Dropped  int     `json:"dropped"`
	PauseMs  float64 `json:"pauseMs"`
	Error    string  `json:"error,omitempty"`
}

// upgrades is the part of a process with a relay that replaces it by a newer
// program, and that knows when it is such a program.
type upgrades struct {
	app   *console.App
	dir   state.Dir
	log   *slog.Logger
	asked chan os.Signal
	relay *up.Relay // nil before serves
	own   wire.MachineID
}

// newUpgrades listens for the signal from now on.
func newUpgrades(a *console.App, dir state.Dir, log *slog.Logger) *upgrades {
	u := &upgrades{app: a, dir: dir, log: log, asked: make(chan os.Signal, 1)}
	if upgradeSignal != nil {
		signal.Notify(u.asked, upgradeSignal)
	}
	return u
}

// inherit looks at what the process before has left. It is done where this one was
// only to say whether it could take over.
func (u *upgrades) inherit(o *up.RelayOptions) (done bool, err error) {
	switch u.app.Inherited {
	case "":
		return false, nil
	case handover.EnvCheck:
		return true, json.NewEncoder(u.app.Out).Encode(handover.Answer{Handover: handover.Version, Program: u.app.Version})
	}
	o.Inherited, err = handover.Open(u.app.Inherited)
	if err == nil {
		u.log.Info("read what the former process left", "took", time.Since(o.Inherited.Began))
	}
	return false, err
}

// lock takes the directory.
func (u *upgrades) lock(command string) (release func(), err error) {
	until := time.Now()
	if u.app.Inherited != "" {
		until = until.Add(lockPatience)
	}
	for {
		release, err = u.dir.Lock(command)
		if !errors.Is(err, state.ErrLocked) || !time.Now().Before(until) {
			return release, err
		}
		time.Sleep(lockPoll)
	}
}

// serves says which relay this process runs, and which machine's agent with it.
func (u *upgrades) serves(r *up.Relay, own wire.MachineID) { u.relay, u.own = r, own }

// tell says what was kept.
func (u *upgrades) tell(k *up.Kept) error {
	o := outcome{
		Event: "upgraded", Version: u.app.Version, From: k.From, Machines: k.Controls, Streams: k.Streams,
		Dropped: k.Dropped, PauseMs: float64(k.Pause.Microseconds()) / 1000,
	}
	u.note(&o)
	if u.app.JSON {
		return emit(u.app, o)
	}
	u.app.Say("%s", o.words())
	return nil
}

func (o outcome) words() string {
	return fmt.Sprintf("upgraded from %s to %s: %d machines and %d streams went on after %.0f ms; %d connections were told to come back",
		o.From, o.Version, o.Machines, o.Streams, o.PauseMs, o.Dropped)
}

// note leaves the outcome for the command that waits for it.
func (u *upgrades) note(o *outcome) {
	o.PID, o.At = os.Getpid(), time.Now().UTC()
	b, err := json.Marshal(o)
	if err == nil {
		err = state.WriteFile(u.dir.Path(state.UpgradeFile), append(b, '\n'), 0o600)
	}
	if err != nil {
		u.log.Warn("note how the upgrade went", "err", err)
	}
}

// try replaces this process. It returns only if that failed.
func (u *upgrades) try(ctx context.Context) {
	if u.relay == nil {
		u.log.Warn("asked for an upgrade, but this process runs no relay")
		u.note(&outcome{Event: "upgrade-failed", Version: u.app.Version, Error: "that process runs no relay of its own"})
		return
	}
	path, err := console.Self()
	if err == nil {
		u.log.Info("upgrading", "program", path)
		err = u.relay.Upgrade(ctx, up.UpgradeOptions{
			Path: path, Args: u.app.Args, Environ: u.app.Environ, Machine: u.own, Version: u.app.Version,
		})
	}
	u.log.Error("upgrade; everything goes on as before", "err", err)
	u.note(&outcome{Event: "upgrade-failed", Version: u.app.Version, Error: err.Error()})
}

type relayUpgrade struct{}

// Run asks the process that runs on the state directory and waits for it.
func (c *relayUpgrade) Run(ctx context.Context, a *console.App) error {
	if upgradeSignal == nil {
		return handover.ErrUnsupported
	}
	dir, err := a.Dir()
	if err != nil {
		return err
	}
	unlock, err := dir.Lock("upgrade")
	if err == nil {
		unlock()
		return &console.Failure{Code: console.ExitFailed, Err: errors.New("no relay runs on this state directory"), Hint: "give the --state DIR that the relay was started with"}
	}
	var held *state.LockedError
	if !errors.As(err, &held) {
		return err
	}
	if held.PID == 0 || held.Command != "relay" && held.Command != "up" {
		return &console.Failure{Code: console.ExitFailed, Err: err, Hint: "that is no relay; give the --state DIR of one"}
	}
	before := readOutcome(dir)
	running, err := os.FindProcess(held.PID)
	if err == nil {
		err = running.Signal(upgradeSignal)
	}
	if err != nil {
		return fmt.Errorf("ask process %d to upgrade: %w", held.PID, err)
	}
	tick := time.NewTicker(upgradePoll)
	defer tick.Stop()
	late := time.After(upgradePatience)
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-late:
			return &console.Failure{Code: console.ExitFailed, Err: fmt.Errorf("process %d has not said within %v how the upgrade went", held.PID, upgradePatience), Hint: "look at its log"}
		case <-tick.C:
		}
		o := readOutcome(dir)
		if o.At.IsZero() || o.At.Equal(before.At) {
			continue
		}
		if a.JSON {
			if err := a.Emit(o); err != nil {
				return err
			}
		}
		if o.Error != "" {
			return &console.Failure{Code: console.ExitFailed, Err: fmt.Errorf("upgrade process %d: %s", held.PID, o.Error), Hint: "the old program goes on as before"}
		}
		if !a.JSON {
			a.Say("%s", o.words())
		}
		return nil
	}
}

// readOutcome reads the last outcome; the zero one stands for none.
func readOutcome(dir state.Dir) (o outcome) {
	b, err := state.ReadFile(dir.Path(state.UpgradeFile), maxUpgradeBytes)
	if err != nil || json.Unmarshal(b, &o) != nil {
		return outcome{}
	}
	return o
}
