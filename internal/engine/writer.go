package engine

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// pollInterval is how often a change of another process is looked for; it
	// bounds how late Wake is where the poke did not come. A look costs 20 µs.
	pollInterval = 250 * time.Millisecond
	// maxBatch bounds the writes of one transaction, and with it how long another
	// process waits for its turn. After a restart thousands of agents claim their
	// machines at once, and a sync of the disk for each would take minutes.
	maxBatch = 256
)

// preparer is *sql.DB or *sql.Conn.
type preparer interface {
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
}

// statements keeps what it prepared; queries are constants, so they are few.
type statements struct {
	on preparer

	mu    sync.RWMutex
	stmts map[string]*sql.Stmt
}

func newStatements(on preparer) *statements {
	return &statements{on: on, stmts: make(map[string]*sql.Stmt)}
}

func (s *statements) get(ctx context.Context, query string) (*sql.Stmt, error) {
	s.mu.RLock()
	stmt := s.stmts[query]
	s.mu.RUnlock()
	if stmt != nil {
		return stmt, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if stmt := s.stmts[query]; stmt != nil {
		return stmt, nil
	}
	stmt, err := s.on.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	s.stmts[query] = stmt
	return stmt, nil
}

// scanner is what row gives: *sql.Row, or the error of preparing.
type scanner interface{ Scan(dest ...any) error }

type failedRow struct{ err error }

func (f failedRow) Scan(...any) error { return f.err }

func (s *statements) row(ctx context.Context, query string, args ...any) scanner {
	stmt, err := s.get(ctx, query)
	if err != nil {
		return failedRow{err}
	}
	return stmt.QueryRowContext(ctx, args...)
}

// each calls f for every row of the result; f scans.
func (s *statements) each(ctx context.Context, f func(scanner) error, query string, args ...any) error {
	stmt, err := s.get(ctx, query)
	if err != nil {
		return err
	}
	rows, err := stmt.QueryContext(ctx, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := f(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (s *statements) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var first error
	for _, stmt := range s.stmts {
		if err := stmt.Close(); err != nil && first == nil {
			first = err
		}
	}
	clear(s.stmts)
	return first
}

// tx is one job's view of the running transaction.
type tx struct {
	*statements
	changed bool // the change log grew
}

// exec runs a statement and says how many rows it changed.
func (t *tx) exec(ctx context.Context, query string, args ...any) (int64, error) {
	stmt, err := t.get(ctx, query)
	if err != nil {
		return 0, err
	}
	res, err := stmt.ExecContext(ctx, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// job is one write that waits for its transaction.
type job struct {
	f    func(context.Context, *tx) error
	done chan error // capacity 1
	// taken is set by whoever decides the job's fate: the writer, which then
	// answers on done, or the caller, who gave up while it waited.
	taken atomic.Bool
}

type writerOptions struct {
	poll    bool
	wake    chan<- struct{}
	changed func() // tells other processes
	log     *slog.Logger
}

// writer owns the one writing connection. Writes that wait while a transaction
// is committed share the next one, so their number for each sync of the disk
// grows with the load; each has its own savepoint, so one that fails takes no
// other with it.
type writer struct {
	writerOptions
	db    *sql.DB
	conn  *sql.Conn
	stmts *statements
	jobs  chan *job
	quit  chan struct{}
	ended chan struct{}
	// version is SQLite's count of other connections' commits; run's alone.
	version int64
}

func startWriter(db *sql.DB, conn *sql.Conn, o writerOptions) *writer {
	w := &writer{
		writerOptions: o,
		db:            db,
		conn:          conn,
		stmts:         newStatements(conn),
		jobs:          make(chan *job, maxBatch),
		quit:          make(chan struct{}),
		ended:         make(chan struct{}),
	}
	// Close ends it and waits for it.
	go w.run()
	return w
}

// do runs f in a transaction. Once the writer took f up, do waits for the
// outcome whatever ctx says: an error means that nothing changed.
func (w *writer) do(ctx context.Context, f func(context.Context, *tx) error) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	j := &job{f: f, done: make(chan error, 1)}
	select {
	case w.jobs <- j:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-w.quit:
		return ErrClosed
	}
	select {
	case err := <-j.done:
		return err
	case <-ctx.Done():
		if j.taken.CompareAndSwap(false, true) {
			return context.Cause(ctx)
		}
	case <-w.ended:
		if j.taken.CompareAndSwap(false, true) {
			return ErrClosed
		}
	}
	return <-j.done
}

func (w *writer) run() {
	defer close(w.ended)
	var tick <-chan time.Time
	if w.poll {
		w.look()
		t := time.NewTicker(pollInterval)
		defer t.Stop()
		tick = t.C
	}
	batch := make([]*job, 0, maxBatch)
	for {
		select {
		case <-w.quit:
			return
		case <-tick:
			w.look()
		case j := <-w.jobs:
			batch = w.collect(append(batch[:0], j))
			w.commit(batch)
			clear(batch)
		}
	}
}

// collect adds what waits already.
func (w *writer) collect(batch []*job) []*job {
	for len(batch) < maxBatch {
		select {
		case j := <-w.jobs:
			batch = append(batch, j)
		default:
			return batch
		}
	}
	return batch
}

// commit runs the jobs of a batch in one transaction and answers each.
func (w *writer) commit(batch []*job) {
	// The jobs' contexts end their waiting, not the statements: a statement that
	// is interrupted may take the whole transaction with it.
	ctx := context.Background()
	outcome := make([]error, len(batch))
	changed, lost := false, error(nil)
	if _, lost = w.conn.ExecContext(ctx, "BEGIN IMMEDIATE"); lost == nil {
		for i, j := range batch {
			if !j.taken.CompareAndSwap(false, true) {
				batch[i] = nil // its caller gave up
				continue
			}
			var grew bool
			if grew, outcome[i], lost = w.savepoint(ctx, j); lost != nil {
				break
			}
			changed = changed || grew
		}
		if lost == nil {
			_, lost = w.conn.ExecContext(ctx, "COMMIT")
		}
		if lost != nil {
			// It fails where SQLite has rolled back by itself, which is as good.
			w.conn.ExecContext(ctx, "ROLLBACK")
		}
	}
	if lost == nil && changed {
		signal(w.wake)
		w.changed()
	}
	for i, j := range batch {
		switch {
		case j == nil:
		case lost != nil:
			if outcome[i] == nil {
				outcome[i] = lost
			}
			j.done <- outcome[i]
		default:
			j.done <- outcome[i]
		}
	}
}

// savepoint runs one job. err is the job's own; lost is set where the whole
// transaction is.
func (w *writer) savepoint(ctx context.Context, j *job) (changed bool, err, lost error) {
	if _, lost = w.conn.ExecContext(ctx, "SAVEPOINT job"); lost != nil {
		return false, nil, lost
	}
	t := &tx{statements: w.stmts}
	if err = j.f(ctx, t); err != nil {
		_, lost = w.conn.ExecContext(ctx, "ROLLBACK TO job; RELEASE job")
		return false, err, lost
	}
	_, lost = w.conn.ExecContext(ctx, "RELEASE job")
	return t.changed, nil, lost
}

// look signals wake if another process has committed since the last look.
func (w *writer) look() {
	var v int64
	if err := w.conn.QueryRowContext(context.Background(), "PRAGMA data_version").Scan(&v); err != nil {
		w.log.Warn("look for changes of other processes", "err", err)
		return
	}
	if w.version != 0 && v != w.version {
		signal(w.wake)
	}
	w.version = v
}

// Close ends the goroutine; a transaction that has begun is finished first.
func (w *writer) Close() error {
	close(w.quit)
	<-w.ended
	err := w.stmts.Close()
	if cerr := w.conn.Close(); err == nil {
		err = cerr
	}
	if cerr := w.db.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("close writing connection: %w", err)
	}
	return nil
}

// signal sets a flag that a channel of capacity 1 is.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
