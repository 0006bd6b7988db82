// Package sqlitedb is one SQLite file that many goroutines and a few processes
// share: writes that wait are committed together, each durable when it is
// answered; reads never wait for them; and a change that another process made is
// signalled within a quarter of a second. It knows no table.
//
// What a caller will get wrong: the function that is given to Update may run in
// one transaction with others', so it must leave transactions alone and use
// nothing but its Tx; and it must not call the DB, whose one writer it occupies.
package sqlitedb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"modernc.org/sqlite"
)

// InMemory is the path of a database that lives and dies with the process: no
// file, no socket, no polling.
const InMemory = ":memory:"

var (
	// ErrCorrupt says that a file is no SQLite database, or a damaged one.
	ErrCorrupt = errors.New("the database is damaged or none: move it away, or put back a copy")
	// ErrNewer says that a later holdfast wrote the database.
	ErrNewer = errors.New("a later holdfast wrote this database: use that version, or put back a copy from before")
	// ErrForeign says that a database belongs to another program.
	ErrForeign = errors.New("this is another program's database")
	// ErrMoved says that the file is not where it was opened any more: what is
	// written now would be lost with this process.
	ErrMoved = errors.New("the database's file was moved, removed or replaced while it was open: put it back, or restart")
	// ErrClosed says that the database was closed.
	ErrClosed = errors.New("store is closed")
)

// Options are the options of Open.
type Options struct {
	// ApplicationID marks a database as the program's own (required): a path that
	// was mistyped never turns somebody else's database into one of ours.
	ApplicationID int32
	// Migrations are the steps from one schema version to the next (required);
	// the version is their number. A step that was released is never changed.
	Migrations []string
	// NoFollow leaves out the socket and the polling, for a command that changes
	// something and ends. Its own changes still reach a process that follows.
	NoFollow bool
	// Log gets what does not stop the database; nil means nowhere.
	Log *slog.Logger
}

const (
	// busyTimeout is how long a statement waits for another process's
	// transaction. Those take milliseconds; an fsync of a slow disk, a second.
	busyTimeout = 5 * time.Second
	// minReaders and maxReaders bound the reading connections, of which there are
	// as many as cores: more gain nothing, each costs a page cache, and with one
	// alone a slow question would hold up all others.
	minReaders, maxReaders = 2, 4
	// maxCheckedBytes is the size up to which opening checks every page: 64 MiB
	// take 0.2 s, and hold a hundred thousand machines.
	maxCheckedBytes = 64 << 20
	// readCacheKiB and writeCacheKiB bound the page cache of a connection. What is
	// looked up are single rows, by hash or name, and the system's own cache is
	// behind this one: with SQLite's 2 MiB each, five connections had 10 MiB, as
	// much as the registry of ten thousand machines. At half of these the upper
	// pages of the indexes would not stay.
	readCacheKiB  = 256
	writeCacheKiB = 512
	// walLimit is the size to which the log is cut after a checkpoint.
	walLimit = 4 << 20
)

// DB is an open database: one writing connection, owned by one goroutine that
// commits whatever waits in one transaction, and a few reading ones. It is safe
// for concurrent use.
type DB struct {
	reads *Reads  // nil in memory, where the writer reads too
	pool  *sql.DB // of reads
	write *writer
	wake  chan struct{}
	poke  *poke
	place place

	closeOnce sync.Once
	closeErr  error
}

// Open opens the database at path, and makes it with mode 0600 if it is not
// there; its directory must exist. Errors: ErrCorrupt, ErrNewer, ErrForeign, or
// what the file system said.
func Open(ctx context.Context, path string, o Options) (*DB, error) {
	d, err := open(ctx, path, o)
	return d, explain(err)
}

func open(ctx context.Context, path string, o Options) (_ *DB, err error) {
	if o.ApplicationID == 0 || len(o.Migrations) == 0 {
		return nil, errors.New("sqlitedb: ApplicationID and Migrations are required")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	d := &DB{wake: make(chan struct{}, 1)}
	memory := path == InMemory
	if !memory {
		if path, err = filepath.Abs(path); err != nil {
			return nil, err
		}
		if err := makePrivate(path); err != nil {
			return nil, err
		}
		// SQLite's own builds sync with fdatasync where there is one; nothing of
		// ours depends on a timestamp of the file.
		if _, err := sqlite.Fdatasync(true); err != nil && !errors.Is(err, sqlite.ErrFdatasyncUnavailable) {
			return nil, err
		}
	}

	db, err := sql.Open("sqlite", dsn(path, memory, false))
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
	if err := migrate(ctx, conn, o); err != nil {
		return nil, err
	}
	if !memory {
		if err := check(ctx, conn, path); err != nil {
			return nil, err
		}
		if d.pool, err = sql.Open("sqlite", dsn(path, false, true)); err != nil {
			return nil, err
		}
		readers := min(max(runtime.GOMAXPROCS(0), minReaders), maxReaders)
		d.pool.SetMaxOpenConns(readers)
		d.pool.SetMaxIdleConns(readers)
		d.reads = newReads(d.pool)
		if d.place.opened, err = os.Stat(path); err != nil {
			return nil, err
		}
		d.place.path = path
		d.poke = openPoke(path, !o.NoFollow, d.wake, o.Log)
	}
	d.write = startWriter(db, conn, writerOptions{
		poll:    !memory && !o.NoFollow,
		wake:    d.wake,
		changed: d.poke.send,
		place:   &d.place,
		log:     o.Log,
	})
	return d, nil
}

// place is where a database's file is. In memory it is empty, and the file never
// moves.
type place struct {
	path   string
	opened fs.FileInfo
}

// moved says whether another file is there now, or none: ErrMoved. A file system
// that does not answer says nothing about that.
func (p *place) moved() error {
	if p.path == "" {
		return nil
	}
	switch now, err := os.Stat(p.path); {
	case errors.Is(err, fs.ErrNotExist):
		return ErrMoved
	case err == nil && !os.SameFile(now, p.opened):
		return ErrMoved
	}
	return nil
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
	cache := writeCacheKiB
	if readOnly {
		cache = readCacheKiB
		q.Add("_pragma", "query_only(1)")
	}
	q.Add("_pragma", fmt.Sprintf("cache_size(-%d)", cache))
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

// View runs f with queries that see every change that was acknowledged.
func (d *DB) View(ctx context.Context, f func(context.Context, *Reads) error) error {
	if d.reads == nil {
		return explain(d.write.do(ctx, func(ctx context.Context, t *Tx) error { return f(ctx, t.Reads) }))
	}
	return explain(f(ctx, d.reads))
}

// Update runs f in a transaction that is durable when Update returns nil, and
// left no trace when it returns an error. Once f has begun, Update waits for the
// outcome whatever ctx says. ErrMoved: the file is not where it was.
func (d *DB) Update(ctx context.Context, f func(context.Context, *Tx) error) error {
	return explain(d.write.do(ctx, f))
}

// Wake is signalled (capacity 1, never closed) after an Update that called
// Signal, and when another process has changed something, at most 250 ms late.
func (d *DB) Wake() <-chan struct{} { return d.wake }

// Close waits for the writes that have begun; a second Close does nothing.
func (d *DB) Close() error {
	d.closeOnce.Do(func() {
		errs := []error{d.poke.close(), d.write.close()}
		if d.pool != nil {
			errs = append(errs, d.reads.close(), d.pool.Close())
		}
		d.closeErr = errors.Join(errs...)
	})
	return d.closeErr
}
