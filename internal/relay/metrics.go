package relay

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/pump"
	"holdfast/internal/relay/axes"
	"holdfast/internal/wire"
)

// The outcomes of a dial.
const (
	dialPaired  = "paired"
	dialOffline = "offline" // nobody holds the machine
	dialRefused = "refused" // the agent said refuse
	dialTimeout = "timeout" // no dial-back within wire.DialTimeout
	dialHangup  = "hangup"  // the device went first
	dialStopped = "stopped" // a revocation, or the relay's own end
)

// metrics is one collector for all that the relay counts.
type metrics struct {
	relay *Relay

	sockets  *prometheus.Desc
	waiting  *prometheus.Desc
	parked   *prometheus.Desc
	dials    *prometheus.HistogramVec
	bytes    *prometheus.CounterVec
	text     prometheus.Counter
	refusals *prometheus.CounterVec
	reaps    prometheus.Counter
	verdicts *prometheus.CounterVec
	dropped  *prometheus.CounterVec
	closes   *prometheus.CounterVec
	replaced prometheus.Counter
	proven   *prometheus.CounterVec
}

const namespace = "holdfast_relay"

func newMetrics(r *Relay) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
	}
	one := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help})
	}
	return &metrics{
		relay:   r,
		sockets: prometheus.NewDesc(namespace+"_sockets", "Open sockets by role and by the form in which they wait.", []string{"role", "form"}, nil),
		waiting: prometheus.NewDesc(namespace+"_dials_waiting", "Dials that wait for their machine.", nil, nil),
		parked:  prometheus.NewDesc(namespace+"_parked_bytes", "Bytes held for control connections: partial frames and unsent messages.", nil, nil),
		dials: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "dial_seconds", Help: "Dials by outcome and duration.",
			// From a machine on the same host to the time-out.
			Buckets: []float64{.005, .02, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"outcome"}),
		bytes:    counter("stream_bytes_total", "Payload bytes of ended streams, by the side that got them.", "to"),
		text:     one("text_streams_total", "Streams on which a side sent text frames: older peers, in base64."),
		refusals: counter("refusals_total", "Refused requests by the code in Holdfast-Refusal.", "reason"),
		reaps:    one("reaps_total", "Control connections closed because nothing was heard of them."),
		verdicts: counter("verdicts_total", "Ended streams by cause and by the side that caused it.", "verdict", "by"),
		dropped:  counter("control_dropped_total", "Control messages dropped in silence, by what was wrong.", "reason"),
		closes:   counter("closes_total", "Close frames sent by the relay itself, by code.", "code"),
		replaced: one("replaced_total", "Control connections that lost their name to a newer one."),
		proven:   counter("proofs_total", "Dial-backs to a service's banner by result.", "result"),
	}
}

func (m *metrics) vectors() []prometheus.Collector {
	return []prometheus.Collector{m.dials, m.bytes, m.text, m.refusals, m.reaps, m.verdicts, m.dropped, m.closes, m.replaced, m.proven}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- m.sockets
	ch <- m.waiting
	ch <- m.parked
	for _, v := range m.vectors() {
		v.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	forms, held := m.relay.controls.stats()
	for form, n := range forms {
		gauge(m.sockets, n, axes.Control.String(), form)
	}
	for _, role := range []axes.Role{axes.Device, axes.Agent} {
		gauge(m.sockets, m.relay.axes.Count(role), role.String(), "stream")
	}
	gauge(m.waiting, m.relay.dials.Count())
	gauge(m.parked, held)
	for _, v := range m.vectors() {
		v.Collect(ch)
	}
}

func (m *metrics) refused(code wire.Refusal) { m.refusals.WithLabelValues(string(code)).Inc() }

func (m *metrics) closed(code wire.CloseCode) {
	m.closes.WithLabelValues(strconv.Itoa(int(code))).Inc()
}

func (m *metrics) proved(reachable bool) {
	result := "unreachable"
	if reachable {
		result = "reachable"
	}
	m.proven.WithLabelValues(result).Inc()
}

func (m *metrics) dialed(outcome string, took time.Duration) {
	m.dials.WithLabelValues(outcome).Observe(took.Seconds())
}

func (m *metrics) streamed(res pump.Result) {
	m.bytes.WithLabelValues("agent").Add(float64(res.ToAgent))
	m.bytes.WithLabelValues("device").Add(float64(res.ToDevice))
	by := res.By.String()
	if res.Cause == pump.CauseStopped {
		by = "relay"
	}
	m.verdicts.WithLabelValues(string(res.Cause), by).Inc()
	if res.Text {
		m.text.Inc()
	}
}
