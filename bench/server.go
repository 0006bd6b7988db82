//go:build linux

package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coder/websocket"
	"github.com/gobwas/ws"

	"holdfast/internal/engine"
	"holdfast/internal/frame"
	"holdfast/internal/park"
	"holdfast/internal/pump"
	"holdfast/internal/relay"
	"holdfast/internal/wire"
)

// stats is what a server says of itself.
type stats struct {
	RSS        int64         `json:"rss"`   // bytes
	Heap       int64         `json:"heap"`  // bytes in use
	Stack      int64         `json:"stack"` // bytes in use
	Goroutines int           `json:"goroutines"`
	Mallocs    int64         `json:"mallocs"`
	CPU        time.Duration `json:"cpu"` // user and system, since the start
}

func readStats() (s stats) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	s.Heap, s.Stack, s.Mallocs = int64(m.HeapInuse), int64(m.StackInuse), int64(m.Mallocs)
	s.Goroutines = runtime.NumGoroutine()
	if b, err := os.ReadFile("/proc/self/statm"); err == nil {
		pages, _ := strconv.ParseInt(strings.Fields(string(b))[1], 10, 64)
		s.RSS = pages * int64(os.Getpagesize())
	}
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) == nil {
		s.CPU = time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return s
}

// serve is the server process: it prints its address, then answers each line of
// standard input ("stats" or "gc") with its stats, and ends with the input.
func serve(args []string) error {
	f := flag.NewFlagSet("serve", flag.ExitOnError)
	variant := f.String("variant", "", "what serves")
	secure := f.Bool("tls", false, "with TLS")
	machines := f.Int("machines", 0, "tokens to make, for variant relay")
	f.Parse(args)

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	addr := l.Addr().String()
	if *secure {
		config, err := selfSigned()
		if err != nil {
			return err
		}
		if *variant == "coder" {
			l = tls.NewListener(l, config)
		} else {
			l = park.NewListener(l, config)
		}
	}
	if *variant == "relay" {
		dir, err := os.MkdirTemp("", "holdfast-bench-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		if err := serveRelay(l, dir, *machines); err != nil {
			return err
		}
	} else {
		h, err := newHandler(*variant)
		if err != nil {
			return err
		}
		go http.Serve(l, h) // for the life of the process
	}
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode(addr); err != nil {
		return err
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		if in.Text() == "gc" {
			runtime.GC()
			debug.FreeOSMemory()
		}
		if err := out.Encode(readStats()); err != nil {
			return err
		}
	}
	return nil
}

// benchToken is the token of machine n, which both processes can work out.
func benchToken(kind engine.TokenKind, n int) wire.Token {
	sum := sha256.Sum256(fmt.Appendf(nil, "bench %s %d", kind, n))
	t, err := wire.ParseToken("hf_" + base64.RawURLEncoding.EncodeToString(sum[:]))
	if err != nil {
		panic(err)
	}
	return t
}

func machineName(n int) wire.MachineID { return wire.MachineID("m" + strconv.Itoa(n)) }

// serveRelay serves the relay itself, store and router included. All machines
// belong to one account, and device token 0 may reach them. The store is in dir.
func serveRelay(l net.Listener, dir string, machines int) error {
	ctx := context.Background()
	store, err := engine.OpenSQLite(ctx, filepath.Join(dir, "relay.db"), engine.SQLiteOptions{})
	if err != nil {
		return err
	}
	if err := store.AddAccount(ctx, "owner"); err != nil {
		return err
	}
	add := func(kind engine.TokenKind, n int) error {
		t := engine.Token{ID: fmt.Sprint(kind, n), Hash: benchToken(kind, n).Hash(), Account: "owner", Kind: kind,
			Name: fmt.Sprint(kind, n), Created: time.Now()}
		if kind == engine.KindAgent {
			t.Machine = machineName(n)
		}
		return store.AddToken(ctx, t)
	}
	if err := add(engine.KindDevice, 0); err != nil {
		return err
	}
	for n := range machines {
		if err := add(engine.KindAgent, n); err != nil {
			return err
		}
	}
	r, err := relay.New(relay.Options{
		Store: store, Router: engine.NewMemoryRouter(), Log: slog.New(slog.DiscardHandler),
		Limits: relay.Limits{Streams: 1 << 20, NewStreams: 1 << 20, Failures: 1 << 20, Handshakes: 1 << 20},
	})
	if err != nil {
		return err
	}
	go r.Serve(l) // for the life of the process
	return nil
}

// handler serves upgrades at /park and at /pair/{id}/{device|agent}.
type handler struct {
	variant string
	lot     *park.Lot
	mu      sync.Mutex
	waiting map[string]any // the half that came first
}

func newHandler(variant string) (*handler, error) {
	lot, err := park.New(park.Options{Goroutines: variant == "goroutine"})
	if err != nil {
		return nil, err
	}
	return &handler{variant: variant, lot: lot, waiting: make(map[string]any)}, nil
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.variant == "coder" {
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
		if err != nil {
			return
		}
		c.SetReadLimit(-1)
		if r.URL.Path == "/park" {
			go coderEcho(c) // until the peer hangs up
		} else if other := h.meet(r.URL.Path, c); other != nil {
			go coderCopy(c, other.(*websocket.Conn))
			go coderCopy(other.(*websocket.Conn), c)
		}
		return
	}
	conn, rw, _, err := ws.UpgradeHTTP(r, w)
	if err != nil {
		return
	}
	pending, _ := rw.Reader.Peek(rw.Reader.Buffered())
	if r.URL.Path == "/park" {
		if _, err := h.lot.Park(conn, pending, ponger{}); err != nil {
			conn.Close()
		}
		return
	}
	leg := pump.Leg{Conn: conn, Pending: append([]byte(nil), pending...)}
	if other := h.meet(r.URL.Path, leg); other != nil {
		go join(h.variant, other.(pump.Leg), leg) // until both hang up
	}
}

// meet returns the other half of a pair, or keeps this one for it.
func (h *handler) meet(path string, half any) any {
	id := path[:strings.LastIndexByte(path, '/')]
	h.mu.Lock()
	defer h.mu.Unlock()
	if other := h.waiting[id]; other != nil {
		delete(h.waiting, id)
		return other
	}
	h.waiting[id] = half
	return nil
}

// ponger answers {"op":"ping"} as a relay does and sets the reaper.
type ponger struct{}

func (ponger) Message(c *park.Conn, op frame.Opcode, payload []byte) {
	if m, err := wire.DecodeControl(payload); op == frame.Text && err == nil && m.Op == wire.OpPing {
		c.Send([]byte(`{"op":"pong"}`))
		c.ExpireAfter(150 * time.Second)
	}
}
func (ponger) Expired(*park.Conn)          {}
func (ponger) Closed(*park.Conn, park.End) {}

// coderEcho is the same with a goroutine and coder/websocket.
func coderEcho(c *websocket.Conn) {
	defer c.CloseNow()
	ctx := context.Background()
	for {
		_, b, err := c.Read(ctx)
		if err != nil {
			return
		}
		if m, err := wire.DecodeControl(b); err == nil && m.Op == wire.OpPing {
			if c.Write(ctx, websocket.MessageText, []byte(`{"op":"pong"}`)) != nil {
				return
			}
		}
	}
}

// coderCopy is one direction of a relay that copies messages.
func coderCopy(dst, src *websocket.Conn) {
	defer dst.CloseNow()
	ctx := context.Background()
	var buf []byte
	for {
		typ, r, err := src.Reader(ctx)
		if err != nil {
			return
		}
		if buf, err = readInto(buf[:0], r); err != nil {
			return
		}
		if dst.Write(ctx, typ, buf) != nil {
			return
		}
	}
}

// readInto is io.ReadAll with a buffer that is used again.
func readInto(b []byte, r io.Reader) ([]byte, error) {
	for {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if err == io.EOF {
			return b, nil
		}
		if err != nil {
			return b, err
		}
	}
}

// join connects two upgraded sockets in the way of a variant.
func join(variant string, a, b pump.Leg) {
	if variant == "pump" {
		p, err := pump.New(a, b, pump.Options{})
		if err == nil {
			p.Start(func(pump.Result) {})
		}
		return
	}
	one := func(dst, src pump.Leg) {
		defer dst.Conn.Close()
		dst.Conn.Write(src.Pending)
		if variant == "splice" {
			io.Copy(dst.Conn, src.Conn)
			return
		}
		// The wrappers hide ReadFrom and WriteTo, which would splice.
		io.CopyBuffer(struct{ io.Writer }{dst.Conn}, struct{ io.Reader }{src.Conn}, make([]byte, 64<<10))
	}
	go one(a, b)
	one(b, a)
}

func selfSigned() (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}, nil
}

// server is a server process as the load sees it.
type server struct {
	variant string
	secure  bool
	addr    string
	machine int // whose streams are opened, in variant relay
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *json.Decoder
}

func startServer(variant string, secure bool, machines int) (*server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s := &server{variant: variant, secure: secure}
	s.cmd = exec.Command(self, "serve", "-variant", variant, "-tls="+strconv.FormatBool(secure), "-machines", strconv.Itoa(machines))
	s.cmd.Stderr = os.Stderr
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	s.out = json.NewDecoder(out)
	if err := s.out.Decode(&s.addr); err != nil {
		return nil, fmt.Errorf("start %s: %w", variant, err)
	}
	return s, nil
}

func (s *server) stop() {
	s.in.Close()
	s.cmd.Wait()
}

func (s *server) ask(question string) (st stats, err error) {
	if _, err := fmt.Fprintln(s.in, question); err != nil {
		return st, err
	}
	err = s.out.Decode(&st)
	return st, err
}
