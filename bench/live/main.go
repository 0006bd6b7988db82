// Command live measures what quiet connections of package live cost and how long
// a broadcast to all of them takes, beside a plain server that has a reading and
// a writing goroutine and a coder/websocket connection for each.
//
// Server and load are processes of their own, so the memory is the server's. It
// never leaves the loopback interface. What a caller will get wrong: each
// connection needs a file on both sides, so `ulimit -n` must be above -n.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"holdfast/live"
)

func main() {
	n := flag.Int("n", 10_000, "connections")
	rounds := flag.Int("rounds", 9, "broadcasts")
	serve := flag.String("serve", "", "be the server of this kind: live or coder")
	flag.Parse()
	err := error(nil)
	if *serve != "" {
		err = server(*serve)
	} else {
		err = measure(*n, *rounds)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "live: error:", err)
		os.Exit(1)
	}
}

// hub is one kind of server.
type hub interface {
	http.Handler
	broadcast(message string)
}

// floodBytes is what a client of /flood is owed on open: more than the buffers of
// both kernels and the server's own queue hold, so that its writer hangs.
const floodBytes = 16 << 20

var floodPiece = strings.Repeat("f", 64<<10)

// quiet is a channel that says its state on open and then nothing.
type quiet struct{ flood bool }

func (h quiet) Open(ctx context.Context, c *live.Conn) error {
	for owed := floodBytes; h.flood && owed > 0; owed -= len(floodPiece) {
		if err := c.SendWait(ctx, floodPiece); err != nil {
			return err
		}
	}
	return c.Send("state")
}

func (quiet) Message(context.Context, *live.Conn, json.RawMessage) error { return nil }
func (quiet) Close(*live.Conn, live.End)                                 {}

type liveHub struct {
	http.Handler
	s *live.Server
}

func (h liveHub) broadcast(message string) { _ = h.s.Broadcast(message, nil) } // a string is JSON

// coderHub is what one writes first: for each connection a goroutine that reads
// and one that writes what comes through a channel; who is slow is dropped.
type coderHub struct {
	mu    sync.Mutex
	conns map[chan []byte]struct{}
}

func (h *coderHub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer c.CloseNow()
	ctx := c.CloseRead(context.Background())
	out := make(chan []byte, 16)
	h.mu.Lock()
	h.conns[out] = struct{}{}
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		delete(h.conns, out)
		h.mu.Unlock()
	}()
	for owed := floodBytes; r.URL.Path == "/flood" && owed > 0; owed -= len(floodPiece) {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		err := c.Write(ctx, websocket.MessageText, []byte(floodPiece))
		cancel()
		if err != nil {
			return
		}
	}
	out <- []byte(`"state"`)
	for {
		select {
		case m := <-out:
			ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			err := c.Write(ctx, websocket.MessageText, m)
			cancel()
			if err != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

func (h *coderHub) broadcast(message string) {
	m, err := json.Marshal(message)
	if err != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for out := range h.conns {
		select {
		case out <- m:
		default:
		}
	}
}

// server serves until its standard input ends; each line of it is an order.
func server(kind string) error {
	var h hub
	switch kind {
	case "live":
		s, err := live.New(live.Options{})
		if err != nil {
			return err
		}
		h = liveHub{s.Handler(func(r *http.Request) (live.Handler, error) {
			return quiet{flood: r.URL.Path == "/flood"}, nil
		}), s}
	case "coder":
		h = &coderHub{conns: make(map[chan []byte]struct{})}
	default:
		return fmt.Errorf("no such server: %q", kind)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	// Ends with the process.
	go http.Serve(l, h)
	fmt.Println(l.Addr())
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		order, rest, _ := strings.Cut(in.Text(), " ")
		switch order {
		case "memory":
			rss, err := residentBytes()
			if err != nil {
				return err
			}
			fmt.Println(rss, runtime.NumGoroutine())
		case "collect":
			runtime.GC()
			debug.FreeOSMemory()
			fmt.Println("ok")
		case "broadcast":
			h.broadcast(rest)
			fmt.Println("ok")
		}
	}
	return in.Err()
}

// residentBytes is this process's VmRSS.
func residentBytes() (int64, error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		var kb int64
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kb); err == nil {
			return kb << 10, nil
		}
	}
	return 0, errors.New("no VmRSS in /proc/self/status")
}

// child is a server process.
type child struct {
	addr string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Scanner
}

func start(kind string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.Command(self, "-serve", kind)}
	c.cmd.Stderr = os.Stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	c.out = bufio.NewScanner(out)
	if !c.out.Scan() {
		return nil, fmt.Errorf("server %s says nothing: %w", kind, c.out.Err())
	}
	c.addr = c.out.Text()
	return c, nil
}

func (c *child) stop() {
	c.in.Close()
	_ = c.cmd.Wait() // how it ends is of no interest
}

func (c *child) ask(order string) (string, error) {
	if _, err := fmt.Fprintln(c.in, order); err != nil {
		return "", err
	}
	if !c.out.Scan() {
		return "", fmt.Errorf("the server gave no answer to %q", order)
	}
	return c.out.Text(), nil
}

func (c *child) memory() (rss int64, goroutines int, err error) {
	text, err := c.ask("memory")
	if err == nil {
		_, err = fmt.Sscan(text, &rss, &goroutines)
	}
	return rss, goroutines, err
}

// load is many clients; each counts what it has received.
type load struct {
	conns    []net.Conn
	received atomic.Int64 // of the present broadcast
	waiting  atomic.Int64
	done     chan struct{}
	mu       sync.Mutex
	last     []time.Duration
	began    time.Time
}

// dial opens one connection.
func dial(addr, path string) (net.Conn, *bufio.Reader, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, nil, err
	}
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: site\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", path)
	r := bufio.NewReaderSize(c, 512)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return nil, nil, err
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		return nil, nil, fmt.Errorf("upgrade: %s", resp.Status)
	}
	return c, r, nil
}

// next reads one frame of a server.
func next(r *bufio.Reader) (op byte, size int, err error) {
	var head [2]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, 0, err
	}
	size = int(head[1])
	if size == 126 {
		var long [2]byte
		if _, err := io.ReadFull(r, long[:]); err != nil {
			return 0, 0, err
		}
		size = int(binary.BigEndian.Uint16(long[:]))
	}
	_, err = r.Discard(size)
	return head[0] & 0xF, size, err
}

// open opens n more connections, each read by a goroutine of its own until the
// connection ends.
func (l *load) open(addr string, n int) error {
	var wg sync.WaitGroup
	work := make(chan struct{}, n)
	for range n {
		work <- struct{}{}
	}
	close(work)
	errs := make(chan error, 64)
	for range 64 {
		wg.Go(func() {
			for range work {
				c, r, err := dial(addr, "/")
				if err == nil {
					_, _, err = next(r) // its state
				}
				if err != nil {
					errs <- err
					return
				}
				l.mu.Lock()
				l.conns = append(l.conns, c)
				l.mu.Unlock()
				go l.read(c, r)
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}

func (l *load) read(c net.Conn, r *bufio.Reader) {
	for {
		op, _, err := next(r)
		if err != nil {
			return
		}
		switch op {
		case 9:
			c.Write([]byte{0x8A, 0x80, 0, 0, 0, 0})
		case 1:
			at := time.Since(l.began)
			l.mu.Lock()
			l.last = append(l.last, at)
			l.mu.Unlock()
			if l.received.Add(1) == l.waiting.Load() {
				close(l.done)
			}
		}
	}
}

func (l *load) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		c.Close()
	}
}

// broadcast measures one: when half of the clients have it, and when all have.
func (l *load) broadcast(c *child, message string) (half, all time.Duration, err error) {
	l.received.Store(0)
	l.waiting.Store(int64(len(l.conns)))
	l.done = make(chan struct{})
	l.mu.Lock()
	l.last, l.began = nil, time.Now()
	l.mu.Unlock()
	if _, err := c.ask("broadcast " + message); err != nil {
		return 0, 0, err
	}
	select {
	case <-l.done:
	case <-time.After(30 * time.Second):
		return 0, 0, fmt.Errorf("%d of %d clients got a broadcast within 30 s", l.received.Load(), len(l.conns))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.Sort(l.last)
	return l.last[len(l.last)/2], l.last[len(l.last)-1], nil
}

func measure(n, rounds int) error {
	fmt.Printf("Measured %s on %d processors, %s; %d connections, medians of %d broadcasts of 200 bytes.\n\n",
		time.Now().UTC().Format("2006-01-02"), runtime.NumCPU(), runtime.Version(), n, rounds)
	fmt.Println("| server | KB a connection | after a collection | after a broadcast each, collected | goroutines | broadcast: half have it | all have it | all but one that does not read |")
	fmt.Println("|---|---|---|---|---|---|---|---|")
	for _, kind := range []string{"live", "coder"} {
		if err := measureOne(kind, n, rounds); err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
	}
	return nil
}

func measureOne(kind string, n, rounds int) error {
	c, err := start(kind)
	if err != nil {
		return err
	}
	defer c.stop()
	// What the first connections make once and for all is made before.
	warm := &load{}
	if err := warm.open(c.addr, 100); err != nil {
		return err
	}
	warm.close()
	time.Sleep(time.Second)
	if _, err := c.ask("collect"); err != nil {
		return err
	}
	base, before, err := c.memory()
	if err != nil {
		return err
	}
	l := &load{}
	defer l.close()
	if err := l.open(c.addr, n); err != nil {
		return err
	}
	each := func() (float64, int, error) {
		rss, goroutines, err := c.memory()
		return float64(rss-base) / float64(n) / 1024, goroutines - before, err
	}
	settle := func() error {
		time.Sleep(3 * time.Second) // what ended has ended
		_, err := c.ask("collect")
		return err
	}
	raw, _, err := each()
	if err != nil {
		return err
	}
	if err := settle(); err != nil {
		return err
	}
	quiet, goroutines, err := each()
	if err != nil {
		return err
	}
	message := strings.Repeat("n", 198)
	run := func() (half, all time.Duration, err error) {
		var halves, alls []time.Duration
		for range rounds {
			h, a, err := l.broadcast(c, message)
			if err != nil {
				return 0, 0, err
			}
			halves, alls = append(halves, h), append(alls, a)
			time.Sleep(200 * time.Millisecond)
		}
		slices.Sort(halves)
		slices.Sort(alls)
		return halves[len(halves)/2], alls[len(alls)/2], nil
	}
	half, all, err := run()
	if err != nil {
		return err
	}
	if err := settle(); err != nil {
		return err
	}
	after, _, err := each()
	if err != nil {
		return err
	}
	// One more that reads nothing: the server's writer hangs on it.
	slow, _, err := dial(c.addr, "/flood")
	if err != nil {
		return err
	}
	defer slow.Close()
	time.Sleep(time.Second) // until nothing more fits
	_, beside, err := run()
	if err != nil {
		return err
	}
	fmt.Printf("| %s | %.1f | %.1f | %.1f | %d | %v | %v | %v |\n", kind, raw, quiet, after, goroutines,
		half.Round(time.Millisecond), all.Round(time.Millisecond), beside.Round(time.Millisecond))
	return nil
}
