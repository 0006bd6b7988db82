package webpush

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var b64 = base64.RawURLEncoding

func bytesOf(t *testing.T, s string) []byte {
	t.Helper()
	b, err := b64.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// RFC 8291, section 5 and appendix A.
func TestExampleOfTheStandard(t *testing.T) {
	browser, err := ecdh.P256().NewPublicKey(bytesOf(t, "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4"))
	if err != nil {
		t.Fatal(err)
	}
	once, err := ecdh.P256().NewPrivateKey(bytesOf(t, "yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := seal(browser, bytesOf(t, "BTBZMqHH6r4Tts7J_aSIgg"), once, bytesOf(t, "DGv6ra1nlYgDCS1FRnbzlw"), []byte("When I grow up, I want to be a watermelon"), 0)
	if err != nil {
		t.Fatal(err)
	}
	const want = "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN"
	if s := b64.EncodeToString(got); s != want {
		t.Errorf("sealed %s\nwant   %s", s, want)
	}
}

// browser is the other end: it holds what a browser never gives away.
type browser struct {
	key   *ecdh.PrivateKey
	auth  []byte
	vapid *ecdsa.PrivateKey
}

func newBrowser(t *testing.T) *browser {
	t.Helper()
	key, err := ecdh.P256().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	vapid, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	auth := make([]byte, 16)
	rand.Read(auth)
	return &browser{key, auth, vapid}
}

func (b *browser) raw(t *testing.T, endpoint string) Raw {
	t.Helper()
	d, err := b.vapid.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return Raw{
		Endpoint: endpoint, P256dh: b64.EncodeToString(b.key.PublicKey().Bytes()), Auth: b64.EncodeToString(b.auth),
		VAPID: b64.EncodeToString(d), Subject: "https://relay.example",
	}
}

// open decrypts as RFC 8291 tells the receiver, and gives what stood before the
// padding.
func (b *browser) open(t *testing.T, body []byte) string {
	t.Helper()
	salt, idlen := body[:16], int(body[20])
	theirs, err := ecdh.P256().NewPublicKey(body[21 : 21+idlen])
	if err != nil {
		t.Fatal(err)
	}
	shared, err := b.key.ECDH(theirs)
	if err != nil {
		t.Fatal(err)
	}
	ikm, _ := hkdf.Key(sha256.New, shared, b.auth, "WebPush: info\x00"+string(b.key.PublicKey().Bytes())+string(theirs.Bytes()), 32)
	key, _ := hkdf.Key(sha256.New, ikm, salt, "Content-Encoding: aes128gcm\x00", 16)
	nonce, _ := hkdf.Key(sha256.New, ikm, salt, "Content-Encoding: nonce\x00", 12)
	block, _ := aes.NewCipher(key)
	gcm, _ := cipher.NewGCM(block)
	plain, err := gcm.Open(nil, nonce, body[21+idlen:], nil)
	if err != nil {
		t.Fatalf("the browser cannot open it: %v", err)
	}
	text := strings.TrimRight(string(plain), "\x00")
	if !strings.HasSuffix(text, "\x02") {
		t.Fatalf("no delimiter in %q", text)
	}
	return text[:len(text)-1]
}

// checkToken verifies the header as a push service does.
func (b *browser) checkToken(t *testing.T, header, audience string) {
	t.Helper()
	rest, ok := strings.CutPrefix(header, "vapid t=")
	token, key, ok2 := strings.Cut(rest, ", k=")
	public, err := b.vapid.PublicKey.Bytes()
	if !ok || !ok2 || err != nil || key != b64.EncodeToString(public) {
		t.Fatalf("authorization %q", header)
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		t.Fatalf("token %q", token)
	}
	sum, sig := sha256.Sum256([]byte(parts[0]+"."+parts[1])), bytesOf(t, parts[2])
	if len(sig) != 64 || !ecdsa.Verify(&b.vapid.PublicKey, sum[:], new(big.Int).SetBytes(sig[:32]), new(big.Int).SetBytes(sig[32:])) {
		t.Error("the signature is wrong")
	}
	var head, claims map[string]any
	if json.Unmarshal(bytesOf(t, parts[0]), &head) != nil || head["alg"] != "ES256" || head["typ"] != "JWT" {
		t.Errorf("head %v", head)
	}
	if json.Unmarshal(bytesOf(t, parts[1]), &claims) != nil || claims["aud"] != audience || claims["sub"] != "https://relay.example" {
		t.Errorf("claims %v", claims)
	}
	if left := time.Until(time.Unix(int64(claims["exp"].(float64)), 0)); left <= 0 || left > 24*time.Hour {
		t.Errorf("valid for %v", left)
	}
}

// service is a push service on loopback.
func service(t *testing.T, handle http.HandlerFunc) (*httptest.Server, *Client) {
	t.Helper()
	s := httptest.NewTLSServer(handle)
	t.Cleanup(s.Close)
	c := NewClient(nil)
	t.Cleanup(c.Close)
	c.http.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}
	return s, c
}

func TestSend(t *testing.T) {
	b := newBrowser(t)
	var sizes []int
	var texts []string
	var server *httptest.Server
	server, c := service(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		h := r.Header
		if r.Method != "POST" || r.URL.Path != "/p/secret" || h.Get("Content-Encoding") != "aes128gcm" || h.Get("TTL") != "3600" || h.Get("Topic") != "abc_-" || h.Get("Urgency") != "high" {
			t.Errorf("%s %s %v", r.Method, r.URL, h)
		}
		b.checkToken(t, h.Get("Authorization"), server.URL)
		sizes, texts = append(sizes, len(body)), append(texts, b.open(t, body))
		w.WriteHeader(http.StatusCreated)
	})
	s, err := New(b.raw(t, server.URL+"/p/secret"))
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", MaxMessageBytes)
	for _, text := range []string{"", "hello", long} {
		if err := c.Send(t.Context(), s, Message{Text: []byte(text), TTL: time.Hour, Topic: "abc_-", Urgency: High}); err != nil {
			t.Fatal(err)
		}
	}
	if texts[0] != "" || texts[1] != "hello" || texts[2] != long {
		t.Errorf("opened %q", texts)
	}
	if sizes[0] != sizes[1] || sizes[1] != sizes[2] {
		t.Errorf("lengths tell the messages apart: %v", sizes)
	}
	for _, m := range []Message{
		{Text: []byte(long + "x")}, {TTL: -1}, {TTL: MaxTTL + time.Second}, {Topic: strings.Repeat("a", 33)}, {Topic: "a b"},
	} {
		if err := c.Send(t.Context(), s, m); err == nil {
			t.Errorf("sent %.40v", m)
		}
	}
}

func TestAnswers(t *testing.T) {
	b := newBrowser(t)
	for _, c := range []struct {
		status int
		after  string
		want   error
		wait   time.Duration
	}{
		{201, "", nil, 0}, {202, "", nil, 0}, {404, "", ErrGone, 0}, {410, "", ErrGone, 0},
		{429, "30", ErrLater, 30 * time.Second}, {429, "99999999999999999999", ErrLater, 0}, {500, "", ErrLater, 0},
		{503, "86400", ErrLater, time.Hour}, {503, "-5", ErrLater, 0}, {503, "soon", ErrLater, 0}, {408, "", ErrLater, 0},
		{400, "", ErrRefused, 0}, {401, "", ErrRefused, 0}, {403, "", ErrRefused, 0}, {413, "", ErrRefused, 0},
	} {
		server, client := service(t, func(w http.ResponseWriter, r *http.Request) {
			if c.after != "" {
				w.Header().Set("Retry-After", c.after)
			}
			w.WriteHeader(c.status)
			io.WriteString(w, "reveals nothing")
		})
		s, err := New(b.raw(t, server.URL+"/p"))
		if err != nil {
			t.Fatal(err)
		}
		err = client.Send(t.Context(), s, Message{TTL: time.Hour})
		var a *Answer
		switch {
		case c.want == nil:
			if err != nil {
				t.Errorf("status %d: %v", c.status, err)
			}
		case !errors.Is(err, c.want) || !errors.As(err, &a) || a.Status != c.status || a.After != c.wait:
			t.Errorf("status %d: %v, after %v", c.status, err, a.After)
		case strings.Contains(err.Error(), "reveals"):
			t.Errorf("the service speaks through the error: %v", err)
		}
	}
}

// A service that redirects, hangs or floods is not followed, waited for or kept.
func TestHostileService(t *testing.T) {
	b := newBrowser(t)
	reached := false
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true }))
	t.Cleanup(elsewhere.Close)
	server, c := service(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) // only then does a server notice that the client has left
		switch r.URL.Path {
		case "/redirect":
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
		case "/headers":
			w.Header().Set("X", strings.Repeat("x", 1<<20))
		case "/hang":
			<-r.Context().Done()
		case "/flood":
			w.WriteHeader(http.StatusCreated)
			junk := make([]byte, 64<<10)
			for {
				if _, err := w.Write(junk); err != nil {
					return
				}
			}
		}
	})
	send := func(ctx context.Context, path string) error {
		s, err := New(b.raw(t, server.URL+path))
		if err != nil {
			t.Fatal(err)
		}
		err = c.Send(ctx, s, Message{TTL: time.Hour})
		if err != nil && strings.Contains(err.Error(), path) {
			t.Errorf("the error holds the endpoint: %v", err)
		}
		return err
	}
	if err := send(t.Context(), "/redirect"); !errors.Is(err, ErrRefused) || reached {
		t.Errorf("redirected: %v, reached %v", err, reached)
	}
	if err := send(t.Context(), "/headers"); !errors.Is(err, ErrLater) {
		t.Errorf("long headers: %v", err)
	}
	if err := send(t.Context(), "/flood"); err != nil {
		t.Errorf("a long body: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := send(ctx, "/hang"); !errors.Is(err, ErrLater) {
		t.Errorf("silence: %v", err)
	}
	// A certificate that nobody vouches for.
	s, err := New(b.raw(t, server.URL+"/secret"))
	if err != nil {
		t.Fatal(err)
	}
	strict := NewClient(nil)
	defer strict.Close()
	if err := strict.Send(t.Context(), s, Message{}); !errors.Is(err, ErrLater) || strings.Contains(err.Error(), "/secret") {
		t.Errorf("a foreign certificate: %v", err)
	}
}

func TestProxyIsAsked(t *testing.T) {
	asked := ""
	c := NewClient(func(u *url.URL) (*url.URL, error) {
		asked = u.Hostname()
		return nil, errors.New("no")
	})
	defer c.Close()
	s, err := New(newBrowser(t).raw(t, "https://push.example/secret"))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Send(t.Context(), s, Message{}); !errors.Is(err, ErrLater) || asked != "push.example" {
		t.Errorf("asked for %q: %v", asked, err)
	}
}

func TestSubscriptionsThatAreNone(t *testing.T) {
	good := newBrowser(t).raw(t, "https://push.example/p/secret")
	if s, err := New(good); err != nil || s.Host() != "push.example" {
		t.Fatalf("%v %v", s, err)
	}
	bare := good
	bare.Subject = ""
	if _, err := New(bare); err != nil {
		t.Fatal(err)
	}
	point := bytesOf(t, good.P256dh)
	point[40] ^= 1
	for name, change := range map[string]func(*Raw){
		"http":             func(r *Raw) { r.Endpoint = "http://push.example/secret" },
		"file":             func(r *Raw) { r.Endpoint = "file:///secret" },
		"no host":          func(r *Raw) { r.Endpoint = "https:///secret" },
		"only a port":      func(r *Raw) { r.Endpoint = "https://:443/secret" },
		"opaque":           func(r *Raw) { r.Endpoint = "https:secret" },
		"user":             func(r *Raw) { r.Endpoint = "https://a:secret@push.example/" },
		"fragment":         func(r *Raw) { r.Endpoint = "https://push.example/#secret" },
		"control":          func(r *Raw) { r.Endpoint = "https://push.example/secret\r\nX: y" },
		"empty":            func(r *Raw) { r.Endpoint = "" },
		"too long":         func(r *Raw) { r.Endpoint = "https://push.example/secret" + strings.Repeat("x", MaxEndpointBytes) },
		"no point":         func(r *Raw) { r.P256dh = b64.EncodeToString(point) },
		"infinity":         func(r *Raw) { r.P256dh = b64.EncodeToString(make([]byte, 65)) },
		"short point":      func(r *Raw) { r.P256dh = r.P256dh[:20] },
		"padded":           func(r *Raw) { r.Auth += "==" },
		"long auth":        func(r *Raw) { r.Auth = b64.EncodeToString(make([]byte, 17)) },
		"zero key":         func(r *Raw) { r.VAPID = b64.EncodeToString(make([]byte, 32)) },
		"key over order":   func(r *Raw) { r.VAPID = b64.EncodeToString([]byte(strings.Repeat("\xff", 32))) },
		"short key":        func(r *Raw) { r.VAPID = b64.EncodeToString(make([]byte, 31)) },
		"subject":          func(r *Raw) { r.Subject = "javascript:secret" },
		"subject too long": func(r *Raw) { r.Subject = "mailto:secret" + strings.Repeat("x", MaxSubjectBytes) },
	} {
		r := good
		change(&r)
		if _, err := New(r); err == nil {
			t.Errorf("%s: taken", name)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error holds what it must not: %v", name, err)
		}
	}
}

func FuzzNew(f *testing.F) {
	f.Add("https://push.example/x", "", "", "", "")
	f.Fuzz(func(t *testing.T, endpoint, p, a, v, s string) {
		if sub, err := New(Raw{endpoint, p, a, v, s}); err == nil && sub.endpoint.Scheme != "https" {
			t.Errorf("took %q", endpoint)
		}
	})
}
