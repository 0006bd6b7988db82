package link

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"holdfast/internal/frame"
	"holdfast/internal/memnet"
	"holdfast/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pipe is a link and its peer.
func pipe(t *testing.T) (*Link, *memnet.Conn) {
	t.Helper()
	ours, theirs := memnet.Pipe()
	raw := NewMeter(ours)
	l := New(raw, raw)
	t.Cleanup(func() {
		l.Abort()
		<-l.Done()
		theirs.Close()
	})
	return l, theirs
}

// block fills everything that the peer does not read.
func block(t *testing.T, l *Link) (written int) {
	t.Helper()
	past := make(chan struct{})
	close(past)
	for {
		synctest.Wait()
		if l.WaitRoom(past) != nil {
			return written
		}
		if _, err := l.Write(make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		written += 1000
	}
}

func TestWriteNeverBlocksAndFailsWithoutRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, peer := pipe(t)
		block(t, l)
		if !l.Stuck() || l.Unsent() < HighWaterBytes {
			t.Errorf("stuck %v with %d bytes", l.Stuck(), l.Unsent())
		}
		past := make(chan struct{})
		close(past)
		if err := l.WaitRoom(past); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("WaitRoom: %v", err)
		}
		for l.RoomForControl() {
			if _, err := l.Write(make([]byte, controlFrameBytes)); err != nil {
				t.Fatalf("no room for what fits: %v", err)
			}
		}
		if _, err := l.Write(make([]byte, controlFrameBytes)); err != nil {
			t.Errorf("no room for the close frame: %v", err)
		}
		if _, err := l.Write(make([]byte, 1000)); err == nil {
			t.Error("more than the buffer was taken")
		}
		room := make(chan error)
		go func() { room <- l.WaitRoom(nil) }()
		go io.Copy(io.Discard, peer)
		if err := <-room; err != nil {
			t.Errorf("WaitRoom once the peer reads: %v", err)
		}
		synctest.Wait()
		if l.Stuck() || l.Unsent() != 0 || l.queue != nil {
			t.Error("an idle link holds a buffer")
		}
	})
}

// TestCloseLetsTheLastBytesArrive: the peer talks on, reads late, and still
// gets everything and an orderly end instead of a reset.
func TestCloseLetsTheLastBytesArrive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, peer := pipe(t)
		n := block(t, l)
		bye := frame.AppendClose(nil, 1000, "")
		l.Write(bye)
		peer.Write(make([]byte, 10_000)) // nobody will read it
		l.Close()
		if _, err := l.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Write after Close: %v", err)
		}
		if _, err := l.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Read after Close: %v", err)
		}
		time.Sleep(5 * time.Second)
		got, err := io.ReadAll(peer)
		if err != nil || len(got) != n+len(bye) || !bytes.HasSuffix(got, bye) {
			t.Errorf("the peer got %d bytes of %d: %v", len(got), n+len(bye), err)
		}
		start := time.Now()
		<-l.Done()
		if d := time.Since(start); d > wire.DrainTimeout {
			t.Errorf("drained for %v", d)
		}
	})
}

func TestCloseGivesUpAPeerThatTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := pipe(t)
		block(t, l)
		start := time.Now()
		l.Close()
		<-l.Done()
		if d := time.Since(start); d != FlushTimeout {
			t.Errorf("took %v", d)
		}
	})
}

func TestAbortReleasesEverybody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := pipe(t)
		block(t, l)
		errs := make(chan error, 2)
		go func() { errs <- l.WaitRoom(nil) }()
		go func() {
			_, err := l.Read(make([]byte, 1))
			errs <- err
		}()
		gone := make(chan struct{})
		go func() {
			l.WaitBye(nil)
			close(gone)
		}()
		synctest.Wait()
		l.Abort()
		for range 2 {
			if err := <-errs; err == nil {
				t.Error("released without an error")
			}
		}
		<-gone
		<-l.Done()
	})
}

func TestWaitByeWaitsForTheCloseFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, peer := pipe(t)
		block(t, l)
		gone := make(chan struct{})
		go func() {
			l.WaitBye(nil)
			close(gone)
		}()
		l.Write(frame.AppendClose(nil, 1000, ""))
		synctest.Wait()
		select {
		case <-gone:
			t.Fatal("the frame cannot have left")
		default:
		}
		go io.Copy(io.Discard, peer)
		<-gone
	})
}

func TestMeterTellsEachArrivalOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := memnet.Pipe()
		defer theirs.Close()
		m := NewMeter(ours)
		defer m.Close()
		if _, ok := m.Take(); ok {
			t.Error("something came before anything came")
		}
		time.Sleep(time.Second)
		theirs.Write([]byte("x"))
		m.Read(make([]byte, 10))
		now := time.Now()
		time.Sleep(time.Second)
		if at, ok := m.Take(); !ok || !at.Equal(now) {
			t.Errorf("came at %v, %v", at, ok)
		}
		if _, ok := m.Take(); ok {
			t.Error("told twice")
		}
	})
}
