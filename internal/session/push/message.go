package push

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"

	"holdfast/internal/session"
)

// maxOpen is how many sessions a message names; of the others it says how many.
const maxOpen = 16

// message is what the device decrypts (docs/sessions.md).
type message struct {
	V int `json:"v"`
	// As is the name that the device gave this machine.
	As   string `json:"as"`
	Test bool   `json:"test,omitempty"`
	// Open names the sessions that wait, the newest first; the first New of them
	// are told of for the first time. More counts those that have no place.
	New  int      `json:"new,omitempty"`
	Open []string `json:"open,omitempty"`
	More int      `json:"more,omitempty"`
}

func (m message) encode() ([]byte, error) {
	b, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode a push message: %w", err)
	}
	return b, nil
}

// nameOf is the name of a session for one device: 16 characters that nobody can
// make or read who does not know the machine's name on that device.
func nameOf(as string, id session.ID) string { return mac(as, "session", string(id), 12) }

// topicOf names the messages of this machine for the push service, which keeps
// only the newest of each name for a device that is away. It reads this name.
func topicOf(as, what string) string { return mac(as, "topic", what, 24) }

func mac(key, use, text string, bytes int) string {
	h := hmac.New(sha256.New, []byte(key))
	h.Write([]byte(use + "\x00" + text))
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:bytes])
}
