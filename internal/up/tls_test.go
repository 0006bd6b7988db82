package up

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/internal/acme"
)

// TestACMEInTheRelay wires it up: names, the inner listener, and an end while
// the authority cannot be reached. What a certificate needs is package acme's.
func TestACMEInTheRelay(t *testing.T) {
	dir, err := os.MkdirTemp("", "hf")
	if err != nil {
		t.Fatal(err)
	}
	// certmagic does not say when it has ended: it may make the directory of a lock
	// after it was told to.
	t.Cleanup(func() {
		for start := time.Now(); os.RemoveAll(dir) != nil && time.Since(start) < 20*time.Second; time.Sleep(20 * time.Millisecond) {
		}
	})
	o := RelayOptions{
		Listen: "127.0.0.1:0", StorePath: filepath.Join(dir, "relay.db"), Log: quiet,
		ACME: &acme.Options{Domain: "relay.test", CA: "https://127.0.0.1:1/directory", Dir: filepath.Join(dir, "acme")},
	}
	r, err := StartRelay(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Public.String() != "https://relay.test" || r.Listening.Scheme != "https" || r.Local.Scheme != "http" {
		t.Errorf("listening %s, public %s, local %s", r.Listening, r.Public, r.Local)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*RelayOptions){
		"a certificate too": func(o *RelayOptions) { o.TLSCert, o.TLSKey = "c", "k" },
		"no host's name":    func(o *RelayOptions) { o.ACME = &acme.Options{Domain: "*", Dir: dir} },
	} {
		o := o
		change(&o)
		if r, err := StartRelay(context.Background(), o); err == nil {
			r.Close()
			t.Errorf("%s: it starts", name)
		}
	}
}

// TestMetricsAndProfiles are on their own address, and nowhere on the relay's.
func TestMetricsAndProfiles(t *testing.T) {
	get := func(base, path string) (int, string) {
		t.Helper()
		resp, err := http.Get(base + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b)
	}
	r, err := StartRelay(context.Background(), RelayOptions{
		Listen: "127.0.0.1:0", StorePath: filepath.Join(t.TempDir(), "relay.db"), MetricsListen: "127.0.0.1:0", Log: quiet,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer http.DefaultClient.CloseIdleConnections()
	metrics := (&url.URL{Scheme: "http", Host: r.Metrics.String()}).String()
	code, text := get(metrics, "/metrics")
	if code != 200 {
		t.Fatalf("metrics: %d", code)
	}
	for _, want := range []string{"holdfast_relay_sockets{", "go_goroutines ", "process_open_fds ", "process_resident_memory_bytes "} {
		if !strings.Contains(text, "\n"+want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/goroutine?debug=1", "/debug/pprof/profile?seconds=1", "/debug/pprof/symbol"} {
		if code, _ := get(metrics, path); code != 200 {
			t.Errorf("%s: %d", path, code)
		}
	}
	if code, _ := get(metrics, "/debug/vars"); code != 404 {
		t.Errorf("expvar is served: %d", code)
	}
	for _, path := range []string{"/metrics", "/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/cmdline"} {
		if code, _ := get(r.Listening.String(), path); code != 404 {
			t.Errorf("%s on the relay's own address: %d", path, code)
		}
	}
	// The command line may hold what was meant for nobody else.
	if code, _ := get(metrics, "/debug/pprof/cmdline"); code == 200 {
		t.Error("the command line is served")
	}
}

func TestMetricsBeyondLoopbackAreWarnedOf(t *testing.T) {
	for addr, warned := range map[string]bool{"127.0.0.1:0": false, "0.0.0.0:0": true, ":0": true} {
		var out bytes.Buffer
		r, err := StartRelay(context.Background(), RelayOptions{
			Listen: "127.0.0.1:0", StorePath: filepath.Join(t.TempDir(), "relay.db"), MetricsListen: addr,
			Log: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn})),
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if got := strings.Contains(out.String(), "metrics and profiles"); got != warned {
			t.Errorf("%s: warned %v:\n%s", addr, got, &out)
		}
	}
}
