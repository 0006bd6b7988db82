package engine

import (
	"context"
	"errors"
	"fmt"

	"holdfast/internal/engine/sqlitedb"
	"holdfast/internal/wire"
)

// maxFromBytes bounds the address of a token's last use: an IPv6 address with
// zone and port has at most 68.
const maxFromBytes = 80

const tokenColumns = `SELECT id, hash, account, kind, name, machine, device,
	created, expires, revoked, used, used_from FROM tokens `

func scanToken(row sqlitedb.Row) (Token, error) {
	var t Token
	var hash []byte
	var created, expires, revoked, used int64
	err := row.Scan(&t.ID, &hash, &t.Account, &t.Kind, &t.Name, &t.Machine, &t.Device,
		&created, &expires, &revoked, &used, &t.From)
	if err != nil {
		return Token{}, err
	}
	copy(t.Hash[:], hash)
	t.Created, t.Expires = fromMicros(created), fromMicros(expires)
	t.Revoked, t.Used = fromMicros(revoked), fromMicros(used)
	return t, nil
}

// AddToken is Store's.
func (s *store) AddToken(ctx context.Context, token Token) error {
	return s.update(ctx, fmt.Sprintf("add token %q", token.ID), func(ctx context.Context, t *sqlitedb.Tx) error {
		return s.addToken(ctx, t, token)
	})
}

func (s *store) addToken(ctx context.Context, t *sqlitedb.Tx, token Token) error {
	switch {
	case token.ID == "" || token.Hash == [32]byte{}:
		return errors.New("token has no id or no hash")
	case token.Kind != KindAgent && token.Kind != KindDevice:
		return fmt.Errorf("token of kind %q: %w", token.Kind, wire.ErrSyntax)
	case token.Machine != "" && token.Kind != KindAgent:
		return fmt.Errorf("a %s token is not bound to a machine: %w", token.Kind, wire.ErrSyntax)
	}
	if token.Created.IsZero() {
		token.Created = s.now()
	}
	_, err := t.Exec(ctx, `INSERT INTO tokens
		(id, hash, account, kind, name, machine, device, created, expires, revoked)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		token.ID, token.Hash[:], token.Account, token.Kind, token.Name, token.Machine, token.Device,
		micros(token.Created), micros(token.Expires), micros(token.Revoked))
	if err != nil {
		return refused(err)
	}
	if token.Machine == "" {
		return nil
	}
	return s.addMachine(ctx, t, Key{token.Account, token.Machine})
}

// TokenByHash is Store's.
func (s *store) TokenByHash(ctx context.Context, hash [32]byte) (Token, error) {
	var out Token
	err := s.view(ctx, "find token", func(ctx context.Context, q *sqlitedb.Reads) (err error) {
		out, err = scanToken(q.Row(ctx, tokenColumns+"WHERE hash = ?", hash[:]))
		return found(err)
	})
	return out, err
}

// Tokens is Store's, oldest first.
func (s *store) Tokens(ctx context.Context, account AccountID) ([]Token, error) {
	var out []Token
	err := s.view(ctx, fmt.Sprintf("list tokens of %q", account), func(ctx context.Context, q *sqlitedb.Reads) error {
		return q.Each(ctx, func(row sqlitedb.Row) error {
			t, err := scanToken(row)
			out = append(out, t)
			return err
		}, tokenColumns+"WHERE account = ? ORDER BY created, id", account)
	})
	return out, err
}

// RevokeToken is Store's.
func (s *store) RevokeToken(ctx context.Context, account AccountID, id string) error {
	return s.update(ctx, fmt.Sprintf("revoke token %q", id), func(ctx context.Context, t *sqlitedb.Tx) error {
		var machine, device string
		var revoked int64
		err := t.Row(ctx, "SELECT machine, device, revoked FROM tokens WHERE account = ? AND id = ?", account, id).
			Scan(&machine, &device, &revoked)
		if err != nil {
			return found(err)
		}
		if revoked != 0 {
			return nil
		}
		// Its link must not give the device another one.
		if _, err := t.Exec(ctx, "DELETE FROM pairings WHERE account = ? AND token = ?", account, id); err != nil {
			return err
		}
		return s.revokeToken(ctx, t, Change{
			Account: account, Machine: wire.MachineID(machine), Token: id, Device: device,
		})
	})
}

func (s *store) revokeToken(ctx context.Context, t *sqlitedb.Tx, c Change) error {
	if _, err := t.Exec(ctx, "UPDATE tokens SET revoked = ? WHERE id = ? AND revoked = 0", micros(s.now()), c.Token); err != nil {
		return err
	}
	c.Kind = ChangeToken
	return note(ctx, t, c)
}

// BindToken is Store's. The usual case, a bound token that comes back, only
// reads.
func (s *store) BindToken(ctx context.Context, id string, machine wire.MachineID) error {
	doing := fmt.Sprintf("bind token %q to %q", id, machine)
	var bound wire.MachineID
	err := s.view(ctx, doing, func(ctx context.Context, q *sqlitedb.Reads) (err error) {
		bound, _, err = compareBinding(ctx, q, id, machine)
		return err
	})
	if err != nil || bound != "" {
		return err
	}
	return s.update(ctx, doing, func(ctx context.Context, t *sqlitedb.Tx) error {
		if _, err := wire.ParseMachineID(string(machine)); err != nil {
			return err
		}
		// Another connection may have bound it in between.
		bound, account, err := compareBinding(ctx, t.Reads, id, machine)
		if err != nil || bound != "" {
			return err
		}
		if _, err := t.Exec(ctx, "UPDATE tokens SET machine = ? WHERE id = ?", machine, id); err != nil {
			return err
		}
		return s.addMachine(ctx, t, Key{account, machine})
	})
}

// compareBinding gives the machine that an agent token is bound to, if any;
// it is an error if that is another one, or one that was removed.
func compareBinding(ctx context.Context, q *sqlitedb.Reads, id string, machine wire.MachineID) (wire.MachineID, AccountID, error) {
	var bound wire.MachineID
	var account AccountID
	var there bool
	err := q.Row(ctx, `SELECT machine, account,
		EXISTS (SELECT 1 FROM machines m WHERE m.account = t.account AND m.name = t.machine)
		FROM tokens t WHERE id = ? AND kind = ?`, id, KindAgent).Scan(&bound, &account, &there)
	switch {
	case err != nil:
		return "", "", found(err)
	case bound != "" && bound != machine:
		return "", "", ErrBoundElsewhere
	case bound != "" && !there:
		return "", "", ErrNotFound
	}
	return bound, account, nil
}

// TouchTokens is Store's.
func (s *store) TouchTokens(ctx context.Context, uses map[string]Use) error {
	if len(uses) == 0 {
		return nil
	}
	return s.update(ctx, "note the use of tokens", func(ctx context.Context, t *sqlitedb.Tx) error {
		for id, use := range uses {
			at := micros(use.At)
			// Batches of two connections may come in either order.
			_, err := t.Exec(ctx, "UPDATE tokens SET used = ?1, used_from = ?2 WHERE id = ?3 AND used <= ?1",
				at, wire.CleanText(use.From, maxFromBytes), id)
			if err != nil {
				return err
			}
			_, err = t.Exec(ctx, `UPDATE devices SET used = ?1 WHERE used <= ?1
				AND id = (SELECT device FROM tokens WHERE id = ?2)`, at, id)
			if err != nil {
				return err
			}
		}
		return nil
	})
}
