package opencode

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"holdfast/internal/session/conversation/cut"
	"holdfast/internal/session/conversation/item"
	"holdfast/internal/session/toolfile"
)

// errGone says that something is no longer in the store.
var errGone = item.ErrBlob

// maxNames bounds the entries of one directory of the store: the messages of a
// long session, or all sessions of a project.
const maxNames = 100_000

// tree is the store of older versions: a file for each session, message and part.
type tree struct{ root string }

func (t tree) close() error { return nil }

// names lists the ids of the JSON files in a directory, in their order: ids rise
// with time.
func names(dir string) ([]string, error) {
	entries, err := toolfile.Dir(dir, maxNames)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), ".json"); ok && validID.MatchString(id) {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out, nil
}

func (t tree) read(parts ...string) ([]byte, error) {
	path := filepath.Join(append([]string{t.root}, parts...)...) + ".json"
	return toolfile.Read(path, maxValue)
}

func (t tree) newest(session string, before key, n int) ([]entry, error) {
	ids, err := names(filepath.Join(t.root, "message", session))
	if err != nil {
		return nil, err
	}
	if before.id != "" {
		i, _ := slices.BinarySearch(ids, before.id)
		ids = ids[:i]
	}
	var out []entry
	for _, id := range slices.Backward(ids) {
		if len(out) == n {
			break
		}
		data, err := t.read("message", session, id)
		if err != nil {
			continue
		}
		var m info
		line, err := cut.Shorten(data)
		if err == nil {
			loose(line.Data, &m)
		}
		out = append(out, entry{key{int64(m.Time.Created), id}, data})
	}
	return out, nil
}

func (t tree) parts(_, message string) ([]piece, error) {
	ids, err := names(filepath.Join(t.root, "part", message))
	if err != nil {
		return nil, err
	}
	var out []piece
	for _, id := range ids[:min(len(ids), maxParts)] {
		data, err := t.read("part", message, id)
		if err != nil {
			continue
		}
		p := piece{id: id, data: data}
		if info, err := os.Stat(filepath.Join(t.root, "part", message, id+".json")); err == nil {
			p.updated = info.ModTime().UnixMilli()
		}
		out = append(out, p)
	}
	return out, nil
}

func (t tree) part(_, message, id string) ([]byte, error) { return t.read("part", message, id) }

// record is a session's file.
type record struct {
	ID     string `json:"id"`
	Dir    string `json:"directory"`
	Title  string `json:"title"`
	Parent string `json:"parentID"`
	Time   struct {
		Created float64 `json:"created"`
		Updated float64 `json:"updated"`
	} `json:"time"`
}

func (r *record) session() Session {
	return Session{ID: r.ID, Dir: r.Dir, Title: r.Title, Created: milliseconds(int64(r.Time.Created)), Updated: milliseconds(int64(r.Time.Updated))}
}

func (t tree) session(id string) (Session, error) {
	projects, err := toolfile.Dir(filepath.Join(t.root, "session"), maxNames)
	if err != nil {
		return Session{}, err
	}
	for _, p := range projects {
		var r record
		if data, err := t.read("session", p.Name(), id); err == nil && loose(data, &r) && r.ID == id {
			return r.session(), nil
		}
	}
	return Session{}, fs.ErrNotExist
}

func (t tree) since(at time.Time) ([]Session, error) {
	projects, err := toolfile.Dir(filepath.Join(t.root, "session"), maxNames)
	if err != nil {
		return nil, err
	}
	var out []Session
	for _, p := range projects {
		ids, err := names(filepath.Join(t.root, "session", p.Name()))
		if err != nil {
			continue
		}
		for _, id := range ids {
			var r record
			data, err := t.read("session", p.Name(), id)
			if err == nil && loose(data, &r) && r.ID == id && r.Parent == "" && !r.session().Updated.Before(at) {
				out = append(out, r.session())
			}
		}
	}
	slices.SortFunc(out, func(a, b Session) int { return cmp.Compare(b.Updated.UnixNano(), a.Updated.UnixNano()) })
	return out, nil
}

// stamp is made of the names and times of the newest message and its parts, and
// of how many there are.
func (t tree) stamp(session string) (string, error) {
	ids, err := names(filepath.Join(t.root, "message", session))
	if err != nil {
		return "", err
	}
	h := fnv.New64a()
	fmt.Fprint(h, len(ids))
	for _, id := range ids[max(0, len(ids)-3):] {
		stat(h, filepath.Join(t.root, "message", session, id+".json"))
		parts, err := toolfile.Dir(filepath.Join(t.root, "part", id), maxParts)
		if err != nil {
			continue
		}
		for _, p := range parts {
			stat(h, filepath.Join(t.root, "part", id, p.Name()))
		}
	}
	return fmt.Sprintf("%x", h.Sum64()), nil
}

func stat(w interface{ Write([]byte) (int, error) }, path string) {
	if info, err := os.Stat(path); err == nil {
		fmt.Fprint(w, path, info.Size(), info.ModTime().UnixNano())
	}
}
