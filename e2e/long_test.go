package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// long keeps a test for `make test-long`.
func long(t *testing.T) {
	t.Helper()
	if os.Getenv("HOLDFAST_LONG") != "1" {
		t.Skip("a long test: make test-long")
	}
}

// TestLongGigabytes moves two gigabytes each way and looks at the memory of the
// process that holds relay and agent.
func TestLongGigabytes(t *testing.T) {
	long(t)
	const size = 2 << 30
	s := newSite(t, true)
	for _, host := range hosts {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
		defer cancel()
		cmd := s.ssh(ctx, host, "cat")
		sent, got := sha256.New(), sha256.New()
		cmd.Stdin = io.TeeReader(io.LimitReader(rand.NewChaCha8([32]byte{7}), size), sent)
		cmd.Stdout = got
		if r := runCmd(t, cmd); r.code != 0 || hex.EncodeToString(sent.Sum(nil)) != hex.EncodeToString(got.Sum(nil)) {
			t.Errorf("%s: hashes differ: %s", host, r)
		}
		if rss := residentKB(t, s.up.cmd.Process.Pid); rss > 200<<10 {
			t.Errorf("%s: relay and agent hold %d KB after two gigabytes", host, rss)
		}
	}
}

// residentKB is the resident memory of a process, 0 where /proc lacks.
func residentKB(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.SplitSeq(string(b), "\n") {
		var kb int
		if n, _ := fmt.Sscanf(line, "VmRSS: %d kB", &kb); n == 1 {
			return kb
		}
	}
	return 0
}

// TestLongQuiet leaves a session alone for longer than every limit of the
// heartbeat, and wants it, and the machine, still there.
func TestLongQuiet(t *testing.T) {
	long(t)
	s := newSplit(t)
	in, typed := io.Pipe()
	cmd := s.ssh(context.Background(), "mini.ssh", "cat")
	cmd.Stdin = in
	p := startProcess(t, cmd)
	say := func(line string) {
		t.Helper()
		if _, err := typed.Write([]byte(line + "\n")); err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-p.lines:
			if got != line {
				t.Fatalf("typed %q, got %q", line, got)
			}
		case <-time.After(limit):
			t.Fatalf("typed %q, got nothing: %s", line, p.output())
		}
	}
	say("before")
	time.Sleep(6 * time.Minute)
	say("after")
	if r := s.sshRun("mini", "echo in"); r.code != 0 {
		t.Errorf("after six quiet minutes: %s", r)
	}
	typed.Close()
	if strings.Contains(s.agentProc.output(), "reconnect") {
		t.Errorf("the agent had to reconnect on a healthy link: %s", s.agentProc.output())
	}
}

// TestLongNothingIsLeft opens and ends a thousand streams, some of them rudely,
// and wants the descriptors of the process back.
func TestLongNothingIsLeft(t *testing.T) {
	long(t)
	s := newSite(t, true)
	if r := s.sshRun("mini.ssh", "true"); r.code != 0 {
		t.Fatal(r)
	}
	descriptors := func() int {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.up.cmd.Process.Pid))
		if err != nil {
			t.Skip("no /proc here")
		}
		return len(entries)
	}
	before := descriptors()
	var wg sync.WaitGroup
	slots := make(chan struct{}, 40)
	for i := range 1000 {
		slots <- struct{}{}
		// Each ends with its command.
		wg.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			if i%3 == 0 { // killed at some moment
				var stop context.CancelFunc
				ctx, stop = context.WithTimeout(ctx, time.Duration(i)*time.Millisecond)
				defer stop()
				s.laptop.command(ctx, binary, s.laptop.hf("proxy", "mini")...).Run()
				return
			}
			if err := s.ssh(ctx, hosts[i%2], "true").Run(); err != nil {
				t.Errorf("stream %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	eventually(t, time.Minute, "descriptors are back", func() (bool, string) {
		n := descriptors()
		return n <= before+5, fmt.Sprintf("%d, before %d", n, before)
	})
}
