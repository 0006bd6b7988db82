package jsonapi

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"strings"
)

// maxKeyBytes bounds a public key's text: the longest accepted has about 350.
const maxKeyBytes = 1 << 10

// keyTypes are the types of device key that an agent's SSH server and OpenSSH
// both take.
var keyTypes = map[string]bool{
	"ssh-ed25519":                        true,
	"ecdsa-sha2-nistp256":                true,
	"ecdsa-sha2-nistp384":                true,
	"ecdsa-sha2-nistp521":                true,
	"sk-ssh-ed25519@openssh.com":         true,
	"sk-ecdsa-sha2-nistp256@openssh.com": true,
}

// parseDeviceKey checks the form of an SSH public key as authorized_keys writes
// it, and drops a comment. Whether the key itself is sound is the agent's
// question, in SSH: the relay only keeps the text and hands it on, so nothing
// may be in it that another line of a file could begin with.
func parseDeviceKey(s string) (string, error) {
	if len(s) > maxKeyBytes {
		return "", errors.New("is longer than a device's key can be")
	}
	if strings.ContainsAny(s, "\r\n\x00") {
		return "", errors.New("must be one line")
	}
	fields := strings.Fields(s)
	if len(fields) < 2 || !keyTypes[fields[0]] {
		return "", errors.New(`must be "ssh-ed25519 AAAA…" or an ecdsa key`)
	}
	blob, err := base64.StdEncoding.Strict().DecodeString(fields[1])
	if err != nil || len(blob) < 4 {
		return "", errors.New("is not base64")
	}
	n := int(binary.BigEndian.Uint32(blob))
	if n != len(fields[0]) || len(blob) <= 4+n || string(blob[4:4+n]) != fields[0] {
		return "", errors.New("does not hold the type that it says")
	}
	return fields[0] + " " + fields[1], nil
}
