package sshlink

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/crypto/ssh"

	"holdfast/internal/pairing"
)

// Names of OpenSSH's host key rotation (PROTOCOL, section 2.5).
const (
	requestHostKeys = "hostkeys-00@openssh.com"
	requestProve    = "hostkeys-prove-00@openssh.com"
)

// maxHostKeys bounds an announcement. OpenSSH has three keys, six while it
// rotates them.
const maxHostKeys = 16

// maxBlobBytes bounds a key or signature in such a list: RSA with 16,384 bits
// takes 2.1 KB, everything else less.
const maxBlobBytes = 4 << 10

// RotationMessage is what a host key signs to prove itself in a connection.
func RotationMessage(sessionID []byte, k pairing.Key) []byte {
	return ssh.Marshal(struct {
		Name      string
		SessionID []byte
		Key       []byte
	}{requestProve, sessionID, k.Blob()})
}

// MarshalBlobs writes blobs as a sequence of SSH strings, the payload of both
// rotation requests and of the proof.
func MarshalBlobs(blobs [][]byte) []byte {
	var out []byte
	for _, b := range blobs {
		out = append(out, ssh.Marshal(struct{ B []byte }{b})...)
	}
	return out
}

// ParseBlobs reads a sequence of SSH strings, at most 16 of at most 4 KiB.
func ParseBlobs(payload []byte) ([][]byte, error) {
	var out [][]byte
	for len(payload) > 0 {
		var m struct {
			B    []byte
			Rest []byte `ssh:"rest"`
		}
		if err := ssh.Unmarshal(payload, &m); err != nil {
			return nil, fmt.Errorf("read a list of keys: %w", err)
		}
		if len(out) == maxHostKeys || len(m.B) > maxBlobBytes {
			return nil, fmt.Errorf("read a list of keys: more than %d keys, or a larger one than %d bytes", maxHostKeys, maxBlobBytes)
		}
		out = append(out, m.B)
		payload = m.Rest
	}
	return out, nil
}

// globalRequests answers what the server asks of the whole connection. It looks
// at the first announcement of host keys only; everything else goes on to
// x/crypto, which answers it.
func (c *Client) globalRequests(reqs <-chan *ssh.Request, forward chan<- *ssh.Request, o Options) {
	defer close(forward)
	seen := false
	for req := range reqs {
		if req.Type != requestHostKeys {
			forward <- req
			continue
		}
		req.Reply(true, nil)
		if seen || o.Rotated == nil {
			continue
		}
		seen = true
		payload := bytes.Clone(req.Payload)
		// Asking waits for an answer, which this loop must let through. Ends with
		// the answer or the connection; Close waits for it.
		c.wg.Go(func() {
			keys, err := c.proveAnnounced(payload, o.HostKeys)
			if err != nil || sameKeys(keys, o.HostKeys) {
				return // an unproved key changes nothing: the pins stay
			}
			o.Rotated(keys)
		})
	}
}

// proveAnnounced turns an announcement into the new set of pins: those pinned
// keys that the server still has, and new ones that it proves.
func (c *Client) proveAnnounced(payload []byte, pinned []pairing.Key) ([]pairing.Key, error) {
	blobs, err := ParseBlobs(payload)
	if err != nil {
		return nil, err
	}
	var all, fresh []pairing.Key
	for _, b := range blobs {
		k, err := parseBlob(b)
		if err != nil || slices.Contains(all, k) {
			continue // of a type that we would not pin, or twice
		}
		all = append(all, k)
		if !slices.Contains(pinned, k) {
			fresh = append(fresh, k)
		}
	}
	if !slices.Contains(all, c.hostKey) {
		return nil, errors.New("announced host keys lack the one in use")
	}
	if len(fresh) == 0 {
		return all, nil
	}
	ask := make([][]byte, len(fresh))
	for i, k := range fresh {
		ask[i] = k.Blob()
	}
	ok, answer, err := c.meta.SendRequest(requestProve, true, MarshalBlobs(ask))
	if err != nil {
		return nil, fmt.Errorf("ask for proof of host keys: %w", err)
	}
	if !ok {
		return nil, errors.New("the server proves none of the host keys that it announced")
	}
	signatures, err := ParseBlobs(answer)
	if err != nil {
		return nil, err
	}
	if len(signatures) != len(fresh) {
		return nil, fmt.Errorf("%d proofs for %d host keys", len(signatures), len(fresh))
	}
	for i, k := range fresh {
		if err := verifyRotation(c.SessionID(), k, signatures[i]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// parseBlob reads a host key that could be pinned.
func parseBlob(blob []byte) (pairing.Key, error) {
	k, err := ssh.ParsePublicKey(blob)
	if err != nil {
		return pairing.Key{}, err
	}
	return FromSSH(k)
}

// verifyRotation checks one proof. RSA with SHA-1 proves nothing.
func verifyRotation(sessionID []byte, k pairing.Key, signature []byte) error {
	var sig ssh.Signature
	if err := ssh.Unmarshal(signature, &sig); err != nil {
		return fmt.Errorf("read proof of host key %s: %w", k.Fingerprint(), err)
	}
	if len(sig.Rest) > 0 || !slices.Contains(algorithmsOf(k.Type()), sig.Format) {
		return fmt.Errorf("proof of host key %s: signature of type %.64q", k.Fingerprint(), sig.Format)
	}
	public, err := toSSH(k)
	if err != nil {
		return err
	}
	if err := public.Verify(RotationMessage(sessionID, k), &sig); err != nil {
		return fmt.Errorf("proof of host key %s: %w", k.Fingerprint(), err)
	}
	return nil
}

// sameKeys compares as sets.
func sameKeys(a, b []pairing.Key) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(k pairing.Key) bool { return !slices.Contains(b, k) })
}
