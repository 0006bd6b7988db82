package engine_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/engine"
)

// The test binary runs itself again as the second process: mode and database.
const (
	modeVariable = "HOLDFAST_ENGINE_TEST_MODE"
	pathVariable = "HOLDFAST_ENGINE_TEST_DB"
	modeWrite    = "write"  // add tokens and read notices for ever, saying so after each commit
	modeRevoke   = "revoke" // revoke one token
	modeHold     = "hold"   // open the store and wait to be killed
)

func TestMain(m *testing.M) {
	mode := os.Getenv(modeVariable)
	if mode == "" {
		os.Exit(m.Run())
	}
	if err := second(mode, os.Getenv(pathVariable)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func second(mode, path string) error {
	ctx := context.Background()
	s, err := engine.OpenSQLite(ctx, path, engine.SQLiteOptions{NoFollow: mode != modeHold})
	if err != nil {
		return err
	}
	switch mode {
	case modeWrite:
		return writeForever(ctx, s)
	case modeHold:
		fmt.Println("open")
		select {} // until it is killed
	}
	return errors.Join(s.RevokeToken(ctx, "owner", "t-1"), s.Close())
}

func writeForever(ctx context.Context, s engine.Store) error {
	var mu sync.Mutex
	failed := make(chan error)
	for w := range 4 {
		// Ended by the kill that the test is about.
		go func() {
			for i := 0; ; i++ {
				id := fmt.Sprintf("t-%d-%d-%d", os.Getpid(), w, i)
				if err := writeOne(ctx, s, id, i%8 == 0); err != nil {
					failed <- err
				}
				mu.Lock()
				fmt.Println(id)
				mu.Unlock()
			}
		}()
	}
	return <-failed
}

// writeOne adds a token, or posts a notice and marks it read.
func writeOne(ctx context.Context, s engine.Store, id string, notice bool) error {
	if !notice {
		return s.AddToken(ctx, token(id))
	}
	if _, _, err := s.PostNotice(ctx, engine.Notice{ID: id, Account: "owner", Text: "move"}); err != nil {
		return err
	}
	return s.AckNotice(ctx, "owner", id)
}

func token(id string) engine.Token {
	t := engine.Token{ID: id, Account: "owner", Kind: engine.KindDevice, Name: id}
	copy(t.Hash[:], "hash of "+id)
	return t
}

func start(t *testing.T, mode, path string) (*exec.Cmd, io.Reader) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(self)
	c.Env = append(os.Environ(), modeVariable+"="+mode, pathVariable+"="+path)
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return c, out
}

func TestKillLosesNothingAcknowledged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "relay.db")
	first := open(t, path, engine.SQLiteOptions{NoFollow: true})
	if err := first.AddAccount(t.Context(), "owner"); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	acknowledged := map[string]bool{}
	for round := range 4 {
		c, out := start(t, modeWrite, path)
		lines := bufio.NewScanner(out)
		// Elsewhere in the writes each time.
		for n := 40 + 37*round; n > 0 && lines.Scan(); n-- {
			acknowledged[lines.Text()] = true
		}
		if err := c.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() { // what it had said before it died
			// The last line may have been cut off.
			if strings.Count(lines.Text(), "-") == 3 {
				acknowledged[lines.Text()] = true
			}
		}
		c.Wait() // says that it was killed

		s := open(t, path, engine.SQLiteOptions{NoFollow: true})
		list, err := s.Tokens(t.Context(), "owner")
		if err != nil {
			t.Fatal(err)
		}
		there := map[string]bool{}
		for _, tok := range list {
			there[tok.ID] = true
		}
		notices, err := s.Notices(t.Context(), "owner", engine.NoticeQuery{})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range notices {
			there[n.ID] = !n.Read.IsZero()
		}
		lost := 0
		for id := range acknowledged {
			if !there[id] {
				lost++
			}
		}
		if lost > 0 || len(acknowledged) < 40 {
			t.Errorf("round %d: %d of %d acknowledged tokens and notices are lost", round, lost, len(acknowledged))
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// follow opens a store as a relay does, with a token to revoke.
func follow(t *testing.T, path string) engine.Store {
	t.Helper()
	s := open(t, path, engine.SQLiteOptions{})
	if err := errors.Join(s.AddAccount(t.Context(), "owner"), s.AddToken(t.Context(), token("t-1"))); err != nil {
		t.Fatal(err)
	}
	return s
}

// wantSeen waits for the change of the second process and says how long after
// its end the wake came.
func wantSeen(t *testing.T, s engine.Store, path string) {
	t.Helper()
	c, _ := start(t, modeRevoke, path)
	if err := c.Wait(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	select {
	case <-s.Wake():
	case <-time.After(5 * time.Second):
		t.Fatal("the change of a second process is not seen")
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("seen after %v, want 1 s at most", took)
	}
	changes, err := s.Changes(t.Context(), 0)
	if err != nil || len(changes) != 1 || changes[0].Token != "t-1" {
		t.Errorf("changes %v, %v", changes, err)
	}
}

func TestSecondProcessIsSeenByItsPoke(t *testing.T) {
	path := filepath.Join(shortDir(t), "relay.db")
	s := follow(t, path)
	info, err := os.Stat(filepath.Join(filepath.Dir(path), "relay.sock"))
	if err != nil || info.Mode().Type() != os.ModeSocket || info.Mode().Perm() != 0o600 {
		t.Fatalf("socket %v, %v: want one of mode 0600", info, err)
	}
	wantSeen(t, s, path)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(path), "relay.sock")); !os.IsNotExist(err) {
		t.Errorf("the socket is left behind: %v", err)
	}
}

// Where no socket can be made, polling alone has to do.
func TestSecondProcessIsSeenByPolling(t *testing.T) {
	for _, c := range []struct {
		name string
		path func(t *testing.T) string
	}{
		{"long path", func(t *testing.T) string {
			dir := filepath.Join(t.TempDir(), strings.Repeat("long/", 30))
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			return filepath.Join(dir, "relay.db")
		}},
		{"a file in its place", func(t *testing.T) string {
			dir := shortDir(t)
			if err := os.WriteFile(filepath.Join(dir, "relay.sock"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			return filepath.Join(dir, "relay.db")
		}},
		{"another process listens", func(t *testing.T) string {
			path := filepath.Join(shortDir(t), "relay.db")
			hold(t, path)
			return path
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := c.path(t)
			wantSeen(t, follow(t, path), path)
		})
	}
}

// hold runs a second process that has the store open, and listens, until the
// test ends.
func hold(t *testing.T, path string) *exec.Cmd {
	t.Helper()
	c, out := start(t, modeHold, path)
	t.Cleanup(func() {
		c.Process.Kill()
		c.Wait()
	})
	if !bufio.NewScanner(out).Scan() {
		t.Fatal("the second process did not open the store")
	}
	return c
}

func TestStaleSocketIsReplaced(t *testing.T) {
	path := filepath.Join(shortDir(t), "relay.db")
	c := hold(t, path)
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	c.Wait()
	sock := filepath.Join(filepath.Dir(path), "relay.sock")
	if err := knock(sock); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("the killed process's socket: %v, want one that refuses", err)
	}
	s := follow(t, path)
	if err := knock(sock); err != nil {
		t.Errorf("the stale socket was not replaced: %v", err)
	}
	wantSeen(t, s, path)
}

// knock tells whether somebody listens on a datagram socket.
func knock(sock string) error {
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: sock, Net: "unixgram"})
	if err != nil {
		return err
	}
	return c.Close()
}

// shortDir is a temporary directory whose path leaves room for a socket's name.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hf")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
