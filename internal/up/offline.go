package up

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"holdfast/internal/account"
	"holdfast/internal/engine"
	"holdfast/internal/sshserver"
	"holdfast/internal/state"
	"holdfast/internal/wire"
)

// Offline is a state directory of `up` on which nothing runs: what its relay's
// store and its agent's files say, for a person who has lost a device and must
// not have to start anything first.
type Offline struct {
	dir     state.Dir
	id      Identity
	home    string
	store   engine.Store
	release func()
}

// OpenOffline locks the directory: state.ErrLocked if something runs on it after
// all, state.ErrNotRunning if it has no relay of its own, whose store could be
// asked. home is the home directory of authorized_keys.
func OpenOffline(ctx context.Context, dir state.Dir, home string) (*Offline, error) {
	id, err := LoadIdentity(dir)
	if err != nil || id.Relay != "" || !dir.Has(state.StoreFile) {
		return nil, state.ErrNotRunning
	}
	release, err := dir.Lock("devices")
	if err != nil {
		return nil, err
	}
	store, err := engine.OpenSQLite(ctx, dir.Path(state.StoreFile), engine.SQLiteOptions{NoFollow: true})
	if err != nil {
		release()
		return nil, err
	}
	return &Offline{dir: dir, id: id, home: home, store: store, release: release}, nil
}

// Close gives the directory back.
func (o *Offline) Close() error {
	defer o.release()
	return o.store.Close()
}

// Devices lists the devices that may enter.
func (o *Offline) Devices(ctx context.Context) ([]wire.DeviceInfo, error) {
	list, err := o.store.Devices(ctx, account.Owner)
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	var out []wire.DeviceInfo
	for _, d := range list {
		if !d.Revoked.IsZero() {
			continue
		}
		info := wire.DeviceInfo{ID: d.ID, Name: d.Name, Key: d.Key, Created: d.Created}
		if !d.Used.IsZero() {
			info.Used = &d.Used
		}
		out = append(out, info)
	}
	return out, nil
}

// Revoke takes a device's rights away, in the store and on this machine.
func (o *Offline) Revoke(ctx context.Context, id string) error {
	devices, err := o.Devices(ctx)
	if err != nil {
		return err
	}
	key := ""
	for _, d := range devices {
		if d.ID == id {
			key = d.Key
		}
	}
	return errors.Join(o.store.RevokeDevice(ctx, account.Owner, id), o.revokeHere(id, key))
}

// revokeHere removes the device's key and its authorized_keys line, as a running
// agent does when it is told.
func (o *Offline) revokeHere(id, key string) error {
	path := o.dir.Path("")
	keys, err := sshserver.LoadOrCreateHostKeys(path)
	if err != nil {
		return err
	}
	devices, err := sshserver.OpenDeviceKeys(path)
	if err != nil {
		return err
	}
	s, err := sshserver.New(sshserver.Options{
		Machine: o.id.Machine, HostKeys: keys, Devices: devices, Home: o.home, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	defer s.Close()
	return s.Revoke(id, key)
}
