package source

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

// An Update is the state of one machine.
type Update struct {
	Source   Source
	Sessions []session.Session
	Err      error // it is not reached; sessions are those known last
	Link     *Link // nil with err
}

// Follow watches all sources until ctx ends, and closes the channel then. Each
// An Update is the whole state of its machine.
func Follow(ctx context.Context, sources []Source) <-chan Update {
	out := make(chan Update)
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

func followOne(ctx context.Context, s Source, out chan<- Update) {
	var known []session.Session
	tell := func(u Update) bool {
		u.Source = s
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
		l, err := s.Open(ctx, true)
		if err == nil {
			err = followLink(ctx, l, &known, tell)
		}
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > retryReset {
			wait = retryBase
		}
		if !tell(Update{Sessions: known, Err: err}) {
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
func followLink(ctx context.Context, l *Link, known *[]session.Session, tell func(Update) bool) error {
	defer l.Close()
	for {
		all, complete := l.Sessions()
		if complete {
			*known = all
			if !tell(Update{Sessions: all, Link: l}) {
				return nil
			}
		}
		select {
		case <-l.Changed():
		case <-l.Ended():
			return l.Why()
		case <-ctx.Done():
			return nil
		}
	}
}

// Closed reports whether an error says that this side has closed a connection.
func Closed(err error) bool {
	return errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed)
}
