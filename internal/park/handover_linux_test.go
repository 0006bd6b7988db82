package park

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gobwas/ws"
	"golang.org/x/sys/unix"
)

// half is a connection with half a message received and two queued.
func half(t *testing.T, lot *Lot) (b bench, rest []byte) {
	t.Helper()
	server, client := tcpPair(t)
	t.Cleanup(func() { client.Close() })
	client.SetDeadline(time.Now().Add(20 * time.Second))
	b = bench{lot: lot, rec: newRecorder(), client: client}
	var err error
	if b.conn, err = lot.Park(server, nil, b.rec); err != nil {
		t.Fatal(err)
	}
	message := append(masked(ws.OpText, false, "one "), masked(ws.OpContinuation, true, "message")...)
	held := lot.Stats().HeldBytes
	b.write(t, masked(ws.OpText, true, "before"))
	b.write(t, message[:len(message)-9])
	b.rec.wait(t, "first message", func() bool { return len(b.rec.got) == 1 })
	for start := time.Now(); lot.Stats().HeldBytes == held; time.Sleep(time.Millisecond) {
		if time.Since(start) > 10*time.Second {
			t.Fatal("half a message is not held")
		}
	}
	return b, message[len(message)-9:]
}

func TestHandOver(t *testing.T) {
	old, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	young, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer young.Close()
	var all []bench
	var rests [][]byte
	for range 50 {
		b, rest := half(t, old)
		all, rests = append(all, b), append(rests, rest)
	}
	frozen := old.Freeze()
	if len(frozen) != len(all) {
		t.Fatalf("%d connections are frozen of %d", len(frozen), len(all))
	}
	byConn := map[*Conn]int{}
	for i, b := range all {
		byConn[b.conn] = i
		if err := b.conn.Send([]byte("x")); err != ErrClosed {
			t.Fatalf("send to a frozen connection: %v", err)
		}
		if i%2 == 0 { // what comes meanwhile stays in the socket
			b.write(t, rests[i])
		}
	}
	for _, f := range frozen {
		i := byConn[f.Conn]
		fd, err := unix.Dup(f.FD) // as another process would get it
		if err != nil {
			t.Fatal(err)
		}
		// As if two answers had been waiting.
		f.Unsent = append(f.Unsent, "\x81\x02hi\x81\x01!"...)
		all[i].rec = newRecorder()
		f.FD, f.Conn = fd, nil
		c, err := young.Adopt(f, all[i].rec)
		if err != nil {
			t.Fatal(err)
		}
		all[i].conn, all[i].lot = c, young
	}
	old.Close()
	for i, b := range all {
		if i%2 == 1 {
			b.write(t, rests[i])
		}
		b.want(t, "text hi", "text !")
		b.write(t, masked(ws.OpText, true, "echo:"+strings.Repeat("z", i)))
		b.want(t, "text "+strings.Repeat("z", i))
		b.rec.wait(t, "the message that was cut", func() bool { return len(b.rec.got) == 2 })
		if b.rec.got[0] != "text one message" {
			t.Fatalf("got %q", b.rec.got)
		}
	}
	if s := young.Stats(); s.Epoll != len(all) || s.HeldBytes != 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestThaw(t *testing.T) {
	lot, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer lot.Close()
	b, rest := half(t, lot)
	held := lot.Stats().HeldBytes
	for i := range 3 {
		if n := len(lot.Freeze()); n != 1 {
			t.Fatalf("%d frozen", n)
		}
		if i == 2 {
			b.write(t, rest)
		}
		lot.Thaw()
	}
	b.rec.wait(t, "the message that was cut", func() bool { return len(b.rec.got) == 2 })
	if fmt.Sprint(b.rec.got) != "[text before text one message]" || held == 0 {
		t.Fatalf("got %q, %d bytes were held", b.rec.got, held)
	}
	b.conn.ExpireAfter(time.Millisecond)
	b.rec.wait(t, "expiry", func() bool { return b.rec.expired == 1 })
	if err := b.conn.Send([]byte("again")); err != nil {
		t.Fatal(err)
	}
	b.want(t, "text again")
	if held := lot.Stats().HeldBytes; held != 0 {
		t.Fatalf("%d bytes are held", held)
	}
}

func TestCloseWhileFrozen(t *testing.T) {
	lot, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	b, _ := half(t, lot)
	lot.Freeze()
	lot.Close()
	if len(b.rec.closed) != 1 || b.rec.closed[0].Err != ErrClosed {
		t.Fatalf("end is %+v", b.rec.closed)
	}
}
