package liveness

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const vectorDir = "../../testdata/vectors/liveness"

// load reads one file of vectors, refusing fields that the runner would not
// look at.
func load(t *testing.T, name string, into any) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(vectorDir, name))
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// clocks follows a script's two clocks.
type clocks struct{ step time.Duration }

func (c *clocks) at(atMs, wallStepMs int64) Instant {
	c.step += ms(wallStepMs)
	return Instant{Wall: 1_000_000*time.Hour + ms(atMs) + c.step, Mono: ms(atMs)}
}

// nextMs is null for Never.
func nextMs(d time.Duration) *int64 {
	if d == Never {
		return nil
	}
	n := int64(d / time.Millisecond)
	if ms(n) != d {
		n = -1 // no whole millisecond: equals nothing
	}
	return &n
}

func show(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

var vectorChannels = map[string]func() Config{
	"data":         Data,
	"typing":       func() Config { return Data().WithTyping() },
	"agentControl": AgentControl,
	"relayControl": RelayControl,
	"live":         Live,
	"timing":       Timing,
}

var inboundNames = map[string]Inbound{"byte": InByte, "frame": InFrame, "text": InText, "ping": InPing, "pong": InPong}

func probeNames(p Probe) (names []string) {
	if p&ProbeApplication != 0 {
		names = append(names, "application")
	}
	if p&ProbeProtocol != 0 {
		names = append(names, "protocol")
	}
	return names
}

type judgeStep struct {
	At       int64  `json:"at"`
	WallStep int64  `json:"wallStep"`
	Do       string `json:"do"`
	Kind     string `json:"kind"`
	Bytes    int    `json:"bytes"`
	Unsent   int    `json:"unsent"`
	judgeExpect
}

type judgeExpect struct {
	State  string   `json:"state"`
	Next   *int64   `json:"next"`
	Probes []string `json:"probes"`
	Dead   string   `json:"dead"`
}

func TestJudgeVectors(t *testing.T) {
	for _, file := range []string{"judge-data.json", "judge-typing.json", "judge-control.json", "judge-live.json"} {
		var doc struct {
			Kind  string `json:"kind"`
			Cases []struct {
				Name      string      `json:"name"`
				About     string      `json:"about"`
				Channel   string      `json:"channel"`
				Keepalive int64       `json:"keepalive"`
				Steps     []judgeStep `json:"steps"`
			} `json:"cases"`
		}
		load(t, file, &doc)
		if len(doc.Cases) == 0 {
			t.Errorf("%s holds no case", file)
		}
		for _, c := range doc.Cases {
			t.Run(file+"/"+c.Name, func(t *testing.T) {
				config := vectorChannels[c.Channel]()
				if c.Keepalive != 0 {
					var err error
					if config, err = config.WithKeepalive(ms(c.Keepalive)); err != nil {
						t.Fatal(err)
					}
				}
				var j Judge
				var clock clocks
				for i, s := range c.Steps {
					now := clock.at(s.At, s.WallStep)
					var e Effects
					switch s.Do {
					case "start":
						e = j.Start(&config, now)
					case "opened":
						e = j.Opened(now)
					case "ready":
						e = j.Ready(now)
					case "inbound":
						kind, ok := inboundNames[s.Kind]
						if !ok {
							t.Fatalf("step %d: unknown kind %q", i, s.Kind)
						}
						e = j.Inbound(now, kind)
					case "sent":
						e = j.Sent(now, s.Bytes, s.Unsent)
					case "pause":
						e = j.PausedReading(now, true)
					case "resume":
						e = j.PausedReading(now, false)
					case "wake":
						e = j.Wake(now)
					case "tick":
						e = j.Tick(now)
					default:
						t.Fatalf("step %d: unknown event %q", i, s.Do)
					}
					got := judgeExpect{State: e.State.String(), Next: nextMs(e.Next), Probes: probeNames(e.Probes)}
					if e.Dead != 0 {
						got.Dead = e.Dead.String()
					}
					if show(got) != show(s.judgeExpect) {
						t.Fatalf("step %d (%s at %d):\n got  %s\n want %s", i, s.Do, s.At, show(got), show(s.judgeExpect))
					}
				}
			})
		}
	}
}

var vectorBackoffs = map[string]Backoff{"agent": AgentBackoff, "page": PageBackoff, "timing": TimingBackoff}

var vectorProfiles = map[string]*Profile{"holdfast": Holdfast, "hydro": Hydro}

type funnelStep struct {
	At       int64   `json:"at"`
	WallStep int64   `json:"wallStep"`
	Do       string  `json:"do"`
	Socket   Socket  `json:"socket"`
	Code     uint16  `json:"code"`
	Reason   string  `json:"reason"`
	After    int64   `json:"after"`
	Random   float64 `json:"random"`
	funnelExpect
}

type funnelExpect struct {
	Phase   string `json:"phase"`
	Next    *int64 `json:"next"`
	Retire  Socket `json:"retire"`
	Connect Socket `json:"connect"`
	Probe   bool   `json:"probe"`
}

func TestFunnelVectors(t *testing.T) {
	var doc struct {
		Kind  string `json:"kind"`
		Cases []struct {
			Name       string       `json:"name"`
			About      string       `json:"about"`
			Profile    string       `json:"profile"`
			Backoff    string       `json:"backoff"`
			Unattended bool         `json:"unattended"`
			Instance   string       `json:"instance"`
			Steps      []funnelStep `json:"steps"`
		} `json:"cases"`
	}
	load(t, "funnel.json", &doc)
	if len(doc.Cases) == 0 {
		t.Error("no case")
	}
	for _, c := range doc.Cases {
		t.Run(c.Name, func(t *testing.T) {
			var random float64
			f, err := NewFunnel(FunnelOptions{
				Profile: vectorProfiles[c.Profile], Backoff: vectorBackoffs[c.Backoff],
				Rand: func() float64 { return random }, Unattended: c.Unattended, Instance: c.Instance,
			})
			if err != nil {
				t.Fatal(err)
			}
			var clock clocks
			for i, s := range c.Steps {
				now := clock.at(s.At, s.WallStep)
				random = s.Random
				var a Action
				switch s.Do {
				case "start":
					a = f.Start(now)
				case "stop":
					a = f.Stop(now)
				case "opened":
					a = f.Opened(now, s.Socket)
				case "ready":
					a = f.Ready(now, s.Socket)
				case "fail":
					a = f.Fail(now, s.Socket, Failure{Cause: CauseClosed, Code: s.Code, Reason: s.Reason, After: ms(s.After)})
				case "drain":
					a = f.Drain(now, s.Socket, ms(s.After))
				case "wake":
					a = f.Wake(now)
				case "online":
					a = f.Online(now)
				case "offline":
					a = f.Offline(now)
				case "tick":
					a = f.Tick(now)
				default:
					t.Fatalf("step %d: unknown event %q", i, s.Do)
				}
				got := funnelExpect{Phase: a.Phase.String(), Next: nextMs(a.Next), Retire: a.Retire, Connect: a.Connect, Probe: a.Probe}
				if show(got) != show(s.funnelExpect) {
					t.Fatalf("step %d (%s at %d):\n got  %s\n want %s", i, s.Do, s.At, show(got), show(s.funnelExpect))
				}
			}
		})
	}
}

func TestCloseCodeVectors(t *testing.T) {
	var doc struct {
		Kind  string `json:"kind"`
		Codes []struct {
			Code     uint16 `json:"code"`
			Holdfast string `json:"holdfast"`
			Hydro    string `json:"hydro"`
			Ended    bool   `json:"ended"`
			About    string `json:"about"`
		} `json:"codes"`
		Restart []struct {
			Reason  string `json:"reason"`
			AfterMs *int64 `json:"afterMs"`
		} `json:"restart"`
		Answers []struct {
			Status int    `json:"status"`
			Ours   bool   `json:"ours"`
			Code   uint16 `json:"code"`
		} `json:"answers"`
	}
	load(t, "closecodes.json", &doc)
	listed := map[uint16]bool{}
	for _, c := range doc.Codes {
		listed[c.Code] = true
		if got := Holdfast.Class(c.Code).String(); got != c.Holdfast {
			t.Errorf("holdfast %d: %s, want %s", c.Code, got, c.Holdfast)
		}
		if got := Hydro.Class(c.Code).String(); got != c.Hydro {
			t.Errorf("hydro %d: %s, want %s", c.Code, got, c.Hydro)
		}
		if Holdfast.Ended(c.Code) != c.Ended || Hydro.Ended(c.Code) != c.Ended {
			t.Errorf("%d: ended is not %v", c.Code, c.Ended)
		}
	}
	for code := range Holdfast.codes {
		if !listed[code] {
			t.Errorf("code %d has no vector", code)
		}
	}
	for _, r := range doc.Restart {
		after, ok := RestartDelay(r.Reason)
		if ok != (r.AfterMs != nil) || ok && after != ms(*r.AfterMs) {
			t.Errorf("%q: %v, %v", r.Reason, after, ok)
		}
	}
	for d, want := range map[time.Duration]time.Duration{0: 0, 1500 * time.Millisecond: 1500 * time.Millisecond, MaxPeerDelay: MaxPeerDelay, -time.Second: 0} {
		if after, ok := RestartDelay(RestartReason(d)); !ok || after != want {
			t.Errorf("%v comes back as %v, %v", d, after, ok)
		}
	}
	for _, a := range doc.Answers {
		if got := CodeOfRefusal(a.Status, a.Ours); got != a.Code {
			t.Errorf("status %d, ours %v: %d, want %d", a.Status, a.Ours, got, a.Code)
		}
	}
	if len(doc.Codes) == 0 || len(doc.Restart) == 0 || len(doc.Answers) == 0 {
		t.Error("a part is empty")
	}
}

func TestBackoffVectors(t *testing.T) {
	var doc struct {
		Kind    string `json:"kind"`
		Classes map[string]struct {
			FirstMs    int64   `json:"firstMs"`
			BaseMs     int64   `json:"baseMs"`
			CapMs      int64   `json:"capMs"`
			CeilingsMs []int64 `json:"ceilingsMs"`
		} `json:"classes"`
		StableAfterMs     int64 `json:"stableAfterMs"`
		MinAttemptGapMs   int64 `json:"minAttemptGapMs"`
		LaterMinMs        int64 `json:"laterMinMs"`
		MaxPeerDelayMs    int64 `json:"maxPeerDelayMs"`
		UnattendedRetryMs int64 `json:"unattendedRetryMs"`
	}
	load(t, "backoff.json", &doc)
	for name, b := range vectorBackoffs {
		c, ok := doc.Classes[name]
		if !ok || b.Ceiling(1) != ms(c.FirstMs) || b.Base != ms(c.BaseMs) || b.Cap != ms(c.CapMs) {
			t.Errorf("%s: %+v, want %+v", name, b, c)
		}
		for i, want := range c.CeilingsMs {
			if got := b.Ceiling(i + 1); got != ms(want) {
				t.Errorf("%s: ceiling %d is %v, want %v", name, i+1, got, ms(want))
			}
		}
		if got := b.Ceiling(1 << 30); got != b.Cap {
			t.Errorf("%s: a year of failures: %v", name, got)
		}
	}
	for _, n := range []struct {
		got  time.Duration
		want int64
	}{{StableAfter, doc.StableAfterMs}, {MinAttemptGap, doc.MinAttemptGapMs}, {LaterMin, doc.LaterMinMs},
		{MaxPeerDelay, doc.MaxPeerDelayMs}, {UnattendedRetry, doc.UnattendedRetryMs}} {
		if n.got != ms(n.want) {
			t.Errorf("%v, want %v", n.got, ms(n.want))
		}
	}
}

func TestChannelVectors(t *testing.T) {
	type jsonTrack struct {
		Probe         string `json:"probe"`
		Counts        string `json:"counts"`
		TextOnceAsked bool   `json:"textOnceAsked"`
		IdleMs        int64  `json:"idleMs"`
		WindowMs      int64  `json:"windowMs"`
		BeatMs        int64  `json:"beatMs"`
		When          string `json:"when"`
	}
	type jsonTyping struct {
		QuietMs  int64 `json:"quietMs"`
		MaxBytes int   `json:"maxBytes"`
		IdleMs   int64 `json:"idleMs"`
		WindowMs int64 `json:"windowMs"`
	}
	type jsonChannel struct {
		HandshakeMs int64       `json:"handshakeMs"`
		ReadyMs     int64       `json:"readyMs"`
		KeepaliveMs int64       `json:"keepaliveMs"`
		Tracks      []jsonTrack `json:"tracks"`
		Typing      *jsonTyping `json:"typing"`
	}
	var doc struct {
		Kind           string                 `json:"kind"`
		SleepGapMs     int64                  `json:"sleepGapMs"`
		LateTickMs     int64                  `json:"lateTickMs"`
		MinKeepaliveMs int64                  `json:"minKeepaliveMs"`
		Channels       map[string]jsonChannel `json:"channels"`
	}
	load(t, "channels.json", &doc)
	if ms(doc.SleepGapMs) != SleepGap || ms(doc.LateTickMs) != LateTick || ms(doc.MinKeepaliveMs) != MinKeepalive {
		t.Errorf("limits of the clocks differ: %+v", doc)
	}
	if len(doc.Channels) != len(vectorChannels) {
		t.Errorf("%d channels, want %d", len(doc.Channels), len(vectorChannels))
	}
	kinds := map[Inbound]string{}
	for name, k := range inboundNames {
		kinds[k] = name
	}
	conditions := []string{Always: "always", OnceAnswered: "onceAnswered", UntilAnswered: "untilAnswered"}
	for name, make := range vectorChannels {
		c := make()
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		got := jsonChannel{
			HandshakeMs: c.Handshake.Milliseconds(), ReadyMs: c.Ready.Milliseconds(), KeepaliveMs: c.Keepalive.Milliseconds(),
		}
		for _, k := range c.Tracks {
			got.Tracks = append(got.Tracks, jsonTrack{
				Probe:  strings.Join(append(probeNames(k.Probe), slices.Repeat([]string{"none"}, map[bool]int{true: 1}[k.Probe == 0])...), ","),
				Counts: kinds[k.Counts], TextOnceAsked: k.TextOnceAsked,
				IdleMs: k.Idle.Milliseconds(), WindowMs: k.Window.Milliseconds(), BeatMs: k.Beat.Milliseconds(), When: conditions[k.When],
			})
		}
		if r := c.Typing; r != nil {
			got.Typing = &jsonTyping{r.Quiet.Milliseconds(), r.MaxBytes, r.Idle.Milliseconds(), r.Window.Milliseconds()}
		}
		if show(got) != show(doc.Channels[name]) {
			t.Errorf("%s:\n got  %s\n want %s", name, show(got), show(doc.Channels[name]))
		}
	}
}

type outboxStep struct {
	At       int64  `json:"at"`
	WallStep int64  `json:"wallStep"`
	Do       string `json:"do"`
	Item     string `json:"item"`
	Bytes    int    `json:"bytes"`
	Key      string `json:"key"`
	Context  string `json:"context"`
	outboxExpect
}

type outboxExpect struct {
	Len         int        `json:"len"`
	BytesQueued int        `json:"bytesQueued"`
	Out         string     `json:"out"`
	Lost        []lostItem `json:"lost"`
}

type lostItem struct {
	Item string `json:"item"`
	Why  string `json:"why"`
}

func TestOutboxVectors(t *testing.T) {
	var doc struct {
		Kind  string `json:"kind"`
		Cases []struct {
			Name   string `json:"name"`
			About  string `json:"about"`
			Limits struct {
				Count int   `json:"count"`
				Bytes int   `json:"bytes"`
				AgeMs int64 `json:"ageMs"`
			} `json:"limits"`
			Context string       `json:"context"`
			Steps   []outboxStep `json:"steps"`
		} `json:"cases"`
	}
	load(t, "outbox.json", &doc)
	if len(doc.Cases) == 0 {
		t.Error("no case")
	}
	losses := map[Loss]string{Overflow: "overflow", Expired: "expired", ContextEnded: "contextEnded"}
	for _, c := range doc.Cases {
		t.Run(c.Name, func(t *testing.T) {
			o, err := NewOutbox[string](OutboxLimits{Count: c.Limits.Count, Bytes: c.Limits.Bytes, Age: ms(c.Limits.AgeMs)}, c.Context)
			if err != nil {
				t.Fatal(err)
			}
			var clock clocks
			for i, s := range c.Steps {
				now := clock.at(s.At, s.WallStep)
				var lost []Lost[string]
				var out string
				switch s.Do {
				case "push":
					lost = o.Push(now, s.Bytes, s.Item)
				case "report":
					o.Report(s.Key, s.Item)
				case "withdraw":
					o.Withdraw(s.Key)
				case "connected":
					o.Connected()
				case "next":
					out, _, lost = o.Next(now)
				case "expire":
					lost = o.Expire(now)
				case "context":
					lost = o.SetContext(s.Context)
				default:
					t.Fatalf("step %d: unknown event %q", i, s.Do)
				}
				got := outboxExpect{Len: o.Len(), BytesQueued: o.Bytes(), Out: out}
				for _, l := range lost {
					got.Lost = append(got.Lost, lostItem{l.Item, losses[l.Why]})
				}
				if show(got) != show(s.outboxExpect) {
					t.Fatalf("step %d (%s at %d):\n got  %s\n want %s", i, s.Do, s.At, show(got), show(s.outboxExpect))
				}
			}
		})
	}
}

// TestEveryVectorFileIsRun fails when a file is added that no test reads.
func TestEveryVectorFileIsRun(t *testing.T) {
	run := []string{
		"README.md", "backoff.json", "channels.json", "closecodes.json", "funnel.json",
		"judge-control.json", "judge-data.json", "judge-live.json", "judge-typing.json", "outbox.json",
	}
	entries, err := os.ReadDir(vectorDir)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, e := range entries {
		found = append(found, e.Name())
	}
	if fmt.Sprint(found) != fmt.Sprint(run) {
		t.Errorf("files: %v\nwant:  %v", found, run)
	}
}
