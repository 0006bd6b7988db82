package webapp

import (
	"bytes"
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
)

// built has the handler serve a small page for one test.
func built(t *testing.T) {
	t.Helper()
	before := files
	t.Cleanup(func() { files = before })
	files = load(fstest.MapFS{
		"dist/index.html":              {Data: []byte(`<meta name="holdfast-digest" content="sha256:` + strings.Repeat("ab", 32) + `" />`)},
		"dist/index.html.br":           {Data: []byte("small page")},
		"dist/assets/app-abc123.js":    {Data: []byte("script")},
		"dist/assets/app-abc123.js.br": {Data: []byte("small script")},
		"dist/icon.svg":                {Data: []byte("<svg/>")},
		"dist/README":                  {Data: []byte("not served")},
		"dist/x.map":                   {Data: []byte("not served")},
	})
}

// bare has the handler serve what stands in for a page that was not built.
func bare(t *testing.T) {
	t.Helper()
	before := files
	t.Cleanup(func() { files = before })
	files = nil
}

func request(method, target string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	Handler().ServeHTTP(w, r)
	return w
}

func TestPlaceholderSaysHowToPair(t *testing.T) {
	bare(t)
	w := request(http.MethodGet, "/")
	if w.Code != http.StatusOK || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/html") {
		t.Fatalf("got %d %q", w.Code, w.Header().Get("Content-Type"))
	}
	if body := w.Body.String(); !strings.Contains(body, "holdfast join") {
		t.Errorf("the page does not say how to pair: %s", body)
	}
	if Built() || Digest() != "" || Serves("/index.html") {
		t.Error("claims to be built")
	}
}

func TestPlaceholderPolicyAllowsNothingButThePage(t *testing.T) {
	bare(t)
	csp := request(http.MethodGet, "/").Header().Get("Content-Security-Policy")
	for _, want := range []string{"default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"} {
		if !strings.Contains(csp, want) {
			t.Errorf("policy %q lacks %q", csp, want)
		}
	}
	if strings.Contains(csp, "unsafe") || strings.Contains(csp, "connect-src") {
		t.Errorf("policy %q allows too much", csp)
	}
	// An element without text would have the hash of nothing.
	const emptyHash = "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="
	if strings.Contains(csp, emptyHash) {
		t.Errorf("policy %q names an empty element", csp)
	}
	if n := len(regexp.MustCompile(`<(script|style)`).FindAllString(string(placeholder), -1)); n != 2 {
		t.Errorf("the page has %d inline elements; the policy names one script and one style", n)
	}
	if refs := regexp.MustCompile(`(?i)\b(src|href|action|on[a-z]+)\s*=\s*["']`).FindAllString(string(placeholder), -1); len(refs) > 0 {
		t.Errorf("the page refers to something that its policy forbids: %q", refs)
	}
}

func TestEverythingElseIsRefused(t *testing.T) {
	built(t)
	for _, path := range []string{"/index.html", "/README", "/x.map", "/assets/", "/assets/app-abc123.js.br", "/assets/other.js", "//icon.svg", "/../icon.svg"} {
		if w := request(http.MethodGet, path); w.Code != http.StatusNotFound {
			t.Errorf("%s: got %d", path, w.Code)
		}
		if Serves(path) {
			t.Errorf("%s: claims to be served", path)
		}
	}
	for _, path := range []string{"/", "/icon.svg"} {
		if w := request(http.MethodPost, path); w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") == "" {
			t.Errorf("POST %s: got %d, Allow %q", path, w.Code, w.Header().Get("Allow"))
		}
		if w := request(http.MethodHead, path); w.Code != http.StatusOK || w.Body.Len() != 0 {
			t.Errorf("HEAD %s: got %d with %d bytes", path, w.Code, w.Body.Len())
		}
	}
}

func TestAssetsAreKeptForEverAndThePageIsAskedFor(t *testing.T) {
	built(t)
	page := request(http.MethodGet, "/")
	if cache := page.Header().Get("Cache-Control"); cache != "no-cache" {
		t.Errorf("page: Cache-Control %q", cache)
	}
	asset := request(http.MethodGet, "/assets/app-abc123.js")
	if cache := asset.Header().Get("Cache-Control"); !strings.Contains(cache, "immutable") || asset.Body.String() != "script" {
		t.Errorf("asset: Cache-Control %q, body %q", cache, asset.Body)
	}
	if w := request(http.MethodGet, "/", "If-None-Match", page.Header().Get("ETag")); w.Code != http.StatusNotModified {
		t.Errorf("the same page again: got %d", w.Code)
	}
	if Digest() != "sha256:"+strings.Repeat("ab", 32) {
		t.Errorf("digest %q", Digest())
	}
}

func TestBrotliWhereItIsUnderstood(t *testing.T) {
	built(t)
	for accept, want := range map[string]string{
		"gzip, deflate, br": "br", "br;q=0.5": "br", "BR": "br",
		"": "", "gzip": "", "br;q=0": "", "br; q=0.0": "", "brotli": "",
	} {
		w := request(http.MethodGet, "/assets/app-abc123.js", "Accept-Encoding", accept)
		if got := w.Header().Get("Content-Encoding"); got != want {
			t.Errorf("Accept-Encoding %q: got %q", accept, got)
		}
		if w.Header().Get("Vary") != "Accept-Encoding" {
			t.Errorf("Accept-Encoding %q: Vary %q", accept, w.Header().Get("Vary"))
		}
	}
	plain, small := request(http.MethodGet, "/"), request(http.MethodGet, "/", "Accept-Encoding", "br")
	if plain.Header().Get("ETag") == small.Header().Get("ETag") {
		t.Error("two representations with one ETag")
	}
	if w := request(http.MethodGet, "/icon.svg", "Accept-Encoding", "br"); w.Header().Get("Content-Encoding") != "" {
		t.Error("a file without a compressed form was said to be compressed")
	}
	if w := request(http.MethodGet, "/", "Accept-Encoding", "br", "Range", "bytes=0-3"); w.Body.String() != "<met" {
		t.Errorf("range: got %q", w.Body)
	}
}

func TestPolicyOfThePage(t *testing.T) {
	built(t)
	csp := request(http.MethodGet, "https://relay.example/").Header().Get("Content-Security-Policy")
	for _, want := range []string{
		"default-src 'none'", "script-src 'self';", "connect-src 'self' https: wss:;", "require-trusted-types-for 'script'", "trusted-types holdfast",
		"frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'", "worker-src 'self'",
	} {
		if !strings.Contains(csp, want) {
			t.Errorf("policy %q lacks %q", csp, want)
		}
	}
	for _, part := range strings.Split(csp, "; ") {
		if strings.Contains(part, "unsafe") && part != "style-src 'self' 'unsafe-inline'" {
			t.Errorf("policy allows %q", part)
		}
	}
	// Plain http is for the computer that the page came from, and for it alone.
	for _, c := range []struct {
		host string
		tls  bool
		want bool
	}{
		{"127.0.0.1:7700", false, true}, {"localhost:7700", false, true}, {"[::1]:7700", false, true}, {"127.0.0.1", false, true},
		{"relay.example", false, false}, {"127.0.0.1.example", false, false}, {"localhost.example", false, false}, {"10.0.0.1:7700", false, false}, {"127.0.0.1:7700", true, false},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Host = c.host
		if c.tls {
			r.TLS = &tls.ConnectionState{}
		}
		w := httptest.NewRecorder()
		Handler().ServeHTTP(w, r)
		if got := strings.Contains(w.Header().Get("Content-Security-Policy"), "ws://"); got != c.want {
			t.Errorf("%s, TLS %v: plain WebSockets allowed: %v", c.host, c.tls, got)
		}
	}
}

// TestTheBuiltPage holds the page of this build to its policy, where there is one.
func TestTheBuiltPage(t *testing.T) {
	if !Built() {
		if os.Getenv("HOLDFAST_TEST_ALL") == "1" {
			t.Fatal("the page is not built: run make web")
		}
		t.Skip("the page is not built: run make web")
	}
	page := files[index].plain
	if !bytes.Contains(page, []byte("holdfast join")) {
		t.Error("without scripts, the page does not say what to do")
	}
	if Digest() == "" {
		t.Error("the page shows no digest")
	}
	// The page's style stands in it, which the policy lets in; a script may not.
	for _, m := range regexp.MustCompile(`<script\b[^>]*>`).FindAllString(string(page), -1) {
		if !strings.Contains(m, "src=") {
			t.Errorf("inline script %s", m)
		}
	}
	for _, m := range regexp.MustCompile(`(?:src|href)="([^"]*)"`).FindAllStringSubmatch(string(page), -1) {
		if ref := strings.TrimPrefix(m[1], "./"); files[ref] == nil {
			t.Errorf("the page refers to %q, which is not part of it", m[1])
		}
	}
	for name, f := range files {
		if strings.HasSuffix(name, ".js") && f.brotli == nil {
			t.Errorf("%s has no compressed form", name)
		}
	}
}
