package sshlink

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"

	"holdfast/internal/memnet"
	"holdfast/internal/pairing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func key(t *testing.T) *Key {
	t.Helper()
	k, err := LoadOrCreateKey(filepath.Join(t.TempDir(), "key"), pairing.TypeEd25519)
	must(t, err)
	return k
}

func signerOf(t *testing.T, typ string) ssh.Signer {
	t.Helper()
	var private any
	var err error
	switch typ {
	case ssh.KeyAlgoED25519:
		_, private, err = ed25519.GenerateKey(rand.Reader)
	case ssh.KeyAlgoECDSA256:
		private, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case ssh.KeyAlgoRSA:
		private, err = rsa.GenerateKey(rand.Reader, 2048)
	}
	must(t, err)
	s, err := ssh.NewSignerFromKey(private)
	must(t, err)
	return s
}

func publicOf(t *testing.T, s ssh.Signer) pairing.Key {
	t.Helper()
	k, err := FromSSH(s.PublicKey())
	must(t, err)
	return k
}

// peer is x/crypto's server, to be told how to misbehave.
type peer struct {
	hostKeys []ssh.Signer
	accept   ssh.PublicKey // nil accepts none
	serve    func(*ssh.ServerConn, <-chan ssh.NewChannel, <-chan *ssh.Request)
	attempts int // authentication attempts
}

// start runs the peer on one end of a connection and gives the other. done is
// closed when the peer has ended.
func (p *peer) start(t *testing.T) (conn net.Conn, done chan struct{}) {
	t.Helper()
	conn, far := memnet.Pipe()
	config := &ssh.ServerConfig{
		PublicKeyCallback: func(_ ssh.ConnMetadata, k ssh.PublicKey) (*ssh.Permissions, error) {
			if p.accept != nil && string(k.Marshal()) == string(p.accept.Marshal()) {
				return nil, nil
			}
			return nil, errors.New("no")
		},
		AuthLogCallback: func(ssh.ConnMetadata, string, error) { p.attempts++ },
	}
	for _, k := range p.hostKeys {
		config.AddHostKey(k)
	}
	done = make(chan struct{})
	go func() { // ends with the connection
		defer close(done)
		defer far.Close()
		c, chans, reqs, err := ssh.NewServerConn(far, config)
		if err != nil {
			return
		}
		if p.serve != nil {
			p.serve(c, chans, reqs)
			return
		}
		go ssh.DiscardRequests(reqs) // ends with the connection
		for nc := range chans {
			nc.Reject(ssh.Prohibited, "no")
		}
	}()
	t.Cleanup(func() {
		conn.Close()
		<-done
	})
	return conn, done
}

func TestDial(t *testing.T) {
	k := key(t)
	p := &peer{hostKeys: []ssh.Signer{signerOf(t, ssh.KeyAlgoED25519), signerOf(t, ssh.KeyAlgoECDSA256)}, accept: k.Signer().PublicKey()}
	for _, host := range p.hostKeys {
		pin := publicOf(t, host)
		conn, _ := p.start(t)
		c, err := Dial(t.Context(), conn, Options{HostKeys: []pairing.Key{pin}, Key: k})
		must(t, err)
		if c.HostKey() != pin {
			t.Errorf("host key is %s, want the pinned %s", c.HostKey(), pin)
		}
		must(t, c.Ping(t.Context()))
		if _, err := c.Subsystem("x"); err == nil {
			t.Error("a refused channel is no error")
		}
		must(t, c.Close())
	}
}

func TestAWrongHostKeyStopsBeforeAuthentication(t *testing.T) {
	k := key(t)
	shown := signerOf(t, ssh.KeyAlgoED25519)
	pins := []pairing.Key{publicOf(t, signerOf(t, ssh.KeyAlgoED25519)), publicOf(t, signerOf(t, ssh.KeyAlgoECDSA256))}
	p := &peer{hostKeys: []ssh.Signer{shown}, accept: k.Signer().PublicKey()}
	conn, done := p.start(t)
	_, err := Dial(t.Context(), conn, Options{HostKeys: pins, Key: k})
	var mismatch *HostKeyError
	if !errors.As(err, &mismatch) {
		t.Fatalf("error is %v, want a *HostKeyError", err)
	}
	if mismatch.Got != publicOf(t, shown) || !slices.Equal(mismatch.Pinned, pins) {
		t.Errorf("it holds %+v", mismatch)
	}
	for _, want := range []string{publicOf(t, shown).Fingerprint(), pins[0].Fingerprint(), pins[1].Fingerprint()} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %s", err, want)
		}
	}
	<-done
	if p.attempts != 0 {
		t.Errorf("%d authentication attempts were made", p.attempts)
	}
}

func TestOnlyPinnedTypesAreOffered(t *testing.T) {
	// The server has the pinned key and a better one: the pinned one is used.
	k := key(t)
	ecdsaKey := signerOf(t, ssh.KeyAlgoECDSA256)
	p := &peer{hostKeys: []ssh.Signer{signerOf(t, ssh.KeyAlgoED25519), ecdsaKey}, accept: k.Signer().PublicKey()}
	conn, _ := p.start(t)
	c, err := Dial(t.Context(), conn, Options{HostKeys: []pairing.Key{publicOf(t, ecdsaKey)}, Key: k})
	must(t, err)
	c.Close()

	p = &peer{hostKeys: []ssh.Signer{signerOf(t, ssh.KeyAlgoED25519)}, accept: k.Signer().PublicKey()}
	conn, _ = p.start(t)
	if _, err := Dial(t.Context(), conn, Options{HostKeys: []pairing.Key{publicOf(t, ecdsaKey)}, Key: k}); err == nil {
		t.Error("a type that is not pinned was negotiated")
	}
	got := HostKeyAlgorithms([]pairing.Key{publicOf(t, signerOf(t, ssh.KeyAlgoRSA)), publicOf(t, ecdsaKey)})
	if want := []string{"ecdsa-sha2-nistp256", "rsa-sha2-512", "rsa-sha2-256"}; !slices.Equal(got, want) {
		t.Errorf("algorithms are %v, want %v", got, want)
	}
}

func TestDeniedIsToldFromBroken(t *testing.T) {
	k := key(t)
	host := signerOf(t, ssh.KeyAlgoED25519)
	pins := []pairing.Key{publicOf(t, host)}
	p := &peer{hostKeys: []ssh.Signer{host}}
	conn, _ := p.start(t)
	if _, err := Dial(t.Context(), conn, Options{HostKeys: pins, Key: k}); !errors.Is(err, ErrDenied) {
		t.Errorf("a refused key: %v", err)
	}
	// The path breaks as the key is being looked at.
	p = &peer{hostKeys: []ssh.Signer{host}}
	conn, far := memnet.Pipe()
	config := &ssh.ServerConfig{PublicKeyCallback: func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) {
		far.Close()
		return nil, errors.New("no")
	}}
	config.AddHostKey(host)
	done := make(chan struct{})
	go func() { // ends with the connection
		defer close(done)
		ssh.NewServerConn(far, config)
	}()
	if _, err := Dial(t.Context(), conn, Options{HostKeys: pins, Key: k}); err == nil || errors.Is(err, ErrDenied) {
		t.Errorf("a broken path: %v, want no denial", err)
	}
	<-done
}

func TestDialIsBoundedInTime(t *testing.T) {
	k := key(t)
	pins := []pairing.Key{publicOf(t, signerOf(t, ssh.KeyAlgoED25519))}
	conn, far := memnet.Pipe() // nobody is there
	defer far.Close()
	_, err := Dial(t.Context(), conn, Options{HostKeys: pins, Key: k, Timeout: 20 * time.Millisecond})
	if err == nil || !strings.Contains(err.Error(), "longer than 20ms") {
		t.Errorf("error is %v", err)
	}
	conn, far = memnet.Pipe()
	defer far.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the person gave up")
	cancel(why)
	if _, err := Dial(ctx, conn, Options{HostKeys: pins, Key: k}); !errors.Is(err, why) {
		t.Errorf("error is %v, want the cause", err)
	}
}

func TestDialOptions(t *testing.T) {
	k := key(t)
	pin := publicOf(t, signerOf(t, ssh.KeyAlgoED25519))
	for name, o := range map[string]Options{
		"no pin":    {Key: k},
		"empty pin": {Key: k, HostKeys: []pairing.Key{{}}},
		"no key":    {HostKeys: []pairing.Key{pin}},
	} {
		conn, far := memnet.Pipe()
		if _, err := Dial(t.Context(), conn, o); err == nil {
			t.Errorf("%s: no error", name)
		}
		if _, err := far.Read(make([]byte, 1)); err == nil {
			t.Errorf("%s: something was sent", name)
		}
		far.Close()
	}
}

// rotation serves an announcement and answers the question for proof.
func rotation(announce [][]byte, answer func(sessionID []byte, asked [][]byte) ([]byte, bool)) func(*ssh.ServerConn, <-chan ssh.NewChannel, <-chan *ssh.Request) {
	return func(c *ssh.ServerConn, chans <-chan ssh.NewChannel, reqs <-chan *ssh.Request) {
		c.SendRequest(requestHostKeys, false, MarshalBlobs(announce))
		c.SendRequest(requestHostKeys, false, MarshalBlobs(announce)) // a second one counts for nothing
		for req := range reqs {
			if req.Type != requestProve {
				req.Reply(false, nil)
				continue
			}
			asked, err := ParseBlobs(req.Payload)
			if err != nil {
				req.Reply(false, nil)
				continue
			}
			payload, ok := answer(c.SessionID(), asked)
			req.Reply(ok, payload)
		}
		for range chans {
			continue
		}
	}
}

func prove(t *testing.T, signers ...ssh.Signer) func([]byte, [][]byte) ([]byte, bool) {
	return func(sessionID []byte, asked [][]byte) ([]byte, bool) {
		var out [][]byte
		for _, blob := range asked {
			for _, s := range signers {
				if string(s.PublicKey().Marshal()) != string(blob) {
					continue
				}
				k, err := FromSSH(s.PublicKey())
				if err != nil {
					t.Error(err)
				}
				var sig *ssh.Signature
				if a, ok := s.(ssh.AlgorithmSigner); ok && k.Type() == ssh.KeyAlgoRSA {
					sig, err = a.SignWithAlgorithm(rand.Reader, RotationMessage(sessionID, k), ssh.KeyAlgoRSASHA512)
				} else {
					sig, err = s.Sign(rand.Reader, RotationMessage(sessionID, k))
				}
				if err != nil {
					t.Error(err)
				}
				out = append(out, ssh.Marshal(sig))
			}
		}
		return MarshalBlobs(out), true
	}
}

func TestRotation(t *testing.T) {
	k := key(t)
	used := signerOf(t, ssh.KeyAlgoED25519)
	gone := signerOf(t, ssh.KeyAlgoECDSA256)
	fresh, freshRSA := signerOf(t, ssh.KeyAlgoED25519), signerOf(t, ssh.KeyAlgoRSA)
	blob := func(s ssh.Signer) []byte { return s.PublicKey().Marshal() }
	all := [][]byte{blob(used), blob(fresh), blob(freshRSA), []byte("unknown type"), blob(fresh)}
	good := prove(t, fresh, freshRSA)
	pins := []pairing.Key{publicOf(t, used), publicOf(t, gone)}
	tests := []struct {
		name     string
		announce [][]byte
		answer   func([]byte, [][]byte) ([]byte, bool)
		want     []pairing.Key // nil: the pins stay
	}{
		{"proved", all, good, []pairing.Key{publicOf(t, used), publicOf(t, fresh), publicOf(t, freshRSA)}},
		{"one is gone", [][]byte{blob(used)}, good, []pairing.Key{publicOf(t, used)}},
		{"nothing new", [][]byte{blob(used), blob(gone)}, good, nil},
		{"refused", all, func([]byte, [][]byte) ([]byte, bool) { return nil, false }, nil},
		{"one proof missing", all, prove(t, fresh), nil},
		{"signed by another key", all, func(id []byte, _ [][]byte) ([]byte, bool) {
			sig, _ := gone.Sign(rand.Reader, RotationMessage(id, publicOf(t, fresh)))
			return MarshalBlobs([][]byte{ssh.Marshal(sig), ssh.Marshal(sig)}), true
		}, nil},
		{"of another session", all, func(_ []byte, asked [][]byte) ([]byte, bool) { return good(make([]byte, 32), asked) }, nil},
		{"RSA with SHA-1", [][]byte{blob(used), blob(freshRSA)}, func(id []byte, _ [][]byte) ([]byte, bool) {
			sig, _ := freshRSA.Sign(rand.Reader, RotationMessage(id, publicOf(t, freshRSA)))
			return MarshalBlobs([][]byte{ssh.Marshal(sig)}), true
		}, nil},
		{"without the key in use", [][]byte{blob(fresh)}, good, nil},
		{"garbage", [][]byte{blob(used), blob(fresh)}, func([]byte, [][]byte) ([]byte, bool) { return []byte{0, 0, 1}, true }, nil},
		{"too many", slices.Repeat([][]byte{blob(fresh)}, maxHostKeys+1), good, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := &peer{hostKeys: []ssh.Signer{used}, accept: k.Signer().PublicKey(), serve: rotation(tt.announce, tt.answer)}
			conn, _ := p.start(t)
			got := make(chan []pairing.Key, 2)
			c, err := Dial(t.Context(), conn, Options{HostKeys: pins, Key: k, Rotated: func(keys []pairing.Key) { got <- keys }})
			must(t, err)
			if tt.want == nil {
				// The answer to the second ping comes after that to the proof.
				must(t, c.Ping(t.Context()))
				must(t, c.Ping(t.Context()))
			} else if keys := <-got; !slices.Equal(keys, tt.want) {
				t.Errorf("got %v, want %v", keys, tt.want)
			}
			c.Close()
			if len(got) > 0 {
				t.Errorf("was told of %v", <-got)
			}
		})
	}
}

func TestReadBanner(t *testing.T) {
	for text, want := range map[string]string{
		"SSH-2.0-Test_1 comment\r\n":                             "SSH-2.0-Test_1 comment",
		"notice\r\nanother\nSSH-2.0-x\n":                         "SSH-2.0-x",
		"HTTP/1.1 400 Bad Request\r\n\r\n":                       "",
		"SSH-2.0-cut off":                                        "",
		strings.Repeat("x", 10_000):                              "",
		strings.Repeat("line\n", 10_000):                         "",
		"SSH-2.0-" + strings.Repeat("x", maxVersionBytes) + "\n": "",
		"": "",
	} {
		conn, far := memnet.Pipe()
		go func() { // ends when everything is written or the reader closed
			io.WriteString(far, text)
			far.Close()
		}()
		got, err := ReadBanner(t.Context(), conn)
		conn.Close()
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%.20q: %q, %v", text, got, err)
		}
	}
	conn, far := memnet.Pipe()
	defer far.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := ReadBanner(ctx, conn); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a silent server: %v", err)
	}
}

func TestReadHostKeys(t *testing.T) {
	p := &peer{hostKeys: []ssh.Signer{signerOf(t, ssh.KeyAlgoRSA), signerOf(t, ssh.KeyAlgoED25519)}}
	dial := func(context.Context) (net.Conn, error) { conn, _ := p.start(t); return conn, nil }
	keys, err := ReadHostKeys(t.Context(), dial)
	must(t, err)
	if want := []pairing.Key{publicOf(t, p.hostKeys[1]), publicOf(t, p.hostKeys[0])}; !slices.Equal(keys, want) {
		t.Errorf("got %v, want %v", keys, want)
	}
	if p.attempts != 0 {
		t.Error("it authenticated")
	}
	down := errors.New("connection refused")
	if _, err := ReadHostKeys(t.Context(), func(context.Context) (net.Conn, error) { return nil, down }); !errors.Is(err, down) {
		t.Errorf("a server that is down: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	var far net.Conn
	_, err = ReadHostKeys(ctx, func(context.Context) (net.Conn, error) {
		var conn net.Conn
		conn, far = memnet.Pipe()
		return conn, nil
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a silent server: %v", err)
	}
	far.Close()
}

func TestCheckKey(t *testing.T) {
	host, known, unknown := signerOf(t, ssh.KeyAlgoED25519), signerOf(t, ssh.KeyAlgoRSA), signerOf(t, ssh.KeyAlgoED25519)
	pins := []pairing.Key{publicOf(t, host)}
	p := &peer{hostKeys: []ssh.Signer{host}, accept: known.PublicKey()}
	conn, _ := p.start(t)
	must(t, CheckKey(t.Context(), conn, "me", pins, publicOf(t, known)))
	conn, _ = p.start(t)
	if err := CheckKey(t.Context(), conn, "me", pins, publicOf(t, unknown)); !errors.Is(err, ErrDenied) {
		t.Errorf("an unknown key: %v", err)
	}
	conn, _ = p.start(t)
	var mismatch *HostKeyError
	if err := CheckKey(t.Context(), conn, "me", []pairing.Key{publicOf(t, unknown)}, publicOf(t, known)); !errors.As(err, &mismatch) {
		t.Errorf("another host key: %v", err)
	}
	conn, _ = p.start(t)
	if CheckKey(t.Context(), conn, "", pins, publicOf(t, known)) == nil {
		t.Error("no user is no error")
	}
}

func TestPairChecksWhatComesBack(t *testing.T) {
	k := key(t)
	host := signerOf(t, ssh.KeyAlgoED25519)
	link := pairing.Link{Relay: "https://r.example", Machine: "mini", HostKeys: []pairing.Key{publicOf(t, host)}, Secret: pairing.NewSecret(), Expires: time.Now().Add(time.Minute)}
	for answer, want := range map[string]string{
		`{"ok":true,"machine":"maxi","user":"me"}`:       "calls itself maxi",
		`{"ok":false,"code":"bound","message":"it is"}`:  "it is",
		`{"ok":true,"machine":"mini","user":"me"}`:       "",
		`{"ok":true,"machine":"mini","user":"-oProxy="}`: `user name "-oProxy=" cannot be used`,
		`nonsense`: "not JSON",
	} {
		var seen pairing.Request
		var verified bool
		p := &peer{hostKeys: []ssh.Signer{host}, accept: k.Signer().PublicKey(), serve: func(c *ssh.ServerConn, chans <-chan ssh.NewChannel, reqs <-chan *ssh.Request) {
			go ssh.DiscardRequests(reqs) // ends with the connection
			for nc := range chans {
				ch, reqs, err := nc.Accept()
				if err != nil {
					return
				}
				(<-reqs).Reply(true, nil)
				seen, _ = pairing.ReadRequest(ch)
				verified = link.Secret.Verify(seen.Proof, pairing.Binding{
					SessionID: c.SessionID(), DeviceKey: k.Public().Blob(), HostKey: host.PublicKey().Marshal(), Machine: "mini",
				})
				io.WriteString(ch, answer+"\n")
				ch.Close()
			}
		}}
		conn, done := p.start(t)
		r, err := Pair(t.Context(), conn, link, k, "phone")
		<-done
		if want == "" && (err != nil || r.User != "me") || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %+v, %v, want %q", answer, r, err, want)
		}
		if seen.Name != "phone" || !verified {
			t.Errorf("the request was %+v, its proof right: %v", seen, verified)
		}
	}
}

func TestKeyFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "device_key")
	if _, err := LoadKey(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing key: %v", err)
	}
	var wg sync.WaitGroup
	got := make([]pairing.Key, 8)
	for i := range got {
		wg.Go(func() {
			k, err := LoadOrCreateKey(path, pairing.TypeEd25519)
			if err != nil {
				t.Error(err)
				return
			}
			got[i] = k.Public()
		})
	}
	wg.Wait()
	for _, k := range got {
		if k != got[0] {
			t.Error("two processes have two keys")
		}
	}
	if entries, err := os.ReadDir(dir); len(entries) != 1 || err != nil {
		t.Errorf("files left behind: %v", entries)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode is %v, %v", info.Mode(), err)
	}
	text, err := os.ReadFile(path)
	must(t, err)
	if !strings.HasPrefix(string(text), "-----BEGIN OPENSSH PRIVATE KEY-----\n") {
		t.Error("it is not in OpenSSH's form")
	}
	if _, err := LoadOrCreateKey(path, pairing.TypeP256); err == nil {
		t.Error("a key of another type was taken")
	}
	if _, err := LoadOrCreateKey(filepath.Join(dir, "x"), ssh.KeyAlgoRSA); err == nil {
		t.Error("an RSA key was made")
	}
	must(t, os.Chmod(path, 0o640))
	if _, err := LoadKey(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a key that others read: %v", err)
	}
	for name, text := range map[string]string{"damaged": "-----BEGIN OPENSSH PRIVATE KEY-----\nsecret\n", "empty": "", "huge": strings.Repeat("x", maxKeyFileBytes+1)} {
		p := filepath.Join(dir, name)
		must(t, os.WriteFile(p, []byte(text), 0o600))
		if _, err := LoadOrCreateKey(p, pairing.TypeEd25519); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
		if after, _ := os.ReadFile(p); string(after) != text {
			t.Errorf("%s: the file was changed", name)
		}
	}
	if _, err := LoadKey(dir); err == nil {
		t.Error("a directory is no error")
	}
}

func TestOpenSSHReadsOurKeys(t *testing.T) {
	keygen, err := exec.LookPath("ssh-keygen")
	if err != nil {
		if os.Getenv("HOLDFAST_TEST_ALL") == "1" {
			t.Fatal(err)
		}
		t.Skip("ssh-keygen is not installed")
	}
	for _, typ := range []string{pairing.TypeEd25519, pairing.TypeP256} {
		path := filepath.Join(t.TempDir(), "key")
		k, err := LoadOrCreateKey(path, typ)
		must(t, err)
		out, err := exec.Command(keygen, "-y", "-f", path).CombinedOutput()
		if err != nil || !strings.HasPrefix(string(out), k.Public().Line()) {
			t.Errorf("%s: %q, %v", typ, out, err)
		}
		known := filepath.Join(t.TempDir(), "known_hosts")
		must(t, os.WriteFile(known, []byte("mini.holdfast "+k.Public().Line()+"\n"), 0o600))
		out, err = exec.Command(keygen, "-l", "-F", "mini.holdfast", "-f", known).CombinedOutput()
		if err != nil || !strings.Contains(string(out), k.Public().Fingerprint()) {
			t.Errorf("%s: %q, %v", typ, out, err)
		}
	}
}

func TestFromSSHRefusesCertificates(t *testing.T) {
	ca := signerOf(t, ssh.KeyAlgoED25519)
	cert := &ssh.Certificate{Key: signerOf(t, ssh.KeyAlgoED25519).PublicKey(), CertType: ssh.HostCert, ValidPrincipals: []string{"mini"}, ValidBefore: ssh.CertTimeInfinity}
	must(t, cert.SignCert(rand.Reader, ca))
	if k, err := FromSSH(cert); err == nil {
		t.Errorf("got %v of a certificate", k)
	}
}

func FuzzParseBlobs(f *testing.F) {
	f.Add(MarshalBlobs([][]byte{[]byte("a"), nil, []byte("bc")}))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, payload []byte) {
		blobs, err := ParseBlobs(payload)
		if err == nil && string(MarshalBlobs(blobs)) != string(payload) {
			t.Errorf("%x is read as %x", payload, blobs)
		}
	})
}
