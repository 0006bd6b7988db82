package engine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"modernc.org/sqlite"
)

// InMemory is the path of a store that lives and dies with the process: no
// file, no socket, no polling, for tests in virtual time.
const InMemory = ":memory:"

var (
	// ErrCorrupt says that a file is no SQLite database, or a damaged one.
	ErrCorrupt = errors.New("the database is damaged or none: move it away, or put back a copy")
	// ErrNewer says that a later holdfast wrote the database.
	ErrNewer = errors.New("a later holdfast wrote this database: use that version, or put back a copy from before")
	// ErrForeign says that a database belongs to another program.
	ErrForeign = errors.New("this is another program's database")
	// ErrClosed says that the store was closed.
	ErrClosed = errors.New("store is closed")
	// ErrPruned says that changes were dropped from the log before they were
	// read: everything that an earlier answer allowed must be asked again.
	ErrPruned = errors.New("older changes are gone from the log")
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

const (
	// busyTimeout is how long a statement waits for another process's
	// transaction. Those take milliseconds; an fsync of a slow disk, a second.
	busyTimeout = 5 * time.Second
	// maxReaders bounds the reading connections: more than the usual number of
	// cores gains nothing, and each costs a page cache.
	maxReaders = 4
	// maxCheckedBytes is the size up to which opening checks every page: 64 MiB
	// take 0.2 s, and hold a hundred thousand machines.
	maxCheckedBytes = 64 << 20
	// walLimit is the size to which the log is cut after a checkpoint.
	walLimit = 4 << 20
)

// store is the Store in SQLite: one writing connection, owned by one goroutine
// that commits whatever waits in one transaction, and a few reading ones.
type store struct {
	path string
	now  func() time.Time
	log  *slog.Logger

	reads *statements // nil in memory, where the writer reads too
	pool  *sql.DB     // of reads
	write *writer
	wake  chan struct{}
	poke  *poke

	closeOnce sync.Once
	closeErr  error
}

// OpenSQLite opens the store at path, and makes it with mode 0600 if it is not
// there; its directory must exist. Two processes may have it open at the same
// time: each sees what the other changed. Errors: ErrCorrupt, ErrNewer,
// ErrForeign, or what the file system said.
func OpenSQLite(ctx context.Context, path string, o SQLiteOptions) (Store, error) {
	s, err := openSQLite(ctx, path, o)
	if err != nil {
		return nil, fmt.Errorf("open store %s: %w", path, explain(err))
	}
	return s, nil
}

func openSQLite(ctx context.Context, path string, o SQLiteOptions) (_ *store, err error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &store{path: path, now: o.Now, log: o.Log, wake: make(chan struct{}, 1)}
	memory := path == InMemory
	if !memory {
		if s.path, err = filepath.Abs(path); err != nil {
			return nil, err
		}
		if err := makePrivate(s.path); err != nil {
			return nil, err
		}
		// SQLite's own builds sync with fdatasync where there is one; no table of
		// ours depends on a timestamp of the file.
		if _, err := sqlite.Fdatasync(true); err != nil && !errors.Is(err, sqlite.ErrFdatasyncUnavailable) {
			return nil, err
		}
	}

	db, err := sql.Open("sqlite", dsn(s.path, memory, false))
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	defer func() {
		if err != nil {
			db.Close()
		}
	}()
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	if err := migrate(ctx, conn); err != nil {
		return nil, err
	}
	if !memory {
		if err := check(ctx, conn, s.path); err != nil {
			return nil, err
		}
		if s.pool, err = sql.Open("sqlite", dsn(s.path, false, true)); err != nil {
			return nil, err
		}
		s.pool.SetMaxOpenConns(maxReaders)
		s.pool.SetMaxIdleConns(maxReaders)
		s.reads = newStatements(s.pool)
		if s.poke, err = openPoke(s.path, !o.NoFollow, s.wake, o.Log); err != nil {
			return nil, errors.Join(err, s.pool.Close())
		}
	}
	s.write = startWriter(db, conn, writerOptions{
		poll:    !memory && !o.NoFollow,
		wake:    s.wake,
		changed: s.poke.send,
		log:     o.Log,
	})
	return s, nil
}

// makePrivate makes the file with mode 0600 before SQLite can make it with a
// wider one, and narrows the mode of one that is there: its log and index files
// take theirs from it.
func makePrivate(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("not a regular file: %w", fs.ErrInvalid)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return f.Chmod(0o600)
	}
	return nil
}

func dsn(path string, memory, readOnly bool) string {
	q := url.Values{"_txlock": {"immediate"}}
	q.Add("_pragma", fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds()))
	q.Add("_pragma", "foreign_keys(1)")
	q.Add("_pragma", "trusted_schema(0)")
	if memory {
		return InMemory + "?" + q.Encode()
	}
	q.Add("_pragma", "journal_mode(wal)")
	// FULL, not NORMAL: a revocation that was answered with "done" must outlive a
	// power cut.
	q.Add("_pragma", "synchronous(full)")
	q.Add("_pragma", fmt.Sprintf("journal_size_limit(%d)", walLimit))
	if readOnly {
		q.Add("_pragma", "query_only(1)")
	}
	u := url.URL{Scheme: "file", Path: filepath.ToSlash(path), RawQuery: q.Encode()}
	return u.String()
}

// check looks for damage before anything is answered from the database.
func check(ctx context.Context, c *sql.Conn, path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Size() > maxCheckedBytes {
		return nil
	}
	var verdict string
	if err := c.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&verdict); err != nil {
		return fmt.Errorf("check: %w", err)
	}
	if verdict != "ok" {
		return fmt.Errorf("%w (%s)", ErrCorrupt, verdict)
	}
	return nil
}

// Result codes of SQLite that mean a damaged file, as sqlite.org/rescode.html
// lists them; the low byte is the primary code.
const (
	codeCorrupt = 11
	codeNotADB  = 26
)

// explain adds what to do to the errors that a person can do something about.
func explain(err error) error {
	var se *sqlite.Error
	if errors.As(err, &se) && !errors.Is(err, ErrCorrupt) {
		switch se.Code() & 0xff {
		case codeCorrupt, codeNotADB:
			return fmt.Errorf("%w (%w)", ErrCorrupt, err)
		}
	}
	return err
}

// view runs f with a connection that sees every change that was acknowledged.
func (s *store) view(ctx context.Context, doing string, f func(context.Context, *statements) error) error {
	var err error
	if s.reads == nil {
		err = s.write.do(ctx, func(ctx context.Context, t *tx) error { return f(ctx, t.statements) })
	} else {
		err = f(ctx, s.reads)
	}
	return wrap(doing, err)
}

// update runs f in a transaction that is durable when update returns nil, and
// left no trace when it returns an error.
func (s *store) update(ctx context.Context, doing string, f func(context.Context, *tx) error) error {
	return wrap(doing, s.write.do(ctx, f))
}

func wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, explain(err))
}

// Wake is Store's.
func (s *store) Wake() <-chan struct{} { return s.wake }

// Ping is Store's: it takes the way of a write, so a full disk's lock or a
// stuck writer shows.
func (s *store) Ping(ctx context.Context) error {
	return s.update(ctx, "ping store", func(ctx context.Context, t *tx) error {
		var one int
		return t.row(ctx, "SELECT 1 FROM sqlite_schema LIMIT 1").Scan(&one)
	})
}

// Close is Store's. It waits for the writes that have begun; a second Close
// does nothing.
func (s *store) Close() error {
	s.closeOnce.Do(func() {
		closers := []io.Closer{s.poke, s.write}
		if s.pool != nil {
			closers = append(closers, s.reads, s.pool)
		}
		var errs []error
		for _, c := range closers {
			errs = append(errs, c.Close())
		}
		s.closeErr = wrap("close store", errors.Join(errs...))
	})
	return s.closeErr
}

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
