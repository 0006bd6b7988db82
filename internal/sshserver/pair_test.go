package sshserver

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"holdfast/internal/pairing"
	"holdfast/internal/sshlink"
)

// refusal is the code with which a machine refused, or empty.
func refusal(t *testing.T, err error) pairing.Code {
	t.Helper()
	if err == nil {
		return ""
	}
	var r *sshlink.RefusedError
	if !errors.As(err, &r) {
		t.Fatalf("error is %v, want a refusal by the machine", err)
	}
	return r.Code
}

// wrong is a link with another secret.
func wrong(l pairing.Link) pairing.Link {
	l.Secret = pairing.NewSecret()
	return l
}

func TestPair(t *testing.T) {
	var told []Device
	m := newMachine(t, func(o *Options) { o.Paired = func(d Device) { told = append(told, d) } })
	l := m.link()
	k, _ := newDeviceKey(t)
	r, err := m.pair(l, k, "my\x1b[31m phone")
	must(t, err)
	if r.Machine != "mini" || r.User != m.User() || !r.Shell || r.SSHD != nil {
		t.Errorf("response is %+v", r)
	}
	d, ok := m.o.Devices.ByKey(k.Public())
	if !ok || d.ID != "relaysid" || d.Name != "my[31m phone" || d.Added.IsZero() {
		t.Errorf("stored is %+v, %v", d, ok)
	}
	if len(told) != 1 || told[0].Key != k.Public() {
		t.Errorf("told of %+v", told)
	}
	c, err := m.client(k.Signer())
	must(t, err)
	if out, _, err := m.run(c, "echo in"); out != "in\n" {
		t.Errorf("after pairing a command gives %q, %v", out, err)
	}
	// Without sshd there is nobody to write an authorized_keys line for.
	if _, err := os.Lstat(filepath.Join(m.home, ".ssh")); err == nil {
		t.Error("~/.ssh was made without an sshd")
	}
	// It survives a restart.
	again, err := OpenDeviceKeys(m.state)
	must(t, err)
	if got, ok := again.ByKey(k.Public()); !ok || got.ID != d.ID {
		t.Errorf("after a restart: %+v, %v", got, ok)
	}
}

func TestPairAgainUntilExpiry(t *testing.T) {
	m := newMachine(t, nil)
	l := m.link()
	k, _ := newDeviceKey(t)
	for _, name := range []string{"first", "second"} {
		_, err := m.pair(l, k, name)
		must(t, err)
	}
	if all := m.Devices(); len(all) != 1 || all[0].Name != "second" {
		t.Errorf("devices are %+v, want one with its newest name", all)
	}
	other, _ := newDeviceKey(t)
	if _, err := m.pair(l, other, "other"); refusal(t, err) != pairing.CodeBound {
		t.Errorf("another key: %v, want it bound", err)
	}
	if _, ok := m.o.Devices.ByKey(other.Public()); ok {
		t.Error("another key was stored")
	}
	if s, open := m.Link(l.Secret); !open || s.Bound != k.Public() || s.Wrong != 0 {
		t.Errorf("link is %+v, %v", s, open)
	}
}

func TestFiveWrongProofsCloseTheLink(t *testing.T) {
	var closed []pairing.Secret
	m := newMachine(t, func(o *Options) { o.LinkClosed = func(s pairing.Secret) { closed = append(closed, s) } })
	l := m.link()
	k, _ := newDeviceKey(t)
	for i := range pairing.MaxProofs {
		if s, open := m.Link(l.Secret); !open || s.Wrong != i {
			t.Fatalf("before proof %d the link is %+v, %v", i, s, open)
		}
		if _, err := m.pair(wrong(l), k, "x"); refusal(t, err) != pairing.CodeProof {
			t.Fatalf("wrong proof %d: %v", i, err)
		}
	}
	if _, open := m.Link(l.Secret); open {
		t.Error("the link is open after five wrong proofs")
	}
	if len(closed) != 1 || closed[0] != l.Secret {
		t.Errorf("told of %d closed links", len(closed))
	}
	if _, err := m.pair(l, k, "x"); !errors.Is(err, sshlink.ErrDenied) {
		t.Errorf("with the right proof afterwards: %v, want the key not even let in", err)
	}
	if len(m.Devices()) != 0 {
		t.Error("a device was stored")
	}
}

func TestManyWrongProofsAtOnceCountEach(t *testing.T) {
	m := newMachine(t, nil)
	l := m.link()
	var mu sync.Mutex
	codes := map[pairing.Code]int{}
	var wg sync.WaitGroup
	for range 12 {
		k, _ := newDeviceKey(t)
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			conn, err := net.Dial("tcp", m.addr)
			if err != nil {
				t.Error(err)
				return
			}
			_, err = sshlink.Pair(ctx, conn, wrong(l), k, "x")
			mu.Lock()
			defer mu.Unlock()
			var r *sshlink.RefusedError
			switch {
			case errors.As(err, &r):
				codes[r.Code]++
			case errors.Is(err, sshlink.ErrDenied):
				codes["denied"]++
			default:
				// admitted when the link was open, ended when it was not any more
				codes["ended"]++
			}
		})
	}
	wg.Wait()
	if codes[pairing.CodeProof] != pairing.MaxProofs {
		t.Errorf("codes are %v, want exactly %d proofs looked at", codes, pairing.MaxProofs)
	}
}

func TestProofsAreBound(t *testing.T) {
	m := newMachine(t, nil)
	l := m.link()
	k, _ := newDeviceKey(t)
	other, _ := newDeviceKey(t)
	hostKeys := m.o.HostKeys.Public()
	good := func(c *sshlink.Client) pairing.Binding {
		return pairing.Binding{SessionID: c.SessionID(), DeviceKey: k.Public().Blob(), HostKey: c.HostKey().Blob(), Machine: "mini"}
	}
	tests := map[string]func(b *pairing.Binding){
		"another session":    func(b *pairing.Binding) { b.SessionID = randomBytes(32) },
		"another device key": func(b *pairing.Binding) { b.DeviceKey = other.Public().Blob() },
		"our other host key": func(b *pairing.Binding) { b.HostKey = hostKeys[1].Blob() },
		"another machine":    func(b *pairing.Binding) { b.Machine = "maxi" },
		"": func(*pairing.Binding) {
		},
	}
	for name, change := range tests {
		m.CloseLink(l.Secret)
		must(t, m.OpenLink(l.Secret, l.Expires))
		c, err := sshlink.Dial(context.Background(), m.dialTCP(), sshlink.Options{HostKeys: hostKeys[:1], Key: k})
		must(t, err)
		stream, err := c.Subsystem(pairing.Subsystem)
		must(t, err)
		b := good(c)
		change(&b)
		must(t, pairing.WriteRequest(stream, pairing.Request{Proof: l.Secret.Prove(b), Name: "x"}))
		r, err := pairing.ReadResponse(stream)
		must(t, err)
		if want := name == ""; r.OK != want {
			t.Errorf("proof bound to %q: %+v", name, r)
		}
		c.Close()
	}
}

func TestPairWithTheECDSAHostKey(t *testing.T) {
	m := newMachine(t, nil)
	l := m.link()
	l.HostKeys = l.HostKeys[1:]
	k, _ := newDeviceKey(t)
	_, err := m.pair(l, k, "phone")
	must(t, err)
}

func TestExpiredLink(t *testing.T) {
	m := newMachine(t, nil)
	l := m.link()
	k, _ := newDeviceKey(t)
	// Its connection was made while the link was open.
	c, err := sshlink.Dial(context.Background(), m.dialTCP(), sshlink.Options{HostKeys: l.HostKeys, Key: k})
	must(t, err)
	defer c.Close()
	must(t, c.Ping(context.Background())) // it was admitted
	m.links.mu.Lock()
	m.links.open[0].expires = time.Now()
	m.links.mu.Unlock()
	stream, err := c.Subsystem(pairing.Subsystem)
	must(t, err)
	proof := l.Secret.Prove(pairing.Binding{SessionID: c.SessionID(), DeviceKey: k.Public().Blob(), HostKey: c.HostKey().Blob(), Machine: "mini"})
	must(t, pairing.WriteRequest(stream, pairing.Request{Proof: proof}))
	if r, err := pairing.ReadResponse(stream); err != nil || r.OK || r.Code != pairing.CodeExpired {
		t.Errorf("response is %+v, %v", r, err)
	}
	if _, err := m.pair(l, k, "x"); !errors.Is(err, sshlink.ErrDenied) {
		t.Errorf("a new connection: %v, want the key not let in", err)
	}
}

func TestOpenLinkRefusals(t *testing.T) {
	m := newMachine(t, nil)
	s := pairing.NewSecret()
	soon := time.Now().Add(time.Minute)
	if m.OpenLink(pairing.Secret{}, soon) == nil || m.OpenLink(s, time.Now()) == nil || m.OpenLink(s, time.Now().Add(time.Hour)) == nil {
		t.Error("a link without secret, time, or with too much of it was opened")
	}
	must(t, m.OpenLink(s, soon))
	if m.OpenLink(s, soon) == nil {
		t.Error("one link was opened twice")
	}
	for range maxLinks {
		must(t, m.OpenLink(pairing.NewSecret(), soon))
	}
	if _, open := m.Link(s); open {
		t.Error("more links are open than may be")
	}
}

func TestTwoLinksAreIndependent(t *testing.T) {
	m := newMachine(t, nil)
	a, b := m.link(), m.link()
	k1, _ := newDeviceKey(t)
	k2, _ := newDeviceKey(t)
	_, err := m.pair(b, k2, "second")
	must(t, err)
	_, err = m.pair(a, k1, "first")
	must(t, err)
	m.CloseLink(a.Secret)
	if _, err := m.pair(b, k2, "again"); err != nil {
		t.Errorf("the other link: %v", err)
	}
}

func TestAnUnpairedKeyReachesPairOnly(t *testing.T) {
	m := newMachine(t, func(o *Options) {
		o.Subsystems = map[string]Subsystem{"sessions": func(_ context.Context, rw io.ReadWriteCloser, _ Device) { io.WriteString(rw, "secret") }}
	})
	m.link()
	k := signer(t)
	dial := func() *ssh.Client {
		c, err := m.client(k)
		must(t, err)
		return c
	}
	session := func(what string, f func(s *ssh.Session) error) {
		t.Helper()
		c := dial()
		defer c.Close()
		s, err := c.NewSession()
		must(t, err)
		if f(s) == nil {
			t.Errorf("%s was allowed", what)
		}
	}
	session("exec", func(s *ssh.Session) error { return s.Run("true") })
	session("shell", func(s *ssh.Session) error { return s.Shell() })
	session("pty-req", func(s *ssh.Session) error { return s.RequestPty("xterm", 24, 80, nil) })
	session("env", func(s *ssh.Session) error { return s.Setenv("LANG", "C") })
	session("sftp", func(s *ssh.Session) error { return s.RequestSubsystem("sftp") })
	session("sessions", func(s *ssh.Session) error { return s.RequestSubsystem("sessions") })
	c := dial()
	if _, err := c.Dial("tcp", m.addr); err == nil {
		t.Error("port forwarding was allowed")
	}
	if ok, _, _ := c.SendRequest("hostkeys-prove-00@openssh.com", true, sshlink.MarshalBlobs([][]byte{m.o.HostKeys.Public()[0].Blob()})); ok {
		t.Error("a host key was proved to it")
	}
	for range maxUnpairedChannels {
		if _, err := c.NewSession(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.NewSession(); err == nil {
		t.Error("it has as many channels as it likes")
	}
}

func TestUnpairedConnectionsAreBounded(t *testing.T) {
	m := newMachine(t, nil)
	l := m.link()
	k := signer(t)
	for range maxUnpaired {
		c, err := m.client(k)
		must(t, err)
		if _, _, err := c.SendRequest("keepalive@openssh.com", true, nil); err != nil {
			t.Fatal(err)
		}
	}
	if c, err := m.client(k); err == nil {
		c.Wait() // it was ended at once
	}
	if out, _, err := m.run(m.pairedClient(), "echo in"); out != "in\n" {
		t.Errorf("a paired device: %q, %v", out, err)
	}
	m.CloseLink(l.Secret)
}

func TestMalformedPairingRequests(t *testing.T) {
	m := newMachine(t, nil)
	l := m.link()
	k, _ := newDeviceKey(t)
	for _, text := range []string{"\n", "{}\n", "nonsense\n", `{"v":1,"proof":"AAAA","name":"x"}` + "\n", `{"v":0,"name":"x"}` + "\n", strings.Repeat("x", 100_000), `{"v":1`} {
		c, err := sshlink.Dial(context.Background(), m.dialTCP(), sshlink.Options{HostKeys: l.HostKeys, Key: k})
		must(t, err)
		stream, err := c.Subsystem(pairing.Subsystem)
		must(t, err)
		io.WriteString(stream, text)
		stream.(ssh.Channel).CloseWrite()
		if r, err := pairing.ReadResponse(stream); err != nil || r.OK || r.Code != pairing.CodeSyntax {
			t.Errorf("%.20q: %+v, %v", text, r, err)
		}
		c.Close()
	}
	if s, _ := m.Link(l.Secret); s.Wrong != 0 {
		t.Errorf("%d of them counted as a proof", s.Wrong)
	}
}

func TestRevokeEndsLiveConnections(t *testing.T) {
	m := newMachine(t, nil)
	k, _ := m.pairedKey("stolen")
	c, err := m.client(k.Signer())
	must(t, err)
	pids := startPrinting(t, m.session(c), "echo $$; exec sleep 1000", 1)
	other := m.pairedClient()
	must(t, m.Revoke("", k.Public().Line()+" any comment"))
	c.Wait()
	eventually(t, "its command is gone", func() bool { return !alive(pids[0]) })
	if _, err := m.client(k.Signer()); err == nil {
		t.Error("the revoked key got in")
	}
	if out, _, err := m.run(other, "echo still here"); out != "still here\n" {
		t.Errorf("another device: %q, %v", out, err)
	}
	must(t, m.Revoke("", k.Public().Line())) // again
	if again, err := OpenDeviceKeys(m.state); err != nil || len(again.All()) != 1 {
		t.Errorf("the file has %d devices, %v", len(again.All()), err)
	}
}

func TestRevokeByID(t *testing.T) {
	m := newMachine(t, nil)
	l := m.link()
	k, _ := newDeviceKey(t)
	_, err := m.pair(l, k, "phone")
	must(t, err)
	c, err := m.client(k.Signer())
	must(t, err)
	must(t, m.Revoke("relaysid", ""))
	c.Wait()
	if len(m.Devices()) != 0 {
		t.Error("it is still listed")
	}
	if _, open := m.Link(l.Secret); open {
		t.Error("its link is open, so it could pair again")
	}
	if err := m.Revoke("x", "not a key"); err == nil {
		t.Error("a bad key is no error")
	}
	must(t, m.Revoke("", ""))
}

func TestRevokeInTheMiddleOfALogin(t *testing.T) {
	m := newMachine(t, nil)
	for range 30 {
		k, _ := m.pairedKey("phone")
		done := make(chan error, 1)
		go func() { done <- m.Revoke("", k.Public().Line()) }()
		c, err := m.client(k.Signer())
		must(t, <-done)
		if err == nil {
			c.Wait() // the test hangs when the connection was missed
		}
	}
}

func TestRevokeWhenTheFileCannotBeWritten(t *testing.T) {
	m := newMachine(t, nil)
	k, _ := m.pairedKey("phone")
	c, err := m.client(k.Signer())
	must(t, err)
	must(t, os.Rename(m.state, m.state+"-away"))
	if m.Revoke("", k.Public().Line()) == nil {
		t.Error("no error, so nobody would try again")
	}
	c.Wait()
	if _, err := m.client(k.Signer()); err == nil {
		t.Error("the key got in")
	}
	must(t, os.Rename(m.state+"-away", m.state))
	must(t, m.Revoke("", k.Public().Line()))
	if again, err := OpenDeviceKeys(m.state); err != nil || len(again.All()) != 0 {
		t.Errorf("after a restart %v would get in, %v", again.All(), err)
	}
}
