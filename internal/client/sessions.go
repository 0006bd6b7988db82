package client

import (
	"context"
	"errors"
	"fmt"
	"io"

	"holdfast/internal/session/proto"
	"holdfast/internal/sshlink"
	"holdfast/internal/state"
	"holdfast/internal/wire"
	"holdfast/internal/wsconn"
)

// Sessions is a connection to the sessions of a machine, through the SSH server
// that its agent has built in.
type Sessions struct {
	*proto.Client
	Machine Machine
	ssh     *sshlink.Client
	stream  *wsconn.Stream
	target  Target
}

// Sessions opens the sessions of a machine. ctx bounds the opening. The error is
// a *Failure, or of this computer's own files.
func (d Dialer) Sessions(ctx context.Context, store *Store, m Machine, o proto.ClientOptions) (*Sessions, error) {
	target, err := m.Target(wire.ServiceSSH)
	if err != nil {
		return nil, err
	}
	key, err := sshlink.LoadKey(store.dir.Path(state.DeviceKeyFile))
	if err != nil {
		return nil, err
	}
	pinned, err := store.PinnedKeys(m, wire.ServiceSSH)
	if err != nil {
		return nil, err
	}
	stream, err := d.Stream(ctx, target, false)
	if err != nil {
		return nil, Diagnose(err, target)
	}
	s := &Sessions{Machine: m, stream: stream, target: target}
	if s.ssh, err = sshlink.Dial(ctx, stream, sshlink.Options{User: m.User, HostKeys: pinned, Key: key}); err != nil {
		return nil, s.explain(err)
	}
	// A path that dies now must not hold the caller: closing interrupts all.
	stop := context.AfterFunc(ctx, func() { stream.Close() })
	defer stop()
	var channel io.ReadWriteCloser
	if channel, err = s.ssh.Subsystem(proto.Subsystem); err == nil {
		s.Client, err = proto.Open(ctx, channel, o)
	} else if errors.Is(err, sshlink.ErrDenied) {
		err = &Failure{Hop: "machine " + target.name(), Err: errors.New("it does not offer its sessions"), Do: "update holdfast there", Denied: true}
	}
	if err != nil {
		s.ssh.Close()
		return nil, s.explain(err)
	}
	return s, nil
}

// explain finds the hop below an error of the SSH connection.
func (s *Sessions) explain(err error) error {
	return Diagnose(streamEnd(err, s.stream), s.target)
}

// Why says in what the connection ended, for a person.
func (s *Sessions) Why() error {
	err := s.Client.Err()
	var bye *proto.ByeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &bye):
		return &Failure{Hop: "machine " + s.target.name(), Err: fmt.Errorf("it ended the connection: %s", wire.CleanReason(bye.Message))}
	}
	return s.explain(err)
}

// Close ends the connection.
func (s *Sessions) Close() error {
	s.Client.Close()
	return s.ssh.Close()
}
