package sessions

import (
	"encoding/json"
	"time"

	"holdfast/internal/console"
	"holdfast/internal/state"
)

// maxSeenBytes bounds the file: 1,000 machines of 100 bytes.
const maxSeenBytes = 100 << 10

// seenFile remembers when machines last answered this computer, so that one that
// is away can be listed with its age. It is a convenience: what cannot be read
// or written is left out.
type seenFile struct {
	dir   state.Dir
	at    map[string]time.Time
	dirty bool
}

func openSeen(dir state.Dir) *seenFile {
	s := &seenFile{dir: dir, at: map[string]time.Time{}}
	if b, err := state.ReadFile(dir.Path(state.SeenFile), maxSeenBytes); err == nil {
		if json.Unmarshal(b, &s.at) != nil || s.at == nil {
			s.at = map[string]time.Time{}
		}
	}
	return s
}

func (s *seenFile) note(m source, now time.Time) {
	if m.machine == nil {
		return
	}
	s.at[m.name] = now.UTC().Truncate(time.Second)
	s.dirty = true
}

func (s *seenFile) save() {
	if !s.dirty {
		return
	}
	if b, err := json.Marshal(s.at); err == nil {
		state.WriteFile(s.dir.Path(state.SeenFile), append(b, '\n'), 0o600)
	}
}

// away describes a machine that is not reached.
func (s *seenFile) away(m source, err error) away {
	out := away{Machine: m.name, Error: console.OneLine(err.Error())}
	if at, ok := s.at[m.name]; ok && m.machine != nil {
		out.Seen = &at
	}
	return out
}
