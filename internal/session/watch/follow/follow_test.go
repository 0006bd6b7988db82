package follow

import (
	"os/exec"
	"testing"
	"time"

	"holdfast/internal/session/proc"
)

// A server that is about to end is not one whose socket was deleted.
func TestOutlives(t *testing.T) {
	for _, c := range []struct {
		sleeps string
		within time.Duration
		want   bool
	}{
		{"0.2", time.Minute, false},
		{"600", 100 * time.Millisecond, true},
	} {
		cmd := exec.Command("sleep", c.sleeps)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		p, err := proc.Read(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		if got := outlives(t.Context(), p.PID, p.Start, c.within); got != c.want {
			t.Errorf("sleep %s: %v", c.sleeps, got)
		}
	}
}
