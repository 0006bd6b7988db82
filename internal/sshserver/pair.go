package sshserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"holdfast/internal/pairing"
	"holdfast/internal/sshlink"
	"holdfast/internal/sshserver/authkeys"
)

const (
	// requestGrace bounds the wait for the device's line, which it sends at once.
	requestGrace = 15 * time.Second
	// sshdTimeout bounds all questions to the machine's own sshd together; the
	// device waits meanwhile (sshlink.Pair allows 20 s).
	sshdTimeout = 10 * time.Second
	// sshdKeysFor is how long its host keys are not asked for again. Each answer
	// costs three connections that do not authenticate, which sshd counts.
	sshdKeysFor = time.Minute
)

// codeFailed says that the machine could not do its part.
const codeFailed pairing.Code = "failed"

// pair serves the `pair` subsystem: one line each way.
func (l *live) pair(ch ssh.Channel) {
	grace := time.AfterFunc(requestGrace, func() { ch.Close() })
	req, err := pairing.ReadRequest(ch)
	if !grace.Stop() {
		return
	}
	var answer pairing.Response
	if err != nil {
		answer = pairing.Response{Code: pairing.CodeSyntax, Message: "the request is not one that this machine understands; update holdfast on both sides"}
	} else {
		answer = l.tryPair(req)
	}
	if err := pairing.WriteResponse(ch, answer); err != nil {
		l.log.Info("pairing answer not sent", "err", err)
	}
}

func (l *live) tryPair(req pairing.Request) pairing.Response {
	s := l.server
	code, closed := s.links.try(req.Proof, pairing.Binding{
		SessionID: l.conn.SessionID(),
		DeviceKey: l.key.Blob(),
		HostKey:   l.hostKey.Blob(),
		Machine:   s.o.Machine,
	}, l.key, time.Now())
	for _, secret := range closed {
		l.log.Warn("pairing link closed", "err", "five wrong proofs")
		s.linkClosed(secret)
	}
	if code != "" {
		l.log.Warn("pairing refused", "verdict", code)
		return pairing.Response{Code: code, Message: refusalText(code, len(closed) > 0)}
	}
	device, err := s.o.Devices.add(l.key, l.deviceID, req.Name, time.Now())
	if err != nil {
		l.log.Error("device not stored", "err", err)
		message := "the machine could not store the device's key; its log says why"
		if errors.Is(err, ErrTooManyDevices) {
			message = err.Error()
		}
		return pairing.Response{Code: codeFailed, Message: message}
	}
	answer := pairing.Response{OK: true, Machine: s.o.Machine, User: s.account.Name, Shell: !s.o.ShellOff}
	if s.o.SSHD != "" {
		answer.SSHD = s.install(device)
	}
	l.log.Info("device paired", "verdict", "ok", "name", device.Name)
	if s.o.Paired != nil {
		s.o.Paired(device)
	}
	return answer
}

func refusalText(code pairing.Code, closed bool) string {
	switch {
	case closed:
		return "the proof is wrong, and it was one too many: the link is closed; make a new one with `holdfast pair`"
	case code == pairing.CodeProof:
		return "the proof is wrong: the link belongs to another machine or is mistyped"
	case code == pairing.CodeBound:
		return "the link was used by another device already; make a new one with `holdfast pair`"
	}
	return "no link is open any more; make a new one with `holdfast pair`"
}

// install gives the device's key to the machine's own sshd, and asks that sshd
// for its host keys and whether it would let the key in.
func (s *Server) install(d Device) *pairing.SSHD {
	ctx, cancel := context.WithTimeoutCause(context.Background(), sshdTimeout, fmt.Errorf("no answer within %v", sshdTimeout))
	defer cancel()
	out := &pairing.SSHD{}
	keys, keysErr := s.sshd.hostKeys(ctx)
	for _, k := range keys {
		out.Keys = append(out.Keys, k.Line())
	}
	if err := authkeys.Add(s.account.Home, authkeys.Entry{Key: d.Key, Device: d.ID, Name: d.Name}); err != nil {
		s.o.Logger.Warn("authorized_keys line not written", "device", d.ID, "err", err)
		out.Note = fmt.Sprintf("%v; the machine's sshd will not let this device in, the built-in server will", err)
		return out
	}
	if keysErr != nil {
		out.Note = fmt.Sprintf("no sshd answers at %s (%v); the built-in server lets this device in; pair again once sshd runs", s.o.SSHD, keysErr)
		return out
	}
	switch err := s.sshd.accepts(ctx, s.account.Name, keys, d.Key); {
	case err == nil:
		out.Installed = true
	case errors.Is(err, sshlink.ErrDenied):
		out.Note = fmt.Sprintf("the sshd at %s does not accept the key that is now in %s: %s; the built-in server lets this device in",
			s.o.SSHD, filepath.Join(s.account.Home, ".ssh", "authorized_keys"), whyDenied(s.account.Home))
	default:
		out.Note = fmt.Sprintf("whether the sshd at %s accepts the key could not be found out: %v", s.o.SSHD, err)
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

// uninstall takes keys, and lines of device, out of authorized_keys.
func (s *Server) uninstall(keys []pairing.Key, device string) error {
	if len(keys) == 0 {
		keys = []pairing.Key{{}}
	}
	var errs []error
	for _, k := range keys {
		r, err := authkeys.Remove(s.account.Home, k, device)
		errs = append(errs, err)
		if r.Unmarked {
			s.o.Logger.Warn("the device's key stands in authorized_keys without holdfast's mark, so it was left there; take it out by hand", "device", device, "key", k.Fingerprint())
		}
	}
	return errors.Join(errs...)
}

// sshdProbe asks the machine's own sshd.
type sshdProbe struct {
	addr string
	// mu guards the fields below, and makes two askers one.
	mu    sync.Mutex
	keys  []pairing.Key
	asked time.Time
}

func (p *sshdProbe) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", p.addr)
}

func (p *sshdProbe) hostKeys(ctx context.Context) ([]pairing.Key, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.keys) > 0 && time.Since(p.asked) < sshdKeysFor {
		return p.keys, nil
	}
	keys, err := sshlink.ReadHostKeys(ctx, p.dial)
	if err != nil {
		return nil, err
	}
	p.keys, p.asked = keys, time.Now()
	return keys, nil
}

func (p *sshdProbe) accepts(ctx context.Context, user string, hostKeys []pairing.Key, k pairing.Key) error {
	conn, err := p.dial(ctx)
	if err != nil {
		return err
	}
	return sshlink.CheckKey(ctx, conn, user, hostKeys, k)
}
