package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// certificate writes a certificate for loopback, which is its own authority, and
// its key.
func certificate(t *testing.T, dir string) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "relay of a test"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, b []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "PRIVATE KEY", pkcs8)
}

// upgraded is the outcome of an upgrade as the command prints it.
func upgraded(t *testing.T, r result) map[string]any {
	t.Helper()
	lines := jsonLines(t, r.stdout)
	if r.code != 0 || len(lines) != 1 || lines[0]["event"] != "upgraded" {
		t.Fatalf("upgrade: %s", r)
	}
	return lines[0]
}

// TestUpgradeWithTLSInTheRelay cannot keep connections whose keys live in the old
// program: they are told to come back, and do, to the same process id at the
// same address.
func TestUpgradeWithTLSInTheRelay(t *testing.T) {
	t.Parallel()
	relay := newComputer(t)
	cert, key := certificate(t, relay.home)
	s := newSplitOn(t, relay, []string{"--tls-cert", cert, "--tls-key", key}, "SSL_CERT_FILE="+cert)
	live := s.liveSSH("mini.ssh")
	o := upgraded(t, s.relay.holdfast("relay", "upgrade", "--json"))
	// Three sockets: the machine's and the stream's two.
	if o["machines"] != 0.0 || o["streams"] != 0.0 || o["dropped"] != 3.0 {
		t.Errorf("with TLS in the relay an upgrade kept and dropped %v", o)
	}
	if pid := float64(s.relayProc.cmd.Process.Pid); o["pid"] != pid {
		t.Errorf("the process is now %v, was %v", o["pid"], pid)
	}
	if code := live.exited(60 * time.Second); code != 255 {
		t.Errorf("ssh over a connection that could not be kept ended with %d: %s", code, live.output())
	}
	eventually(t, 60*time.Second, "the agent is back after the upgrade", func() (bool, string) {
		r := s.sshRun("mini.ssh", "echo back")
		return r.code == 0 && r.stdout == "back\n", r.String()
	})
	s.agentProc.running()
	s.relayProc.running()
}

// TestUpgradeOfUp exchanges relay and agent of one process. The machine's own
// agent starts anew, other machines of the relay notice nothing.
func TestUpgradeOfUp(t *testing.T) {
	t.Parallel()
	s := newSite(t, true)
	before := s.up.cmd.Process.Pid
	o := upgraded(t, s.machine.holdfast("relay", "upgrade", "--json"))
	if o["pid"] != float64(before) {
		t.Errorf("the process is now %v, was %v", o["pid"], before)
	}
	for _, host := range hosts {
		eventually(t, 60*time.Second, host+" is back after the upgrade", func() (bool, string) {
			r := s.sshRun(host, "echo back")
			return r.code == 0 && r.stdout == "back\n", r.String()
		})
	}
	// A device that was not paired yet gets in by a link of the new program.
	other := newComputer(t)
	s.laptop = other
	s.join(pairLinkOf(t, s.machine))
	if r := s.sshRun("mini.ssh", "echo new"); r.code != 0 || r.stdout != "new\n" {
		t.Errorf("a device paired after the upgrade: %s", r)
	}
	s.up.running()
}
