package feed

import (
	"fmt"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast/internal/session"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestASlowReaderGetsTheNewestOfEachAndMissesNone(t *testing.T) {
	var f Feed
	changes, cancel := f.Subscribe()
	defer cancel()
	for round := range 100 {
		for _, id := range []session.ID{"a", "b", "c"} {
			f.Put(id, Change{Session: &session.Session{ID: id, Cols: round}})
		}
	}
	f.Put("b", Change{Gone: "b"})
	newest := map[session.ID]Change{}
	for range 20 {
		select {
		case c := <-changes:
			if c.Gone != "" {
				newest[c.Gone] = c
			} else {
				newest[c.Session.ID] = c
			}
		case <-time.After(100 * time.Millisecond):
		}
	}
	if newest["a"].Session == nil || newest["a"].Session.Cols != 99 || newest["c"].Session == nil || newest["c"].Session.Cols != 99 || newest["b"].Gone != "b" {
		t.Errorf("the newest: %+v", newest)
	}
	f.End()
	if _, ok := <-changes; ok {
		t.Error("a change after the end")
	}
}

func TestWhatAPersonWouldNotNoticeIsTheSame(t *testing.T) {
	now := time.Now()
	a := session.Session{ID: "a", Name: "n", Status: session.Status{State: session.Working, Since: now, Confirmed: now,
		Evidence: []session.Evidence{{Source: session.FromScreen, Detail: "* thinking", At: now}}}}
	b := a
	b.Status.Confirmed = now.Add(time.Second)
	b.Status.Evidence = []session.Evidence{{Source: session.FromScreen, Detail: "+ thinking", At: now.Add(time.Second)}}
	if !Same(a, b) {
		t.Error("a spinner that turned is a change")
	}
	code := 0
	for i, change := range []func(*session.Session){
		func(s *session.Session) { s.Title = "x" },
		func(s *session.Session) { s.Status.Since = now.Add(1) },
		func(s *session.Session) { s.Status.ExitCode = &code },
		func(s *session.Session) { s.Status.Dialog = &session.Dialog{Digest: "d"} },
		func(s *session.Session) { s.Status.Evidence = nil },
	} {
		c := a
		if change(&c); Same(a, c) {
			t.Error(fmt.Sprint("change ", i, " is none"))
		}
	}
}
