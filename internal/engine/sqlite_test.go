package engine_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/engine"
	"holdfast/internal/wire"
)

func TestStoreOutlivesItsProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "relay.db")
	ctx := t.Context()
	s := open(t, path, engine.SQLiteOptions{})
	mini := engine.Token{ID: "t-mini", Account: "owner", Kind: engine.KindAgent, Machine: "mini", Hash: [32]byte{1}}
	if err := errors.Join(s.AddAccount(ctx, "owner"), s.AddToken(ctx, mini), s.RevokeToken(ctx, "owner", "t-mini")); err != nil {
		t.Fatal(err)
	}
	k := engine.Key{Account: "owner", Machine: "mini"}
	if _, err := s.Claim(ctx, k, "instance-a", 3); err != nil {
		t.Fatal(err)
	}
	before, err := s.Machine(ctx, k)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = open(t, path, engine.SQLiteOptions{})
	after, err := s.Machine(ctx, k)
	if err != nil || after != before {
		t.Errorf("machine %+v, %v; want %+v", after, err, before)
	}
	if epoch, err := s.Claim(ctx, k, "instance-a", 4); err != nil || epoch != before.Epoch+1 {
		t.Errorf("epoch %d, %v after %d", epoch, err, before.Epoch)
	}
	if c, err := s.Changes(ctx, -1); err != nil || len(c) != 1 || c[0].Token != "t-mini" {
		t.Errorf("changes %v, %v", c, err)
	}
}

func TestFilesArePrivate(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "relay.db")
	// One that was left too open is narrowed.
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s := open(t, path, engine.SQLiteOptions{NoFollow: true})
	if err := s.AddAccount(t.Context(), "owner"); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		seen[e.Name()] = true
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", e.Name(), info.Mode())
		}
	}
	if !seen["relay.db"] || !seen["relay.db-wal"] || !seen["relay.db-shm"] {
		t.Errorf("files %v", seen)
	}
}

func TestDatabaseRunsAsPromised(t *testing.T) {
	path := filepath.Join(t.TempDir(), "relay.db")
	s := open(t, path, engine.SQLiteOptions{})
	got := engine.Pragmas(t, s, "journal_mode", "synchronous", "foreign_keys", "busy_timeout", "user_version")
	want := map[string]string{"journal_mode": "wal", "synchronous": "2", "foreign_keys": "1", "busy_timeout": "5000", "user_version": "2"}
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s is %s, want %s", name, got[name], value)
		}
	}
}

// A path may hold what means something in a URI.
// A database of the first version becomes one of this version, with what it
// holds.
func TestOlderSchema(t *testing.T) {
	path := filepath.Join(t.TempDir(), "relay.db")
	engine.WriteOlder(t, path, "INSERT INTO accounts (id, created) VALUES ('ann', 1)")
	s := open(t, path, engine.SQLiteOptions{})
	if _, n, err := s.PostNotice(t.Context(), engine.Notice{Text: "moved"}); n != 1 || err != nil {
		t.Errorf("posted to %d accounts: %v", n, err)
	}
}

// A store whose file is taken away takes nothing that would be lost with its
// process, says so, and goes on once the file is back.
func TestMovedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "relay.db")
	var log bytes.Buffer
	var mu sync.Mutex
	s := open(t, path, engine.SQLiteOptions{Log: slog.New(slog.NewTextHandler(&locked{&mu, &log}, nil))})
	if err := s.AddAccount(t.Context(), "ann"); err != nil {
		t.Fatal(err)
	}
	for name, take := range map[string]func() error{
		"moved":    func() error { return os.Rename(path, path+".away") },
		"replaced": func() error { return errors.Join(os.Rename(path, path+".away"), os.WriteFile(path, nil, 0o600)) },
	} {
		if err := take(); err != nil {
			t.Fatal(err)
		}
		if err := s.Ping(t.Context()); !errors.Is(err, engine.ErrMoved) {
			t.Errorf("%s: ready: %v", name, err)
		}
		if err := s.AddAccount(t.Context(), "bob"); !errors.Is(err, engine.ErrMoved) {
			t.Errorf("%s: an account is taken: %v", name, err)
		}
		said := func(words string) bool {
			mu.Lock()
			defer mu.Unlock()
			return strings.Contains(log.String(), words)
		}
		for end := time.Now().Add(10 * time.Second); !said("cannot be used"); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: nothing is logged", name)
			}
		}
		if err := os.Rename(path+".away", path); err != nil {
			t.Fatal(err)
		}
		if err := s.Ping(t.Context()); err != nil {
			t.Errorf("%s: back, and not ready: %v", name, err)
		}
		for end := time.Now().Add(10 * time.Second); !said("is back"); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: its return is not logged", name)
			}
		}
		mu.Lock()
		log.Reset()
		mu.Unlock()
	}
}

// locked is a writer under a lock.
type locked struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

func TestStrangePath(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a b?c#d%41&e=é")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "relay.db")
	s := open(t, path, engine.SQLiteOptions{NoFollow: true})
	if err := s.AddAccount(t.Context(), "owner"); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path + "-wal"); err != nil || info.Size() == 0 {
		t.Errorf("the database is somewhere else: %v, %v", info, err)
	}
}

func TestOpenRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(t *testing.T, path string)
		want error
		says string
	}{
		{"garbage", func(t *testing.T, path string) {
			write(t, path, bytes.Repeat([]byte("not a database. "), 1000))
		}, engine.ErrCorrupt, "put back a copy"},
		{"damaged page", func(t *testing.T, path string) {
			s := open(t, path, engine.SQLiteOptions{NoFollow: true})
			for i := range 400 {
				if err := s.AddAccount(t.Context(), engine.AccountID(fmt.Sprintf("account-%d", i))); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			at := bytes.LastIndex(b, []byte("account-399"))
			page := at &^ 4095
			copy(b[page:page+200], bytes.Repeat([]byte{0xff}, 200))
			write(t, path, b)
		}, engine.ErrCorrupt, "put back a copy"},
		{"another program's", func(t *testing.T, path string) {
			execSQL(t, path, "CREATE TABLE songs (title TEXT)")
		}, engine.ErrForeign, "another program"},
		{"another program's mark", func(t *testing.T, path string) {
			execSQL(t, path, "PRAGMA application_id = 252006673")
		}, engine.ErrForeign, "another program"},
		{"newer", func(t *testing.T, path string) {
			if err := open(t, path, engine.SQLiteOptions{NoFollow: true}).Close(); err != nil {
				t.Fatal(err)
			}
			execSQL(t, path, "PRAGMA user_version = 99")
		}, engine.ErrNewer, "version 99"},
		{"a directory", func(t *testing.T, path string) {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}, nil, "directory"},
		{"no directory", func(t *testing.T, path string) {
			if err := os.Remove(filepath.Dir(path)); err != nil {
				t.Fatal(err)
			}
		}, os.ErrNotExist, "no such file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "state")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "relay.db")
			c.make(t, path)
			s, err := engine.OpenSQLite(t.Context(), path, engine.SQLiteOptions{NoFollow: true})
			if err == nil {
				s.Close()
				t.Fatal("opened")
			}
			if c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), path) {
				t.Errorf("error %q: want %v, with %q and the path", err, c.want, c.says)
			}
		})
	}
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func execSQL(t *testing.T, path, text string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(text); err != nil {
		t.Fatal(err)
	}
}

// Two processes that start on an empty directory must agree who makes it.
func TestOpenedByManyAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "relay.db")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			s, err := engine.OpenSQLite(t.Context(), path, engine.SQLiteOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			if err := errors.Join(s.Ping(t.Context()), s.Close()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// A store in memory waits for nothing outside, so virtual time passes over it.
func TestInMemoryInVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := engine.OpenSQLite(t.Context(), engine.InMemory, engine.SQLiteOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		ctx := t.Context()
		mini := engine.Token{ID: "t-mini", Account: "owner", Kind: engine.KindAgent, Machine: "mini", Hash: [32]byte{1}}
		if err := errors.Join(s.AddAccount(ctx, "owner"), s.AddToken(ctx, mini)); err != nil {
			t.Fatal(err)
		}
		k := engine.Key{Account: "owner", Machine: "mini"}
		claim := func(in wire.Instance) error {
			_, err := s.Claim(ctx, k, in, 1)
			return err
		}
		if err := errors.Join(claim("instance-a"), claim("instance-b")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(wire.ReplacedHold - time.Second)
		if err := claim("instance-a"); !errors.Is(err, engine.ErrReplaced) {
			t.Errorf("within the hour: %v", err)
		}
		time.Sleep(2 * time.Second)
		if err := claim("instance-a"); err != nil {
			t.Errorf("after the hour: %v", err)
		}
	})
}

// A writer of another process in the middle of a transaction is waited for, and
// readers do not wait at all.
func TestAnotherProcessWrites(t *testing.T) {
	path := filepath.Join(t.TempDir(), "relay.db")
	s := open(t, path, engine.SQLiteOptions{NoFollow: true})
	if err := s.AddAccount(t.Context(), "owner"); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.AddAccount(t.Context(), "other") }() // ends once the lock is free; waited for below
	if a, err := s.Accounts(t.Context()); err != nil || len(a) != 1 {
		t.Errorf("accounts %v, %v", a, err)
	}
	// A caller that gives up while it waits for its turn is let go.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.AddAccount(ctx, "third"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the impatient: %v", err)
	}
	select {
	case err := <-done:
		t.Errorf("wrote under another's lock: %v", err)
	default:
	}
	if _, err := conn.ExecContext(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("after the lock was free: %v", err)
	}
	if a, err := s.Accounts(t.Context()); err != nil || len(a) != 2 {
		t.Errorf("accounts %v, %v: want owner and other", a, err)
	}
}

func benchStore(b *testing.B, machines int) engine.Store {
	b.Helper()
	s := open(b, filepath.Join(b.TempDir(), "relay.db"), engine.SQLiteOptions{})
	ctx := b.Context()
	if err := s.AddAccount(ctx, "owner"); err != nil {
		b.Fatal(err)
	}
	var wg sync.WaitGroup
	for w := range 100 {
		wg.Go(func() {
			for i := w; i < machines; i += 100 {
				tok := token(fmt.Sprintf("t-%d", i))
				tok.Kind, tok.Machine = engine.KindAgent, machine(i)
				if err := s.AddToken(ctx, tok); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	return s
}

func machine(i int) wire.MachineID { return wire.MachineID(fmt.Sprintf("machine-%d", i)) }

func BenchmarkTokenByHash(b *testing.B) {
	s := benchStore(b, 10_000)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		if _, err := s.TokenByHash(b.Context(), token(fmt.Sprintf("t-%d", i%10_000)).Hash); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkReconnect is 10,000 machines that come back at once: one round is a
// bind and a claim for each.
func BenchmarkReconnect(b *testing.B) {
	const machines = 10_000
	s := benchStore(b, machines)
	for b.Loop() {
		began := time.Now()
		var wg sync.WaitGroup
		for w := range 1_000 {
			wg.Go(func() {
				for i := w; i < machines; i += 1_000 {
					k := engine.Key{Account: "owner", Machine: machine(i)}
					if err := s.BindToken(b.Context(), fmt.Sprintf("t-%d", i), k.Machine); err != nil {
						b.Error(err)
					}
					if _, err := s.Claim(b.Context(), k, wire.NewInstance(), 1); err != nil {
						b.Error(err)
					}
				}
			})
		}
		wg.Wait()
		b.ReportMetric(machines/time.Since(began).Seconds(), "claims/s")
	}
}
