package machines

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/internal/client"
	"holdfast/internal/client/feed"
	"holdfast/internal/wire"
)

// TestMergeShowsEveryMachineOnce puts a relay's list beside what is paired.
func TestMergeShowsEveryMachineOnce(t *testing.T) {
	known := []client.Machine{{Name: "desk", Machine: "mini"}, {Name: "gone", Machine: "gone"}}
	got := []wire.MachineInfo{{Machine: "mini", State: wire.StateConnected}, {Machine: "new", State: wire.StateOffline}}
	var lines []string
	for _, l := range merge("https://relay.example", known, got, nil) {
		lines = append(lines, l.Name+": "+l.words(time.Now()))
	}
	want := []string{
		"desk: connected, not proven",
		"gone: unknown: its relay does not know it any more",
		"new: offline  (pair: run holdfast pair there, holdfast join LINK here)",
	}
	if strings.Join(lines, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s", strings.Join(lines, "\n"))
	}
	for _, c := range []struct {
		err  error
		want string
	}{
		{&client.RelayError{Status: 401, Refusal: wire.RefusalTokenRevoked}, "not valid any more"},
		{os.ErrDeadlineExceeded, "does not answer"},
	} {
		for _, l := range merge("https://relay.example", known, nil, c.err) {
			if !strings.Contains(l.Error, c.want) || !l.Paired {
				t.Errorf("%v: %+v", c.err, l)
			}
		}
	}
}

// What is not the present says so, and since when; what nobody has heard is not
// called anything.
func TestStaleness(t *testing.T) {
	now := time.Now()
	f := &followed{relayAccount: relayAccount{"https://relay.example", "ann"}, known: []client.Machine{{Name: "desk", Machine: "mini"}}}
	if words := f.stale(now); words != "" {
		t.Errorf("before anything was heard: %q", words)
	}
	if l := f.lines(); len(l) != 1 || !strings.Contains(l[0].words(now), "unknown") {
		t.Errorf("lines %+v", l)
	}
	f.asked, f.state = true, feed.State{Err: errors.New("no route to host")}
	if words := f.stale(now); words != "relay https://relay.example has not answered yet: no route to host; trying again" {
		t.Errorf("words %q", words)
	}
	proven := now.Add(time.Hour - 12*time.Second) // the relay's clock is an hour ahead
	f.state = feed.State{
		Live: true, Heard: now, Ahead: time.Hour,
		Machines: []wire.FeedMachine{{MachineInfo: wire.MachineInfo{Machine: "mini", State: wire.StateReachable, ProvenAt: &proven}}},
	}
	if words := f.stale(now); words != "" {
		t.Errorf("words %q", words)
	}
	if words := f.lines()[0].words(now); words != "reachable, proven 12 s ago" {
		t.Errorf("words %q", words)
	}
	f.state.Live, f.state.Heard = false, now.Add(-40*time.Second)
	f.state.Err = &client.Failure{Hop: "relay", Err: errors.New("the path is dead"), Do: "check the network"}
	if words := f.stale(now); words != "relay https://relay.example was last heard 40 s ago, so this is stale: the path is dead; trying again" {
		t.Errorf("words %q", words)
	}
}

// The table is drawn over itself, and nothing that a terminal would scroll or
// break.
func TestScreen(t *testing.T) {
	var out strings.Builder
	s := &screen{out: &out, size: func() (int, int) { return 10, 5 }}
	draw := func(lines ...string) string {
		t.Helper()
		out.Reset()
		if err := s.draw(lines); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	if got := draw("a", "b"); got != "\r\x1b[Ja\nb\n" {
		t.Errorf("first %q", got)
	}
	if got := draw("0123456789", "0123456789x"); got != "\x1b[2A\r\x1b[J0123456789\n012345678…\n" {
		t.Errorf("second %q", got)
	}
	if got := draw("漢漢漢漢漢", "漢漢漢漢漢漢"); got != "\x1b[2A\r\x1b[J漢漢漢漢漢\n漢漢漢漢…\n" {
		t.Errorf("wide %q", got)
	}
	got := draw("1", "2", "3", "4", "5", "6")
	lines := strings.Split(strings.TrimSuffix(got, "\n"), "\n")
	if len(lines) != 4 || !slices.Equal(lines[1:3], []string{"2", "3"}) || !strings.Contains(lines[3], "(3 more") {
		t.Errorf("too many: %q", lines)
	}
}
