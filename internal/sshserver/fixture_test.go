package sshserver

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"

	"holdfast/internal/pairing"
	"holdfast/internal/sshlink"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// lockedBuffer collects the log of a server.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// machine is a server behind a loopback listener.
type machine struct {
	*Server
	t     *testing.T
	addr  string
	home  string
	state string
	log   *lockedBuffer
}

func newMachine(t *testing.T, change func(*Options)) *machine {
	t.Helper()
	m := &machine{t: t, home: t.TempDir(), state: t.TempDir(), log: &lockedBuffer{}}
	keys, err := LoadOrCreateHostKeys(m.state)
	must(t, err)
	devices, err := OpenDeviceKeys(m.state)
	must(t, err)
	o := Options{
		Machine: "mini", HostKeys: keys, Devices: devices, Home: m.home,
		Environ: []string{"PATH=" + os.Getenv("PATH"), "HOLDFAST_TOKEN=hf_secret"},
		Logger:  slog.New(slog.NewTextHandler(m.log, nil)),
	}
	if change != nil {
		change(&o)
	}
	m.Server, err = New(o)
	must(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	m.addr = l.Addr().String()
	var accepting sync.WaitGroup
	accepting.Go(func() { // ends when the listener closes
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			accepting.Go(func() { m.Serve(conn, "relaysid") })
		}
	})
	t.Cleanup(func() {
		l.Close()
		m.Close()
		accepting.Wait()
		if t.Failed() {
			t.Log(m.log)
		}
	})
	return m
}

func (m *machine) dialTCP() net.Conn {
	m.t.Helper()
	conn, err := net.Dial("tcp", m.addr)
	must(m.t, err)
	return conn
}

// newDeviceKey makes a device key in a file, as a device has it.
func newDeviceKey(t *testing.T) (*sshlink.Key, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "device_key")
	k, err := sshlink.LoadOrCreateKey(path, pairing.TypeEd25519)
	must(t, err)
	return k, path
}

// pairedKey makes a device key that the machine lets in.
func (m *machine) pairedKey(name string) (*sshlink.Key, string) {
	m.t.Helper()
	k, path := newDeviceKey(m.t)
	_, err := m.o.Devices.add(k.Public(), "", name, time.Now())
	must(m.t, err)
	return k, path
}

// client connects as x/crypto's client with the given key.
func (m *machine) client(signer ssh.Signer) (*ssh.Client, error) {
	m.t.Helper()
	conn := m.dialTCP()
	c, chans, reqs, err := ssh.NewClientConn(conn, m.addr, &ssh.ClientConfig{
		User: "anybody", Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)},
		HostKeyCallback: ssh.InsecureIgnoreHostKey(), // the tests of pins are sshlink's
		Timeout:         10 * time.Second,
	})
	if err != nil {
		return nil, err
	}
	client := ssh.NewClient(c, chans, reqs)
	m.t.Cleanup(func() { client.Close(); client.Wait() })
	return client, nil
}

func (m *machine) pairedClient() *ssh.Client {
	m.t.Helper()
	k, _ := m.pairedKey("laptop")
	c, err := m.client(k.Signer())
	must(m.t, err)
	return c
}

func (m *machine) session(c *ssh.Client) *ssh.Session {
	m.t.Helper()
	s, err := c.NewSession()
	must(m.t, err)
	m.t.Cleanup(func() { s.Close() })
	return s
}

// run runs a command over a fresh session.
func (m *machine) run(c *ssh.Client, line string) (stdout, stderr string, err error) {
	m.t.Helper()
	s := m.session(c)
	var out, errOut bytes.Buffer
	s.Stdout, s.Stderr = &out, &errOut
	err = s.Run(line)
	return out.String(), errOut.String(), err
}

func exitStatus(t *testing.T, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	var e *ssh.ExitError
	if !errors.As(err, &e) {
		t.Fatalf("error is %v, want an exit status", err)
	}
	return e.ExitStatus()
}

// eventually waits for something that another process does.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 20 s", what)
		}
	}
}

// tool finds a program of the system. Without it the test is skipped under a
// bare go test, and fails where everything is asked for.
func tool(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		if path = "/usr/sbin/" + name; runnableFile(path) {
			return path
		}
		if os.Getenv("HOLDFAST_TEST_ALL") == "1" {
			t.Fatalf("%s is not installed", name)
		}
		t.Skipf("%s is not installed", name)
	}
	return path
}

func runnableFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// link opens a pairing link and gives what a device would be handed.
func (m *machine) link() pairing.Link {
	m.t.Helper()
	l := pairing.Link{
		Relay: "https://relay.example", Machine: m.o.Machine, HostKeys: m.o.HostKeys.Public(),
		Secret: pairing.NewSecret(), Expires: time.Now().Add(pairing.TTL).Truncate(time.Second),
	}
	must(m.t, m.OpenLink(l.Secret, l.Expires))
	return l
}

func (m *machine) pair(l pairing.Link, k *sshlink.Key, name string) (pairing.Response, error) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return sshlink.Pair(ctx, m.dialTCP(), l, k, name)
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	rand.Read(b)
	return b
}

func signer(t *testing.T) ssh.Signer {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	must(t, err)
	s, err := ssh.NewSignerFromKey(private)
	must(t, err)
	return s
}

// readUntil reads until text appears.
func readUntil(t *testing.T, r io.Reader, text string) string {
	t.Helper()
	var got strings.Builder
	b := make([]byte, 1)
	for !strings.Contains(got.String(), text) {
		if _, err := r.Read(b); err != nil {
			t.Fatalf("waiting for %q: %v after %q", text, err, got.String())
		}
		got.Write(b)
	}
	return got.String()
}

// freshKey makes a public key without a file.
func freshKey() (pairing.Key, error) {
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return pairing.Key{}, err
	}
	k, err := ssh.NewPublicKey(public)
	if err != nil {
		return pairing.Key{}, err
	}
	return sshlink.FromSSH(k)
}
