package sqlitedb

import (
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// maxSocketPath is the longest path of a unix socket that every system takes:
// 104 bytes with the final zero on macOS and the BSDs, 108 on Linux.
const maxSocketPath = 103

// pokeTimeout bounds sending one byte to a process that does not read: polling
// finds the change anyway.
const pokeTimeout = 50 * time.Millisecond

// poke is the datagram socket beside the database by which a process that
// changed something tells the one that follows, without waiting for its next
// look. It is an optimisation: whatever fails here is logged and left.
type poke struct {
	path  string
	conn  *net.UnixConn // nil where another process listens, or none can
	ended chan struct{}
	log   *slog.Logger
}

// socketPath is relay.sock for relay.db.
func socketPath(db string) string {
	return strings.TrimSuffix(db, filepath.Ext(db)) + ".sock"
}

// openPoke listens if it may and nobody else does; each datagram signals wake.
func openPoke(db string, listen bool, wake chan<- struct{}, log *slog.Logger) *poke {
	p := &poke{path: socketPath(db), log: log}
	if len(p.path) > maxSocketPath {
		log.Debug("store socket: path is too long, changes of other processes are seen by polling")
		p.path = ""
		return p
	}
	if !listen {
		return p
	}
	if err := p.listen(); err != nil {
		log.Debug("store socket: changes of other processes are seen by polling", "err", err)
		return p
	}
	if p.conn != nil {
		p.ended = make(chan struct{})
		// close ends it, by closing the socket, and waits for it.
		go p.receive(wake)
	}
	return p
}

func (p *poke) listen() error {
	info, err := os.Lstat(p.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return &fs.PathError{Op: "listen", Path: p.path, Err: errors.New("something else than a socket is there")}
	default:
		// Refused means that its listener died without removing it.
		c, err := p.dial()
		if err == nil {
			c.Close()
			return nil
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return err
		}
		if err := os.Remove(p.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: p.path, Net: "unixgram"})
	if err != nil {
		return err
	}
	if err := os.Chmod(p.path, 0o600); err != nil {
		c.Close()
		os.Remove(p.path)
		return err
	}
	p.conn = c
	return nil
}

func (p *poke) dial() (*net.UnixConn, error) {
	return net.DialUnix("unixgram", nil, &net.UnixAddr{Name: p.path, Net: "unixgram"})
}

func (p *poke) receive(wake chan<- struct{}) {
	defer close(p.ended)
	var b [1]byte
	for {
		if _, err := p.conn.Read(b[:]); err != nil {
			if !errors.Is(err, net.ErrClosed) {
				p.log.Warn("store socket", "err", err)
			}
			return
		}
		signal(wake)
	}
}

// send tells the listener of another process, if there is one.
func (p *poke) send() {
	if p == nil || p.path == "" || p.conn != nil {
		return
	}
	c, err := p.dial()
	if err != nil {
		return // nobody listens
	}
	defer c.Close()
	if c.SetWriteDeadline(time.Now().Add(pokeTimeout)) != nil {
		return
	}
	if _, err := c.Write([]byte{1}); err != nil {
		p.log.Debug("store socket", "err", err)
	}
}

// close stops listening and takes the socket away.
func (p *poke) close() error {
	if p == nil || p.conn == nil {
		return nil
	}
	err := p.conn.Close()
	<-p.ended
	if rerr := os.Remove(p.path); err == nil && rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
		err = rerr
	}
	return err
}
