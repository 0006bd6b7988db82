package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// trickle takes 64 KB a second until it is let go, then everything. It hashes
// what it takes.
type trickle struct {
	hash  hash.Hash
	free  chan struct{} // closed: take everything
	taken atomic.Int64
}

func (r *trickle) Write(p []byte) (int, error) {
	const step = 8 << 10 // eight of them a second
	n := 0
	for n < len(p) {
		piece := p[n:min(len(p), n+step)]
		select {
		case <-r.free:
			piece = p[n:]
		case <-time.After(time.Second / 8):
		}
		r.hash.Write(piece)
		n += len(piece)
		r.taken.Add(int64(len(piece)))
	}
	return n, nil
}

// TestSlowReaderCostsFixedMemory gives 100 MB to a reader of 64 KB a second.
// Whatever it has not read waits in the file, not in relay or agent; and what it
// reads in the end is what was sent. The long test reads all of it so slowly.
func TestSlowReaderCostsFixedMemory(t *testing.T) {
	const size = 100 << 20
	slow := 5 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), 45*time.Minute)
	defer cancel()
	if os.Getenv("HOLDFAST_LONG") == "1" {
		slow = size / (64 << 10) * time.Second
	}
	s := newSplit(t)
	source, want := blob(t, s.machine.home, size)
	for _, host := range hosts {
		t.Run(host, func(t *testing.T) {
			// What one stream makes once for all is made now.
			if r := s.sshRun(host, "head -c 10000000 '"+source+"' >/dev/null"); r.code != 0 {
				t.Fatal(r)
			}
			out := &trickle{hash: sha256.New(), free: make(chan struct{})}
			cmd := s.ssh(ctx, host, "cat '"+source+"'")
			cmd.Stdout = out
			done := make(chan result, 1)
			// Ends with the command, which ctx ends at the latest; the test waits.
			go func() { done <- runCmd(t, cmd) }()
			eventually(t, 60*time.Second, "the transfer has begun", func() (bool, string) {
				return out.taken.Load() > 100<<10, fmt.Sprint(out.taken.Load())
			})
			relay, agent := residentKB(t, s.relayProc.cmd.Process.Pid), residentKB(t, s.agentProc.cmd.Process.Pid)
			for end := time.Now().Add(slow); time.Now().Before(end) && len(done) == 0; time.Sleep(250 * time.Millisecond) {
				// The kernel's buffers are not in it; the pump's chunk, SSH's window and
				// what the collector has not freed yet are.
				if now := residentKB(t, s.relayProc.cmd.Process.Pid); now > relay+4<<10 {
					t.Fatalf("the relay grew from %d to %d KB while %d bytes were read", relay, now, out.taken.Load())
				}
				if now := residentKB(t, s.agentProc.cmd.Process.Pid); now > agent+12<<10 {
					t.Fatalf("the agent grew from %d to %d KB while %d bytes were read", agent, now, out.taken.Load())
				}
			}
			if n := out.taken.Load(); n > int64(slow/time.Second+8)*(64<<10)+1<<20 {
				t.Errorf("the slow reader got %d bytes in %v", n, slow)
			}
			close(out.free)
			if r := <-done; r.code != 0 || hex.EncodeToString(out.hash.Sum(nil)) != want {
				t.Errorf("after a slow start: %d bytes, another hash: %s", out.taken.Load(), r)
			}
		})
	}
}

// streams counts the open streams of devices, as token list shows them.
func (s *split) streams() (n float64) {
	s.laptop.t.Helper()
	for _, token := range jsonLines(s.laptop.t, s.relay.must("token", "list", "--json").stdout) {
		if k, ok := token["streams"].(float64); ok && token["kind"] == "device" {
			n += k
		}
	}
	return n
}

// TestStoppedEndsUnderLoad stops the process at either end of a stream that is
// copying, as kill -STOP does: for a moment, which costs nothing, and for good,
// after which the other end is told and the relay keeps nothing.
func TestStoppedEndsUnderLoad(t *testing.T) {
	const size = 64 << 20
	start := func(t *testing.T) (s *split, cmd *exec.Cmd, out *trickle, want string) {
		s = newSplit(t)
		var source string
		source, want = blob(t, s.machine.home, size)
		out = &trickle{hash: sha256.New(), free: make(chan struct{})}
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		t.Cleanup(cancel)
		cmd = s.ssh(ctx, "mini.ssh", "cat '"+source+"'")
		cmd.Stdout = out
		return s, cmd, out, want
	}
	begun := func(t *testing.T, out *trickle) {
		eventually(t, 60*time.Second, "the transfer has begun", func() (bool, string) {
			return out.taken.Load() > 100<<10, fmt.Sprint(out.taken.Load())
		})
	}
	t.Run("the agent for a moment", func(t *testing.T) {
		t.Parallel()
		s, cmd, out, want := start(t)
		done := make(chan result, 1)
		go func() { done <- runCmd(t, cmd) }() // ends with the command; the test waits
		begun(t, out)
		s.agentProc.cmd.Process.Signal(syscall.SIGSTOP)
		close(out.free)
		time.Sleep(6 * time.Second)
		s.agentProc.cmd.Process.Signal(syscall.SIGCONT)
		if r := <-done; r.code != 0 || hex.EncodeToString(out.hash.Sum(nil)) != want {
			t.Errorf("%d bytes, another hash: %s", out.taken.Load(), r)
		}
	})
	t.Run("the agent for good", func(t *testing.T) {
		t.Parallel()
		s, cmd, out, _ := start(t)
		done := make(chan result, 1)
		go func() { done <- runCmd(t, cmd) }() // ends with the command; the test waits
		begun(t, out)
		s.agentProc.cmd.Process.Signal(syscall.SIGSTOP)
		t.Cleanup(func() { s.agentProc.cmd.Process.Signal(syscall.SIGCONT) })
		close(out.free)
		r := <-done
		if r.code != 255 || r.took > time.Minute {
			t.Errorf("ssh to a stopped agent: %s", r)
		}
		eventually(t, 30*time.Second, "the relay has no stream left", func() (bool, string) {
			n := s.streams()
			return n == 0, fmt.Sprint(n)
		})
		s.agentProc.cmd.Process.Signal(syscall.SIGCONT)
		eventually(t, 60*time.Second, "the agent serves again", func() (bool, string) {
			r := s.sshRun("mini.ssh", "echo back")
			return r.code == 0, r.String()
		})
	})
	t.Run("the device for good", func(t *testing.T) {
		t.Parallel()
		s, cmd, out, _ := start(t)
		// ssh and the proxy that it starts, together.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		done := make(chan result, 1)
		go func() { done <- runCmd(t, cmd) }() // ends with the command; the test waits
		begun(t, out)
		if n := s.streams(); n != 1 {
			t.Fatalf("%v streams are open", n)
		}
		signal := func(sig syscall.Signal) { syscall.Kill(-cmd.Process.Pid, sig) }
		signal(syscall.SIGSTOP)
		t.Cleanup(func() { signal(syscall.SIGKILL) })
		eventually(t, time.Minute, "the relay has no stream left", func() (bool, string) {
			n := s.streams()
			return n == 0, fmt.Sprint(n)
		})
		signal(syscall.SIGCONT)
		close(out.free)
		if r := <-done; r.code != 255 {
			t.Errorf("ssh whose stream had been ended: %s", r)
		}
		s.agentProc.running()
		s.relayProc.running()
	})
}
