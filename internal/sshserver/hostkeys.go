package sshserver

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"golang.org/x/crypto/ssh"

	"holdfast/internal/pairing"
	"holdfast/internal/sshlink"
	"holdfast/internal/state"
)

// hostKeyFiles are the host keys by file name, best type first.
var hostKeyFiles = []struct{ name, kind string }{
	{state.HostEd25519, pairing.TypeEd25519},
	{state.HostECDSA, pairing.TypeP256},
}

// nextSuffix marks a key that will take the place of the one in use. It is
// announced and proved to connected devices, so that they pin it, and not used
// until an administrator renames the file.
const nextSuffix = ".next"

// HostKeys are the machine's identity: an ed25519 and an ecdsa key in use, and
// any that will follow them.
type HostKeys struct {
	inUse []*sshlink.Key
	next  []*sshlink.Key
}

// LoadOrCreateHostKeys reads the host keys of a state directory and makes those
// that are missing (OpenSSH PEM, 0600). A key that is there and cannot be read
// is an error: a new one in its place would look like an attack to each device.
func LoadOrCreateHostKeys(dir string) (*HostKeys, error) {
	h := &HostKeys{}
	for _, f := range hostKeyFiles {
		path := filepath.Join(dir, f.name)
		k, err := sshlink.LoadOrCreateKey(path, f.kind)
		if err != nil {
			return nil, fmt.Errorf("host key: %w", err)
		}
		h.inUse = append(h.inUse, k)
		k, err = sshlink.LoadKey(path + nextSuffix)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("next host key: %w", err)
		}
		if k.Public().Type() != f.kind {
			return nil, fmt.Errorf("next host key %s%s: its type is %s, not %s", path, nextSuffix, k.Public().Type(), f.kind)
		}
		h.next = append(h.next, k)
	}
	return h, nil
}

// Public lists the keys in use, best type first: what a pairing link carries.
func (h *HostKeys) Public() []pairing.Key {
	out := make([]pairing.Key, len(h.inUse))
	for i, k := range h.inUse {
		out[i] = k.Public()
	}
	return out
}

// announced is what a connected device may pin: keys in use and those to come.
func (h *HostKeys) announced() []*sshlink.Key {
	return append(append([]*sshlink.Key(nil), h.inUse...), h.next...)
}

// byAlgorithm finds the key in use that a handshake was signed with.
func (h *HostKeys) byAlgorithm(algorithm string) (pairing.Key, bool) {
	for _, k := range h.inUse {
		if k.Public().Type() == algorithm {
			return k.Public(), true
		}
	}
	return pairing.Key{}, false
}

// announcement is the payload of hostkeys-00@openssh.com.
func (h *HostKeys) announcement() []byte {
	var blobs [][]byte
	for _, k := range h.announced() {
		blobs = append(blobs, k.Public().Blob())
	}
	return sshlink.MarshalBlobs(blobs)
}

// prove answers hostkeys-prove-00@openssh.com: a signature by each key that the
// device asks about, or nothing when one of them is not ours.
func (h *HostKeys) prove(sessionID, payload []byte) ([]byte, bool) {
	blobs, err := sshlink.ParseBlobs(payload)
	if err != nil || len(blobs) == 0 {
		return nil, false
	}
	var signatures [][]byte
	for _, b := range blobs {
		k := h.find(b)
		if k == nil {
			return nil, false
		}
		sig, err := k.Signer().Sign(rand.Reader, sshlink.RotationMessage(sessionID, k.Public()))
		if err != nil {
			return nil, false
		}
		signatures = append(signatures, ssh.Marshal(sig))
	}
	return sshlink.MarshalBlobs(signatures), true
}

func (h *HostKeys) find(blob []byte) *sshlink.Key {
	for _, k := range h.announced() {
		if string(k.Public().Blob()) == string(blob) {
			return k
		}
	}
	return nil
}
