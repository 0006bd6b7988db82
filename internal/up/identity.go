package up

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"holdfast/internal/account"
	"holdfast/internal/engine"
	"holdfast/internal/state"
	"holdfast/internal/wire"
)

// maxIdentityBytes bounds agent.json and agent.token.
const maxIdentityBytes = 4 << 10

// Identity is what a state directory's agent stands for.
type Identity struct {
	// Relay is the relay's URL; empty for the relay of the same process.
	Relay   string         `json:"relay"`
	Machine wire.MachineID `json:"machine"`
}

// LoadIdentity reads agent.json. A directory without one has no identity yet:
// fs.ErrNotExist.
func LoadIdentity(dir state.Dir) (Identity, error) {
	path := dir.Path(state.AgentFile)
	b, err := state.ReadFile(path, maxIdentityBytes)
	if err != nil {
		return Identity{}, err
	}
	var id Identity
	if err = json.Unmarshal(b, &id); err == nil {
		_, err = wire.ParseMachineID(string(id.Machine))
	}
	if err != nil {
		return Identity{}, fmt.Errorf("read %s: it is damaged: %w; restore it from a backup, or move it away and start again with this machine's name (--name, or --machine of agent)", path, err)
	}
	return id, nil
}

// MachineError says that a state directory is another machine than was asked for.
type MachineError struct {
	Dir         string
	Have, Asked wire.MachineID
}

func (e *MachineError) Error() string {
	return fmt.Sprintf("state directory %s is machine %q, not %q", e.Dir, e.Have, e.Asked)
}

// Settle decides which machine the directory is and notes its relay: what it was
// before, else asked, else a name made from this computer's own. Another name
// than before is a *MachineError: devices have pinned the directory's host keys
// under the old one.
func Settle(dir state.Dir, relay string, asked wire.MachineID, hostname string) (Identity, error) {
	id, err := LoadIdentity(dir)
	switch {
	case err == nil && asked != "" && asked != id.Machine:
		return Identity{}, &MachineError{Dir: dir.Path(""), Have: id.Machine, Asked: asked}
	case err == nil && id.Relay == relay:
		return id, nil
	case err == nil:
		id.Relay = relay
	case errors.Is(err, fs.ErrNotExist):
		id = Identity{Relay: relay, Machine: asked}
		if asked == "" {
			id.Machine = MachineName(hostname)
		}
	default:
		return Identity{}, err
	}
	b, err := json.Marshal(id)
	if err != nil {
		return Identity{}, fmt.Errorf("encode identity: %w", err)
	}
	return id, state.WriteFile(dir.Path(state.AgentFile), append(b, '\n'), 0o600)
}

// MachineName makes a machine's name of a computer's: its first label, strange
// characters replaced, and "machine" where nothing is left.
func MachineName(hostname string) wire.MachineID {
	label, _, _ := strings.Cut(hostname, ".")
	label = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_':
			return r
		}
		return '-'
	}, label)
	label = strings.Trim(label, "-_")
	if len(label) > wire.MaxNameBytes {
		label = strings.TrimRight(label[:wire.MaxNameBytes], "-_")
	}
	if label == "" {
		return "machine"
	}
	return wire.MachineID(label)
}

// OwnToken makes sure that the relay's store knows the owner account and this
// machine, and returns the machine's token: the one in agent.token if that is
// still good, else a new one.
func OwnToken(ctx context.Context, dir state.Dir, store engine.Store, m wire.MachineID) (wire.Token, error) {
	accounts, err := account.New(account.Options{Store: store})
	if err != nil {
		return wire.Token{}, err
	}
	if err := store.AddAccount(ctx, account.Owner); err != nil && !errors.Is(err, engine.ErrExists) {
		return wire.Token{}, fmt.Errorf("make account %q: %w", account.Owner, err)
	}
	switch t, err := ReadToken(dir.Path(state.AgentTokenFile)); {
	case err == nil:
		known, err := accounts.Verify(ctx, t.Hash())
		switch {
		case err == nil && known.Account == account.Owner && known.Kind == engine.KindAgent && known.Machine == m:
			return t, nil
		case err == nil, errors.Is(err, account.ErrUnknown), errors.Is(err, account.ErrRevoked), errors.Is(err, account.ErrExpired):
		default:
			return wire.Token{}, fmt.Errorf("look up this machine's token: %w", err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return wire.Token{}, err
	}
	t := wire.NewToken()
	// The file first: a token that nobody has would stay in the store for ever.
	if err := state.WriteFile(dir.Path(state.AgentTokenFile), []byte(t.Secret()+"\n"), 0o600); err != nil {
		return wire.Token{}, err
	}
	_, err = accounts.Issue(ctx, account.Request{Account: account.Owner, Kind: engine.KindAgent, Name: string(m), Machine: m, Text: t})
	if err != nil {
		return wire.Token{}, fmt.Errorf("register this machine: %w", err)
	}
	return t, nil
}

// ReadToken reads a token from a file of one line. The error never repeats what
// is in it.
func ReadToken(path string) (wire.Token, error) {
	b, err := state.ReadFile(path, maxIdentityBytes)
	if err != nil {
		return wire.Token{}, fmt.Errorf("read token: %w", err)
	}
	t, err := wire.ParseToken(strings.TrimSpace(string(b)))
	if err != nil {
		return wire.Token{}, fmt.Errorf("read token from %s: %w", path, err)
	}
	return t, nil
}
