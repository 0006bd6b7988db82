package client

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"holdfast/internal/state"
	"holdfast/internal/wire"
)

// testKey makes the n-th public key of a test.
func testKey(n byte) string {
	private := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{n}, ed25519.SeedSize))
	const kind = "ssh-ed25519"
	blob := binary.BigEndian.AppendUint32(nil, uint32(len(kind)))
	blob = append(blob, kind...)
	blob = binary.BigEndian.AppendUint32(blob, ed25519.PublicKeySize)
	blob = append(blob, private.Public().(ed25519.PublicKey)...)
	return kind + " " + base64.StdEncoding.EncodeToString(blob)
}

func testStore(t *testing.T) *Store {
	t.Helper()
	dir, err := state.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return NewStore(dir)
}

func testMachine(name string, key byte) Machine {
	return Machine{
		Name: name, Relay: "https://relay.example", Account: "owner", Machine: wire.MachineID(name),
		Device: "d-1", Token: wire.NewToken().Secret(), User: "ann",
		HostKeys: []string{testKey(key)}, SSHDKeys: []string{testKey(key + 100)},
	}
}

func put(t *testing.T, s *Store, m Machine) {
	t.Helper()
	if err := s.Put(m); err != nil {
		t.Fatal(err)
	}
}

func names(t *testing.T, s *Store) string {
	t.Helper()
	all, err := s.All()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, m := range all {
		out = append(out, m.Name)
	}
	return strings.Join(out, " ")
}

func TestStoreKeepsMachines(t *testing.T) {
	s := testStore(t)
	if got := names(t, s); got != "" {
		t.Errorf("a new store holds %q", got)
	}
	put(t, s, testMachine("mini", 1))
	put(t, s, testMachine("Attic", 2))
	if got := names(t, s); got != "Attic mini" {
		t.Errorf("machines are %q", got)
	}
	m, err := s.Find("MINI")
	if err != nil || m.Name != "mini" || m.HostKeys[0] != testKey(1) {
		t.Errorf("found %+v, %v", m, err)
	}
	if _, err := s.Find("nosuch"); !errors.Is(err, ErrUnknownMachine) {
		t.Errorf("a machine that is not there: %v", err)
	}
	st, err := os.Stat(s.dir.Path(state.MachinesFile))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("tokens are in a file of mode %v (%v)", st.Mode(), err)
	}
}

// TestStoreNames are the names that cannot stand beside each other, and the
// machines that replace an entry instead.
func TestStoreNames(t *testing.T) {
	s := testStore(t)
	put(t, s, testMachine("mini", 1))
	for _, name := range []string{"mini", "MINI", "mini.ssh", "Mini.SSH"} {
		other := testMachine(name, 9)
		other.Relay = "https://other.example"
		if err := s.Put(other); !errors.Is(err, ErrNameTaken) {
			t.Errorf("another machine called %q: %v", name, err)
		}
		if err := s.Free(name, other); !errors.Is(err, ErrNameTaken) {
			t.Errorf("another machine called %q is said to be free: %v", name, err)
		}
	}
	put(t, s, testMachine("x.ssh", 3))
	if err := s.Put(testMachine("x", 4)); !errors.Is(err, ErrNameTaken) {
		t.Errorf("a machine whose built-in server would be called like another machine: %v", err)
	}
	// Set up anew under its name, with other keys: paired again.
	again := testMachine("mini", 5)
	put(t, s, again)
	// The same machine, seen through another relay and called otherwise.
	moved := testMachine("desk", 5)
	moved.Relay, moved.Machine = "https://other.example", "mini"
	put(t, s, moved)
	if got := names(t, s); got != "desk x.ssh" {
		t.Errorf("machines are %q", got)
	}
	b, err := os.ReadFile(s.dir.Path(state.KnownHostsFile))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(b), "mini.") || strings.Contains(string(b), testKey(1)) || !strings.Contains(string(b), "desk.ssh.holdfast "+testKey(5)) {
		t.Errorf("pinned keys are\n%s", b)
	}
}

// TestStoreRefusesDangerousEntries covers what would end up in a configuration
// file, an argument list or a URL.
func TestStoreRefusesDangerousEntries(t *testing.T) {
	s := testStore(t)
	for what, change := range map[string]func(*Machine){
		"name with a space":    func(m *Machine) { m.Name = "a b" },
		"name of an option":    func(m *Machine) { m.Name = "-oProxyCommand=x" },
		"pattern as a name":    func(m *Machine) { m.Name = "*" },
		"machine with a slash": func(m *Machine) { m.Machine = "a/b" },
		"no user":              func(m *Machine) { m.User = "" },
		"user of an option":    func(m *Machine) { m.User = "-l" },
		"two words as a user":  func(m *Machine) { m.User = "a b" },
		"user that expands":    func(m *Machine) { m.User = "%h" },
		"line break in a user": func(m *Machine) { m.User = "a\nProxyCommand x" },
		"quote in a user":      func(m *Machine) { m.User = `a"b` },
		"no key":               func(m *Machine) { m.HostKeys = []string{"nonsense"} },
		"key of another type":  func(m *Machine) { m.SSHDKeys = []string{strings.Replace(testKey(1), "ssh-ed25519", "ssh-rsa", 1)} },
		"strange service":      func(m *Machine) { m.Service = "a b" },
	} {
		m := testMachine("mini", 1)
		change(&m)
		if err := s.Put(m); err == nil {
			t.Errorf("%s: it was stored", what)
		}
	}
	if got := names(t, s); got != "" {
		t.Errorf("machines are %q", got)
	}
}

// TestStoreDamage reads files that are cut, from later versions, or not ours.
func TestStoreDamage(t *testing.T) {
	for _, text := range []string{"", "{", "[]", `{"version":2,"machines":[]}`, `{"version":1,"machines":[{"name":"*"}]}`} {
		s := testStore(t)
		path := s.dir.Path(state.MachinesFile)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := s.All(); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: want an error that names the file, got %v", text, err)
		}
		if err := s.Put(testMachine("mini", 1)); err == nil {
			t.Errorf("%q: it was overwritten", text)
		}
	}
}

func TestStoreManyAtOnce(t *testing.T) {
	s := testStore(t)
	var wg sync.WaitGroup
	for i := range byte(16) {
		wg.Go(func() {
			if err := s.Put(testMachine(fmt.Sprintf("m%02d", i), i)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := len(strings.Fields(names(t, s))); got != 16 {
		t.Errorf("%d of 16 machines are left", got)
	}
	b, err := os.ReadFile(s.dir.Path(state.KnownHostsFile))
	if err != nil || strings.Count(string(b), "\n") != 32 {
		t.Errorf("%d pinned keys of 32 (%v)", strings.Count(string(b), "\n"), err)
	}
}

// TestPinnedKeysMayRotate keeps what OpenSSH has learnt inside an authenticated
// connection, until one pairs again.
func TestPinnedKeysMayRotate(t *testing.T) {
	s := testStore(t)
	m := testMachine("Mini", 1)
	put(t, s, m)
	path := s.dir.Path(state.KnownHostsFile)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	learnt := strings.Replace(string(b), "mini.holdfast "+testKey(101), "mini.holdfast "+testKey(50), 1)
	if learnt == string(b) {
		t.Fatalf("pinned keys are\n%s", b)
	}
	if err := os.WriteFile(path, []byte(learnt), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.EnsurePinned(m); err != nil {
		t.Fatal(err)
	}
	keys, err := s.PinnedKeys(m, "")
	if err != nil || len(keys) != 1 || keys[0].Line() != testKey(50) {
		t.Errorf("after a rotation: %v, %v", keys, err)
	}
	put(t, s, m)
	if keys, err = s.PinnedKeys(m, ""); err != nil || len(keys) != 1 || keys[0].Line() != testKey(101) {
		t.Errorf("after pairing again: %v, %v", keys, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := s.EnsurePinned(m); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(path); err != nil || strings.Count(string(b), "\n") != 2 {
		t.Errorf("a lost file was not written again: %q, %v", b, err)
	}
	if keys, err := s.PinnedKeys(m, "other"); err != nil || len(keys) != 0 {
		t.Errorf("a service that nobody pinned has keys %v, %v", keys, err)
	}
}

func TestADamagedFileSaysWhatToDo(t *testing.T) {
	dir, err := state.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "{", "\x00\xff"} {
		if err := os.WriteFile(dir.Path(state.MachinesFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := NewStore(dir).All()
		if err == nil || !strings.Contains(err.Error(), "damaged") || !strings.Contains(err.Error(), "pair again") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
