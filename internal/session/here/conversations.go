package here

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"holdfast/internal/session"
	"holdfast/internal/session/conversation"
	"holdfast/internal/session/conversation/scrollback"
	"holdfast/internal/session/proto"
	"holdfast/internal/session/tmux"
)

// maxAnswerBytes is how large an answer may be before it is asked for again with
// fewer items: the line limit, less what surrounds it.
const maxAnswerBytes = proto.MaxLineBytes - 1<<10

// conversations reads transcripts and scrollback.
type conversations struct{ h *Here }

// refusalOf gives an error of the conversation packages its code.
func refusalOf(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, conversation.ErrAmbiguous):
		return &proto.Error{Code: proto.CodeUnclear, Message: err.Error()}
	case errors.Is(err, conversation.ErrNone), errors.Is(err, conversation.ErrTool), errors.Is(err, fs.ErrNotExist),
		errors.Is(err, conversation.ErrBlob), errors.Is(err, conversation.ErrCursor):
		return &proto.Error{Code: proto.CodeNotFound, Message: err.Error()}
	}
	return noSession(err)
}

// open opens the transcript of a session.
func (c conversations) open(id session.ID, agent string) (*conversation.Log, func(), error) {
	if _, ok := c.h.find(id); !ok {
		return nil, nil, errNoSession
	}
	ref, err := c.h.watch.Conversation(id)
	if err != nil {
		return nil, nil, refusalOf(err)
	}
	ref.Agent = agent
	return c.h.logs.open(id, ref)
}

// fitting asks for fewer and fewer items until the answer fits into a line.
func fitting[T any](limit int, ask func(limit int) (T, error)) (any, error) {
	for {
		v, err := ask(limit)
		if err != nil {
			return nil, refusalOf(err)
		}
		b, err := json.Marshal(v)
		if err != nil {
			return nil, fmt.Errorf("encode the conversation: %w", err)
		}
		if len(b) <= maxAnswerBytes || limit == 1 {
			return json.RawMessage(b), nil
		}
		limit = max(1, limit/2)
	}
}

func (c conversations) Page(_ context.Context, r proto.Page) (any, error) {
	log, release, err := c.open(r.Session, r.Agent)
	if err != nil {
		return nil, err
	}
	defer release()
	return fitting(r.Limit, func(limit int) (conversation.Page, error) {
		return log.Page(conversation.Cursor(r.Before), limit)
	})
}

func (c conversations) Blob(_ context.Context, r proto.Blob) (proto.BlobPiece, error) {
	log, release, err := c.open(r.Session, r.Agent)
	if err != nil {
		return proto.BlobPiece{}, err
	}
	defer release()
	piece, end, err := log.Blob(r.Blob, r.Offset, r.Bytes)
	return proto.BlobPiece{Data: piece, End: end}, refusalOf(err)
}

func (c conversations) Search(ctx context.Context, r proto.Search) (any, error) {
	log, release, err := c.open(r.Session, r.Agent)
	if err != nil {
		return nil, err
	}
	defer release()
	return fitting(r.Limit, func(limit int) (conversation.Found, error) {
		return log.Search(ctx, r.Query, conversation.Cursor(r.Before), limit)
	})
}

// Follow sends changes as they come, also when the session goes on in another
// transcript. A change that does not fit into a line is sent as a reset with its
// newest items.
func (c conversations) Follow(ctx context.Context, r proto.Follow, emit func(any) error) error {
	locate := func() (conversation.Ref, error) {
		ref, err := c.h.watch.Conversation(r.Session)
		ref.Agent = r.Agent
		return ref, err
	}
	if _, ok := c.h.find(r.Session); !ok {
		return errNoSession
	}
	ref, err := locate()
	if err != nil {
		return refusalOf(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	changes := conversation.Follow(ctx, locate, ref, conversation.Cursor(r.From))
	// Follow ends with ctx; what it still sends is taken, so that it can.
	defer func() {
		cancel()
		for range changes {
			continue
		}
	}()
	for followed := range changes {
		change := followed.Change
		b, err := json.Marshal(change)
		for err == nil && len(b) > maxAnswerBytes && len(change.Items) > 1 {
			change.Items = change.Items[len(change.Items)/2:]
			change.Reset, change.Before = true, change.Items[0].Cursor
			b, err = json.Marshal(change)
		}
		if err != nil {
			return fmt.Errorf("encode the conversation: %w", err)
		}
		if err := emit(json.RawMessage(b)); err != nil {
			return err
		}
	}
	return nil
}

// Scrollback is the pane's own text, with its colours.
func (c conversations) Scrollback(ctx context.Context, r proto.Scrollback) (any, error) {
	server, target, err := c.h.server(r.Session)
	if err != nil {
		return nil, err
	}
	// One line more tells whether there are others above.
	above := min(r.Skip+r.Lines+1, maxScrollback)
	screen, err := server.Capture(ctx, target, tmux.CaptureOptions{Styled: true, Scrollback: above})
	if err != nil {
		return nil, noSession(err)
	}
	lines := screen.Lines
	for len(lines) > 0 && lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	end := max(0, len(lines)-r.Skip)
	return fitting(r.Lines, func(limit int) (scrolled, error) {
		begin := max(0, end-limit)
		// From the beginning, since a style goes on from line to line.
		rows := scrollback.Parse(strings.Join(lines[:end], "\n"))
		rows = rows[min(begin, len(rows)):]
		return scrolled{Lines: rows, Skip: r.Skip + len(rows), More: begin > 0}, nil
	})
}

// maxScrollback is how far above the screen can be looked: what tmux captures at
// once.
const maxScrollback = 10_000

// scrolled answers a request for scrollback.
type scrolled struct {
	Lines []scrollback.Row `json:"lines"` // oldest first
	// Skip asks for the lines above; More says that there are some.
	Skip int  `json:"skip"`
	More bool `json:"more,omitempty"`
}
