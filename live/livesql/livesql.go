// Package livesql keeps what the helpers of package channels must not lose in an SQL
// database through database/sql. It is written for SQLite and tested with it.
//
// It opens no database and links no driver: those are the site's. What a caller
// will get wrong: with SQLite, open the database with a busy time-out, or two
// writers at once see "database is locked".
package livesql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"holdfast/live/channels"
)

// Storage is a channels.Storage in one table, "live_items".
type Storage struct{ db *sql.DB }

// New makes the table if there is none yet.
func New(ctx context.Context, db *sql.DB) (*Storage, error) {
	_, err := db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS live_items (
		bucket TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, revision INTEGER NOT NULL,
		PRIMARY KEY (bucket, key)) WITHOUT ROWID`)
	if err != nil {
		return nil, fmt.Errorf("make table live_items: %w", err)
	}
	return &Storage{db}, nil
}

// Load implements channels.Storage.
func (s *Storage) Load(ctx context.Context, bucket, key string) (value []byte, revision int64, err error) {
	err = s.db.QueryRowContext(ctx, `SELECT value, revision FROM live_items WHERE bucket = ? AND key = ?`, bucket, key).
		Scan(&value, &revision)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("load %q: %w", key, err)
	}
	return value, revision, nil
}

// Save implements channels.Storage, in one statement either way.
func (s *Storage) Save(ctx context.Context, bucket, key string, value []byte, revision int64) error {
	if value == nil {
		value = []byte{}
	}
	var res sql.Result
	var err error
	if revision == 0 {
		res, err = s.db.ExecContext(ctx, `INSERT INTO live_items (bucket, key, value, revision) VALUES (?, ?, ?, 1)
			ON CONFLICT DO NOTHING`, bucket, key, value)
	} else {
		res, err = s.db.ExecContext(ctx, `UPDATE live_items SET value = ?, revision = revision + 1
			WHERE bucket = ? AND key = ? AND revision = ?`, value, bucket, key, revision)
	}
	if err != nil {
		return fmt.Errorf("save %q: %w", key, err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return fmt.Errorf("save %q: %w", key, err)
	}
	if n == 0 {
		return channels.ErrConflict
	}
	return nil
}

// Remove implements channels.Storage.
func (s *Storage) Remove(ctx context.Context, bucket, key string) error {
	if _, err := s.db.ExecContext(ctx, `DELETE FROM live_items WHERE bucket = ? AND key = ?`, bucket, key); err != nil {
		return fmt.Errorf("remove %q: %w", key, err)
	}
	return nil
}

// List implements channels.Storage.
func (s *Storage) List(ctx context.Context, bucket, after string, limit int) ([]channels.Item, error) {
	if limit <= 0 {
		return nil, nil
	}
	rows, err := s.db.QueryContext(ctx, `SELECT key, value FROM live_items WHERE bucket = ? AND key > ? ORDER BY key LIMIT ?`,
		bucket, after, limit)
	if err != nil {
		return nil, fmt.Errorf("list %q: %w", bucket, err)
	}
	defer rows.Close()
	var out []channels.Item
	for rows.Next() {
		var it channels.Item
		if err := rows.Scan(&it.Key, &it.Value); err != nil {
			return nil, fmt.Errorf("list %q: %w", bucket, err)
		}
		out = append(out, it)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("list %q: %w", bucket, err)
	}
	return out, nil
}
