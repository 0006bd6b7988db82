package sock

import (
	"io"
	"testing"
	"time"

	"holdfast/internal/memnet"
)

func TestOutboundFollowsTheAcknowledgements(t *testing.T) {
	a, b := tcpPair(t)
	a.Write(make([]byte, 1000)) // what was before does not count
	o := NewOutbound(a)
	if o == nil {
		t.Fatal("no word of a TCP connection")
	}
	if m, _ := memnet.Pipe(); NewOutbound(m) != nil {
		t.Fatal("memnet has no kernel to ask")
	}
	a.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
	n, err := a.Write(make([]byte, 64<<20)) // more than any socket buffer
	if err == nil {
		t.Fatal("64 MiB were written and nobody read")
	}
	written, acked := o.Progress()
	if written != int64(n) || acked >= written {
		t.Fatalf("written %d of %d, acknowledged %d", written, n, acked)
	}
	go io.CopyN(io.Discard, b, int64(n)+1000)
	for limit := time.Now().Add(10 * time.Second); acked != int64(n); _, acked = o.Progress() {
		if time.Now().After(limit) {
			t.Fatalf("acknowledged %d of %d", acked, n)
		}
	}
}
