package liveness

import (
	"errors"
	"fmt"
	"time"
)

// Probe is a question that can be sent on a connection. Values are bits, so
// that effects can hold several.
type Probe uint8

// The probes.
const (
	// ProbeProtocol is a ping frame of RFC 6455. Whatever terminates the
	// WebSocket answers it, an edge included: it asks about this leg only.
	ProbeProtocol Probe = 1 << iota
	// ProbeApplication is the channel's own ping in a text frame, answered only
	// by the code that does the channel's work.
	ProbeApplication
)

// Inbound is what arrived. The kinds rise: each is also all that stand before it.
type Inbound uint8

// The kinds of arrival.
const (
	// InByte is any byte, the middle of a frame included.
	InByte Inbound = iota + 1
	// InFrame is a frame of any type.
	InFrame
	// InText is a text frame.
	InText
	// InPing is the peer's application ping, a text frame.
	InPing
	// InPong is the peer's answer to our application ping, a text frame.
	InPong
)

// Condition says when a track may judge.
type Condition uint8

// The conditions.
const (
	// Always judges.
	Always Condition = iota
	// OnceAnswered judges only after an application pong was seen on this
	// connection: a peer that predates the pong is not dead for its silence.
	OnceAnswered
	// UntilAnswered judges only as long as none was seen.
	UntilAnswered
)

// Track is one question about a connection and the rule that judges it: after
// Idle without anything that counts the probe goes out, after Window more the
// connection is dead.
type Track struct {
	// Probe asks; zero asks nothing and waits for the peer's own heartbeat.
	Probe Probe
	// Counts is the lowest kind of arrival that is life here.
	Counts Inbound
	// TextOnceAsked raises Counts to InText as soon as the peer has sent an
	// application ping on this connection.
	TextOnceAsked bool
	Idle          time.Duration
	Window        time.Duration
	// Beat sends Probe when ready and then this often, whatever arrives; zero
	// means only when quiet.
	Beat time.Duration
	When Condition
}

// TypingRule judges sooner while a person types.
type TypingRule struct {
	// Quiet without sending starts a new burst.
	Quiet time.Duration
	// MaxBytes is the largest burst that can be typing; more is a paste or a copy.
	MaxBytes int
	// Idle after the first unanswered byte a probe goes out, Window later the
	// connection is dead. Any inbound byte answers.
	Idle   time.Duration
	Window time.Duration
}

// Config is how one kind of connection is judged. It is not changed by a
// Judge, so that all connections of a kind share one.
type Config struct {
	// Handshake bounds the time from dialling to open. Zero: not judged here.
	Handshake time.Duration
	// Ready bounds the time from open to ready. Zero: open is ready.
	Ready time.Duration
	// Keepalive sends a protocol ping this often, so that no proxy on the path
	// sees an idle link; it judges nothing. Zero: off.
	Keepalive time.Duration
	// Tracks are at most two.
	Tracks []Track
	// Typing is nil where no person types.
	Typing *TypingRule
}

const maxTracks = 2

// MinKeepalive is the shortest keepalive that can be set: twice as often would
// keep a phone's radio awake for nothing, the shortest idle limit known is 15 s.
const MinKeepalive = 5 * time.Second

// ErrConfig is wrapped by the errors of Config's methods.
var ErrConfig = errors.New("bad liveness configuration")

// Validate says what is wrong with c, wrapping ErrConfig.
func (c *Config) Validate() error {
	if len(c.Tracks) > maxTracks {
		return fmt.Errorf("%d tracks, at most %d: %w", len(c.Tracks), maxTracks, ErrConfig)
	}
	if c.Handshake < 0 || c.Ready < 0 {
		return fmt.Errorf("negative time: %w", ErrConfig)
	}
	if c.Keepalive != 0 && c.Keepalive < MinKeepalive {
		return fmt.Errorf("keepalive %v is shorter than %v: %w", c.Keepalive, MinKeepalive, ErrConfig)
	}
	for i, t := range c.Tracks {
		if t.Idle <= 0 || t.Window <= 0 || t.Beat < 0 || t.Counts < InByte || t.Counts > InPong {
			return fmt.Errorf("track %d: idle, window and counts are required: %w", i, ErrConfig)
		}
		if t.Beat > 0 && t.Probe == 0 {
			return fmt.Errorf("track %d: a beat without a probe: %w", i, ErrConfig)
		}
	}
	if t := c.Typing; t != nil && (t.Quiet <= 0 || t.MaxBytes <= 0 || t.Idle <= 0 || t.Window <= 0) {
		return fmt.Errorf("typing: all four numbers are required: %w", ErrConfig)
	}
	return nil
}

// WithKeepalive is c with another keepalive; zero turns it off. The error
// wraps ErrConfig.
func (c Config) WithKeepalive(d time.Duration) (Config, error) {
	c.Keepalive = d
	return c, c.Validate()
}

// WithTyping is c with the rule for a person who types: it belongs on the
// device's own leg.
func (c Config) WithTyping() Config {
	c.Typing = &TypingRule{Quiet: TypingQuiet, MaxBytes: TypingMaxBytes, Idle: TypingIdle, Window: TypingWindow}
	return c
}

// The times of liveness. docs/liveness.md gives each with what breaks at half
// and at double.
const (
	// HandshakeTimeout bounds dialling until the upgrade is answered: a browser
	// waits 240 s, a kernel minutes.
	HandshakeTimeout = 10 * time.Second
	// ReadyTimeout bounds a page's wait for the first frame after open.
	ReadyTimeout = 15 * time.Second

	// DataIdle and DataWindow notice a dead data connection in 25 s: the first
	// is the shortest idle limit of a CDN, the second more than any real round
	// trip behind a full buffer.
	DataIdle   = 15 * time.Second
	DataWindow = 10 * time.Second

	// ControlBeat is the agent's application ping: below every 60 s idle limit.
	ControlBeat = 45 * time.Second
	// ControlIdle is two beats, ControlWindow the time for the answer to the
	// second: dead after 100 s without a text frame.
	ControlIdle   = 90 * time.Second
	ControlWindow = 10 * time.Second

	// ReapIdle and ReapWindow are 150 s of silence, more than three beats: the
	// relay leaves the judging to the agent and only frees what nobody uses. The
	// window is longer than one beat, so that a relay that was stopped itself
	// hears every healthy agent before it reaps.
	ReapIdle   = 90 * time.Second
	ReapWindow = 60 * time.Second

	// TypingQuiet, TypingMaxBytes, TypingIdle and TypingWindow notice a dead
	// path 5 s after the first key that nothing answered.
	TypingQuiet    = time.Second
	TypingMaxBytes = 256
	TypingIdle     = 2 * time.Second
	TypingWindow   = 3 * time.Second

	// LiveIdle and LiveWindow are for quiet channels of pages: three missed
	// heartbeats of 40 s, then one question.
	LiveIdle   = 120 * time.Second
	LiveWindow = 10 * time.Second
	// TimingIdle and TimingWindow are for a channel whose every report is
	// answered each 10 s and whose lease is 30 s: a dead link is replaced in
	// time to save it.
	TimingIdle   = 16 * time.Second
	TimingWindow = 4 * time.Second
)

// Data judges one leg of a stream: the agent's, the device's, and each of the
// relay's two.
func Data() Config {
	return Config{
		Handshake: HandshakeTimeout,
		Keepalive: DataIdle,
		Tracks:    []Track{{Probe: ProbeProtocol, Counts: InByte, Idle: DataIdle, Window: DataWindow}},
	}
}

// AgentControl judges an agent's control connection. The first track asks
// whether a dial would arrive, and judges only a relay that has answered
// before; until it has, the second asks about the TCP path alone.
func AgentControl() Config {
	return Config{
		Handshake: HandshakeTimeout,
		Tracks: []Track{
			{Probe: ProbeApplication, Counts: InText, Idle: ControlIdle, Window: ControlWindow, Beat: ControlBeat, When: OnceAnswered},
			{Probe: ProbeProtocol, Counts: InByte, Idle: DataIdle, Window: DataWindow, When: UntilAnswered},
		},
	}
}

// RelayControl reaps control connections at the relay. It asks nothing: the
// agent's heartbeat is the evidence. Call Opened at once after Start.
func RelayControl() Config {
	return Config{
		Tracks: []Track{{Counts: InFrame, TextOnceAsked: true, Idle: ReapIdle, Window: ReapWindow}},
	}
}

// Live judges a page's quiet channel. Its probe is the profile's text ping and
// any frame is life.
func Live() Config {
	return Config{
		Handshake: HandshakeTimeout,
		Ready:     ReadyTimeout,
		Tracks:    []Track{{Probe: ProbeApplication, Counts: InByte, Idle: LiveIdle, Window: LiveWindow}},
	}
}

// Timing judges a channel that lives by a 30 s lease with a report answered
// every 10 s.
func Timing() Config {
	c := Live()
	c.Tracks = []Track{{Probe: ProbeApplication, Counts: InByte, Idle: TimingIdle, Window: TimingWindow}}
	return c
}
