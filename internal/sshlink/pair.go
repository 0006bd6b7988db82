package sshlink

import (
	"context"
	"fmt"
	"net"
	"time"

	"holdfast/internal/pairing"
)

// answerTimeout bounds the machine's answer to a pairing request. The machine
// writes two files and asks its sshd for its host keys meanwhile, for which it
// takes at most 10 s.
const answerTimeout = 20 * time.Second

// RefusedError says that the machine was reached, is the right one, and did not
// pair.
type RefusedError struct {
	Code    pairing.Code
	Message string
}

// Error says what the machine said.
func (e *RefusedError) Error() string {
	if e.Message == "" {
		return fmt.Sprintf("the machine refuses to pair (%s)", e.Code)
	}
	return "the machine refuses to pair: " + e.Message
}

// Pair shows the machine at the far end of conn, which it owns, that this
// device knows the link's secret, and has it store key under name. Nothing is
// sent before the machine proved one of the link's host keys. Errors:
// *HostKeyError, ErrDenied (no link is open there any more), *RefusedError, or
// what broke.
func Pair(ctx context.Context, conn net.Conn, link pairing.Link, key *Key, name string) (pairing.Response, error) {
	c, err := Dial(ctx, conn, Options{HostKeys: link.HostKeys, Key: key})
	if err != nil {
		return pairing.Response{}, fmt.Errorf("pair with %s: %w", link.Machine, err)
	}
	defer c.Close()
	answer, err := c.pair(ctx, link, key, name)
	if err != nil {
		return pairing.Response{}, fmt.Errorf("pair with %s: %w", link.Machine, err)
	}
	return answer, nil
}

func (c *Client) pair(ctx context.Context, link pairing.Link, key *Key, name string) (pairing.Response, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, answerTimeout, fmt.Errorf("no answer within %v", answerTimeout))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { c.conn.Close() })
	defer stop()

	answer, err := c.exchange(link, key, name)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return pairing.Response{}, err
	}
	if !answer.OK {
		return pairing.Response{}, &RefusedError{answer.Code, answer.Message}
	}
	if answer.Machine != link.Machine {
		return pairing.Response{}, fmt.Errorf("the machine calls itself %s", answer.Machine)
	}
	return answer, nil
}

func (c *Client) exchange(link pairing.Link, key *Key, name string) (pairing.Response, error) {
	stream, err := c.Subsystem(pairing.Subsystem)
	if err != nil {
		return pairing.Response{}, err
	}
	defer stream.Close()
	proof := link.Secret.Prove(pairing.Binding{
		SessionID: c.SessionID(),
		DeviceKey: key.public.Blob(),
		HostKey:   c.hostKey.Blob(),
		Machine:   link.Machine,
	})
	if err := pairing.WriteRequest(stream, pairing.Request{Proof: proof, Name: name}); err != nil {
		return pairing.Response{}, err
	}
	return pairing.ReadResponse(stream)
}
