package proc

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
)

// What was typed is told by what it was read for, and by nothing else.
func TestTypedMovesWithAnswers(t *testing.T) {
	cmd := exec.Command("bash", "-c", `read a; (sleep 0.1) & read b; sleep 300`)
	p, err := pty.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait(); p.Close() })
	facts := Facts{Process: Process{PID: cmd.Process.Pid, Group: cmd.Process.Pid}}
	reading := func() string {
		t.Helper()
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if typed := facts.Typed(""); strings.Contains(typed, "rchar") {
				return typed
			}
		}
		t.Fatal("it does not read")
		return ""
	}
	first := reading()
	if _, err := p.Write([]byte("y\b")); err != nil {
		t.Fatal(err)
	}
	if again := reading(); again != first {
		t.Errorf("from %q to %q by what was not entered", first, again)
	}
	if _, err := p.Write([]byte("y\n")); err != nil {
		t.Fatal(err)
	}
	second := first
	for end := time.Now().Add(time.Minute); second == first && time.Now().Before(end); {
		second = reading()
	}
	if second == first {
		t.Fatalf("%q after an answer too", second)
	}
	// A child that ends leaves its parent what it has read.
	for end := time.Now().Add(time.Minute); time.Now().Before(end) && children(t, facts.PID) > 0; {
		time.Sleep(5 * time.Millisecond)
	}
	if again := reading(); again != second {
		t.Errorf("from %q to %q by the end of a child", second, again)
	}
	if known := (Facts{Process: facts.Process, Tool: "claude", Known: true}).Typed(""); known != "" {
		t.Errorf("of a tool that reads on: %q", known)
	}
}

func children(t *testing.T, pid int) (n int) {
	t.Helper()
	for _, p := range snapshot() {
		if p.Parent == pid {
			n++
		}
	}
	return n
}
