package push

import (
	"bytes"
	"context"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"holdfast/internal/session"
	"holdfast/internal/session/proto"
	"holdfast/internal/webpush"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const as = "abcdefghijklmnopqrstuv"

// sent is a message as it left.
type sent struct {
	to string
	webpush.Message
	said message
	at   time.Duration // since the world began
}

// world is a Pusher with a push service, people who look, and a clock.
type world struct {
	t     *testing.T
	p     *Pusher
	file  string
	log   bytes.Buffer
	began time.Time
	stop  func()

	mu     sync.Mutex
	sent   []sent
	answer func(n int) error // to the n-th message
	looks  map[session.ID]time.Time
	banned map[string]bool
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, file: filepath.Join(t.TempDir(), "push.json"), began: time.Now(), looks: map[session.ID]time.Time{}, banned: map[string]bool{}}
	w.start()
	return w
}

func (w *world) start() {
	var err error
	w.p, err = New(Options{
		File: w.file,
		Looking: func(id session.ID, now time.Time) (time.Time, bool) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.looks[id], now.Before(w.looks[id])
		},
		Known: func(d string) bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return !w.banned[d]
		},
		Send: w.send,
		Log:  slog.New(slog.NewTextHandler(&w.log, nil)),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() { // ends with stop, which waits
		defer close(over)
		w.p.Run(ctx)
	}()
	w.stop = func() {
		cancel()
		<-over
	}
}

func (w *world) send(ctx context.Context, s *webpush.Subscription, m webpush.Message) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	one := sent{to: s.Host(), Message: m, at: time.Since(w.began)}
	if err := json.Unmarshal(m.Text, &one.said); err != nil {
		w.t.Error(err)
	}
	if len(m.Text) > webpush.MaxMessageBytes {
		w.t.Errorf("%d bytes", len(m.Text))
	}
	w.sent = append(w.sent, one)
	if w.answer != nil {
		return w.answer(len(w.sent))
	}
	return nil
}

// said gives what was sent since it was asked last.
func (w *world) said() []sent {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.sent
	w.sent = nil
	return out
}

func (w *world) look(id session.ID, d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.looks[id] = time.Now().Add(d)
}

func (w *world) subscribe(device string) proto.PushSubscribe {
	w.t.Helper()
	r := subscription(w.t, "https://"+device+".example/secret")
	if _, err := w.p.Subscribe(device, r); err != nil {
		w.t.Fatal(err)
	}
	return r
}

func subscription(t *testing.T, endpoint string) proto.PushSubscribe {
	t.Helper()
	key, err := ecdh.P256().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	vapid, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	d, err := vapid.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	b64 := base64.RawURLEncoding.EncodeToString
	return proto.PushSubscribe{Endpoint: endpoint, P256dh: b64(key.PublicKey().Bytes()), Auth: b64([]byte("sixteen bytes...")), VAPID: b64(d), As: as}
}

func waits(id session.ID, digest string) session.Session {
	return session.Session{ID: id, Status: session.Status{State: session.Waiting, Kind: session.Permission, Dialog: &session.Dialog{Digest: digest, Title: "very secret"}}}
}

func is(id session.ID, s session.State) session.Session {
	return session.Session{ID: id, Status: session.Status{State: s}}
}

func bubble(t *testing.T, f func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer func() { w.stop() }()
		f(t, w)
		w.stop()
		for _, secret := range []string{"secret", as} {
			if strings.Contains(w.log.String(), secret) {
				t.Errorf("the log holds %q: %s", secret, w.log.String())
			}
		}
	})
}

func names(ids ...session.ID) []string {
	var out []string
	for _, id := range ids {
		out = append(out, nameOf(as, id))
	}
	return out
}

func TestOneHandOverIsOneCall(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.subscribe("phone")
		w.p.Sync([]session.Session{is("a:%1", session.Working)})
		time.Sleep(time.Minute)
		if got := w.said(); got != nil {
			t.Fatalf("said %v", got)
		}
		before := time.Since(w.began)
		// The status is confirmed again and again, from several sources.
		hook := waits("a:%1", "")
		hook.Status.Dialog = nil
		w.p.Changed(hook)
		for range 50 {
			w.p.Changed(waits("a:%1", "d1"))
			w.p.Changed(is("a:%1", session.Unknown))
			time.Sleep(100 * time.Millisecond)
		}
		got := w.said()
		if len(got) != 1 {
			t.Fatalf("%d calls for one hand-over", len(got))
		}
		m := got[0]
		if m.at-before != settleTime || m.said.V != 1 || m.said.As != as || m.said.New != 1 || !slices.Equal(m.said.Open, names("a:%1")) || m.said.Test {
			t.Errorf("after %v: %+v", m.at-before, m.said)
		}
		if m.Urgency != webpush.High || m.TTL != keepTime || len(m.Topic) != 32 || m.to != "phone.example" {
			t.Errorf("%+v", m.Message)
		}
		if strings.Contains(string(m.Text), "%1") || strings.Contains(string(m.Text), "secret") {
			t.Errorf("it says %s", m.Text)
		}
		time.Sleep(time.Hour)
		if got := w.said(); got != nil {
			t.Fatalf("called again while the dialog stands: %v", got)
		}
		// Another dialog is another hand-over.
		w.p.Changed(waits("a:%1", "d2"))
		time.Sleep(time.Minute)
		if got := w.said(); len(got) != 1 || got[0].said.New != 1 || got[0].Topic != m.Topic {
			t.Fatalf("the second dialog: %v", got)
		}
	})
}

func TestAnsweredTakesTheCallBack(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.subscribe("phone")
		w.p.Sync(nil)
		w.p.Changed(waits("a:%1", "d1"))
		w.p.Changed(waits("a:%2", "d2"))
		time.Sleep(2 * time.Second)
		called := w.said()
		if len(called) != 1 || called[0].said.New != 2 {
			t.Fatalf("two at once: %v", called)
		}
		time.Sleep(time.Minute)
		w.p.Changed(is("a:%1", session.Working))
		time.Sleep(settleTime)
		back := w.said()
		if len(back) != 1 || back[0].said.New != 0 || !slices.Equal(back[0].said.Open, names("a:%2")) || back[0].Topic != called[0].Topic || back[0].Urgency != webpush.Normal {
			t.Fatalf("taken back: %+v", back)
		}
		w.p.Gone("a:%2")
		time.Sleep(time.Minute)
		if back = w.said(); len(back) != 1 || len(back[0].said.Open) != 0 {
			t.Fatalf("the last taken back: %+v", back)
		}
		time.Sleep(time.Hour)
		if got := w.said(); got != nil {
			t.Fatalf("and then %v", got)
		}
	})
}

func TestWhatEndsAtOnceCallsNobody(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.subscribe("phone")
		w.p.Sync(nil)
		for i := range 20 {
			w.p.Changed(waits("a:%1", fmt.Sprint("d", i)))
			time.Sleep(settleTime / 2)
			w.p.Changed(is("a:%1", session.Working))
			time.Sleep(settleTime / 4)
		}
		time.Sleep(time.Minute)
		if got := w.said(); got != nil {
			t.Fatalf("said %v", got)
		}
		// A screen that cannot be read for a moment takes nothing back.
		w.p.Changed(waits("a:%1", "d"))
		time.Sleep(2 * time.Second)
		w.p.Changed(is("a:%1", session.Working))
		time.Sleep(settleTime / 2)
		w.p.Changed(waits("a:%1", "d"))
		time.Sleep(time.Minute)
		if got := w.said(); len(got) != 1 {
			t.Fatalf("said %v", got)
		}
	})
}

func TestSeveralGoTogether(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.subscribe("phone")
		w.p.Sync(nil)
		for i := range 40 {
			w.p.Changed(waits(session.ID(fmt.Sprintf("a:%%%d", i)), "d"))
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		got := w.said()
		if len(got) != 2 {
			t.Fatalf("%d messages for 40 hand-overs within 4 s", len(got))
		}
		last := got[1].said
		if len(last.Open) != maxOpen || last.More != 40-maxOpen || last.New != maxOpen || last.Open[0] != nameOf(as, "a:%39") {
			t.Errorf("%+v", last)
		}
		if gap := got[1].at - got[0].at; gap != gapTime {
			t.Errorf("after %v", gap)
		}
	})
}

func TestWhoLooksIsNotCalled(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.subscribe("phone")
		w.p.Sync(nil)
		w.look("a:%1", 30*time.Second)
		w.p.Changed(waits("a:%1", "d1"))
		w.p.Changed(waits("a:%2", "d2")) // nobody looks at this one
		time.Sleep(10 * time.Second)
		if got := w.said(); len(got) != 1 || !slices.Equal(got[0].said.Open, names("a:%2")) {
			t.Fatalf("while somebody looks: %+v", got)
		}
		// The page renews its lease, then dies without a word.
		w.look("a:%1", 30*time.Second)
		time.Sleep(29 * time.Second)
		if got := w.said(); got != nil {
			t.Fatalf("while the lease lasts: %+v", got)
		}
		time.Sleep(2 * time.Second)
		got := w.said()
		if len(got) != 1 || got[0].said.New != 1 || got[0].said.Open[0] != nameOf(as, "a:%1") {
			t.Fatalf("when the lease ended: %+v", got)
		}
	})
}

func TestWhoHasSeenItIsNotCalled(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.subscribe("phone")
		w.p.Sync(nil)
		w.look("a:%1", 30*time.Second)
		w.p.Changed(waits("a:%1", "d1"))
		time.Sleep(5 * time.Second)
		w.look("a:%1", 0)
		w.p.LookedAway([]session.ID{"a:%1"})
		time.Sleep(time.Hour)
		w.p.Changed(is("a:%1", session.Working))
		time.Sleep(time.Minute)
		if got := w.said(); got != nil {
			t.Fatalf("said %+v", got)
		}
		w.p.Changed(waits("a:%1", "d2"))
		time.Sleep(time.Minute)
		if got := w.said(); len(got) != 1 {
			t.Fatalf("the next one: %+v", got)
		}
	})
}

func TestRetries(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.subscribe("phone")
		w.p.Sync(nil)
		later := webpush.NewAnswer(webpush.ErrLater, 503, 0)
		w.answer = func(n int) error {
			if n <= 3 {
				return later
			}
			return nil
		}
		w.p.Changed(waits("a:%1", "d1"))
		time.Sleep(2 * time.Second)
		s := w.p.State("phone")
		if !s.On || s.Failed.IsZero() || !strings.Contains(s.Why, "503") || s.Again.IsZero() || !s.Delivered.IsZero() {
			t.Errorf("state %+v", s)
		}
		time.Sleep(time.Minute)
		if got := w.said(); len(got) != 4 || got[3].said.New != 1 {
			t.Fatalf("%d messages", len(got))
		}
		if s = w.p.State("phone"); s.Delivered.IsZero() || !s.Again.IsZero() || s.Failed.IsZero() {
			t.Errorf("state %+v", s)
		}
		// A service that stays away is given up, and asked at the next hand-over.
		w.answer = func(int) error { return later }
		w.p.Changed(waits("a:%1", "d2"))
		time.Sleep(24 * time.Hour)
		if got := w.said(); len(got) != maxTries {
			t.Fatalf("%d messages", len(got))
		}
		// The service's own word counts.
		w.answer = func(int) error { return webpush.NewAnswer(webpush.ErrLater, 429, 40*time.Minute) }
		w.p.Changed(waits("a:%1", "d3"))
		time.Sleep(2 * time.Hour)
		got := w.said()
		if len(got) != 3 || got[1].at-got[0].at != 40*time.Minute {
			t.Fatalf("with Retry-After: %v", len(got))
		}
		// What was answered meanwhile is not called for.
		w.p.Changed(is("a:%1", session.Working))
		time.Sleep(24 * time.Hour)
		for _, m := range w.said() {
			if m.said.New != 0 {
				t.Errorf("called after it was answered: %+v", m.said)
			}
		}
	})
}

func TestRefusalAndEnd(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.subscribe("phone")
		w.p.Sync(nil)
		w.answer = func(int) error { return webpush.NewAnswer(webpush.ErrRefused, 403, 0) }
		w.p.Changed(waits("a:%1", "d1"))
		time.Sleep(time.Hour)
		if got := w.said(); len(got) != 1 {
			t.Fatalf("%d messages though they are refused", len(got))
		}
		if s := w.p.State("phone"); !s.On || !strings.Contains(s.Why, "403") {
			t.Errorf("state %+v", s)
		}
		w.answer = func(int) error { return webpush.NewAnswer(webpush.ErrGone, 410, 0) }
		w.p.Changed(waits("a:%1", "d2"))
		time.Sleep(time.Hour)
		w.p.Changed(waits("a:%1", "d3"))
		time.Sleep(time.Hour)
		if got := w.said(); len(got) != 1 {
			t.Fatalf("%d messages to a subscription that ended", len(got))
		}
		s := w.p.State("phone")
		if s.On || !s.Ended || !strings.Contains(s.Why, "410") || s.Service != "phone.example" {
			t.Errorf("state %+v", s)
		}
		if text, err := os.ReadFile(w.file); err != nil || strings.Contains(string(text), "endpoint") {
			t.Errorf("the keys of an ended subscription are kept: %s %v", text, err)
		}
		if _, err := w.p.Test(t.Context(), "phone"); proto.CodeOf(err) != proto.CodeFailed {
			t.Errorf("test: %v", err)
		}
		// It stays said over a restart, until the device asks again.
		w.stop()
		w.start()
		w.p.Sync([]session.Session{waits("a:%1", "d3")})
		if s := w.p.State("phone"); !s.Ended || s.Why == "" {
			t.Errorf("state %+v", s)
		}
		w.answer = nil
		w.subscribe("phone")
		if s := w.p.State("phone"); !s.On || s.Ended || s.Why != "" {
			t.Errorf("state %+v", s)
		}
		time.Sleep(time.Hour)
		if got := w.said(); got != nil {
			t.Errorf("a new subscription is called for what waited before: %+v", got)
		}
	})
}

func TestRestart(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.subscribe("phone")
		w.p.Sync(nil)
		w.p.Changed(waits("a:%1", "d1"))
		w.p.Changed(waits("a:%2", "d2"))
		time.Sleep(time.Minute)
		if got := w.said(); len(got) != 1 {
			t.Fatalf("%d calls", len(got))
		}
		w.stop()
		if st, err := os.Stat(w.file); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%v %v", st, err)
		}
		w.start()
		time.Sleep(time.Minute)
		if got := w.said(); got != nil {
			t.Fatalf("before it is known what waits: %+v", got)
		}
		// One stands, one was answered, one is new.
		w.p.Sync([]session.Session{waits("a:%1", "d1"), is("a:%2", session.Idle), waits("a:%3", "d3")})
		time.Sleep(time.Minute)
		got := w.said()
		if len(got) != 1 || got[0].said.New != 1 || !slices.Equal(got[0].said.Open, names("a:%3", "a:%1")) {
			t.Fatalf("after a restart: %+v", got)
		}
	})
}

func TestDevices(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.p.Sync(nil)
		if _, err := w.p.Subscribe("", subscription(t, "https://a.example/x")); err == nil {
			t.Error("somebody who is no device is called")
		}
		bad := subscription(t, "http://a.example/secret")
		if _, err := w.p.Subscribe("phone", bad); proto.CodeOf(err) != proto.CodeSyntax {
			t.Errorf("http: %v", err)
		}
		for i := range maxDevices {
			w.subscribe(fmt.Sprint("d", i))
		}
		if _, err := w.p.Subscribe("one-more", subscription(t, "https://a.example/x")); proto.CodeOf(err) != proto.CodeLimit {
			t.Errorf("one too many: %v", err)
		}
		// One that is let in no more makes room, and is not called.
		w.mu.Lock()
		w.banned["d3"] = true
		w.mu.Unlock()
		if _, err := w.p.Subscribe("one-more", subscription(t, "https://a.example/x")); err != nil {
			t.Error(err)
		}
		w.mu.Lock()
		w.banned["d4"] = true
		w.mu.Unlock()
		if err := w.p.Forget(); err != nil {
			t.Error(err)
		}
		w.mu.Lock()
		w.banned["d5"] = true
		w.mu.Unlock()
		if err := w.p.Unsubscribe("d6"); err != nil {
			t.Error(err)
		}
		if err := w.p.Unsubscribe("d6"); err != nil {
			t.Error(err)
		}
		w.p.Changed(waits("a:%1", "d1"))
		time.Sleep(time.Minute)
		to := map[string]int{}
		for _, m := range w.said() {
			to[m.to]++
		}
		if len(to) != maxDevices-3 || to["d3.example"]+to["d4.example"]+to["d5.example"]+to["d6.example"] != 0 || to["d7.example"] != 1 {
			t.Errorf("called %v", to)
		}
		if n := len(w.p.States()); n != maxDevices-3 {
			t.Errorf("%d devices", n)
		}
	})
}

func TestTest(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		if _, err := w.p.Test(t.Context(), "phone"); proto.CodeOf(err) != proto.CodeNotFound {
			t.Errorf("without a subscription: %v", err)
		}
		r := w.subscribe("phone")
		s, err := w.p.Test(t.Context(), "phone")
		if err != nil || s.Delivered.IsZero() {
			t.Errorf("%+v %v", s, err)
		}
		if _, err := w.p.Test(t.Context(), "phone"); proto.CodeOf(err) != proto.CodeBusy {
			t.Errorf("at once again: %v", err)
		}
		time.Sleep(testGap)
		w.answer = func(int) error { return webpush.NewAnswer(webpush.ErrLater, 503, 0) }
		if _, err := w.p.Test(t.Context(), "phone"); proto.CodeOf(err) != proto.CodeFailed || !strings.Contains(err.Error(), "503") {
			t.Errorf("refused: %v", err)
		}
		got := w.said()
		if len(got) != 2 || !got[0].said.Test || got[0].said.As != r.As || got[0].TTL != testKeepTime {
			t.Errorf("%+v", got)
		}
		// The same again changes nothing.
		before := w.p.State("phone")
		if s, err := w.p.Subscribe("phone", r); err != nil || s != before {
			t.Errorf("%+v %v", s, err)
		}
	})
}

func TestDamagedFile(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON": `{"v":1,"secret`, "newer": `{"v":9}`,
		"no subscription": `{"v":1,"devices":{"phone":{"push":{"endpoint":"http://x/secret"}}}}`,
		"too many calls":  `{"v":1,"calls":{` + strings.Repeat(`"a":{},`, 3) + manyCalls() + `}}`,
	} {
		file := filepath.Join(t.TempDir(), "push.json")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := New(Options{
			File: file, Log: slog.New(slog.DiscardHandler),
			Looking: func(session.ID, time.Time) (time.Time, bool) { return time.Time{}, false },
			Send:    func(context.Context, *webpush.Subscription, webpush.Message) error { return nil },
		})
		if err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "move it away") {
			t.Errorf("%s: %v", name, err)
		}
		if now, _ := os.ReadFile(file); string(now) != text {
			t.Errorf("%s: the file was changed", name)
		}
	}
}

func manyCalls() string {
	var all []string
	for i := range maxCalls + 1 {
		all = append(all, fmt.Sprintf(`"s%d":{}`, i))
	}
	return strings.Join(all, ",")
}

// What the other end is held to as well.
func TestVectors(t *testing.T) {
	var v struct {
		Names []struct {
			As      string
			Session session.ID
			Name    string
		}
		Messages []struct {
			Text      string
			Test      bool
			New, Open []session.ID
			More      int
		}
	}
	text, err := os.ReadFile("../../../testdata/vectors/sessions/push.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	for _, n := range v.Names {
		if got := nameOf(n.As, n.Session); got != n.Name {
			t.Errorf("%s as %s is %s, want %s", n.Session, n.As, got, n.Name)
		}
	}
	for _, m := range v.Messages {
		one := message{V: 1, As: v.Names[0].As, Test: m.Test, New: len(m.New), More: m.More}
		for _, id := range m.Open {
			one.Open = append(one.Open, nameOf(one.As, id))
		}
		if b, err := one.encode(); err != nil || string(b) != m.Text {
			t.Errorf("encoded %s, want %s: %v", b, m.Text, err)
		}
	}
	if len(v.Names) == 0 || len(v.Messages) == 0 {
		t.Error("no vectors")
	}
}

func TestNames(t *testing.T) {
	if got := nameOf(as, "k3f9:%12"); len(got) != 16 || got == nameOf(as+"x", "k3f9:%12") || got == nameOf(as, "k3f9:%13") {
		t.Errorf("name %q", got)
	}
	full := message{V: 1, As: strings.Repeat("a", proto.MaxKeyBytes), New: maxOpen, More: 99999}
	for range maxOpen {
		full.Open = append(full.Open, nameOf(as, "x"))
	}
	if b, err := full.encode(); err != nil || len(b) > webpush.MaxMessageBytes {
		t.Errorf("the largest message has %d bytes: %v", len(b), err)
	}
}
