package up

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"holdfast/internal/wsconn"
)

const (
	// metricsTimeout bounds reading one request for metrics.
	metricsTimeout = 10 * time.Second
	// profileTimeout bounds one answer: a trace or a CPU profile takes as long as
	// its seconds say, half a minute unless told otherwise.
	profileTimeout = 5 * time.Minute
)

// serveMetrics serves what is for the operator alone, on an address of its own:
// nothing of it is a route of the relay.
func (r *Relay) serveMetrics(addr string, registry *prometheus.Registry) error {
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return &ListenError{Addr: addr, Err: err}
	}
	if host, _, err := net.SplitHostPort(addr); err != nil || !wsconn.IsLoopback(host) {
		r.log.Warn("metrics and profiles have no password: whoever reaches this address reads them", "addr", ln.Addr().String())
	}
	r.Metrics = ln.Addr()
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("/debug/pprof/", pprof.Index) // the named ones too: heap, goroutine
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	r.metrics = &http.Server{
		Handler: mux, ReadTimeout: metricsTimeout, WriteTimeout: profileTimeout,
		ErrorLog: slog.NewLogLogger(r.log.Handler(), slog.LevelDebug),
	}
	r.log.Info("serving metrics", "addr", ln.Addr().String())
	// Ended and waited for by Close.
	r.wg.Go(func() {
		if err := r.metrics.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			r.fail(fmt.Errorf("serve metrics: %w", err))
		}
	})
	return nil
}
