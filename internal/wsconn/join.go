package wsconn

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/wire"
	"holdfast/internal/wsconn/link"
)

// ErrLocal says that the local end did not take what came: a closed stdout, a
// service that hung up.
var ErrLocal = errors.New("the local end is gone")

// chunks are the buffers of Join: one message each.
var chunks = sync.Pool{New: func() any { b := make([]byte, wire.MaxMessageBytes); return &b }}

// Join passes bytes between a stream and a local end (a service's connection,
// or stdin and stdout) until either is over, then closes both.
//
// WebSocket has no half-close. When the local end has nothing more to say, the
// stream stays open until the peer closes or has said nothing for
// wire.QuietTimeout, and then closes 1000. When the peer closes 1000, what it
// sent is written, the local end's sending side is shut where it has a
// CloseWrite, and what the local end still says is read and dropped for at most
// wire.QuietTimeout, because closing at once would reset the connection and
// take from the local end what it has not read yet. A local end that takes no
// more bytes ends both at once, and so does ctx.
//
// The result is nil after an orderly end, ErrLocal, ctx's cause, or the
// stream's error. Where local.Close does not make a blocked local.Read return
// (a terminal's stdin), one goroutine stays until it does.
func Join(ctx context.Context, s *Stream, local io.ReadWriteCloser) error {
	j := &join{s: s, local: local, outDone: make(chan struct{}), inDone: make(chan struct{})}
	j.out.Store(true)
	go j.outward() // ends with local.Read or the stream; waited for as the comment above says
	go j.inward()  // ends with the stream or a write to local, which local.Close ends
	err := j.wait(ctx)
	local.Close()
	flush := link.FlushTimeout
	if err != nil {
		flush = wire.DrainTimeout // nobody is left who wants it whole
	}
	s.closeBy(wire.CloseNormal, "", flush)
	<-j.inDone
	return err
}

type join struct {
	s     *Stream
	local io.ReadWriteCloser

	out     atomic.Bool // local to stream still goes
	writing atomic.Bool // a write to local is under way

	outDone, inDone chan struct{}
	inErr           error // set before inDone is closed
}

// outward carries local to stream, and drops what comes once the stream is over.
func (j *join) outward() {
	defer close(j.outDone)
	buf := chunks.Get().(*[]byte)
	defer chunks.Put(buf)
	for {
		n, err := j.local.Read(*buf)
		if n > 0 && j.out.Load() {
			if _, werr := j.s.Write((*buf)[:n]); werr != nil {
				j.out.Store(false)
			}
		}
		if err != nil {
			return
		}
	}
}

// inward carries stream to local.
func (j *join) inward() {
	defer close(j.inDone)
	buf := chunks.Get().(*[]byte)
	defer chunks.Put(buf)
	for {
		n, err := j.s.Read(*buf)
		if n > 0 {
			j.writing.Store(true)
			_, werr := j.local.Write((*buf)[:n])
			j.writing.Store(false)
			if werr != nil {
				j.inErr = ErrLocal
				return
			}
		}
		if err != nil {
			if err != io.EOF {
				j.inErr = err
			}
			return
		}
	}
}

func (j *join) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-j.s.Done():
		return j.streamEnded(ctx)
	case <-j.inDone:
		return j.streamEnded(ctx)
	case <-j.outDone:
		return j.sourceEnded(ctx)
	}
}

// streamEnded tells an end that the peer made, after whose last byte inward
// returns, from one that this side made, for which nobody waits.
func (j *join) streamEnded(ctx context.Context) error {
	var peer *CloseError
	if err := j.s.Err(); err != nil && !errors.As(err, &peer) {
		return err
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-j.inDone:
	}
	return j.peerEnded(ctx)
}

// sourceEnded waits for the other direction to end or to be quiet.
func (j *join) sourceEnded(ctx context.Context) error {
	ended := time.Now()
	timer := time.NewTimer(wire.QuietTimeout)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-j.s.Done():
			return j.streamEnded(ctx)
		case <-j.inDone:
			return j.inErr
		case <-timer.C:
		}
		quiet := min(j.s.quiet(), time.Since(ended))
		if j.writing.Load() {
			quiet = 0 // bytes are there; it is the local end that is slow
		}
		if quiet >= wire.QuietTimeout {
			return nil
		}
		timer.Reset(wire.QuietTimeout - quiet)
	}
}

// peerEnded lets the local end read what it was sent.
func (j *join) peerEnded(ctx context.Context) error {
	shut, ok := j.local.(interface{ CloseWrite() error })
	if j.inErr != nil || !ok {
		return j.inErr
	}
	j.out.Store(false)
	if shut.CloseWrite() != nil {
		return nil
	}
	timer := time.NewTimer(wire.QuietTimeout)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-j.outDone:
	case <-timer.C:
	}
	return nil
}
