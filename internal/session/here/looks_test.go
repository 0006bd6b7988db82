package here

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/session"
	"holdfast/internal/session/proto"
)

func TestLooksEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var away []session.ID
		l := looks{away: func(ids []session.ID) { away = append(away, ids...) }}
		looking := func(id session.ID) bool {
			_, ok := l.looking(id, time.Now())
			return ok
		}
		l.Look("phone", "", []session.ID{"a", "b"})
		l.Look("laptop", "", []session.ID{"b"})
		if !looking("a") || !looking("b") || looking("c") || len(away) != 0 {
			t.Fatal("two devices look")
		}
		// What a device turns away from is told, even where another still looks.
		l.Look("phone", "", []session.ID{"a"})
		if !slices.Equal(away, []session.ID{"b"}) || !looking("b") {
			t.Errorf("away %v", away)
		}
		l.Look("phone", "", nil)
		if !slices.Equal(away, []session.ID{"b", "a"}) || looking("a") {
			t.Errorf("away %v", away)
		}
		// A lease that nobody renews ends without a word.
		away = nil
		time.Sleep(proto.LeaseTime - time.Second)
		if !looking("b") {
			t.Error("the lease ended early")
		}
		time.Sleep(time.Second)
		if looking("b") || len(away) != 0 {
			t.Errorf("the lease goes on, away %v", away)
		}
		l.Look("laptop", "", nil)
		if len(away) != 0 {
			t.Errorf("a lease that had ended was taken back: %v", away)
		}
		for i := range 2 * maxLooks {
			l.Look(fmt.Sprint(i), "", []session.ID{"x"})
		}
		if len(l.views) != maxLooks {
			t.Errorf("%d views are kept", len(l.views))
		}
	})
}

func TestLooksOfOneDeviceAreApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := looks{}
		looking := func(id session.ID) bool {
			_, ok := l.looking(id, time.Now())
			return ok
		}
		l.Look("phone", "front", []session.ID{"a"})
		l.Look("phone", "back", []session.ID{"a", "b"})
		// The one behind is hidden: the one in front shows what it showed.
		l.Look("phone", "back", nil)
		if !looking("a") || looking("b") {
			t.Errorf("a %v, b %v", looking("a"), looking("b"))
		}
		l.Look("phone", "front", nil)
		if looking("a") {
			t.Error("nobody looks any more")
		}
		// A device has so many views, and the newest count.
		for i := range proto.MaxViews + 3 {
			l.Look("phone", fmt.Sprint(i), []session.ID{session.ID(fmt.Sprint("s", i))})
			time.Sleep(time.Millisecond)
		}
		if len(l.views) != proto.MaxViews || looking("s2") || !looking("s3") {
			t.Errorf("%d views, s2 %v, s3 %v", len(l.views), looking("s2"), looking("s3"))
		}
		l.Look("laptop", "", []session.ID{"x"})
		if !looking("s3") {
			t.Error("another device took the place of a view")
		}
	})
}
