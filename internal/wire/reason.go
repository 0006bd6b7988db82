package wire

import "strings"

// ReasonOffline is the reason that goes with CloseTryLater.
const ReasonOffline = "machine agent offline"

const (
	replacedPrefix = "replaced by instance "
	replacedOlder  = "replaced by a newer connection"
)

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
