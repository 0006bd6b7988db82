// Package attach opens a control client of a tmux server without a tmux process:
// it says on the server's socket what tmux -C would, and hands the server two
// pipes.
//
// It is here because tmux from 3.2 to 3.6 crashes, and takes every session with
// it, when a session begins or ends while a control client says who it is: the
// flag that makes it one is sent first, in messages of their own, and the server
// writes to the half-made client (tmux issues 4980 and 5004, mended in 3.7). Open
// sends the flag and the end of what it says in one write, which the server reads
// in one turn of its loop. Besides, such a client ends with this process, even
// when that is killed.
//
// It knows nothing of the control protocol that is spoken on the pipes. What a
// caller will get wrong: Speaks says for which servers this is; a server that
// hangs accepts the connection all the same; and nothing but Close frees a Client.
package attach

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
)

// Options of Open.
type Options struct {
	Socket string   // required: the path of the server's socket
	Args   []string // required: the command and its arguments, without options of tmux itself
	// Marked says that the header of a message marks descriptors in its length, as
	// tmux 3.6 and later have it.
	Marked bool
}

// tmux's protocol, of which all versions from 2.0 on speak number 8.
const (
	protocolVersion = 8

	msgIdentifyFlags     = 100
	msgIdentifyTerm      = 101
	msgIdentifyTTY       = 102
	msgIdentifyStdin     = 104
	msgIdentifyDone      = 106
	msgIdentifyPID       = 107
	msgIdentifyDir       = 108
	msgIdentifyFeatures  = 109
	msgIdentifyStdout    = 110
	msgIdentifyLongFlags = 111
	msgCommand           = 200
	msgReady             = 207
	msgFlags             = 218

	flagControl = 0x2000
	flagUTF8    = 0x10000

	headerBytes = 16
	// maxMessage is tmux's own limit of a message, in bytes.
	maxMessage = 16384
)

// A Client is a control client. In and Out are its two pipes.
type Client struct {
	In  io.WriteCloser
	Out io.ReadCloser

	conn  *net.UnixConn
	close sync.Once
	done  chan struct{} // closed when hear ended
}

// Open connects, says who it is and runs the command.
func Open(ctx context.Context, o Options) (*Client, error) {
	if o.Socket == "" || len(o.Args) == 0 {
		return nil, errors.New("open a control client: socket and command are required")
	}
	say, err := introduction(o)
	if err != nil {
		return nil, fmt.Errorf("open a control client of tmux server %s: %w", o.Socket, err)
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", o.Socket)
	if err != nil {
		return nil, fmt.Errorf("open a control client: %w", err)
	}
	c := &Client{conn: conn.(*net.UnixConn), done: make(chan struct{})}
	if err := c.introduce(o, say); err != nil {
		c.conn.Close()
		return nil, fmt.Errorf("open a control client of tmux server %s: %w", o.Socket, err)
	}
	// Ends with the connection; Close waits for it.
	go c.hear(o.Marked)
	return c, nil
}

// introduce passes the ends of two pipes and says the rest in one write.
func (c *Client) introduce(o Options, say []byte) error {
	stdin, in, err := os.Pipe()
	if err != nil {
		return err
	}
	defer stdin.Close()
	out, stdout, err := os.Pipe()
	if err != nil {
		in.Close()
		return err
	}
	defer stdout.Close()
	err = errors.Join(c.pass(o, msgIdentifyStdin, stdin), c.pass(o, msgIdentifyStdout, stdout))
	if err == nil {
		_, err = c.conn.Write(say)
	}
	if err != nil {
		in.Close()
		out.Close()
		return err
	}
	c.In, c.Out = in, out
	return nil
}

// pass sends a message with a descriptor. tmux takes one of each read.
func (c *Client) pass(o Options, kind uint32, f *os.File) error {
	_, _, err := c.conn.WriteMsgUnix(o.message(kind, true, nil), syscall.UnixRights(int(f.Fd())), nil)
	return err
}

// introduction is everything that is said in one write: who this is, and the
// command.
func introduction(o Options) ([]byte, error) {
	text := func(s string) []byte { return append([]byte(s), 0) }
	number := func(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }
	command := number(uint32(len(o.Args)))
	for _, a := range o.Args {
		if bytes.IndexByte([]byte(a), 0) >= 0 {
			return nil, errors.New("an argument holds a NUL")
		}
		command = append(command, text(a)...)
	}
	if len(command) > maxMessage-headerBytes {
		return nil, fmt.Errorf("the command has %d bytes, the limit is %d", len(command), maxMessage-headerBytes)
	}
	var b []byte
	add := func(kind uint32, data []byte) { b = append(b, o.message(kind, false, data)...) }
	add(msgIdentifyFlags, number(flagControl|flagUTF8))
	add(msgIdentifyLongFlags, binary.NativeEndian.AppendUint64(nil, flagControl|flagUTF8))
	add(msgIdentifyTerm, text("dumb"))
	add(msgIdentifyFeatures, number(0))
	add(msgIdentifyTTY, text(""))
	add(msgIdentifyDir, text("/"))
	add(msgIdentifyPID, number(uint32(os.Getpid())))
	add(msgIdentifyDone, nil)
	add(msgCommand, command)
	return b, nil
}

// message is one message: type, length, protocol and sender, then the data.
func (o Options) message(kind uint32, descriptor bool, data []byte) []byte {
	size := uint32(headerBytes + len(data))
	b := binary.NativeEndian.AppendUint32(make([]byte, 0, size), kind)
	switch {
	case o.Marked && descriptor:
		b = binary.NativeEndian.AppendUint32(b, size|1<<31)
	case o.Marked:
		b = binary.NativeEndian.AppendUint32(b, size)
	default:
		flags := uint16(0)
		if descriptor {
			flags = 1
		}
		b = binary.NativeEndian.AppendUint16(b, uint16(size))
		b = binary.NativeEndian.AppendUint16(b, flags)
	}
	b = binary.NativeEndian.AppendUint32(b, protocolVersion)
	b = binary.NativeEndian.AppendUint32(b, uint32(os.Getpid()))
	return append(b, data...)
}

// hear reads what the server says beside the pipes until it lets the client go:
// anything but a greeting and its flags means that. The server then waits for the
// connection to end.
func (c *Client) hear(marked bool) {
	defer close(c.done)
	defer c.conn.Close()
	var header [headerBytes]byte
	for {
		if _, err := io.ReadFull(c.conn, header[:]); err != nil {
			return
		}
		kind, size := binary.NativeEndian.Uint32(header[:4]), binary.NativeEndian.Uint32(header[4:8])&^(1<<31)
		if !marked {
			size = uint32(binary.NativeEndian.Uint16(header[4:6]))
		}
		if kind != msgReady && kind != msgFlags || size < headerBytes || size > maxMessage {
			return
		}
		if _, err := io.CopyN(io.Discard, c.conn, int64(size-headerBytes)); err != nil {
			return
		}
	}
}

// Close ends the client and frees all of it.
func (c *Client) Close() {
	c.close.Do(func() {
		c.conn.Close()
		c.In.Close()
		c.Out.Close()
	})
	<-c.done
}
