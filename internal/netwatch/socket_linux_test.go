package netwatch

import (
	"context"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// TestInterfaceComingUpIsSeen runs in a network namespace of its own, where
// bringing the loopback interface up disturbs nobody.
func TestInterfaceComingUpIsSeen(t *testing.T) {
	if os.Getenv("NETWATCH_IN_NAMESPACE") == "" {
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(exe, "-test.run=^TestInterfaceComingUpIsSeen$", "-test.v")
		cmd.Env = append(os.Environ(), "NETWATCH_IN_NAMESPACE=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		if os.Geteuid() != 0 {
			cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
			cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		}
		out, err := cmd.CombinedOutput()
		if err != nil && cmd.ProcessState == nil {
			if os.Getenv("HOLDFAST_TEST_ALL") != "" {
				t.Fatalf("no network namespace can be made here: %v", err)
			}
			t.Skipf("no network namespace can be made here: %v", err)
		}
		if err != nil {
			t.Fatalf("in the namespace: %v\n%s", err, out)
		}
		return
	}
	ip, err := exec.LookPath("ip")
	if err != nil {
		if os.Getenv("HOLDFAST_TEST_ALL") != "" {
			t.Fatal("the ip command is missing")
		}
		t.Skip("the ip command is missing")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	heard := make(chan Kind, 8)
	done := make(chan struct{})
	go func() {
		defer close(done)
		Watch(ctx, Options{}, func(k Kind) {
			select {
			case heard <- k:
			default:
			}
		})
	}()
	time.Sleep(100 * time.Millisecond) // real floor: Watch opens its socket
	if out, err := exec.Command(ip, "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Fatalf("ip link set lo up: %v: %s", err, out)
	}
	select {
	case k := <-heard:
		if k&Network == 0 {
			t.Errorf("heard %q, want a network change", k)
		}
	case <-ctx.Done():
		t.Error("an interface came up and nothing was heard")
	}
	cancel()
	<-done
}
