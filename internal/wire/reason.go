package wire

import (
	"strconv"
	"strings"
	"time"
)

// ReasonOffline is the reason that goes with CloseTryLater.
const ReasonOffline = "machine agent offline"

const (
	replacedPrefix = "replaced by instance "
	replacedOlder  = "replaced by a newer connection"
	restartPrefix  = "restart after="
)

// maxRestartAfter bounds the delay that a peer is believed: a typing mistake on
// the relay's side must not send its agents away for a day.
const maxRestartAfter = 10 * time.Minute

// ReplacedReason is the reason that goes with CloseReplaced: it names the
// instance that won. An empty winner is an older agent, which has no name.
func ReplacedReason(winner Instance) string {
	if winner == "" {
		return replacedOlder
	}
	return replacedPrefix + string(winner)
}

// ReplacedBy reads the winner out of the reason of a CloseReplaced. It is empty
// where the reason names none, which is "another" for every agent.
func ReplacedBy(reason string) Instance {
	rest, ok := strings.CutPrefix(reason, replacedPrefix)
	if !ok {
		return ""
	}
	in, err := ParseInstance(rest)
	if err != nil {
		return ""
	}
	return in
}

// RestartReason is the reason that goes with CloseRestart: come back after that
// delay. Negative counts as zero.
func RestartReason(after time.Duration) string {
	return restartPrefix + strconv.FormatInt(max(after, 0).Milliseconds(), 10)
}

// RestartAfter reads the delay out of the reason of a CloseRestart. It is false
// where the reason has none; a delay over ten minutes is cut to that.
func RestartAfter(reason string) (time.Duration, bool) {
	rest, ok := strings.CutPrefix(reason, restartPrefix)
	if !ok {
		return 0, false
	}
	ms, err := strconv.ParseUint(rest, 10, 32)
	if err != nil {
		return 0, false
	}
	return min(time.Duration(ms)*time.Millisecond, maxRestartAfter), true
}
