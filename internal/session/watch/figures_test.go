package watch

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/session"
)

// cpu is the time that this process and its ended children used.
func cpu(t testing.TB) time.Duration {
	t.Helper()
	total := time.Duration(0)
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		if err := syscall.Getrusage(who, &u); err != nil {
			t.Fatal(err)
		}
		total += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return total
}

// used is the time that a process used, by /proc.
func used(pid string) time.Duration {
	b, _ := os.ReadFile("/proc/" + pid + "/stat")
	_, rest, _ := strings.Cut(string(b), ") ")
	f := strings.Fields(rest)
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

// BenchmarkFiftyQuietPanes measures what the agent and the tmux server use while
// nothing happens in 50 panes of 50 sessions, each with a control client: one
// operation is a minute. From tmux 3.7 on the clients are processes, and measured
// too; before, they are this process.
//
//	go test ./internal/session/watch -run '^$' -bench FiftyQuietPanes -benchtime 1x
func BenchmarkFiftyQuietPanes(b *testing.B) {
	s := startServer(b, filepath.Join(place(b), "s"), "s0", shell)
	for i := 1; i < 50; i++ {
		s.run("new-session", "-d", "-s", "s"+strconv.Itoa(i), shell)
	}
	w, _ := start(b, Options{Sockets: []string{s.socket}, StateDir: b.TempDir()})
	eventually(b, "quiet", func() bool {
		idle := 0
		for _, x := range w.Sessions() {
			if x.Status.State == session.Idle {
				idle++
			}
		}
		return idle == 50 && len(strings.Split(s.run("list-clients"), "\n")) == 50
	})
	time.Sleep(5 * time.Second)
	server := s.run("display-message", "-p", "#{pid}")
	clients := slices.DeleteFunc(strings.Fields(s.run("list-clients", "-F", "#{client_pid}")), func(pid string) bool {
		return pid == strconv.Itoa(os.Getpid())
	})
	for b.Loop() {
		own, tmuxServer, tmuxClients := cpu(b), used(server), time.Duration(0)
		for _, c := range clients {
			tmuxClients -= used(c)
		}
		time.Sleep(time.Minute)
		for _, c := range clients {
			tmuxClients += used(c)
		}
		b.ReportMetric(100*(cpu(b)-own).Seconds()/60, "agent-%")
		b.ReportMetric(100*(used(server)-tmuxServer).Seconds()/60, "tmux-%")
		if len(clients) == 0 {
			continue
		}
		b.ReportMetric(100*tmuxClients.Seconds()/60, "clients-%")
		pss := 0
		for _, c := range clients {
			data, _ := os.ReadFile("/proc/" + c + "/smaps_rollup")
			for line := range strings.SplitSeq(string(data), "\n") {
				if rest, ok := strings.CutPrefix(line, "Pss:"); ok {
					n, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
					pss += n
				}
			}
		}
		b.ReportMetric(float64(pss)/float64(len(clients)), "KB/client")
	}
}

// BenchmarkStatusLatency measures from the moment at which a program writes OSC
// 7501, or is killed, or shows a prompt and rests, to the change at a
// subscriber.
//
//	go test ./internal/session/watch -run '^$' -bench StatusLatency -benchtime 1x
func BenchmarkStatusLatency(b *testing.B) {
	dir := place(b)
	s := startServer(b, filepath.Join(dir, "s"), "osc", "cat")
	const rounds = 40
	report := func(b *testing.B, took []time.Duration) {
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
		b.ReportMetric(float64(took[len(took)*95/100].Microseconds())/1000, "p95-ms")
		b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, "max-ms")
	}
	measure := func(b *testing.B, name, command string, wanted []session.State, act func(pane string, round int)) {
		pane := s.run("new-session", "-d", "-P", "-F", "#{pane_id}", "-s", name, command)
		w, _ := start(b, Options{Sockets: []string{s.socket}})
		_, changes, cancel := w.Subscribe()
		defer cancel()
		time.Sleep(2 * time.Second)
		for b.Loop() {
			var took []time.Duration
			for i := range rounds {
				want := wanted[i%len(wanted)]
				for len(changes) > 0 {
					<-changes
				}
				began := time.Now()
				act(pane, i)
				for c := range changes {
					if c.Session != nil && c.Session.Name == name && c.Session.Status.State == want {
						break
					}
					if time.Since(began) > 20*time.Second {
						b.Fatalf("round %d: no change to %s", i, want)
					}
				}
				took = append(took, time.Since(began))
				time.Sleep(100 * time.Millisecond)
			}
			report(b, took)
		}
	}
	b.Run("OSC7501", func(b *testing.B) {
		fifo := filepath.Join(dir, "fifo")
		if err := syscall.Mkfifo(fifo, 0o600); err != nil {
			b.Fatal(err)
		}
		hold, err := os.OpenFile(fifo, os.O_RDWR, 0)
		if err != nil {
			b.Fatal(err)
		}
		defer hold.Close()
		words := []string{"working", "blocked"}
		measure(b, "osc-l", "cat "+fifo, []session.State{session.Working, session.Waiting}, func(_ string, i int) {
			fmt.Fprintf(hold, "\x1b]7501;state=%s\a", words[i%2])
		})
	})
	b.Run("ProcessStartsAndEnds", func(b *testing.B) {
		measure(b, "proc-l", shell, []session.State{session.Working, session.Idle}, func(pane string, i int) {
			if i%2 == 0 {
				s.run("send-keys", "-t", pane, "sleep 1000", "Enter")
				return
			}
			s.run("send-keys", "-t", pane, "C-c")
		})
	})
	b.Run("ScreenRests", func(b *testing.B) {
		measure(b, "screen-l", shell, []session.State{session.Waiting, session.Idle}, func(pane string, i int) {
			if i%2 == 0 {
				s.run("send-keys", "-t", pane, "read -p 'Overwrite? [y/N] ' x", "Enter")
				return
			}
			s.run("send-keys", "-t", pane, "n", "Enter")
		})
	})
}
