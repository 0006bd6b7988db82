package answer

import (
	"context"
	"io"
	"slices"

	"holdfast/internal/session"
	"holdfast/internal/session/proto"
)

// Backend is what a machine offers. What is nil is not offered.
type Backend struct {
	Sessions      Sessions // required
	Actions       Actions
	Conversations Conversations
	Files         Files
	Starter       Starter
	Looks         Looks
	Push          Push
}

// An Event is a session as it is now, or the id of one that is gone.
type Event struct {
	Session *session.Session // not changed after it was sent
	Gone    session.ID
}

// Sessions is what runs.
type Sessions interface {
	// Subscribe gives all sessions, for which it may wait a little, and then what
	// changes, until cancel. The channel is read at once, whatever the device does.
	Subscribe(ctx context.Context) (all []session.Session, changes <-chan Event, cancel func())
	// Refresh judges a session again, or all where id is empty, and returns when
	// that is done.
	Refresh(ctx context.Context, id session.ID) error
	// Seen notes that a person has seen a session as it is.
	Seen(id session.ID) error
}

// Actions type into sessions. They go on when ctx ends, since a text that was
// typed and not sent is worse than either.
type Actions interface {
	Reply(ctx context.Context, r proto.Reply, receipt func(proto.Stage)) (proto.Outcome, error)
	Approve(ctx context.Context, r proto.Approve, receipt func(proto.Stage)) (proto.Outcome, error)
	Keys(ctx context.Context, r proto.Keys) error
}

// Conversations read transcripts and scrollback. What they return is encoded as
// JSON (docs/conversation.md).
type Conversations interface {
	Page(ctx context.Context, r proto.Page) (any, error)
	Search(ctx context.Context, r proto.Search) (any, error)
	Blob(ctx context.Context, r proto.Blob) (proto.BlobPiece, error)
	Scrollback(ctx context.Context, r proto.Scrollback) (any, error)
	// Follow calls emit with what is new until ctx ends or emit fails.
	Follow(ctx context.Context, r proto.Follow, emit func(items any) error) error
}

// Files keeps what devices upload.
type Files interface {
	// Create begins a file whose name a person chose.
	Create(name string) (File, error)
}

// File is one that is being uploaded.
type File interface {
	io.Writer
	// Keep ends it and gives its absolute path.
	Keep() (string, error)
	Discard()
}

// Starter starts and ends sessions.
type Starter interface {
	Commands(ctx context.Context) (proto.Commands, error)
	New(ctx context.Context, r proto.New) (proto.Started, error)
	End(ctx context.Context, r proto.End) error
	Attach(ctx context.Context, r proto.On) (proto.Attach, error)
}

// Looks keeps who is looking.
type Looks interface {
	Look(device, view string, sessions []session.ID) proto.Looking
}

// Push calls devices when a session begins to wait.
type Push interface {
	Subscribe(device string, r proto.PushSubscribe) (proto.PushState, error)
	Unsubscribe(device string) error
	// Test returns when the push service has taken the message.
	Test(ctx context.Context, device string) (proto.PushState, error)
	State(device string) proto.PushState
}

// offers reports whether there is something behind an op.
func (b Backend) offers(op proto.Op) bool {
	switch op {
	case proto.OpPing, proto.OpRefresh, proto.OpSeen:
		return true
	case proto.OpLook:
		return b.Looks != nil
	case proto.OpConversation, proto.OpFollow, proto.OpUnfollow, proto.OpSearch, proto.OpBlob, proto.OpScrollback:
		return b.Conversations != nil
	case proto.OpReply, proto.OpApprove, proto.OpKeys:
		return b.Actions != nil
	case proto.OpUpload, proto.OpPiece:
		return b.Files != nil
	case proto.OpCommands, proto.OpNew, proto.OpEnd, proto.OpAttach:
		return b.Starter != nil
	case proto.OpPushSubscribe, proto.OpPushUnsubscribe, proto.OpPushTest, proto.OpPushState:
		return b.Push != nil
	}
	return false
}

// features lists the requests that are offered.
func (b Backend) features() []string {
	var out []string
	for op := range handlers {
		if b.offers(op) {
			out = append(out, string(op))
		}
	}
	slices.Sort(out)
	return out
}
