package axes

import (
	"fmt"
	"slices"
	"testing"
	"time"
	"unsafe"

	"pgregory.net/rapid"

	"holdfast/internal/engine"
	"holdfast/internal/wire"
)

// sock is a socket of the model.
type sock struct {
	Member
	token engine.Token
	name  wire.MachineID
	role  Role
	ended wire.CloseCode
}

func (s *sock) End(code wire.CloseCode, _ string) { s.ended = code }

// Whatever was added and removed, each question finds exactly the sockets that
// a plain list says.
func TestAxesAgainstAList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := New()
		var all []*sock
		check := func(what string, got []*Member, want func(*sock) bool) {
			t.Helper()
			found := map[Ender]bool{}
			for _, m := range got {
				if found[m.Self()] {
					t.Fatalf("%s: a socket is listed twice", what)
				}
				found[m.Self()] = true
			}
			n := 0
			for _, s := range all {
				if want(s) {
					n++
					if !found[s] {
						t.Fatalf("%s: a socket is missing", what)
					}
				}
			}
			if n != len(got) {
				t.Fatalf("%s: got %d sockets, want %d", what, len(got), n)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				acc := engine.AccountID(rapid.SampledFrom([]string{"ann", "bob"}).Draw(t, "account"))
				n := rapid.IntRange(0, 3).Draw(t, "token")
				s := &sock{
					token: engine.Token{ID: fmt.Sprintf("%s-t%d", acc, n), Account: acc},
					name:  wire.MachineID(rapid.SampledFrom([]string{"m1", "m2"}).Draw(t, "machine")),
					role:  rapid.SampledFrom([]Role{Control, Device, Agent, Live}).Draw(t, "role"),
				}
				if n > 1 {
					s.token.Device = fmt.Sprintf("%s-d%d", acc, n)
				}
				s.Init(s, s.name, s.role)
				a.Add(&s.Member, s.token)
				all = append(all, s)
			},
			"remove": func(t *rapid.T) {
				if len(all) == 0 {
					t.Skip("nothing to remove")
				}
				i := rapid.IntRange(0, len(all)-1).Draw(t, "which")
				a.Remove(&all[i].Member)
				a.Remove(&all[i].Member)
				all = slices.Delete(all, i, i+1)
			},
			"": func(*rapid.T) {
				for _, acc := range []engine.AccountID{"ann", "bob"} {
					check("account", a.OfAccount(acc), func(s *sock) bool { return s.token.Account == acc })
					check("controls", a.Controls(acc), func(s *sock) bool { return s.token.Account == acc && s.role == Control })
					check("machine", a.OfMachine(engine.Key{Account: acc, Machine: "m1"}), func(s *sock) bool { return s.token.Account == acc && s.name == "m1" })
					for n := range 4 {
						id, device := fmt.Sprintf("%s-t%d", acc, n), fmt.Sprintf("%s-d%d", acc, n)
						check("token", a.OfToken(id), func(s *sock) bool { return s.token.ID == id })
						check("device", a.OfDevice(acc, device), func(s *sock) bool { return s.token.Device == device })
					}
					check("no device", a.OfDevice(acc, ""), func(*sock) bool { return false })
					tokens, machines := a.Except(acc, map[string]bool{string(acc) + "-t0": true}, map[wire.MachineID]bool{"m2": true})
					check("bad tokens", tokens, func(s *sock) bool { return s.token.Account == acc && s.token.ID != string(acc)+"-t0" })
					check("bad machines", machines, func(s *sock) bool { return s.token.Account == acc && s.name != "m2" })
				}
				for r := range Roles {
					check("role", a.OfRole(r), func(s *sock) bool { return s.role == r })
					if n := a.Count(r); n != len(a.OfRole(r)) {
						t.Fatalf("%v: counted %d", r, n)
					}
				}
				if len(all) == 0 && len(a.accounts)+len(a.tokens) != 0 {
					t.Fatal("an empty index holds something")
				}
			},
		})
	})
}

func TestExpired(t *testing.T) {
	a := New()
	now := time.Now()
	add := func(id string, expires time.Time) *sock {
		s := &sock{}
		s.Init(s, "mini", Device)
		a.Add(&s.Member, engine.Token{ID: id, Account: "ann", Expires: expires})
		return s
	}
	never, soon, later := add("never", time.Time{}), add("soon", now.Add(time.Second)), add("later", now.Add(time.Hour))
	if got := a.Expired(now); len(got) != 0 {
		t.Fatalf("%d sockets expired too early", len(got))
	}
	got := a.Expired(now.Add(1001 * time.Millisecond))
	if len(got) != 1 || got[0].Self() != soon {
		t.Fatalf("got %d sockets", len(got))
	}
	a.Remove(&soon.Member)
	if got := a.Expired(now.Add(2 * time.Hour)); len(got) != 1 || got[0].Self() != later {
		t.Fatalf("later: got %d sockets", len(got))
	}
	EndAll(a.OfToken("never"), 4401, "x")
	if never.ended != 4401 {
		t.Error("EndAll ended nothing")
	}
}

func TestReserve(t *testing.T) {
	a := New()
	tok := engine.Token{ID: "t", Account: "ann"}
	if !a.Reserve(tok, 2) || !a.Reserve(tok, 2) || a.Reserve(tok, 2) {
		t.Fatal("two streams of two, and no third")
	}
	if n := a.Streams("t"); n != 2 {
		t.Errorf("counted %d", n)
	}
	a.Release("t")
	a.Release("t")
	if len(a.tokens) != 0 || a.Streams("t") != 0 {
		t.Error("a token without streams is kept")
	}
	if a.Reserve(tok, 0) || len(a.tokens) != 0 {
		t.Error("a refused reservation is kept")
	}
}

// A parked machine pays for each of these; the relay has a kilobyte for it all.
func TestEntriesAreSmall(t *testing.T) {
	if n := unsafe.Sizeof(Member{}); n > 88 {
		t.Errorf("a member has %d bytes", n)
	}
	if n := unsafe.Sizeof(tokenEntry{}); n > 48 {
		t.Errorf("a token has %d bytes", n)
	}
}
