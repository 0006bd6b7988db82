package webapp

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
)

func get(method, target string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	Handler().ServeHTTP(w, httptest.NewRequest(method, target, nil))
	return w
}

func TestPageSaysHowToPair(t *testing.T) {
	w := get(http.MethodGet, "/")
	if w.Code != http.StatusOK || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/html") {
		t.Fatalf("got %d %q", w.Code, w.Header().Get("Content-Type"))
	}
	if body := w.Body.String(); !strings.Contains(body, "holdfast join") {
		t.Errorf("the page does not say how to pair: %s", body)
	}
}

func TestPolicyAllowsNothingButThePage(t *testing.T) {
	csp := get(http.MethodGet, "/").Header().Get("Content-Security-Policy")
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
	if n := len(regexp.MustCompile(`<(script|style)`).FindAllString(string(page), -1)); n != 2 {
		t.Errorf("the page has %d inline elements; the policy names one script and one style", n)
	}
	if refs := regexp.MustCompile(`(?i)\b(src|href|action|on[a-z]+)\s*=\s*["']`).FindAllString(string(page), -1); len(refs) > 0 {
		t.Errorf("the page refers to something that its policy forbids: %q", refs)
	}
}

func TestEverythingElseIsRefused(t *testing.T) {
	if w := get(http.MethodGet, "/index.html"); w.Code != http.StatusNotFound {
		t.Errorf("/index.html: got %d", w.Code)
	}
	if w := get(http.MethodPost, "/"); w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") == "" {
		t.Errorf("POST: got %d, Allow %q", w.Code, w.Header().Get("Allow"))
	}
	if w := get(http.MethodHead, "/"); w.Code != http.StatusOK || w.Body.Len() != 0 {
		t.Errorf("HEAD: got %d with %d bytes", w.Code, w.Body.Len())
	}
}
