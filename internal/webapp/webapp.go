// Package webapp serves the page at the relay's root, with the headers that keep
// it from doing anything but what it is for, and writes it out for other hosts.
//
// It never sees a pairing link's secret, which is in the fragment and stays in
// the browser, and it makes no request of its own. What a caller will get wrong:
// the page is there only where `make web` ran before the build (Built), else a
// page of words stands in for it; and the policy forbids what a proxy might add
// to the page, as it should.
package webapp

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/hex"
	"io/fs"
	"net"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
)

//go:embed placeholder.html
var placeholder []byte

// dist is the built page; without it, a README alone. "all" because a build tool
// may begin a file's name with an underscore.
//
//go:embed all:dist
var dist embed.FS

const (
	index = "index.html"
	// compressed is what the name of a file's brotli form ends in.
	compressed = ".br"
	// assets is the folder whose names hold a digest of what is in them.
	assets = "assets/"
	// aYear is how long such a file may be kept, in seconds.
	aYear = "31536000"
)

// file is one file of the page.
type file struct {
	kind   string // Content-Type
	plain  []byte
	brotli []byte // nil where compressing it gained nothing
	etag   string // of plain
}

// kinds are the types of the files that a page has. What is not listed is not
// served: a new kind of file is a decision.
var kinds = map[string]string{
	".html":        "text/html; charset=utf-8",
	".js":          "text/javascript; charset=utf-8",
	".css":         "text/css; charset=utf-8",
	".json":        "application/json",
	".svg":         "image/svg+xml",
	".png":         "image/png",
	".webmanifest": "application/manifest+json",
}

// files are those of the built page by path, without a leading slash; empty
// where it was not built.
var files = load(dist)

func load(from fs.FS) map[string]*file {
	out := map[string]*file{}
	_ = fs.WalkDir(from, "dist", func(name string, d fs.DirEntry, err error) error {
		kind, ok := kinds[path.Ext(name)]
		if err != nil || d.IsDir() || !ok {
			return nil
		}
		b, err := fs.ReadFile(from, name)
		if err != nil {
			return nil
		}
		f := &file{kind: kind, plain: b, etag: etag(b)}
		f.brotli, _ = fs.ReadFile(from, name+compressed)
		out[strings.TrimPrefix(name, "dist/")] = f
		return nil
	})
	if out[index] == nil {
		return nil
	}
	return out
}

func etag(b []byte) string {
	sum := sha256.Sum256(b)
	return `"` + hex.EncodeToString(sum[:12]) + `"`
}

// Built reports whether the page was there when this program was built.
func Built() bool { return len(files) > 0 }

var digestOf = regexp.MustCompile(`<meta name="holdfast-digest" content="(sha256:[0-9a-f]{64})"`)

// Digest is what the page shows as its own, "sha256:" and hexadecimal, over all
// of its files; "" where it was not built. `make web` prints the same.
func Digest() string {
	if !Built() {
		return ""
	}
	if m := digestOf.FindSubmatch(files[index].plain); m != nil {
		return string(m[1])
	}
	return ""
}

// Serves reports whether there is something at an URL's path besides "/".
func Serves(urlPath string) bool {
	name, ok := strings.CutPrefix(urlPath, "/")
	return ok && name != "" && name != index && files[name] != nil
}

// Handler serves the page for GET and HEAD: "/" and what Serves names.
func Handler() http.Handler {
	return http.HandlerFunc(serve)
}

func serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	f := files[strings.TrimPrefix(r.URL.Path, "/")]
	switch {
	case r.URL.Path == "/" && Built():
		f = files[index]
	case r.URL.Path == "/":
		f = &file{kind: kinds[".html"], plain: placeholder, etag: etag(placeholder)}
	case !Serves(r.URL.Path):
		http.Error(w, "not found", http.StatusNotFound)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		h.Set("Allow", "GET, HEAD")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		return
	}
	h.Set("Content-Security-Policy", policyFor(r))
	h.Set("Content-Type", f.kind)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Embedder-Policy", "require-corp")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(self), clipboard-read=(self), clipboard-write=(self), geolocation=(), microphone=(), payment=(), usb=()")
	h.Set("Cache-Control", "no-cache")
	if strings.HasPrefix(r.URL.Path, "/"+assets) {
		h.Set("Cache-Control", "public, max-age="+aYear+", immutable")
	}
	body, tag := f.plain, f.etag
	if f.brotli != nil {
		h.Set("Vary", "Accept-Encoding")
		if acceptsBrotli(r) {
			h.Set("Content-Encoding", "br")
			body, tag = f.brotli, strings.TrimSuffix(tag, `"`)+`-br"`
		}
	}
	h.Set("ETag", tag)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
}

// acceptsBrotli reads Accept-Encoding (RFC 9110, 12.5.3). Ranges are of what is
// sent, so a request for one gets the plain form.
func acceptsBrotli(r *http.Request) bool {
	if r.Header.Get("Range") != "" {
		return false
	}
	for _, line := range r.Header.Values("Accept-Encoding") {
		for _, part := range strings.Split(line, ",") {
			coding, params, _ := strings.Cut(part, ";")
			if strings.EqualFold(strings.TrimSpace(coding), "br") {
				q := strings.ReplaceAll(strings.ToLower(params), " ", "")
				return !slices.Contains([]string{"q=0", "q=0.0", "q=0.00", "q=0.000"}, q)
			}
		}
	}
	return false
}

// loopback are the addresses that a page from this very computer may also reach
// in plain http: `holdfast up` on loopback is one.
const loopback = " http://127.0.0.1:* ws://127.0.0.1:* http://localhost:* ws://localhost:*"

func policyFor(r *http.Request) string {
	if !Built() {
		return placeholderPolicy
	}
	connect := "'self' https: wss:"
	if r.TLS == nil && isLoopback(r.Host) {
		connect += loopback
	}
	return Policy(connect) + "; frame-ancestors 'none'"
}

// isLoopback says whether a browser that asks for host talks to its own
// computer. A proxy with TLS in front keeps the name that it was asked for.
func isLoopback(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	ip := net.ParseIP(strings.Trim(name, "[]"))
	return name == "localhost" || ip != nil && ip.IsLoopback()
}

// Policy is the page's Content-Security-Policy with the given connect-src, but
// for frame-ancestors, which counts in a header only. No inline script, no eval,
// no address of a script but the page's own (Trusted Types). Inline style is let
// in because the terminal makes a style element of its own, and gives cells their
// colours by attributes.
func Policy(connect string) string {
	return strings.Join([]string{
		"default-src 'none'",
		"script-src 'self'",
		"worker-src 'self'",
		"style-src 'self' 'unsafe-inline'",
		"img-src 'self' data: blob:",
		"media-src 'self' blob:",
		"font-src 'self'",
		"manifest-src 'self'",
		"connect-src " + connect,
		"base-uri 'none'",
		"form-action 'none'",
		"require-trusted-types-for 'script'",
		"trusted-types holdfast",
	}, "; ")
}

// placeholderPolicy allows the placeholder's own script and style and nothing
// else.
var placeholderPolicy = strings.Join([]string{
	"default-src 'none'",
	"script-src '" + inlineHash("script") + "'",
	"style-src '" + inlineHash("style") + "'",
	"base-uri 'none'",
	"form-action 'none'",
	"frame-ancestors 'none'",
}, "; ")

// inlineHash is the CSP source for the text of the placeholder's one such
// element.
func inlineHash(element string) string {
	_, rest, _ := bytes.Cut(placeholder, []byte("<"+element+">"))
	text, _, _ := bytes.Cut(rest, []byte("</"+element+">"))
	sum := sha256.Sum256(text)
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}
