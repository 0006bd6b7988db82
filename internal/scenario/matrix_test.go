package scenario

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"text/tabwriter"
	"time"

	"holdfast/internal/faultproxy"
	"holdfast/internal/memnet"
	"holdfast/internal/wire"
)

// link is the connection that a fault is put on.
type link string

const (
	control   link = "control"    // agent to relay, permanent
	deviceLeg link = "device leg" // device to relay, of a stream
	agentLeg  link = "agent leg"  // agent to relay, of the same stream
)

// moment is when the fault comes.
type moment string

const (
	duringDial    moment = "during dial"        // no TCP connection, or one that is refused
	beforeUpgrade moment = "before upgrade"     // before the first byte of the handshake
	inUpgrade     moment = "in the upgrade"     // after 10 of its bytes
	afterUpgrade  moment = "after upgrade"      // in the first frame: before hello
	afterHello    moment = "after hello"        // the relay has answered once
	midFrame      moment = "mid-frame"          // three bytes into the next frame
	idle          moment = "idle"               // quiet for 20 s; a stream for 15.5 s, 0.5 s after a pong
	typing        moment = "at a key"           // a person types into it
	bulkUp        moment = "bulk up"            // the sender of the leg pours
	bulkDown      moment = "bulk down"          // the leg's dialler is poured at
	readerStopped moment = "reader stopped"     // ssh is under Ctrl-Z, output waits
	slowMessage   moment = "long message, slow" // 1 MiB under way at 10 KB/s
	throughout    moment = "throughout"         // from the first byte on
)

// verdict is what becomes of the link.
type verdict string

const (
	kept     verdict = "kept"     // nobody gives it up
	fails    verdict = "fails"    // never open; the agent tries again
	replaced verdict = "replaced" // given up; the agent has a new one
	ends     verdict = "ends"     // the stream is over at both ends
)

// How a link is made to fail, by name.
var faults = map[string]func(faultproxy.Direction) faultproxy.Fault{
	"stall":        faultproxy.Stall,
	"cut":          faultproxy.Cut,
	"finish":       faultproxy.Finish,
	"corrupt":      func(d faultproxy.Direction) faultproxy.Fault { return faultproxy.Corrupt(d, 3) },
	"swap":         faultproxy.Swap,
	"answer-pings": faultproxy.AnswerPings,
	"delay 250ms":  func(d faultproxy.Direction) faultproxy.Fault { return faultproxy.Delay(d, 250*time.Millisecond) },
	"10 KB/s":      func(d faultproxy.Direction) faultproxy.Fault { return faultproxy.Trickle(d, 10_000) },
	"refuse":       func(faultproxy.Direction) faultproxy.Fault { return faultproxy.Refuse("") },
	"portal": func(faultproxy.Direction) faultproxy.Fault {
		return faultproxy.Refuse("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\nConnection: close\r\n\r\nlog in")
	},
	"reap 15s":     reaper(15*time.Second, faultproxy.AnyByte, false),
	"reap 15s FIN": reaper(15*time.Second, faultproxy.AnyByte, true),
	// The same path with the keepalive that doctor --path names for it.
	"reap 15s, keepalive 10s": reaper(15*time.Second, faultproxy.AnyByte, false),

	"reap 60s":   reaper(60*time.Second, faultproxy.AnyByte, false),
	"reap 60s v": reaper(60*time.Second, faultproxy.DownBytes, false),
	"black hole": nil, // no answer to the dial at all
	"none":       nil,
}

func reaper(limit time.Duration, counts faultproxy.Activity, fin bool) func(faultproxy.Direction) faultproxy.Fault {
	return func(faultproxy.Direction) faultproxy.Fault {
		return faultproxy.ReclaimIdle(faultproxy.Reaper{Limit: limit, Counts: counts, Fin: fin})
	}
}

const (
	up   = faultproxy.Up
	down = faultproxy.Down
	both = faultproxy.Both
)

// row is one line of the table: what happens on a link, and what must follow.
type row struct {
	link    link
	fault   string
	dirs    []faultproxy.Direction
	moments []moment
	verdict verdict
	// at is when the verdict falls, from the moment on; exact in virtual time.
	at time.Duration
	// far is when the other end of a stream is told, from the moment on; zero
	// is with the verdict. forEver: it cannot be told.
	far time.Duration
	// sees is part of what the person is shown: the agent's last error for a
	// control connection, the line of holdfast proxy for a stream.
	sees string
}

const forEver = time.Duration(1<<63 - 1)

var each = []faultproxy.Direction{up, down, both}

func one(d faultproxy.Direction) []faultproxy.Direction    { return []faultproxy.Direction{d} }
func two(d, e faultproxy.Direction) []faultproxy.Direction { return []faultproxy.Direction{d, e} }

// quiet is the rest of the 25 s where the last byte, a pong, came half a second
// before the fault.
const quiet = 24500 * time.Millisecond

// table is the scenario table. Its columns are explained in docs/liveness.md.
var table = []row{
	// The control connection: dialling and the handshake are bounded by 10 s.
	{control, "black hole", one(both), []moment{duringDial}, fails, 10 * time.Second, 0, "no answer within 10s"},
	{control, "refuse", one(both), []moment{duringDial}, fails, 0, 0, "reset"},
	{control, "portal", one(both), []moment{duringDial}, fails, 0, 0, "answered 200 with a web page"},
	{control, "stall", two(down, both), []moment{beforeUpgrade, inUpgrade}, fails, 10 * time.Second, 0, "no answer within 10s"},
	// The relay gives a request up at the same time; either is first.
	{control, "stall", one(up), []moment{beforeUpgrade, inUpgrade}, fails, 10 * time.Second, 0, ""},
	{control, "cut", two(up, down), []moment{beforeUpgrade, inUpgrade}, fails, 0, 0, ""},
	{control, "finish", two(up, down), []moment{beforeUpgrade, inUpgrade}, fails, 0, 0, ""},
	{control, "corrupt", one(down), []moment{inUpgrade}, fails, 10 * time.Second, 0, ""},
	// Open, and no answer yet: the TCP path is judged after 15 + 10 s.
	{control, "stall", each, []moment{afterUpgrade}, replaced, 25 * time.Second, 0, "probe timed out"},
	{control, "cut", two(up, down), []moment{afterUpgrade}, replaced, 0, 0, "1006"},
	{control, "finish", two(up, down), []moment{afterUpgrade}, replaced, 0, 0, ""},
	{control, "answer-pings", one(down), []moment{afterUpgrade}, replaced, 0, 0, "1006"},
	// An edge that never let the relay answer looks like a relay that predates
	// the pong: it is left alone, and shown as connected but not proven.
	{control, "answer-pings", one(up), []moment{afterUpgrade}, kept, 0, 0, "not proven"},
	// The relay has answered: 100 s after its last text frame.
	{control, "stall", each, []moment{afterHello}, replaced, 100 * time.Second, 0, "probe timed out"},
	{control, "stall", each, []moment{idle}, replaced, 80 * time.Second, 0, "probe timed out"},
	{control, "stall", two(up, down), []moment{midFrame}, replaced, 100 * time.Second, 0, "probe timed out"},
	{control, "answer-pings", one(up), []moment{afterHello}, replaced, 100 * time.Second, 0, "probe timed out"},
	{control, "answer-pings", one(up), []moment{idle}, replaced, 80 * time.Second, 0, "probe timed out"},
	{control, "answer-pings", one(down), []moment{afterHello, idle}, replaced, 0, 0, "1006"},
	{control, "cut", two(up, down), []moment{afterHello, idle}, replaced, 0, 0, "1006"},
	{control, "cut", two(up, down), []moment{midFrame}, replaced, 45 * time.Second, 0, "1006"},
	{control, "finish", two(up, down), []moment{afterHello, idle}, replaced, 0, 0, ""},
	{control, "finish", two(up, down), []moment{midFrame}, replaced, 45 * time.Second, 0, ""},
	// One heartbeat that cannot be read is no reason to disconnect.
	{control, "corrupt", one(down), []moment{midFrame}, kept, 0, 0, ""},
	{control, "swap", one(up), []moment{afterUpgrade}, kept, 0, 0, ""},
	{control, "reap 15s", one(both), []moment{throughout}, replaced, 100 * time.Second, 0, "probe timed out"},
	{control, "reap 15s FIN", one(both), []moment{throughout}, replaced, 15 * time.Second, 0, ""},
	{control, "reap 15s, keepalive 10s", one(both), []moment{throughout}, kept, 0, 0, ""},
	{control, "reap 60s", one(both), []moment{throughout}, kept, 0, 0, ""},
	{control, "reap 60s v", one(both), []moment{throughout}, kept, 0, 0, ""},
	{control, "delay 250ms", one(both), []moment{throughout}, kept, 0, 0, ""},
	{control, "10 KB/s", one(both), []moment{throughout}, kept, 0, 0, ""},

	// The device's leg of a stream: 25 s after its last byte, 5 s after a key.
	{deviceLeg, "black hole", one(both), []moment{duringDial}, fails, 10 * time.Second, 0, "no answer within 10s"},
	{deviceLeg, "refuse", one(both), []moment{duringDial}, fails, 0, 0, "reset"},
	{deviceLeg, "portal", one(both), []moment{duringDial}, fails, 0, 0, "captive portal"},
	{deviceLeg, "stall", two(down, both), []moment{beforeUpgrade, inUpgrade}, fails, 10 * time.Second, 0, "no answer within 10s"},
	{deviceLeg, "stall", one(up), []moment{beforeUpgrade, inUpgrade}, fails, 10 * time.Second, 0, ""},
	{deviceLeg, "cut", two(up, down), []moment{beforeUpgrade, inUpgrade}, fails, 0, 0, ""},
	{deviceLeg, "finish", two(up, down), []moment{beforeUpgrade, inUpgrade}, fails, 0, 0, ""},
	{deviceLeg, "stall", two(up, both), []moment{afterUpgrade}, ends, 5 * time.Second, 25 * time.Second, "typing probe timed out"},
	{deviceLeg, "stall", one(down), []moment{afterUpgrade, typing}, ends, 5 * time.Second, 0, "typing probe timed out"},
	// The relay hears nothing of the device's verdict, and has its own.
	{deviceLeg, "stall", two(up, both), []moment{typing}, ends, 5 * time.Second, 23 * time.Second, "typing probe timed out"},
	{deviceLeg, "stall", two(down, both), []moment{idle}, ends, quiet, quiet, "probe timed out"},
	{deviceLeg, "stall", one(up), []moment{idle}, ends, quiet, quiet, ""},
	// The next frame to the device is the relay's ping, at 15 s.
	{deviceLeg, "stall", one(both), []moment{midFrame}, ends, 40 * time.Second, 25 * time.Second, "probe timed out"},
	{deviceLeg, "stall", one(both), []moment{bulkDown}, ends, 25 * time.Second, 24 * time.Second, "probe timed out"},
	{deviceLeg, "stall", one(both), []moment{bulkUp}, ends, 24 * time.Second, 25 * time.Second, "probe timed out"},
	{deviceLeg, "stall", one(both), []moment{slowMessage}, ends, 20 * time.Second, 25 * time.Second, "probe timed out"},
	// Who has stopped reading judges nothing: 25 s after it reads again, which it
	// does after a minute. The relay judges meanwhile.
	{deviceLeg, "stall", one(both), []moment{readerStopped}, ends, 85 * time.Second, 20 * time.Second, "probe timed out"},
	{deviceLeg, "cut", two(up, down), []moment{afterUpgrade, idle, typing, midFrame, bulkDown, bulkUp, slowMessage}, ends, 0, 0, ""},
	{deviceLeg, "finish", two(up, down), []moment{afterUpgrade, idle, typing, midFrame, bulkDown, bulkUp}, ends, 0, 0, ""},
	{deviceLeg, "corrupt", one(up), []moment{midFrame}, kept, 0, 0, ""},
	// An edge that answers pings for its far side deceives the leg's judge. SSH's
	// own keep-alive ends such a session.
	{deviceLeg, "answer-pings", one(up), []moment{idle}, kept, 0, 0, ""},
	{deviceLeg, "answer-pings", one(down), []moment{idle}, ends, 0, forEver, ""},
	{deviceLeg, "none", one(both), []moment{idle, readerStopped, slowMessage}, kept, 0, 0, ""},
	{deviceLeg, "delay 250ms", one(both), []moment{idle, readerStopped, bulkDown, bulkUp}, kept, 0, 0, ""},
	{deviceLeg, "reap 60s", one(both), []moment{throughout}, kept, 0, 0, ""},
	{deviceLeg, "reap 15s, keepalive 10s", one(both), []moment{throughout}, kept, 0, 0, ""},

	// The agent's leg of a stream.
	{agentLeg, "refuse", one(both), []moment{duringDial}, fails, 0, 0, "could not open its data connection"},
	{agentLeg, "portal", one(both), []moment{duringDial}, fails, 0, 0, "could not open its data connection"},
	{agentLeg, "stall", each, []moment{beforeUpgrade, inUpgrade}, fails, 10 * time.Second, 0, ""},
	{agentLeg, "cut", two(up, down), []moment{beforeUpgrade}, fails, 0, 0, "could not open its data connection"},
	{agentLeg, "stall", one(up), []moment{afterUpgrade}, ends, 25 * time.Second, 0, "no sign of life"},
	{agentLeg, "stall", two(down, both), []moment{afterUpgrade}, ends, 25 * time.Second, 0, ""},
	{agentLeg, "stall", each, []moment{idle}, ends, quiet, quiet, ""},
	// The next frame to the relay is the agent's ping, at 15 s.
	{agentLeg, "stall", one(both), []moment{midFrame}, ends, 40 * time.Second, 25 * time.Second, "no sign of life"},
	{agentLeg, "stall", one(both), []moment{bulkUp}, ends, 25 * time.Second, 24 * time.Second, "no sign of life"},
	{agentLeg, "stall", one(both), []moment{bulkDown}, ends, 24*time.Second + 250*time.Millisecond, 25 * time.Second, "no sign of life"},
	{agentLeg, "cut", two(up, down), []moment{afterUpgrade, idle, midFrame, bulkUp, bulkDown}, ends, 0, 0, ""},
	{agentLeg, "finish", two(up, down), []moment{afterUpgrade, idle, midFrame, bulkUp, bulkDown}, ends, 0, 0, ""},
	{agentLeg, "answer-pings", one(up), []moment{idle}, ends, 0, forEver, "connection was lost"},
	{agentLeg, "answer-pings", one(down), []moment{idle}, kept, 0, 0, ""},
	{agentLeg, "none", one(both), []moment{readerStopped, slowMessage}, kept, 0, 0, ""},
	{agentLeg, "delay 250ms", one(both), []moment{idle, bulkUp, bulkDown}, kept, 0, 0, ""},
	{agentLeg, "reap 60s", one(both), []moment{throughout}, kept, 0, 0, ""},
	{agentLeg, "reap 15s, keepalive 10s", one(both), []moment{throughout}, kept, 0, 0, ""},
}

// cell is a row for one direction and one moment.
type cell struct {
	row
	dir    faultproxy.Direction
	moment moment
}

func (c cell) String() string {
	return fmt.Sprintf("%s, %s %s, %s", c.link, c.fault, c.dir, c.moment)
}

func cells() (out []cell) {
	for _, r := range table {
		for _, d := range r.dirs {
			for _, m := range r.moments {
				out = append(out, cell{r, d, m})
			}
		}
	}
	return out
}

// outcome is what a run of a cell saw.
type outcome struct {
	verdict verdict
	at, far time.Duration
	sees    string
}

// run plays the cell. watch is how long a link that is to be kept is looked at.
func (c cell) run(f floor, watch time.Duration) (outcome, error) {
	w, err := newWorld(f)
	if err != nil {
		return outcome{}, err
	}
	defer w.close()
	if c.link == control {
		return c.runControl(w, watch)
	}
	return c.runStream(w, watch)
}

// prepare arms the fault for the next connection through p, for the moments
// that are places in it.
func (c cell) prepare(w *world, p *faultproxy.Proxy) (armed bool) {
	makeFault := faults[c.fault]
	if makeFault == nil {
		return false
	}
	f := makeFault(c.dir)
	switch c.moment {
	case duringDial, throughout, beforeUpgrade:
	case inUpgrade:
		f = f.At(faultproxy.Byte(10))
	case afterUpgrade:
		switch c.fault {
		case "cut", "finish", "answer-pings":
			// One byte in, so that the answer to the upgrade has been read: a
			// reset would take it along.
			f = f.At(faultproxy.InFrame(1, 1))
		default:
			f = f.At(faultproxy.Frame(1))
		}
	default:
		return false
	}
	p.Arm(f)
	return true
}

// strike puts the fault into the newest link of p now.
func (c cell) strike(p *faultproxy.Proxy) error {
	makeFault := faults[c.fault]
	if makeFault == nil {
		return nil
	}
	links := p.Links()
	if len(links) == 0 {
		return errors.New("no link to put the fault into")
	}
	l := links[len(links)-1]
	for _, d := range []faultproxy.Direction{up, down} {
		if c.moment != midFrame {
			break
		}
		if c.dir&d != 0 {
			_, frames := l.Passed(d)
			at := faultproxy.InFrame(frames+1, 3)
			if c.fault == "corrupt" {
				at = faultproxy.InFrame(frames+1, 20) // past the header
			}
			l.Apply(makeFault(d).At(at))
		}
	}
	if c.moment != midFrame {
		l.Apply(makeFault(c.dir))
	}
	return nil
}

func (c cell) runControl(w *world, watch time.Duration) (outcome, error) {
	if strings.Contains(c.fault, "keepalive 10s") {
		w.agentOptions.Keepalive = 10 * time.Second
	}
	blackHole := &hole{through: w.DialContext}
	if c.fault == "black hole" {
		blackHole.shut(1)
	}
	w.agentOptions.DialContext = blackHole.DialContext
	armed := c.prepare(w, w.agentPath)
	began := time.Now()
	if err := w.startAgent(); err != nil {
		return outcome{}, err
	}
	if !armed && c.fault != "black hole" {
		if err := w.ready(); err != nil {
			return outcome{}, err
		}
		if c.moment == idle {
			time.Sleep(20 * time.Second)
		}
		began = time.Now()
		if err := c.strike(w.agentPath); err != nil {
			return outcome{}, err
		}
	}
	got := outcome{verdict: kept}
	var over []event
	for time.Since(began) < watch && len(over) == 0 {
		time.Sleep(w.step())
		over = w.events.since(began, lost)
	}
	if len(over) > 0 {
		got = outcome{verdict: replaced, at: over[0].at.Sub(began), sees: over[0].err}
		if first := w.events.since(time.Time{}, connected); len(first) == 0 || first[0].at.After(over[0].at) {
			got.verdict = fails
		}
		// Recovered by itself: the next attempt comes within a second.
		if err := w.waitUntil("the agent is back", patience, func() bool {
			return w.agent.Status().Proven && len(w.events.since(over[0].at, connected)) > 0
		}); err != nil {
			return got, err
		}
		back := w.events.since(over[0].at, connected)[0].at.Sub(over[0].at)
		if limit := time.Second + w.slack(); back > limit {
			return got, fmt.Errorf("back after %v, want within %v", back, limit)
		}
	} else if s := w.agent.Status(); !s.Proven {
		got.sees = "not proven"
		return got, nil // no dial arrives, and the relay knows nothing of it
	}
	return got, w.works()
}

// step is how often a test looks, where nothing tells it.
func (w *world) step() time.Duration {
	if w.virtual() {
		return time.Second
	}
	return 50 * time.Millisecond
}

// slack is what a loaded machine may add to a time.
func (w *world) slack() time.Duration {
	if w.virtual() {
		return 0
	}
	return 4 * time.Second
}

// hole swallows dials: they get no answer at all.
type hole struct {
	through func(ctx context.Context, network, addr string) (net.Conn, error)
	mu      sync.Mutex
	left    int
}

func (h *hole) shut(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.left = n
}

func (h *hole) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	h.mu.Lock()
	swallow := h.left > 0
	if swallow {
		h.left--
	}
	h.mu.Unlock()
	if swallow {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return h.through(ctx, network, addr)
}

func (c cell) runStream(w *world, watch time.Duration) (outcome, error) {
	if c.link == agentLeg && strings.Contains(c.fault, "keepalive 10s") {
		w.agentOptions.Keepalive = 10 * time.Second
	}
	if err := w.startAgent(); err != nil {
		return outcome{}, err
	}
	if err := w.ready(); err != nil {
		return outcome{}, err
	}
	path := w.devicePath
	if c.link == agentLeg {
		path = w.agentPath
	}
	armed := c.prepare(w, path)
	keepalive := time.Duration(0)
	if strings.Contains(c.fault, "keepalive 10s") {
		keepalive = 10 * time.Second
	}
	through := floor(w.floor)
	if c.fault == "black hole" {
		h := &hole{through: w.DialContext}
		h.shut(1)
		through = holed{w.floor, h}
	}
	w.floor, through = through, w.floor
	began := time.Now()
	s, err := w.openWith(context.Background(), keepalive)
	w.floor = through
	if err != nil {
		got := outcome{verdict: fails, at: time.Since(began), sees: err.Error()}
		got.far = got.at
		return got, w.works()
	}
	defer s.close()
	if !armed || c.moment == throughout {
		if err := c.setUp(w, s, path); err != nil {
			return outcome{}, fmt.Errorf("before the fault: %w", err)
		}
	}
	if !armed {
		began = time.Now()
		if err := c.strike(path); err != nil {
			return outcome{}, err
		}
		// An error says that the stream is over already, which observe looks at.
		switch c.moment {
		case typing:
			s.far.Write([]byte{'x'})
		case midFrame:
			s.far.Write(make([]byte, 4<<10)) // a paste, which is not typing
		}
	} else if c.moment == afterUpgrade {
		s.far.Write([]byte{echo, 'x'})
	}
	return c.observe(w, s, began, watch)
}

// holed is a floor with a hole in it.
type holed struct {
	floor
	hole *hole
}

func (h holed) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	return h.hole.DialContext(ctx, network, addr)
}

// setUp brings the stream to the cell's moment.
func (c cell) setUp(w *world, s *session, path *faultproxy.Proxy) error {
	first := byte(echo)
	switch c.moment {
	case bulkUp, slowMessage:
		first = sink
	case bulkDown, readerStopped:
		first = pour
	}
	if c.link == agentLeg {
		// For the agent's leg up is what the service sends.
		switch c.moment {
		case bulkUp:
			first = pour
		case bulkDown:
			first = sink
		}
	}
	if _, err := s.far.Write([]byte{first}); err != nil {
		return err
	}
	switch first {
	case echo:
		if err := s.echoed(patience); err != nil {
			return err
		}
		if c.moment == idle {
			time.Sleep(15500 * time.Millisecond)
		}
		if c.moment == typing {
			time.Sleep(2 * time.Second) // the quiet before a burst
		}
	case pour:
		if c.moment == readerStopped {
			time.Sleep(20 * time.Second)
			return nil
		}
		go io.Copy(io.Discard, s.far) // ends with the session
		time.Sleep(time.Second)
	case sink:
		if c.moment == slowMessage {
			links := path.Links()
			links[len(links)-1].Apply(faultproxy.Trickle(both, 10_000))
			go s.far.Write(make([]byte, 1<<20)) // ends with the session
			time.Sleep(20 * time.Second)
			return nil
		}
		go func() { // ends with the session
			buf := make([]byte, 16<<10)
			for {
				if _, err := s.far.Write(buf); err != nil {
					return
				}
				time.Sleep(pace())
			}
		}()
		time.Sleep(time.Second)
	}
	return nil
}

// observe waits for the verdict, and for what the other end is told.
func (c cell) observe(w *world, s *session, began time.Time, watch time.Duration) (outcome, error) {
	got := outcome{verdict: kept}
	if c.moment == readerStopped && c.verdict == ends {
		resume := time.AfterFunc(time.Minute, func() { io.Copy(io.Discard, s.far) }) // ends with the session
		defer resume.Stop()
	}
	if c.moment == bulkUp || c.moment == bulkDown {
		watch = min(watch, time.Minute) // an hour of it would be gigabytes
	}
	timer := time.NewTimer(watch)
	defer timer.Stop()
	select {
	case <-s.done:
	case <-timer.C:
		return got, c.stillWorks(w, s)
	}
	got = outcome{verdict: ends, at: s.ended.Sub(began), sees: s.says(w.target()), far: forEver}
	v := w.sshd.last()
	if v == nil {
		if c.verdict == fails {
			got.verdict = fails
		}
		got.far = got.at
		return got, w.works()
	}
	err := w.waitUntil("the service is told", cmp.Or(min(c.far, time.Minute), time.Minute), func() bool {
		_, over := v.end()
		return over
	})
	if at, over := v.end(); over {
		got.far = at.Sub(began)
	} else if c.far != forEver {
		return got, err
	}
	if c.verdict == fails {
		got.verdict = fails
	}
	return got, w.works()
}

// stillWorks checks a stream that was kept.
func (c cell) stillWorks(w *world, s *session) error {
	if v := w.sshd.last(); v == nil {
		return errors.New("the service was never reached")
	} else if at, over := v.end(); over && c.fault != "answer-pings" {
		return fmt.Errorf("the service's end is over since %v", at)
	}
	switch {
	case c.fault == "answer-pings":
		return nil // kept for what the edge says; SSH's own keep-alive ends it
	case c.fault == "corrupt":
		return nil // its bytes are wrong, which SSH finds at once
	case c.moment == bulkUp || c.moment == bulkDown:
		return nil // the copy goes on, or the verdict would be another
	case c.moment == readerStopped:
		// The reader goes on, and everything is still there, in order.
		s.far.SetReadDeadline(time.Now().Add(patience))
		buf := make([]byte, 1<<20)
		if _, err := io.ReadFull(s.far, buf); err != nil {
			return fmt.Errorf("after the reader went on: %w", err)
		}
		for i, b := range buf {
			if b != byte(i%(16<<10)) {
				return fmt.Errorf("byte %d is %d", i, b)
			}
		}
		return nil
	case c.moment == slowMessage:
		want := int64(1 << 20)
		if !w.virtual() {
			want = 300_000 // 28 s at 10 KB/s and the 20 s before
		}
		if n := w.sshd.last().bytes(); n < want {
			return fmt.Errorf("%d bytes of a slow message have come, want %d", n, want)
		}
		return nil
	}
	return s.echoed(patience)
}

// check compares with what the table says.
func (c cell) check(got outcome, slack time.Duration, virtual bool) (problems []string) {
	if got.verdict != c.verdict {
		return []string{fmt.Sprintf("%s after %v (%q), want %s", got.verdict, got.at, got.sees, c.verdict)}
	}
	within := func(what string, got, want time.Duration) {
		early := want
		if !virtual {
			early = max(0, want-2*time.Second) // a later last byte before the fault
		}
		if got < early-exact || got > want+slack+exact {
			problems = append(problems, fmt.Sprintf("%s after %v, want %v", what, got, want))
		}
	}
	if c.verdict != kept {
		within(string(c.verdict), got.at, c.at)
	}
	if c.link != control && c.verdict == ends {
		switch far := cmp.Or(c.far, c.at); {
		case far == forEver && got.far != forEver:
			problems = append(problems, fmt.Sprintf("the other end was told after %v, and could not know", got.far))
		case far != forEver:
			within("the other end was told", got.far, far)
		}
	}
	if !strings.Contains(got.sees, c.sees) {
		problems = append(problems, fmt.Sprintf("the person sees %q, want %q", got.sees, c.sees))
	}
	return problems
}

// exact is what virtual times may differ by: a queue is emptied in pieces.
const exact = 50 * time.Millisecond

// results are what printMatrix prints.
var results struct {
	mu   sync.Mutex
	seen map[string][2]*outcome // in memory, on loopback
}

func (c cell) note(floor int, got outcome) {
	results.mu.Lock()
	defer results.mu.Unlock()
	if results.seen == nil {
		results.seen = make(map[string][2]*outcome)
	}
	r := results.seen[c.String()]
	r[floor] = &got
	results.seen[c.String()] = r
}

func TestMatrixInMemory(t *testing.T) {
	for _, c := range cells() {
		t.Run(c.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				watch := 10 * time.Minute // 24 times as long as a data connection is judged
				if c.moment == readerStopped {
					watch = time.Hour
				}
				got, err := c.run(inMemory{memnet.New()}, watch)
				c.note(0, got)
				if err != nil {
					t.Errorf("%v (%+v)", err, got)
				}
				for _, p := range c.check(got, 0, true) {
					t.Error(p)
				}
			})
		})
	}
}

// On loopback every cell runs at the same time, since they only wait. A link
// that is to be kept is looked at for longer than a data connection is judged;
// verdicts that take longer than half a minute are left to the long tests.
func TestMatrixOnLoopback(t *testing.T) {
	if !long() && os.Getenv("HOLDFAST_MATRIX") == "" {
		t.Skip("real time beside other packages' tests and the race detector says little: make matrix, or HOLDFAST_LONG=1")
	}
	watch := 28 * time.Second
	if long() {
		watch = 2 * time.Minute
	}
	type report struct {
		cell
		problems []string
	}
	list := cells()
	reports := make([]report, len(list))
	var wait sync.WaitGroup
	places := make(chan struct{}, 150) // about 25 descriptors each
	for i, c := range list {
		if !long() && (c.at > 30*time.Second || c.moment == slowMessage || c.link == control && c.moment == midFrame) {
			continue
		}
		wait.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			limit := watch
			if c.verdict != kept {
				limit = max(watch, c.at+10*time.Second)
			}
			got, err := c.run(&onLoopback{}, limit)
			c.note(1, got)
			reports[i] = report{c, c.check(got, 4*time.Second, false)}
			if err != nil {
				reports[i].problems = append(reports[i].problems, err.Error())
			}
		})
	}
	wait.Wait()
	for _, r := range reports {
		for _, p := range r.problems {
			t.Errorf("%s: %s", r.cell, p)
		}
	}
}

// printMatrix prints the table with what was seen, if HOLDFAST_MATRIX is set.
func printMatrix(out io.Writer) {
	if os.Getenv("HOLDFAST_MATRIX") == "" || len(results.seen) == 0 {
		return
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "link\tfault\tdirection\tmoment\tverdict\tafter\tin memory\ton loopback\tthe person sees")
	list := cells()
	slices.SortStableFunc(list, func(a, b cell) int { return cmp.Compare(a.link, b.link) })
	for _, c := range list {
		seen := results.seen[c.String()]
		after := "at once"
		switch {
		case c.verdict == kept:
			after = "-"
		case c.at > 0:
			after = c.at.String()
		}
		sees := c.sees
		for _, o := range seen {
			if o != nil && o.sees != "" {
				sees = o.sees
				break
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", c.link, c.fault, c.dir, c.moment, c.verdict, after,
			show(seen[0]), show(seen[1]), wire.CleanReason(sees))
	}
	w.Flush()
}

func show(o *outcome) string {
	switch {
	case o == nil:
		return "not run"
	case o.verdict == kept:
		return "kept"
	}
	return string(o.verdict) + " " + o.at.Round(10*time.Millisecond).String()
}
