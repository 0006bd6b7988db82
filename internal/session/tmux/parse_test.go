package tmux

import (
	"strings"
	"testing"
)

func FuzzListing(f *testing.F) {
	f.Add([]byte("%1\t@1\t$0\t0\t0\t11\t99\t/dev/pts/1\t80\t24\t0\t0\t0\t0\t0\t0\t0\t\t\t1700000000\t0\t1700000000\tname\twin\ttitle\twith tab\nclient\t$0\t12\tattached,read-only\t1700000000\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		l := parseListing(in)
		for _, p := range l.Panes {
			if !ValidPane(p.ID) {
				t.Fatalf("pane %q", p.ID)
			}
		}
	})
}

func FuzzControlLines(f *testing.F) {
	f.Add([]byte("%begin 1 2 1\n%0\n%end 1 2 1\n%output %1 a\\033b\\134\n%extended-output %1 0 : x\n%pause %1\n%session-changed $0 x\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		c := &client{server: &Server{}, stdin: discard{}, panes: map[string]*flow{}, o: FollowOptions{Session: "$0", Output: func(string, []byte, bool) {}}}
		var p parser
		for line := range strings.SplitSeq(string(in), "\n") {
			if c.line(&p, []byte(line)) != nil {
				return
			}
		}
	})
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) Close() error                { return nil }

func TestUnescape(t *testing.T) {
	for in, want := range map[string]string{
		"plain": "plain", `\033[0m`: "\x1b[0m", `a\134b`: `a\b`, `\134033`: `\033`, `end\`: `end\`, `\08x`: `\08x`, "日\\015\\012": "日\r\n",
	} {
		if got := string(unescape([]byte(in))); got != want {
			t.Errorf("unescape(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestPaneInTwoSessionsIsListedWhereSomebodyLooks(t *testing.T) {
	row := func(session string) string {
		return "%1\t@1\t" + session + "\t0\t0\t11\t99\t/dev/pts/1\t80\t24\t0\t0\t0\t0\t0\t0\t0\t\t\t1700000000\t0\t1700000000\t77\t1600000000\tname" + session + "\twin\t\n"
	}
	l := parseListing([]byte(row("$0") + row("$1") + "client\t$1\t12\tattached,focused,UTF-8\t1700000000\nclient\t$0\t13\tattached,control-mode,ignore-size,read-only\t1\n"))
	if len(l.Panes) != 1 || l.Panes[0].Session != "$1" || len(l.Clients) != 2 || l.Clients[0].Watcher || !l.Clients[1].Watcher ||
		l.server != (Info{PID: 77, Started: 1600000000}) || l.Panes[0].WindowName != "win" {
		t.Errorf("%+v", l)
	}
}

func TestVersions(t *testing.T) {
	for version, want := range map[string]bool{"3.3a": true, "3.2": true, "next-3.6": true, "master": true, "3.1c": false, "2.9": false, "": false, "openbsd-7.4": true, "10.0": true} {
		if got := (Info{Version: version}).atLeast(3, 2); got != want {
			t.Errorf("%q is at least 3.2: %v, want %v", version, got, want)
		}
	}
}
