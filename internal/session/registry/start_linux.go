package registry

import (
	"fmt"
	"os"
	"strings"
	"sync"
)

// Start is when a process started: clock ticks since the start of the system,
// the 22nd field of /proc/PID/stat (proc_pid_stat(5)); "" where there is none.
func Start(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	// The second field is the name in brackets and may hold anything.
	_, rest, ok := strings.Cut(string(b[strings.LastIndexByte(string(b), ')')+1:]), " ")
	if fields := strings.Fields(rest); ok && len(fields) > 19 {
		return fields[19]
	}
	return ""
}

// machineID names this computer (machine-id(5)); "" where it has no name.
var machineID = sync.OnceValue(func() string {
	b, err := os.ReadFile("/etc/machine-id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
})
