package sshlink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"holdfast/internal/pairing"
)

const (
	// handshakeTimeout bounds key exchange and authentication: ten round trips
	// of 600 ms and a phone that is slow at elliptic curves. Half cuts off bad
	// mobile links, twice makes a dead one look busy.
	handshakeTimeout = 30 * time.Second
	// clientVersion is what our side says first.
	clientVersion = "SSH-2.0-Holdfast"
	// defaultUser is what is sent where the server does not look at the name.
	defaultUser = "holdfast"
)

// ErrDenied says that the server is the right one and does not let this key in.
var ErrDenied = errors.New("the key is not allowed in")

// HostKeyError says that a server showed another key than the pinned ones. The
// connection ended before any authentication. It is final: whoever answered is
// not the machine that was paired, or the machine was set up anew.
type HostKeyError struct {
	Got    pairing.Key
	Pinned []pairing.Key
}

// Error names both fingerprints.
func (e *HostKeyError) Error() string {
	pinned := make([]string, len(e.Pinned))
	for i, k := range e.Pinned {
		pinned[i] = k.String()
	}
	return fmt.Sprintf("host key mismatch: the server showed %s, pinned is %s; nothing was sent to it; if the machine was set up anew, pair again",
		e.Got, strings.Join(pinned, " or "))
}

// TransportConfig is what both our roles and every question to a server use:
// hybrid post-quantum key exchange first, authenticated ciphers, and MACs over
// the ciphertext.
func TransportConfig() ssh.Config {
	return ssh.Config{
		KeyExchanges: []string{ssh.KeyExchangeMLKEM768X25519, ssh.KeyExchangeCurve25519, ssh.KeyExchangeECDHP256},
		Ciphers:      []string{ssh.CipherAES256GCM, ssh.CipherAES128GCM, ssh.CipherChaCha20Poly1305, ssh.CipherAES256CTR, ssh.CipherAES128CTR},
		MACs:         []string{ssh.HMACSHA256ETM, ssh.HMACSHA512ETM},
	}
}

// Options of Dial.
type Options struct {
	// User is the name to log in as. Empty will do for the built-in server,
	// which runs everything as its own user.
	User string
	// HostKeys are the pinned keys; required. Only their types are offered.
	HostKeys []pairing.Key
	// Key is the device's key; required.
	Key *Key
	// Rotated, if not nil, is called at most once, from a goroutine of the
	// Client, with the host keys that the server says it has from now on, when
	// they are not the pinned ones. Each new one was proved by a signature over
	// this connection. Close waits for it.
	Rotated func(keys []pairing.Key)
	// Timeout bounds the handshake; zero means 30 s.
	Timeout time.Duration
}

func (o Options) validate() error {
	switch {
	case len(o.HostKeys) == 0:
		return errors.New("no host key is pinned; pair with the machine first")
	case slices.ContainsFunc(o.HostKeys, pairing.Key.IsZero):
		return errors.New("a pinned host key is empty")
	case len(HostKeyAlgorithms(o.HostKeys)) == 0:
		return fmt.Errorf("no pinned host key is of a type that can be checked: %w", pairing.ErrKeyType)
	case o.Key == nil:
		return errors.New("no device key")
	}
	return nil
}

// Client is an authenticated SSH connection to a machine.
type Client struct {
	conn    *ssh.Client
	meta    ssh.Conn
	hostKey pairing.Key
	wg      sync.WaitGroup
}

// Dial makes an SSH connection over conn, which it owns from then on: it is
// closed when Dial fails and by Client.Close. ctx bounds the handshake only.
// Errors: *HostKeyError, ErrDenied, the context's cause, or what broke.
func Dial(ctx context.Context, conn net.Conn, o Options) (*Client, error) {
	if err := o.validate(); err != nil {
		conn.Close()
		return nil, fmt.Errorf("dial ssh: %w", err)
	}
	meta, chans, reqs, hostKey, err := handshake(ctx, conn, o.User, o.HostKeys, o.Timeout, o.Key.signer)
	if err != nil {
		return nil, fmt.Errorf("dial ssh: %w", err)
	}
	c := &Client{meta: meta, hostKey: hostKey}
	forward := make(chan *ssh.Request)
	c.conn = ssh.NewClient(meta, chans, forward)
	// Both end when the connection does: x/crypto closes reqs then, and
	// SendRequest returns. Close waits for them.
	c.wg.Go(func() { c.globalRequests(reqs, forward, o) })
	return c, nil
}

// handshake runs key exchange and, with a signer, authentication.
func handshake(ctx context.Context, conn net.Conn, user string, pinned []pairing.Key, timeout time.Duration, signer ssh.Signer) (ssh.Conn, <-chan ssh.NewChannel, <-chan *ssh.Request, pairing.Key, error) {
	if timeout == 0 {
		timeout = handshakeTimeout
	}
	if user == "" {
		user = defaultUser
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("the ssh handshake took longer than %v", timeout))
	defer cancel()
	// Closing is the one interruption that every net.Conn honours.
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()

	watched := &watchedConn{Conn: conn}
	var shown pairing.Key
	config := &ssh.ClientConfig{
		Config:            TransportConfig(),
		User:              user,
		ClientVersion:     clientVersion,
		HostKeyAlgorithms: HostKeyAlgorithms(pinned),
		HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
			got, err := FromSSH(key)
			if err != nil {
				return err
			}
			if !slices.Contains(pinned, got) {
				return &HostKeyError{Got: got, Pinned: slices.Clone(pinned)}
			}
			shown = got
			return nil
		},
		BannerCallback: func(string) error { return nil },
		// Asked before each attempt: after a refused key there is no other. A
		// connection that broke meanwhile looks like a refusal to x/crypto.
		AuthCallback: func(a *ssh.ClientAuthContext) (ssh.AuthMethod, error) {
			if err := watched.broken(); err != nil {
				return nil, err
			}
			if slices.Contains(a.TriedMethods, "publickey") || !slices.Contains(a.AllowedMethods, "publickey") {
				return nil, ErrDenied
			}
			return ssh.PublicKeys(signer), nil
		},
	}
	meta, chans, reqs, err := ssh.NewClientConn(Joined(watched), "", config)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, nil, nil, pairing.Key{}, err
	}
	if !stop() {
		// The time ran out as the handshake ended: conn is closed or about to be.
		meta.Close()
		go ssh.DiscardRequests(reqs) // ends with the connection, which is closed
		return nil, nil, nil, pairing.Key{}, context.Cause(ctx)
	}
	return meta, chans, reqs, shown, nil
}

// watchedConn remembers the first error of a connection.
type watchedConn struct {
	net.Conn
	err atomic.Pointer[error]
}

func (w *watchedConn) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	return n, w.note(err)
}

func (w *watchedConn) Write(b []byte) (int, error) {
	n, err := w.Conn.Write(b)
	return n, w.note(err)
}

func (w *watchedConn) note(err error) error {
	if err != nil {
		w.err.CompareAndSwap(nil, &err)
	}
	return err
}

// broken is the first error, or nil.
func (w *watchedConn) broken() error {
	if err := w.err.Load(); err != nil {
		return *err
	}
	return nil
}

// HostKey is the pinned key that the server proved to have.
func (c *Client) HostKey() pairing.Key { return c.hostKey }

// SessionID is the SSH session identifier, to which proofs are bound.
func (c *Client) SessionID() []byte { return c.meta.SessionID() }

// PostQuantum reports whether the key exchange resists a quantum computer that
// reads today's recording later.
func (c *Client) PostQuantum() bool {
	a, ok := c.meta.(ssh.AlgorithmsConnMetadata)
	return ok && a.Algorithms().KeyExchange == ssh.KeyExchangeMLKEM768X25519
}

// Ping asks the far end for a sign of life (keepalive@openssh.com) and returns
// when any answer came. Only one runs at a time; the caller brings the deadline,
// and a Ping that ran out of time ends when the connection does.
func (c *Client) Ping(ctx context.Context) error {
	answered := make(chan error, 1)
	// Ends with the answer or with the connection; Close waits for it.
	c.wg.Go(func() {
		_, _, err := c.meta.SendRequest("keepalive@openssh.com", true, nil)
		answered <- err
	})
	select {
	case err := <-answered:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Subsystem opens a channel and starts a subsystem of the server on it. Closing
// the stream ends the subsystem.
func (c *Client) Subsystem(name string) (io.ReadWriteCloser, error) {
	ch, reqs, err := c.conn.OpenChannel("session", nil)
	if err != nil {
		return nil, fmt.Errorf("open subsystem %q: %w", name, err)
	}
	// Ends when the channel closes; Close waits for it.
	c.wg.Go(func() { ssh.DiscardRequests(reqs) })
	ok, err := ch.SendRequest("subsystem", true, ssh.Marshal(struct{ Name string }{name}))
	if err == nil && !ok {
		err = ErrDenied
	}
	if err != nil {
		ch.Close()
		return nil, fmt.Errorf("open subsystem %q: %w", name, err)
	}
	return ch, nil
}

// Wait blocks until the connection ended and says why.
func (c *Client) Wait() error { return c.conn.Wait() }

// Close ends the connection and waits for the Client's goroutines.
func (c *Client) Close() error {
	err := c.conn.Close()
	c.conn.Wait()
	c.wg.Wait()
	return err
}
