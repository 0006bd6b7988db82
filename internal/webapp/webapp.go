// Package webapp serves the page at the relay's root, with the headers that keep
// it from doing anything but what it is for.
//
// It never sees a pairing link's secret, which is in the fragment and stays in
// the browser, and the page loads nothing and connects to nothing. What a caller
// will get wrong: the policy names the page's script and style by their hash, so
// a proxy that changes the page breaks it, as it should.
package webapp

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"net/http"
	"strings"
	"time"
)

//go:embed placeholder.html
var page []byte

// policy allows the page's own script and style and nothing else.
var policy = strings.Join([]string{
	"default-src 'none'",
	"script-src '" + inlineHash("script") + "'",
	"style-src '" + inlineHash("style") + "'",
	"base-uri 'none'",
	"form-action 'none'",
	"frame-ancestors 'none'",
}, "; ")

// inlineHash is the CSP source for the text of the page's one such element.
func inlineHash(element string) string {
	_, rest, _ := bytes.Cut(page, []byte("<"+element+">"))
	text, _, _ := bytes.Cut(rest, []byte("</"+element+">"))
	sum := sha256.Sum256(text)
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// Handler serves the page for GET and HEAD of "/" and nothing else.
func Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		if r.URL.Path != "/" {
			http.Error(w, "not found", http.StatusNotFound)
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
			return
		}
		h.Set("Content-Security-Policy", policy)
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-cache")
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(page))
	})
}
