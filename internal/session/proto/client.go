package proto

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"holdfast/internal/session"
)

// openTimeout bounds the exchange of hellos. The machine answers at once; what
// takes time is the path, which its owner judges.
const openTimeout = 20 * time.Second

// maxSessions bounds the sessions that a client keeps of a machine: an agent with
// a thousand panes is busy, one with more is lying.
const maxSessions = 10_000

// ErrClosed says that this side has closed the client.
var ErrClosed = errors.New("the connection was closed here")

// A ByeError is the machine's last word.
type ByeError struct {
	Code    Code
	Message string
}

func (e *ByeError) Error() string { return "the machine ended the connection: " + e.Message }

// ClientOptions of Open.
type ClientOptions struct {
	// Program is name and version of this program.
	Program string
	// Watch asks for all sessions and their changes.
	Watch bool
}

// Client is the device's side of one connection. Its methods may be called from
// several goroutines.
type Client struct {
	hello   Hello
	stream  io.ReadWriteCloser
	changed chan struct{} // capacity 1
	ended   chan struct{}
	wg      sync.WaitGroup

	// writing is held for one line.
	writing sync.Mutex

	// mu guards the fields below.
	mu       sync.Mutex
	err      error // why it ended
	last     int64 // the id given last
	calls    map[int64]*call
	follows  map[int64]*following
	sessions map[session.ID]session.Session
	complete bool // the snapshot is here
}

type call struct {
	receipt func(Stage)
	done    chan struct{}
	result  json.RawMessage
	err     error
}

// following is a conversation that is followed.
type following struct {
	emit func(json.RawMessage)
	over chan error // capacity 1: why the machine ended it
}

// Open exchanges hellos over stream, which it owns from then on. ctx bounds the
// exchange only.
func Open(ctx context.Context, stream io.ReadWriteCloser, o ClientOptions) (*Client, error) {
	c := &Client{
		stream: stream, changed: make(chan struct{}, 1), ended: make(chan struct{}),
		calls: map[int64]*call{}, follows: map[int64]*following{}, sessions: map[session.ID]session.Session{},
	}
	ctx, cancel := context.WithTimeoutCause(ctx, openTimeout, errors.New("the machine did not say hello in time"))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { stream.Close() })
	lines := NewLineReader(stream)
	err := c.write(Hello{Op: OpHello, Version: Version, Program: o.Program, Watch: &o.Watch})
	var first []byte
	if err == nil {
		first, err = lines.Next()
	}
	if !stop() {
		err = context.Cause(ctx)
	}
	if err == nil {
		err = c.welcome(first)
	}
	if err != nil {
		stream.Close()
		return nil, fmt.Errorf("open the sessions of the machine: %w", err)
	}
	// Ends with the stream; Close waits.
	c.wg.Go(func() { c.end(c.read(lines)) })
	return c, nil
}

func (c *Client) welcome(line []byte) error {
	if err := json.Unmarshal(line, &c.hello); err != nil || c.hello.Op != OpHello {
		return errors.New("its first line is no hello: it is not holdfast, or something printed before it did")
	}
	if c.hello.Version < Version {
		return fmt.Errorf("it speaks version %d of the protocol, which is not known here any more: update holdfast there", c.hello.Version)
	}
	return nil
}

// Hello is what the machine said first.
func (c *Client) Hello() Hello { return c.hello }

// Offers reports whether the machine offers a request.
func (c *Client) Offers(op Op) bool { return slices.Contains(c.hello.Features, string(op)) }

// Sessions are those of the machine as they are known now; complete says that
// all that there are have come.
func (c *Client) Sessions() (all []session.Session, complete bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all = make([]session.Session, 0, len(c.sessions))
	for _, s := range c.sessions {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b session.Session) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return all, c.complete
}

// Changed receives after Sessions has changed.
func (c *Client) Changed() <-chan struct{} { return c.changed }

// Complete waits for all sessions.
func (c *Client) Complete(ctx context.Context) ([]session.Session, error) {
	for {
		all, complete := c.Sessions()
		if complete {
			c.nudge() // for others who wait
			return all, nil
		}
		select {
		case <-c.changed:
		case <-c.ended:
			return nil, c.Err()
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Ended is closed when the connection is over; Err says why.
func (c *Client) Ended() <-chan struct{} { return c.ended }

// Err is why the connection ended: *ByeError, ErrClosed, or what broke. It is nil
// while it lasts.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the connection and waits for the reader.
func (c *Client) Close() error {
	c.end(ErrClosed)
	c.wg.Wait()
	return nil
}

func (c *Client) end(err error) {
	c.mu.Lock()
	first := c.err == nil
	if first {
		c.err = err
		close(c.ended)
	}
	c.mu.Unlock()
	if first {
		c.stream.Close()
		c.nudge()
	}
}

func (c *Client) nudge() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// Call makes a request: params is one of the request types, or nil; result, if
// not nil, is filled in. receipt, if not nil, hears how far a reply got, from
// the reader's goroutine. Errors: *Error, or why the connection ended; a request
// that was sent may have been done then.
func (c *Client) Call(ctx context.Context, op Op, params, result any, receipt func(Stage)) error {
	_, err := c.call(ctx, op, params, result, receipt, nil)
	return err
}

func (c *Client) call(ctx context.Context, op Op, params, result any, receipt func(Stage), follow *following) (int64, error) {
	k := &call{receipt: receipt, done: make(chan struct{})}
	c.mu.Lock()
	if c.err != nil {
		err := c.err
		c.mu.Unlock()
		return 0, err
	}
	c.last++
	id := c.last
	c.calls[id] = k
	if follow != nil {
		c.follows[id] = follow
	}
	c.mu.Unlock()
	forget := func() {
		c.mu.Lock()
		delete(c.calls, id)
		c.mu.Unlock()
	}
	defer forget()
	line, err := join(Request{op, id}, params)
	if err == nil {
		err = c.writeLine(line)
	}
	if err != nil {
		return id, fmt.Errorf("ask the machine for %s: %w", op, err)
	}
	select {
	case <-k.done:
	case <-c.ended:
		return id, c.Err()
	case <-ctx.Done():
		return id, context.Cause(ctx)
	}
	if k.err != nil {
		return id, k.err
	}
	if result == nil {
		return id, nil
	}
	if err := json.Unmarshal(k.result, result); err != nil {
		return id, fmt.Errorf("read the machine's answer to %s: %w", op, err)
	}
	return id, nil
}

// Follow hears what a conversation gains until ctx or the follow ends. emit is
// called from the reader's goroutine and must not block or Call.
func (c *Client) Follow(ctx context.Context, r Follow, emit func(json.RawMessage)) error {
	f := &following{emit: emit, over: make(chan error, 1)}
	id, err := c.call(ctx, OpFollow, r, nil, nil, f)
	defer func() {
		c.mu.Lock()
		delete(c.follows, id)
		c.mu.Unlock()
	}()
	if err != nil {
		return err
	}
	select {
	case err := <-f.over:
		return err
	case <-c.ended:
		return c.Err()
	case <-ctx.Done():
		// Best effort: the end of the connection ends the follow as well.
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), openTimeout)
		defer cancel()
		c.Call(stop, OpUnfollow, Unfollow{id}, nil, nil)
		return context.Cause(ctx)
	}
}

// join makes one line of a request's head and its fields.
func join(head Request, params any) ([]byte, error) {
	h, err := json.Marshal(head)
	if err != nil || params == nil {
		return h, err
	}
	p, err := json.Marshal(params)
	if err != nil {
		return nil, err
	}
	if len(p) < 2 || p[0] != '{' {
		return nil, errors.New("the fields of a request are no object")
	}
	if len(p) == 2 {
		return h, nil
	}
	line := append(h[:len(h)-1], ',')
	line = append(line, p[1:]...)
	if len(line) > MaxLineBytes {
		return nil, Errorf(CodeLimit, "the request has %d bytes, at most %d are allowed", len(line), MaxLineBytes)
	}
	return line, nil
}

func (c *Client) write(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return c.writeLine(line)
}

func (c *Client) writeLine(line []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	_, err := c.stream.Write(append(line, '\n'))
	return err
}

// message is any message of the machine.
type message struct {
	Op       Op                `json:"op"`
	ID       int64             `json:"id"`
	Result   json.RawMessage   `json:"result"`
	State    Stage             `json:"state"`
	Session  json.RawMessage   `json:"session"`
	Sessions []session.Session `json:"sessions"`
	More     bool              `json:"more"`
	Error
}

// read handles lines until the stream ends.
func (c *Client) read(lines *LineReader) error {
	for {
		line, err := lines.Next()
		if err == io.EOF {
			return io.ErrUnexpectedEOF // a bye comes first
		}
		if err != nil {
			return err
		}
		// A line that is not understood is of a newer machine.
		var m message
		if json.Unmarshal(line, &m) != nil {
			continue
		}
		if m.Op == OpBye {
			return &ByeError{m.Code, m.Message}
		}
		c.handle(m)
	}
}

func (c *Client) handle(m message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch m.Op {
	case OpSnapshot:
		for _, s := range m.Sessions {
			c.keep(s)
		}
		c.complete = !m.More
		c.nudge()
	case OpChange:
		var s session.Session
		if json.Unmarshal(m.Session, &s) == nil && s.ID != "" {
			c.keep(s)
			c.nudge()
		}
	case OpGone:
		var id session.ID
		if json.Unmarshal(m.Session, &id) == nil {
			delete(c.sessions, id)
			c.nudge()
		}
	case OpItems:
		if f := c.follows[m.ID]; f != nil {
			f.emit(m.Result)
		}
	case OpReceipt:
		if k := c.calls[m.ID]; k != nil && k.receipt != nil {
			k.receipt(m.State)
		}
	case OpAnswer, OpError:
		var failed error
		if m.Op == OpError {
			e := m.Error
			e.Message = Cut(e.Message, 1<<10)
			failed = &e
		}
		if k := c.calls[m.ID]; k != nil {
			delete(c.calls, m.ID)
			k.result, k.err = m.Result, failed
			close(k.done)
		} else if f := c.follows[m.ID]; f != nil && failed != nil {
			delete(c.follows, m.ID)
			f.over <- failed
		}
	}
}

func (c *Client) keep(s session.Session) {
	if _, known := c.sessions[s.ID]; known || len(c.sessions) < maxSessions {
		c.sessions[s.ID] = s
	}
}
