// Command server is the other end in the tests of the page's SSH client: an
// x/crypto/ssh server whose key exchange can be chosen and which changes keys as
// often as it is told to, and beside it the built-in server of Holdfast, with
// one device's key let in to both.
//
// It never leaves the loopback interface and ends when its standard input does,
// which a test that dies closes too. What a caller will get wrong: the first
// line that it prints is a JSON object with its addresses and host keys, and
// every line after that is something that it saw.
package main

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"holdfast/internal/sshserver"
)

func main() {
	var o options
	flag.StringVar(&o.device, "device", "", "the device's public key, \"type base64\"")
	flag.StringVar(&o.kex, "kex", "", "key exchanges that the x/crypto server offers, separated by commas; empty: its own choice")
	flag.StringVar(&o.cipher, "cipher", "", "its ciphers")
	flag.Uint64Var(&o.rekey, "rekey", 0, "bytes after which it changes keys; 0: its own choice")
	flag.Parse()
	if err := serve(o); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

type options struct {
	device, kex, cipher string
	rekey               uint64
}

// list splits at commas; nothing is nil.
func list(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

// out prints one line of JSON at a time.
var out struct {
	mu sync.Mutex
}

func say(v any) {
	out.mu.Lock()
	defer out.mu.Unlock()
	json.NewEncoder(os.Stdout).Encode(v)
}

func serve(o options) error {
	key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(o.device))
	if err != nil {
		return fmt.Errorf("reading -device: %w", err)
	}
	dir, err := os.MkdirTemp("", "webssh-server-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	plainKeys, plain, err := servePlain(o, key)
	if err != nil {
		return err
	}
	builtinKeys, builtin, err := serveBuiltin(dir, o.device)
	if err != nil {
		return err
	}
	say(map[string]any{"plain": plain, "plainKeys": plainKeys, "builtin": builtin, "builtinKeys": builtinKeys})
	io.Copy(io.Discard, os.Stdin)
	return nil
}

// listen accepts until the process ends.
func listen(handle func(net.Conn)) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	go func() { // ends with the process
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go handle(conn)
		}
	}()
	return l.Addr().String(), nil
}

func serveBuiltin(dir, device string) (keys []string, addr string, err error) {
	hostKeys, err := sshserver.LoadOrCreateHostKeys(dir)
	if err != nil {
		return nil, "", err
	}
	for _, key := range hostKeys.Public() {
		keys = append(keys, key.Line())
	}
	record, err := json.Marshal(map[string]any{"v": 1, "devices": []any{map[string]any{"id": "page", "name": "page", "key": device, "added": time.Now()}}})
	if err != nil {
		return nil, "", err
	}
	if err := os.WriteFile(filepath.Join(dir, "devices.json"), record, 0o600); err != nil {
		return nil, "", err
	}
	devices, err := sshserver.OpenDeviceKeys(dir)
	if err != nil {
		return nil, "", err
	}
	s, err := sshserver.New(sshserver.Options{
		Machine: "mini", HostKeys: hostKeys, Devices: devices, Home: dir,
		Environ: []string{"PATH=" + os.Getenv("PATH")},
		Logger:  slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return nil, "", err
	}
	addr, err = listen(func(conn net.Conn) { s.Serve(conn, "page") })
	return keys, addr, err
}

func servePlain(o options, device ssh.PublicKey) (keys []string, addr string, err error) {
	config := &ssh.ServerConfig{
		MaxAuthTries: 3,
		PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			say(map[string]any{"saw": "key", "fingerprint": ssh.FingerprintSHA256(key)})
			if string(key.Marshal()) != string(device.Marshal()) {
				return nil, errors.New("another key")
			}
			return nil, nil
		},
		BannerCallback: func(ssh.ConnMetadata) string { return "a banner\n" },
	}
	config.KeyExchanges = list(o.kex)
	config.Ciphers = list(o.cipher)
	config.RekeyThreshold = o.rekey
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, "", err
	}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, "", err
	}
	for _, private := range []any{ed, ec} {
		signer, err := ssh.NewSignerFromKey(private)
		if err != nil {
			return nil, "", err
		}
		config.AddHostKey(signer)
		keys = append(keys, strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey()))))
	}
	addr, err = listen(func(conn net.Conn) {
		defer conn.Close()
		c, chans, reqs, err := ssh.NewServerConn(conn, config)
		if err != nil {
			say(map[string]any{"saw": "failure", "err": err.Error()})
			return
		}
		say(map[string]any{"saw": "login", "session": hex.EncodeToString(c.SessionID()), "user": c.User(), "version": string(c.ClientVersion())})
		go ssh.DiscardRequests(reqs) // ends with the connection
		for nc := range chans {
			if nc.ChannelType() != "session" {
				nc.Reject(ssh.UnknownChannelType, "sessions only")
				continue
			}
			ch, reqs, err := nc.Accept()
			if err != nil {
				return
			}
			go session(ch, reqs) // ends with the channel
		}
		say(map[string]any{"saw": "end", "err": fmt.Sprint(c.Wait())})
	})
	return keys, addr, err
}

// session runs what a test asks for: echo, sink, flood N, chatter N, both N, exit N, signal.
func session(ch ssh.Channel, reqs <-chan *ssh.Request) {
	defer ch.Close()
	for req := range reqs {
		say(map[string]any{"saw": req.Type, "payload": hex.EncodeToString(req.Payload)})
		switch req.Type {
		case "exec":
			req.Reply(true, nil)
			var command struct{ Line string }
			if err := ssh.Unmarshal(req.Payload, &command); err != nil {
				return
			}
			go func() { // ends with the channel
				defer ch.Close()
				run(ch, strings.Fields(command.Line))
			}()
		case "env", "shell":
			req.Reply(false, nil)
		default:
			req.Reply(req.Type == "pty-req", nil)
		}
	}
}

func run(ch ssh.Channel, command []string) {
	status := uint32(0)
	n := int64(0)
	if len(command) > 1 {
		n, _ = strconv.ParseInt(command[1], 10, 64)
	}
	switch command[0] {
	case "echo":
		io.Copy(ch, ch)
	case "sink":
		hash := sha256.New()
		size, _ := io.Copy(hash, ch)
		fmt.Fprintf(ch, "%d %x", size, hash.Sum(nil))
	case "flood":
		hash := sha256.New()
		io.CopyN(io.MultiWriter(ch, hash), pattern{}, n)
		fmt.Fprintf(ch.Stderr(), "%x", hash.Sum(nil))
	case "chatter": // N messages of one byte
		for i := range n {
			ch.Write([]byte{byte(i)})
		}
	case "both": // N bytes out, while all that comes in is counted
		done := make(chan string)
		go func() {
			hash := sha256.New()
			size, _ := io.Copy(hash, ch)
			done <- fmt.Sprintf("%d %x", size, hash.Sum(nil))
		}()
		io.CopyN(ch, pattern{}, n)
		io.WriteString(ch.Stderr(), <-done)
	case "exit":
		status = uint32(n)
	case "signal":
		ch.SendRequest("exit-signal", false, ssh.Marshal(struct {
			Signal   string
			Core     bool
			Message  string
			Language string
		}{"TERM", false, "told\x1b[2J to", ""}))
		return
	default:
		status = 127
	}
	ch.SendRequest("exit-status", false, binary.BigEndian.AppendUint32(nil, status))
}

// pattern is an endless reader in which no two places look alike for long.
type pattern struct{}

func (pattern) Read(p []byte) (int, error) {
	rand.Read(p)
	return len(p), nil
}
