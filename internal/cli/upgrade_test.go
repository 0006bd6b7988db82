//go:build linux

package cli

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gobwas/ws"

	"holdfast/internal/engine"
	"holdfast/internal/state"
	"holdfast/internal/wire"
)

// socket is a WebSocket of the test, whose frames are written whole.
type socket struct {
	net.Conn
	r *bufio.Reader
}

func dialSocket(relay, path, token string) (*socket, error) {
	d := ws.Dialer{
		Timeout: 2 * time.Minute,
		Header:  ws.HandshakeHeaderHTTP(http.Header{"Authorization": {"Bearer " + token}}),
	}
	c, br, _, err := d.Dial(context.Background(), "ws"+strings.TrimPrefix(relay, "http")+path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if br == nil {
		br = bufio.NewReader(c)
	}
	return &socket{c, br}, nil
}

func maskedFrame(op ws.OpCode, payload []byte) []byte {
	b, err := ws.CompileFrame(ws.MaskFrame(ws.NewFrame(op, true, payload)))
	if err != nil {
		panic(err)
	}
	return b
}

// next returns the next piece of a data message; op is that of its frame.
func (s *socket) next() (op ws.OpCode, payload []byte, err error) {
	for {
		h, err := ws.ReadHeader(s.r)
		if err != nil {
			return 0, nil, err
		}
		payload := make([]byte, h.Length)
		if _, err := io.ReadFull(s.r, payload); err != nil {
			return 0, nil, err
		}
		switch h.OpCode {
		case ws.OpClose:
			return 0, nil, fmt.Errorf("closed: %q", payload)
		case ws.OpPing:
			if _, err := s.Write(maskedFrame(ws.OpPong, payload)); err != nil {
				return 0, nil, err
			}
		case ws.OpPong:
		default:
			return h.OpCode, payload, nil
		}
	}
}

// copyBoth sends random bytes until stop, then their hash, and checks what comes
// the same way. It returns how many bytes came.
func (s *socket) copyBoth(seed uint64, stop <-chan struct{}) (int64, error) {
	sent := make(chan error, 1)
	go func() { // ends by stop, or with the socket
		hash, r := sha256.New(), rand.New(rand.NewPCG(seed, 2))
		source := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
		buf := make([]byte, 20_000)
		for {
			select {
			case <-stop:
				_, err := s.Write(maskedFrame(ws.OpText, []byte(hex.EncodeToString(hash.Sum(nil)))))
				sent <- err
				return
			default:
			}
			b := buf[:r.IntN(len(buf))]
			source.Read(b) // never fails
			hash.Write(b)
			if _, err := s.Write(maskedFrame(ws.OpBinary, b)); err != nil {
				sent <- err
				return
			}
			// 400 of them: some 20 MB a second, which leaves two cores something for
			// the rest.
			time.Sleep(time.Duration(r.IntN(400)) * time.Millisecond)
		}
	}()
	hash := sha256.New()
	var n int64
	var text []byte
	inText := false
	for len(text) < 2*sha256.Size {
		op, p, err := s.next()
		if err != nil {
			return n, fmt.Errorf("after %d bytes: %w", n, err)
		}
		if op != ws.OpContinuation {
			inText = op == ws.OpText
		}
		if inText {
			text = append(text, p...)
		} else {
			hash.Write(p)
			n += int64(len(p))
		}
	}
	if want := hex.EncodeToString(hash.Sum(nil)); want != string(text) {
		return n, fmt.Errorf("the hash of %d bytes is another", n)
	}
	return n, <-sent
}

// fleet are machines with their control connections, and streams to some of them.
type fleet struct {
	relay   string
	tokens  []string
	stop    chan struct{} // closed: the streams say goodbye
	done    chan struct{} // closed: the machines stop
	wg      sync.WaitGroup
	pongs   []atomic.Int64 // by machine
	slowest atomic.Int64   // nanoseconds from ping to pong
	bytes   atomic.Int64
	failed  chan error
}

func (f *fleet) fail(err error) {
	select {
	case f.failed <- err:
	default:
	}
}

// machine is one agent: it pings every few moments, in two pieces, and dials
// back.
func (f *fleet) machine(i int, c *socket) {
	var sent atomic.Int64
	f.wg.Add(1)
	go func() { // ends when the machine's socket is closed
		defer f.wg.Done()
		for {
			_, p, err := c.next()
			if err != nil {
				select {
				case <-f.done:
				default:
					f.fail(fmt.Errorf("machine %d: %w", i, err))
				}
				return
			}
			var m struct{ Op, ConnID string }
			if err := json.Unmarshal(p, &m); err != nil {
				f.fail(fmt.Errorf("machine %d: %q: %w", i, p, err))
				return
			}
			switch m.Op {
			case "pong":
				f.pongs[i].Add(1)
				took := time.Now().UnixNano() - sent.Load()
				for old := f.slowest.Load(); took > old && !f.slowest.CompareAndSwap(old, took); old = f.slowest.Load() {
				}
			case "dial":
				f.wg.Go(func() {
					d, err := dialSocket(f.relay, fmt.Sprintf("/agent-data/m%d/%s", i, m.ConnID), f.tokens[i])
					if err != nil {
						f.fail(err)
						return
					}
					defer d.Close()
					n, err := d.copyBoth(uint64(i), f.stop)
					f.bytes.Add(n)
					if err != nil {
						f.fail(fmt.Errorf("stream at machine %d: %w", i, err))
					}
					io.Copy(io.Discard, d.r) // until the device has closed
				})
			default:
				f.fail(fmt.Errorf("machine %d was sent %q", i, p))
			}
		}
	}()
	every := time.Duration(len(f.tokens)) * time.Millisecond
	f.wg.Go(func() { // ends by done
		defer c.Close()
		r := rand.New(rand.NewPCG(uint64(i), 3))
		for {
			b := maskedFrame(ws.OpText, []byte(`{"op":"ping"}`))
			cut := r.IntN(len(b))
			c.Write(b[:cut])
			time.Sleep(time.Duration(r.IntN(30)) * time.Millisecond)
			sent.Store(time.Now().UnixNano())
			c.Write(b[cut:]) // a failure shows at the reader
			select {
			case <-f.done:
				return
			case <-time.After(every/2 + time.Duration(r.Int64N(int64(every)))):
			}
		}
	})
}

// pinged waits until every machine has had another pong.
func (f *fleet) pinged(t *testing.T) {
	t.Helper()
	before := make([]int64, len(f.pongs))
	for i := range f.pongs {
		before[i] = f.pongs[i].Load()
	}
	late := time.Now().Add(2 * time.Minute)
	for i := range f.pongs {
		for f.pongs[i].Load() < before[i]+2 { // the first may have been under way
			if time.Now().After(late) {
				t.Fatalf("machine %d gets no pong any more", i)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// TestUpgradeKeepsEverything upgrades a relay twice under traffic, and lets an
// upgrade fail: no machine and no stream may notice.
func TestUpgradeKeepsEverything(t *testing.T) {
	machines, streams := 500, 200
	if os.Getenv("HOLDFAST_LONG") == "1" {
		machines = 5000
	}
	ctx := context.Background()
	tmp, err := os.MkdirTemp("", "hf-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(tmp) })
	dir, err := state.Open(filepath.Join(tmp, "state"))
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{stop: make(chan struct{}), done: make(chan struct{}), failed: make(chan error, 100), pongs: make([]atomic.Int64, machines)}

	// Accounts and tokens, as the commands would write them.
	openStore := func() engine.Store {
		store, err := engine.OpenSQLite(ctx, dir.Path(state.StoreFile), engine.SQLiteOptions{Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		return store
	}
	store := openStore()
	if err := store.AddAccount(ctx, "me"); err != nil {
		t.Fatal(err)
	}
	add := func(k engine.Token) string {
		token := wire.NewToken()
		k.Hash, k.Account, k.Created = token.Hash(), "me", time.Now()
		if err := store.AddToken(ctx, k); err != nil {
			t.Fatal(err)
		}
		return token.Secret()
	}
	for i := range machines {
		f.tokens = append(f.tokens, add(engine.Token{
			ID: fmt.Sprintf("t-%d", i), Kind: engine.KindAgent, Name: "agent", Machine: wire.MachineID(fmt.Sprintf("m%d", i)),
		}))
	}
	device := add(engine.Token{ID: "t-device", Kind: engine.KindDevice, Name: "device"})
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}

	// The real program, without whatever instruments this test: it is exchanged
	// below.
	program := filepath.Join(tmp, "holdfast")
	build := exec.Command("go", "build", "-o", program+".built", "holdfast/cmd/holdfast")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the program: %v\n%s", err, out)
	}
	self, err := os.ReadFile(program + ".built")
	if err != nil {
		t.Fatal(err)
	}
	install := func(b []byte) {
		t.Helper()
		if err := os.WriteFile(program+".new", b, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(program+".new", program); err != nil {
			t.Fatal(err)
		}
	}
	install(self)
	var log bytes.Buffer
	relay := exec.Command(program, "relay", "--state", dir.Path(""), "--listen", "127.0.0.1:0", "--json",
		"--max-streams", "5000", "--max-new-streams", "5000", "--max-handshakes", "10000", "--log-level", "warn")
	relay.Stderr = &log
	stdout, err := relay.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := relay.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		relay.Process.Kill()
		relay.Wait()
		if t.Failed() {
			t.Logf("the relay said: %s", log.String())
		}
	})
	var listening struct{ URL string }
	if err := json.NewDecoder(stdout).Decode(&listening); err != nil {
		t.Fatal(err)
	}
	f.relay = listening.URL
	if _, err := url.Parse(f.relay); err != nil || f.relay == "" {
		t.Fatalf("listening on %q", f.relay)
	}

	// Machines, then streams.
	connect := make(chan int)
	var connecting sync.WaitGroup
	for range 16 {
		connecting.Go(func() {
			for i := range connect {
				c, err := dialSocket(f.relay, fmt.Sprintf("/agent/m%d", i), f.tokens[i])
				if err != nil {
					f.fail(err)
					continue
				}
				f.machine(i, c)
			}
		})
	}
	for i := range machines {
		connect <- i
	}
	close(connect)
	connecting.Wait()
	f.pinged(t)
	var ended sync.WaitGroup
	for i := range streams {
		c, err := dialSocket(f.relay, fmt.Sprintf("/connect/m%d", i%50), device)
		if err != nil {
			t.Fatal(err)
		}
		ended.Go(func() {
			defer c.Close()
			n, err := c.copyBoth(uint64(1000+i), f.stop)
			f.bytes.Add(n)
			if err != nil {
				f.fail(fmt.Errorf("stream %d: %w", i, err))
			}
		})
	}
	f.pinged(t)

	upgrade := func() (out string, err error) {
		b, err := exec.Command(program, "relay", "upgrade", "--state", dir.Path(""), "--json").Output()
		return string(b), err
	}
	expectKept := func() {
		t.Helper()
		f.slowest.Store(0)
		out, err := upgrade()
		var o struct {
			Event                      string
			Machines, Streams, Dropped int
			PauseMs                    float64
		}
		if jerr := json.Unmarshal([]byte(out), &o); err != nil || jerr != nil {
			t.Fatalf("upgrade: %v, %v: %s", err, jerr, out)
		}
		if o.Event != "upgraded" || o.Machines != machines || o.Streams != streams || o.Dropped != 0 {
			t.Errorf("kept %s of %d machines and %d streams", out, machines, streams)
		}
		t.Logf("kept %d machines and %d streams; pause %.0f ms; slowest pong %v", o.Machines, o.Streams, o.PauseMs, time.Duration(f.slowest.Load()))
	}
	expectKept()
	expectKept() // at once
	f.pinged(t)

	// The new program does not start, or is none that knows.
	for _, bad := range []string{"#!/bin/sh\necho broken >&2\nexit 1\n", "#!/bin/sh\necho '{}'\n", "no program at all"} {
		install([]byte(bad))
		relayUpgrade := exec.Command("/proc/self/exe", "relay", "upgrade", "--state", dir.Path(""), "--json")
		relayUpgrade.Args[0] = "holdfast"
		out, err := relayUpgrade.Output()
		if err == nil || !strings.Contains(string(out), "upgrade-failed") {
			t.Errorf("upgrade to %q: %v: %s", bad, err, out)
		}
	}
	f.pinged(t)
	install(self)
	expectKept()
	f.pinged(t)

	close(f.stop)
	ended.Wait()
	close(f.done)
	f.wg.Wait()
	close(f.failed)
	for err := range f.failed {
		t.Error(err)
	}
	if f.bytes.Load() == 0 {
		t.Error("nothing was copied")
	}
	relay.Process.Signal(os.Interrupt)
	if err := relay.Wait(); err != nil {
		t.Errorf("the relay ended with %v", err)
	}
	store = openStore()
	defer store.Close()
	list, err := store.Machines(ctx, "me")
	if err != nil || len(list) != machines {
		t.Fatalf("%d machines, %v", len(list), err)
	}
	for _, m := range list {
		if m.Epoch != list[0].Epoch {
			t.Errorf("machine %s connected again: epoch %d, others %d", m.Machine, m.Epoch, list[0].Epoch)
		}
	}
}
