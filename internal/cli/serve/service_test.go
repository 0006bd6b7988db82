package serve

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/kardianos/service"
)

// TestSystemdUnit installs into a home of its own, with a systemctl that only
// notes what it was asked.
func TestSystemdUnit(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("systemd is Linux's")
	}
	var system service.System
	for _, s := range service.AvailableSystems() {
		if s.String() == systemdName {
			system = s
		}
	}
	home, bin := t.TempDir(), t.TempDir()
	log := filepath.Join(home, "asked")
	if err := os.WriteFile(filepath.Join(bin, "systemctl"), []byte("#!/bin/sh\necho \"$@\" >> '"+log+"'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", home)
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	args := []string{"agent", "--state", `/a b/100%/"q"/$HOME`}
	for range 2 { // the second time in place of the first
		path, err := installService(system, filepath.Join(bin, "hold fast"), args)
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		unit := string(b)
		for _, want := range []string{
			"ExecStart=" + strings.ReplaceAll(filepath.Join(bin, "hold fast"), " ", `\x20`) + ` "agent" "--state" "/a b/100%%/\"q\"/$$HOME"`,
			"RestartPreventExitStatus=4\n", "Restart=always\n", "KillMode=process\n", "WantedBy=default.target\n",
		} {
			if !strings.Contains(unit, want) {
				t.Errorf("the unit lacks %s:\n%s", want, unit)
			}
		}
	}
	asked, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"enable --user holdfast.service", "daemon-reload --user", "start --user holdfast.service", "stop --user holdfast.service"} {
		if !strings.Contains(string(asked), want) {
			t.Errorf("systemctl was not asked to %s:\n%s", want, asked)
		}
	}
}
