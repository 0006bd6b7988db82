package push

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"holdfast/internal/session"
	"holdfast/internal/state"
	"holdfast/internal/webpush"
)

const (
	fileVersion = 1
	// maxFileBytes bounds the file: 32 devices of 3 KB with 1,024 calls of 40
	// bytes each, and the calls.
	maxFileBytes = 4 << 20
)

// file is what is kept: the keys of subscriptions, which are secret, and what
// the devices were told, so that a restart calls nobody twice.
type file struct {
	V       int                   `json:"v"`
	Last    uint64                `json:"last"`
	Devices map[string]deviceFile `json:"devices,omitempty"`
	Calls   map[string]callFile   `json:"calls,omitempty"`
}

type deviceFile struct {
	Push      *webpush.Raw      `json:"push,omitempty"` // nothing: ended by the service
	Host      string            `json:"host"`
	As        string            `json:"as"`
	Since     time.Time         `json:"since"`
	Told      map[string]uint64 `json:"told,omitempty"`
	Delivered time.Time         `json:"delivered,omitzero"`
	Failed    time.Time         `json:"failed,omitzero"`
	Why       string            `json:"why,omitempty"`
}

type callFile struct {
	N      uint64       `json:"n"`
	Kind   session.Kind `json:"kind,omitempty"`
	Digest string       `json:"digest,omitempty"`
	Stage  stage        `json:"stage"`
}

// load reads the file. Called by New.
func (p *Pusher) load() error {
	text, err := state.ReadFile(p.o.File, maxFileBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read whom to call: %w", err)
	}
	damaged := func(why string) error {
		return fmt.Errorf("read whom to call from %s: %s; move it away and turn notifications on again on the devices", p.o.File, why)
	}
	var f file
	d := json.NewDecoder(bytes.NewReader(text))
	if err := d.Decode(&f); err != nil {
		// The decoder's words may hold what stands there.
		return damaged("it is damaged")
	}
	if f.V != fileVersion {
		return damaged(fmt.Sprintf("its version is %d, this holdfast knows %d", f.V, fileVersion))
	}
	if len(f.Devices) > maxDevices || len(f.Calls) > maxCalls {
		return damaged("it lists more than there can be")
	}
	p.last = f.Last
	for id, k := range f.Devices {
		one := &device{host: k.Host, as: k.As, since: k.Since, delivered: k.Delivered, failed: k.Failed, why: k.Why, told: map[session.ID]uint64{}}
		if k.Push != nil {
			if one.sub, err = webpush.New(*k.Push); err != nil {
				return damaged(err.Error())
			}
			one.raw = *k.Push
		}
		for s, n := range k.Told {
			one.told[session.ID(s)] = n
		}
		p.devices[id] = one
	}
	for id, c := range f.Calls {
		one := &call{n: c.N, kind: c.Kind, digest: c.Digest, stage: c.Stage}
		switch one.stage {
		case open, seen:
		default:
			one.stage = fresh // whoever looked then may be gone
		}
		p.calls[session.ID(id)] = one
	}
	return nil
}

// keepLocked writes the file; a failure is logged, since nobody waits for it.
func (p *Pusher) keepLocked() {
	if err := p.writeLocked(); err != nil {
		p.o.Log.Error("whom to call is not kept over a restart", "err", err)
	}
}

func (p *Pusher) writeLocked() error {
	f := file{V: fileVersion, Last: p.last, Devices: map[string]deviceFile{}, Calls: map[string]callFile{}}
	for id, d := range p.devices {
		k := deviceFile{Host: d.host, As: d.as, Since: d.since, Delivered: d.delivered, Failed: d.failed, Why: d.why, Told: map[string]uint64{}}
		if d.sub != nil {
			k.Push = &d.raw
		}
		for s, n := range d.told {
			k.Told[string(s)] = n
		}
		f.Devices[id] = k
	}
	if len(f.Devices) > 0 {
		for id, c := range p.calls {
			f.Calls[string(id)] = callFile{N: c.n, Kind: c.kind, Digest: c.digest, Stage: c.stage}
		}
	}
	text, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("write whom to call: %w", err)
	}
	if err := state.WriteFile(p.o.File, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("write whom to call: %w", err)
	}
	return nil
}
