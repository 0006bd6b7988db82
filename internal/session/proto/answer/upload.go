package answer

import (
	"context"
	"crypto/rand"

	"holdfast/internal/session"
	"holdfast/internal/session/proto"
)

// upload is a file that is on its way.
type upload struct {
	file     File
	size     int64
	received int64
	session  session.ID
}

func beginUpload(c *conn, _ int64, line []byte) (func(context.Context) (any, error), error) {
	r, err := decode[proto.Upload](line)
	if err == nil {
		err = checkText("the file's name", r.Name, proto.MaxNameBytes)
	}
	if err == nil && r.Session != "" {
		err = checkSession(r.Session)
	}
	switch {
	case err != nil:
	case r.Size < 0:
		err = proto.Errorf(proto.CodeSyntax, "the file's size is negative")
	case r.Size > proto.MaxUploadBytes:
		err = proto.Errorf(proto.CodeLimit, "the file has %d bytes, at most %d are allowed", r.Size, proto.MaxUploadBytes)
	case len(c.uploads) >= proto.MaxUploads:
		err = proto.Errorf(proto.CodeLimit, "at most %d files can be uploaded at once", proto.MaxUploads)
	}
	if err != nil {
		return nil, err
	}
	file, err := c.o.Backend.Files.Create(r.Name)
	if err != nil {
		return nil, err
	}
	name := rand.Text()
	c.uploads[name] = &upload{file: file, size: r.Size, session: r.Session}
	return func(context.Context) (any, error) { return proto.Uploading{Upload: name}, nil }, nil
}

// uploadPiece writes in the order in which pieces come, so that a client need
// not wait for one before it sends the next.
func uploadPiece(c *conn, _ int64, line []byte) (func(context.Context) (any, error), error) {
	r, err := decode[proto.Piece](line)
	if err != nil {
		return nil, err
	}
	u := c.uploads[r.Upload]
	if u == nil {
		return nil, proto.Errorf(proto.CodeNotFound, "there is no such upload")
	}
	fail := func(err error) (func(context.Context) (any, error), error) {
		u.file.Discard()
		delete(c.uploads, r.Upload)
		return nil, err
	}
	switch {
	case len(r.Data) > proto.MaxPieceBytes:
		return fail(proto.Errorf(proto.CodeLimit, "a piece has %d bytes, at most %d are allowed", len(r.Data), proto.MaxPieceBytes))
	case r.Offset != u.received:
		return fail(proto.Errorf(proto.CodeSyntax, "the piece begins at %d, %d bytes are here", r.Offset, u.received))
	case u.received+int64(len(r.Data)) > u.size:
		return fail(proto.Errorf(proto.CodeLimit, "more bytes came than the size that was said"))
	}
	if _, err := u.file.Write(r.Data); err != nil {
		return fail(err)
	}
	u.received += int64(len(r.Data))
	done := proto.Uploaded{Received: u.received}
	if u.received < u.size {
		return func(context.Context) (any, error) { return done, nil }, nil
	}
	delete(c.uploads, r.Upload)
	if done.Path, err = u.file.Keep(); err != nil {
		return nil, err
	}
	if u.session == "" {
		return func(context.Context) (any, error) { return done, nil }, nil
	}
	if c.o.Backend.Actions == nil {
		done.NotInserted = "this machine types nothing"
		return func(context.Context) (any, error) { return done, nil }, nil
	}
	return c.inTurn(u.session, func(ctx context.Context) (any, error) {
		_, err := c.o.Backend.Actions.Reply(ctx, proto.Reply{
			Session: u.session, Key: rand.Text(), Text: done.Path + " ", Append: true, Draft: true,
		}, func(proto.Stage) {})
		if err != nil {
			done.NotInserted = asError(err).Message
		} else {
			done.Inserted = true
		}
		return done, nil
	}), nil
}

// discardUploads removes what was not finished.
func (c *conn) discardUploads() {
	for _, u := range c.uploads {
		u.file.Discard()
	}
}
