package answer

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"holdfast/internal/session"
	"holdfast/internal/session/proto"
)

// A handler checks a request, in the order in which requests come, and returns
// what does it.
type handler func(c *conn, id int64, line []byte) (run func(context.Context) (any, error), err error)

// nothing is the result of a request that has none.
type nothing struct{}

var handlers map[proto.Op]handler

func init() {
	// Here, because features and handlers look at one another.
	handlers = map[proto.Op]handler{
		proto.OpPing:         simple(func(context.Context, *conn, nothing) (any, error) { return proto.Pong{Now: time.Now().UTC()}, nil }),
		proto.OpRefresh:      simple(refresh),
		proto.OpSeen:         simple(seen),
		proto.OpLook:         simple(look),
		proto.OpConversation: simple(page),
		proto.OpSearch:       simple(search),
		proto.OpBlob:         simple(blob),
		proto.OpScrollback:   simple(scrollback),
		proto.OpFollow:       follow,
		proto.OpUnfollow:     simple(unfollow),
		proto.OpReply:        reply,
		proto.OpApprove:      approve,
		proto.OpKeys:         keys,
		proto.OpUpload:       beginUpload,
		proto.OpPiece:        uploadPiece,
		proto.OpCommands:     simple(func(ctx context.Context, c *conn, _ nothing) (any, error) { return c.o.Backend.Starter.Commands(ctx) }),
		proto.OpNew:          simple(begin),
		proto.OpEnd:          simple(end),
		proto.OpAttach:       simple(attach),

		proto.OpPushSubscribe: simple(pushSubscribe),
		proto.OpPushUnsubscribe: simple(func(_ context.Context, c *conn, _ nothing) (any, error) {
			return nothing{}, c.o.Backend.Push.Unsubscribe(c.o.Device)
		}),
		proto.OpPushTest: simple(func(ctx context.Context, c *conn, _ nothing) (any, error) {
			return c.o.Backend.Push.Test(ctx, c.o.Device)
		}),
		proto.OpPushState: simple(func(_ context.Context, c *conn, _ nothing) (any, error) {
			return c.o.Backend.Push.State(c.o.Device), nil
		}),
	}
}

// simple is a handler that does all after the check of types.
func simple[T any](do func(ctx context.Context, c *conn, r T) (any, error)) handler {
	return func(c *conn, _ int64, line []byte) (func(context.Context) (any, error), error) {
		r, err := decode[T](line)
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context) (any, error) { return do(ctx, c, r) }, nil
	}
}

func refresh(ctx context.Context, c *conn, r proto.Refresh) (any, error) {
	if r.Session != "" {
		if err := checkSession(r.Session); err != nil {
			return nil, err
		}
	}
	return nothing{}, c.o.Backend.Sessions.Refresh(ctx, r.Session)
}

func seen(_ context.Context, c *conn, r proto.On) (any, error) {
	if err := checkSession(r.Session); err != nil {
		return nil, err
	}
	return nothing{}, c.o.Backend.Sessions.Seen(r.Session)
}

func look(_ context.Context, c *conn, r proto.Look) (any, error) {
	if len(r.Sessions) > proto.MaxIDs {
		return nil, proto.Errorf(proto.CodeLimit, "at most %d sessions can be looked at", proto.MaxIDs)
	}
	for _, id := range r.Sessions {
		if err := checkSession(id); err != nil {
			return nil, err
		}
	}
	if r.View != "" {
		if err := checkKey("view", r.View); err != nil {
			return nil, err
		}
	}
	return c.o.Backend.Looks.Look(c.o.Device, r.View, r.Sessions), nil
}

func page(ctx context.Context, c *conn, r proto.Page) (any, error) {
	if err := checkConversation(r.Session, r.Agent); err != nil {
		return nil, err
	}
	var err error
	if r.Limit, err = bounded(r.Limit, 50, proto.MaxPage); err != nil {
		return nil, err
	}
	if err := checkText("the cursor", r.Before, proto.MaxCursorBytes); err != nil {
		return nil, err
	}
	return c.o.Backend.Conversations.Page(ctx, r)
}

func search(ctx context.Context, c *conn, r proto.Search) (any, error) {
	if err := checkConversation(r.Session, r.Agent); err != nil {
		return nil, err
	}
	var err error
	if r.Limit, err = bounded(r.Limit, 20, proto.MaxPage); err != nil {
		return nil, err
	}
	if r.Query == "" {
		return nil, proto.Errorf(proto.CodeSyntax, "nothing to search for")
	}
	if err := checkText("the query", r.Query, proto.MaxQueryBytes); err != nil {
		return nil, err
	}
	if err := checkText("the cursor", r.Before, proto.MaxCursorBytes); err != nil {
		return nil, err
	}
	return c.o.Backend.Conversations.Search(ctx, r)
}

func blob(ctx context.Context, c *conn, r proto.Blob) (any, error) {
	if err := checkConversation(r.Session, r.Agent); err != nil {
		return nil, err
	}
	var err error
	if r.Bytes, err = bounded(r.Bytes, proto.MaxPieceBytes, proto.MaxPieceBytes); err != nil {
		return nil, err
	}
	if r.Offset < 0 {
		return nil, proto.Errorf(proto.CodeSyntax, "the offset is negative")
	}
	if err := checkText("the name of the blob", r.Blob, proto.MaxCursorBytes); err != nil {
		return nil, err
	}
	return c.o.Backend.Conversations.Blob(ctx, r)
}

func scrollback(ctx context.Context, c *conn, r proto.Scrollback) (any, error) {
	if err := checkSession(r.Session); err != nil {
		return nil, err
	}
	var err error
	if r.Lines, err = bounded(r.Lines, 200, proto.MaxLines); err != nil {
		return nil, err
	}
	if r.Skip < 0 || r.Skip > 1<<30 {
		return nil, proto.Errorf(proto.CodeLimit, "skip is out of range")
	}
	return c.o.Backend.Conversations.Scrollback(ctx, r)
}

func checkConversation(id session.ID, agent string) error {
	if err := checkSession(id); err != nil {
		return err
	}
	return checkText("the name of the sub-agent", agent, proto.MaxCursorBytes)
}

// follow answers when it follows, and goes on beside the requests.
func follow(c *conn, id int64, line []byte) (func(context.Context) (any, error), error) {
	r, err := decode[proto.Follow](line)
	if err == nil {
		err = checkConversation(r.Session, r.Agent)
	}
	if err == nil {
		err = checkText("the cursor", r.From, proto.MaxCursorBytes)
	}
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.follows) >= proto.MaxFollows {
		return nil, proto.Errorf(proto.CodeLimit, "at most %d conversations can be followed at once", proto.MaxFollows)
	}
	ctx, cancel := context.WithCancel(c.ctx)
	c.follows[id] = cancel
	began := make(chan struct{})
	// Ends with unfollow, the conversation, or the connection; Serve waits.
	c.wg.Go(func() {
		defer cancel()
		// The answer comes first.
		select {
		case <-began:
		case <-ctx.Done():
		}
		err := c.o.Backend.Conversations.Follow(ctx, r, func(items any) error {
			b, err := json.Marshal(items)
			if err != nil {
				return fmt.Errorf("encode items: %w", err)
			}
			return c.out.send(ctx, proto.Items{Op: proto.OpItems, ID: id, Result: b})
		})
		c.mu.Lock()
		delete(c.follows, id)
		c.mu.Unlock()
		if ctx.Err() == nil {
			if err == nil {
				err = proto.Errorf(proto.CodeNotFound, "the conversation is there no more")
			}
			c.out.send(ctx, proto.Refusal{Op: proto.OpError, ID: id, Error: *asError(err)})
		}
	})
	return func(context.Context) (any, error) { return following{began: began}, nil }, nil
}

// following is the result of a follow, which begins when it was sent.
type following struct{ began chan struct{} }

func unfollow(_ context.Context, c *conn, r proto.Unfollow) (any, error) {
	c.mu.Lock()
	cancel := c.follows[r.Follow]
	c.mu.Unlock()
	if cancel == nil {
		return nil, proto.Errorf(proto.CodeNotFound, "nothing is followed under id %d", r.Follow)
	}
	cancel()
	return nothing{}, nil
}

// inTurn is run in the order of the requests that act on a session.
func (c *conn) inTurn(id session.ID, do func(context.Context) (any, error)) func(context.Context) (any, error) {
	wait, end := c.turn(id)
	return func(ctx context.Context) (any, error) {
		defer end()
		if err := wait(ctx); err != nil {
			return nil, err
		}
		return do(ctx)
	}
}

// receipts sends how far a request got. Nobody waits for the line: there are at
// most three a request.
func (c *conn) receipts(id int64) func(proto.Stage) {
	return func(s proto.Stage) {
		if line, err := encode(proto.Receipt{Op: proto.OpReceipt, ID: id, State: s}); err == nil {
			c.out.put(line)
		}
	}
}

func checkKey(what, key string) error {
	if key == "" || len(key) > proto.MaxKeyBytes {
		return proto.Errorf(proto.CodeSyntax, "the %s needs 1 to %d characters", what, proto.MaxKeyBytes)
	}
	for _, r := range key {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_') {
			return proto.Errorf(proto.CodeSyntax, "the %s may hold letters, digits, - and _ only", what)
		}
	}
	return nil
}

func reply(c *conn, id int64, line []byte) (func(context.Context) (any, error), error) {
	r, err := decode[proto.Reply](line)
	if err == nil {
		err = checkSession(r.Session)
	}
	if err == nil {
		err = checkKey("key", r.Key)
	}
	if err == nil {
		err = checkText("the text", r.Text, proto.MaxTextBytes)
	}
	if err != nil {
		return nil, err
	}
	return c.inTurn(r.Session, func(ctx context.Context) (any, error) {
		return outcome(c.o.Backend.Actions.Reply(ctx, r, c.receipts(id)))
	}), nil
}

func approve(c *conn, id int64, line []byte) (func(context.Context) (any, error), error) {
	r, err := decode[proto.Approve](line)
	if err == nil {
		err = checkSession(r.Session)
	}
	if err == nil && r.Key != "" {
		err = checkKey("key", r.Key)
	}
	if err == nil && (r.Digest == "" || len(r.Digest) > 64) {
		err = proto.Errorf(proto.CodeSyntax, "an approval names the digest of its dialog")
	}
	if err == nil && (r.Option == "") == (r.Role == "") {
		err = proto.Errorf(proto.CodeSyntax, "an approval names an option or a role, and not both")
	}
	if err == nil {
		err = checkText("the option", r.Option, 64)
	}
	if err != nil {
		return nil, err
	}
	return c.inTurn(r.Session, func(ctx context.Context) (any, error) {
		return outcome(c.o.Backend.Actions.Approve(ctx, r, c.receipts(id)))
	}), nil
}

func outcome(o proto.Outcome, err error) (any, error) {
	o.Evidence, o.Reason = proto.Cut(o.Evidence, maxMessageBytes), proto.Cut(o.Reason, maxMessageBytes)
	o.Dialog = clipDialog(o.Dialog)
	return o, err
}

func keys(c *conn, _ int64, line []byte) (func(context.Context) (any, error), error) {
	r, err := decode[proto.Keys](line)
	if err == nil {
		err = checkSession(r.Session)
	}
	if err == nil && (len(r.Keys) == 0 || len(r.Keys) > proto.MaxKeys) {
		err = proto.Errorf(proto.CodeLimit, "a request presses 1 to %d keys", proto.MaxKeys)
	}
	if err == nil {
		if i := slices.IndexFunc(r.Keys, func(k string) bool { return !proto.KnownKey(k) }); i >= 0 {
			err = proto.Errorf(proto.CodeSyntax, "there is no key %q", proto.Cut(r.Keys[i], 32))
		}
	}
	if err != nil {
		return nil, err
	}
	return c.inTurn(r.Session, func(ctx context.Context) (any, error) {
		return nothing{}, c.o.Backend.Actions.Keys(ctx, r)
	}), nil
}

func begin(ctx context.Context, c *conn, r proto.New) (any, error) {
	if err := checkText("the directory", r.Dir, proto.MaxPathBytes); err != nil {
		return nil, err
	}
	if err := checkText("the command's name", r.Command, proto.MaxNameBytes); err != nil {
		return nil, err
	}
	return c.o.Backend.Starter.New(ctx, r)
}

func end(ctx context.Context, c *conn, r proto.End) (any, error) {
	if err := checkSession(r.Session); err != nil {
		return nil, err
	}
	return nothing{}, c.o.Backend.Starter.End(ctx, r)
}

func attach(ctx context.Context, c *conn, r proto.On) (any, error) {
	if err := checkSession(r.Session); err != nil {
		return nil, err
	}
	return c.o.Backend.Starter.Attach(ctx, r)
}

func pushSubscribe(_ context.Context, c *conn, r proto.PushSubscribe) (any, error) {
	if len(r.As) < minAsBytes || checkKey("name", r.As) != nil {
		return nil, proto.Errorf(proto.CodeSyntax, "the name for this machine is not %d to %d characters of base64url", minAsBytes, proto.MaxKeyBytes)
	}
	return c.o.Backend.Push.Subscribe(c.o.Device, r)
}

// minAsBytes is 96 bits: the name is a key for the names of sessions.
const minAsBytes = 16
