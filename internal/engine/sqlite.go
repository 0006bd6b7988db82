package engine

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"holdfast/internal/engine/sqlitedb"
)

// InMemory is the path of a store that lives and dies with the process: no
// file, no socket, no polling, for tests in virtual time.
const InMemory = sqlitedb.InMemory

// Errors of OpenSQLite, and of a store that was closed.
var (
	// ErrCorrupt says that a file is no SQLite database, or a damaged one.
	ErrCorrupt = sqlitedb.ErrCorrupt
	// ErrNewer says that a later holdfast wrote the database.
	ErrNewer = sqlitedb.ErrNewer
	// ErrForeign says that a database belongs to another program.
	ErrForeign = sqlitedb.ErrForeign
	// ErrMoved says that the store's file is not where it was opened any more.
	ErrMoved = sqlitedb.ErrMoved
	// ErrClosed says that the store or router was closed.
	ErrClosed = sqlitedb.ErrClosed
)

// SQLiteOptions are the options of OpenSQLite. The zero value is right for a
// relay.
type SQLiteOptions struct {
	// NoFollow leaves out the poke socket and the polling, for a command that
	// changes something and ends. Its own changes still reach a relay.
	NoFollow bool
	// Now is the wall clock; nil means time.Now.
	Now func() time.Time
	// Log gets what does not stop the store; nil means nowhere.
	Log *slog.Logger
}

// store is the Store in SQLite.
type store struct {
	db  *sqlitedb.DB
	now func() time.Time
}

// OpenSQLite opens the store at path, and makes it with mode 0600 if it is not
// there; its directory must exist. Two processes may have it open at the same
// time: each sees what the other changed. Errors: ErrCorrupt, ErrNewer,
// ErrForeign, or what the file system said.
func OpenSQLite(ctx context.Context, path string, o SQLiteOptions) (Store, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	db, err := sqlitedb.Open(ctx, path, sqlitedb.Options{
		ApplicationID: applicationID, Migrations: migrations, NoFollow: o.NoFollow, Log: o.Log,
	})
	if err != nil {
		return nil, fmt.Errorf("open store %s: %w", path, err)
	}
	return &store{db: db, now: o.Now}, nil
}

// view and update are the database's, with what was being done in the error.
func (s *store) view(ctx context.Context, doing string, f func(context.Context, *sqlitedb.Reads) error) error {
	return wrap(doing, s.db.View(ctx, f))
}

func (s *store) update(ctx context.Context, doing string, f func(context.Context, *sqlitedb.Tx) error) error {
	return wrap(doing, s.db.Update(ctx, f))
}

func wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// Wake is Store's.
func (s *store) Wake() <-chan struct{} { return s.db.Wake() }

// Ping is Store's: it takes the way of a write, so a lock that another process
// keeps, or a stuck writer, shows.
func (s *store) Ping(ctx context.Context) error {
	return s.update(ctx, "ping store", func(ctx context.Context, t *sqlitedb.Tx) error {
		// Every route but the page needs a token, so ready means that one could
		// be looked up.
		var n int
		return t.Row(ctx, "SELECT count(*) FROM (SELECT 1 FROM tokens LIMIT 1)").Scan(&n)
	})
}

// Close is Store's. It waits for the writes that have begun; a second Close
// does nothing.
func (s *store) Close() error { return wrap("close store", s.db.Close()) }

// micros is t as the database holds it.
func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// fromMicros is the reverse of micros, in UTC.
func fromMicros(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.UnixMicro(n).UTC()
}
