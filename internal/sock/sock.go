// Package sock reads sockets the way a relay with many idle ones must: a large
// buffer is taken from a pool only while there is something to read, whatever
// the kind of connection. It also tells how far a peer's kernel has acknowledged
// what was written, and lets a TLS connection go on over a socket that does not
// block.
//
// It knows nothing of frames and never closes a connection. What a caller will
// get wrong: a Chunk belongs to the caller until it is put back with Release,
// and a Reader is for one goroutine.
package sock

import (
	"net"
	"sync"
	"syscall"
)

const (
	// ChunkBytes is how much is read at once. Measured beside a plain proxy: half
	// is slower at 32 KiB frames and above, double needs twice the memory for a
	// few percent.
	ChunkBytes = 128 << 10
	// Headroom is free space before the data of a chunk, for a frame header.
	Headroom = 16
	// smallBytes is what a Reader of a connection that cannot be waited for
	// without a buffer holds while idle: a keystroke or a window change fits.
	smallBytes = 1 << 10
)

// Chunk is one pooled buffer.
type Chunk struct {
	// Buf holds Headroom bytes of free space, then data.
	Buf [Headroom + ChunkBytes]byte
}

var chunks = sync.Pool{New: func() any { return new(Chunk) }}

// NewChunk takes a chunk from the pool. Its content is undefined.
func NewChunk() *Chunk { return chunks.Get().(*Chunk) }

// Release puts c back into the pool. A nil chunk is none.
func (c *Chunk) Release() {
	if c != nil {
		chunks.Put(c)
	}
}

// Reader reads chunks from one connection.
type Reader struct {
	conn net.Conn

	// For a connection with a descriptor that can be waited for: wait calls try
	// until it reports true, parking the goroutine in between.
	wait func(try func(fd uintptr) bool) error
	try  func(fd uintptr) bool
	read func(fd uintptr, b []byte) (int, error)

	// The result of the last try.
	chunk *Chunk
	n     int
	err   error

	// For any other connection.
	small []byte
	large bool
}

// NewReader makes a Reader of c. Deadlines and Close of c work as usual.
func NewReader(c net.Conn) *Reader {
	r := &Reader{conn: c}
	r.init()
	return r
}

// Read waits for data and returns it as chunk.Buf[Headroom:Headroom+n] with n > 0,
// or an error; io.EOF where the peer has finished. The chunk is the caller's.
func (r *Reader) Read() (chunk *Chunk, n int, err error) {
	if r.wait == nil {
		return r.readPlain()
	}
	err = r.wait(r.try)
	chunk, n = r.chunk, r.n
	r.chunk = nil
	if err == nil {
		err = r.err
	}
	if err != nil {
		chunk.Release()
		return nil, 0, err
	}
	return chunk, n, nil
}

// readPlain holds a small buffer while it waits, and a large one only right
// after the small one was filled.
func (r *Reader) readPlain() (*Chunk, int, error) {
	if r.large {
		chunk := NewChunk()
		n, err := r.conn.Read(chunk.Buf[Headroom:])
		if n == 0 {
			chunk.Release()
			return nil, 0, err
		}
		r.large = n >= smallBytes
		return chunk, n, nil
	}
	if r.small == nil {
		r.small = make([]byte, smallBytes)
	}
	n, err := r.conn.Read(r.small)
	if n == 0 {
		return nil, 0, err
	}
	r.large = n == smallBytes
	chunk := NewChunk()
	copy(chunk.Buf[Headroom:], r.small[:n])
	return chunk, n, nil
}

// HangUp closes c at once. The Close of crypto/tls may wait 5 s for a peer that
// does not read to take its goodbye, whatever the deadline.
func HangUp(c net.Conn) error {
	return beneath(c).Close()
}

// beneath is the connection that carries c.
func beneath(c net.Conn) net.Conn {
	for {
		over, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return c
		}
		under := over.NetConn()
		if under == nil {
			return c
		}
		c = under
	}
}

// rawConn is c's descriptor, if it has one of its own.
func rawConn(c net.Conn) syscall.RawConn {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return nil
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return nil
	}
	return rc
}
