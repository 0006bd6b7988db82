package sshlink

import (
	"bytes"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"

	"holdfast/internal/memnet"
)

// notedConn notes every write.
type notedConn struct {
	net.Conn
	passOn bool // writes
	fail   error

	// mu guards the fields below.
	mu     sync.Mutex
	writes [][]byte
	closed bool
}

func (n *notedConn) Write(p []byte) (int, error) {
	if n.fail != nil {
		return 0, n.fail
	}
	n.mu.Lock()
	n.writes = append(n.writes, bytes.Clone(p))
	n.mu.Unlock()
	if n.passOn {
		return n.Conn.Write(p)
	}
	return len(p), nil
}

func (n *notedConn) SetWriteDeadline(time.Time) error { return nil }

func (n *notedConn) Close() error {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	if n.passOn {
		return n.Conn.Close()
	}
	return nil
}

func (n *notedConn) lengths() (out []int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, w := range n.writes {
		out = append(out, len(w))
	}
	return out
}

func TestJoinedWritesOnePacketAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		under := &notedConn{}
		c := Joined(under)
		var want []byte
		write := func(n int) {
			p := make([]byte, n)
			for i := range p {
				p[i] = byte(len(want) + i*7)
			}
			want = append(want, p...)
			if got, err := c.Write(p); got != n || err != nil {
				t.Fatalf("Write(%d) = %d, %v", n, got, err)
			}
		}
		for _, n := range []int{16, bufferBytes, 28000, 4095, bufferBytes, 1, bufferBytes, bufferBytes, 32 << 10} {
			write(n)
		}
		wantLengths := []int{16, bufferBytes + 28000, 4095, bufferBytes + 1, 2 * bufferBytes, 32 << 10}
		if got := under.lengths(); !slices.Equal(got, wantLengths) {
			t.Errorf("written in pieces of %v, want %v", got, wantLengths)
		}
		// What nothing follows goes out by itself, and once.
		write(bufferBytes)
		before := len(under.lengths())
		time.Sleep(heldFor + time.Nanosecond)
		synctest.Wait()
		if after := len(under.lengths()); after != before+1 {
			t.Errorf("%d writes after the wait, want one", after-before)
		}
		// And at the latest with the end.
		write(bufferBytes)
		c.Close()
		if n, err := c.Write([]byte{1}); n != 0 || !errors.Is(err, net.ErrClosed) {
			t.Errorf("after Close: %d, %v", n, err)
		}
		time.Sleep(2 * heldFor)
		synctest.Wait()
		if got := bytes.Join(under.writes, nil); !bytes.Equal(got, want) {
			t.Error("other bytes were written than were given")
		}
	})
}

func TestJoinedTellsOfAWriteThatNobodyWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		c := Joined(&notedConn{fail: broken})
		if _, err := c.Write(make([]byte, bufferBytes)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(heldFor + time.Nanosecond)
		synctest.Wait()
		if n, err := c.Write([]byte{1}); n != 0 || !errors.Is(err, broken) {
			t.Errorf("the next write: %d, %v", n, err)
		}
		under := &notedConn{fail: broken}
		c = Joined(under)
		c.Write(make([]byte, bufferBytes))
		if n, err := c.Write([]byte{1}); n != 0 || !errors.Is(err, broken) {
			t.Errorf("the second half: %d, %v", n, err)
		}
		// What was held is lost: nothing may go behind it.
		under.fail = nil
		if n, err := c.Write([]byte{1}); n != 0 || !errors.Is(err, broken) || len(under.writes) > 0 {
			t.Errorf("behind what was lost: %d, %v", n, err)
		}
		c.Close()
		if _, err := c.Write([]byte{1}); !errors.Is(err, broken) || !under.closed {
			t.Errorf("after Close: %v, closed %v", err, under.closed)
		}
	})
}

// Close ends writes that hang, whether somebody waits for them or not, and what
// is held for a peer that does not read.
func TestJoinedCloseDoesNotHang(t *testing.T) {
	for name, write := range map[string]func(net.Conn){
		"a write": func(c net.Conn) { go c.Write(make([]byte, 100)) }, // ends with Close
		"a late write": func(c net.Conn) {
			c.Write(make([]byte, bufferBytes))
			time.Sleep(2 * heldFor)
		},
		"bytes that are held": func(c net.Conn) { c.Write(make([]byte, bufferBytes)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe() // takes nothing that is not read
				defer far.Close()
				c := Joined(near)
				write(c)
				synctest.Wait()
				began := time.Now()
				c.Close()
				if took := time.Since(began); took > heldFor {
					t.Errorf("Close took %v", took)
				}
				synctest.Wait()
			})
		})
	}
}

// Under every cipher that we offer, and while keys are exchanged all the time,
// what goes both ways arrives, and each packet of x/crypto is one write.
func TestJoinedFitsXCrypto(t *testing.T) {
	hostKey, deviceKey := signerOf(t, ssh.KeyAlgoED25519), signerOf(t, ssh.KeyAlgoED25519)
	for _, cipher := range TransportConfig().Ciphers {
		t.Run(cipher, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, far := memnet.Pipe()
				sides := []*notedConn{{Conn: near, passOn: true}, {Conn: far, passOn: true}}
				config := TransportConfig()
				config.Ciphers = []string{cipher}
				config.RekeyThreshold = 100_000
				// Both end with the connection, and echo ends the channel before.
				go echo(Joined(sides[1]), &config, hostKey)
				c, chans, reqs, err := ssh.NewClientConn(Joined(sides[0]), "", &ssh.ClientConfig{
					Config: config, HostKeyCallback: ssh.FixedHostKey(hostKey.PublicKey()),
					Auth: []ssh.AuthMethod{ssh.PublicKeys(deviceKey)},
				})
				must(t, err)
				client := ssh.NewClient(c, chans, reqs)
				defer client.Close()
				ch, reqs, err := client.OpenChannel("echo", nil)
				must(t, err)
				go ssh.DiscardRequests(reqs)
				const full = 40
				var pieces [][]byte
				for i := range full {
					// A whole packet, and then one about as long as the buffer.
					for _, n := range []int{32 << 10, bufferBytes - 64 + i, 1} {
						pieces = append(pieces, bytes.Repeat([]byte{byte(i)}, n))
					}
				}
				want := bytes.Join(pieces, nil)
				go func() { // ends with the channel
					for _, p := range pieces {
						ch.Write(p)
					}
					ch.CloseWrite()
				}()
				got, err := io.ReadAll(ch)
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("%d bytes of %d came back, %v", len(got), len(want), err)
				}
				for i, side := range sides {
					lengths := side.lengths()
					if slices.Contains(lengths, bufferBytes) {
						t.Errorf("side %d: a packet came apart", i)
					}
					if whole := countOver(lengths, 32<<10); whole < full-1 {
						t.Errorf("side %d: %d whole packets, of %d", i, whole, full)
					}
				}
			})
		})
	}
}

func countOver(lengths []int, limit int) (n int) {
	for _, l := range lengths {
		if l > limit {
			n++
		}
	}
	return n
}

// echo serves one connection, and sends back what comes on its channels.
func echo(conn net.Conn, config *ssh.Config, hostKey ssh.Signer) {
	server := &ssh.ServerConfig{Config: *config, PublicKeyCallback: func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) { return nil, nil }}
	server.AddHostKey(hostKey)
	_, chans, reqs, err := ssh.NewServerConn(conn, server)
	if err != nil {
		conn.Close()
		return
	}
	go ssh.DiscardRequests(reqs) // ends with the connection
	for nc := range chans {
		ch, reqs, err := nc.Accept()
		if err != nil {
			return
		}
		go ssh.DiscardRequests(reqs) // the same
		io.CopyBuffer(struct{ io.Writer }{ch}, struct{ io.Reader }{ch}, make([]byte, 64<<10))
		ch.Close()
	}
}
