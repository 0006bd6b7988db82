package livesql_test

import (
	"database/sql"
	"path/filepath"
	"testing"

	_ "modernc.org/sqlite"

	"holdfast/live/livesql"
	"holdfast/live/livetest"
)

func TestStorage(t *testing.T) {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "live.db")+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := livesql.New(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	s, err := livesql.New(t.Context(), db) // the table is there already
	if err != nil {
		t.Fatal(err)
	}
	livetest.Storage(t, s)
	db.Close()
	if _, _, err := s.Load(t.Context(), "b", "k"); err == nil {
		t.Error("a closed database gave an answer")
	}
}
