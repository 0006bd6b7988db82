package sqlitedb

import (
	"context"
	"database/sql"
	"fmt"
)

// migrate brings the database to the newest schema, in one transaction that
// another process which starts at the same time waits for.
func migrate(ctx context.Context, c *sql.Conn, o Options) (err error) {
	if _, err := c.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	defer func() {
		if err != nil {
			c.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
		}
	}()
	var app, version, tables int
	for _, q := range []struct {
		text string
		into *int
	}{
		{"PRAGMA application_id", &app},
		{"PRAGMA user_version", &version},
		{"SELECT count(*) FROM sqlite_schema", &tables},
	} {
		if err := c.QueryRowContext(ctx, q.text).Scan(q.into); err != nil {
			return fmt.Errorf("read its version: %w", err)
		}
	}
	switch {
	case app != int(o.ApplicationID) && (app != 0 || version != 0 || tables != 0):
		return ErrForeign
	case version > len(o.Migrations):
		return fmt.Errorf("its schema is version %d and this program knows %d: %w", version, len(o.Migrations), ErrNewer)
	}
	for n := version; n < len(o.Migrations); n++ {
		if _, err := c.ExecContext(ctx, o.Migrations[n]); err != nil {
			return fmt.Errorf("bring it to schema version %d: %w", n+1, err)
		}
	}
	if version < len(o.Migrations) {
		// Pragmas take no parameters.
		set := fmt.Sprintf("PRAGMA application_id = %d; PRAGMA user_version = %d", int(o.ApplicationID), len(o.Migrations))
		if _, err := c.ExecContext(ctx, set); err != nil {
			return fmt.Errorf("note its version: %w", err)
		}
	}
	if _, err := c.ExecContext(ctx, "COMMIT"); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}
