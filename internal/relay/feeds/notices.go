package feeds

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"holdfast/internal/engine"
	"holdfast/internal/wire"
	"holdfast/live/channels"
)

// notices is one account's part of the Store as a channels.Inbox sees it: the
// unread notices in one bucket, what was read in another. Nobody posts through
// it; the Store's log says when something was posted.
type notices struct {
	store   engine.Store
	account engine.AccountID
}

// bucket is where an Inbox looks for notices. Whatever else it names is where it
// keeps what was read.
const bucket = "notices"

// Load implements channels.Storage.
func (n notices) Load(ctx context.Context, where, id string) ([]byte, int64, error) {
	have, err := n.store.Notice(ctx, n.account, id)
	switch {
	case errors.Is(err, engine.ErrNotFound):
		return nil, 0, nil
	case err != nil:
		return nil, 0, err
	case where == bucket:
		b, err := encode(have)
		return b, 1, err
	case have.Read.IsZero():
		return nil, 0, nil
	}
	return []byte(`""`), 1, nil
}

// Save implements channels.Storage: only what is read is ever saved.
func (n notices) Save(ctx context.Context, where, id string, _ []byte, _ int64) error {
	if where == bucket {
		return errors.New("notices are posted to the store")
	}
	return n.store.AckNotice(ctx, n.account, id)
}

// Remove implements channels.Storage.
func (notices) Remove(context.Context, string, string) error {
	return errors.New("notices go by themselves")
}

// List implements channels.Storage: the unread ones, by id.
func (n notices) List(ctx context.Context, _, after string, limit int) ([]channels.Item, error) {
	list, err := n.store.Notices(ctx, n.account, engine.NoticeQuery{Unread: true, After: after, Limit: limit})
	if err != nil {
		return nil, err
	}
	var out []channels.Item
	for _, have := range list {
		b, err := encode(have)
		if err != nil {
			return nil, err
		}
		out = append(out, channels.Item{Key: have.ID, Value: b})
	}
	return out, nil
}

// encode makes the Inbox's form of a notice.
func encode(n engine.Notice) ([]byte, error) {
	text, err := json.Marshal(n.Text)
	if err != nil {
		return nil, err
	}
	return json.Marshal(channels.Notice{ID: n.ID, At: n.Posted, Data: text})
}

// message is what the unread notices look like on the wire: as many as one
// message holds.
func message(list []channels.Notice) any {
	m := noticesMessage{Op: wire.FeedNotices, Now: time.Now().UTC(), Notices: []wire.NoticeInfo{}}
	size := 0
	for _, n := range list {
		// The text as it is encoded, and the rest of its object.
		if size += len(n.Data) + 100 + len(n.ID); size > wire.MaxFeedBytes-200 && len(m.Notices) > 0 {
			break
		}
		info := wire.NoticeInfo{ID: n.ID, At: n.At.UTC()}
		if json.Unmarshal(n.Data, &info.Text) == nil {
			m.Notices = append(m.Notices, info)
		}
	}
	return m
}

// noticesMessage is a wire.FeedMessage that says "none" where there are none: the
// list is the whole state.
type noticesMessage struct {
	Op      wire.FeedOp       `json:"op"`
	Now     time.Time         `json:"now"`
	Notices []wire.NoticeInfo `json:"notices"`
}
