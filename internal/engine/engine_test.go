package engine_test

import (
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast/internal/engine"
	"holdfast/internal/engine/enginetest"
)

func open(t testing.TB, path string, o engine.SQLiteOptions) engine.Store {
	t.Helper()
	s, err := engine.OpenSQLite(t.Context(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestSQLiteStore(t *testing.T) {
	defer goleak.VerifyNone(t)
	enginetest.StoreConformance(t, func(t *testing.T, now func() time.Time) engine.Store {
		return open(t, filepath.Join(t.TempDir(), "relay.db"), engine.SQLiteOptions{Now: now})
	})
}

func TestSQLiteStoreInMemory(t *testing.T) {
	defer goleak.VerifyNone(t)
	enginetest.StoreConformance(t, func(t *testing.T, now func() time.Time) engine.Store {
		return open(t, engine.InMemory, engine.SQLiteOptions{Now: now})
	})
}

func TestMemoryRouter(t *testing.T) {
	defer goleak.VerifyNone(t)
	enginetest.RouterConformance(t, func(t *testing.T) engine.Router {
		r := engine.NewMemoryRouter()
		t.Cleanup(func() {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		})
		return r
	})
}
