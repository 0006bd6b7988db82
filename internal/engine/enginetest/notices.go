package enginetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/internal/engine"
	"holdfast/internal/wire"
)

func post(t testing.TB, s engine.Store, account engine.AccountID, text string) string {
	t.Helper()
	id, _, err := s.PostNotice(t.Context(), engine.Notice{Account: account, Text: text})
	must(t, err)
	return id
}

// texts are those of an account's notices in order, with a * before the unread.
func texts(t testing.TB, s engine.Store, account engine.AccountID) []string {
	t.Helper()
	list, err := s.Notices(t.Context(), account, engine.NoticeQuery{})
	must(t, err)
	out := []string{}
	for _, n := range list {
		mark := ""
		if n.Read.IsZero() {
			mark = "*"
		}
		out = append(out, mark+n.Text)
	}
	return out
}

func wantTexts(t testing.TB, s engine.Store, account engine.AccountID, want ...string) {
	t.Helper()
	if got := texts(t, s, account); !slices.Equal(got, want) {
		t.Errorf("notices of %s: %q, want %q", account, got, want)
	}
}

func testNotices(t *testing.T, s engine.Store, clock *Clock) {
	ctx := t.Context()
	must(t, s.AddAccount(ctx, "ann"))
	must(t, s.AddAccount(ctx, "bob"))
	first := post(t, s, "ann", "for ann")
	clock.Add(time.Second)
	id, n, err := s.PostNotice(ctx, engine.Notice{Text: "for all"})
	must(t, err)
	if n != 2 || id <= first {
		t.Errorf("posted to %d accounts as %q after %q", n, id, first)
	}
	must(t, s.AddAccount(ctx, "zoe"))
	wantTexts(t, s, "ann", "*for ann", "*for all")
	wantTexts(t, s, "bob", "*for all")
	wantTexts(t, s, "zoe") // was not there

	clock.Add(time.Minute)
	at := clock.Now()
	must(t, s.AckNotice(ctx, "ann", id))
	clock.Add(time.Minute)
	must(t, s.AckNotice(ctx, "ann", id))
	wantTexts(t, s, "ann", "*for ann", "for all")
	wantTexts(t, s, "bob", "*for all")
	list, err := s.Notices(ctx, "ann", engine.NoticeQuery{})
	must(t, err)
	if got := list[1]; got.ID != id || got.Account != "ann" || !got.Read.Equal(at) || !got.Posted.Equal(at.Add(-time.Minute)) {
		t.Errorf("notice %+v, want it read the first time, at %v", got, at)
	}
	one, err := s.Notice(ctx, "ann", first)
	must(t, err)
	if one != list[0] {
		t.Errorf("notice %+v, want %+v", one, list[0])
	}
	_, err = s.Notice(ctx, "bob", first)
	wantErr(t, err, engine.ErrNotFound)
	for _, c := range []struct {
		query engine.NoticeQuery
		want  int
	}{
		{engine.NoticeQuery{Unread: true}, 1}, {engine.NoticeQuery{After: first}, 1}, {engine.NoticeQuery{Limit: 1}, 1},
		{engine.NoticeQuery{Unread: true, After: first}, 0}, {engine.NoticeQuery{Limit: 5}, 2},
	} {
		if got, err := s.Notices(ctx, "ann", c.query); err != nil || len(got) != c.want {
			t.Errorf("%+v: %d notices, %v", c.query, len(got), err)
		}
	}
	wantErr(t, s.AckNotice(ctx, "bob", first), engine.ErrNotFound) // another account's
	wantErr(t, s.AckNotice(ctx, "ann", "n-none"), engine.ErrNotFound)
	_, _, err = s.PostNotice(ctx, engine.Notice{Account: "nobody", Text: "x"})
	wantErr(t, err, engine.ErrNotFound)

	// An id of the caller's own makes a repetition harmless.
	own := engine.Notice{ID: "nz-own", Account: "bob", Text: "once"}
	_, _, err = s.PostNotice(ctx, own)
	must(t, err)
	_, _, err = s.PostNotice(ctx, own)
	wantErr(t, err, engine.ErrExists)
	wantTexts(t, s, "bob", "*for all", "*once")

	must(t, s.RemoveAccount(ctx, "bob"))
	must(t, s.AddAccount(ctx, "bob"))
	wantTexts(t, s, "bob")
}

func testNoticeRefusals(t *testing.T, s engine.Store, clock *Clock) {
	must(t, s.AddAccount(t.Context(), "ann"))
	for name, text := range map[string]string{
		"empty": "", "too long": strings.Repeat("x", wire.MaxNoticeBytes+1), "a line": "a\nb", "escape": "a\x1b[2Jb",
		"bell": "a\ab", "C1": "a\u009bb", "turned": "a\u202eb", "not UTF-8": "a\xffb", "line separator": "a\u2028b",
	} {
		_, _, err := s.PostNotice(t.Context(), engine.Notice{Account: "ann", Text: text})
		t.Run(name, func(t *testing.T) { wantErr(t, err, wire.ErrSyntax) })
	}
	_, _, err := s.PostNotice(t.Context(), engine.Notice{ID: strings.Repeat("n", 65), Account: "ann", Text: "x"})
	wantErr(t, err, wire.ErrSyntax)
	wantTexts(t, s, "ann")
	longest := strings.Repeat("\"", wire.MaxNoticeBytes)
	post(t, s, "ann", longest)
	clock.Add(time.Second)
	post(t, s, "ann", "👩‍👩‍👧 tonight: 引っ越し") // joined emoji are no control characters
	wantTexts(t, s, "ann", "*"+longest, "*👩‍👩‍👧 tonight: 引っ越し")
}

func testNoticeBounds(t *testing.T, s engine.Store, clock *Clock) {
	ctx := t.Context()
	must(t, s.AddAccount(ctx, "ann"))
	must(t, s.AddAccount(ctx, "bob"))
	post(t, s, "bob", "alone")
	for i := range engine.MaxNotices + 5 {
		clock.Add(time.Second)
		post(t, s, "ann", fmt.Sprint(i))
	}
	got := texts(t, s, "ann")
	if len(got) != engine.MaxNotices || got[0] != "*5" || got[len(got)-1] != fmt.Sprintf("*%d", engine.MaxNotices+4) {
		t.Errorf("%d notices from %q to %q", len(got), got[0], got[len(got)-1])
	}
	wantTexts(t, s, "bob", "*alone")
	// One to everybody counts for everybody, and one that comes while the clock
	// stands behind the others is not the one that goes.
	clock.Add(-time.Hour)
	id := post(t, s, "", "late")
	if got := texts(t, s, "ann"); len(got) != engine.MaxNotices || !slices.Contains(got, "*late") {
		t.Errorf("%d notices, late among them: %v", len(got), slices.Contains(got, "*late"))
	}
	clock.Add(engine.NoticeAge + time.Hour)
	wantErr(t, s.AckNotice(ctx, "bob", id), engine.ErrNotFound)
	wantTexts(t, s, "bob")
}

func testNoticeChanges(t *testing.T, s engine.Store, _ *Clock) {
	ctx := t.Context()
	must(t, s.AddAccount(ctx, "ann"))
	id := post(t, s, "ann", "one")
	post(t, s, "", "two")
	must(t, s.AckNotice(ctx, "ann", id))
	must(t, s.AckNotice(ctx, "ann", id)) // changes nothing
	if !woken(s, 2*time.Second) {
		t.Error("not woken")
	}
	all, err := s.Changes(ctx, 0)
	must(t, err)
	want := []engine.AccountID{"ann", "", "ann"}
	for i, c := range all {
		if i >= len(want) || c.Kind != engine.ChangeNotice || c.Account != want[i] {
			t.Errorf("change %d: %+v", i, c)
		}
	}
	if len(all) != len(want) {
		t.Errorf("%d changes", len(all))
	}
}
