// Package meter counts what a relay does, as one Prometheus collector.
//
// Its labels hold roles, codes and outcomes, never a name, an address or a
// secret. What a caller will get wrong: a Stream that was opened must be closed
// once, or it counts as live for ever.
package meter

import (
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/pump"
	"holdfast/internal/wire"
)

// The outcomes of a dial.
const (
	DialPaired  = "paired"
	DialOffline = "offline" // nobody holds the machine
	DialRefused = "refused" // the agent said refuse
	DialTimeout = "timeout" // no dial-back within wire.DialTimeout
	DialHangup  = "hangup"  // the device went first
	DialStopped = "stopped" // a revocation, or the relay's own end
)

// Gauges are read when somebody asks.
type Gauges struct {
	// Sockets are the open sockets by role and by the form in which they wait.
	Sockets map[[2]string]int
	// Live are what happened on live channels, by event.
	Live map[string]int64
	// Waiting are the dials that wait for their machine.
	Waiting int
	// ParkedBytes are held for control connections.
	ParkedBytes int
	// Addresses is the most that any one token was used from lately.
	Addresses int
}

// Meter is a prometheus.Collector, safe for concurrent use.
type Meter struct {
	gauges func() Gauges

	sockets *prometheus.Desc
	channel *prometheus.Desc
	waiting *prometheus.Desc
	parked  *prometheus.Desc
	bytes   *prometheus.Desc
	text    *prometheus.Desc
	spread  *prometheus.Desc

	dials    *prometheus.HistogramVec
	refusals *prometheus.CounterVec
	reaps    prometheus.Counter
	verdicts *prometheus.CounterVec
	dropped  *prometheus.CounterVec
	closes   *prometheus.CounterVec
	replaced prometheus.Counter
	proofs   *prometheus.CounterVec

	mu    sync.Mutex
	live  map[*Stream]struct{}
	ended totals
}

type totals struct{ toAgent, toDevice, text int64 }

func (t *totals) add(s pump.Stats) {
	t.toAgent += s.ToAgent
	t.toDevice += s.ToDevice
	if s.Text {
		t.text++
	}
}

const namespace = "holdfast_relay"

// New makes a Meter that asks gauges when it is read.
func New(gauges func() Gauges) *Meter {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(namespace+"_"+name, help, labels, nil)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
	}
	one := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help})
	}
	return &Meter{
		gauges:  gauges,
		live:    make(map[*Stream]struct{}),
		sockets: desc("sockets", "Open sockets by role and by the form in which they wait.", "role", "form"),
		channel: desc("live_events_total", "What happened on live channels, by event.", "event"),
		waiting: desc("dials_waiting", "Dials that wait for their machine."),
		parked:  desc("parked_bytes", "Bytes held for control connections: partial frames and unsent messages."),
		bytes:   desc("stream_bytes_total", "Payload bytes of streams, by the side that got them.", "to"),
		text:    desc("text_streams_total", "Streams on which a side sent text frames: older peers, in base64."),
		spread:  desc("token_addresses_max", "The most addresses that any one token was used from within an hour."),
		dials: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "dial_seconds", Help: "Dials by outcome and duration.",
			// From a machine on the same host to the time-out.
			Buckets: []float64{.005, .02, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"outcome"}),
		refusals: counter("refusals_total", "Refused requests by the code in Holdfast-Refusal.", "reason"),
		reaps:    one("reaps_total", "Control connections closed because nothing was heard of them."),
		verdicts: counter("verdicts_total", "Ended streams by cause and by the side that caused it.", "verdict", "by"),
		dropped:  counter("control_dropped_total", "Control messages dropped in silence, by what was wrong.", "reason"),
		closes:   counter("closes_total", "Close frames sent by the relay itself, by code.", "code"),
		replaced: one("replaced_total", "Control connections that lost their name to another, or were too late for it."),
		proofs:   counter("proofs_total", "Dial-backs to a service's banner by result.", "result"),
	}
}

func (m *Meter) vectors() []prometheus.Collector {
	return []prometheus.Collector{m.dials, m.refusals, m.reaps, m.verdicts, m.dropped, m.closes, m.replaced, m.proofs}
}

// Describe implements prometheus.Collector.
func (m *Meter) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.sockets, m.channel, m.waiting, m.parked, m.bytes, m.text, m.spread} {
		ch <- d
	}
	for _, v := range m.vectors() {
		v.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (m *Meter) Collect(ch chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, t prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, t, v, labels...)
	}
	g := m.gauges()
	for labels, n := range g.Sockets {
		send(m.sockets, prometheus.GaugeValue, float64(n), labels[:]...)
	}
	for event, n := range g.Live {
		send(m.channel, prometheus.CounterValue, float64(n), event)
	}
	send(m.waiting, prometheus.GaugeValue, float64(g.Waiting))
	send(m.parked, prometheus.GaugeValue, float64(g.ParkedBytes))
	send(m.spread, prometheus.GaugeValue, float64(g.Addresses))
	t := m.totals()
	send(m.bytes, prometheus.CounterValue, float64(t.toAgent), "agent")
	send(m.bytes, prometheus.CounterValue, float64(t.toDevice), "device")
	send(m.text, prometheus.CounterValue, float64(t.text))
	for _, v := range m.vectors() {
		v.Collect(ch)
	}
}

// totals are of ended and live streams together, under one lock, so that a
// stream which ends is neither counted twice nor missed.
func (m *Meter) totals() totals {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.ended
	for s := range m.live {
		t.add(s.stats())
	}
	return t
}

// Stream is one live stream.
type Stream struct {
	meter *Meter
	stats func() pump.Stats
}

// Open counts a stream, whose numbers stats gives while it lives.
func (m *Meter) Open(stats func() pump.Stats) *Stream {
	s := &Stream{m, stats}
	m.mu.Lock()
	m.live[s] = struct{}{}
	m.mu.Unlock()
	return s
}

// Close counts its end.
func (s *Stream) Close(res pump.Result) {
	m := s.meter
	m.mu.Lock()
	delete(m.live, s)
	m.ended.add(res.Stats)
	m.mu.Unlock()
	by := res.By.String()
	if res.Cause == pump.CauseStopped {
		by = "relay"
	}
	m.verdicts.WithLabelValues(string(res.Cause), by).Inc()
}

// Refused counts a refused request.
func (m *Meter) Refused(code wire.Refusal) { m.refusals.WithLabelValues(string(code)).Inc() }

// Closed counts a close frame of the relay's own.
func (m *Meter) Closed(code wire.CloseCode) {
	m.closes.WithLabelValues(strconv.Itoa(int(code))).Inc()
}

// Dialled counts a dial.
func (m *Meter) Dialled(outcome string, took time.Duration) {
	m.dials.WithLabelValues(outcome).Observe(took.Seconds())
}

// Proved counts a dial-back to a banner.
func (m *Meter) Proved(reachable bool) {
	result := "unreachable"
	if reachable {
		result = "reachable"
	}
	m.proofs.WithLabelValues(result).Inc()
}

// Reaped counts a control connection that was silent for too long.
func (m *Meter) Reaped() { m.reaps.Inc() }

// Replaced counts a control connection that lost its name.
func (m *Meter) Replaced() { m.replaced.Inc() }

// Dropped counts a control message that was ignored.
func (m *Meter) Dropped(reason string) { m.dropped.WithLabelValues(reason).Inc() }
