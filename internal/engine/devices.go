package engine

import (
	"context"
	"errors"
	"fmt"

	"holdfast/internal/engine/sqlitedb"
)

// maxPairings bounds the open links of one machine: a person opens one or two.
const maxPairings = 16

const deviceColumns = "SELECT id, account, name, key, created, revoked, used FROM devices "

func scanDevice(row sqlitedb.Row) (Device, error) {
	var d Device
	var created, revoked, used int64
	if err := row.Scan(&d.ID, &d.Account, &d.Name, &d.Key, &created, &revoked, &used); err != nil {
		return Device{}, err
	}
	d.Created, d.Revoked, d.Used = fromMicros(created), fromMicros(revoked), fromMicros(used)
	return d, nil
}

// Devices is Store's: all, also revoked ones, oldest first.
func (s *store) Devices(ctx context.Context, account AccountID) ([]Device, error) {
	var out []Device
	err := s.view(ctx, fmt.Sprintf("list devices of %q", account), func(ctx context.Context, q *sqlitedb.Reads) error {
		return q.Each(ctx, func(row sqlitedb.Row) error {
			d, err := scanDevice(row)
			out = append(out, d)
			return err
		}, deviceColumns+"WHERE account = ? ORDER BY created, id", account)
	})
	return out, err
}

// RevokeDevice is Store's.
func (s *store) RevokeDevice(ctx context.Context, account AccountID, id string) error {
	return s.update(ctx, fmt.Sprintf("revoke device %q", id), func(ctx context.Context, t *sqlitedb.Tx) error {
		d, err := scanDevice(t.Row(ctx, deviceColumns+"WHERE account = ? AND id = ?", account, id))
		if err != nil {
			return found(err)
		}
		if !d.Revoked.IsZero() {
			return nil
		}
		now := micros(s.now())
		for _, q := range []struct {
			text string
			args []any
		}{
			{"UPDATE devices SET revoked = ? WHERE id = ?", []any{now, id}},
			{"UPDATE tokens SET revoked = ? WHERE account = ? AND device = ? AND revoked = 0", []any{now, account, id}},
			{"DELETE FROM pairings WHERE account = ? AND key = ?", []any{account, d.Key}},
			{`INSERT INTO revocations (account, machine, device, key)
				SELECT account, name, ?, ? FROM machines WHERE account = ? ON CONFLICT DO NOTHING`,
				[]any{id, d.Key, account}},
		} {
			if _, err := t.Exec(ctx, q.text, q.args...); err != nil {
				return err
			}
		}
		return note(ctx, t, Change{Kind: ChangeDevice, Account: account, Device: id})
	})
}

// Revocations is Store's.
func (s *store) Revocations(ctx context.Context, k Key) ([]Revocation, error) {
	var out []Revocation
	err := s.view(ctx, fmt.Sprintf("list revocations for %s", k), func(ctx context.Context, q *sqlitedb.Reads) error {
		return q.Each(ctx, func(row sqlitedb.Row) error {
			var r Revocation
			err := row.Scan(&r.Device, &r.Key)
			out = append(out, r)
			return err
		}, "SELECT device, key FROM revocations WHERE account = ? AND machine = ? ORDER BY device", k.Account, k.Machine)
	})
	return out, err
}

// AckRevocation is Store's; one that is not there is acknowledged already.
func (s *store) AckRevocation(ctx context.Context, k Key, r Revocation) error {
	return s.update(ctx, fmt.Sprintf("acknowledge a revocation by %s", k), func(ctx context.Context, t *sqlitedb.Tx) error {
		_, err := t.Exec(ctx, "DELETE FROM revocations WHERE account = ? AND machine = ? AND device = ? AND key = ?",
			k.Account, k.Machine, r.Device, r.Key)
		return err
	})
}

// AddPairing is Store's.
func (s *store) AddPairing(ctx context.Context, p Pairing) error {
	return s.update(ctx, fmt.Sprintf("open a pairing for %s/%s", p.Account, p.Machine), func(ctx context.Context, t *sqlitedb.Tx) error {
		if _, err := t.Exec(ctx, "DELETE FROM pairings WHERE expires <= ?", micros(s.now())); err != nil {
			return err
		}
		_, err := t.Exec(ctx, "INSERT INTO pairings (hash, account, machine, expires) VALUES (?, ?, ?, ?)",
			p.Hash[:], p.Account, p.Machine, micros(p.Expires))
		if err != nil {
			return refused(err)
		}
		_, err = t.Exec(ctx, `DELETE FROM pairings WHERE hash IN (
			SELECT hash FROM pairings WHERE account = ? AND machine = ? AND hash <> ?
			ORDER BY expires DESC LIMIT -1 OFFSET ?)`, p.Account, p.Machine, p.Hash[:], maxPairings-1)
		return err
	})
}

// RemovePairing is Store's.
func (s *store) RemovePairing(ctx context.Context, hash [32]byte) error {
	return s.update(ctx, "close a pairing", func(ctx context.Context, t *sqlitedb.Tx) error {
		return hit(t.Exec(ctx, "DELETE FROM pairings WHERE hash = ?", hash[:]))
	})
}

// RedeemPairing is Store's.
func (s *store) RedeemPairing(ctx context.Context, hash [32]byte, d Device, token Token) (Device, Pairing, error) {
	p := Pairing{Hash: hash}
	err := s.update(ctx, "redeem a pairing", func(ctx context.Context, t *sqlitedb.Tx) error {
		if d.ID == "" || d.Key == "" {
			return errors.New("device has no id or no key")
		}
		now := s.now()
		var expires int64
		var key, earlier string
		err := t.Row(ctx, "SELECT account, machine, expires, key, token FROM pairings WHERE hash = ? AND expires > ?",
			hash[:], micros(now)).Scan(&p.Account, &p.Machine, &expires, &key, &earlier)
		if err != nil {
			return found(err)
		}
		if key != "" && key != d.Key {
			return ErrNotFound
		}
		p.Expires = fromMicros(expires)

		d.Account, d.Created = p.Account, fromMicros(micros(now))
		var created int64
		err = t.Row(ctx, `INSERT INTO devices (id, account, name, key, created) VALUES (?, ?, ?, ?, ?)
			ON CONFLICT (account, key) WHERE revoked = 0 DO UPDATE SET name = excluded.name
			RETURNING id, created`, d.ID, d.Account, d.Name, d.Key, micros(now)).Scan(&d.ID, &created)
		if err != nil {
			return refused(err)
		}
		d.Created = fromMicros(created)

		if earlier != "" {
			err := s.revokeToken(ctx, t, Change{Account: p.Account, Token: earlier, Device: d.ID})
			if err != nil {
				return err
			}
		}
		token.Account, token.Device, token.Kind = p.Account, d.ID, KindDevice
		if err := s.addToken(ctx, t, token); err != nil {
			return err
		}
		_, err = t.Exec(ctx, "UPDATE pairings SET key = ?, token = ? WHERE hash = ?", d.Key, token.ID, hash[:])
		if err != nil {
			return err
		}
		// A revocation that this machine has not acknowledged yet must not take
		// away the key that it is about to let in again.
		_, err = t.Exec(ctx, "DELETE FROM revocations WHERE account = ? AND machine = ? AND key = ?",
			p.Account, p.Machine, d.Key)
		return err
	})
	if err != nil {
		return Device{}, Pairing{}, err
	}
	return d, p, nil
}
