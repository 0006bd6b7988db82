package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// binary is the path of the built holdfast.
var binary string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "holdfast-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "holdfast")
	build := exec.Command("go", "build", "-o", binary, "./cmd/holdfast")
	build.Dir = ".."
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build ./cmd/holdfast: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// need finds an outside program. Where it lacks the test is skipped, unless
// HOLDFAST_TEST_ALL says that everything must run.
func need(t *testing.T, name string) string {
	t.Helper()
	for _, dir := range append(filepath.SplitList(os.Getenv("PATH")), "/usr/local/sbin", "/usr/sbin", "/sbin") {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path
		}
	}
	if os.Getenv("HOLDFAST_TEST_ALL") == "1" {
		t.Fatalf("%s is not installed: run scripts/setup test", name)
	}
	t.Skipf("%s is not installed: run scripts/setup test", name)
	return ""
}

// limit bounds every single command. Fifty of them at once, each with its
// helpers, take half a minute of two cores that have other work too.
const limit = 4 * time.Minute

// computer is one person's account on one computer: a HOME and a state
// directory of its own.
type computer struct {
	t     *testing.T
	home  string
	state string
	vars  []string // more of its environment
}

func newComputer(t *testing.T) *computer {
	t.Helper()
	// Not t.TempDir(): a Unix socket's path has at most 104 bytes.
	dir, err := os.MkdirTemp("", "hf-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	c := &computer{t: t, home: filepath.Join(dir, "home"), state: filepath.Join(dir, "state")}
	if err := os.Mkdir(c.home, 0o700); err != nil {
		t.Fatal(err)
	}
	return c
}

// env is a clean environment: nothing of the caller's reaches the binary.
func (c *computer) env() []string {
	return append([]string{
		"HOME=" + c.home,
		"PATH=" + filepath.Dir(binary) + ":" + os.Getenv("PATH") + ":/usr/sbin:/sbin",
		"LANG=C.UTF-8",
		"TERM=xterm",
		"TMPDIR=" + os.TempDir(),
		"USER=" + userName(),
		"LOGNAME=" + userName(),
		"SHELL=/bin/sh",
	}, c.vars...)
}

// command prepares a program of this computer.
func (c *computer) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = c.env()
	cmd.Dir = c.home
	// A child that inherited the pipes must not hold Wait up for ever.
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// hf is the argument list of the binary with this computer's state directory:
// the command's name first, then the flag, then the rest.
func (c *computer) hf(args ...string) []string {
	n := 1
	if subcommands[args[0]] && len(args) > 1 && !strings.HasPrefix(args[1], "-") {
		n = 2
	}
	return append(append(append([]string{}, args[:n]...), "--state", c.state), args[n:]...)
}

// subcommands are the commands whose next word belongs to their name.
var subcommands = map[string]bool{"account": true, "token": true}

// result is a command that has ended.
type result struct {
	code           int
	stdout, stderr string
	took           time.Duration
}

func (r result) String() string {
	return fmt.Sprintf("exit code %d after %v\nstdout: %s\nstderr: %s", r.code, r.took.Round(time.Millisecond), clip(r.stdout), clip(r.stderr))
}

func clip(s string) string {
	if len(s) > 4000 {
		return s[:2000] + "\n…\n" + s[len(s)-2000:]
	}
	return s
}

// runCmd runs cmd to its end.
func runCmd(t *testing.T, cmd *exec.Cmd) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if cmd.Stdout == nil {
		cmd.Stdout = &stdout
	}
	if cmd.Stderr == nil {
		cmd.Stderr = &stderr
	}
	start := time.Now()
	err := cmd.Run()
	r := result{stdout: stdout.String(), stderr: stderr.String(), took: time.Since(start)}
	var exit *exec.ExitError
	switch {
	case err == nil:
	case errors.As(err, &exit):
		r.code = exit.ExitCode()
	default:
		t.Errorf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, r)
		r.code = -1
	}
	return r
}

// holdfast runs the binary to its end, with its standard input empty.
func (c *computer) holdfast(args ...string) result {
	c.t.Helper()
	return c.holdfastIn("", args...)
}

func (c *computer) holdfastIn(stdin string, args ...string) result {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := c.command(ctx, binary, c.hf(args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	return runCmd(c.t, cmd)
}

// must is holdfast for a command that has to succeed.
func (c *computer) must(args ...string) result {
	c.t.Helper()
	r := c.holdfast(args...)
	if r.code != 0 {
		c.t.Fatalf("holdfast %s: %s", strings.Join(args, " "), r)
	}
	return r
}

// process is a running program.
type process struct {
	t     *testing.T
	name  string
	cmd   *exec.Cmd
	lines chan string   // of standard output, closed at its end
	done  chan struct{} // closed when it has ended
	err   error         // of Wait, after done

	mu     sync.Mutex
	stderr bytes.Buffer
	stdout bytes.Buffer
}

// start runs the binary in the background until the test ends.
func (c *computer) start(args ...string) *process {
	c.t.Helper()
	return startProcess(c.t, c.command(context.Background(), binary, c.hf(args...)...))
}

func startProcess(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, name: strings.Join(cmd.Args[1:min(3, len(cmd.Args))], " "), cmd: cmd, lines: make(chan string, 1000), done: make(chan struct{})}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = writerFunc(func(b []byte) (int, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.stderr.Write(b)
	})
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// The goroutine ends with the process, which the cleanup ends and waits for.
	go func() {
		defer close(p.done)
		scanner := bufio.NewScanner(stdout)
		scanner.Buffer(nil, 1<<20)
		for scanner.Scan() {
			p.mu.Lock()
			p.stdout.WriteString(scanner.Text() + "\n")
			p.mu.Unlock()
			select {
			case p.lines <- scanner.Text():
			default:
			}
		}
		close(p.lines)
		p.err = cmd.Wait()
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s said:\n%s", p.name, clip(p.output()))
		}
	})
	return p
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// output is everything that the process said so far.
func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stdout.String() + p.stderr.String()
}

// kill ends the process as kill -9 does, and waits for that.
func (p *process) kill() {
	p.cmd.Process.Kill()
	<-p.done
}

// interrupt ends the process as Ctrl-C does, and waits for that.
func (p *process) interrupt() {
	p.t.Helper()
	p.cmd.Process.Signal(os.Interrupt)
	p.exited(60 * time.Second)
}

// exited waits for the process to end by itself and returns its exit code.
func (p *process) exited(within time.Duration) int {
	p.t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(within):
		p.t.Fatalf("%s has not ended after %v; it said:\n%s", p.name, within, clip(p.output()))
		return -1
	}
}

// running fails the test if the process has ended.
func (p *process) running() {
	p.t.Helper()
	select {
	case <-p.done:
		p.t.Fatalf("%s ended (%v); it said:\n%s", p.name, p.err, clip(p.output()))
	default:
	}
}

// event waits for the line {"event":name,…} of --json.
func (p *process) event(name string) map[string]any {
	p.t.Helper()
	deadline := time.After(time.Minute)
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				<-p.done
				p.t.Fatalf("%s ended (%v) before event %q; it said:\n%s", p.name, p.err, name, clip(p.output()))
			}
			var e map[string]any
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				p.t.Fatalf("%s --json printed a line that is no JSON: %q", p.name, line)
			}
			if e["event"] == name {
				return e
			}
		case <-deadline:
			p.t.Fatalf("%s printed no event %q; it said:\n%s", p.name, name, clip(p.output()))
		}
	}
}

// text reads a field of an event.
func text(t *testing.T, e map[string]any, field string) string {
	t.Helper()
	s, ok := e[field].(string)
	if !ok || s == "" {
		t.Fatalf("event %v has no %s", e, field)
	}
	return s
}

// eventually polls until ok, which returns what it saw last.
func eventually(t *testing.T, within time.Duration, what string, ok func() (bool, string)) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		good, seen := ok()
		if good {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s; last seen: %s", within, what, clip(seen))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// freeAddr is a loopback address that nobody listens on now. A test that needs
// one name for a server across its restarts has no other way. Systems give ports
// from 32768 on to whoever asks for any: tests beside this one do all the time.
func freeAddr(t *testing.T) string {
	t.Helper()
	var err error
	for range 100 {
		var ln net.Listener
		if ln, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 12_000+rand.IntN(20_000))); err == nil {
			ln.Close()
			return ln.Addr().String()
		}
	}
	t.Fatal(err)
	return ""
}

// jsonLines decodes one JSON object a line.
func jsonLines(t *testing.T, out string) []map[string]any {
	t.Helper()
	var all []map[string]any
	dec := json.NewDecoder(strings.NewReader(out))
	for {
		var m map[string]any
		if err := dec.Decode(&m); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("not JSON lines: %v\n%s", err, clip(out))
		}
		all = append(all, m)
	}
}
