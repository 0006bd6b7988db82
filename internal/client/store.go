// Package client is the side of the person who reaches machines: the machines
// that this computer is paired with, what it asks a relay, and how OpenSSH is
// told to go through it.
//
// It prints nothing and reads no flag, argument, environment or terminal; that
// is package cli's. What a caller will get wrong: the name by which a person
// calls a machine (Machine.Name) is chosen on this computer and may differ from
// the name that its relay knows (Machine.Machine); and host keys decide what a
// machine is, never its name or its relay.
package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"holdfast/internal/pairing"
	"holdfast/internal/state"
	"holdfast/internal/wire"
)

// maxMachinesBytes bounds machines.json: 1,000 machines of 2 KB each, with room.
const maxMachinesBytes = 4 << 20

// storeVersion is the form of machines.json. A newer form is refused, since
// writing it back would lose what this program does not know.
const storeVersion = 1

// Machine is one machine that this computer is paired with.
type Machine struct {
	// Name is what the person calls it: unique here without regard to case,
	// because OpenSSH compares names of hosts that way.
	Name string `json:"name"`
	// Relay is the relay's URL; Account and Machine are its names there.
	Relay   string         `json:"relay"`
	Account string         `json:"account"`
	Machine wire.MachineID `json:"machine"`
	// Device is this computer's id in that account, Token its bearer token.
	Device string `json:"device"`
	Token  string `json:"token"`
	// User is the OS user that the agent runs as.
	User string `json:"user"`
	// HostKeys are those of the built-in SSH server, SSHDKeys those of the
	// machine's own sshd: "type base64" each.
	HostKeys []string `json:"hostKeys"`
	SSHDKeys []string `json:"sshdKeys,omitempty"`
	// Service is the default service, chosen once when pairing: empty for the
	// machine's own sshd, "ssh" for the built-in server.
	Service wire.ServiceName `json:"service"`
	Paired  time.Time        `json:"paired"`
}

// ErrUnknownMachine says that this computer is not paired with a machine of
// that name.
var ErrUnknownMachine = errors.New("not paired with this machine")

// ErrNameTaken says that another machine has the name already.
var ErrNameTaken = errors.New("the name is taken")

// Store is the file of paired machines. It is safe for use by several processes
// at once.
type Store struct{ dir state.Dir }

// NewStore uses the machines.json of dir.
func NewStore(dir state.Dir) *Store { return &Store{dir: dir} }

type machinesFile struct {
	Version  int       `json:"version"`
	Machines []Machine `json:"machines"`
}

// All lists the paired machines by name. A file that is not there is no machine.
func (s *Store) All() ([]Machine, error) {
	path := s.dir.Path(state.MachinesFile)
	b, err := state.ReadFile(path, maxMachinesBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read paired machines: %w", err)
	}
	var f machinesFile
	if err := json.Unmarshal(b, &f); err != nil {
		return nil, fmt.Errorf("read paired machines from %s: it is damaged: %w; restore it from a backup, or move it away and pair again", path, err)
	}
	if f.Version != storeVersion {
		return nil, fmt.Errorf("read paired machines from %s: form %d is not known to this version of holdfast", path, f.Version)
	}
	for _, m := range f.Machines {
		if err := m.check(); err != nil {
			return nil, fmt.Errorf("read paired machines from %s: %w", path, err)
		}
	}
	return f.Machines, nil
}

// Find is the machine that the person calls name: ErrUnknownMachine.
func (s *Store) Find(name string) (Machine, error) {
	all, err := s.All()
	if err != nil {
		return Machine{}, err
	}
	if i := indexName(all, name); i >= 0 {
		return all[i], nil
	}
	return Machine{}, fmt.Errorf("%q: %w", name, ErrUnknownMachine)
}

// Free reports whether m may be called name: ErrNameTaken where another machine
// is called that.
func (s *Store) Free(name string, m Machine) error {
	all, err := s.All()
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(old Machine) bool { return same(old, m) })
	if i := indexClash(all, name); i >= 0 {
		return fmt.Errorf("%q is a machine at %s: %w", all[i].Name, all[i].Relay, ErrNameTaken)
	}
	return nil
}

// Put stores m and pins its host keys, in place of the entry of the same
// machine, whatever that was called. Error: ErrNameTaken where another machine
// has the name.
func (s *Store) Put(m Machine) error {
	if err := m.check(); err != nil {
		return fmt.Errorf("store machine: %w", err)
	}
	return s.dir.Guard(state.MachinesFile, func() error {
		all, err := s.All()
		if err != nil {
			return err
		}
		var former []string
		all = slices.DeleteFunc(all, func(old Machine) bool {
			if !same(old, m) {
				return false
			}
			former = append(former, old.Name)
			return true
		})
		if i := indexClash(all, m.Name); i >= 0 {
			return fmt.Errorf("%q is a machine at %s: %w", all[i].Name, all[i].Relay, ErrNameTaken)
		}
		all = append(all, m)
		slices.SortFunc(all, func(a, b Machine) int { return strings.Compare(a.Name, b.Name) })
		b, err := json.MarshalIndent(machinesFile{storeVersion, all}, "", "  ")
		if err != nil {
			return fmt.Errorf("encode paired machines: %w", err)
		}
		// The pins first: a machine without its pins would get those of machines.json,
		// but old pins beside a new entry would look like an attack.
		if err := s.pin(m, former); err != nil {
			return err
		}
		return state.WriteFile(s.dir.Path(state.MachinesFile), append(b, '\n'), 0o600)
	})
}

// check refuses what would be dangerous in a configuration file of OpenSSH, in
// an argument list or in a URL, whoever wrote it.
func (m Machine) check() error {
	if _, err := wire.ParseMachineID(m.Name); err != nil {
		return err
	}
	if _, err := wire.ParseMachineID(string(m.Machine)); err != nil {
		return err
	}
	if m.Service != "" {
		if _, err := wire.ParseServiceName(string(m.Service)); err != nil {
			return err
		}
	}
	if err := pairing.CheckUser(m.User); err != nil {
		return err
	}
	_, err := parseKeys(slices.Concat(m.HostKeys, m.SSHDKeys))
	return err
}

func indexName(all []Machine, name string) int {
	return slices.IndexFunc(all, func(m Machine) bool { return strings.EqualFold(m.Name, name) })
}

// indexClash finds a machine beside which name would be ambiguous: OpenSSH also
// knows each machine's built-in server, as M.ssh.
func indexClash(all []Machine, name string) int {
	const suffix = "." + string(wire.ServiceSSH)
	return slices.IndexFunc(all, func(m Machine) bool {
		return strings.EqualFold(m.Name, name) ||
			strings.EqualFold(m.Name+suffix, name) || strings.EqualFold(m.Name, name+suffix)
	})
}

// same reports whether two entries are one machine: by a host key that both
// have, or by the same name at the same relay (a machine that was set up anew,
// and that the person has now paired with again).
func same(a, b Machine) bool {
	if a.Relay == b.Relay && a.Machine == b.Machine && a.Account == b.Account {
		return true
	}
	return slices.ContainsFunc(a.HostKeys, func(k string) bool { return slices.Contains(b.HostKeys, k) })
}
