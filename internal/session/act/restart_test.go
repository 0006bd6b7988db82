package act

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"holdfast/internal/session"
	"holdfast/internal/session/act/journal"
	"holdfast/internal/session/proto"
)

// childEnv makes this test binary an actor whose pane takes a text and never
// shows it, with the journal at the path that it names.
const childEnv = "HOLDFAST_TEST_ACTS"

func TestMain(m *testing.M) {
	if path := os.Getenv(childEnv); path != "" {
		actsUntilKilled(path)
		return
	}
	os.Exit(m.Run())
}

// stuck is a pane that says when it was pasted into.
type stuck struct{ *fakePane }

func (s stuck) Paste(ctx context.Context, b []byte) error {
	fmt.Println("pasted")
	<-ctx.Done()
	return ctx.Err()
}

func actsUntilKilled(path string) {
	j, err := journal.Open(path)
	if err != nil {
		panic(err)
	}
	a, err := New(Options{Journal: j, Pane: func(session.ID) (Pane, bool) { return stuck{shell()}, true }})
	if err != nil {
		panic(err)
	}
	a.Reply(context.Background(), proto.Reply{Session: id, Key: "k1", Text: "once"}, func(proto.Stage) {})
}

func journaled(t *testing.T, p *fakePane, path string) *Actor {
	t.Helper()
	j, err := journal.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	a, err := New(Options{Journal: j, Pane: func(asked session.ID) (Pane, bool) { return p, asked == id }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

func TestAReplyIsNotTypedAgainAfterAKill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childEnv+"="+path)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "pasted\n" {
		t.Fatalf("the child said %q, %v", line, err)
	}
	child.Process.Kill()
	child.Wait()

	p := shell()
	a := journaled(t, p, path)
	r := proto.Reply{Session: id, Key: "k1", Text: "once"}
	o, err := a.Reply(t.Context(), r, func(proto.Stage) {})
	if err != nil || o.State != proto.Unconfirmed || o.Reason == "" {
		t.Errorf("the repeat: %+v, %v", o, err)
	}
	r.Text = "another"
	_, err = a.Reply(t.Context(), r, func(proto.Stage) {})
	wantCode(t, err, proto.CodeKeyUsed)
	if len(p.pasted)+len(p.typed)+len(p.keys) != 0 {
		t.Errorf("typed again: %q %q %q", p.pasted, p.typed, p.keys)
	}
}

func TestWhatCameOfAReplyIsKnownAfterARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	p := shell()
	first := journaled(t, p, path)
	r := proto.Reply{Session: id, Key: "k1", Text: "once"}
	was, err := first.Reply(t.Context(), r, func(proto.Stage) {})
	if err != nil || was.State != proto.Accepted {
		t.Fatalf("the first: %+v, %v", was, err)
	}
	first.Close()
	second := journaled(t, p, path)
	again, err := second.Reply(t.Context(), r, func(proto.Stage) {})
	if err != nil || again.State != was.State || again.Evidence != was.Evidence || len(p.pasted) != 1 {
		t.Errorf("the repeat: %+v, %v; pasted %q", again, err, p.pasted)
	}
	// A refusal frees the key: nothing was typed.
	p.look.Dead = true
	r.Key = "k2"
	r.Secret = true
	_, err = second.Reply(t.Context(), r, func(proto.Stage) {})
	if err == nil {
		t.Fatal("a secret was typed where none is asked for")
	}
	p.look.Dead = false
	r.Secret = false
	third := journaled(t, p, path)
	if o, err := third.Reply(t.Context(), r, func(proto.Stage) {}); err != nil || o.State != proto.Accepted {
		t.Errorf("with a key that is free again: %+v, %v", o, err)
	}
}

func TestALateApprovalAfterARestartAnswersNoSecondDialog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	p := prompt()
	first := journaled(t, p, path)
	d := digest(t, first, p)
	p.on = func(p *fakePane, _, key string) {
		if key == "Enter" {
			p.shows("removed", "$ ")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := first.Approve(ctx, proto.Approve{Session: id, Digest: d.Digest, Role: session.Approve, Key: "k1"}, func(proto.Stage) {}); err != nil {
		t.Fatal(err)
	}
	first.Close()
	// The same words again, and another process.
	p2 := prompt()
	second := journaled(t, p2, path)
	_, err := second.Approve(ctx, proto.Approve{Session: id, Digest: d.Digest, Role: session.Approve, Key: "k2"}, func(proto.Stage) {})
	wantCode(t, err, proto.CodeDialogChanged)
	if len(p2.keys) != 0 {
		t.Errorf("pressed %q", p2.keys)
	}
	if e := digest(t, second, p2); e.Digest == d.Digest {
		t.Error("the second dialog has the digest of the first")
	}
}
