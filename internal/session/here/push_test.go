package here

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/internal/session/proto"
	"holdfast/internal/state"
)

// The sessions of a machine can be reached although the file of whom to call is
// damaged, and the log says what to do.
func TestADamagedPushFileTakesOnlyTheCallsAway(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, state.PushFile)
	if err := os.WriteFile(file, []byte(`{"v":1,"devices":{"phone":{"push":{"endpoint":"https://secret.exa`), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	h, err := New(Options{
		StateDir: dir, Home: dir, Machine: "mini", Program: "test", Log: slog.New(slog.NewTextHandler(&log, nil)),
		Push: &PushOptions{Known: func(string) bool { return true }},
	})
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := net.Pipe()
	served := make(chan struct{})
	go func() { // ends with the pipe; waited for below
		defer close(served)
		h.Serve(context.Background(), theirs, "phone")
	}()
	c, err := proto.Open(t.Context(), ours, proto.ClientOptions{Watch: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Call(t.Context(), proto.OpPushState, struct{}{}, nil, nil); err == nil {
		t.Error("notifications are offered")
	}
	c.Close()
	<-served
	h.Close()
	if s := log.String(); !strings.Contains(s, "move it away") || strings.Contains(s, "secret") {
		t.Errorf("the log says %s", s)
	}
	if b, err := os.ReadFile(file); err != nil || !strings.Contains(string(b), "secret") {
		t.Errorf("the file was changed: %s, %v", b, err)
	}
}
