package sqlitedb

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
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

// job is one write that waits for its transaction.
type job struct {
	f    func(context.Context, *Tx) error
	done chan error // capacity 1
	// taken is set by whoever decides the job's fate: the writer, which then
	// answers on done, or the caller, who gave up while it waited.
	taken atomic.Bool
}

type writerOptions struct {
	poll    bool
	wake    chan<- struct{}
	changed func() // tells other processes
	place   *place
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
	stmts *Reads
	jobs  chan *job
	quit  chan struct{}
	ended chan struct{}
	// version is SQLite's count of other connections' commits; run's alone.
	version int64
	moved   bool // the file was not where it was, when it was last looked at; run's alone
}

func startWriter(db *sql.DB, conn *sql.Conn, o writerOptions) *writer {
	w := &writer{
		writerOptions: o,
		db:            db,
		conn:          conn,
		stmts:         newReads(conn),
		jobs:          make(chan *job, maxBatch),
		quit:          make(chan struct{}),
		ended:         make(chan struct{}),
	}
	// close ends it and waits for it.
	go w.run()
	return w
}

// do runs f in a transaction, as Update says.
func (w *writer) do(ctx context.Context, f func(context.Context, *Tx) error) error {
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
	// A second look at the file, 1 µs beside a sync of the disk: without it a
	// revocation would be answered with "done" and be gone after a restart.
	changed, lost := false, w.place.moved()
	if lost != nil {
		w.answer(batch, outcome, lost)
		return
	}
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
	w.answer(batch, outcome, lost)
}

// answer tells each job of a batch its outcome; lost is what became of all.
func (w *writer) answer(batch []*job, outcome []error, lost error) {
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
	t := &Tx{Reads: w.stmts}
	if err = j.f(ctx, t); err != nil {
		_, lost = w.conn.ExecContext(ctx, "ROLLBACK TO job; RELEASE job")
		return false, err, lost
	}
	_, lost = w.conn.ExecContext(ctx, "RELEASE job")
	return t.signal, nil, lost
}

// look signals wake if another process has committed since the last look.
func (w *writer) look() {
	err := w.place.moved()
	switch {
	case err != nil && !w.moved:
		w.log.Error("the store cannot be used", "err", err)
	case err == nil && w.moved:
		w.log.Info("the store's file is back")
	}
	w.moved = err != nil
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

// close ends the goroutine; a transaction that has begun is finished first.
func (w *writer) close() error {
	close(w.quit)
	<-w.ended
	err := w.stmts.close()
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
