package wire

import (
	"fmt"
	"time"
)

// PathProbe is the live channel by which a device measures a path: the relay
// sends nothing on it unless asked, and answers {"op":"ping"} at once.
const PathProbe = livePath + ChannelPath

// ChannelPath is the name of that channel.
const ChannelPath = "path"

// PathProbeNoise is a message that the relay reads and does not answer.
const PathProbeNoise = `{"op":"noise"}`

// PathProbeTicks asks the relay to send {"op":"tick"} this often.
func PathProbeTicks(every time.Duration) string {
	return fmt.Sprintf(`{"op":"ticks","everyMs":%d}`, every.Milliseconds())
}
