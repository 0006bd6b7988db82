//go:build !linux

package serve

import "os"

// upgradeSignal is nil where sockets cannot be handed over.
var upgradeSignal os.Signal
