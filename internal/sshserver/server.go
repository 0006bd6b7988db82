// Package sshserver is the agent's own SSH server: shell, commands, SFTP and
// loopback port forwarding for paired devices as the agent's user, further
// subsystems that others bring, and the `pair` subsystem by which a device
// becomes a paired one. It keeps the keys of paired devices.
//
// It listens nowhere: every connection is handed to Serve. It knows no
// passwords, forwards no agent, no X11 and no listening port, never changes the
// user, and logs no byte of a stream.
//
// What a caller will get wrong: the device id that comes with a connection is
// what the relay says, good for the log and as a name, while who gets in is
// decided by the key alone; and a machine's name and host keys are bound into
// pairing proofs, so they must be the ones that the link carries.
package sshserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"holdfast/internal/pairing"
	"holdfast/internal/sshlink"
	"holdfast/internal/sshserver/ownsshd"
	"holdfast/internal/sshserver/shell"
	"holdfast/internal/wire"
)

const (
	// serverVersion is what the server says first.
	serverVersion = "SSH-2.0-Holdfast"
	// loginGrace bounds key exchange and authentication: ten round trips of a bad
	// mobile link and a touch on a security key.
	loginGrace = 30 * time.Second
	// pairGrace bounds what an unknown key may stay: it says one line.
	pairGrace = 60 * time.Second
	// maxAuthTries is how many keys may be tried on one connection. An agent
	// full of keys tries five.
	maxAuthTries = 6
	// maxPending bounds connections that have not authenticated yet. Each costs
	// about 100 KB and some milliseconds of key exchange. Half refuses a person
	// who opens a hundred at once (a build farm, a parallel copy); twice costs
	// 25 MB, and who floods is already past the relay's limits.
	maxPending = 128
	// maxConns bounds all connections: a person's devices hold some tens.
	maxConns = 512
	// maxChannels bounds the channels of a connection: a browser that goes
	// through a forwarded port opens some tens.
	maxChannels = 128
	// maxUnpaired bounds the connections of keys that are not paired, of which
	// each can make us hold 4 MB that it sent and nobody reads.
	maxUnpaired = 16
	// maxUnpairedChannels is for one try to pair and one to repeat it.
	maxUnpairedChannels = 2
)

// Subsystem serves a stream of a paired device. It must return when ctx ends or
// the stream does; the stream is closed after it.
type Subsystem func(ctx context.Context, stream io.ReadWriteCloser, device Device)

// Options of New.
type Options struct {
	// Machine is this machine's name; required.
	Machine wire.MachineID
	// HostKeys and Devices are required.
	HostKeys *HostKeys
	Devices  *DeviceKeys
	// Home is the home directory: where shells start and where authorized_keys
	// is. Empty means the one of the user database.
	Home string
	// Environ is the agent's environment, of which a few names are passed on to
	// commands (shell.Current). Empty will do.
	Environ []string
	// ShellOff leaves pairing and Subsystems, and takes away shell, commands,
	// SFTP and port forwarding.
	ShellOff bool
	// SSHD is the address of the machine's own sshd, host:port. Empty means that
	// it is not offered: pairing then writes no authorized_keys line.
	SSHD string
	// Subsystems by name; nil means none. "pair" and "sftp" are taken.
	Subsystems map[string]Subsystem
	// LinkClosed, if not nil, is told of a pairing link that five wrong proofs or
	// a revocation closed, so that the relay can be told as well.
	LinkClosed func(secret pairing.Secret)
	// Paired, if not nil, is told of each device that was paired.
	Paired func(d Device)
	// Logger is required.
	Logger *slog.Logger
}

func (o Options) validate() error {
	if _, err := wire.ParseMachineID(string(o.Machine)); err != nil {
		return err
	}
	if o.HostKeys == nil || o.Devices == nil || o.Logger == nil {
		return errors.New("host keys, device keys and logger are required")
	}
	if o.SSHD != "" {
		if _, _, err := net.SplitHostPort(o.SSHD); err != nil {
			return fmt.Errorf("address of sshd: %w", err)
		}
	}
	for name, f := range o.Subsystems {
		if name == pairing.Subsystem || name == subsystemSFTP || name == "" || f == nil {
			return fmt.Errorf("subsystem %q is taken, or lacks its name or function", name)
		}
	}
	return nil
}

// Server is the built-in SSH server.
type Server struct {
	o       Options
	account shell.Account
	links   links
	sshd    *ownsshd.SSHD
	pending chan struct{} // holds one element for each unauthenticated connection
	serial  atomic.Uint64 // numbers connections in the log
	wg      sync.WaitGroup

	// mu guards the fields below.
	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]*live // nil while it authenticates
}

// New makes a server. It starts nothing.
func New(o Options) (*Server, error) {
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("ssh server: %w", err)
	}
	account, err := shell.Current(o.Home, o.Environ)
	if err != nil {
		return nil, fmt.Errorf("ssh server: %w", err)
	}
	return &Server{
		o:       o,
		account: account,
		sshd:    ownsshd.New(o.SSHD, account.Name, account.Home, o.Logger),
		pending: make(chan struct{}, maxPending),
		conns:   make(map[net.Conn]*live),
	}, nil
}

// User is the operating system's user that paired devices become.
func (s *Server) User() string { return s.account.Name }

// Devices lists the paired devices.
func (s *Server) Devices() []Device { return s.o.Devices.All() }

// Close ends every connection, kills what runs on them, and waits for all.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	for conn := range s.conns {
		conn.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// Serve runs one SSH connection and returns when it has ended and nothing of it
// runs any more. It owns conn. deviceID is the relay's id of the device, or
// empty.
func (s *Server) Serve(conn net.Conn, deviceID string) {
	defer conn.Close()
	deviceID = wire.CleanText(deviceID, wire.MaxNameBytes)
	log := s.o.Logger.With("conn", s.serial.Add(1), "device", deviceID)
	if err := s.begin(conn); err != nil {
		log.Warn("ssh connection refused", "err", err)
		return
	}
	defer s.end(conn)
	select {
	case s.pending <- struct{}{}:
	default:
		log.Warn("ssh connection refused", "err", "too many connections have not authenticated yet")
		return
	}
	began := time.Now()
	l, chans, reqs, err := s.authenticate(conn, deviceID, log)
	<-s.pending
	if err != nil {
		log.Info("ssh connection ended before authentication", "took", time.Since(began), "err", err)
		return
	}
	if !s.admit(conn, l) {
		l.conn.Close()
		l.log.Warn("ssh connection ended", "err", "its key was revoked or its link closed meanwhile, or too many try to pair")
		go ssh.DiscardRequests(reqs) // ends with the connection, which is closed
		for range chans {
			// The same, and waited for: nothing is accepted.
		}
		return
	}
	l.log.Info("ssh connection", "paired", l.paired, "took", time.Since(began))
	l.serve(chans, reqs)
	// What x/crypto keeps of the end: a device's goodbye, or what went wrong.
	l.log.Info("ssh connection ended", "took", time.Since(began), "err", l.conn.Wait())
}

func (s *Server) begin(conn net.Conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errors.New("the server is closed")
	}
	if len(s.conns) >= maxConns {
		return fmt.Errorf("there are %d connections already", maxConns)
	}
	s.conns[conn] = nil
	s.wg.Add(1)
	return nil
}

func (s *Server) end(conn net.Conn) {
	s.mu.Lock()
	delete(s.conns, conn)
	s.mu.Unlock()
	s.wg.Done()
}

// admit enters an authenticated connection where Revoke finds it, and then looks
// once more whether its key may be here: a revocation before the entry is seen
// by the second look, one after it by Revoke.
func (s *Server) admit(conn net.Conn, l *live) bool {
	s.mu.Lock()
	s.conns[conn] = l
	unpaired := 0
	for _, other := range s.conns {
		if other != nil && !other.paired {
			unpaired++
		}
	}
	refused := s.closed || !l.paired && unpaired > maxUnpaired
	s.mu.Unlock()
	if refused {
		return false
	}
	if l.paired {
		_, ok := s.o.Devices.ByKey(l.key)
		return ok
	}
	return s.links.anyOpen(time.Now())
}

// errUnknownKey is what a device gets whose key is not paired.
var errUnknownKey = errors.New("the key is not paired with this machine")

// authenticate runs key exchange and authentication.
func (s *Server) authenticate(conn net.Conn, deviceID string, log *slog.Logger) (*live, <-chan ssh.NewChannel, <-chan *ssh.Request, error) {
	// Closing is the one interruption that every net.Conn honours.
	grace := time.AfterFunc(loginGrace, func() { conn.Close() })
	defer grace.Stop()

	config := &ssh.ServerConfig{
		Config:        sshlink.TransportConfig(),
		ServerVersion: serverVersion,
		MaxAuthTries:  maxAuthTries,
		PublicKeyAuthAlgorithms: []string{
			ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256,
		},
		PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			return s.identify(key, log)
		},
	}
	for _, k := range s.o.HostKeys.inUse {
		config.AddHostKey(k.Signer())
	}
	c, chans, reqs, err := ssh.NewServerConn(sshlink.Joined(conn), config)
	if err != nil {
		return nil, nil, nil, err
	}
	id := c.Permissions.ExtraData[identityKey{}].(identity) // publickey is the only method
	l := &live{server: s, conn: c, deviceID: deviceID, identity: id, log: log.With("key", id.key.Fingerprint())}
	if l.paired {
		l.log = l.log.With("name", l.device.Name)
		if err := s.o.Devices.touch(l.key, time.Now()); err != nil {
			l.log.Warn("device's use not noted", "err", err)
		}
	}
	if a, ok := c.Conn.(ssh.AlgorithmsConnMetadata); ok {
		l.hostKey, _ = s.o.HostKeys.byAlgorithm(a.Algorithms().HostKey)
	}
	return l, chans, reqs, nil
}

// Revoke takes a device's rights on this machine away, whatever of them is
// there: its key here, its authorized_keys line, links bound to its key, and
// its live connections. key is "type base64"; device an id; either may be
// empty. Doing it twice is no error. After an error, which says what is left,
// the device gets into this server no more, and the call is to be repeated.
func (s *Server) Revoke(device, key string) error {
	var keys []pairing.Key
	if key != "" {
		k, err := pairing.ParseKey(key)
		if err != nil {
			return fmt.Errorf("revoke device %q: %w", device, err)
		}
		keys = append(keys, k)
	}
	var errs []error
	var first pairing.Key // the zero key matches nothing
	if len(keys) > 0 {
		first = keys[0]
	}
	removed, err := s.o.Devices.remove(first, device)
	errs = append(errs, err)
	for _, d := range removed {
		if d.Key != first {
			keys = append(keys, d.Key)
		}
	}
	for _, k := range keys {
		for _, secret := range s.links.closeBound(k) {
			s.linkClosed(secret)
		}
		ended := s.hangUp(k)
		s.o.Logger.Info("device revoked", "device", device, "key", k.Fingerprint(), "connections", ended)
	}
	errs = append(errs, s.sshd.Uninstall(keys, device))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("revoke device %q: %w", device, err)
	}
	return nil
}

// hangUp ends the live connections of a key and says how many there were.
func (s *Server) hangUp(k pairing.Key) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	ended := 0
	for conn, l := range s.conns {
		if l != nil && l.key == k {
			conn.Close()
			ended++
		}
	}
	return ended
}

func (s *Server) linkClosed(secret pairing.Secret) {
	if s.o.LinkClosed != nil {
		s.o.LinkClosed(secret)
	}
}
