package relay

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/frame"
	"holdfast/internal/wire"
)

// newTLSRig is newRig with TLS in the relay. The rig's URLs stay ws:, its dialler
// does the handshake.
func newTLSRig(t *testing.T) *rig {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"relay"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	dial := &tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: "relay"}}
	return newRigOn(t, tls.NewListener(l, server), dial.DialContext)
}

func TestTLSInTheRelay(t *testing.T) {
	g := newTLSRig(t)
	a := g.ready("mini")
	device := g.deviceToken()
	dev, agt := g.pair(a, device)
	b := make([]byte, 1<<20)
	rand.Read(b)
	exchange(t, dev, agt, websocket.MessageBinary, b)
	exchange(t, agt, dev, websocket.MessageBinary, b)
	_ = agt.Close(4502, "down")
	wantClose(t, dev, 4502, "down")

	// The early reader is stopped in the middle of a wait, and the pump goes on
	// where it was.
	conn, m := g.rawDevice(a, device)
	write(t, conn, masked(frame.Binary, false, []byte("one ")))
	time.Sleep(50 * time.Millisecond)
	agt = a.dialBack(m)
	write(t, conn, masked(frame.Continuation, true, []byte("two")))
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if _, got, err := agt.Read(ctx); err != nil || string(got) != "one two" {
		t.Errorf("got %q, %v", got, err)
	}
	_ = conn.Close()
	closeOf(t, agt, 10*time.Second)

	// A hang-up behind more than is read shows through TLS too.
	conn, m = g.rawDevice(a, device)
	write(t, conn, masked(frame.Binary, true, make([]byte, 60<<10)))
	_ = conn.(*tls.Conn).NetConn().Close()
	eventually(t, "the dial is forgotten", func() bool { return g.relay.dials.Count() == 0 })
	if got := a.dataStatus("mini", a.token, m.ConnID); got != 404 {
		t.Errorf("connection id: got %d", got)
	}

	next := g.agent("mini", a.token, wire.HeaderInstance, "instance-0123456789", wire.HeaderAttempt, "1")
	next.pong()
	wantClose(t, a.ws, wire.CloseReplaced, "instance-0123456789")
}
