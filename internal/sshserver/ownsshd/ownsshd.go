// Package ownsshd deals with the machine's own sshd for the built-in server: it
// reads its host keys over the network as any client would, gives it a device's
// key by a line in authorized_keys, and asks it whether that worked.
//
// It never logs in, never changes sshd's configuration and needs no right that
// the user does not have.
//
// What a caller will get wrong: Install takes as long as sshd takes to answer,
// 10 s at most, and what it could not do is in its result, for the person.
package ownsshd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"holdfast/internal/pairing"
	"holdfast/internal/sshlink"
	"holdfast/internal/sshserver/authkeys"
)

const (
	// timeout bounds all questions of one Install together; the device waits
	// meanwhile (sshlink.Pair allows 20 s).
	timeout = 10 * time.Second
	// keysFor is how long host keys are not asked for again. Each answer costs
	// three connections that do not authenticate, for which sshd from 9.8 on
	// gives a second of penalty each and shuts the address out from 15 on.
	keysFor = time.Minute
)

// SSHD is the sshd at an address, for one user.
type SSHD struct {
	addr, user, home string
	log              *slog.Logger
	// mu guards the fields below, and makes two askers one.
	mu    sync.Mutex
	keys  []pairing.Key
	asked time.Time
}

// New describes the sshd at addr, host:port; it connects to nothing. With an
// empty address only Uninstall may be called.
func New(addr, user, home string, log *slog.Logger) *SSHD {
	return &SSHD{addr: addr, user: user, home: home, log: log}
}

// Install gives the device's key to sshd, and asks sshd for its host keys and
// whether it would let the key in.
func (s *SSHD) Install(e authkeys.Entry) *pairing.SSHD {
	ctx, cancel := context.WithTimeoutCause(context.Background(), timeout, fmt.Errorf("no answer within %v", timeout))
	defer cancel()
	out := &pairing.SSHD{}
	keys, keysErr := s.hostKeys(ctx)
	for _, k := range keys {
		out.Keys = append(out.Keys, k.Line())
	}
	if err := authkeys.Add(s.home, e); err != nil {
		s.log.Warn("authorized_keys line not written", "device", e.Device, "err", err)
		out.Note = fmt.Sprintf("%v; so the machine's sshd will not let this device in", err)
		return out
	}
	if keysErr != nil {
		out.Note = fmt.Sprintf("no sshd answers at %s (%v); pair again once it runs", s.addr, keysErr)
		return out
	}
	switch err := s.accepts(ctx, keys, e.Key); {
	case err == nil:
		out.Installed = true
	case errors.Is(err, sshlink.ErrDenied):
		out.Note = fmt.Sprintf("the sshd at %s does not accept the key that is now in %s: %s",
			s.addr, filepath.Join(s.home, ".ssh", "authorized_keys"), whyDenied(s.home))
	default:
		out.Note = fmt.Sprintf("whether the sshd at %s accepts the key could not be found out: %v", s.addr, err)
	}
	return out
}

// whyDenied looks for the reason that a person can mend here, else names those
// in sshd's configuration.
func whyDenied(home string) string {
	for _, path := range []string{home, filepath.Join(home, ".ssh")} {
		if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o022 != 0 {
			return fmt.Sprintf("others may write %s, so sshd trusts nothing in it (chmod go-w %s)", path, path)
		}
	}
	return "look at AuthorizedKeysFile, PubkeyAuthentication and AllowUsers in its configuration, and at its log"
}

// Uninstall takes the lines of keys, and those of device, out of
// authorized_keys.
func (s *SSHD) Uninstall(keys []pairing.Key, device string) error {
	if len(keys) == 0 {
		keys = []pairing.Key{{}}
	}
	var errs []error
	for _, k := range keys {
		r, err := authkeys.Remove(s.home, k, device)
		errs = append(errs, err)
		if r.Unmarked {
			s.log.Warn("the device's key stands in authorized_keys without holdfast's mark, so it was left there; take it out by hand", "device", device, "key", k.Fingerprint())
		}
	}
	return errors.Join(errs...)
}

func (s *SSHD) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", s.addr)
}

func (s *SSHD) hostKeys(ctx context.Context) ([]pairing.Key, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.keys) > 0 && time.Since(s.asked) < keysFor {
		return s.keys, nil
	}
	keys, err := sshlink.ReadHostKeys(ctx, s.dial)
	if err != nil {
		return nil, err
	}
	s.keys, s.asked = keys, time.Now()
	return keys, nil
}

func (s *SSHD) accepts(ctx context.Context, hostKeys []pairing.Key, k pairing.Key) error {
	conn, err := s.dial(ctx)
	if err != nil {
		return err
	}
	return sshlink.CheckKey(ctx, conn, s.user, hostKeys, k)
}
