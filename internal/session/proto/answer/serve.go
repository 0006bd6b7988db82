// Package answer is the machine's side of the sessions protocol: it answers the
// requests of one device on one stream, and tells it of every change.
//
// It keeps nothing beyond a connection; what is offered, a Backend does. What a
// caller will get wrong: Serve waits for every request that it began, so a
// Backend must heed the context that it is given.
package answer

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"holdfast/internal/session"
	"holdfast/internal/session/proto"
)

// helloTimeout is how long the device has for its first line, which it sends
// without waiting for ours.
const helloTimeout = 20 * time.Second

// finishTime is how long a device that says no more waits for its answers.
const finishTime = 10 * time.Second

// snapshotBytes is about how much one snapshot message holds, so that the first
// sessions are on the screen while the others still travel.
const snapshotBytes = 64 << 10

// Options of Serve.
type Options struct {
	// Machine is this machine's name, Program name and version of this program,
	// both for the hello.
	Machine, Program string
	// Device names who is at the other end, for leases.
	Device string
	// Backend does what is asked; required.
	Backend Backend
	// Log is required. What is typed and read never reaches it.
	Log *slog.Logger
}

// Serve speaks the machine's side on a stream until the stream or ctx ends,
// closes it, and returns when nothing of it runs any more.
func Serve(ctx context.Context, stream io.ReadWriteCloser, o Options) error {
	defer stream.Close()
	if o.Log == nil || o.Backend.Sessions == nil {
		return errors.New("serve sessions: log and sessions are required")
	}
	outer := ctx
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	c := &conn{
		o: o, out: newOutbox(stream), ctx: ctx, slots: make(chan struct{}, proto.MaxRequests), listed: make(chan struct{}),
		open: map[int64]bool{}, follows: map[int64]context.CancelFunc{}, uploads: map[string]*upload{}, turns: map[session.ID]chan struct{}{},
	}
	var writer sync.WaitGroup
	// Ends with the bye, a broken stream, or ctx; waited for below. Whatever ends
	// it ends the reader too.
	writer.Go(func() {
		err := c.out.run(ctx)
		cancel(err)
		stream.Close()
	})
	// The last word has a second to leave.
	stop := context.AfterFunc(outer, func() {
		c.out.leave(proto.ByeEnding, "holdfast on the machine ends or restarts: open a new connection in a moment")
		time.AfterFunc(farewellTime, func() { stream.Close() })
	})
	defer stop()

	err := c.read(stream)
	if err == nil || errors.Is(err, io.EOF) {
		err = nil
		c.finish()
		cancel(nil)
	} else {
		// Where the device is still there, it learns why.
		if code, ok := byeCode(err); ok {
			c.out.leave(code, err.Error())
			force := time.AfterFunc(farewellTime, func() { stream.Close() })
			writer.Wait()
			force.Stop()
		}
		cancel(err)
	}
	stream.Close()
	c.wg.Wait()
	writer.Wait()
	c.discardUploads()
	return err
}

// finish lets the requests that are open have their answers: a device that says
// no more may still read, as a program at the end of a pipe does.
func (c *conn) finish() {
	if !c.greeted {
		return
	}
	ctx, cancel := context.WithTimeout(c.ctx, finishTime)
	defer cancel()
	for range proto.MaxRequests {
		select {
		case c.slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
	}
	select {
	case <-c.listed:
	case <-ctx.Done():
		return
	}
	c.out.flush(ctx)
}

// byeCode chooses the last word for an error of the reader.
func byeCode(err error) (proto.Code, bool) {
	var e *proto.Error
	switch {
	case errors.Is(err, proto.ErrLine):
		return proto.ByeSyntax, true
	case errors.As(err, &e):
		return e.Code, true
	}
	return "", false
}

// conn is one connection of a device.
type conn struct {
	o     Options
	out   *outbox
	ctx   context.Context
	slots chan struct{} // one element for each open request
	// listed is closed when the sessions were queued, or are not wanted.
	listed chan struct{}
	wg     sync.WaitGroup

	// Only the reader touches these.
	greeted bool // the device has said something
	uploads map[string]*upload

	// mu guards the fields below.
	mu      sync.Mutex
	open    map[int64]bool
	follows map[int64]context.CancelFunc
	turns   map[session.ID]chan struct{} // ends the last of the requests that act on a session
}

// read says hello and serves requests until the stream ends.
func (c *conn) read(stream io.ReadCloser) error {
	now := time.Now().UTC()
	line, err := encode(proto.Hello{
		Op: proto.OpHello, Version: proto.Version, Program: c.o.Program, Features: c.o.Backend.features(),
		Machine: c.o.Machine, Limits: proto.DefaultLimits(), Now: &now,
	})
	if err != nil {
		return err
	}
	c.out.put(line)
	lines := proto.NewLineReader(stream)
	silent := time.AfterFunc(helloTimeout, func() { stream.Close() })
	first, err := lines.Next()
	if !silent.Stop() {
		return errors.New("the device did not say hello in time")
	}
	if err != nil {
		return err
	}
	c.greeted = true
	var hello proto.Hello
	if err := json.Unmarshal(first, &hello); err != nil || hello.Op != proto.OpHello {
		return proto.Errorf(proto.ByeSyntax, "the first line is no hello")
	}
	if hello.Version < proto.Version {
		return proto.Errorf(proto.ByeVersion, "version %d is not spoken here, the lowest is %d: update holdfast on the device", hello.Version, proto.Version)
	}
	if hello.Watch == nil || *hello.Watch {
		// Ends with the connection or the backend; Serve waits.
		c.wg.Go(c.watch)
	} else {
		close(c.listed)
	}
	for {
		line, err := lines.Next()
		if err != nil {
			return err
		}
		if len(line) == 0 {
			continue
		}
		if err := c.request(line); err != nil {
			return err
		}
	}
}

// watch sends all sessions, and from then on what changes.
func (c *conn) watch() {
	all, changes, cancel := c.o.Backend.Sessions.Subscribe(c.ctx)
	defer cancel()
	for _, part := range snapshot(all) {
		line, err := encode(part)
		if err != nil {
			c.o.Log.Error("the list of sessions was not sent", "err", err)
			c.out.leave(proto.ByeEnding, "the list of sessions could not be sent")
			return
		}
		c.out.put(line)
	}
	close(c.listed)
	for {
		select {
		case e, ok := <-changes:
			if !ok {
				c.out.leave(proto.ByeEnding, "the machine stopped watching its sessions: open a new connection")
				return
			}
			c.out.change(e)
		case <-c.ctx.Done():
			return
		}
	}
}

// snapshot cuts the list into messages.
func snapshot(all []session.Session) []proto.Snapshot {
	parts := []proto.Snapshot{{Op: proto.OpSnapshot, Sessions: []session.Session{}}}
	size := 0
	for _, s := range all {
		s = clip(s)
		b, err := json.Marshal(s)
		if err != nil {
			continue // no type in it can fail
		}
		last := &parts[len(parts)-1]
		if size > 0 && size+len(b) > snapshotBytes {
			last.More = true
			parts = append(parts, proto.Snapshot{Op: proto.OpSnapshot})
			last, size = &parts[len(parts)-1], 0
		}
		last.Sessions = append(last.Sessions, s)
		size += len(b)
	}
	return parts
}

// request begins one request. Its error ends the connection.
func (c *conn) request(line []byte) error {
	var r proto.Request
	if err := json.Unmarshal(line, &r); err != nil || r.ID < 1 || r.ID > proto.MaxID || r.Op == "" {
		return c.out.send(c.ctx, proto.Refusal{Op: proto.OpError, ID: 0, Error: *proto.Errorf(proto.CodeSyntax, "a line is no request: it needs an op and an id from 1 to 2^53-1")})
	}
	refuse := func(code proto.Code, format string, args ...any) error {
		// Written before the next line is read, so that refusals do not pile up.
		return c.out.send(c.ctx, proto.Refusal{Op: proto.OpError, ID: r.ID, Error: *proto.Errorf(code, format, args...)})
	}
	handle, ok := handlers[r.Op]
	if !ok || !c.o.Backend.offers(r.Op) {
		return refuse(proto.CodeUnknownOp, "this machine does not offer %q", proto.Cut(string(r.Op), 64))
	}
	c.mu.Lock()
	taken := c.open[r.ID] || c.follows[r.ID] != nil
	c.mu.Unlock()
	if taken {
		return refuse(proto.CodeSyntax, "a request with id %d is open already", r.ID)
	}
	select {
	case c.slots <- struct{}{}:
	default:
		return refuse(proto.CodeBusy, "%d requests are open already", proto.MaxRequests)
	}
	run, err := handle(c, r.ID, line)
	if err != nil {
		<-c.slots
		e := asError(err)
		return refuse(e.Code, "%s", e.Message)
	}
	c.mu.Lock()
	c.open[r.ID] = true
	c.mu.Unlock()
	// Ends with the request, which heeds c.ctx; Serve waits.
	c.wg.Go(func() {
		defer func() { <-c.slots }()
		result, err := run(c.ctx)
		c.answer(r.ID, result, err)
		if f, ok := result.(following); ok {
			close(f.began)
		}
	})
	return nil
}

// answer ends a request and waits until the line was written.
func (c *conn) answer(id int64, result any, failed error) {
	var line []byte
	if failed == nil {
		b, err := json.Marshal(result)
		if err == nil {
			line, err = encode(proto.Answer{Op: proto.OpAnswer, ID: id, Result: b})
		}
		failed = err
	}
	if failed != nil {
		var err error
		if line, err = encode(proto.Refusal{Op: proto.OpError, ID: id, Error: *asError(failed)}); err != nil {
			line = nil
		}
	}
	// Free before the client can know, so that it can use the id again at once.
	c.mu.Lock()
	delete(c.open, id)
	c.mu.Unlock()
	if line == nil {
		return
	}
	select {
	case <-c.out.put(line):
	case <-c.ctx.Done():
	}
}

// asError is the refusal that says err.
func asError(err error) *proto.Error {
	var e *proto.Error
	if !errors.As(err, &e) {
		e = &proto.Error{Code: proto.CodeFailed, Message: err.Error()}
	}
	out := *e
	out.Message = proto.Cut(out.Message, maxMessageBytes)
	out.Text = proto.Cut(out.Text, maxDialogBytes)
	out.Dialog = clipDialog(out.Dialog)
	return &out
}

// turn takes a place behind the requests of this connection that act on the same
// session, so that keys arrive in the order in which they were sent. wait
// returns when it is this one's turn, end lets the next one go.
func (c *conn) turn(id session.ID) (wait func(context.Context) error, end func()) {
	mine := make(chan struct{})
	c.mu.Lock()
	before := c.turns[id]
	c.turns[id] = mine
	c.mu.Unlock()
	wait = func(ctx context.Context) error {
		if before == nil {
			return nil
		}
		select {
		case <-before:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	end = func() {
		c.mu.Lock()
		if c.turns[id] == mine {
			delete(c.turns, id)
		}
		c.mu.Unlock()
		close(mine)
	}
	return wait, end
}

// decode reads the fields of a request.
func decode[T any](line []byte) (T, error) {
	var v T
	if err := json.Unmarshal(line, &v); err != nil {
		return v, proto.Errorf(proto.CodeSyntax, "a field of the request has the wrong type: %v", err)
	}
	return v, nil
}

func checkText(what, s string, max int) error {
	if len(s) > max {
		return proto.Errorf(proto.CodeLimit, "%s has %d bytes, at most %d are allowed", what, len(s), max)
	}
	return nil
}

func checkSession(id session.ID) error {
	if id == "" {
		return proto.Errorf(proto.CodeSyntax, "the request names no session")
	}
	if len(id) > 64 {
		return proto.Errorf(proto.CodeNoSession, "there is no such session")
	}
	return nil
}

// bounded is n within 1 and max, or def where it is zero.
func bounded(n, def, max int) (int, error) {
	switch {
	case n == 0:
		return def, nil
	case n < 0 || n > max:
		return 0, proto.Errorf(proto.CodeLimit, "the number %d is not between 1 and %d", n, max)
	}
	return n, nil
}
