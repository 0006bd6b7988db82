package engine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"modernc.org/sqlite"

	"holdfast/internal/engine/sqlitedb"
	"holdfast/internal/wire"
)

const (
	// maxChanges bounds the log of changes: a relay reads it four times a second,
	// so five thousand are gone unread only where it was stopped for long.
	maxChanges = 5_000
	// maxRead bounds one answer of Changes.
	maxRead = 1_000
	// newest is what Changes takes for "only the newest".
	newest = -1
)

// SQLite's extended result codes for rows that others forbid or miss.
const (
	codeUnique     = 2067
	codePrimaryKey = 1555
	codeForeignKey = 787
)

// refused turns a broken constraint into the Store's error for it.
func refused(err error) error {
	var se *sqlite.Error
	if errors.As(err, &se) {
		switch se.Code() {
		case codeUnique, codePrimaryKey:
			return ErrExists
		case codeForeignKey:
			return ErrNotFound
		}
	}
	return err
}

// found turns "no rows" into ErrNotFound.
func found(err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return ErrNotFound
	}
	return err
}

// hit is the outcome of a statement that names one row.
func hit(n int64, err error) error {
	if err == nil && n == 0 {
		return ErrNotFound
	}
	return err
}

func checkAccount(id AccountID) error {
	if _, err := wire.ParseMachineID(string(id)); err != nil {
		return fmt.Errorf("account name: %w", wire.ErrSyntax)
	}
	return nil
}

// note adds a change to the log and cuts the log.
func note(ctx context.Context, t *sqlitedb.Tx, c Change) error {
	var seq int64
	err := t.Row(ctx, `INSERT INTO changes (kind, account, machine, token, device)
		VALUES (?, ?, ?, ?, ?) RETURNING seq`, c.Kind, c.Account, c.Machine, c.Token, c.Device).Scan(&seq)
	if err != nil {
		return err
	}
	t.Signal()
	_, err = t.Exec(ctx, "DELETE FROM changes WHERE seq <= ?", seq-maxChanges)
	return err
}

// Changes is Store's.
func (s *store) Changes(ctx context.Context, after int64) ([]Change, error) {
	var out []Change
	err := s.view(ctx, "read changes", func(ctx context.Context, q *sqlitedb.Reads) error {
		scan := func(row sqlitedb.Row) error {
			var c Change
			if err := row.Scan(&c.Seq, &c.Kind, &c.Account, &c.Machine, &c.Token, &c.Device); err != nil {
				return err
			}
			out = append(out, c)
			return nil
		}
		const columns = "SELECT seq, kind, account, machine, token, device FROM changes "
		if after <= newest {
			return q.Each(ctx, scan, columns+"ORDER BY seq DESC LIMIT 1")
		}
		return q.Each(ctx, scan, columns+"WHERE seq > ? ORDER BY seq LIMIT ?", after, maxRead)
	})
	if err != nil {
		return nil, err
	}
	// Numbers have no gaps but the one that cutting leaves.
	if after > newest && len(out) > 0 && out[0].Seq > after+1 {
		return nil, wrap("read changes", ErrPruned)
	}
	return out, nil
}

// AddAccount is Store's.
func (s *store) AddAccount(ctx context.Context, id AccountID) error {
	return s.update(ctx, fmt.Sprintf("add account %q", id), func(ctx context.Context, t *sqlitedb.Tx) error {
		if err := checkAccount(id); err != nil {
			return err
		}
		_, err := t.Exec(ctx, "INSERT INTO accounts (id, created) VALUES (?, ?)", id, micros(s.now()))
		return refused(err)
	})
}

// Accounts is Store's, sorted by name.
func (s *store) Accounts(ctx context.Context) ([]Account, error) {
	var out []Account
	err := s.view(ctx, "list accounts", func(ctx context.Context, q *sqlitedb.Reads) error {
		return q.Each(ctx, func(row sqlitedb.Row) error {
			var a Account
			var created int64
			if err := row.Scan(&a.ID, &created); err != nil {
				return err
			}
			a.Created = fromMicros(created)
			out = append(out, a)
			return nil
		}, "SELECT id, created FROM accounts ORDER BY id")
	})
	return out, err
}

// RemoveAccount is Store's.
func (s *store) RemoveAccount(ctx context.Context, id AccountID) error {
	return s.update(ctx, fmt.Sprintf("remove account %q", id), func(ctx context.Context, t *sqlitedb.Tx) error {
		if err := hit(t.Exec(ctx, "DELETE FROM accounts WHERE id = ?", id)); err != nil {
			return err
		}
		return note(ctx, t, Change{Kind: ChangeAccount, Account: id})
	})
}
