package leftover

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

func TestLeftOverClientsAreSwept(t *testing.T) {
	state := t.TempDir()
	ours, other := exec.Command("sleep", "300"), exec.Command("sleep", "300")
	for _, c := range []*exec.Cmd{ours, other} {
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { c.Process.Kill(); c.Wait() }()
	}
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	n := New(state, slog.New(slog.DiscardHandler))
	n.Add(ours.Process.Pid)
	b, err := os.ReadFile(n.File())
	if err != nil {
		t.Fatal(err)
	}
	note := string(b) + fmt.Sprintf("%d 12345\n1 1\nx\n", other.Process.Pid)
	os.Remove(n.File())
	if err := os.WriteFile(filepath.Join(state, Prefix+strconv.Itoa(gone.Process.Pid)), []byte(note), 0o600); err != nil {
		t.Fatal(err)
	}
	n.Sweep()
	if err := ours.Wait(); err == nil {
		t.Error("the noted client ended well")
	}
	if syscall.Kill(other.Process.Pid, 0) != nil {
		t.Error("another process with a used id was ended")
	}
}
