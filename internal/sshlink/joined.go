package sshlink

import (
	"net"
	"sync"
	"time"
)

const (
	// bufferBytes is the write buffer of x/crypto's transport: a packet that is
	// longer comes as two writes, of which the first has exactly this length.
	bufferBytes = 4096
	// heldFor is how long the first half waits for the second. It follows at once,
	// from the same goroutine, except that a packet can end just there: under none
	// of the ciphers of TransportConfig, whose lengths never add up to it.
	heldFor = time.Millisecond
)

// Joined makes one write of the two in which x/crypto sends a packet of more
// than 4 KiB. Where writes are messages, as on a relay's data connection, each
// costs every leg of the path and a turn of the page at its end. The result
// owns conn. An error of a write ends all writing, since nobody can know what of
// the bytes before it has gone.
func Joined(conn net.Conn) net.Conn { return &joined{Conn: conn} }

type joined struct {
	net.Conn

	// mu guards the fields below, and keeps writes in order.
	mu    sync.Mutex
	held  []byte // was taken and not written; its capacity, at most a packet's, stays
	err   error  // of a write of what was held, or of Close
	timer *time.Timer
}

func (j *joined) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err != nil {
		return 0, j.err
	}
	if len(j.held) == 0 {
		if len(p) != bufferBytes {
			return j.Conn.Write(p)
		}
		j.held = append(j.held, p...)
		if j.timer == nil {
			// Stopped by Close and by the next write; one that runs meanwhile finds
			// nothing to write, or an error.
			j.timer = time.AfterFunc(heldFor, j.late)
		} else {
			j.timer.Reset(heldFor)
		}
		return len(p), nil
	}
	j.timer.Stop()
	before := len(j.held)
	n, err := j.Conn.Write(append(j.held, p...))
	if cap(j.held) < before+len(p) {
		j.held = make([]byte, 0, before+len(p))
	}
	j.held = j.held[:0]
	j.err = err
	return max(n-before, 0), err
}

// late writes what nothing followed.
func (j *joined) late() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.held) == 0 || j.err != nil {
		return
	}
	_, j.err = j.Conn.Write(j.held)
	j.held = j.held[:0]
}

// Close lets what is held go first, for as long as that would have waited. It
// does not wait for a write that hangs: it ends it.
func (j *joined) Close() error {
	if j.mu.TryLock() {
		if len(j.held) > 0 && j.err == nil {
			j.Conn.SetWriteDeadline(time.Now().Add(heldFor))
			_, j.err = j.Conn.Write(j.held)
			j.held = j.held[:0]
		}
		j.mu.Unlock()
	}
	err := j.Conn.Close()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.timer != nil {
		j.timer.Stop()
	}
	if j.err == nil {
		j.err = net.ErrClosed
	}
	return err
}
