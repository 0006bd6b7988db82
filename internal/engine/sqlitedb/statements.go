package sqlitedb

import (
	"context"
	"database/sql"
	"sync"
)

// preparer is *sql.DB or *sql.Conn.
type preparer interface {
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
}

// Reads runs queries. It keeps what it prepared, so queries must be constants.
type Reads struct {
	on preparer

	mu    sync.RWMutex
	stmts map[string]*sql.Stmt
}

func newReads(on preparer) *Reads {
	return &Reads{on: on, stmts: make(map[string]*sql.Stmt)}
}

func (s *Reads) get(ctx context.Context, query string) (*sql.Stmt, error) {
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

// Row is one row of a result: *sql.Row, *sql.Rows, or the error of preparing.
type Row interface{ Scan(dest ...any) error }

type failedRow struct{ err error }

func (f failedRow) Scan(...any) error { return f.err }

// Row runs a query for one row; without one, Scan says sql.ErrNoRows.
func (s *Reads) Row(ctx context.Context, query string, args ...any) Row {
	stmt, err := s.get(ctx, query)
	if err != nil {
		return failedRow{err}
	}
	return stmt.QueryRowContext(ctx, args...)
}

// Each calls f for every row of the result; f scans.
func (s *Reads) Each(ctx context.Context, f func(Row) error, query string, args ...any) error {
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

func (s *Reads) close() error {
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

// Tx is one job's view of the running transaction. It is good until the job's
// function returns.
type Tx struct {
	*Reads
	signal bool
}

// Signal has Wake signalled here and in the process that follows, once the
// transaction is committed.
func (t *Tx) Signal() { t.signal = true }

// Exec runs a statement and says how many rows it changed.
func (t *Tx) Exec(ctx context.Context, query string, args ...any) (int64, error) {
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
