package here

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/session"
	"holdfast/internal/session/proto"
)

// patience bounds every wait, on a machine that has other work too.
const patience = 60 * time.Second

// desk is a tmux server with programs, a Here that watches it, and a device.
type desk struct {
	t      *testing.T
	dir    string
	socket string
	log    string
	here   *Here
	device *proto.Client
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	d := bareDesk(t, "s")
	d.tmux("-f", os.DevNull, "new-session", "-d", "-x", "100", "-y", "30", "-s", "base", "exec sleep 600")
	d.open(os.Environ())
	return d
}

// bareDesk is a place for a tmux server with a socket of that name, which ends
// with the test. Without tmux a bare go test skips, a full run fails.
func bareDesk(t *testing.T, socket string) *desk {
	t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil {
		if os.Getenv("HOLDFAST_TEST_ALL") == "1" {
			t.Fatalf("tmux is needed: %v", err)
		}
		t.Skip("tmux is not installed")
	}
	// A socket's path holds about 100 bytes.
	dir, err := os.MkdirTemp("", "hf")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	d := &desk{t: t, dir: dir, socket: filepath.Join(dir, socket), log: filepath.Join(dir, "log")}
	t.Cleanup(func() { exec.Command("tmux", "-S", d.socket, "kill-server").Run() })
	return d
}

// open watches the desk's server, and connects a device.
func (d *desk) open(environ []string) {
	d.t.Helper()
	var err error
	d.here, err = New(Options{
		StateDir: filepath.Join(d.dir, "state"), Home: d.dir, Environ: environ, Machine: "mini", Program: "test",
		Sockets: []string{d.socket}, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(d.here.Close)
	d.device = d.connect()
}

// connect opens a device of its own.
func (d *desk) connect() *proto.Client {
	d.t.Helper()
	ours, theirs := net.Pipe()
	var wg sync.WaitGroup
	wg.Go(func() { d.here.Serve(context.Background(), theirs, "phone") }) // ends with the pipe; waited for by the cleanup
	c, err := proto.Open(d.t.Context(), ours, proto.ClientOptions{Watch: true})
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() {
		c.Close()
		wg.Wait()
	})
	return c
}

func (d *desk) tmux(args ...string) string {
	d.t.Helper()
	out, err := exec.Command("tmux", append([]string{"-u", "-S", d.socket}, args...)...).CombinedOutput()
	if err != nil {
		d.t.Fatalf("tmux %q: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// start runs a command in a session of its own.
func (d *desk) start(name, command string) session.Session {
	d.t.Helper()
	d.tmux("new-session", "-d", "-x", "100", "-y", "30", "-s", name, "-c", d.dir, command)
	return d.until(name, "is listed", func(session.Session) bool { return true })
}

// tool runs the tool of tool_test.go, under the name that it imitates.
func (d *desk) tool(name, mode string) session.Session {
	d.t.Helper()
	link := filepath.Join(d.dir, "claude")
	own, err := os.Executable()
	if err != nil {
		d.t.Fatal(err)
	}
	if err := os.Symlink(own, link); err != nil && !errors.Is(err, os.ErrExist) {
		d.t.Fatal(err)
	}
	d.start(name, fmt.Sprintf("%s='%s' %s_LOG='%s' exec %s", toolEnv, mode, toolEnv, d.log, link))
	return d.until(name, "drawn", func(s session.Session) bool {
		return s.Tool == "claude" && (s.Status.State == session.Idle || asks(s))
	})
}

// until waits until the device knows something of a session.
func (d *desk) until(name, what string, is func(session.Session) bool) session.Session {
	d.t.Helper()
	var last session.Session
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		all, _ := d.device.Sessions()
		for _, s := range all {
			if s.Name == name {
				if last = s; is(s) {
					return s
				}
			}
		}
	}
	d.t.Fatalf("%s: not %s within %v: %+v\n%s", name, what, patience, last.Status, d.tmux("capture-pane", "-p", "-t", name))
	return last
}

func asks(s session.Session) bool { return s.Status.Dialog != nil }

// has waits until the log of the tool holds a line.
func (d *desk) has(line string) {
	d.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if strings.Contains(d.said(), line+"\n") {
			return
		}
	}
	d.t.Fatalf("the tool did not get %s:\n%s", line, d.said())
}

func (d *desk) said() string {
	b, _ := os.ReadFile(d.log) // before its first word there is no file
	return string(b)
}

func (d *desk) reply(r proto.Reply) (proto.Outcome, error) {
	d.t.Helper()
	var o proto.Outcome
	if r.Key == "" {
		r.Key = fmt.Sprint("k", time.Now().UnixNano())
	}
	return o, d.device.Call(d.t.Context(), proto.OpReply, r, &o, nil)
}

func (d *desk) approve(c *proto.Client, r proto.Approve) (proto.Outcome, error) {
	var o proto.Outcome
	return o, c.Call(d.t.Context(), proto.OpApprove, r, &o, nil)
}

func refused(t *testing.T, err error, code proto.Code) *proto.Error {
	t.Helper()
	var e *proto.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Fatalf("error %v, want %s", err, code)
	}
	return e
}

func TestReplyReachesTheTool(t *testing.T) {
	d := newDesk(t)
	s := d.tool("work", "plain")
	d.tmux("copy-mode", "-t", "work")
	text := "はい、続けて 👩‍💻\n\tsecond line" + pasteEnd + "\x03 end\n"
	o, err := d.reply(proto.Reply{Session: s.ID, Text: text})
	if err != nil || o.State != proto.Accepted {
		t.Fatalf("outcome %+v, %v", o, err)
	}
	d.has(`paste "はい、続けて 👩\u200d💻\n\tsecond line[201~ end"`)
	d.has(`submit "はい、続けて 👩\u200d💻\n\tsecond line[201~ end"`)

	// A text of the largest size.
	long := strings.Repeat("0123456789abcde ", proto.MaxTextBytes/16)
	if o, err := d.reply(proto.Reply{Session: s.ID, Text: long}); err != nil || o.State == proto.Accepted && !strings.Contains(d.said(), fmt.Sprintf("submit %q\n", long)) {
		t.Errorf("a long text: %+v, %v", o, err)
	}
}

func TestWhatStandsInTheInputBox(t *testing.T) {
	d := newDesk(t)
	s := d.tool("work", "plain")
	if o, err := d.reply(proto.Reply{Session: s.ID, Text: "half a thought", Draft: true}); err != nil || o.State != proto.Accepted {
		t.Fatalf("draft: %+v, %v", o, err)
	}
	_, err := d.reply(proto.Reply{Session: s.ID, Text: "another"})
	if e := refused(t, err, proto.CodeComposer); e.Text != "half a thought" {
		t.Errorf("what stands there is told as %q", e.Text)
	}
	if o, err := d.reply(proto.Reply{Session: s.ID, Text: " and the rest", Append: true}); err != nil || o.State != proto.Accepted {
		t.Fatalf("append: %+v, %v", o, err)
	}
	d.has(`submit "half a thought and the rest"`)
}

// Two dialogs in a row, and a late tap of another device for the first one.
func TestALateTapDoesNotAnswerTheNextDialog(t *testing.T) {
	d := newDesk(t)
	d.tool("work", "ask rm -r build")
	s := d.until("work", "asking", asks)
	digest := s.Status.Dialog.Digest
	_, err := d.reply(proto.Reply{Session: s.ID, Text: "1"})
	refused(t, err, proto.CodeDialogOpen)

	o, err := d.approve(d.device, proto.Approve{Session: s.ID, Digest: digest, Role: session.Approve})
	if err != nil || o.State != proto.Accepted {
		t.Fatalf("outcome %+v, %v", o, err)
	}
	d.has(`answer "rm -r build" 1`)
	if o, err := d.reply(proto.Reply{Session: s.ID, Text: "ask rm -r /"}); err != nil || o.State != proto.Accepted {
		t.Fatalf("outcome %+v, %v", o, err)
	}
	// Its words tell the second dialog: the first one's digest is another one, too, once it is answered.
	s = d.until("work", "asking again", func(s session.Session) bool { return asks(s) && strings.Contains(s.Status.Dialog.Text, "rm -r /") })
	_, err = d.approve(d.connect(), proto.Approve{Session: s.ID, Digest: digest, Role: session.Approve})
	if e := refused(t, err, proto.CodeDialogChanged); e.Dialog == nil || !strings.Contains(e.Dialog.Text, "rm -r /") || e.Dialog.Digest != s.Status.Dialog.Digest {
		t.Errorf("the refusal shows %+v", e.Dialog)
	}
	if strings.Contains(d.said(), `answer "rm -r /"`) {
		t.Fatal("the late tap answered the second dialog")
	}
	if o, err := d.approve(d.device, proto.Approve{Session: s.ID, Digest: s.Status.Dialog.Digest, Role: session.Deny}); err != nil || o.State != proto.Accepted {
		t.Fatalf("deny: %+v, %v", o, err)
	}
	d.has(`answer "rm -r /" 3`)
}

// Two devices tap at once, and the tool asks the same again: one tap, one answer.
func TestTwoTapsAnswerOneOfTwoDialogsWithTheSameWords(t *testing.T) {
	d := newDesk(t)
	s := d.tool("work", "plain")
	if o, err := d.reply(proto.Reply{Session: s.ID, Text: "twice rm -r build"}); err != nil || o.State != proto.Accepted {
		t.Fatalf("outcome %+v, %v", o, err)
	}
	s = d.until("work", "asking", asks)
	devices := []*proto.Client{d.device, d.connect(), d.connect()}
	errs := make([]error, len(devices))
	var wg sync.WaitGroup
	for i, c := range devices {
		wg.Go(func() {
			_, errs[i] = d.approve(c, proto.Approve{Session: s.ID, Digest: s.Status.Dialog.Digest, Option: "1"})
		})
	}
	wg.Wait()
	if n := strings.Count(d.said(), "answer "); n != 1 {
		t.Fatalf("%d dialogs were answered: %v\n%s", n, errs, d.said())
	}
	if err := errors.Join(errs...); proto.CodeOf(err) != proto.CodeDialogChanged {
		t.Errorf("errors %v", errs)
	}
}

// A script asks the same thing twice, and the first is answered at the desk before
// the tap of a device arrives.
func TestALateTapAfterAnAnswerAtTheDesk(t *testing.T) {
	d := newDesk(t)
	d.start("script", `bash -c 'while read -p "Continue? [y/N] " x; do echo "got $x" >> `+d.log+`; done'`)
	s := d.until("script", "asking", asks)
	d.tmux("send-keys", "-t", "=script:", "n", "Enter")
	d.has("got n")
	_, err := d.approve(d.device, proto.Approve{Session: s.ID, Digest: s.Status.Dialog.Digest, Role: session.Approve})
	e := refused(t, err, proto.CodeDialogChanged)
	if e.Dialog != nil && e.Dialog.Digest == s.Status.Dialog.Digest {
		t.Error("the second dialog has the digest of the first")
	}
	s = d.until("script", "asking again", func(now session.Session) bool { return asks(now) && now.Status.Dialog.Digest != s.Status.Dialog.Digest })
	if o, err := d.approve(d.device, proto.Approve{Session: s.ID, Digest: s.Status.Dialog.Digest, Role: session.Approve}); err != nil || o.State != proto.Accepted {
		t.Fatalf("outcome %+v, %v", o, err)
	}
	d.has("got y")
}

// A dialog that opens between the paste and Enter is not answered by Enter.
func TestADialogThatOpensWhileTyping(t *testing.T) {
	d := newDesk(t)
	s := d.tool("work", "plain")
	if o, err := d.reply(proto.Reply{Session: s.ID, Text: "late"}); err != nil || o.State != proto.Accepted {
		t.Fatalf("outcome %+v, %v", o, err)
	}
	o, err := d.reply(proto.Reply{Session: s.ID, Text: "hello"})
	if err != nil || o.State != proto.Unconfirmed || o.Dialog == nil {
		t.Fatalf("outcome %+v, %v", o, err)
	}
	if strings.Contains(d.said(), `submit "hello"`) || strings.Contains(d.said(), "answer") {
		t.Errorf("Enter was pressed:\n%s", d.said())
	}
}

func TestAPasswordReachesTheProgramOnly(t *testing.T) {
	d := newDesk(t)
	out := filepath.Join(d.dir, "secret")
	d.start("login", "bash -c 'read -s -p Password: x; echo; printf %s \"$x\" > "+out+"; sleep 600'")
	s := d.until("login", "asking for a password", func(s session.Session) bool { return s.Status.Kind == session.Password })
	_, err := d.reply(proto.Reply{Session: s.ID, Text: "pä$$ 'x"})
	refused(t, err, proto.CodePassword)
	o, err := d.reply(proto.Reply{Session: s.ID, Text: "pä$$ 'x", Secret: true})
	if err != nil || o.State != proto.Accepted {
		t.Fatalf("outcome %+v, %v", o, err)
	}
	if b, err := os.ReadFile(out); err != nil || string(b) != "pä$$ 'x" {
		t.Errorf("the program read %q, %v", b, err)
	}
	if seen := d.tmux("capture-pane", "-p", "-S", "-", "-t", "login"); strings.Contains(seen, "$$") {
		t.Errorf("the terminal shows it: %s", seen)
	}
	if buffers := d.tmux("list-buffers"); buffers != "" {
		t.Errorf("tmux keeps a buffer: %s", buffers)
	}
}

func TestUploadInsertsItsPath(t *testing.T) {
	d := newDesk(t)
	s := d.tool("work", "plain")
	var up proto.Uploading
	if err := d.device.Call(t.Context(), proto.OpUpload, proto.Upload{Name: "../../my photo.png", Size: 3, Session: s.ID}, &up, nil); err != nil {
		t.Fatal(err)
	}
	var done proto.Uploaded
	if err := d.device.Call(t.Context(), proto.OpPiece, proto.Piece{Upload: up.Upload, Data: []byte{1, 2, 3}}, &done, nil); err != nil {
		t.Fatal(err)
	}
	if !done.Inserted || filepath.Dir(done.Path) != filepath.Join(d.dir, "state", "uploads") || !strings.HasSuffix(done.Path, "-my_photo.png") {
		t.Fatalf("uploaded %+v", done)
	}
	st, err := os.Stat(done.Path)
	if err != nil || st.Mode().Perm() != 0o600 || st.Size() != 3 {
		t.Errorf("%v, %v", st, err)
	}
	d.has(fmt.Sprintf("paste %q", done.Path+" "))
	if strings.Contains(d.said(), "submit") {
		t.Error("it was sent")
	}
}

func TestKeysScrollbackAndEnd(t *testing.T) {
	d := newDesk(t)
	s := d.start("shell", "exec cat")
	for _, keys := range [][]string{{"a", "b", "Enter"}, {"C-d"}} {
		if err := d.device.Call(t.Context(), proto.OpKeys, proto.Keys{Session: s.ID, Keys: keys}, nil, nil); err != nil {
			t.Fatal(err)
		}
		if keys[0] == "a" {
			d.until("shell", "showing it", func(session.Session) bool {
				return strings.Contains(d.tmux("capture-pane", "-p", "-t", "shell"), "ab\nab")
			})
			var got scrolled
			if err := d.device.Call(t.Context(), proto.OpScrollback, proto.Scrollback{Session: s.ID}, &got, nil); err != nil || len(got.Lines) != 2 || got.Lines[1].Text() != "ab" {
				t.Errorf("scrollback %+v, %v", got, err)
			}
		}
	}
	b := d.until("base", "listed", func(session.Session) bool { return true })
	err := d.device.Call(t.Context(), proto.OpEnd, proto.End{Session: b.ID, Confirm: "bas"}, nil, nil)
	refused(t, err, proto.CodeNotConfirmed)
	second := d.start("other", "exec sleep 600")
	if err := d.device.Call(t.Context(), proto.OpEnd, proto.End{Session: second.ID, Confirm: "other"}, nil, nil); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		all, _ := d.device.Sessions()
		there := false
		for _, s := range all {
			there = there || s.ID == second.ID
		}
		if !there {
			break
		}
		if time.Now().After(end) {
			t.Fatal("an ended session is still listed")
		}
	}
	_, err = d.reply(proto.Reply{Session: second.ID, Text: "x"})
	refused(t, err, proto.CodeNoSession)
}
