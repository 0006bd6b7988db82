package pairing

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"

	"holdfast/internal/wire"
)

// Subsystem is the name of the SSH subsystem that pairs: one JSON line each
// way.
const Subsystem = "pair"

// MaxProofs is how many wrong proofs close a link.
const MaxProofs = 5

// protocolVersion is the version of the two lines.
const protocolVersion = 1

const (
	// maxLineBytes bounds a line of the subsystem. A response with an RSA, an
	// ECDSA and an ed25519 host key has 1.5 KiB.
	maxLineBytes = 16 << 10
	// maxSSHDKeys bounds the host keys of a machine's sshd.
	maxSSHDKeys = 16
	// maxTextBytes bounds a message or note for a person.
	maxTextBytes = 1 << 10
	// maxUserBytes bounds the name of an operating system's user. useradd allows
	// 32; names of a directory service with its domain are longer.
	maxUserBytes = 128
)

// ErrLine says that a line of the subsystem is too long, cut off or not what
// the subsystem speaks.
var ErrLine = errors.New("not a line of the pair subsystem")

// Request is the device's line.
type Request struct {
	V     int    `json:"v"`
	Proof Proof  `json:"proof"`
	Name  string `json:"name"` // what a person calls the device
}

// SSHD describes the machine's own sshd.
type SSHD struct {
	// Keys are its host keys, "type base64".
	Keys []string `json:"keys"`
	// Installed says that the device's key is in ~/.ssh/authorized_keys and that
	// sshd reads that file; Note says what is wrong otherwise, and what to do.
	Installed bool   `json:"installed"`
	Note      string `json:"note,omitempty"`
}

// Code says why an agent did not pair.
type Code string

// The reasons not to pair.
const (
	CodeProof   Code = "proof"   // the proof is wrong
	CodeExpired Code = "expired" // no link is open any more
	CodeBound   Code = "bound"   // the link belongs to another device's key
	CodeSyntax  Code = "syntax"  // the request is not one
	CodeFailed  Code = "failed"  // the machine could not do its part
)

// Response is the agent's line. Where OK is false only Code and Message count.
type Response struct {
	OK      bool           `json:"ok"`
	Machine wire.MachineID `json:"machine,omitempty"`
	User    string         `json:"user,omitempty"` // the agent's OS user
	// SSHD is nil where the machine offers no sshd.
	SSHD *SSHD `json:"sshd,omitempty"`
	// Shell says that the built-in server gives paired devices a shell.
	Shell   bool   `json:"shell,omitempty"`
	Code    Code   `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
}

// WriteRequest writes q as one line; it sets V.
func WriteRequest(w io.Writer, q Request) error {
	q.V = protocolVersion
	return writeLine(w, q)
}

// ReadRequest reads the device's line, at most 16 KiB and nothing behind it.
// Name comes back without control characters and cut to wire.MaxNameBytes.
// Errors wrap ErrLine, or are r's.
func ReadRequest(r io.Reader) (Request, error) {
	var q Request
	if err := readLine(r, &q); err != nil {
		return Request{}, fmt.Errorf("read pairing request: %w", err)
	}
	if q.V < protocolVersion {
		return Request{}, fmt.Errorf("read pairing request: no version: %w", ErrLine)
	}
	if q.Proof == (Proof{}) {
		return Request{}, fmt.Errorf("read pairing request: no proof: %w", ErrLine)
	}
	q.Name = wire.CleanText(q.Name, wire.MaxNameBytes)
	return q, nil
}

// WriteResponse writes p as one line.
func WriteResponse(w io.Writer, p Response) error {
	if p.SSHD != nil && p.SSHD.Keys == nil {
		// A machine whose sshd does not answer: readers want a list.
		sshd := *p.SSHD
		sshd.Keys = []string{}
		p.SSHD = &sshd
	}
	return writeLine(w, p)
}

// ReadResponse reads the agent's line, at most 16 KiB and nothing behind it.
// What it gives back can be written into known_hosts or an SSH configuration:
// keys are spelled "type base64", the user's name is one word, and texts hold no
// control characters. Errors wrap ErrLine, or are r's.
func ReadResponse(r io.Reader) (Response, error) {
	var p Response
	if err := readLine(r, &p); err != nil {
		return Response{}, fmt.Errorf("read pairing response: %w", err)
	}
	if !p.OK {
		if p.Code == "" {
			return Response{}, fmt.Errorf("read pairing response: neither ok nor a code: %w", ErrLine)
		}
		return Response{
			Code:    Code(wire.CleanText(string(p.Code), wire.MaxNameBytes)),
			Message: wire.CleanText(p.Message, maxTextBytes),
		}, nil
	}
	if err := p.clean(); err != nil {
		return Response{}, fmt.Errorf("read pairing response: %w", err)
	}
	return p, nil
}

func (p *Response) clean() error {
	p.Code, p.Message = "", ""
	if _, err := wire.ParseMachineID(string(p.Machine)); err != nil {
		return fmt.Errorf("%w: %w", ErrLine, err)
	}
	if err := CheckUser(p.User); err != nil {
		return fmt.Errorf("%w: %w", ErrLine, err)
	}
	if p.SSHD == nil {
		return nil
	}
	if len(p.SSHD.Keys) > maxSSHDKeys {
		return fmt.Errorf("more than %d host keys: %w", maxSSHDKeys, ErrLine)
	}
	if p.SSHD.Keys == nil {
		p.SSHD.Keys = []string{}
	}
	for i, line := range p.SSHD.Keys {
		k, err := ParseKey(line)
		if err != nil {
			return fmt.Errorf("host key %d: %w: %w", i, ErrLine, err)
		}
		p.SSHD.Keys[i] = k.Line()
	}
	p.SSHD.Note = wire.CleanText(p.SSHD.Note, maxTextBytes)
	return nil
}

// CheckUser takes the names that an OS may give to a user, domains included, and
// none that could be an option, a pattern, an expansion or a second word in a
// configuration file of ssh.
func CheckUser(user string) error {
	if user == "" || len(user) > maxUserBytes || user[0] == '-' {
		return fmt.Errorf("user name %q cannot be used", user)
	}
	for _, r := range user {
		if !unicode.IsPrint(r) || unicode.IsSpace(r) || strings.ContainsRune(`"'%$#*?!,:/[]`+"`", r) {
			return fmt.Errorf("user name %q cannot be used", user)
		}
	}
	return nil
}

func writeLine(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write pairing line: %w", err)
	}
	if len(b) >= maxLineBytes {
		return fmt.Errorf("write pairing line of %d bytes: %w", len(b), ErrLine)
	}
	if _, err := w.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("write pairing line: %w", err)
	}
	return nil
}

// readLine reads up to the first line break; a stream that ends without one was
// cut off. It may read past the break: nothing follows in either direction.
func readLine(r io.Reader, v any) error {
	buf := make([]byte, 0, 512)
	for {
		if at := bytes.IndexByte(buf, '\n'); at >= 0 {
			if json.Unmarshal(buf[:at], v) != nil {
				return fmt.Errorf("not JSON of the right shape: %w", ErrLine)
			}
			return nil
		}
		if len(buf) >= maxLineBytes {
			return fmt.Errorf("longer than %d bytes: %w", maxLineBytes, ErrLine)
		}
		if len(buf) == cap(buf) {
			buf = append(buf, make([]byte, len(buf))...)[:len(buf)]
		}
		n, err := r.Read(buf[len(buf):min(cap(buf), maxLineBytes)])
		buf = buf[:len(buf)+n]
		if err != nil && bytes.IndexByte(buf, '\n') < 0 {
			if err == io.EOF {
				return fmt.Errorf("ended after %d bytes: %w", len(buf), ErrLine)
			}
			return err
		}
	}
}
