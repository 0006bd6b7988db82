package wire

import (
	"fmt"
	"time"
	"unicode"
	"unicode/utf8"
)

// ChannelAccount is the live channel of a device's account: its machines as they
// are and as they change, and the relay's notices. PathAccount is its path.
const (
	ChannelAccount = "account"
	PathAccount    = livePath + ChannelAccount
)

// PathNotices is GET ?unread=true&after=ID: Notices; POST /v1/notices/{id}/ack
// marks one read.
const (
	PathNotices = "/v1/notices"
	AckSuffix   = "/ack"
)

const (
	// MaxFeedBytes bounds one message of the relay on a live channel. A notice of
	// the longest text with every byte escaped has 24 KiB, a machine with the
	// fullest hello 13 KiB.
	MaxFeedBytes = 64 << 10
	// MaxPresenceBytes bounds an agent's presence before it is encoded: with base64
	// it leaves a third of a hello for services.
	MaxPresenceBytes = 2 << 10
	// MaxNoticeBytes bounds a notice's text: a screenful. Twice as much would not
	// be read, half would not hold what a move of the relay needs to say.
	MaxNoticeBytes = 4 << 10
)

// FeedOp says what a message of the account's channel holds.
type FeedOp string

// The messages of the account's channel.
const (
	// FeedMachines: Machines, in place of what was told of the same machines; with
	// Full in place of everything.
	FeedMachines FeedOp = "machines"
	// FeedNotices: Notices is every unread notice, the oldest first, as far as one
	// message holds them.
	FeedNotices FeedOp = "notices"
	// FeedAcknowledge, device to relay: the notice ID is read.
	FeedAcknowledge FeedOp = "acknowledge"
)

// FeedMessage is one message of the account's channel. Which fields count
// depends on Op.
type FeedMessage struct {
	Op FeedOp `json:"op"`
	// Now is the relay's clock: ages are counted from it, not from the device's.
	Now time.Time `json:"now,omitzero"`
	// Full says that what was told before is void.
	Full bool `json:"full,omitempty"`
	// More says that this state goes on in the next message.
	More     bool          `json:"more,omitempty"`
	Machines []FeedMachine `json:"machines,omitempty"`
	Notices  []NoticeInfo  `json:"notices,omitempty"`
	ID       string        `json:"id,omitempty"`
	// Error is a soft error of the channel.
	Error *FeedError `json:"error,omitempty"`
}

// FeedUnavailable is the name of the FeedError that says that the relay cannot
// read the state now: what was told is stale until machines come again.
const FeedUnavailable = "Unavailable"

// FeedError is an error frame.
type FeedError struct {
	Name string `json:"name"`
}

// FeedMachine is a machine as the account's channel tells it.
type FeedMachine struct {
	MachineInfo
	// Presence is what the agent put into its hello, untouched; the relay cannot
	// read it.
	Presence string `json:"presence,omitempty"`
}

// NoticeInfo is one notice of the relay to an account.
type NoticeInfo struct {
	ID   string    `json:"id"`
	At   time.Time `json:"at"`
	Text string    `json:"text"`
	// Read is when somebody of the account acknowledged it; nil for unread.
	Read *time.Time `json:"read,omitempty"`
}

// Notices is the answer of GET PathNotices, the oldest first; more of them come
// after the last id, ?after=ID.
type Notices struct {
	Notices []NoticeInfo `json:"notices"`
	More    bool         `json:"more,omitempty"`
}

// CheckNotice says what is wrong with the text of a notice, wrapping ErrSyntax:
// it is one paragraph that is safe to show anywhere.
func CheckNotice(text string) error {
	switch {
	case text == "":
		return fmt.Errorf("notice is empty: %w", ErrSyntax)
	case len(text) > MaxNoticeBytes:
		return fmt.Errorf("notice is longer than %d bytes: %w", MaxNoticeBytes, ErrSyntax)
	case !utf8.ValidString(text):
		return fmt.Errorf("notice is not UTF-8: %w", ErrSyntax)
	}
	for _, r := range text {
		// Control characters, and what turns the direction of text or ends a line.
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029' {
			return fmt.Errorf("notice has a control character (U+%04X): %w", r, ErrSyntax)
		}
	}
	return nil
}
