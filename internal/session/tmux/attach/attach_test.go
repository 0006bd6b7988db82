package attach

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is the other end: what one read of a connection gave, and a descriptor.
type server struct {
	t    *testing.T
	conn *net.UnixConn
}

func (s server) read() (data []byte, fd int) {
	s.t.Helper()
	b, oob := make([]byte, 65535), make([]byte, 256)
	n, m, _, _, err := s.conn.ReadMsgUnix(b, oob)
	if err != nil {
		s.t.Fatal(err)
	}
	fd = -1
	if messages, err := syscall.ParseSocketControlMessage(oob[:m]); err == nil && len(messages) == 1 {
		if fds, err := syscall.ParseUnixRights(&messages[0]); err == nil && len(fds) == 1 {
			fd = fds[0]
		}
	}
	return b[:n], fd
}

// open opens a client on a server of the test.
func open(t *testing.T, marked bool) (*Client, server) {
	t.Helper()
	dir, err := os.MkdirTemp("", "hf")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := Open(t.Context(), Options{Socket: socket, Args: []string{"attach-session", "-t", "$0"}, Marked: marked})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return c, server{t, conn.(*net.UnixConn)}
}

// messages takes messages apart.
func messages(t *testing.T, b []byte, marked bool) (kinds []uint32, data [][]byte, descriptors []bool) {
	t.Helper()
	for len(b) > 0 {
		size := int(binary.NativeEndian.Uint32(b[4:8]) &^ (1 << 31))
		with := b[7]&0x80 != 0
		if !marked {
			size, with = int(binary.NativeEndian.Uint16(b[4:6])), binary.NativeEndian.Uint16(b[6:8]) == 1
		}
		if v := binary.NativeEndian.Uint32(b[8:12]); size < headerBytes || size > len(b) || v != 8 {
			t.Fatalf("a message of %d bytes, protocol %d, of %d that are left", size, v, len(b))
		}
		kinds, data, descriptors = append(kinds, binary.NativeEndian.Uint32(b)), append(data, b[headerBytes:size]), append(descriptors, with)
		b = b[size:]
	}
	return kinds, data, descriptors
}

// What makes it a control client and the end of the introduction must be in one
// read: between two the server may write to a client that is not made yet.
func TestTheFlagAndTheEndComeInOneRead(t *testing.T) {
	for _, marked := range []bool{false, true} {
		c, s := open(t, marked)
		var fds []int
		for _, want := range []uint32{msgIdentifyStdin, msgIdentifyStdout} {
			b, fd := s.read()
			kinds, _, with := messages(t, b, marked)
			if len(kinds) != 1 || kinds[0] != want || !with[0] || fd < 0 {
				t.Fatalf("marked %v: messages %v, descriptors %v, got %d", marked, kinds, with, fd)
			}
			fds = append(fds, fd)
		}
		b, fd := s.read()
		kinds, data, _ := messages(t, b, marked)
		n := len(kinds)
		if fd != -1 || n < 3 || kinds[0] != msgIdentifyFlags || kinds[n-2] != msgIdentifyDone || kinds[n-1] != msgCommand {
			t.Fatalf("marked %v: the last read gave the messages %v and descriptor %d", marked, kinds, fd)
		}
		if flags := binary.NativeEndian.Uint32(data[0]); flags != flagControl|flagUTF8 {
			t.Errorf("flags %#x", flags)
		}
		if command := string(data[n-1][4:]); command != "attach-session\x00-t\x00$0\x00" || data[n-1][0] != 3 {
			t.Errorf("the command is %q", data[n-1])
		}
		in, out := os.NewFile(uintptr(fds[0]), "stdin"), os.NewFile(uintptr(fds[1]), "stdout")
		if _, err := io.WriteString(c.In, "list\n"); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 5)
		if _, err := io.ReadFull(in, got); err != nil || string(got) != "list\n" {
			t.Errorf("the server reads %q, %v", got, err)
		}
		if _, err := io.WriteString(out, "%begin\n"); err != nil {
			t.Fatal(err)
		}
		got = make([]byte, 7)
		if _, err := io.ReadFull(c.Out, got); err != nil || string(got) != "%begin\n" {
			t.Errorf("the client reads %q, %v", got, err)
		}
		// A greeting changes nothing, the end does.
		o := Options{Marked: marked}
		if _, err := s.conn.Write(append(o.message(msgFlags, false, make([]byte, 8)), o.message(203, false, make([]byte, 4))...)); err != nil {
			t.Fatal(err)
		}
		s.conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		if n, err := s.conn.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("after it was told to end: %d bytes, %v", n, err)
		}
		in.Close()
		out.Close()
		if rest, err := io.ReadAll(c.Out); err != nil || len(rest) != 0 {
			t.Errorf("after the end the client reads %q, %v", rest, err)
		}
		c.Close()
		c.Close() // twice is as good
	}
}

func TestAServerThatSaysNothingHoldsNobody(t *testing.T) {
	c, _ := open(t, false)
	ended := make(chan error, 1)
	go func() { _, err := c.Out.Read(make([]byte, 1)); ended <- err }()
	c.Close()
	if err := <-ended; err == nil {
		t.Error("a read went on after Close")
	}
}

func TestOpenRefuses(t *testing.T) {
	for _, o := range []Options{
		{Args: []string{"x"}}, {Socket: "/nowhere/s"}, {Socket: "/nowhere/s", Args: []string{"a\x00b"}},
		{Socket: "/nowhere/s", Args: []string{strings.Repeat("x", maxMessage)}}, {Socket: "/nowhere/s", Args: []string{"x"}},
	} {
		if c, err := Open(context.Background(), o); err == nil {
			c.Close()
			t.Errorf("%.60v was opened", o)
		}
	}
}
