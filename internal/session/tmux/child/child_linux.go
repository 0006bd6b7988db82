package child

import (
	"os/exec"
	"syscall"
)

// With has the system end a process with this one. A client of a server that
// hangs would wait for it for ever, with nobody who ends it. Linux means the
// thread that started it; threads of Go end only when a goroutine that locked one
// does, and nothing here does.
func With(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
