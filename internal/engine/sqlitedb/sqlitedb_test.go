package sqlitedb

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

var steps = []string{
	"CREATE TABLE words (word TEXT PRIMARY KEY) STRICT",
	"ALTER TABLE words ADD COLUMN length INTEGER NOT NULL DEFAULT 0; UPDATE words SET length = length(word)",
}

const testID = 0x54455354

func try(t *testing.T, path string, migrations ...string) (*DB, error) {
	t.Helper()
	return Open(t.Context(), path, Options{ApplicationID: testID, Migrations: migrations, NoFollow: true})
}

func must(t *testing.T, path string, migrations ...string) *DB {
	t.Helper()
	d, err := try(t, path, migrations...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func add(word string) func(context.Context, *Tx) error {
	return func(ctx context.Context, t *Tx) error {
		_, err := t.Exec(ctx, "INSERT INTO words (word) VALUES (?)", word)
		return err
	}
}

func count(t *testing.T, d *DB, where string) (n int) {
	t.Helper()
	err := d.View(t.Context(), func(ctx context.Context, q *Reads) error {
		return q.Row(ctx, "SELECT count(*) FROM words WHERE "+where).Scan(&n)
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestOptionsAreChecked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	if _, err := Open(t.Context(), path, Options{Migrations: steps}); err == nil {
		t.Error("opened without an application id")
	}
	if _, err := Open(t.Context(), path, Options{ApplicationID: testID}); err == nil {
		t.Error("opened without a schema")
	}
}

func TestOldDatabaseIsBroughtUp(t *testing.T) {
	defer goleak.VerifyNone(t)
	path := filepath.Join(t.TempDir(), "x.db")
	d := must(t, path, steps[0])
	if err := d.Update(t.Context(), add("holdfast")); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = must(t, path, steps...)
	if n := count(t, d, "length = 8"); n != 1 {
		t.Errorf("%d words with the new column", n)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	// An older program keeps its hands off.
	if _, err := try(t, path, steps[0]); !errors.Is(err, ErrNewer) {
		t.Errorf("error %v", err)
	}
}

func TestFailedMigrationLeavesTheDatabase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	if err := must(t, path, steps[0]).Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := try(t, path, steps[0], "CREATE TABLE more (x) STRICT; CREATE TABLE words (x)"); err == nil {
		t.Fatal("a migration that cannot work was taken")
	}
	d := must(t, path, steps...)
	if err := d.Update(t.Context(), add("holdfast")); err != nil {
		t.Error(err)
	}
}

// Jobs that share a transaction fail one by one.
func TestOneFailureTakesNoOtherWithIt(t *testing.T) {
	d := must(t, filepath.Join(t.TempDir(), "x.db"), steps...)
	refused := errors.New("refused")
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			err := d.Update(t.Context(), func(ctx context.Context, tx *Tx) error {
				if err := add(fmt.Sprint(i))(ctx, tx); err != nil {
					return err
				}
				if i%3 == 0 {
					return refused
				}
				return nil
			})
			if i%3 == 0 != errors.Is(err, refused) {
				t.Errorf("job %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if n := count(t, d, "CAST(word AS INTEGER) % 3 = 0"); n != 0 {
		t.Errorf("%d refused writes are there", n)
	}
	if n := count(t, d, "true"); n != 133 {
		t.Errorf("%d writes are there, want 133", n)
	}
}

// SQLite rolls back by itself when, say, the disk is full in the middle of a
// statement. Then every job of the transaction is told, and the next one starts
// afresh.
func TestLostTransaction(t *testing.T) {
	d := must(t, filepath.Join(t.TempDir(), "x.db"), steps...)
	block, entered := make(chan struct{}), make(chan struct{})
	results := make(chan error, 3)
	update := func(f func(context.Context, *Tx) error) {
		go func() { results <- d.Update(t.Context(), f) }() // ends with its transaction; waited for below
	}
	// The first holds the writer until the others wait behind it.
	update(func(ctx context.Context, tx *Tx) error {
		close(entered)
		<-block
		return nil
	})
	<-entered
	update(add("good"))
	for len(d.write.jobs) < 1 {
		runtime.Gosched()
	}
	lost := errors.New("disk full")
	update(func(ctx context.Context, tx *Tx) error {
		if _, err := tx.Exec(ctx, "ROLLBACK"); err != nil {
			return err
		}
		return lost
	})
	for len(d.write.jobs) < 2 {
		runtime.Gosched()
	}
	close(block)
	var failed int
	for range 3 {
		if err := <-results; err != nil {
			failed++
		}
	}
	if failed != 2 {
		t.Errorf("%d jobs failed, want the lost one and its neighbour", failed)
	}
	if n := count(t, d, "true"); n != 0 {
		t.Errorf("%d writes of a lost transaction are there", n)
	}
	if err := d.Update(t.Context(), add("next")); err != nil {
		t.Errorf("the next transaction: %v", err)
	}
	if n := count(t, d, "true"); n != 1 {
		t.Errorf("%d writes, want the next one", n)
	}
}

func TestSignal(t *testing.T) {
	d := must(t, InMemory, steps...)
	woken := func() bool {
		select {
		case <-d.Wake():
			return true
		default:
			return false
		}
	}
	for _, c := range []struct {
		name   string
		signal bool
		err    error
		want   bool
	}{
		{"quiet", false, nil, false},
		{"signalled", true, nil, true},
		{"signalled, then refused", true, errors.New("refused"), false},
	} {
		err := d.Update(t.Context(), func(_ context.Context, tx *Tx) error {
			if c.signal {
				tx.Signal()
			}
			return c.err
		})
		if !errors.Is(err, c.err) || woken() != c.want {
			t.Errorf("%s: error %v, woken otherwise than %v", c.name, err, c.want)
		}
	}
}

func TestClosedDatabase(t *testing.T) {
	d := must(t, filepath.Join(t.TempDir(), "x.db"), steps...)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := d.Update(t.Context(), add("late")); !errors.Is(err, ErrClosed) {
		t.Errorf("error %v", err)
	}
}
