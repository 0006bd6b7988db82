package answer

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/session"
	"holdfast/internal/session/proto"
)

// fake is a machine whose sessions a test plays.
type fake struct {
	mu      sync.Mutex
	all     []session.Session
	changes chan Event
	block   chan struct{} // replies wait for it, where it is not nil
	did     []string
	files   map[string]*bytes.Buffer
	kept    []string
}

func newFake(all ...session.Session) *fake {
	return &fake{all: all, changes: make(chan Event), files: map[string]*bytes.Buffer{}}
}

func (f *fake) note(format string, args ...any) {
	f.mu.Lock()
	f.did = append(f.did, fmt.Sprintf(format, args...))
	f.mu.Unlock()
}

func (f *fake) done() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.did)
}

func (f *fake) backend() Backend {
	return Backend{Sessions: f, Actions: f, Conversations: f, Files: f, Starter: f, Looks: f}
}

func (f *fake) Subscribe(context.Context) ([]session.Session, <-chan Event, func()) {
	return f.all, f.changes, func() {}
}
func (f *fake) Refresh(_ context.Context, id session.ID) error { f.note("refresh %s", id); return nil }
func (f *fake) Seen(id session.ID) error {
	if id == "none:%1" {
		return proto.Errorf(proto.CodeNoSession, "there is no such session any more")
	}
	f.note("seen %s", id)
	return nil
}
func (f *fake) Reply(ctx context.Context, r proto.Reply, receipt func(proto.Stage)) (proto.Outcome, error) {
	receipt(proto.Sent)
	if f.block != nil {
		select {
		case <-f.block:
		case <-ctx.Done():
			return proto.Outcome{}, ctx.Err()
		}
	}
	receipt(proto.Typed)
	f.note("reply %s %q", r.Session, r.Text)
	return proto.Outcome{State: proto.Accepted, Evidence: "the input box emptied"}, nil
}
func (f *fake) Approve(_ context.Context, r proto.Approve, receipt func(proto.Stage)) (proto.Outcome, error) {
	if r.Digest != "d1" {
		return proto.Outcome{}, &proto.Error{Code: proto.CodeDialogChanged, Message: "another dialog is open now", Dialog: &session.Dialog{Digest: "d1", Title: "Run rm?"}}
	}
	return proto.Outcome{State: proto.Unconfirmed, Reason: "nothing was seen"}, nil
}
func (f *fake) Keys(_ context.Context, r proto.Keys) error {
	f.note("keys %s", strings.Join(r.Keys, " "))
	return nil
}
func (f *fake) Page(_ context.Context, r proto.Page) (any, error) {
	return map[string]any{"limit": r.Limit, "before": r.Before}, nil
}
func (f *fake) Search(context.Context, proto.Search) (any, error) {
	return strings.Repeat("x", proto.MaxLineBytes), nil // more than a line takes
}
func (f *fake) Blob(_ context.Context, r proto.Blob) (proto.BlobPiece, error) {
	return proto.BlobPiece{Data: make([]byte, r.Bytes), End: true}, nil
}
func (f *fake) Scrollback(context.Context, proto.Scrollback) (any, error) { return nothing{}, nil }
func (f *fake) Follow(ctx context.Context, r proto.Follow, emit func(any) error) error {
	for i := 0; ; i++ {
		if i == 3 && r.From == "ends" {
			return proto.Errorf(proto.CodeNotFound, "the transcript is gone")
		}
		if err := emit(map[string]int{"n": i}); err != nil {
			f.note("follow ended")
			return err
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			f.note("follow ended")
			return ctx.Err()
		}
	}
}
func (f *fake) Look(device, view string, ids []session.ID) proto.Looking {
	f.note("look %s %s %v", device, view, ids)
	return proto.Looking{Until: time.Now().Add(proto.LeaseTime).UTC()}
}
func (f *fake) Commands(context.Context) (proto.Commands, error) {
	return proto.Commands{Commands: []proto.Command{{Name: "shell", Label: "Shell"}}, Dirs: []string{"/home/me"}}, nil
}
func (f *fake) New(context.Context, proto.New) (proto.Started, error) {
	return proto.Started{Session: "k3f9:%9"}, nil
}
func (f *fake) End(_ context.Context, r proto.End) error {
	if r.Confirm != "work" {
		return proto.Errorf(proto.CodeNotConfirmed, "confirm by name")
	}
	return nil
}
func (f *fake) Attach(context.Context, proto.On) (proto.Attach, error) {
	return proto.Attach{Args: []string{"tmux", "attach"}, Fit: []string{"tmux"}}, nil
}

// fakeFile is an upload.
type fakeFile struct {
	f    *fake
	name string
	buf  bytes.Buffer
}

func (f *fake) Create(name string) (File, error) { return &fakeFile{f: f, name: name}, nil }
func (x *fakeFile) Write(p []byte) (int, error)  { return x.buf.Write(p) }
func (x *fakeFile) Keep() (string, error) {
	x.f.note("kept %d bytes", x.buf.Len())
	return "/up/" + x.name, nil
}
func (x *fakeFile) Discard() { x.f.note("discarded %s", x.name) }
func pane(id, name string) session.Session {
	return session.Session{ID: session.ID(id), Name: name, Status: session.Status{State: session.Idle}}
}
func quiet() *slog.Logger                            { return slog.New(slog.DiscardHandler) }
func line(t *testing.T, b []byte) (m map[string]any) { t.Helper(); mustJSON(t, b, &m); return m }
func mustJSON(t *testing.T, b []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatalf("%v in %q", err, b)
	}
}

// device is the test's end of a connection.
type device struct {
	t     *testing.T
	conn  net.Conn
	lines *bufio.Reader
	ended chan error
}

// connect serves f, says hello and reads the machine's.
func connect(t *testing.T, f *fake, hello string) *device {
	t.Helper()
	ours, theirs := net.Pipe()
	d := &device{t: t, conn: ours, lines: bufio.NewReaderSize(ours, 2*proto.MaxLineBytes), ended: make(chan error, 1)}
	go func() { // ends with the pipe; hangUp waits
		d.ended <- Serve(t.Context(), theirs, Options{Machine: "mini", Program: "holdfast test", Device: "phone", Backend: f.backend(), Log: quiet()})
	}()
	said := make(chan struct{})
	go func() { // ends when the machine has read it
		defer close(said)
		if hello != "" {
			io.WriteString(ours, hello+"\n")
		}
	}()
	if m := d.next(); m["op"] != "hello" || m["machine"] != "mini" || m["version"] != 1.0 {
		t.Fatalf("hello %v", m)
	}
	<-said
	return d
}

func (d *device) next() map[string]any {
	d.t.Helper()
	b, err := d.lines.ReadBytes('\n')
	if err != nil {
		d.t.Fatalf("read: %v", err)
	}
	return line(d.t, b)
}

func (d *device) send(format string, args ...any) {
	d.t.Helper()
	if _, err := fmt.Fprintf(d.conn, format+"\n", args...); err != nil {
		d.t.Fatal(err)
	}
}

// until reads on to a message of an op, and skips receipts and changes.
func (d *device) until(op string) map[string]any {
	d.t.Helper()
	for {
		if m := d.next(); m["op"] == op {
			return m
		}
	}
}

func (d *device) hangUp() error {
	d.conn.Close()
	return <-d.ended
}

const hello = `{"op":"hello","version":1,"program":"test"}`

func TestSnapshotAndChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(pane("k3f9:%1", "work"), pane("k3f9:%2", "play"))
		d := connect(t, f, hello)
		m := d.next()
		if m["op"] != "snapshot" || len(m["sessions"].([]any)) != 2 || m["more"] != nil {
			t.Fatalf("snapshot %v", m)
		}
		s := pane("k3f9:%1", "renamed")
		f.changes <- Event{Session: &s}
		if m := d.next(); m["op"] != "change" || m["session"].(map[string]any)["name"] != "renamed" {
			t.Fatalf("change %v", m)
		}
		f.changes <- Event{Gone: "k3f9:%1"}
		began := time.Now()
		if m := d.next(); m["op"] != "gone" || m["session"] != "k3f9:%1" {
			t.Fatalf("gone %v", m)
		}
		if took := time.Since(began); took != proto.MinChangeInterval {
			t.Errorf("the second change of a session came after %v", took)
		}
		d.hangUp()
	})
}

// A thousand changes in a second are at most ten messages a second, and the last
// state arrives.
func TestChangesAreGatheredAndNoneIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		d := connect(t, f, hello)
		d.next()
		go func() { // ends after its changes, which Serve takes
			for i := range 1000 {
				s := pane("k3f9:%1", fmt.Sprint(i))
				f.changes <- Event{Session: &s}
				time.Sleep(time.Millisecond)
			}
		}()
		began, messages := time.Now(), 0
		for {
			messages++
			if d.next()["session"].(map[string]any)["name"] == "999" {
				break
			}
		}
		if took := time.Since(began); messages > int(took/proto.MinChangeInterval)+1 || messages < 5 {
			t.Errorf("%d messages in %v", messages, took)
		}
		d.hangUp()
	})
}

// A reader that stands still costs one entry a session, and is told to reopen
// when it goes on.
func TestASlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		d := connect(t, f, hello)
		d.next()
		for i := range 10_000 {
			s := pane(fmt.Sprintf("k3f9:%%%d", i%5), fmt.Sprint(i))
			f.changes <- Event{Session: &s}
		}
		time.Sleep(2 * slowWrite)
		messages := 0
		for {
			m := d.next()
			if m["op"] == "bye" {
				if m["code"] != string(proto.ByeSlow) {
					t.Errorf("bye %v", m)
				}
				break
			}
			messages++
		}
		if messages > 5 {
			t.Errorf("%d messages waited for five sessions", messages)
		}
		if _, err := d.lines.ReadByte(); err != io.EOF {
			t.Errorf("after the bye: %v", err)
		}
		d.hangUp()
	})
}

func TestSnapshotsOfManySessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all []session.Session
		for i := range 300 {
			s := pane(fmt.Sprintf("k3f9:%%%d", i), strings.Repeat("n", 1000))
			s.Status.Dialog = &session.Dialog{Digest: "d", Text: strings.Repeat("\x01", 1<<20), Options: make([]session.Option, 500)}
			all = append(all, s)
		}
		d := connect(t, newFake(all...), hello)
		got := 0
		for {
			m := d.next()
			got += len(m["sessions"].([]any))
			if m["more"] == nil {
				break
			}
		}
		if got != 300 {
			t.Errorf("%d sessions", got)
		}
		d.hangUp()
	})
}

func TestRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		d := connect(t, f, `{"op":"hello","version":7,"watch":false,"later":[1]}`)
		for _, c := range []struct{ in, op, has string }{
			{`{"op":"ping","id":1}`, "answer", `"now":`},
			{`{"op":"ping","id":1,"later":{"x":1}}`, "answer", `"now":`},
			{`{"op":"conversation","id":2,"session":"k3f9:%1"}`, "answer", `"limit":50`},
			{`{"op":"conversation","id":2,"session":"k3f9:%1","limit":201}`, "error", `"code":"limit"`},
			{`{"op":"conversation","id":2}`, "error", `"code":"syntax"`},
			{`{"op":"search","id":3,"session":"k3f9:%1","query":"a"}`, "error", `"code":"limit"`},
			{`{"op":"search","id":3,"session":"k3f9:%1","query":""}`, "error", `"code":"syntax"`},
			{`{"op":"blob","id":3,"session":"k3f9:%1","blob":"b","bytes":3}`, "answer", `"data":"AAAA","end":true`},
			{`{"op":"blob","id":3,"session":"k3f9:%1","blob":"b","offset":-1}`, "error", `"code":"syntax"`},
			{`{"op":"seen","id":4,"session":"none:%1"}`, "error", `"code":"no-session"`},
			{`{"op":"seen","id":4,"session":"k3f9:%1"}`, "answer", `"result":{}`},
			{`{"op":"look","id":5,"sessions":["k3f9:%1"]}`, "answer", `"until":`},
			{`{"op":"look","id":5,"sessions":["k3f9:%1"],"view":"q-1_"}`, "answer", `"until":`},
			{`{"op":"look","id":5,"sessions":["k3f9:%1"],"view":"a b"}`, "error", `"code":"syntax"`},
			{`{"op":"look","id":5,"sessions":["k3f9:%1"],"view":"` + strings.Repeat("v", 65) + `"}`, "error", `"code":"syntax"`},
			{`{"op":"approve","id":6,"session":"k3f9:%1","digest":"d0","role":"approve"}`, "error", `"dialog":{"digest":"d1","title":"Run rm?"}`},
			{`{"op":"approve","id":6,"session":"k3f9:%1","digest":"d1","role":"approve","option":"1"}`, "error", `"code":"syntax"`},
			{`{"op":"approve","id":6,"session":"k3f9:%1","digest":"d1","option":"1"}`, "answer", `"state":"unconfirmed"`},
			{`{"op":"reply","id":7,"session":"k3f9:%1","text":"x"}`, "error", `"code":"syntax"`},
			{`{"op":"reply","id":7,"session":"k3f9:%1","key":"a b","text":"x"}`, "error", `"code":"syntax"`},
			{`{"op":"keys","id":8,"session":"k3f9:%1","keys":["Enter","-X"]}`, "error", `"code":"syntax"`},
			{`{"op":"keys","id":8,"session":"k3f9:%1","keys":[]}`, "error", `"code":"limit"`},
			{`{"op":"end","id":9,"session":"k3f9:%1","confirm":"other"}`, "error", `"code":"not-confirmed"`},
			{`{"op":"new","id":9,"dir":"~","command":"shell"}`, "answer", `"session":"k3f9:%9"`},
			{`{"op":"nosuch","id":10}`, "error", `"code":"unknown-op"`},
			{`{"op":"ping"}`, "error", `"id":0`},
			{`{"op":"ping","id":9007199254740992}`, "error", `"id":0`},
			{`not json`, "error", `"id":0`},
			{`{"op":"seen","id":11,"session":5}`, "error", `"code":"syntax"`},
			{`{"op":"unfollow","id":12,"follow":99}`, "error", `"code":"not-found"`},
			{`{"op":"upload","id":13,"name":"x","size":33554433}`, "error", `"code":"limit"`},
			{`{"op":"piece","id":13,"upload":"none","offset":0,"data":""}`, "error", `"code":"not-found"`},
		} {
			d.send("%s", c.in)
			b, err := d.lines.ReadBytes('\n')
			if err != nil {
				t.Fatal(err)
			}
			m := line(t, b)
			if m["op"] != c.op || !strings.Contains(string(b), c.has) {
				t.Errorf("%s: got %s, want %s with %s", c.in, b, c.op, c.has)
			}
		}
		if err := d.hangUp(); err != nil {
			t.Errorf("end: %v", err)
		}
	})
}

func TestTooManyRequestsAndAnIDThatIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.block = make(chan struct{})
		d := connect(t, f, `{"op":"hello","version":1,"watch":false}`)
		for i := range proto.MaxRequests {
			d.send(`{"op":"reply","id":%d,"session":"k3f9:%%%d","key":"k%d","text":"x"}`, i+1, i, i)
			if m := d.next(); m["op"] != "receipt" || m["state"] != "sent" {
				t.Fatalf("receipt %v", m)
			}
		}
		d.send(`{"op":"ping","id":1}`)
		if m := d.next(); m["code"] != "syntax" {
			t.Errorf("an id that is open: %v", m)
		}
		d.send(`{"op":"ping","id":99}`)
		if m := d.next(); m["code"] != "busy" {
			t.Errorf("one too many: %v", m)
		}
		close(f.block)
		for range proto.MaxRequests {
			d.until("answer")
		}
		d.send(`{"op":"ping","id":1}`)
		d.until("answer")
		d.hangUp()
	})
}

// caller is a Push; its Subscribe is another one than that of sessions.
type caller struct{ *fake }

func (c caller) Subscribe(device string, r proto.PushSubscribe) (proto.PushState, error) {
	c.note("push to %s as %s at %s", device, r.As, r.Endpoint)
	return proto.PushState{On: true, Service: "push.example"}, nil
}
func (c caller) Unsubscribe(device string) error {
	c.note("no push to %s", device)
	return nil
}
func (c caller) Test(context.Context, string) (proto.PushState, error) {
	return proto.PushState{}, proto.Errorf(proto.CodeNotFound, "not asked for")
}
func (c caller) State(device string) proto.PushState { return proto.PushState{Service: device} }

func TestPushRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		f := newFake()
		ended := make(chan error, 1)
		go func() { // ends with the pipe; waited for below
			ended <- Serve(t.Context(), theirs, Options{Device: "phone", Backend: Backend{Sessions: f, Push: caller{f}}, Log: quiet()})
		}()
		d := &device{t: t, conn: ours, lines: bufio.NewReader(ours), ended: ended}
		if m := d.next(); fmt.Sprint(m["features"]) != "[ping push-state push-subscribe push-test push-unsubscribe refresh seen]" {
			t.Errorf("features %v", m["features"])
		}
		d.send(`{"op":"hello","version":1,"watch":false}`)
		for _, as := range []string{"", "short", "has spaces in it, too", strings.Repeat("x", 65)} {
			d.send(`{"op":"push-subscribe","id":1,"endpoint":"https://x","as":%q}`, as)
			if m := d.next(); m["code"] != "syntax" {
				t.Errorf("as %q: %v", as, m)
			}
		}
		d.send(`{"op":"push-subscribe","id":1,"endpoint":"https://x","as":"abcdefghijklmnop"}`)
		if m := d.next(); m["result"].(map[string]any)["on"] != true {
			t.Errorf("%v", m)
		}
		d.send(`{"op":"push-state","id":2}`)
		if m := d.next(); m["result"].(map[string]any)["service"] != "phone" {
			t.Errorf("%v", m)
		}
		d.send(`{"op":"push-test","id":3}`)
		if m := d.next(); m["code"] != "not-found" {
			t.Errorf("%v", m)
		}
		d.send(`{"op":"push-unsubscribe","id":4}`)
		d.until("answer")
		if got := f.done(); !slices.Equal(got, []string{"push to phone as abcdefghijklmnop at https://x", "no push to phone"}) {
			t.Errorf("did %q", got)
		}
		d.hangUp()
	})
}

// Keys and replies of one session are done in the order in which they were sent.
func TestOneSessionIsActedOnInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		d := connect(t, f, `{"op":"hello","version":1,"watch":false}`)
		var want []string
		go func() { // ends with its answers, which are counted below
			for i := range 200 {
				if i >= proto.MaxRequests {
					time.Sleep(time.Millisecond) // the answers come
				}
				d.send(`{"op":"keys","id":%d,"session":"k3f9:%%1","keys":["C-%c"]}`, i+1, 'a'+i%26)
			}
		}()
		for i := range 200 {
			want = append(want, fmt.Sprintf("keys C-%c", 'a'+i%26))
			if m := d.next(); m["op"] != "answer" {
				t.Fatalf("%v", m)
			}
		}
		if got := f.done(); !slices.Equal(got, want) {
			t.Errorf("done in another order: %v", got[:20])
		}
		d.hangUp()
	})
}

func TestUpload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		d := connect(t, f, `{"op":"hello","version":1,"watch":false}`)
		begin := func(size int, more string) string {
			d.send(`{"op":"upload","id":1,"name":"a.png","size":%d%s}`, size, more)
			return d.until("answer")["result"].(map[string]any)["upload"].(string)
		}
		up := begin(5, `,"session":"k3f9:%1"`)
		// Without waiting for the first answer.
		d.send(`{"op":"piece","id":1,"upload":%q,"offset":0,"data":"AAAA"}`, up)
		go d.send(`{"op":"piece","id":2,"upload":%q,"offset":3,"data":"AAA="}`, up)
		first, second := d.until("answer"), d.until("answer")
		if first["id"] != 1.0 {
			first, second = second, first
		}
		r := second["result"].(map[string]any)
		if r["path"] != "/up/a.png" || r["inserted"] != true || r["received"] != 5.0 {
			t.Errorf("uploaded %v", r)
		}
		if got := f.done(); !slices.Equal(got, []string{"kept 5 bytes", `reply k3f9:%1 "/up/a.png "`}) {
			t.Errorf("did %q", got)
		}
		up = begin(3, "")
		d.send(`{"op":"piece","id":3,"upload":%q,"offset":1,"data":"AA=="}`, up)
		if m := d.next(); m["code"] != "syntax" {
			t.Errorf("a piece that leaves a gap: %v", m)
		}
		up = begin(2, "")
		d.send(`{"op":"piece","id":3,"upload":%q,"offset":0,"data":"AAAA"}`, up)
		if m := d.next(); m["code"] != "limit" {
			t.Errorf("more than was said: %v", m)
		}
		for range proto.MaxUploads {
			begin(10, "")
		}
		d.send(`{"op":"upload","id":1,"name":"b","size":1}`)
		if m := d.next(); m["code"] != "limit" {
			t.Errorf("one upload too many: %v", m)
		}
		d.hangUp()
		if n := strings.Count(strings.Join(f.done(), " "), "discarded"); n != 2+proto.MaxUploads {
			t.Errorf("%d files were discarded", n)
		}
	})
}

func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		d := connect(t, f, `{"op":"hello","version":1,"watch":false}`)
		d.send(`{"op":"follow","id":5,"session":"k3f9:%%1"}`)
		if m := d.next(); m["op"] != "answer" || m["id"] != 5.0 {
			t.Fatalf("follow: %v", m)
		}
		for i := range 3 {
			if m := d.next(); m["op"] != "items" || m["id"] != 5.0 || m["result"].(map[string]any)["n"] != float64(i) {
				t.Fatalf("items: %v", m)
			}
		}
		d.send(`{"op":"ping","id":5}`)
		if m := d.until("error"); m["code"] != "syntax" {
			t.Errorf("the id of a follow: %v", m)
		}
		for i := range proto.MaxFollows - 1 {
			d.send(`{"op":"follow","id":%d,"session":"k3f9:%%1"}`, 10+i)
			d.until("answer")
		}
		d.send(`{"op":"follow","id":20,"session":"k3f9:%%1"}`)
		if m := d.until("error"); m["code"] != "limit" {
			t.Errorf("one follow too many: %v", m)
		}
		d.send(`{"op":"unfollow","id":6,"follow":5}`)
		d.until("answer")
		synctest.Wait()
		if !slices.Contains(f.done(), "follow ended") {
			t.Error("unfollow did not end the follow")
		}
		d.send(`{"op":"follow","id":21,"session":"k3f9:%%1","from":"ends"}`)
		for {
			if m := d.until("error"); m["id"] == 21.0 && m["code"] == "not-found" {
				break
			}
		}
		d.hangUp()
	})
}

func TestBadBeginnings(t *testing.T) {
	for name, c := range map[string]struct{ say, code string }{
		"no hello":        {`{"op":"ping","id":1}`, "syntax"},
		"no JSON":         {`SSH-2.0-OpenSSH`, "syntax"},
		"old":             {`{"op":"hello","version":0}`, "version"},
		"an endless line": {strings.Repeat("x", proto.MaxLineBytes+2), "syntax"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := connect(t, newFake(), "")
				go io.WriteString(d.conn, c.say+"\n")
				if m := d.next(); m["op"] != "bye" || m["code"] != c.code {
					t.Errorf("%v", m)
				}
				if err := d.hangUp(); err == nil {
					t.Error("no error")
				}
			})
		})
	}
	t.Run("silence", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d := connect(t, newFake(), "")
			began := time.Now()
			if err := <-d.ended; err == nil || time.Since(began) != helloTimeout {
				t.Errorf("ended after %v: %v", time.Since(began), err)
			}
			d.conn.Close()
		})
	})
}

func TestTheMachineEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		ours, theirs := net.Pipe()
		f := newFake()
		ended := make(chan error, 1)
		go func() { // ends with ctx; waited for below
			ended <- Serve(ctx, theirs, Options{Backend: f.backend(), Log: quiet()})
		}()
		go io.WriteString(ours, hello+"\n")
		d := &device{t: t, conn: ours, lines: bufio.NewReader(ours), ended: ended}
		d.until("snapshot")
		cancel()
		if m := d.next(); m["op"] != "bye" || m["code"] != "ending" {
			t.Errorf("%v", m)
		}
		<-ended
	})
	// Also where nobody reads any more.
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		ours, theirs := net.Pipe()
		ended := make(chan error, 1)
		go func() { // ends with ctx; waited for below
			ended <- Serve(ctx, theirs, Options{Backend: newFake().backend(), Log: quiet()})
		}()
		time.Sleep(time.Second)
		cancel()
		<-ended
		ours.Close()
	})
}

func TestWhatIsNotThereIsNotOffered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		ended := make(chan error, 1)
		go func() { // ends with the pipe; waited for below
			ended <- Serve(t.Context(), theirs, Options{Backend: Backend{Sessions: newFake()}, Log: quiet()})
		}()
		d := &device{t: t, conn: ours, lines: bufio.NewReader(ours), ended: ended}
		if m := d.next(); fmt.Sprint(m["features"]) != "[ping refresh seen]" {
			t.Errorf("features %v", m["features"])
		}
		d.send(`{"op":"hello","version":1}`)
		d.until("snapshot")
		d.send(`{"op":"reply","id":1,"session":"k3f9:%%1","key":"k","text":"x"}`)
		if m := d.next(); m["code"] != "unknown-op" {
			t.Errorf("%v", m)
		}
		d.hangUp()
	})
}

// Whatever a device sends, the machine's side goes on or ends in order.
func FuzzServe(f *testing.F) {
	f.Add([]byte(hello + "\n" + `{"op":"ping","id":1}` + "\n"))
	f.Add([]byte(hello + "\n" + `{"op":"keys","id":1,"session":"k3f9:%1","keys":["Enter"]}` + "\n{}\n\n[]\nnull\n"))
	f.Add([]byte(hello + "\n" + `{"op":"upload","id":1,"name":"../x","size":0}` + "\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		Serve(t.Context(), &script{in: bytes.NewReader(in)}, Options{Backend: newFake().backend(), Log: quiet()})
	})
}

// script reads from a text and forgets what is written.
type script struct{ in *bytes.Reader }

func (s *script) Read(p []byte) (int, error)  { return s.in.Read(p) }
func (s *script) Write(p []byte) (int, error) { return len(p), nil }
func (s *script) Close() error                { return nil }
