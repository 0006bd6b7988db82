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
