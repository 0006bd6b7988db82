package opencode

import (
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	_ "modernc.org/sqlite" // the driver that sql.Open names

	"holdfast/internal/session/toolfile"
)

// database is the store of newer versions.
type database struct{ db *sql.DB }

func openDatabase(path string) (store, error) {
	// What SQLite opens it waits for: a FIFO would hold it for ever.
	f, _, err := toolfile.Open(path)
	if err != nil {
		return nil, err
	}
	f.Close()
	// Never immutable: the write-ahead log holds the newest messages.
	u := url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: "mode=ro&_pragma=query_only(1)&_pragma=busy_timeout(500)"}
	db, err := sql.Open("sqlite", u.String())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	if err := db.Ping(); err != nil {
		db.Close()
		return nil, err
	}
	return database{db}, nil
}

func (d database) close() error { return d.db.Close() }

func (d database) newest(session string, before key, n int) ([]entry, error) {
	query, args := `SELECT id, time_created, data FROM message WHERE session_id = ? AND length(data) <= ?`, []any{session, maxValue}
	if before.id != "" {
		query += ` AND (time_created < ? OR time_created = ? AND id < ?)`
		args = append(args, before.at, before.at, before.id)
	}
	rows, err := d.db.Query(query+` ORDER BY time_created DESC, id DESC LIMIT ?`, append(args, n)...)
	if err != nil {
		return nil, fmt.Errorf("read messages of opencode: %w", err)
	}
	defer rows.Close()
	var out []entry
	for rows.Next() {
		var e entry
		if err := rows.Scan(&e.id, &e.at, &e.data); err != nil {
			return nil, err
		}
		if validID.MatchString(e.id) {
			out = append(out, e)
		}
	}
	return out, rows.Err()
}

// maxParts bounds the parts of one message.
const maxParts = 2000

func (d database) parts(_, message string) ([]piece, error) {
	rows, err := d.db.Query(`SELECT id, time_updated, data FROM part WHERE message_id = ? AND length(data) <= ? ORDER BY id LIMIT ?`, message, maxValue, maxParts)
	if err != nil {
		return nil, fmt.Errorf("read a message of opencode: %w", err)
	}
	defer rows.Close()
	var out []piece
	for rows.Next() {
		var p piece
		if err := rows.Scan(&p.id, &p.updated, &p.data); err != nil {
			return nil, err
		}
		if validID.MatchString(p.id) {
			out = append(out, p)
		}
	}
	return out, rows.Err()
}

func (d database) part(session, message, id string) ([]byte, error) {
	var data []byte
	err := d.db.QueryRow(`SELECT data FROM part WHERE id = ? AND message_id = ? AND session_id = ? AND length(data) <= ?`, id, message, session, maxValue).Scan(&data)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, errGone
	}
	return data, err
}

func (d database) session(id string) (Session, error) {
	list, err := d.list(`id = ?`, id)
	if err == nil && len(list) == 0 {
		err = errGone
	}
	if err != nil {
		return Session{}, err
	}
	return list[0], nil
}

func (d database) since(at time.Time) ([]Session, error) {
	return d.list(`coalesce(parent_id, '') = '' AND time_updated >= ?`, at.UnixMilli())
}

func (d database) list(where string, arg any) ([]Session, error) {
	rows, err := d.db.Query(`SELECT id, directory, title, time_created, time_updated FROM session WHERE `+where+` ORDER BY time_updated DESC LIMIT 1000`, arg)
	if err != nil {
		return nil, fmt.Errorf("read sessions of opencode: %w", err)
	}
	defer rows.Close()
	var out []Session
	for rows.Next() {
		var s Session
		var created, updated int64
		if err := rows.Scan(&s.ID, &s.Dir, &s.Title, &created, &updated); err != nil {
			return nil, err
		}
		s.Created, s.Updated = milliseconds(created), milliseconds(updated)
		out = append(out, s)
	}
	return out, rows.Err()
}

// stamp is made of the newest change and the number of messages and parts.
func (d database) stamp(session string) (string, error) {
	var message, part sql.NullString
	err := d.db.QueryRow(`SELECT (SELECT max(time_updated) || '.' || count(*) FROM message WHERE session_id = ?),
		(SELECT max(time_updated) || '.' || count(*) FROM part WHERE session_id = ?)`, session, session).Scan(&message, &part)
	if err != nil {
		return "", fmt.Errorf("look at opencode's database: %w", err)
	}
	return strings.Join([]string{message.String, part.String}, "."), nil
}
