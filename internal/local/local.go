// Package local is the socket by which a second process of the same user talks
// to the up or agent that runs on a state directory: one JSON line each way, on
// a socket of mode 0600, and after some questions a stream.
//
// It decides nothing and keeps nothing; what it is asked, a Handler answers.
// What a caller will get wrong: it is no remote interface. Whoever can open the
// socket can read every key in the directory as well, so it asks for no secret,
// and it must never be made reachable in another way.
package local

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"holdfast/internal/session/proto"
	"holdfast/internal/state"
	"holdfast/internal/wire"
)

// Op names what is asked.
type Op string

// The questions there are.
const (
	OpPair     Op = "pair"     // open a pairing link: Link, Expires
	OpDevices  Op = "devices"  // list the devices that may enter: Devices
	OpRevoke   Op = "revoke"   // revoke Device
	OpMachines Op = "machines" // list the machines of the account: Relay, Machines
	OpStatus   Op = "status"   // what the agent knows about itself: Agent
	OpTokens   Op = "tokens"   // of a relay: what it alone knows about Tokens
	OpSessions Op = "sessions" // the connection becomes a stream of the sessions protocol
)

const (
	// maxRequestBytes bounds a request, which names a device at most, or MaxTokens.
	maxRequestBytes = 32 << 10
	// MaxTokens is how many tokens one request may ask about: an id has 18 bytes.
	MaxTokens = 1000
	// maxAnswerBytes bounds an answer: the list of 1,000 machines has 500 KB.
	maxAnswerBytes = 4 << 20
	// requestTimeout bounds the reading of a request, which its sender has ready.
	requestTimeout = 5 * time.Second
	// answerTimeout bounds a question altogether. The relay proves machines for
	// a list, which takes ten seconds for one that does not answer.
	answerTimeout = 30 * time.Second
	// maxConns bounds the questions at a time. A person asks one; what comes
	// beyond waits in the socket's backlog.
	maxConns = 32
	// maxStreams bounds the streams at a time: each is a terminal that watches, or
	// a device that came through the system's sshd.
	maxStreams = 64
	// acceptRetry is how soon a socket that could not accept tries again: a
	// process without a free descriptor gets one when a connection ends.
	acceptRetry = 100 * time.Millisecond
)

// Request is one question.
type Request struct {
	Op     Op     `json:"op"`
	Device string `json:"device,omitempty"`
	// Tokens are ids, at most MaxTokens.
	Tokens []string `json:"tokens,omitempty"`
}

// Answer is what came of it. An Error is for a person to read, with a Hint;
// Denied says that the relay does not allow it.
type Answer struct {
	Error  string `json:"error,omitempty"`
	Hint   string `json:"hint,omitempty"`
	Denied bool   `json:"denied,omitempty"`

	Link     string            `json:"link,omitempty"` // a secret until it expires
	Expires  time.Time         `json:"expires,omitzero"`
	Relay    string            `json:"relay,omitempty"`
	Devices  []wire.DeviceInfo `json:"devices,omitempty"`
	Machines *wire.Machines    `json:"machines,omitempty"`
	Agent    json.RawMessage   `json:"agent,omitempty"` // an agent.Status
	// Calls are, with a status, the devices that asked to be called when a session
	// waits.
	Calls []Call `json:"calls,omitempty"`
	// Tokens holds what a relay knows, by id.
	Tokens map[string]TokenUse `json:"tokens,omitempty"`
}

// Call is how it stands with a device that asked to be called.
type Call struct {
	Device string `json:"device"`
	Name   string `json:"name"`
	proto.PushState
}

// TokenUse is what a running relay knows about a token: how many streams are
// open, and from how many addresses it was used within the last hour.
type TokenUse struct {
	Streams   int `json:"streams"`
	Addresses int `json:"addresses"`
}

// Handler answers a question.
type Handler func(ctx context.Context, q Request) Answer

// StreamHandler serves a stream until it or ctx ends. The stream is closed after
// it.
type StreamHandler func(ctx context.Context, stream io.ReadWriteCloser, q Request)

// Server answers on a directory's socket.
type Server struct {
	ln     net.Listener
	handle Handler
	stream map[Op]StreamHandler
	log    *slog.Logger
	cancel context.CancelFunc
	wg     sync.WaitGroup
	slots  chan struct{}
	open   chan struct{} // one element for each stream
}

// Serve opens the socket of dir's up or agent, whose Lock the caller holds, and
// answers until Close. Questions of streams become one; nil means none do.
func Serve(dir state.Dir, handle Handler, streams map[Op]StreamHandler, log *slog.Logger) (*Server, error) {
	return serveOn(dir, state.ControlSocket, handle, streams, log)
}

// ServeRelay is Serve for the relay that runs on dir, alone or in an up.
func ServeRelay(dir state.Dir, handle Handler, log *slog.Logger) (*Server, error) {
	return serveOn(dir, state.RelaySocket, handle, nil, log)
}

func serveOn(dir state.Dir, socket string, handle Handler, streams map[Op]StreamHandler, log *slog.Logger) (*Server, error) {
	if handle == nil || log == nil {
		return nil, errors.New("local socket: handler and log are required")
	}
	ln, err := dir.Listen(socket)
	if err != nil {
		return nil, err
	}
	return serveListener(ln, handle, streams, log), nil
}

func serveListener(ln net.Listener, handle Handler, streams map[Op]StreamHandler, log *slog.Logger) *Server {
	ctx, cancel := context.WithCancel(context.Background())
	s := &Server{
		ln: ln, handle: handle, stream: streams, log: log, cancel: cancel,
		slots: make(chan struct{}, maxConns), open: make(chan struct{}, maxStreams),
	}
	s.wg.Go(func() { s.accept(ctx) }) // stopped and waited for by Close
	return s
}

// Close stops answering, interrupts what is being answered and removes the
// socket.
func (s *Server) Close() error {
	s.cancel()
	err := s.ln.Close()
	s.wg.Wait()
	return err
}

func (s *Server) accept(ctx context.Context) {
	tired := false // it was said already
	for {
		select {
		case s.slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		conn, err := s.ln.Accept()
		if err != nil {
			<-s.slots
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			if !tired {
				s.log.Warn("the local socket accepts nothing for now", "err", err)
			}
			tired = true
			select {
			case <-time.After(acceptRetry):
			case <-ctx.Done():
			}
			continue
		}
		tired = false
		// Ends with the question, at the latest after answerTimeout, or with the
		// stream that it becomes, or when Close cancels ctx; Close waits.
		s.wg.Go(func() {
			defer conn.Close()
			q, stream := s.serve(ctx, conn)
			<-s.slots
			if stream != nil {
				conn.SetDeadline(time.Time{}) // a stream has no end of its own
				stream(ctx, conn, q)
				<-s.open
			}
		})
	}
}

// serve answers one question, and returns what serves the stream that it begins.
func (s *Server) serve(ctx context.Context, conn net.Conn) (q Request, stream StreamHandler) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()

	conn.SetDeadline(time.Now().Add(requestTimeout))
	var a Answer
	switch err := readLine(conn, maxRequestBytes, &q); {
	case err != nil:
		a = Answer{Error: fmt.Sprintf("read request: %v", err)}
	case s.stream[q.Op] != nil:
		select {
		case s.open <- struct{}{}:
			stream = s.stream[q.Op]
		default:
			a = Answer{Error: fmt.Sprintf("%d programs use this already", maxStreams)}
		}
	default:
		a = s.handle(ctx, q)
	}
	conn.SetDeadline(time.Now().Add(requestTimeout))
	if err := writeLine(conn, a); err != nil {
		if ctx.Err() == nil {
			s.log.Debug("a local question went away unanswered", "err", err)
		}
		if stream != nil {
			<-s.open
		}
		return q, nil
	}
	return q, stream
}

// Ask puts one question to the process that runs on dir: state.ErrNotRunning
// where there is none. The error is of the asking; Answer.Error is the answer's.
func Ask(ctx context.Context, dir state.Dir, q Request) (Answer, error) {
	return askOn(ctx, dir, state.ControlSocket, q)
}

// AskRelay is Ask for the relay that runs on dir.
func AskRelay(ctx context.Context, dir state.Dir, q Request) (Answer, error) {
	return askOn(ctx, dir, state.RelaySocket, q)
}

// Open puts a question to the process that runs on dir that becomes a stream:
// state.ErrNotRunning where there is none. The error is of the asking; where
// Answer has an Error, stream is nil.
func Open(ctx context.Context, dir state.Dir, q Request) (stream io.ReadWriteCloser, a Answer, err error) {
	conn, err := dir.Dial(ctx, state.ControlSocket)
	if err != nil {
		return nil, Answer{}, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(requestTimeout))
	reader := bufio.NewReader(conn)
	err = writeLine(conn, q)
	if err == nil {
		err = readBuffered(reader, &a)
	}
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		conn.Close()
		return nil, Answer{}, fmt.Errorf("ask the holdfast that is running: %w", err)
	}
	if a.Error != "" {
		return nil, a, conn.Close()
	}
	conn.SetDeadline(time.Time{})
	return buffered{conn, reader}, a, nil
}

// buffered is a connection of which the beginning was read ahead.
type buffered struct {
	net.Conn
	r *bufio.Reader
}

func (b buffered) Read(p []byte) (int, error) { return b.r.Read(p) }

// CloseWrite says that nothing more is sent; answers may still come.
func (b buffered) CloseWrite() error {
	if c, ok := b.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return b.Conn.Close()
}

// readBuffered reads an answer that fits into the reader, as one before a stream
// does: it says nothing, or what is wrong.
func readBuffered(r *bufio.Reader, v any) error {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return err
	}
	return json.Unmarshal(line, v)
}

func askOn(ctx context.Context, dir state.Dir, socket string, q Request) (Answer, error) {
	conn, err := dir.Dial(ctx, socket)
	if err != nil {
		return Answer{}, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	conn.SetDeadline(time.Now().Add(answerTimeout + requestTimeout))
	var a Answer
	err = writeLine(conn, q)
	if err == nil {
		err = readLine(conn, maxAnswerBytes, &a)
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return Answer{}, fmt.Errorf("ask the holdfast that is running: %w", err)
	}
	return a, nil
}

func writeLine(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

func readLine(r io.Reader, limit int64, v any) error {
	line, err := bufio.NewReader(io.LimitReader(r, limit)).ReadBytes('\n')
	if err == io.EOF {
		return fmt.Errorf("no line of at most %d bytes", limit)
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(line, v)
}
