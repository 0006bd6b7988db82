package sshserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"holdfast/internal/pairing"
	"holdfast/internal/state"
	"holdfast/internal/wire"
)

const (
	// devicesVersion is the version of the file's form.
	devicesVersion = 1
	// maxDevices bounds what pairing can add: a person has ten devices, a
	// hundred is a leak somewhere.
	maxDevices = 256
	// maxDevicesBytes bounds the file: 256 entries take 80 KB.
	maxDevicesBytes = 1 << 20
	// usedGrain is how exact the last use is kept, so that a busy device does
	// not write the file for each connection.
	usedGrain = time.Minute
)

// ErrTooManyDevices says that no further device can be paired.
var ErrTooManyDevices = fmt.Errorf("this machine has %d devices already; revoke one first", maxDevices)

// Device is a phone, tablet or laptop that this machine lets in.
type Device struct {
	// ID is what a person revokes it by: the relay's where the relay said one,
	// else made from the key.
	ID    string
	Name  string
	Key   pairing.Key
	Added time.Time
	Used  time.Time // last connection, a minute late at most; zero for never
}

// deviceRecord is a Device in the file.
type deviceRecord struct {
	ID    string    `json:"id"`
	Name  string    `json:"name"`
	Key   string    `json:"key"`
	Added time.Time `json:"added"`
	Used  time.Time `json:"used,omitzero"`
}

type devicesRecord struct {
	V       int            `json:"v"`
	Devices []deviceRecord `json:"devices"`
}

// DeviceKeys are the devices that a machine lets in, kept in devices.json of
// the state directory. A file that cannot be read is an error for as long as it
// is there: an empty list in its place would lock everybody out, and writing
// that list would make it final.
type DeviceKeys struct {
	path string
	// mu guards the fields below, and the file against a second writer.
	mu      sync.Mutex
	devices []Device
	stale   bool // the file still has a device that was removed
}

// OpenDeviceKeys reads the devices of a state directory; a missing file means
// none. Only one process may hold a state directory.
func OpenDeviceKeys(dir string) (*DeviceKeys, error) {
	d := &DeviceKeys{path: filepath.Join(dir, state.DevicesFile)}
	info, err := os.Stat(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		return d, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read device keys: %w", err)
	}
	if info.Mode().Perm()&0o022 != 0 {
		return nil, fmt.Errorf("read device keys: others may write %s (mode %04o), so they could let themselves in; check it, then chmod 600", d.path, info.Mode().Perm())
	}
	text, err := state.ReadFile(d.path, maxDevicesBytes)
	if err != nil {
		return nil, fmt.Errorf("read device keys: %w", err)
	}
	if d.devices, err = parseDevices(text); err != nil {
		return nil, fmt.Errorf("read device keys %s: %w; restore it from a backup, or move it away and pair the devices again", d.path, err)
	}
	return d, nil
}

func parseDevices(text []byte) ([]Device, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	var file devicesRecord
	if err := dec.Decode(&file); err != nil {
		return nil, fmt.Errorf("it is damaged: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("it is damaged: something follows the list")
	}
	if file.V != devicesVersion {
		return nil, fmt.Errorf("its version is %d, this holdfast knows %d", file.V, devicesVersion)
	}
	if len(file.Devices) > maxDevices {
		return nil, fmt.Errorf("it lists %d devices, more than %d", len(file.Devices), maxDevices)
	}
	var out []Device
	for i, r := range file.Devices {
		k, err := pairing.ParseDeviceKey(r.Key)
		if err != nil {
			return nil, fmt.Errorf("device %d is damaged: %w", i, err)
		}
		if r.ID == "" || slices.ContainsFunc(out, func(d Device) bool { return d.Key == k || d.ID == r.ID }) {
			return nil, fmt.Errorf("device %d has no id, or is listed twice", i)
		}
		out = append(out, Device{ID: r.ID, Name: r.Name, Key: k, Added: r.Added, Used: r.Used})
	}
	return out, nil
}

// All lists the devices, oldest first.
func (d *DeviceKeys) All() []Device {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.devices)
}

// ByKey finds the device of a key.
func (d *DeviceKeys) ByKey(k pairing.Key) (Device, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if i := d.index(k); i >= 0 {
		return d.devices[i], true
	}
	return Device{}, false
}

func (d *DeviceKeys) index(k pairing.Key) int {
	return slices.IndexFunc(d.devices, func(dev Device) bool { return dev.Key == k })
}

// add stores a device, or gives that of the key a new name and id. An id that
// is empty, that another key has, or that is not one word in the syntax of a
// machine's name is not taken over.
func (d *DeviceKeys) add(k pairing.Key, id, name string, now time.Time) (Device, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := wire.ParseMachineID(id); err != nil || slices.ContainsFunc(d.devices, func(dev Device) bool { return dev.ID == id && dev.Key != k }) {
		id = keyID(k)
	}
	next := slices.Clone(d.devices)
	dev := Device{ID: id, Name: wire.CleanText(name, wire.MaxNameBytes), Key: k, Added: now.UTC().Truncate(time.Second)}
	if i := d.index(k); i >= 0 {
		dev.Added, dev.Used = next[i].Added, next[i].Used
		next[i] = dev
	} else {
		if len(next) >= maxDevices {
			return Device{}, ErrTooManyDevices
		}
		next = append(next, dev)
	}
	if err := d.write(next); err != nil {
		return Device{}, err
	}
	return dev, nil
}

// keyID makes an id of a key: short enough to type, and with 60 bits none that
// another of a person's devices has.
func keyID(k pairing.Key) string {
	id := make([]byte, 0, 10)
	for _, c := range []byte(k.Fingerprint()[len("SHA256:"):]) {
		if c != '+' && c != '/' && len(id) < cap(id) {
			id = append(id, c)
		}
	}
	return string(id)
}

// remove takes out the device of a key or an id; the zero key and the empty id
// match nothing. It is out of the list even when writing the file fails: the
// caller tries again, and nobody gets in meanwhile.
func (d *DeviceKeys) remove(k pairing.Key, id string) ([]Device, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var removed, next []Device
	for _, dev := range d.devices {
		if !k.IsZero() && dev.Key == k || id != "" && dev.ID == id {
			removed = append(removed, dev)
		} else {
			next = append(next, dev)
		}
	}
	if len(removed) == 0 && !d.stale {
		return nil, nil
	}
	d.devices, d.stale = next, true
	return removed, d.write(next)
}

// touch notes a use.
func (d *DeviceKeys) touch(k pairing.Key, now time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := d.index(k)
	if i < 0 || now.Sub(d.devices[i].Used) < usedGrain {
		return nil
	}
	next := slices.Clone(d.devices)
	next[i].Used = now.UTC().Truncate(time.Second)
	return d.write(next)
}

// write replaces the file, then the list. Callers hold mu.
func (d *DeviceKeys) write(devices []Device) error {
	file := devicesRecord{V: devicesVersion, Devices: make([]deviceRecord, len(devices))}
	for i, dev := range devices {
		file.Devices[i] = deviceRecord{ID: dev.ID, Name: dev.Name, Key: dev.Key.Line(), Added: dev.Added, Used: dev.Used}
	}
	text, err := json.MarshalIndent(file, "", "  ")
	if err != nil {
		return fmt.Errorf("write device keys: %w", err)
	}
	if err := state.WriteFile(d.path, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("write device keys: %w", err)
	}
	d.devices, d.stale = devices, false
	return nil
}
