package acme

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// authority is a small certificate authority that speaks RFC 8555: it checks
// nonces and signatures, and dials back before it signs.
type authority struct {
	t      *testing.T
	server *httptest.Server
	key    *ecdsa.PrivateKey
	root   *x509.Certificate
	kind   string // of the challenge that it offers
	life   time.Duration
	dial   func() string // where the name leads

	mu      sync.Mutex
	nonces  map[string]bool
	account *ecdsa.PublicKey
	thumb   string // of the account's key
	domain  string
	token   string
	valid   bool
	chain   []byte
	orders  int
	contact []string
	refuse  bool // no order is taken
}

func newAuthority(t *testing.T, kind string, dial func() string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "root of a test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{t: t, key: key, kind: kind, life: 12 * time.Hour, dial: dial, nonces: map[string]bool{}}
	if a.root, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/directory", a.directory)
	mux.HandleFunc("/nonce", func(w http.ResponseWriter, r *http.Request) { a.nonce(w) })
	for path, serve := range map[string]func(w http.ResponseWriter, payload []byte) error{
		"/account": a.newAccount, "/order": a.newOrder, "/orders/1": a.order, "/authz": a.authz,
		"/challenge": a.challenge, "/finalize": a.finalize, "/cert": a.cert,
	} {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.nonce(w)
			w.Header().Set("Content-Type", "application/json")
			payload, err := a.open(r)
			if err == nil {
				err = serve(w, payload)
			}
			if err != nil {
				w.Header().Set("Content-Type", "application/problem+json")
				w.WriteHeader(http.StatusBadRequest)
				reply(w, map[string]any{"type": "urn:ietf:params:acme:error:malformed", "detail": err.Error()})
			}
		})
	}
	a.server = httptest.NewTLSServer(mux)
	t.Cleanup(a.server.Close)
	return a
}

func reply(w io.Writer, v any) { _ = json.NewEncoder(w).Encode(v) }

func (a *authority) url(path string) string { return a.server.URL + path }

func (a *authority) directory(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	reply(w, map[string]string{"newNonce": a.url("/nonce"), "newAccount": a.url("/account"), "newOrder": a.url("/order")})
}

func (a *authority) nonce(w http.ResponseWriter) {
	n := rand.Text()
	a.nonces[n] = true
	w.Header().Set("Replay-Nonce", n)
}

func b64(s string) []byte {
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil {
		return nil
	}
	return b
}

// open checks a request's nonce, URL and signature and gives its payload.
func (a *authority) open(r *http.Request) ([]byte, error) {
	var in struct{ Protected, Payload, Signature string }
	if err := json.NewDecoder(io.LimitReader(r.Body, 1<<16)).Decode(&in); err != nil {
		return nil, err
	}
	var head struct {
		Alg, Nonce, URL, Kid string
		JWK                  *struct{ Crv, Kty, X, Y string }
	}
	if err := json.Unmarshal(b64(in.Protected), &head); err != nil {
		return nil, err
	}
	if head.Alg != "ES256" || !a.nonces[head.Nonce] || head.URL != a.url(r.URL.Path) {
		return nil, errors.New("algorithm, nonce or URL")
	}
	delete(a.nonces, head.Nonce)
	key := a.account
	if head.JWK != nil {
		point := append([]byte{4}, append(b64(head.JWK.X), b64(head.JWK.Y)...)...)
		var err error
		if key, err = ecdsa.ParseUncompressedPublicKey(elliptic.P256(), point); err != nil {
			return nil, err
		}
		a.account = key
		sum := sha256.Sum256(fmt.Appendf(nil, `{"crv":"P-256","kty":"EC","x":"%s","y":"%s"}`, head.JWK.X, head.JWK.Y))
		a.thumb = base64.RawURLEncoding.EncodeToString(sum[:])
	} else if head.Kid != a.url("/accounts/1") {
		return nil, errors.New("unknown account")
	}
	sig := b64(in.Signature)
	sum := sha256.Sum256([]byte(in.Protected + "." + in.Payload))
	if key == nil || len(sig) != 64 || !ecdsa.Verify(key, sum[:], new(big.Int).SetBytes(sig[:32]), new(big.Int).SetBytes(sig[32:])) {
		return nil, errors.New("the signature is wrong")
	}
	return b64(in.Payload), nil
}

func (a *authority) newAccount(w http.ResponseWriter, payload []byte) error {
	var in struct {
		Contact              []string
		TermsOfServiceAgreed bool
	}
	if err := json.Unmarshal(payload, &in); err != nil || !in.TermsOfServiceAgreed {
		return errors.New("the terms were not agreed to")
	}
	a.contact = in.Contact
	w.Header().Set("Location", a.url("/accounts/1"))
	w.WriteHeader(http.StatusCreated)
	reply(w, map[string]any{"status": "valid", "contact": in.Contact})
	return nil
}

type identifier struct {
	Type  string `json:"type"`
	Value string `json:"value"`
}

func (a *authority) newOrder(w http.ResponseWriter, payload []byte) error {
	var in struct{ Identifiers []identifier }
	if err := json.Unmarshal(payload, &in); err != nil || len(in.Identifiers) != 1 || a.refuse {
		return errors.New("no such order")
	}
	a.orders++
	a.domain, a.token, a.valid, a.chain = in.Identifiers[0].Value, rand.Text(), false, nil
	w.Header().Set("Location", a.url("/orders/1"))
	w.WriteHeader(http.StatusCreated)
	return a.order(w, nil)
}

func (a *authority) order(w http.ResponseWriter, _ []byte) error {
	out := map[string]any{
		"status": "pending", "identifiers": []identifier{{"dns", a.domain}},
		"authorizations": []string{a.url("/authz")}, "finalize": a.url("/finalize"),
	}
	if a.valid {
		out["status"] = "ready"
	}
	if a.chain != nil {
		out["status"], out["certificate"] = "valid", a.url("/cert")
	}
	reply(w, out)
	return nil
}

func (a *authority) status() string {
	if a.valid {
		return "valid"
	}
	return "pending"
}

func (a *authority) oneChallenge() map[string]any {
	return map[string]any{"type": a.kind, "url": a.url("/challenge"), "token": a.token, "status": a.status()}
}

func (a *authority) authz(w http.ResponseWriter, _ []byte) error {
	reply(w, map[string]any{
		"status": a.status(), "identifier": identifier{"dns", a.domain}, "challenges": []any{a.oneChallenge()},
	})
	return nil
}

func (a *authority) challenge(w http.ResponseWriter, _ []byte) error {
	proof := a.token + "." + a.thumb
	validate := a.byTLS
	if a.kind == "http-01" {
		validate = a.byHTTP
	}
	if err := validate(proof); err != nil {
		a.t.Errorf("validate: %v", err)
		return err
	}
	a.valid = true
	reply(w, a.oneChallenge())
	return nil
}

// byTLS is RFC 8737.
func (a *authority) byTLS(proof string) error {
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: 10 * time.Second}, "tcp", a.dial(), &tls.Config{
		ServerName: a.domain, NextProtos: []string{"acme-tls/1"}, InsecureSkipVerify: true, // it is self-signed by design
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	state := conn.ConnectionState()
	leaf := state.PeerCertificates[0]
	sum := sha256.Sum256([]byte(proof))
	want, err := asn1.Marshal(sum[:])
	if err != nil {
		return err
	}
	id := asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 1, 31}
	if state.NegotiatedProtocol != "acme-tls/1" || !slices.Equal(leaf.DNSNames, []string{a.domain}) {
		return fmt.Errorf("got protocol %q for %v", state.NegotiatedProtocol, leaf.DNSNames)
	}
	for _, e := range leaf.Extensions {
		if e.Id.Equal(id) && e.Critical && bytes.Equal(e.Value, want) {
			return nil
		}
	}
	return errors.New("the certificate of the challenge does not prove it")
}

// byHTTP is RFC 8555, section 8.3.
func (a *authority) byHTTP(proof string) error {
	r, err := http.NewRequest("GET", "http://"+a.dial()+"/.well-known/acme-challenge/"+a.token, nil)
	if err != nil {
		return err
	}
	r.Host = a.domain
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	resp, err := client.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<12))
	if err != nil || resp.StatusCode != 200 || strings.TrimSpace(string(b)) != proof {
		return fmt.Errorf("got %s %q, %v", resp.Status, b, err)
	}
	return nil
}

func (a *authority) finalize(w http.ResponseWriter, payload []byte) error {
	var in struct{ CSR string }
	if err := json.Unmarshal(payload, &in); err != nil || !a.valid {
		return errors.New("not ready")
	}
	csr, err := x509.ParseCertificateRequest(b64(in.CSR))
	if err != nil || csr.CheckSignature() != nil || !slices.Equal(csr.DNSNames, []string{a.domain}) {
		return errors.New("the request is for something else")
	}
	der, err := a.sign(csr.PublicKey)
	if err != nil {
		return err
	}
	a.chain = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a.order(w, nil)
}

func (a *authority) sign(key crypto.PublicKey) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, DNSNames: []string{a.domain},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(a.life),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	return x509.CreateCertificate(rand.Reader, template, a.root, key, a.key)
}

func (a *authority) cert(w http.ResponseWriter, _ []byte) error {
	w.Header().Set("Content-Type", "application/pem-certificate-chain")
	_, err := w.Write(append(slices.Clone(a.chain), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.root.Raw})...))
	return err
}

// roots are trusted when the authority itself is asked.
func (a *authority) roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.server.Certificate())
	return pool
}

// issued are trusted when what it signed is met.
func (a *authority) issued() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.root)
	return pool
}
