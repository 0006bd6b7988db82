package source

import (
	"encoding/json"
	"time"

	"holdfast/internal/console"
	"holdfast/internal/state"
)

// maxSeenBytes bounds the file: 1,000 machines of 100 bytes.
const maxSeenBytes = 100 << 10

// Seen remembers when machines last answered this computer, so that one that
// is away can be listed with its age. It is a convenience: what cannot be read
// or written is left out.
type Seen struct {
	dir   state.Dir
	at    map[string]time.Time
	dirty bool
}

// OpenSeen reads the file of a state directory.
func OpenSeen(dir state.Dir) *Seen {
	s := &Seen{dir: dir, at: map[string]time.Time{}}
	if b, err := state.ReadFile(dir.Path(state.SeenFile), maxSeenBytes); err == nil {
		if json.Unmarshal(b, &s.at) != nil || s.at == nil {
			s.at = map[string]time.Time{}
		}
	}
	return s
}

// Note remembers that a machine answers.
func (s *Seen) Note(m Source, now time.Time) {
	if m.Machine == nil {
		return
	}
	s.at[m.Name] = now.UTC().Truncate(time.Second)
	s.dirty = true
}

// Save writes the file.
func (s *Seen) Save() {
	if !s.dirty {
		return
	}
	if b, err := json.Marshal(s.at); err == nil {
		state.WriteFile(s.dir.Path(state.SeenFile), append(b, '\n'), 0o600)
	}
}

// Away describes a machine that is not reached.
func (s *Seen) Away(m Source, err error) Away {
	out := Away{Machine: m.Name, Error: console.OneLine(err.Error())}
	if at, ok := s.at[m.Name]; ok && m.Machine != nil {
		out.Seen = &at
	}
	return out
}

// Away is a machine that cannot be reached, as --json prints it.
type Away struct {
	Machine string     `json:"machine,omitempty"`
	Error   string     `json:"error"`
	Seen    *time.Time `json:"seen,omitempty"` // when it last answered this computer
}

// Words is it for a person.
func (m Away) Words(now time.Time) string {
	s := OrHere(m.Machine)
	if m.Seen != nil {
		s += " (last reached " + console.Ago(*m.Seen, now) + ")"
	}
	return s + ": " + m.Error
}
