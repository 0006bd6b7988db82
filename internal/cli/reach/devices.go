package reach

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"holdfast/internal/client"
	"holdfast/internal/console"
	"holdfast/internal/local"
	"holdfast/internal/pairing"
	"holdfast/internal/state"
	"holdfast/internal/up"
	"holdfast/internal/wire"
)

// Devices lists or revokes the devices that may enter. The flags stand here, so
// that its own help shows them.
type Devices struct {
	whose
	List   devicesList   `cmd:"" default:"withargs" hidden:"" help:"List the devices that may enter."`
	Revoke devicesRevoke `cmd:"" help:"Revoke a device: its token, its key and its open connections."`
}

// whose are the flags that choose an account where this computer knows several.
type whose struct {
	console.Connection
	Machine string `name:"machine" placeholder:"M" help:"Ask about the account of this paired machine, not of this computer's own agent."`
}

// deviceSource asks for an account's devices: the agent that runs here, or a
// relay.
type deviceSource struct {
	list   func(context.Context) ([]wire.DeviceInfo, error)
	revoke func(context.Context, string) error
}

// source finds who is to be asked. On a machine that is its own agent; on a
// paired computer the relay, with a device's token.
func (w whose) source(a *console.App) (deviceSource, error) {
	dir, err := a.Dir()
	if err != nil {
		return deviceSource{}, err
	}
	if w.Machine == "" && dir.Has(state.AgentFile) {
		return ownDevices(a, dir), nil
	}
	m, err := w.choose(dir)
	if err != nil {
		return deviceSource{}, err
	}
	target, err := m.Target("")
	if err != nil {
		return deviceSource{}, err
	}
	api, err := a.Dialer(w.Connection).API(target)
	if err != nil {
		return deviceSource{}, err
	}
	return deviceSource{list: api.Devices, revoke: api.RevokeDevice}, nil
}

// ownDevices asks the agent of this state directory; where none runs, its files.
func ownDevices(a *console.App, dir state.Dir) deviceSource {
	offline := func(ctx context.Context, use func(*up.Offline) error) error {
		home, err := a.Home()
		if err != nil {
			return err
		}
		o, err := up.OpenOffline(ctx, dir, home)
		if err != nil {
			return err
		}
		return errors.Join(use(o), o.Close())
	}
	return deviceSource{
		list: func(ctx context.Context) (list []wire.DeviceInfo, err error) {
			answer, err := a.Ask(ctx, local.Request{Op: local.OpDevices})
			if !errors.Is(err, state.ErrNotRunning) {
				return answer.Devices, err
			}
			err = offline(ctx, func(o *up.Offline) (err error) {
				list, err = o.Devices(ctx)
				return err
			})
			return list, err
		},
		revoke: func(ctx context.Context, id string) error {
			_, err := a.Ask(ctx, local.Request{Op: local.OpRevoke, Device: id})
			if !errors.Is(err, state.ErrNotRunning) {
				return err
			}
			return offline(ctx, func(o *up.Offline) error { return o.Revoke(ctx, id) })
		},
	}
}

func (w whose) choose(dir state.Dir) (client.Machine, error) {
	store := client.NewStore(dir)
	if w.Machine != "" {
		return store.Find(w.Machine)
	}
	all, err := store.All()
	if err != nil {
		return client.Machine{}, err
	}
	if len(all) == 0 {
		return client.Machine{}, &console.Failure{Code: console.ExitFailed, Err: errors.New("this computer neither runs an agent nor is paired with a machine"), Hint: "give the --state DIR of the agent"}
	}
	for _, m := range all[1:] {
		if m.Relay != all[0].Relay || m.Account != all[0].Account {
			return client.Machine{}, &console.Failure{Code: console.ExitUsage, Err: errors.New("this computer is paired through several accounts"), Hint: "choose one by --machine M"}
		}
	}
	return all[0], nil
}

type devicesList struct{}

// Run lists the devices.
func (*devicesList) Run(ctx context.Context, a *console.App, of *Devices) error {
	src, err := of.source(a)
	if err != nil {
		return err
	}
	devices, err := src.list(ctx)
	if err != nil {
		return err
	}
	now := time.Now()
	rows := [][]string{{"ID", "NAME", "KEY", "PAIRED", "LAST USED"}}
	for _, d := range devices {
		if a.JSON {
			if err := a.Emit(d); err != nil {
				return err
			}
			continue
		}
		name := d.Name
		if d.This {
			name += " (this computer)"
		}
		used := "never"
		if d.Used != nil {
			used = console.Ago(*d.Used, now)
		}
		key := "-"
		if k, err := pairing.ParseKey(d.Key); err == nil {
			key = k.Fingerprint()
		}
		rows = append(rows, []string{d.ID, name, key, console.Ago(d.Created, now), used})
	}
	if !a.JSON {
		if len(devices) == 0 {
			a.Say("No device may enter yet. holdfast pair prints a link for one.")
			return nil
		}
		console.Table(a.Out, rows)
	}
	return nil
}

type devicesRevoke struct {
	ID string `arg:"" help:"Id or name of the device, as holdfast devices lists it."`
}

// Run revokes one device.
func (c *devicesRevoke) Run(ctx context.Context, a *console.App, of *Devices) error {
	src, err := of.source(a)
	if err != nil {
		return err
	}
	devices, err := src.list(ctx)
	if err != nil {
		return err
	}
	d, err := findDevice(devices, c.ID)
	if err != nil {
		return err
	}
	if err := src.revoke(ctx, d.ID); err != nil {
		return fmt.Errorf("revoke device %s: %w", d.ID, err)
	}
	if a.JSON {
		return a.Emit(map[string]any{"revoked": d.ID, "name": d.Name})
	}
	a.Say("revoked %s (%s)", d.ID, d.Name)
	return nil
}

// findDevice finds a device by its id, or by its name if only one has it.
func findDevice(devices []wire.DeviceInfo, id string) (wire.DeviceInfo, error) {
	if i := slices.IndexFunc(devices, func(d wire.DeviceInfo) bool { return d.ID == id }); i >= 0 {
		return devices[i], nil
	}
	var named []wire.DeviceInfo
	for _, d := range devices {
		if strings.EqualFold(d.Name, id) {
			named = append(named, d)
		}
	}
	switch len(named) {
	case 1:
		return named[0], nil
	case 0:
		return wire.DeviceInfo{}, &console.Failure{Code: console.ExitFailed, Err: fmt.Errorf("revoke device: no device %q", id), Hint: "holdfast devices lists them"}
	}
	return wire.DeviceInfo{}, &console.Failure{Code: console.ExitUsage, Err: fmt.Errorf("revoke device: %d devices are called %q", len(named), id), Hint: "give the id that holdfast devices lists"}
}
