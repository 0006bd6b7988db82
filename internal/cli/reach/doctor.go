package reach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"holdfast/internal/agent"
	"holdfast/internal/client"
	"holdfast/internal/console"
	"holdfast/internal/doctor"
	"holdfast/internal/local"
	"holdfast/internal/pairing"
	"holdfast/internal/sshlink"
	"holdfast/internal/state"
	"holdfast/internal/wire"
)

// Doctor finds out why a machine cannot be reached.
type Doctor struct {
	console.Connection
	Path    bool          `help:"Measure how long a quiet connection to the relay survives, and name the --keepalive to set."`
	Max     time.Duration `default:"401s" placeholder:"DUR" help:"How long --path may take (default ${default})."`
	Machine string        `arg:"" optional:"" help:"Machine, as holdfast machines lists it (default: every paired one, and this computer's own agent)."`
}

// Help is shown by --help.
func (*Doctor) Help() string {
	return "Asks layer by layer: dns, tcp, tls, upgrade, protocol ping, held by the relay, dial-back, service banner, host key, login. " +
		"The first that fails is the cause. Ends with 3 where something is not reachable, 4 where it is not permitted."
}

// Validate is called by the parser.
func (c *Doctor) Validate() error {
	if c.Max < doctor.PathAges[0] {
		return fmt.Errorf("--max must be at least %s", doctor.PathAges[0])
	}
	return c.Connection.Validate()
}

// What --json prints, one kind a line.
type (
	checkLine struct {
		Event   string        `json:"event"` // "check"
		Machine string        `json:"machine"`
		Layer   doctor.Layer  `json:"layer"`
		Status  doctor.Status `json:"status"`
		TookMs  float64       `json:"tookMs"`
		Detail  string        `json:"detail,omitempty"`
	}
	walkLine struct {
		Event   string       `json:"event"` // "machine", after its checks
		Machine string       `json:"machine"`
		Relay   string       `json:"relay"`
		OK      bool         `json:"ok"`
		Cause   doctor.Layer `json:"cause,omitempty"`
		What    string       `json:"what,omitempty"`
		Do      string       `json:"do,omitempty"`
		Since   *time.Time   `json:"since,omitempty"`
		// How far this computer's clock is ahead; zero within a minute.
		ClockSkewSeconds float64 `json:"clockSkewSeconds,omitempty"`
	}
	agentLine struct {
		Event string       `json:"event"` // "agent"
		OK    bool         `json:"ok"`
		Agent agent.Status `json:"agent"`
		// Notifications are the devices that asked to be called.
		Notifications []local.Call `json:"notifications,omitempty"`
	}
	sampleLine struct {
		Event      string       `json:"event"` // "sample"
		Relay      string       `json:"relay"`
		Quiet      doctor.Quiet `json:"quiet"`
		AgeSeconds float64      `json:"ageSeconds"`
		Alive      bool         `json:"alive"`
		Detail     string       `json:"detail,omitempty"`
	}
	pathLine struct {
		Event           string       `json:"event"` // "path", after its samples
		Relay           string       `json:"relay"`
		Quiet           doctor.Quiet `json:"quiet"`
		SurvivedSeconds float64      `json:"survivedSeconds"`
		DiedSeconds     float64      `json:"diedSeconds,omitempty"` // zero: nothing died
		EndAnnounced    bool         `json:"endAnnounced"`
		// The --keepalive to set, of all ways together; zero for none.
		KeepaliveSeconds float64 `json:"keepaliveSeconds"`
	}
)

// Run walks one machine, or all, or measures a path.
func (c *Doctor) Run(ctx context.Context, a *console.App) error {
	dir, err := a.Dir()
	if err != nil {
		return err
	}
	store := client.NewStore(dir)
	var machines []client.Machine
	if c.Machine != "" {
		m, err := store.Find(c.Machine)
		if err != nil {
			return err
		}
		machines = append(machines, m)
	} else if machines, err = store.All(); err != nil {
		return err
	}
	if c.Path {
		return c.measure(ctx, a, machines)
	}
	var worst *console.Failure
	asked := len(machines) > 0
	if c.Machine == "" {
		running, f, err := c.own(ctx, a)
		if err != nil {
			return err
		}
		asked = asked || running
		worst = f
	}
	if !asked {
		return &console.Failure{Code: console.ExitFailed, Err: errors.New("there is nothing to look at: no agent runs here and this computer is not paired with any machine"),
			Hint: "run holdfast up on a machine, and holdfast join LINK here with the link that it prints"}
	}
	for _, m := range machines {
		f, err := c.walk(ctx, a, dir, m)
		if err != nil {
			return err
		}
		if f != nil && (worst == nil || worst.Code == console.ExitUnreachable) {
			worst = f
		}
	}
	if worst != nil {
		return worst
	}
	return nil
}

// own looks at the agent of this computer, if one runs.
func (c *Doctor) own(ctx context.Context, a *console.App) (running bool, f *console.Failure, err error) {
	answer, err := a.Ask(ctx, local.Request{Op: local.OpStatus})
	if errors.Is(err, state.ErrNotRunning) {
		return false, nil, nil
	}
	if err != nil {
		return false, nil, err
	}
	var s agent.Status
	if err := json.Unmarshal(answer.Agent, &s); err != nil {
		return true, nil, fmt.Errorf("read the agent's status: %w", err)
	}
	if !s.Proven {
		what := s.LastError
		if what == "" {
			what = "the relay has not answered yet"
		}
		f = &console.Failure{Code: console.ExitUnreachable, Err: fmt.Errorf("agent of machine %q: %s", s.Machine, what), Hint: s.Hint}
		if s.Refused {
			f.Code = console.ExitDenied
		}
	}
	if a.JSON {
		return true, f, a.Emit(agentLine{Event: "agent", OK: f == nil, Agent: s, Notifications: answer.Calls})
	}
	now := time.Now()
	a.Say("this computer is machine %q on relay %s", s.Machine, s.Relay)
	rows := [][]string{{"  phase", s.Phase}}
	if !s.ConnectedSince.IsZero() {
		rows = append(rows, []string{"  connected", console.Ago(s.ConnectedSince, now)})
	}
	if !s.LastPong.IsZero() {
		rows = append(rows, []string{"  a dial would arrive", "the relay said so " + console.Ago(s.LastPong, now)})
	}
	if !s.LastDialBack.IsZero() {
		rows = append(rows, []string{"  newest dial-back", console.Ago(s.LastDialBack, now)})
	}
	if s.DialBackError != "" {
		rows = append(rows, []string{"  dial-backs fail", s.DialBackError})
	}
	if s.LastError != "" {
		rows = append(rows, []string{"  newest failure", s.LastError + ", " + console.Ago(s.LastErrorAt, now)})
	}
	if s.Refused {
		rows = append(rows, []string{"  refused", "the relay does not want this agent; it is asked again hourly"})
	}
	if !s.NextAttempt.IsZero() && s.NextAttempt.After(now) {
		rows = append(rows, []string{"  next attempt", "in " + s.NextAttempt.Sub(now).Round(time.Second).String()})
	}
	for _, k := range answer.Calls {
		rows = append(rows, []string{"  notifies " + console.OneLine(k.Name), notified(k, now)})
	}
	console.Table(a.Out, rows)
	return true, f, nil
}

// notified says how it stands with a device's notifications.
func notified(k local.Call, now time.Time) string {
	var said []string
	if k.Ended {
		said = append(said, "no more: "+console.OneLine(k.Why)+", "+console.Ago(k.Failed, now))
	}
	if k.Delivered.IsZero() {
		said = append(said, "none delivered yet")
	} else {
		said = append(said, "last delivered "+console.Ago(k.Delivered, now))
	}
	if !k.Ended && !k.Failed.IsZero() {
		said = append(said, "last failed "+console.Ago(k.Failed, now)+": "+console.OneLine(k.Why))
	}
	if k.Again.After(now) {
		said = append(said, "tried again in "+k.Again.Sub(now).Round(time.Second).String())
	}
	return strings.Join(append(said, "through "+console.OneLine(k.Service)), "; ")
}

// walk asks every layer to one machine.
func (c *Doctor) walk(ctx context.Context, a *console.App, dir state.Dir, m client.Machine) (*console.Failure, error) {
	target, err := m.Target(m.Service)
	if err != nil {
		return nil, err
	}
	key, err := sshlink.LoadKey(dir.Path(state.DeviceKeyFile))
	if err != nil {
		return nil, err
	}
	lines := m.HostKeys
	if m.Service != wire.ServiceSSH {
		lines = m.SSHDKeys
	}
	o := doctor.Options{Dialer: a.Dialer(c.Connection), Target: target, User: m.User, Key: key, HTTP: plainHTTP(a)}
	for _, l := range lines {
		k, err := pairing.ParseKey(l)
		if err != nil {
			return nil, fmt.Errorf("a pinned host key of %q: %w", m.Name, err)
		}
		o.HostKeys = append(o.HostKeys, k)
	}
	if !a.JSON {
		a.Say("machine %q through relay %s, service %s", m.Name, m.Relay, serviceName(m.Service))
	}
	o.OnCheck = func(k doctor.Check) {
		if a.JSON {
			err = errors.Join(err, a.Emit(checkLine{Event: "check", Machine: m.Name, Layer: k.Layer, Status: k.Status,
				TookMs: float64(k.Took.Microseconds()) / 1000, Detail: k.Detail}))
			return
		}
		took := ""
		if k.Took > 0 {
			took = k.Took.Round(100 * time.Microsecond).String()
		}
		a.Say("  %-18s %-8s %9s  %s", k.Layer, k.Status, took, console.OneLine(k.Detail))
	}
	r := doctor.Run(ctx, o)
	if err != nil {
		return nil, err
	}
	if a.JSON {
		l := walkLine{Event: "machine", Machine: m.Name, Relay: m.Relay, OK: r.OK(), Cause: r.Cause, What: r.What, Do: r.Do, ClockSkewSeconds: r.Skew.Seconds()}
		if !r.Since.IsZero() {
			l.Since = &r.Since
		}
		if err := a.Emit(l); err != nil {
			return nil, err
		}
	} else {
		if r.Skew != 0 {
			a.Say("  this computer's clock is off by %s against the relay's: set it", r.Skew.Round(time.Second))
		}
		if r.OK() {
			a.Say("  every layer answers")
		} else if !r.Since.IsZero() {
			a.Say("  the relay sees this since %s", console.Ago(r.Since, time.Now()))
		}
	}
	if r.OK() {
		return nil, nil
	}
	f := &console.Failure{Code: console.ExitUnreachable, Err: fmt.Errorf("machine %q: %s: %s", m.Name, r.Cause, r.What), Hint: r.Do}
	if r.Denied {
		f.Code = console.ExitDenied
	}
	return f, nil
}

// plainHTTP asks the relay itself, through the proxy that everything else goes
// through too.
func plainHTTP(a *console.App) *http.Client {
	transport := &http.Transport{DisableKeepAlives: true}
	if a.Proxy != nil {
		through := a.Proxy.ProxyFunc()
		transport.Proxy = func(r *http.Request) (*url.URL, error) { return through(r.URL) }
	}
	return &http.Client{
		Transport: transport,
		// A portal's clock is not the relay's.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func serviceName(s wire.ServiceName) string {
	if s == "" {
		return "sshd"
	}
	return string(s)
}

// measure finds the idle limits of the path to each relay.
func (c *Doctor) measure(ctx context.Context, a *console.App, machines []client.Machine) error {
	if len(machines) == 0 {
		return &console.Failure{Code: console.ExitFailed, Err: errors.New("this computer is not paired with any machine, so there is no relay to measure the path to"),
			Hint: "run this on a computer that holdfast join has paired"}
	}
	var ages []time.Duration
	for _, age := range doctor.PathAges {
		if age <= c.Max {
			ages = append(ages, age)
		}
	}
	measured := map[string]bool{}
	for _, m := range machines {
		if measured[m.Relay] {
			continue
		}
		measured[m.Relay] = true
		target, err := m.Target(m.Service)
		if err != nil {
			return err
		}
		a.Note("measuring the path to relay %s: %d quiet connections, up to %s", m.Relay, 3*len(ages), ages[len(ages)-1])
		lines := make(chan doctor.Sample, 3*len(ages)) // one each, so that nobody waits
		r, err := doctor.MeasurePath(ctx, doctor.PathOptions{Dialer: a.Dialer(c.Connection), Target: target, Ages: ages,
			OnSample: func(s doctor.Sample) { lines <- s }})
		close(lines)
		if err != nil {
			return client.Diagnose(err, target)
		}
		if err := c.printPath(a, m.Relay, lines, r); err != nil {
			return err
		}
	}
	return nil
}

func (c *Doctor) printPath(a *console.App, relay string, samples <-chan doctor.Sample, r doctor.PathReport) error {
	if a.JSON {
		for s := range samples {
			l := sampleLine{Event: "sample", Relay: relay, Quiet: s.Quiet, AgeSeconds: s.Age.Seconds(), Alive: s.Alive}
			if s.Err != nil {
				l.Detail = s.Err.Error()
			}
			if err := a.Emit(l); err != nil {
				return err
			}
		}
		for _, q := range r.Limits {
			if err := a.Emit(pathLine{Event: "path", Relay: relay, Quiet: q.Quiet, SurvivedSeconds: q.Survived.Seconds(),
				DiedSeconds: q.Died.Seconds(), EndAnnounced: q.Told, KeepaliveSeconds: r.Keepalive.Seconds()}); err != nil {
				return err
			}
		}
		return nil
	}
	a.Say("path to relay %s", relay)
	for _, q := range r.Limits {
		switch {
		case q.Died == 0:
			a.Say("  %-24s survived %s, the longest that was measured", q.Quiet, q.Survived)
		case q.Told:
			a.Say("  %-24s closed after %s (survived %s); the end is announced", q.Quiet, q.Died, q.Survived)
		default:
			a.Say("  %-24s dead after %s (survived %s); nothing announces it, only a probe finds it", q.Quiet, q.Died, q.Survived)
		}
	}
	if r.Keepalive == 0 {
		a.Say("  no keepalive is needed on this path")
	} else {
		a.Say("  set --keepalive %s on this path", r.Keepalive)
	}
	return nil
}
