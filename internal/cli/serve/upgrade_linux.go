package serve

import (
	"os"
	"syscall"
)

// upgradeSignal asks a process with a relay to go on as a newer program.
var upgradeSignal os.Signal = syscall.SIGUSR2
