package client

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"holdfast/internal/pairing"
	"holdfast/internal/state"
	"holdfast/internal/wire"
)

// maxKnownHostsBytes bounds our own known_hosts: 1,000 machines, six keys each.
const maxKnownHostsBytes = 8 << 20

// parseKeys reads keys "type base64"; one that cannot be read spoils all.
func parseKeys(lines []string) ([]pairing.Key, error) {
	keys := make([]pairing.Key, 0, len(lines))
	for _, l := range lines {
		k, err := pairing.ParseKey(l)
		if err != nil {
			return nil, fmt.Errorf("host key: %w", err)
		}
		keys = append(keys, k)
	}
	return keys, nil
}

// hostAlias is the name under which OpenSSH knows the host keys of a service.
// It is lower case because OpenSSH compares it so.
func hostAlias(name string, service wire.ServiceName) string {
	if service == "" {
		return strings.ToLower(name) + ".holdfast"
	}
	return strings.ToLower(name) + "." + strings.ToLower(string(service)) + ".holdfast"
}

// PinnedKeys are the host keys of a machine's service, as OpenSSH has them: what
// pairing handed over, and what the machine has since proved to own
// (UpdateHostKeys). None means that the service has no pinned key.
func (s *Store) PinnedKeys(m Machine, service wire.ServiceName) ([]pairing.Key, error) {
	lines, err := s.knownHosts()
	if err != nil {
		return nil, err
	}
	var keys []string
	alias := hostAlias(m.Name, service)
	for _, line := range lines {
		if host, key, ok := strings.Cut(line, " "); ok && host == alias {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		switch service {
		case "":
			keys = m.SSHDKeys
		case wire.ServiceSSH:
			keys = m.HostKeys
		}
	}
	return parseKeys(keys)
}

func (s *Store) knownHosts() ([]string, error) {
	b, err := state.ReadFile(s.dir.Path(state.KnownHostsFile), maxKnownHostsBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read pinned host keys: %w", err)
	}
	return strings.FieldsFunc(string(b), func(r rune) bool { return r == '\n' || r == '\r' }), nil
}

// pin writes the host keys of m, as pairing handed them over, in place of those
// that it had under any of its former names.
func (s *Store) pin(m Machine, former []string) error {
	return s.dir.Guard(state.KnownHostsFile, func() error {
		lines, err := s.knownHosts()
		if err != nil {
			return err
		}
		var aliases []string
		for _, n := range append(former, m.Name) {
			aliases = append(aliases, hostAlias(n, ""), hostAlias(n, wire.ServiceSSH))
		}
		lines = slices.DeleteFunc(lines, func(line string) bool {
			host, _, _ := strings.Cut(line, " ")
			return slices.Contains(aliases, host)
		})
		return s.writeKnownHosts(append(lines, pinLines(m)...))
	})
}

// EnsurePinned writes the host keys of machines of which OpenSSH has none, and
// leaves the others as they are.
func (s *Store) EnsurePinned(machines ...Machine) error {
	return s.dir.Guard(state.KnownHostsFile, func() error {
		lines, err := s.knownHosts()
		if err != nil {
			return err
		}
		missing := false
		for _, m := range machines {
			for _, want := range pinLines(m) {
				host, _, _ := strings.Cut(want, " ")
				if !slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, host+" ") }) {
					// All of the host's keys, before the first makes it known.
					for _, l := range pinLines(m) {
						if strings.HasPrefix(l, host+" ") {
							lines = append(lines, l)
						}
					}
					missing = true
				}
			}
		}
		if !missing {
			return nil
		}
		return s.writeKnownHosts(lines)
	})
}

func pinLines(m Machine) []string {
	var out []string
	for _, k := range m.SSHDKeys {
		out = append(out, hostAlias(m.Name, "")+" "+k)
	}
	for _, k := range m.HostKeys {
		out = append(out, hostAlias(m.Name, wire.ServiceSSH)+" "+k)
	}
	return out
}

func (s *Store) writeKnownHosts(lines []string) error {
	text := strings.Join(lines, "\n")
	if text != "" {
		text += "\n"
	}
	return state.WriteFile(s.dir.Path(state.KnownHostsFile), []byte(text), 0o600)
}

// DescribeKey names a key "type base64" by type and fingerprint.
func DescribeKey(line string) (string, error) {
	k, err := pairing.ParseKey(line)
	if err != nil {
		return "", err
	}
	return k.Type() + " " + k.Fingerprint(), nil
}
