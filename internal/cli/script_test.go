package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestMain lets the scripts run this very test binary as holdfast.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"holdfast": Main})
}

// patience bounds every wait of a script, on a machine that has other work too.
const patience = 90 * time.Second

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "script"),
		Setup: func(e *testscript.Env) error {
			home := filepath.Join(e.WorkDir, "home")
			e.Setenv("HOME", home)
			e.Setenv("TMPDIR", e.WorkDir)
			e.Values["services"] = &services{byName: map[string]*served{}}
			return os.Mkdir(home, 0o700)
		},
		Condition: func(cond string) (bool, error) {
			tool, ok := strings.CutPrefix(cond, "tool:")
			if !ok {
				return false, fmt.Errorf("unknown condition %q", cond)
			}
			_, err := exec.LookPath(tool)
			if err != nil && os.Getenv("HOLDFAST_TEST_ALL") == "1" {
				return false, fmt.Errorf("%s is not installed", tool)
			}
			return err == nil, nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"code": cmdCode, "serve": cmdServe, "event": cmdEvent, "end": cmdEnd,
			"said": cmdSaid, "capture": cmdCapture, "eventually": cmdEventually,
			"port": cmdPort, "change": cmdChange,
		},
	})
}

// cmdCode is `code N PROGRAM ARGS…`: the program must end with that exit code.
// `<FILE` in front of the program gives it that file as input.
func cmdCode(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		got = exit.ExitCode()
	case err != nil:
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// served is a program that runs beside the script.
type served struct {
	cmd   *exec.Cmd
	ended chan struct{}

	// mu guards the fields below.
	mu    sync.Mutex
	lines []string // of standard output
	errs  bytes.Buffer
	err   error
}

type services struct{ byName map[string]*served }

func service(ts *testscript.TestScript, name string) *served {
	p := ts.Value("services").(*services).byName[name]
	if p == nil {
		ts.Fatalf("nothing called %s was started", name)
	}
	return p
}

// cmdServe is `serve NAME ARGS…`: holdfast ARGS in the background.
func cmdServe(ts *testscript.TestScript, _ bool, args []string) {
	path := ""
	for _, dir := range filepath.SplitList(ts.Getenv("PATH")) {
		if p := filepath.Join(dir, "holdfast"); isFile(p) {
			path = p
			break
		}
	}
	p := &served{cmd: exec.Command(path, args[1:]...), ended: make(chan struct{})}
	p.cmd.Dir = ts.MkAbs(".")
	for _, name := range []string{"HOME", "PATH", "TMPDIR", "HOLDFAST_TOKEN", "HOLDFAST_LISTEN"} {
		if v := ts.Getenv(name); v != "" {
			p.cmd.Env = append(p.cmd.Env, name+"="+v)
		}
	}
	out, err := p.cmd.StdoutPipe()
	ts.Check(err)
	errs, err := p.cmd.StderrPipe()
	ts.Check(err)
	ts.Check(p.cmd.Start())
	ts.Value("services").(*services).byName[args[0]] = p
	ts.Defer(func() { // a script that failed leaves nothing running
		p.cmd.Process.Kill()
		<-p.ended
	})
	var readers sync.WaitGroup
	// Both end with the program's output; the third waits for them, and
	// everybody for ended.
	readers.Go(func() {
		for scan := bufio.NewScanner(out); scan.Scan(); {
			p.mu.Lock()
			p.lines = append(p.lines, scan.Text())
			p.mu.Unlock()
		}
	})
	readers.Go(func() {
		for scan := bufio.NewScanner(errs); scan.Scan(); {
			p.mu.Lock()
			p.errs.WriteString(scan.Text() + "\n")
			p.mu.Unlock()
		}
	})
	go func() {
		readers.Wait()
		err := p.cmd.Wait()
		p.mu.Lock()
		p.err = err
		p.mu.Unlock()
		close(p.ended)
	}()
}

func isFile(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular()
}

// within polls ok until it is true.
func within(ts *testscript.TestScript, what string, ok func() bool) {
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if ok() {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("%s: not within %v", what, patience)
		}
	}
}

func (p *served) over() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// cmdEvent is `event NAME EVENT [FIELD VAR]`: waits for the next line of --json
// of that event and puts a field of it into a variable.
func cmdEvent(ts *testscript.TestScript, _ bool, args []string) {
	p := service(ts, args[0])
	within(ts, "event "+args[1]+" of "+args[0], func() bool {
		over := p.over()
		p.mu.Lock()
		defer p.mu.Unlock()
		for i, line := range p.lines {
			var e map[string]any
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				ts.Fatalf("%s printed a line that is no JSON: %q", args[0], line)
			}
			if e["event"] != args[1] {
				continue
			}
			if len(args) == 4 {
				ts.Setenv(args[3], fmt.Sprint(e[args[2]]))
			}
			p.lines = p.lines[i+1:]
			return true
		}
		if over {
			ts.Fatalf("%s ended without it: %v\n%s", args[0], p.err, p.errs.String())
		}
		return false
	})
}

// cmdSaid is `said NAME PATTERN`: waits until the program has printed it to
// either stream.
func cmdSaid(ts *testscript.TestScript, neg bool, args []string) {
	p, pattern := service(ts, args[0]), regexp.MustCompile(args[1])
	have := func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return pattern.MatchString(strings.Join(p.lines, "\n") + "\n" + p.errs.String())
	}
	if neg {
		if have() {
			ts.Fatalf("%s said %s", args[0], args[1])
		}
		return
	}
	within(ts, args[0]+" says "+args[1], have)
}

// cmdEnd is `end NAME CODE [SIGNAL]`: interrupts the program, or waits for it
// with the signal "none", and compares its exit code.
func cmdEnd(ts *testscript.TestScript, _ bool, args []string) {
	p := service(ts, args[0])
	sig := os.Signal(os.Interrupt)
	if len(args) > 2 {
		sig = map[string]os.Signal{"KILL": os.Kill, "TERM": syscall.SIGTERM, "none": nil}[args[2]]
	}
	if sig != nil {
		ts.Check(p.cmd.Process.Signal(sig))
	}
	select {
	case <-p.ended:
	case <-time.After(patience):
		ts.Fatalf("%s did not end within %v", args[0], patience)
	}
	if got := p.cmd.ProcessState.ExitCode(); strconv.Itoa(got) != args[1] {
		ts.Fatalf("%s ended with %d, want %s:\n%s", args[0], got, args[1], p.errs.String())
	}
}

// cmdCapture is `capture VAR PATTERN`: puts what the pattern's first group finds
// in the last program's output into a variable.
func cmdCapture(ts *testscript.TestScript, _ bool, args []string) {
	m := regexp.MustCompile(args[1]).FindStringSubmatch(ts.ReadFile("stdout"))
	if m == nil {
		ts.Fatalf("nothing matches %s", args[1])
	}
	ts.Setenv(args[0], m[1])
}

// cmdEventually is `eventually CODE PROGRAM ARGS…`: runs it until it ends so.
func cmdEventually(ts *testscript.TestScript, _ bool, args []string) {
	within(ts, strings.Join(args, " "), func() bool {
		err := ts.Exec(args[1], args[2:]...)
		got := 0
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			got = exit.ExitCode()
		}
		return strconv.Itoa(got) == args[0]
	})
}

// cmdPort is `port VAR`: holds a free port for the length of the script, so that
// it is taken, and puts its address into a variable.
func cmdPort(ts *testscript.TestScript, _ bool, args []string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Defer(func() { ln.Close() })
	ts.Setenv(args[0], ln.Addr().String())
}

// cmdChange is `change FILE OLD NEW`: replaces text in a file.
func cmdChange(ts *testscript.TestScript, _ bool, args []string) {
	path := ts.MkAbs(args[0])
	b, err := os.ReadFile(path)
	ts.Check(err)
	changed := strings.ReplaceAll(string(b), args[1], args[2])
	if changed == string(b) {
		ts.Fatalf("%s holds no %q", args[0], args[1])
	}
	ts.Check(os.WriteFile(path, []byte(changed), 0o600))
}
