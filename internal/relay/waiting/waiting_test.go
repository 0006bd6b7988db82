package waiting

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/engine"
	"holdfast/internal/frame"
	"holdfast/internal/memnet"
	"holdfast/internal/wire"
)

func masked(op frame.Opcode, payload []byte) []byte {
	key := [4]byte{9, 8, 7, 6}
	out := frame.AppendHeader(nil, frame.Header{Fin: true, Op: op, Masked: true, Mask: key, Length: int64(len(payload))})
	at := len(out)
	out = append(out, payload...)
	frame.Mask(key, 0, out[at:])
	return out
}

// Wherever the bytes are cut, the close frame is seen when it is complete, and
// not before.
func TestEarlySeesTheCloseFrameInEverySplit(t *testing.T) {
	data := append(masked(frame.Binary, []byte("SSH-2.0-x\r\n")), masked(frame.Ping, nil)...)
	all := append(data, masked(frame.Close, []byte{0x0f, 0xa1, 'd', 'o', 'n', 'e'})...)
	for at := range all {
		synctest.Test(t, func(t *testing.T) {
			device, relay := memnet.Pipe()
			e := NewEarly(relay, bytes.Clone(all[:at]))
			go e.Read()
			synctest.Wait()
			select {
			case <-e.Over:
				t.Fatalf("over after %d of %d bytes", at, len(all))
			default:
			}
			if _, err := device.Write(all[at:]); err != nil {
				t.Fatal(err)
			}
			<-e.Over
			if code, _ := e.Farewell(); code != 4001 {
				t.Errorf("split at %d: code %d", at, code)
			}
			if got := e.Stop(); !bytes.Equal(got, all) {
				t.Errorf("split at %d: bytes were changed or lost", at)
			}
			_ = device.Close()
			_ = relay.Close()
		})
	}
}

// What a device sends before its pair is complete is judged as what comes later.
func TestEarlyJudgesTheCloseFrame(t *testing.T) {
	for _, c := range []struct {
		name    string
		payload []byte
		want    wire.CloseCode
	}{
		{"empty", nil, wire.CloseNormal},
		{"code", []byte{0x0f, 0xa1}, wire.CloseEnded},
		{"one byte", []byte{3}, wire.CloseProtocol},
		{"code that is never sent", []byte{0x03, 0xed}, wire.CloseProtocol},
		{"reason that is not UTF-8", []byte{0x03, 0xe8, 0xff}, wire.CloseInvalidData},
	} {
		e := &Early{buf: masked(frame.Close, c.payload)}
		if !e.scan() {
			t.Errorf("%s: not over", c.name)
		}
		if code, _ := e.Farewell(); code != c.want {
			t.Errorf("%s: the device is told %d, want %d", c.name, code, c.want)
		}
	}
}

func TestEarlyReadsNoMoreThanItMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		device, relay := memnet.Pipe()
		sent := masked(frame.Binary, make([]byte, 20<<10))
		if _, err := device.Write(sent); err != nil {
			t.Fatal(err)
		}
		e := NewEarly(relay, nil)
		go e.Read()
		time.Sleep(time.Second)
		got := e.Stop()
		if len(got) != wire.MaxPendingBytes || !bytes.Equal(got, sent[:len(got)]) {
			t.Errorf("it read %d bytes", len(got))
		}
		rest := make([]byte, len(sent)-len(got))
		if _, err := io.ReadFull(relay, rest); err != nil || !bytes.Equal(rest, sent[len(got):]) {
			t.Errorf("what follows was touched: %v", err)
		}
		_ = device.Close()
		_ = relay.Close()
	})
}

func TestEarlyHangUp(t *testing.T) {
	for name, hangUp := range map[string]func(*memnet.Conn){
		"finish": func(c *memnet.Conn) { _ = c.CloseWrite() },
		"reset":  func(c *memnet.Conn) { c.Reset() },
	} {
		synctest.Test(t, func(t *testing.T) {
			device, relay := memnet.Pipe()
			e := NewEarly(relay, nil)
			go e.Read()
			hangUp(device)
			<-e.Over
			if code, _ := e.Farewell(); code != 0 {
				t.Errorf("%s: the device is told %d", name, code)
			}
			e.Stop()
			_ = device.Close()
			_ = relay.Close()
		})
	}
}

func FuzzEarlyScan(f *testing.F) {
	f.Add(masked(frame.Binary, []byte("x")))
	f.Add(append(masked(frame.Text, nil), masked(frame.Close, nil)...))
	f.Add([]byte{0x82, 0xff, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > wire.MaxPendingBytes {
			return
		}
		whole := &Early{buf: bytes.Clone(b)}
		over := whole.scan()
		if !bytes.Equal(whole.buf, b) {
			t.Fatal("scan changed the bytes")
		}
		bit := &Early{}
		seen := false
		for i := 0; i < len(b) && !seen; i++ {
			bit.buf = b[:i+1]
			seen = bit.scan()
		}
		if seen != over || seen && bit.code != whole.code {
			t.Fatalf("at once %v %d, byte by byte %v %d", over, whole.code, seen, bit.code)
		}
	})
}

var mini = engine.Key{Account: "ann", Machine: "mini"}

func TestADialIsTakenOnce(t *testing.T) {
	table := New("n1")
	d := table.Open(mini)
	if _, err := wire.ParseConnID(string(d.ID)); err != nil {
		t.Fatal(err)
	}
	other := engine.Key{Account: "bob", Machine: "mini"}
	if table.Knows(d.ID, other) || table.Take(d.ID, other) != nil {
		t.Error("another account's machine of that name got it")
	}
	var wg sync.WaitGroup
	taken := make(chan *Dial, 50)
	for range 50 {
		wg.Go(func() {
			if d := table.Take(d.ID, mini); d != nil {
				taken <- d
			}
		})
	}
	wg.Wait()
	if len(taken) != 1 || table.Knows(d.ID, mini) || table.Count() != 0 {
		t.Fatalf("it was taken %d times", len(taken))
	}
	if _, ok := table.Give(d, Answer{Code: 4502}); !ok {
		t.Error("nobody waited")
	}
	if a := <-d.Answers; a.Code != 4502 {
		t.Errorf("got %+v", a)
	}
}

func TestAbandonedDials(t *testing.T) {
	table := New("n1")
	d := table.Open(mini)
	if _, ok := table.Abandon(d, 1012, "restart"); ok || table.Take(d.ID, mini) != nil {
		t.Error("an abandoned dial can be taken")
	}
	d = table.Open(mini)
	table.Take(d.ID, mini)
	table.Abandon(d, 1012, "restart")
	if told, ok := table.Give(d, Answer{}); ok || told.Code != 1012 || told.Reason != "restart" {
		t.Error("an abandoned dial takes an answer")
	}
	d = table.Open(mini)
	table.Take(d.ID, mini)
	a, b := net.Pipe()
	defer b.Close()
	table.Give(d, Answer{Conn: a})
	late, ok := table.Abandon(d, 1012, "restart")
	if !ok || late.Conn != a {
		t.Error("the late answer is lost, and its connection with it")
	}
	if err := errors.Join(late.Conn.Close()); err != nil {
		t.Error(err)
	}
}
