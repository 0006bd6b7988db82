package e2e

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// screenOf starts `holdfast sessions --watch` in a terminal of its own, which is
// a pane of a tmux server that the list leaves out of sight by its name.
func (d *desk) screenOf(args ...string) *pane {
	d.t.Helper()
	words := append([]string{binary, "sessions", "--watch", "--state", d.state}, args...)
	for i, w := range words {
		words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	p := d.run(filepath.Join(d.home, "terminal"), "terminal", nil, "sh", "-c", strings.Join(words, " ")+`; echo "ended with $?"`)
	p.shows("q quit")
	return p
}

// becomes waits until the screen is as wanted.
func (p *pane) becomes(what string, good func(lines []string) bool) []string {
	p.d.t.Helper()
	var lines []string
	for start := time.Now(); time.Since(start) < patience; time.Sleep(50 * time.Millisecond) {
		if lines = strings.Split(p.screen(), "\n"); good(lines) {
			return lines
		}
	}
	p.d.t.Fatalf("the screen is not: %s:\n%s", what, strings.Join(lines, "\n"))
	return nil
}

func lineWith(lines []string, text string) int {
	for i, l := range lines {
		if strings.Contains(l, text) {
			return i
		}
	}
	return -1
}

// choose moves to the row of a session.
func (p *pane) choose(name string) {
	p.d.t.Helper()
	where := func() (chosen, at int) {
		lines := strings.Split(p.screen(), "\n")
		// A row of another session may hold the name in what it says.
		return slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, ">") }), lineWith(lines, "  "+name+"  ")
	}
	for start := time.Now(); time.Since(start) < patience; {
		chosen, at := where()
		switch {
		case at < 0 || chosen < 0: // not drawn yet
			time.Sleep(50 * time.Millisecond)
			continue
		case at == chosen:
			return
		case at > chosen:
			p.keys("Down")
		default:
			p.keys("Up")
		}
		// The next key waits until this one shows: it must not be gone past.
		for range 40 {
			if now, _ := where(); now != chosen {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	p.d.t.Fatalf("%s cannot be chosen:\n%s", name, p.screen())
}

func TestTheListAsAScreen(t *testing.T) {
	d := newDesk(t)
	shell := []string{"env", "PS1=$ ", "bash", "--norc", "--noprofile", "-i"}
	work := d.run(filepath.Join(d.home, "t"), "工作 🙂", nil, shell...)
	later := d.run(filepath.Join(d.home, "t"), "later", nil, shell...)
	later.untilIs("idle")
	work.untilIs("idle")
	screen := d.screenOf("--local")
	screen.becomes("a list of both", func(l []string) bool { return lineWith(l, "工作 🙂") > 0 && lineWith(l, "later") > 0 })

	d.part("what begins to wait goes to the top", func(t *testing.T) {
		later.keys("read -rp 'Overwrite notes.md? [y/N] ' a; echo \"it was <$a>\" >answer.txt", "Enter")
		lines := screen.becomes("later waits above", func(l []string) bool {
			at := lineWith(l, "later")
			return at > 0 && at < lineWith(l, "工作 🙂") && strings.Contains(l[at], "waiting: question")
		})
		at := lineWith(lines, "later")
		if !strings.Contains(lines[at], "Overwrite notes.md?") || strings.Contains(lines[0], " 0 waiting") {
			t.Errorf("the list:\n%s", strings.Join(lines[:at+1], "\n"))
		}
		// Whatever else runs on this computer: what waits is above the rest.
		for _, line := range lines[1:at] {
			if !strings.Contains(line, "waiting") {
				t.Errorf("above what waits stands %q", line)
			}
		}
	})
	d.part("its dialog is answered there", func(t *testing.T) {
		screen.choose("later")
		screen.keys("y")
		screen.shows("esc leaves")
		screen.keys("y")
		d.exists("answer.txt")
		screen.becomes("it does not wait any more", func(l []string) bool {
			at := lineWith(l, "later")
			return at > 0 && !strings.Contains(l[at], "waiting")
		})
	})
	d.part("a reply", func(t *testing.T) {
		screen.choose("later")
		screen.keys("r")
		screen.shows("reply to")
		screen.keys("echo", "Space", "日本語", "Enter")
		later.shows("\n日本語")
		screen.shows("accepted")
	})
	d.part("a terminal, and back", func(t *testing.T) {
		// Somebody sits at the desktop, too.
		d.run(screen.socket, "desktop", nil, "env", "-u", "TMUX", d.tmux, "-u", "-S", work.socket, "attach-session", "-t", "=工作 🙂:")
		work.until("somebody else who looks", func(paneLine) bool {
			return strings.Contains(work.do("list-clients", "-F", "#{client_tty} #{session_name}"), "/dev/")
		})
		screen.choose("工作 🙂")
		before := work.do("display-message", "-p", "-t", "=工作 🙂:", "#{window_width}x#{window_height}")
		screen.keys("a")
		screen.becomes("the session's own screen", func(l []string) bool { return l[0] == "$" && lineWith(l, "q quit") < 0 })
		screen.keys("echo typed-$((40+2))", "Enter")
		screen.shows("typed-42")
		work.shows("typed-42")
		// A terminal of another size leaves the session's as it is.
		screen.do("resize-window", "-t", "=terminal:", "-x", "70", "-y", "20")
		screen.shows("typed-42")
		if after := work.do("display-message", "-p", "-t", "=工作 🙂:", "#{window_width}x#{window_height}"); after != before || !strings.HasPrefix(after, "100x") {
			t.Errorf("attaching changed the size from %s to %s", before, after)
		}
		screen.keys("C-b", "d")
		lines := screen.becomes("the list again, as wide as the terminal", func(l []string) bool {
			return lineWith(l, "q quit") == 19 || lineWith(l, "enter show") == 19
		})
		if lineWith(lines, "工作 🙂") < 0 {
			t.Errorf("the list:\n%s", strings.Join(lines, "\n"))
		}
	})
	d.part("other sizes", func(t *testing.T) {
		screen.do("resize-window", "-t", "=terminal:", "-x", "34", "-y", "8")
		screen.becomes("the list, narrow", func(l []string) bool {
			return strings.Contains(l[0], "sessions") && lineWith(l, "…") > 0 && lineWith(l, "enter show") == 7
		})
		screen.do("resize-window", "-t", "=terminal:", "-x", "140", "-y", "30")
		screen.becomes("the list, wide", func(l []string) bool { return lineWith(l, "q quit") == 29 && lineWith(l, "later") > 0 })
	})
	d.part("a session that ends leaves", func(t *testing.T) {
		later.do("kill-session", "-t", "=later")
		screen.becomes("the list without it", func(l []string) bool { return lineWith(l, "later") < 0 && lineWith(l, "工作 🙂") > 0 })
	})
	d.part("the end", func(t *testing.T) {
		screen.keys("q")
		screen.shows("ended with 0")
	})
}
