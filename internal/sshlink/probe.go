package sshlink

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"

	"holdfast/internal/pairing"
)

const (
	// maxBannerBytes bounds what a server may say before its version line
	// (RFC 4253 part 4.2 allows lines before it and names no number).
	maxBannerBytes = 8 << 10
	// maxVersionBytes is RFC 4253's limit of the version line.
	maxVersionBytes = 255
)

// ReadBanner reads an SSH server's version line ("SSH-2.0-…") from conn, to
// which it writes nothing. The caller closes conn; ctx closes it too when it
// ends first.
func ReadBanner(ctx context.Context, conn net.Conn) (string, error) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	r := bufio.NewReaderSize(io.LimitReader(conn, maxBannerBytes), maxVersionBytes+1)
	for {
		line, err := r.ReadSlice('\n')
		if ctx.Err() != nil {
			return "", fmt.Errorf("read ssh banner: %w", context.Cause(ctx))
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			return "", errors.New("read ssh banner: a line longer than SSH allows; this is no SSH server")
		}
		if strings.HasPrefix(string(line), "SSH-") && err == nil {
			return strings.ToValidUTF8(strings.TrimRight(string(line), "\r\n"), "?"), nil
		}
		if err != nil {
			return "", fmt.Errorf("read ssh banner: %w", err)
		}
	}
}

// errStop ends a handshake that has told what it was made for.
var errStop = errors.New("seen enough")

// ReadHostKeys collects a server's host keys, one connection for each kind of
// key (ed25519, ecdsa, rsa), which dial makes. Each key was proved by its
// handshake; whether the server is the right one is for the caller to know. It
// fails when there is no key at all. Nothing is authenticated.
func ReadHostKeys(ctx context.Context, dial func(context.Context) (net.Conn, error)) ([]pairing.Key, error) {
	kinds := [][]string{
		{ssh.KeyAlgoED25519},
		{ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521},
		algorithmsOf(ssh.KeyAlgoRSA),
	}
	var keys []pairing.Key
	var failed error
	// One after the other: sshd counts unauthenticated connections and begins
	// to refuse them (MaxStartups).
	for _, algorithms := range kinds {
		k, err := readHostKey(ctx, dial, algorithms)
		if err != nil {
			// A server that is down says the same to each kind.
			switch {
			case failed == nil:
				failed = err
			case !strings.Contains(failed.Error(), err.Error()):
				failed = fmt.Errorf("%w; %w", failed, err)
			}
			if ctx.Err() != nil {
				break
			}
			continue
		}
		keys = append(keys, k)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("read host keys: %w", failed)
	}
	return keys, nil
}

func readHostKey(ctx context.Context, dial func(context.Context) (net.Conn, error), algorithms []string) (pairing.Key, error) {
	conn, err := dial(ctx)
	if err != nil {
		return pairing.Key{}, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	var shown pairing.Key
	_, _, _, err = ssh.NewClientConn(conn, "", &ssh.ClientConfig{
		Config:            TransportConfig(),
		User:              defaultUser,
		ClientVersion:     clientVersion,
		HostKeyAlgorithms: algorithms,
		HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) (err error) {
			if shown, err = FromSSH(key); err != nil {
				return err
			}
			return errStop
		},
	})
	if errors.Is(err, errStop) {
		return shown, nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return pairing.Key{}, fmt.Errorf("by %s: %w", strings.Join(algorithms, ", "), err)
}

// CheckLogin logs in with the device's key and leaves again: the way to learn
// whether a machine's sshd lets this device in. It owns conn. Errors are those
// of Dial.
func CheckLogin(ctx context.Context, conn net.Conn, o Options) error {
	o.Rotated = nil
	c, err := Dial(ctx, conn, o)
	if err != nil {
		return err
	}
	c.Close()
	return nil
}

// CheckKey asks a server whether it would accept key for user, without having
// the private half: an SSH server answers that before it wants a signature. nil
// means that it would, ErrDenied that it would not. It owns conn.
func CheckKey(ctx context.Context, conn net.Conn, user string, hostKeys []pairing.Key, key pairing.Key) error {
	if user == "" || len(hostKeys) == 0 || key.IsZero() {
		conn.Close()
		return errors.New("check key: user, host keys and key are required")
	}
	public, err := toSSH(key)
	if err != nil {
		conn.Close()
		return fmt.Errorf("check key: %w", err)
	}
	signer := &publicOnly{key: public}
	meta, _, _, _, err := handshake(ctx, conn, user, hostKeys, 0, signer)
	if err == nil {
		// A server that lets a connection in by the method "none" would let any
		// key in.
		meta.Close()
		return nil
	}
	if signer.wanted {
		return nil
	}
	return fmt.Errorf("check key: %w", err)
}

// publicOnly is a signer that cannot sign. x/crypto asks the server about the
// public half first and comes for a signature only when the answer was yes.
type publicOnly struct {
	key    ssh.PublicKey
	wanted bool
}

func (p *publicOnly) PublicKey() ssh.PublicKey { return p.key }

func (p *publicOnly) Sign(io.Reader, []byte) (*ssh.Signature, error) {
	p.wanted = true
	return nil, errStop
}

func (p *publicOnly) SignWithAlgorithm(r io.Reader, data []byte, _ string) (*ssh.Signature, error) {
	return p.Sign(r, data)
}

// Algorithms makes the question use SHA-2 for RSA keys.
func (p *publicOnly) Algorithms() []string { return slices.Clone(algorithmsOf(p.key.Type())) }
