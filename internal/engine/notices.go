package engine

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"

	"holdfast/internal/engine/sqlitedb"
	"holdfast/internal/wire"
)

// maxNoticeIDBytes bounds an id that a caller gives; ours have 24.
const maxNoticeIDBytes = 64

// newNoticeID sorts by time: microseconds in hexadecimal, and 45 random bits, so
// that two of one instant differ.
func newNoticeID(micros int64) string {
	return fmt.Sprintf("n%014x%s", max(micros, 0), strings.ToLower(rand.Text()[:9]))
}

// PostNotice is Store's.
func (s *store) PostNotice(ctx context.Context, n Notice) (id string, accounts int, err error) {
	doing := "post a notice"
	if n.Account != "" {
		doing = fmt.Sprintf("post a notice to %q", n.Account)
	}
	now := s.now()
	if n.ID == "" {
		n.ID = newNoticeID(micros(now))
	}
	err = s.update(ctx, doing, func(ctx context.Context, t *sqlitedb.Tx) error {
		if err := wire.CheckNotice(n.Text); err != nil {
			return err
		}
		if len(n.ID) > maxNoticeIDBytes {
			return fmt.Errorf("notice id is longer than %d bytes: %w", maxNoticeIDBytes, wire.ErrSyntax)
		}
		rows, err := t.Exec(ctx, `INSERT INTO notices (account, id, text, posted)
			SELECT id, ?1, ?2, ?3 FROM accounts WHERE ?4 = '' OR id = ?4`, n.ID, n.Text, micros(now), n.Account)
		switch {
		case err != nil:
			return refused(err)
		case rows == 0 && n.Account != "":
			return ErrNotFound
		}
		accounts = int(rows)
		if _, err := t.Exec(ctx, "DELETE FROM notices WHERE posted <= ?", micros(now.Add(-NoticeAge))); err != nil {
			return err
		}
		if err := pruneNotices(ctx, t, n); err != nil {
			return err
		}
		return note(ctx, t, Change{Kind: ChangeNotice, Account: n.Account})
	})
	return n.ID, accounts, err
}

// pruneNotices takes away the oldest of each account that n gave too many. n
// itself stays, whatever the clock said when the others came.
func pruneNotices(ctx context.Context, t *sqlitedb.Tx, n Notice) error {
	var full []AccountID
	err := t.Each(ctx, func(row sqlitedb.Row) error {
		var id AccountID
		err := row.Scan(&id)
		full = append(full, id)
		return err
	}, "SELECT account FROM notices WHERE ?1 = '' OR account = ?1 GROUP BY account HAVING count(*) > ?2", n.Account, MaxNotices)
	if err != nil {
		return err
	}
	for _, id := range full {
		_, err := t.Exec(ctx, `DELETE FROM notices WHERE account = ?1 AND id IN (
			SELECT id FROM notices WHERE account = ?1 AND id <> ?2 ORDER BY id DESC LIMIT -1 OFFSET ?3)`, id, n.ID, MaxNotices-1)
		if err != nil {
			return err
		}
	}
	return nil
}

const noticeColumns = "SELECT account, id, text, posted, read FROM notices WHERE account = ? AND posted > ? "

func scanNotice(row sqlitedb.Row) (Notice, error) {
	var n Notice
	var posted, read int64
	err := row.Scan(&n.Account, &n.ID, &n.Text, &posted, &read)
	n.Posted, n.Read = fromMicros(posted), fromMicros(read)
	return n, err
}

// kept is the time from which on notices are kept.
func (s *store) kept() int64 { return micros(s.now().Add(-NoticeAge)) }

// Notices is Store's.
func (s *store) Notices(ctx context.Context, account AccountID, q NoticeQuery) ([]Notice, error) {
	if q.Limit <= 0 {
		q.Limit = MaxNotices
	}
	var out []Notice
	err := s.view(ctx, fmt.Sprintf("list notices of %q", account), func(ctx context.Context, r *sqlitedb.Reads) error {
		return r.Each(ctx, func(row sqlitedb.Row) error {
			n, err := scanNotice(row)
			out = append(out, n)
			return err
		}, noticeColumns+"AND id > ? AND NOT (read <> 0 AND ?) ORDER BY id LIMIT ?", account, s.kept(), q.After, q.Unread, q.Limit)
	})
	return out, err
}

// Notice is Store's.
func (s *store) Notice(ctx context.Context, account AccountID, id string) (Notice, error) {
	var out Notice
	err := s.view(ctx, "find a notice", func(ctx context.Context, r *sqlitedb.Reads) (err error) {
		out, err = scanNotice(r.Row(ctx, noticeColumns+"AND id = ?", account, s.kept(), id))
		return found(err)
	})
	return out, err
}

// AckNotice is Store's.
func (s *store) AckNotice(ctx context.Context, account AccountID, id string) error {
	return s.update(ctx, "acknowledge a notice", func(ctx context.Context, t *sqlitedb.Tx) error {
		n, err := scanNotice(t.Row(ctx, noticeColumns+"AND id = ?", account, s.kept(), id))
		if err != nil {
			return found(err)
		}
		if !n.Read.IsZero() {
			return nil
		}
		if _, err := t.Exec(ctx, "UPDATE notices SET read = ? WHERE account = ? AND id = ?", micros(s.now()), account, id); err != nil {
			return err
		}
		return note(ctx, t, Change{Kind: ChangeNotice, Account: account})
	})
}
