package sessions

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"time"

	"holdfast/internal/session"
)

const (
	// retryBase and retryCap space the attempts to reach a machine again, with
	// full jitter, as docs/liveness.md says for pages.
	retryBase = time.Second
	retryCap  = 15 * time.Second
	// retryReset is how long a connection must have held to begin anew.
	retryReset = 10 * time.Second
)

// update is the state of one machine.
type update struct {
	source   source
	sessions []session.Session
	err      error // it is not reached; sessions are those known last
	link     *link // nil with err
}

// follow watches all sources until ctx ends, and closes the channel then. Each
// update is the whole state of its machine.
func follow(ctx context.Context, sources []source) <-chan update {
	out := make(chan update)
	var wg sync.WaitGroup
	for _, s := range sources {
		// Ends with ctx; the goroutine below waits.
		wg.Go(func() { followOne(ctx, s, out) })
	}
	// Ends when all have ended.
	go func() {
		wg.Wait()
		close(out)
	}()
	return out
}

func followOne(ctx context.Context, s source, out chan<- update) {
	var known []session.Session
	tell := func(u update) bool {
		u.source = s
		select {
		case out <- u:
			return true
		case <-ctx.Done():
			return false
		}
	}
	wait := retryBase
	for ctx.Err() == nil {
		began := time.Now()
		l, err := s.open(ctx, true)
		if err == nil {
			err = followLink(ctx, l, &known, tell)
		}
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > retryReset {
			wait = retryBase
		}
		if !tell(update{sessions: known, err: err}) {
			return
		}
		select {
		case <-time.After(rand.N(wait)):
		case <-ctx.Done():
			return
		}
		wait = min(2*wait, retryCap)
	}
}

// followLink tells every change until the connection ends.
func followLink(ctx context.Context, l *link, known *[]session.Session, tell func(update) bool) error {
	defer l.close()
	for {
		all, complete := l.Sessions()
		if complete {
			*known = all
			if !tell(update{sessions: all, link: l}) {
				return nil
			}
		}
		select {
		case <-l.Changed():
		case <-l.Ended():
			return l.why()
		case <-ctx.Done():
			return nil
		}
	}
}

// closed reports whether an error says that this side has closed a connection.
func closed(err error) bool {
	return errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed)
}
