// Package sshlink is the device's side of SSH: it dials over a connection that
// somebody else made, with pinned host keys, pairs a device with a machine, and
// asks a server questions (its banner, its host keys, whether it would let a
// key in). It keeps the device's key file.
//
// It never trusts a host key at first sight, never offers a password, and makes
// no network connection of its own.
//
// What a caller will get wrong: a pinned key is a whole key, not a fingerprint,
// and its type decides which algorithms are offered, so pins must be kept with
// their types; and a *HostKeyError is final, retrying it on another path is
// what an attacker would want.
package sshlink

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/crypto/ssh"

	"holdfast/internal/pairing"
)

// maxKeyFileBytes bounds a private key file: OpenSSH writes 0.4 to 12 KB.
const maxKeyFileBytes = 64 << 10

// keyTypes are the types of key that can be pinned or can name a device, in
// the order of preference. Certificates are not among them: they would put an
// authority where the pin is.
var keyTypes = []string{
	ssh.KeyAlgoED25519,
	ssh.KeyAlgoECDSA256,
	ssh.KeyAlgoECDSA384,
	ssh.KeyAlgoECDSA521,
	ssh.KeyAlgoRSA,
}

// FromSSH converts a key of x/crypto. Certificates and types that cannot be
// pinned give an error that wraps pairing.ErrKey.
func FromSSH(k ssh.PublicKey) (pairing.Key, error) {
	if !slices.Contains(keyTypes, k.Type()) {
		return pairing.Key{}, fmt.Errorf("type %.64q is not one to pin: %w", k.Type(), pairing.ErrKey)
	}
	return pairing.ParseKeyBlob(k.Marshal())
}

// toSSH converts a key to one that can verify.
func toSSH(k pairing.Key) (ssh.PublicKey, error) {
	p, err := ssh.ParsePublicKey(k.Blob())
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", k, err)
	}
	return p, nil
}

// HostKeyAlgorithms lists the signature algorithms by which a server can prove
// one of keys, for HostKeyAlgorithms of ssh_config and for our own handshakes:
// nothing else may be negotiated, or a server with a pinned and an unpinned key
// would look like an attack.
func HostKeyAlgorithms(keys []pairing.Key) []string {
	var out []string
	for _, typ := range keyTypes {
		if !slices.ContainsFunc(keys, func(k pairing.Key) bool { return k.Type() == typ }) {
			continue
		}
		out = append(out, algorithmsOf(typ)...)
	}
	return out
}

// algorithmsOf maps a key type to its signature algorithms. RSA with SHA-1 is
// not among them.
func algorithmsOf(typ string) []string {
	if typ == ssh.KeyAlgoRSA {
		return []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256}
	}
	return []string{typ}
}

// Key is a private key: a device's, or a host key of the built-in server. It
// prints as its fingerprint.
type Key struct {
	signer ssh.Signer
	public pairing.Key
}

// Public is the public half.
func (k *Key) Public() pairing.Key { return k.public }

// Signer signs with the key; for package sshserver, which may know x/crypto.
func (k *Key) Signer() ssh.Signer { return k.signer }

// String keeps the private half out of logs and errors.
func (k *Key) String() string { return k.public.Fingerprint() }

// LoadKey reads a private key of OpenSSH's form. A file that others may read is
// refused, as ssh itself would. An absent file wraps fs.ErrNotExist.
func LoadKey(path string) (*Key, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read key: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read key: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("read key %s: not a regular file", path)
	}
	if readableByOthers(info) {
		return nil, fmt.Errorf("read key %s: others may read it (mode %04o); make it yours alone with chmod 600", path, info.Mode().Perm())
	}
	text, err := io.ReadAll(io.LimitReader(f, maxKeyFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read key %s: %w", path, err)
	}
	if len(text) > maxKeyFileBytes {
		return nil, fmt.Errorf("read key %s: larger than any key", path)
	}
	signer, err := ssh.ParsePrivateKey(text)
	if err != nil {
		var locked *ssh.PassphraseMissingError
		if errors.As(err, &locked) {
			return nil, fmt.Errorf("read key %s: it has a passphrase, which nobody is there to type", path)
		}
		// The cause could quote the file, so it is left out.
		return nil, fmt.Errorf("read key %s: not a private key in OpenSSH form; if it is lost, remove the file and pair again", path)
	}
	return newKey(signer)
}

// LoadOrCreateKey reads the private key at path, or makes one of type typ
// (pairing.TypeEd25519 or pairing.TypeP256) there with mode 0600. Two processes
// that make it at once end up with the same key. A key of another type is an
// error.
func LoadOrCreateKey(path, typ string) (*Key, error) {
	k, err := LoadKey(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := createKey(path, typ); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		k, err = LoadKey(path)
	}
	if err != nil {
		return nil, err
	}
	if k.public.Type() != typ {
		return nil, fmt.Errorf("read key %s: its type is %s, not %s", path, k.public.Type(), typ)
	}
	return k, nil
}

func newKey(signer ssh.Signer) (*Key, error) {
	public, err := FromSSH(signer.PublicKey())
	if err != nil {
		return nil, err
	}
	return &Key{signer, public}, nil
}

// createKey writes a new key; fs.ErrExist when another process was first.
func createKey(path, typ string) error {
	var private crypto.PrivateKey
	var err error
	switch typ {
	case pairing.TypeEd25519:
		_, private, err = ed25519.GenerateKey(rand.Reader)
	case pairing.TypeP256:
		private, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	default:
		return fmt.Errorf("make key %s: type %q is not one that Holdfast makes", path, typ)
	}
	if err != nil {
		return fmt.Errorf("make key %s: %w", path, err)
	}
	block, err := ssh.MarshalPrivateKey(private, "holdfast")
	if err != nil {
		return fmt.Errorf("make key %s: %w", path, err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // 0600
	if err != nil {
		return fmt.Errorf("make key: %w", err)
	}
	defer os.Remove(f.Name())
	_, err = f.Write(pem.EncodeToMemory(block))
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		// A link never replaces what is there, where a rename would: the first
		// process wins, and its key is the one that gets paired.
		err = os.Link(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("make key %s: %w", path, err)
	}
	return nil
}
