package webapp

import (
	"errors"
	"html"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestExport(t *testing.T) {
	built(t)
	files[index].plain = []byte(`<meta charset="utf-8" />` + string(files[index].plain))
	dir := filepath.Join(t.TempDir(), "site")
	written, err := Export(dir, []string{"https://relay.example:8443"})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Join(written, " ") != "assets/app-abc123.js icon.svg index.html" {
		t.Errorf("wrote %q", written)
	}
	page, err := os.ReadFile(filepath.Join(dir, "index.html"))
	if err != nil {
		t.Fatal(err)
	}
	// Without 'self' the service worker could not fetch the page's own files.
	narrowed := "connect-src 'self' https://relay.example:8443 wss://relay.example:8443;"
	if !strings.Contains(html.UnescapeString(string(page)), narrowed) || strings.Contains(string(page), "https: wss:") {
		t.Errorf("the page's policy is not narrowed: %s", page)
	}
	headers, err := os.ReadFile(filepath.Join(dir, "_headers"))
	if err != nil || !strings.Contains(string(headers), narrowed) || !strings.Contains(string(headers), "frame-ancestors 'none'") || !strings.Contains(string(headers), "immutable") {
		t.Errorf("headers: %v\n%s", err, headers)
	}
	// A file of an earlier page goes, and the rest is written anew.
	old := filepath.Join(dir, "assets", "app-old.js")
	if err := os.WriteFile(old, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Export(dir, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(old); !errors.Is(err, os.ErrNotExist) {
		t.Error("an earlier page's file is still there")
	}
}

func TestExportRefuses(t *testing.T) {
	built(t)
	for _, relay := range []string{"relay.example", "ftp://relay.example", "https://", "https://u:p@relay.example", "https://a;script-src *", "https://*.example"} {
		if _, err := Export(t.TempDir(), []string{relay}); err == nil {
			t.Errorf("took the relay %q", relay)
		}
	}
	dir := t.TempDir()
	mine := filepath.Join(dir, "mine")
	if err := os.WriteFile(mine, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Export(dir, nil); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("a directory with other files: %v", err)
	}
	bare(t)
	if _, err := Export(t.TempDir(), nil); !errors.Is(err, ErrNotBuilt) {
		t.Errorf("without a page: %v", err)
	}
}
