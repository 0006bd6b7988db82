package engine

import (
	"context"
	"testing"

	"holdfast/internal/engine/sqlitedb"
)

// Pragmas reads settings of the writing connection.
func Pragmas(t *testing.T, s Store, names ...string) map[string]string {
	t.Helper()
	out := make(map[string]string)
	err := s.(*store).update(t.Context(), "read pragmas", func(ctx context.Context, tx *sqlitedb.Tx) error {
		for _, name := range names {
			var v string
			if err := tx.Row(ctx, "PRAGMA "+name).Scan(&v); err != nil {
				return err
			}
			out[name] = v
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// WriteOlder makes a database of the first schema and runs statements in it.
func WriteOlder(t *testing.T, path string, statements ...string) {
	t.Helper()
	db, err := sqlitedb.Open(t.Context(), path, sqlitedb.Options{
		ApplicationID: applicationID, Migrations: migrations[:1], NoFollow: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.Update(t.Context(), func(ctx context.Context, tx *sqlitedb.Tx) error {
		for _, text := range statements {
			if _, err := tx.Exec(ctx, text); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
