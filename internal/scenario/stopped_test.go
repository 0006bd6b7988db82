package scenario

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/agent"
	"holdfast/internal/client"
	"holdfast/internal/wire"
	"holdfast/internal/wsconn"
)

// process is a relay of the built program.
type process struct {
	cmd *exec.Cmd
	url string
	dir string
	bin string
}

// startProcess builds the program and starts its relay.
func startProcess(t *testing.T) *process {
	t.Helper()
	p := &process{dir: t.TempDir()}
	p.bin = filepath.Join(p.dir, "holdfast")
	build := exec.Command("go", "build", "-o", p.bin, "holdfast/cmd/holdfast")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	p.cmd = exec.Command(p.bin, "--state", filepath.Join(p.dir, "state"), "--json", "relay", "--listen", "127.0.0.1:0")
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.cmd.Process.Signal(syscall.SIGCONT)
		p.cmd.Process.Kill()
		p.cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var first struct{ Event, URL string }
		if json.Unmarshal(lines.Bytes(), &first) == nil && first.Event == "listening" {
			p.url = first.URL
			go io.Copy(io.Discard, out) // ends with the process
			return p
		}
	}
	t.Fatal("the relay never said where it listens")
	return nil
}

// run runs a command of administration and gives what it printed.
func (p *process) run(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command(p.bin, append([]string{"--state", filepath.Join(p.dir, "state")}, args...)...)
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		errors.As(err, &exit)
		t.Fatalf("%v: %v\n%s%s", args, err, out, exit.Stderr)
	}
	return string(out)
}

func (p *process) token(t *testing.T, kind string, more ...string) wire.Token {
	t.Helper()
	out := p.run(t, append([]string{"token", "create", "--account", "ann", "--kind", kind, "--name", "test"}, more...)...)
	for word := range strings.FieldsSeq(out) {
		if token, err := wire.ParseToken(word); err == nil {
			return token
		}
	}
	t.Fatalf("no token in %q", out)
	return wire.Token{}
}

// The relay's process is stopped: its kernel goes on taking bytes, and nobody
// answers. The device knows while it types, the agent by its heartbeat, and both
// are back after SIGCONT without a restart of anything.
func TestStoppedRelayIsNoticed(t *testing.T) {
	p := startProcess(t)
	p.run(t, "account", "add", "ann")
	agentToken, deviceToken := p.token(t, "agent", "--machine", "mini"), p.token(t, "device")
	relayURL, err := url.Parse(p.url)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	sshd := serve(l)
	defer sshd.close()
	events := &record{}
	a, err := agent.New(agent.Options{
		Relay: relayURL, Machine: machine, Token: func(context.Context) (wire.Token, error) { return agentToken, nil },
		SSHD: l.Addr().String(), Log: slog.New(events),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { // ended and waited for below
		defer close(ended)
		a.Run(ctx)
	}()
	defer func() {
		cancel()
		<-ended
	}()
	w := &world{floor: &onLoopback{}}
	if err := w.waitUntil("the agent is up", patience, func() bool { return a.Status().Proven }); err != nil {
		t.Fatal(err)
	}
	target := client.Target{Relay: p.url, Token: deviceToken, Machine: machine}
	open := func() (*wsconn.Stream, error) {
		s, err := client.Dialer{}.Stream(ctx, target, true)
		if err != nil {
			return nil, err
		}
		if _, err := s.Write([]byte{echo, 'x'}); err == nil {
			_, err = io.ReadFull(s, make([]byte, 1))
		}
		return s, err
	}
	s, err := open()
	if err != nil {
		t.Fatal(err)
	}
	defer s.CloseNow()
	time.Sleep(1500 * time.Millisecond) // the quiet before a burst of typing

	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// The signal only asks: on a busy machine a thread may answer once more.
	if err := w.waitUntil("the relay has stopped", patience, func() bool { return hasStopped(p.cmd.Process.Pid) }); err != nil {
		t.Fatal(err)
	}
	stopped := time.Now()
	if _, err := s.Write([]byte{'x'}); err != nil {
		t.Fatal(err)
	}
	_, err = s.Read(make([]byte, 1))
	if took := time.Since(stopped); !errors.Is(err, wsconn.ErrDead) || took > 5*time.Second+4*time.Second {
		t.Errorf("at a key: %v after %v, want a verdict after 5 s", err, took)
	}
	began := time.Now()
	_, err = client.Dialer{}.Stream(ctx, target, true)
	if took := time.Since(began); err == nil || took > 10*time.Second+4*time.Second {
		t.Errorf("a dial to it: %v after %v, want an error after 10 s", err, took)
	}
	if long() {
		// Longer than the relay's own reaping, too: it must hear the agent first.
		if err := w.waitUntil("the agent has noticed", 110*time.Second, func() bool { return len(events.since(stopped, lost)) > 0 }); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Until(stopped.Add(170 * time.Second)))
	}
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	woke := time.Now()
	if err := w.waitUntil("a device gets in again", 45*time.Second, func() bool {
		s, err := open()
		if err != nil {
			time.Sleep(200 * time.Millisecond)
			return false
		}
		s.CloseNow()
		return true
	}); err != nil {
		t.Fatal(err)
	}
	t.Logf("a device got in %v after SIGCONT", time.Since(woke).Round(time.Millisecond))
	if !long() {
		if over := events.since(stopped, lost); len(over) > 0 {
			t.Errorf("a stop of 15 s cost the agent its control connection: %+v", over)
		}
	}
}

// hasStopped reports whether every thread of a process has taken a stop signal;
// true where no /proc tells.
func hasStopped(pid int) bool {
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		return true
	}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(threads) == 0 {
		return false
	}
	for _, path := range threads {
		stat, err := os.ReadFile(path)
		// The state stands behind the name, which is in parentheses and may hold some.
		if _, state, ok := strings.Cut(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " "); err != nil || !ok || !strings.HasPrefix(state, "T") {
			return false
		}
	}
	return true
}
