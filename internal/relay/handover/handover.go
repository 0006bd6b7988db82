// Package handover is what one process of a relay hands to the next, when a new
// version of the program takes over its sockets: the words in which sockets are
// described, the file in which they are passed, and the place where the sockets of
// the old process stand still meanwhile.
//
// It opens, closes and judges no socket. What a caller will get wrong: a
// descriptor in a State is only a number, which means something as long as the
// process lives, and after it only if it was Kept.
package handover

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"holdfast/internal/engine"
	"holdfast/internal/pump"
	"holdfast/internal/wire"
)

// Version is of State. A process that reads another one starts afresh.
const Version = 1

// maxStateBytes bounds what is read: a hundred thousand machines that each have a
// presence of 2 KiB and a message under way.
const maxStateBytes = 1 << 30

// ErrVersion says that a State is of a program that is too new, or too old.
var ErrVersion = errors.New("the state of the former process is of another version")

// State is everything that is handed over.
type State struct {
	Version int       `json:"v"`
	Program string    `json:"program"` // version of the old program
	Began   time.Time `json:"began"`   // when the sockets stood still
	// Changes is how far the store's log was seen to.
	Changes  int64     `json:"changes"`
	Controls []Control `json:"controls,omitempty"`
	Streams  []Stream  `json:"streams,omitempty"`
	// Listeners are those of the relay, by the address they were asked for.
	Listeners []Listener `json:"listeners,omitempty"`
	// Dropped counts the sockets that could not be handed over and were told to
	// come back.
	Dropped int `json:"dropped"`
}

// Listener is a listening socket.
type Listener struct {
	Addr string `json:"addr"`
	FD   int    `json:"fd"`
}

// Token is what a socket's place in the relay needs of its token.
type Token struct {
	ID      string           `json:"id"`
	Account engine.AccountID `json:"account"`
	Device  string           `json:"device,omitempty"`
	Expires time.Time        `json:"expires,omitzero"`
}

// Engine is t as a store would give it, as far as it is known.
func (t Token) Engine() engine.Token {
	return engine.Token{ID: t.ID, Account: t.Account, Device: t.Device, Expires: t.Expires}
}

// TokenOf is the other way round.
func TokenOf(t engine.Token) Token {
	return Token{ID: t.ID, Account: t.Account, Device: t.Device, Expires: t.Expires}
}

// Control is an agent's control connection.
type Control struct {
	FD      int            `json:"fd"`
	Machine wire.MachineID `json:"machine"`
	Token   Token          `json:"token"`
	Epoch   uint64         `json:"epoch"`
	// Hello is what the agent said of itself.
	Hello    wire.Message `json:"hello,omitzero"`
	Presence *string      `json:"presence,omitempty"`
	Pinged   bool         `json:"pinged,omitempty"`
	// Owed says that revocations were sent and not acknowledged.
	Owed bool `json:"owed,omitempty"`
	// Received and Unsent are park.Frozen's.
	Received []byte `json:"received,omitempty"`
	Unsent   []byte `json:"unsent,omitempty"`
}

// Stream is a device's stream.
type Stream struct {
	FDs     [2]int         `json:"fds"` // by pump.Side
	Machine wire.MachineID `json:"machine"`
	Tokens  [2]Token       `json:"tokens"`
	Began   time.Time      `json:"began"`
	State   pump.State     `json:"state"`
}

// Descriptors are those of s.
func (s *State) Descriptors() []int {
	var out []int
	for _, l := range s.Listeners {
		out = append(out, l.FD)
	}
	for _, c := range s.Controls {
		out = append(out, c.FD)
	}
	for _, t := range s.Streams {
		out = append(out, t.FDs[:]...)
	}
	return out
}

// Write writes s for Read.
func (s *State) Write(w io.Writer) error {
	s.Version = Version
	if err := json.NewEncoder(w).Encode(s); err != nil {
		return fmt.Errorf("write the state for the next process: %w", err)
	}
	return nil
}

// Read reads what Write wrote. Error: ErrVersion.
func Read(r io.Reader) (*State, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxStateBytes))
	if err != nil {
		return nil, fmt.Errorf("read the state of the former process: %w", err)
	}
	var v struct {
		Version int `json:"v"`
	}
	if err := json.Unmarshal(b, &v); err != nil {
		return nil, fmt.Errorf("read the state of the former process: %w", err)
	}
	if v.Version != Version {
		return nil, ErrVersion
	}
	s := new(State)
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("read the state of the former process: %w", err)
	}
	return s, nil
}

// What the next process is told in its environment.
const (
	// Env is the variable.
	Env = "HOLDFAST_UPGRADE"
	// EnvCheck has a program only say whether it could take over.
	EnvCheck = "check"
	// envFD and a number name the descriptor with the State.
	envFD = "fd:"
)

// Answer is what a program says to EnvCheck, as one line.
type Answer struct {
	Handover int    `json:"handover"` // Version
	Program  string `json:"program"`
}

// EnvOf names the descriptor with a State, as a line of an environment.
func EnvOf(fd int) string { return fmt.Sprintf("%s=%s%d", Env, envFD, fd) }

// Open opens the State that a variable's value names.
func Open(value string) (*State, error) {
	number, ok := strings.CutPrefix(value, envFD)
	var fd int
	if _, err := fmt.Sscanf(number, "%d", &fd); !ok || err != nil || fd < 3 {
		return nil, fmt.Errorf("%s is set to %q, which a person must not do", Env, value)
	}
	f := os.NewFile(uintptr(fd), "state")
	if f == nil {
		return nil, fmt.Errorf("%s names no open file", Env)
	}
	defer f.Close()
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("read the state of the former process: %w", err)
	}
	return Read(f)
}
