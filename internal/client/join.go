package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"holdfast/internal/pairing"
	"holdfast/internal/sshlink"
	"holdfast/internal/state"
	"holdfast/internal/wire"
	"holdfast/internal/wsconn"
)

// ErrLinkUsed says that a link that should still be valid is not open any more:
// another device used it, or its machine closed it.
var ErrLinkUsed = errors.New("the pairing link was used by another device, or its machine has closed it: make a new one with `holdfast pair` there")

// ErrNotMachine says that the relay and the link disagree about the machine.
var ErrNotMachine = errors.New("the relay gave access to another machine than the link names: the link is from elsewhere")

// loginTimeout bounds the attempt to log in to the machine's own sshd, after
// which the built-in server becomes the default.
const loginTimeout = 20 * time.Second

// JoinOptions are those of Join.
type JoinOptions struct {
	Dir    state.Dir // required
	Dialer Dialer
	Link   pairing.Link // required
	// Name is what the person wants to call the machine; empty means the name
	// that it has at its relay.
	Name string
	// Device is what the machine is to call this computer: required.
	Device string
}

// Joined is what came of a Join.
type Joined struct {
	Machine Machine
	// Why says why the default service is what it is.
	Why string
	// Shell says that the built-in server gives this computer a shell.
	Shell bool
}

// Join pairs this computer with the machine of a link and stores it. The relay
// sees its own secret of the link only; the machine is trusted for the host keys
// in the link, and everything else it says comes after they were proved. Errors:
// those of pairing.ParseLink and of sshlink.Pair, *RelayError, ErrLinkUsed,
// ErrNotMachine, ErrNameTaken, or a *Failure.
func Join(ctx context.Context, o JoinOptions) (Joined, error) {
	store := NewStore(o.Dir)
	name := o.Name
	if name == "" {
		name = string(o.Link.Machine)
	}
	if _, err := wire.ParseMachineID(name); err != nil {
		return Joined{}, err
	}
	m := Machine{Name: name, Relay: o.Link.Relay, Machine: o.Link.Machine, Paired: time.Now().UTC()}
	for _, k := range o.Link.HostKeys {
		m.HostKeys = append(m.HostKeys, k.Line())
	}
	// Before the link is spent.
	if err := store.Free(name, m); err != nil {
		return Joined{}, err
	}
	key, err := sshlink.LoadOrCreateKey(o.Dir.Path(state.DeviceKeyFile), pairing.TypeEd25519)
	if err != nil {
		return Joined{}, err
	}
	target, err := redeem(ctx, o, key, &m)
	if err != nil {
		return Joined{}, err
	}
	conn, err := o.Dialer.Stream(ctx, target, false)
	if err != nil {
		return Joined{}, Diagnose(err, target)
	}
	answer, err := sshlink.Pair(ctx, conn, o.Link, key, o.Device)
	if err != nil {
		return Joined{}, explainPair(err, conn, target)
	}
	m.User = answer.User
	out := Joined{Shell: answer.Shell}
	var sshd []string
	if answer.SSHD != nil {
		sshd = answer.SSHD.Keys
	}
	m.SSHDKeys = usableKeys(sshd)
	m.Service, out.Why = o.chooseService(ctx, m, answer, key)
	if err := store.Put(m); err != nil {
		return Joined{}, err
	}
	out.Machine = m
	return out, nil
}

// redeem gets this computer its token. It fills in what the relay says.
func redeem(ctx context.Context, o JoinOptions, key *sshlink.Key, m *Machine) (Target, error) {
	target := Target{Relay: o.Link.Relay, Machine: o.Link.Machine, Service: wire.ServiceSSH}
	api, err := o.Dialer.API(target)
	if err != nil {
		return Target{}, err
	}
	defer api.Close()
	got, err := api.Redeem(ctx, wire.RedeemPairing{
		Secret: o.Link.Secret.RelaySecret().Text(), Key: key.Public().Line(), Name: o.Device,
	})
	var refused *RelayError
	if errors.As(err, &refused) && refused.Refusal != "" && refused.Status == http.StatusNotFound {
		// The relay does not say which it is; the link knows its time.
		if o.Link.Expired(time.Now()) {
			return Target{}, pairing.ErrExpired
		}
		return Target{}, ErrLinkUsed
	}
	if err != nil {
		return Target{}, err
	}
	if got.Machine != o.Link.Machine {
		return Target{}, fmt.Errorf("%w (it says %q, the link %q)", ErrNotMachine, wire.CleanReason(string(got.Machine)), o.Link.Machine)
	}
	token, err := wire.ParseToken(got.Token)
	if err != nil {
		return Target{}, fmt.Errorf("redeem the pairing link: %w", err)
	}
	m.Token, m.Device = token.Secret(), wire.CleanReason(got.Device)
	m.Account = wire.CleanReason(got.Account)
	target.Token = token
	return target, nil
}

// explainPair finds what ended the stream below an SSH connection that broke:
// the machine's words as they are, a closed stream by its code.
func explainPair(err error, conn *wsconn.Stream, t Target) error {
	var hostKey *sshlink.HostKeyError
	var refused *sshlink.RefusedError
	switch {
	case errors.As(err, &hostKey), errors.As(err, &refused), errors.Is(err, sshlink.ErrDenied):
		return err
	}
	return Diagnose(streamEnd(err, conn), t)
}

// streamEnd prefers the reason for which a stream ended to what the SSH code
// above it makes of that: "EOF" says nothing.
func streamEnd(err error, conn *wsconn.Stream) error {
	var closed *wsconn.CloseError
	if e := conn.Err(); e != nil && (errors.As(e, &closed) || errors.Is(e, wsconn.ErrDead)) {
		return e
	}
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("the connection ended: %w", err)
	}
	return err
}

// usableKeys leaves out keys that cannot be pinned.
func usableKeys(lines []string) []string {
	var out []string
	for _, l := range lines {
		k, err := pairing.ParseKey(l)
		if err == nil && len(sshlink.HostKeyAlgorithms([]pairing.Key{k})) > 0 {
			out = append(out, k.Line())
		}
	}
	return out
}

// chooseService decides on the default service, once: the machine's own sshd if
// this computer's key gets in there now, else the built-in server.
func (o JoinOptions) chooseService(ctx context.Context, m Machine, answer pairing.Response, key *sshlink.Key) (wire.ServiceName, string) {
	switch {
	case answer.SSHD == nil:
		return wire.ServiceSSH, "the machine offers no sshd of its own"
	case len(m.SSHDKeys) == 0 && answer.SSHD.Note != "":
		return wire.ServiceSSH, answer.SSHD.Note
	case len(m.SSHDKeys) == 0:
		return wire.ServiceSSH, "the machine's sshd showed no host key"
	}
	target, err := m.Target("")
	if err == nil {
		err = o.login(ctx, target, m, key)
	}
	if err == nil {
		return "", "the machine's own sshd lets this computer in"
	}
	return wire.ServiceSSH, reason("logging in to the machine's own sshd did not work ("+err.Error()+")", answer.SSHD.Note)
}

func reason(what, note string) string {
	if note == "" {
		return what
	}
	return what + "; " + note
}

func (o JoinOptions) login(ctx context.Context, t Target, m Machine, key *sshlink.Key) error {
	ctx, cancel := context.WithTimeout(ctx, loginTimeout)
	defer cancel()
	keys, err := parseKeys(m.SSHDKeys)
	if err != nil {
		return err
	}
	conn, err := o.Dialer.Stream(ctx, t, false)
	if err != nil {
		return Diagnose(err, t)
	}
	if err := sshlink.CheckLogin(ctx, conn, sshlink.Options{User: m.User, HostKeys: keys, Key: key}); err != nil {
		if errors.Is(err, sshlink.ErrDenied) {
			return sshlink.ErrDenied
		}
		return Diagnose(streamEnd(err, conn), t)
	}
	return nil
}
