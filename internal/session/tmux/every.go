package tmux

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"holdfast/internal/session/tmux/child"
)

// rounds is how many looks one process of ListEvery takes. A command line of
// tmux holds 16 KiB; twice as many would not fit, half would start twice as
// many processes.
const rounds = 8

const endOfList = "end of list"

// ListEvery lists the server every second and calls look with what it found,
// until ctx ends or the server does not answer. It attaches to nothing and
// starts one process in eight seconds: tmux itself waits between the lists.
func (s *Server) ListEvery(ctx context.Context, look func(Listing)) error {
	for {
		if err := s.listRounds(ctx, look); err != nil || ctx.Err() != nil {
			return err
		}
	}
}

func (s *Server) listRounds(ctx context.Context, look func(Listing)) error {
	if !s.Info().atLeast(3, 2) {
		// No run-shell -d: a process a second.
		l, err := s.List(ctx)
		if err != nil {
			return err
		}
		look(l)
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
		return nil
	}
	var args []string
	for range rounds {
		args = append(args, listCommand()...)
		args = append(args, ";", "display-message", "-p", endOfList, ";", "run-shell", "-d", "1", ";")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	cmd := exec.CommandContext(ctx, s.program, s.arguments(args[:len(args)-1]...)...)
	cmd.Env, cmd.WaitDelay = s.environ, time.Second
	child.With(cmd)
	var problem limited
	problem.limit = 4 << 10
	cmd.Stderr = &problem
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("list the panes of tmux server %s: %w", s.socket, err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("list the panes of tmux server %s: %w", s.socket, err)
	}
	// Ends the process when a list is late; stopped before Wait.
	late := time.AfterFunc(commandTimeout, func() { cancel(ErrSilent) })
	r := bufio.NewReaderSize(io.LimitReader(stdout, rounds*maxOutput), 64<<10)
	var list []byte
	for {
		line, err := r.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			continue // no line of a list is that long
		}
		if err != nil {
			break
		}
		if strings.TrimSuffix(string(line), "\n") != endOfList {
			if len(list)+len(line) <= maxOutput {
				list = append(list, line...)
			}
			continue
		}
		late.Reset(commandTimeout + time.Second)
		l := parseListing(list)
		if err := s.same(l); err != nil {
			cancel(err)
			break
		}
		look(l)
		list = list[:0]
	}
	late.Stop()
	err = cmd.Wait()
	if cause := context.Cause(ctx); cause != nil {
		if errors.Is(cause, ErrSilent) || errors.Is(cause, ErrGone) {
			return fmt.Errorf("list the panes of tmux server %s: %w", s.socket, cause)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("list the panes of tmux server %s: %w", s.socket, failure(problem.String(), err))
	}
	return nil
}
