package engine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"holdfast/internal/engine/sqlitedb"
	"holdfast/internal/wire"
)

const machineColumns = "SELECT account, name, created, epoch, instance, attempt, seen FROM machines "

func scanMachine(row sqlitedb.Row) (Machine, error) {
	var m Machine
	var created, seen int64
	err := row.Scan(&m.Account, &m.Machine, &created, &m.Epoch, &m.Instance, &m.Attempt, &seen)
	if err != nil {
		return Machine{}, err
	}
	m.Created, m.Seen = fromMicros(created), fromMicros(seen)
	return m, nil
}

// addMachine makes a machine if it is not there.
func (s *store) addMachine(ctx context.Context, t *sqlitedb.Tx, k Key) error {
	if _, err := wire.ParseMachineID(string(k.Machine)); err != nil {
		return err
	}
	_, err := t.Exec(ctx, "INSERT INTO machines (account, name, created) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
		k.Account, k.Machine, micros(s.now()))
	return refused(err)
}

// Machine is Store's.
func (s *store) Machine(ctx context.Context, k Key) (Machine, error) {
	var out Machine
	err := s.view(ctx, fmt.Sprintf("find machine %s", k), func(ctx context.Context, q *sqlitedb.Reads) (err error) {
		out, err = scanMachine(q.Row(ctx, machineColumns+"WHERE account = ? AND name = ?", k.Account, k.Machine))
		return found(err)
	})
	return out, err
}

// Machines is Store's, sorted by name.
func (s *store) Machines(ctx context.Context, account AccountID) ([]Machine, error) {
	var out []Machine
	err := s.view(ctx, fmt.Sprintf("list machines of %q", account), func(ctx context.Context, q *sqlitedb.Reads) error {
		return q.Each(ctx, func(row sqlitedb.Row) error {
			m, err := scanMachine(row)
			out = append(out, m)
			return err
		}, machineColumns+"WHERE account = ? ORDER BY name", account)
	})
	return out, err
}

// RemoveMachine is Store's. Its tokens are revoked without a change of their
// own: their sockets are the machine's, and close as such.
func (s *store) RemoveMachine(ctx context.Context, k Key) error {
	return s.update(ctx, fmt.Sprintf("remove machine %s", k), func(ctx context.Context, t *sqlitedb.Tx) error {
		err := hit(t.Exec(ctx, "DELETE FROM machines WHERE account = ? AND name = ?", k.Account, k.Machine))
		if err != nil {
			return err
		}
		_, err = t.Exec(ctx, "UPDATE tokens SET revoked = ? WHERE account = ? AND machine = ? AND revoked = 0",
			micros(s.now()), k.Account, k.Machine)
		if err != nil {
			return err
		}
		return note(ctx, t, Change{Kind: ChangeMachine, Account: k.Account, Machine: k.Machine})
	})
}

// Claim is Store's. A clock that was stepped by more than the hold makes an
// instance's ban end, never last longer than the hold on either side.
func (s *store) Claim(ctx context.Context, k Key, instance wire.Instance, attempt uint64) (epoch uint64, err error) {
	if attempt > 1<<63-1 {
		return 0, wrap(fmt.Sprintf("claim machine %s", k), fmt.Errorf("attempt: %w", wire.ErrSyntax))
	}
	err = s.update(ctx, fmt.Sprintf("claim machine %s", k), func(ctx context.Context, t *sqlitedb.Tx) error {
		now, hold := micros(s.now()), wire.ReplacedHold.Microseconds()
		err := t.Row(ctx, `UPDATE machines SET epoch = epoch + 1, instance = ?1, attempt = ?2, seen = ?3
			WHERE account = ?4 AND name = ?5 AND (?1 = '' OR NOT (instance = ?1 AND attempt > ?2)
			AND NOT EXISTS (SELECT 1 FROM replaced r WHERE r.account = ?4 AND r.machine = ?5
				AND r.instance = ?1 AND r.since > ?3 - ?6 AND r.since < ?3 + ?6))
			RETURNING epoch`,
			instance, int64(attempt), now, k.Account, k.Machine, hold).Scan(&epoch)
		if !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		return whyNot(ctx, t, k, instance)
	})
	return epoch, err
}

// whyNot says why the claim changed no row; it runs in the claim's transaction.
func whyNot(ctx context.Context, t *sqlitedb.Tx, k Key, instance wire.Instance) error {
	var holder wire.Instance
	err := t.Row(ctx, "SELECT instance FROM machines WHERE account = ? AND name = ?", k.Account, k.Machine).Scan(&holder)
	switch {
	case err != nil:
		return found(err)
	case holder == instance:
		return ErrStaleAttempt
	default:
		return ErrReplaced
	}
}
