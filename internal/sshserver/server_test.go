package sshserver

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"holdfast/internal/pairing"
	"holdfast/internal/sshlink"
)

func TestKeyExchangeIsPostQuantumFirst(t *testing.T) {
	m := newMachine(t, nil)
	k, _ := m.pairedKey("laptop")
	c, err := sshlink.Dial(context.Background(), m.dialTCP(), sshlink.Options{HostKeys: m.o.HostKeys.Public(), Key: k})
	must(t, err)
	defer c.Close()
	if !c.PostQuantum() {
		t.Error("x/crypto's client did not get mlkem768x25519-sha256")
	}
}

// TestAlgorithms looks at what is offered, from outside.
func TestAlgorithms(t *testing.T) {
	m := newMachine(t, nil)
	k := signer(t)
	weak := []struct {
		name   string
		config ssh.Config
	}{
		{"kex", ssh.Config{KeyExchanges: []string{ssh.InsecureKeyExchangeDH14SHA1, ssh.KeyExchangeDH14SHA256}}},
		{"cipher", ssh.Config{Ciphers: []string{ssh.InsecureCipherAES128CBC}}},
		{"mac", ssh.Config{Ciphers: []string{ssh.CipherAES128CTR}, MACs: []string{ssh.HMACSHA1, ssh.HMACSHA256}}},
	}
	for _, w := range weak {
		_, _, _, err := ssh.NewClientConn(m.dialTCP(), "", &ssh.ClientConfig{
			Config: w.config, User: "x", Auth: []ssh.AuthMethod{ssh.PublicKeys(k)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
		})
		if err == nil || !strings.Contains(err.Error(), "no common algorithm") {
			t.Errorf("weak %s: error is %v, want that nothing is in common", w.name, err)
		}
	}
	for _, algorithm := range []string{ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256} {
		var got string
		ssh.NewClientConn(m.dialTCP(), "", &ssh.ClientConfig{
			User: "x", HostKeyAlgorithms: []string{algorithm},
			HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error { got = key.Type(); return nil },
		})
		if got != algorithm {
			t.Errorf("host key is %q, want %q", got, algorithm)
		}
	}
}

func TestOnlyPublicKeys(t *testing.T) {
	m := newMachine(t, nil)
	_, _, _, err := ssh.NewClientConn(m.dialTCP(), "", &ssh.ClientConfig{
		User: "root", HostKeyCallback: ssh.InsecureIgnoreHostKey(),
		Auth: []ssh.AuthMethod{ssh.Password("x"), ssh.KeyboardInteractive(func(_, _ string, q []string, _ []bool) ([]string, error) {
			return make([]string, len(q)), nil
		})},
	})
	if err == nil || !strings.Contains(err.Error(), "attempted methods [none]") {
		t.Errorf("error is %v, want that nothing but none could be tried", err)
	}
}

func TestAnUnknownKeyStaysOutAndIsToldWhy(t *testing.T) {
	m := newMachine(t, nil)
	var banner string
	_, _, _, err := ssh.NewClientConn(m.dialTCP(), "", &ssh.ClientConfig{
		User: "root", HostKeyCallback: ssh.InsecureIgnoreHostKey(),
		Auth:           []ssh.AuthMethod{ssh.PublicKeys(signer(t))},
		BannerCallback: func(message string) error { banner += message; return nil },
	})
	if err == nil {
		t.Fatal("an unknown key got in")
	}
	if !strings.Contains(banner, "not paired with mini") {
		t.Errorf("banner is %q", banner)
	}
}

func TestAnotherKeysSignatureStaysOut(t *testing.T) {
	m := newMachine(t, nil)
	paired, _ := m.pairedKey("laptop")
	if _, err := m.client(forged{ssh.Signer(signer(t)), paired.Signer().PublicKey()}); err == nil {
		t.Error("a signature by another key got in")
	}
}

// forged claims a public key and signs with another.
type forged struct {
	ssh.Signer
	claimed ssh.PublicKey
}

func (f forged) PublicKey() ssh.PublicKey { return f.claimed }

func TestAKeyAmongOthersIsTheOneThatCounts(t *testing.T) {
	m := newMachine(t, nil)
	m.link() // so that unknown keys are acceptable too
	k, _ := m.pairedKey("laptop")
	stranger := signer(t)
	for _, order := range [][]ssh.Signer{{k.Signer(), stranger}, {stranger, k.Signer()}} {
		conn := m.dialTCP()
		c, chans, reqs, err := ssh.NewClientConn(conn, "", &ssh.ClientConfig{
			User: "x", HostKeyCallback: ssh.InsecureIgnoreHostKey(), Auth: []ssh.AuthMethod{ssh.PublicKeys(order...)},
		})
		must(t, err)
		client := ssh.NewClient(c, chans, reqs)
		_, _, err = m.run(client, "true")
		if first := order[0] == k.Signer(); (err == nil) != first {
			t.Errorf("with the paired key first (%v) a command gives %v", first, err)
		}
		client.Close()
		client.Wait()
	}
}

func TestTooManyTries(t *testing.T) {
	m := newMachine(t, nil)
	k, _ := m.pairedKey("laptop")
	var keys []ssh.Signer
	for range 2 * (maxAuthTries + 1) {
		keys = append(keys, signer(t))
	}
	keys = append(keys, k.Signer())
	_, _, _, err := ssh.NewClientConn(m.dialTCP(), "", &ssh.ClientConfig{
		User: "x", HostKeyCallback: ssh.InsecureIgnoreHostKey(), Auth: []ssh.AuthMethod{ssh.PublicKeys(keys...)},
	})
	if err == nil || !strings.Contains(err.Error(), "too many") {
		t.Errorf("error is %v, want an end to the tries", err)
	}
}

func TestPendingHandshakesAreBounded(t *testing.T) {
	m := newMachine(t, nil)
	var held []net.Conn
	for range maxPending {
		c := m.dialTCP()
		held = append(held, c)
		readUntil(t, c, "SSH-2.0-Holdfast\r\n")
	}
	over := m.dialTCP()
	if b, err := io.ReadAll(over); len(b) != 0 {
		t.Errorf("one too many was told %q, %v", b, err)
	}
	over.Close()
	held[0].Close()
	eventually(t, "a place is free again", func() bool {
		c := m.dialTCP()
		defer c.Close()
		n, _ := c.Read(make([]byte, 1))
		return n == 1
	})
	for _, c := range held {
		c.Close()
	}
}

func TestChannelsAreBounded(t *testing.T) {
	m := newMachine(t, nil)
	c := m.pairedClient()
	for i := range maxChannels {
		ch, reqs, err := c.OpenChannel("session", nil)
		if err != nil {
			t.Fatalf("channel %d: %v", i, err)
		}
		go ssh.DiscardRequests(reqs) // ends with the connection
		_ = ch
	}
	_, _, err := c.OpenChannel("session", nil)
	if e, ok := err.(*ssh.OpenChannelError); !ok || e.Reason != ssh.ResourceShortage {
		t.Errorf("one too many gave %v", err)
	}
}

func TestGlobalRequests(t *testing.T) {
	m := newMachine(t, nil)
	c := m.pairedClient()
	if ok, _, err := c.SendRequest("keepalive@openssh.com", true, nil); err != nil || !ok {
		t.Errorf("keep-alive: %v, %v", ok, err)
	}
	forward := ssh.Marshal(struct {
		Host string
		Port uint32
	}{"127.0.0.1", 0})
	for _, name := range []string{"tcpip-forward", "cancel-tcpip-forward", "streamlocal-forward@openssh.com", "nonsense@example.com", ""} {
		if ok, _, err := c.SendRequest(name, true, forward); err != nil || ok {
			t.Errorf("%q: %v, %v, want a refusal", name, ok, err)
		}
	}
	for _, name := range []string{"x11", "auth-agent@openssh.com", "forwarded-tcpip", "direct-streamlocal@openssh.com", "tun@openssh.com"} {
		if _, _, err := c.OpenChannel(name, nil); err == nil {
			t.Errorf("channel %q was opened", name)
		}
	}
	if ok, _, err := c.SendRequest("no-more-sessions@openssh.com", true, nil); err != nil || !ok {
		t.Errorf("no-more-sessions: %v, %v", ok, err)
	}
	if _, err := c.NewSession(); err == nil {
		t.Error("a session was opened after no-more-sessions")
	}
}

func TestHostKeyProofs(t *testing.T) {
	m := newMachine(t, nil)
	c := m.pairedClient()
	blob := m.o.HostKeys.Public()[1].Blob()
	ok, answer, err := c.SendRequest("hostkeys-prove-00@openssh.com", true, sshlink.MarshalBlobs([][]byte{blob}))
	if err != nil || !ok || len(answer) == 0 {
		t.Errorf("proof of our key: %v, %d bytes, %v", ok, len(answer), err)
	}
	other := signer(t).PublicKey().Marshal()
	for name, payload := range map[string][]byte{
		"another's key": sshlink.MarshalBlobs([][]byte{other}),
		"both":          sshlink.MarshalBlobs([][]byte{blob, other}),
		"nothing":       nil,
		"cut off":       sshlink.MarshalBlobs([][]byte{blob})[:20],
		"a long length": {0xff, 0xff, 0xff, 0xff, 1},
		"too many":      sshlink.MarshalBlobs(slices.Repeat([][]byte{blob}, 17)),
	} {
		if ok, _, err := c.SendRequest("hostkeys-prove-00@openssh.com", true, payload); err != nil || ok {
			t.Errorf("%s: %v, %v, want a refusal", name, ok, err)
		}
	}
}

func TestForwardingToLoopback(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	go func() { // ends when the listener closes
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b, _ := io.ReadAll(c) // up to the half-close
			fmt.Fprintf(c, "got %d bytes", len(b))
			c.Close()
		}
	}()
	m := newMachine(t, nil)
	c := m.pairedClient()
	port := l.Addr().(*net.TCPAddr).Port
	for _, host := range []string{"127.0.0.1", "localhost"} {
		conn, err := c.Dial("tcp", fmt.Sprintf("%s:%d", host, port))
		must(t, err)
		_, err = conn.Write(bytes.Repeat([]byte("x"), 1<<20))
		must(t, err)
		must(t, conn.(interface{ CloseWrite() error }).CloseWrite())
		if got, err := io.ReadAll(conn); err != nil || string(got) != "got 1048576 bytes" {
			t.Errorf("via %s: %q, %v", host, got, err)
		}
		conn.Close()
	}
	l.Close()
	if _, err := c.Dial("tcp", l.Addr().String()); err == nil {
		t.Error("a closed port was connected")
	}
}

func TestForwardingElsewhereIsRefused(t *testing.T) {
	for _, host := range []string{"192.168.1.1", "10.0.0.1", "0.0.0.0", "::", "169.254.169.254", "example.com", "127.0.0.1.example.com", "127.1", "2130706433", "::1%eth0", "fe80::1", "", "localhost.", "/run/x"} {
		if a := loopbackAddrs(host, 80); a != nil {
			t.Errorf("%q leads to %v", host, a)
		}
	}
	for _, port := range []uint32{0, 65536, 1<<32 - 1} {
		if a := loopbackAddrs("127.0.0.1", port); a != nil {
			t.Errorf("port %d leads to %v", port, a)
		}
	}
	for host, want := range map[string]string{"127.0.0.1": "127.0.0.1:80", "127.8.9.10": "127.8.9.10:80", "::1": "[::1]:80", "::ffff:127.0.0.1": "127.0.0.1:80", "localhost": "127.0.0.1:80"} {
		if a := loopbackAddrs(host, 80); len(a) == 0 || a[0] != want {
			t.Errorf("%q leads to %v, want %s first", host, a, want)
		}
	}
	m := newMachine(t, nil)
	c := m.pairedClient()
	_, err := c.Dial("tcp", "192.0.2.1:80")
	if e, ok := err.(*ssh.OpenChannelError); !ok || e.Reason != ssh.Prohibited {
		t.Errorf("forwarding to another computer gave %v", err)
	}
	if _, _, err := c.OpenChannel("direct-tcpip", []byte{0, 0}); err == nil {
		t.Error("a malformed request was accepted")
	}
}

func TestForwardedConnectionEndsWithTheChannel(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	m := newMachine(t, nil)
	c := m.pairedClient()
	conn, err := c.Dial("tcp", l.Addr().String())
	must(t, err)
	far, err := l.Accept()
	must(t, err)
	defer far.Close()
	conn.Close()
	far.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.ReadAll(far); err != nil && strings.Contains(err.Error(), "timeout") {
		t.Errorf("the forwarded connection stayed open: %v", err)
	}
}

func TestGarbageInsteadOfSSH(t *testing.T) {
	m := newMachine(t, nil)
	for _, text := range []string{"GET / HTTP/1.1\r\n\r\n", strings.Repeat("x", 100_000), "SSH-1.5-old\r\n", "SSH-2.0-x\r\n\xff\xff\xff\xff", "\x00"} {
		c := m.dialTCP()
		io.WriteString(c, text)
		c.(*net.TCPConn).CloseWrite()
		c.SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.Copy(io.Discard, c); err != nil && strings.Contains(err.Error(), "timeout") {
			t.Errorf("%.20q: the connection stayed open", text)
		}
		c.Close()
	}
}

func TestCloseEndsEverything(t *testing.T) {
	m := newMachine(t, nil)
	c := m.pairedClient()
	s := m.session(c)
	pids := startPrinting(t, s, "echo $$; exec sleep 1000", 1)
	waiting := m.dialTCP()
	defer waiting.Close()
	readUntil(t, waiting, "SSH-")
	m.Close()
	if alive(pids[0]) {
		t.Error("a command runs on after Close")
	}
	c.Wait()
	late := m.dialTCP()
	defer late.Close()
	if b, _ := io.ReadAll(late); len(b) > 0 {
		t.Errorf("a closed server says %q", b)
	}
}

func TestTheLogHoldsNoSecretAndNoStream(t *testing.T) {
	m := newMachine(t, nil)
	l := m.link()
	text, err := l.Encode()
	must(t, err)
	k, _ := newDeviceKey(t)
	_, err = m.pair(l, k, "phone")
	must(t, err)
	c, err := m.client(k.Signer())
	must(t, err)
	m.run(c, "echo very-private-output # very-private-line")
	_, fragment, _ := strings.Cut(text, "#")
	for _, secret := range []string{"very-private", fragment, "PRIVATE KEY", l.Secret.RelaySecret().Text()} {
		if strings.Contains(m.log.String(), secret) {
			t.Errorf("the log holds %q", secret)
		}
	}
	for _, want := range []string{"device paired", "command started", k.Public().Fingerprint()} {
		if !strings.Contains(m.log.String(), want) {
			t.Errorf("the log lacks %q: %s", want, m.log)
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	m := newMachine(t, nil)
	for name, change := range map[string]func(*Options){
		"machine":    func(o *Options) { o.Machine = "-x" },
		"host keys":  func(o *Options) { o.HostKeys = nil },
		"devices":    func(o *Options) { o.Devices = nil },
		"logger":     func(o *Options) { o.Logger = nil },
		"sshd":       func(o *Options) { o.SSHD = "no port" },
		"home":       func(o *Options) { o.Home = "relative" },
		"pair taken": func(o *Options) { o.Subsystems = map[string]Subsystem{pairing.Subsystem: nil} },
		"sftp taken": func(o *Options) {
			o.Subsystems = map[string]Subsystem{"sftp": func(context.Context, io.ReadWriteCloser, Device) {}}
		},
	} {
		o := m.o
		change(&o)
		if _, err := New(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
