package gate

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/engine"
)

func from(addr string) *http.Request {
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = addr
	return r
}

// A token that is used from many addresses shows, for an hour, and counts one
// network once.
func TestOriginsOfAToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &Gate{origins: newOrigins()}
		one, leaked := engine.Token{ID: "t-one"}, engine.Token{ID: "t-leaked"}
		want := func(what string, n, most int) {
			t.Helper()
			if got := g.Origins(leaked.ID); got != n {
				t.Errorf("%s: %d addresses, want %d", what, got, n)
			}
			if got := g.MostOrigins(); got != most {
				t.Errorf("%s: at most %d, want %d", what, got, most)
			}
		}
		want("at the start", 0, 0)
		g.Touch(one, from("192.0.2.1:1"))
		want("another token", 0, 1)
		for range 3 {
			g.Touch(leaked, from("192.0.2.1:1"))
		}
		want("one address", 1, 1)
		g.Touch(leaked, from("[2001:db8::1]:1"))
		g.Touch(leaked, from("[2001:db8::2]:1"))
		g.Touch(leaked, from("192.0.2.1:2"))
		g.Touch(leaked, from("@")) // no address
		want("two networks", 2, 2)
		time.Sleep(40 * time.Minute)
		g.Touch(leaked, from("192.0.2.2:1"))
		want("three", 3, 3)
		time.Sleep(25 * time.Minute)
		want("the first two are over", 1, 1)
		if g.Origins(one.ID) != 0 {
			t.Error("what is over still counts")
		}
		time.Sleep(time.Hour)
		g.origins.sweep(time.Now())
		want("after an hour", 0, 0)
		if len(g.origins.one)+len(g.origins.many) != 0 {
			t.Error("something is remembered for ever")
		}
	})
}

func TestOriginsAreBounded(t *testing.T) {
	o := newOrigins()
	now := time.Now()
	addr := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}) }
	for i := range 10 * MaxOrigins {
		o.note("leaked", addr(i), now)
	}
	if n := len(o.many["leaked"]); n != MaxOrigins {
		t.Errorf("one token has %d", n)
	}
	for i := range maxShared + 1000 {
		for j := range 3 {
			o.note(fmt.Sprint("shared", i), addr(j), now)
		}
	}
	if len(o.many) > maxShared {
		t.Errorf("%d shared tokens", len(o.many))
	}
	for i := range maxOrigins + 1000 {
		o.note(fmt.Sprint("one", i), addr(0), now)
	}
	if len(o.one) > maxOrigins {
		t.Errorf("%d tokens", len(o.one))
	}
}
