//go:build linux

package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"holdfast/internal/engine"
	"holdfast/internal/frame"
	"holdfast/internal/wire"
)

// mask is the key of every frame that the load sends: frames are made once.
var mask = [4]byte{0x37, 0xFA, 0x21, 0x3D}

// clientFrame appends one masked frame.
func clientFrame(dst []byte, op frame.Opcode, payload []byte) []byte {
	dst = frame.AppendHeader(dst, frame.Header{Fin: true, Op: op, Masked: true, Mask: mask, Length: int64(len(payload))})
	at := len(dst)
	dst = append(dst, payload...)
	frame.Mask(mask, 0, dst[at:])
	return dst
}

// dial opens a WebSocket by hand, so that the load holds nothing but the socket.
// The request has the size of a real one, about 300 bytes.
func (s *server) dial(path string, token wire.Token) (net.Conn, error) {
	var c net.Conn
	var err error
	if s.secure {
		c, err = tls.Dial("tcp", s.addr, &tls.Config{InsecureSkipVerify: true})
	} else {
		c, err = net.Dial("tcp", s.addr)
	}
	if err != nil {
		return nil, err
	}
	auth := ""
	if !token.IsZero() {
		auth = "Authorization: Bearer " + token.Secret() + "\r\n"
	}
	request := "GET " + path + " HTTP/1.1\r\nHost: " + s.addr + "\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n" +
		"Sec-WebSocket-Protocol: " + wire.SubprotocolV1 + "\r\nUser-Agent: holdfast-bench\r\n" + auth + "\r\n"
	if _, err := io.WriteString(c, request); err != nil {
		c.Close()
		return nil, err
	}
	// Byte by byte at the end, so that no frame is read with it.
	var answer []byte
	one := make([]byte, 1)
	for !bytes.HasSuffix(answer, []byte("\r\n\r\n")) {
		if _, err := io.ReadFull(c, one); err != nil {
			c.Close()
			return nil, fmt.Errorf("upgrade %s: %w", path, err)
		}
		answer = append(answer, one[0])
	}
	if !strings.HasPrefix(string(answer), "HTTP/1.1 101 ") {
		c.Close()
		line, _, _ := strings.Cut(string(answer), "\r\n")
		return nil, fmt.Errorf("upgrade %s: %s", path, line)
	}
	return c, nil
}

// dialMachine opens machine n's control connection.
func (s *server) dialMachine(n int) (net.Conn, error) {
	if s.variant == "relay" {
		return s.dial(wire.AgentPath(machineName(n)), benchToken(engine.KindAgent, n))
	}
	return s.dial("/park", wire.Token{})
}

// pair opens both halves of a stream. For the relay it needs agent, the control
// connection of s.machine.
func (s *server) pair(id int, agent *bufio.Reader) (device, machine net.Conn, err error) {
	if s.variant != "relay" {
		if device, err = s.dial(fmt.Sprintf("/pair/%d/device", id), wire.Token{}); err != nil {
			return nil, nil, err
		}
		machine, err = s.dial(fmt.Sprintf("/pair/%d/agent", id), wire.Token{})
		return device, machine, err
	}
	if device, err = s.dial(wire.ConnectPath(machineName(s.machine), ""), benchToken(engine.KindDevice, 0)); err != nil {
		return nil, nil, err
	}
	for {
		op, payload, err := readFrame(agent)
		if err != nil {
			return nil, nil, fmt.Errorf("wait for a dial: %w", err)
		}
		m, err := wire.DecodeControl(payload)
		if op == frame.Text && err == nil && m.Op == wire.OpDial {
			machine, err = s.dial(wire.AgentDataPath(machineName(s.machine), m.ConnID), benchToken(engine.KindAgent, s.machine))
			return device, machine, err
		}
	}
}

// control opens s.machine's control connection where the variant needs one.
func (s *server) control() (*bufio.Reader, io.Closer, error) {
	if s.variant != "relay" {
		return nil, io.NopCloser(nil), nil
	}
	c, err := s.dialMachine(s.machine)
	if err != nil {
		return nil, nil, err
	}
	// The ping has been answered once the relay would deliver a dial.
	if err := exchange(c, ping, 1); err != nil {
		return nil, nil, err
	}
	return bufio.NewReader(c), c, nil
}

// readFrame reads one unmasked frame.
func readFrame(r io.Reader) (frame.Opcode, []byte, error) {
	var b [frame.MaxHeaderBytes]byte
	for n := 0; ; n++ {
		h, used, err := frame.ParseHeader(b[:n])
		if err != nil {
			return 0, nil, err
		}
		if used > 0 {
			if h.Length > 1<<20 {
				return 0, nil, errors.New("frame is too long")
			}
			payload := make([]byte, h.Length)
			_, err := io.ReadFull(r, payload)
			return h.Op, payload, err
		}
		if _, err := io.ReadFull(r, b[n:n+1]); err != nil {
			return 0, nil, err
		}
	}
}

var (
	ping = clientFrame(nil, frame.Text, []byte(`{"op":"ping"}`))
	pong = frame.AppendFrame(nil, frame.Text, []byte(`{"op":"pong"}`))
	// long is a message of the largest size, of an op that nobody knows.
	long = clientFrame(nil, frame.Text, fmt.Appendf(nil, `{"op":"bench","pad":"%s"}`, strings.Repeat("x", 4096-24)))
)

// exchange writes a frame and reads n pongs.
func exchange(c net.Conn, f []byte, n int) error {
	if _, err := c.Write(f); err != nil {
		return err
	}
	b := make([]byte, len(pong))
	for range n {
		if _, err := io.ReadFull(c, b); err != nil {
			return err
		}
		if !bytes.Equal(b, pong) {
			return fmt.Errorf("answer is %q", b)
		}
	}
	return nil
}

// receiver counts the payload of a stream of frames, masked or not, and looks at
// nothing else.
type receiver struct {
	header  []byte
	left    int64
	payload int64
}

func (r *receiver) take(b []byte) error {
	for len(b) > 0 {
		if r.left > 0 {
			n := min(r.left, int64(len(b)))
			r.left -= n
			r.payload += n
			b = b[n:]
			continue
		}
		// The common case first: the header lies in b.
		if len(r.header) == 0 {
			if n := r.next(b); n > 0 {
				b = b[n:]
				continue
			}
		}
		r.header = append(r.header, b[0])
		b = b[1:]
		if n := r.next(r.header); n > 0 {
			r.header = r.header[:0]
		}
	}
	return nil
}

func (r *receiver) next(b []byte) int {
	h, n, err := frame.ParseHeader(b)
	if err != nil || n == 0 {
		return 0
	}
	r.left = h.Length
	if h.Op.IsControl() {
		r.payload -= h.Length // counted when it comes, but not ours
	}
	return n
}

// blob is a run of frames of one size, at least 256 KiB long, and its payload.
func blob(size int) (b []byte, payload int64) {
	body := make([]byte, size)
	for i := range body {
		body[i] = byte(i)
	}
	binary.BigEndian.PutUint64(body, uint64(size))
	f := clientFrame(nil, frame.Binary, body)
	for len(b) < 256<<10 {
		b = append(b, f...)
		payload += int64(size)
	}
	return b, payload
}
