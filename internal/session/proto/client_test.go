package proto

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// step is one line of a vector; exactly one field is set, but that Machine may
// be an explicit null.
type step struct {
	Device  map[string]any  `json:"device"`
	Machine json.RawMessage `json:"machine"`
	Call    *struct {
		As     string         `json:"as"`
		Op     Op             `json:"op"`
		Params map[string]any `json:"params"`
	} `json:"call"`
	Result *struct {
		As       string  `json:"as"`
		Result   any     `json:"result"`
		Receipts []Stage `json:"receipts"`
	} `json:"result"`
	Error *struct {
		As     string `json:"as"`
		Code   Code   `json:"code"`
		Dialog string `json:"dialog"`
	} `json:"error"`
	Broken *struct {
		As string `json:"as"`
	} `json:"broken"`
	Known *struct {
		Sessions map[string]string `json:"sessions"`
		Complete bool              `json:"complete"`
	} `json:"known"`
	Ended *string `json:"ended"`
}

// made is a request of a vector.
type made struct {
	mu       sync.Mutex
	receipts []Stage
	result   map[string]any
	err      error
	done     chan struct{}
}

func readVector(t *testing.T, name string, v any) {
	t.Helper()
	b, err := os.ReadFile("../../../testdata/vectors/sessions/" + name)
	if err == nil {
		err = json.Unmarshal(b, v)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestClientVectors(t *testing.T) {
	var file struct {
		Cases []struct {
			Name  string `json:"name"`
			Steps []step `json:"steps"`
		} `json:"cases"`
	}
	readVector(t, "client.json", &file)
	if len(file.Cases) < 8 {
		t.Fatalf("%d cases", len(file.Cases))
	}
	for _, c := range file.Cases {
		t.Run(c.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { runVector(t, c.Steps) })
		})
	}
}

func runVector(t *testing.T, steps []step) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	lines := bufio.NewReader(theirs)
	var client *Client
	opened := make(chan error, 1)
	go func() { // ends with the hello of the machine; waited for below
		var err error
		client, err = Open(t.Context(), ours, ClientOptions{Program: "test", Watch: true})
		opened <- err
	}()
	calls := map[string]*made{}
	ended := func(as string) *made {
		t.Helper()
		<-calls[as].done
		return calls[as]
	}
	for i, s := range steps {
		switch {
		case s.Device != nil:
			b, err := lines.ReadBytes('\n')
			if err != nil {
				t.Fatalf("step %d: %v", i, err)
			}
			var got map[string]any
			if err := json.Unmarshal(b, &got); err != nil {
				t.Fatalf("step %d: %v in %q", i, err, b)
			}
			for field, want := range s.Device {
				if have, ok := got[field]; want == nil && ok || want != nil && !reflect.DeepEqual(have, want) {
					t.Errorf("step %d: the device sent %s %v, want %v", i, field, have, want)
				}
			}
		case s.Call != nil:
			m := &made{done: make(chan struct{})}
			calls[s.Call.As] = m
			go func() { // ends with the answer or the connection; waited for by ended
				defer close(m.done)
				var params any
				if s.Call.Params != nil {
					params = s.Call.Params
				}
				m.err = client.Call(t.Context(), s.Call.Op, params, &m.result, func(st Stage) {
					m.mu.Lock()
					m.receipts = append(m.receipts, st)
					m.mu.Unlock()
				})
			}()
		case s.Result != nil:
			m := ended(s.Result.As)
			want := s.Result.Result.(map[string]any)
			for field := range want {
				if !reflect.DeepEqual(m.result[field], want[field]) {
					t.Errorf("step %d: result %v, want %v", i, m.result, want)
				}
			}
			if m.err != nil || !reflect.DeepEqual(m.receipts, s.Result.Receipts) {
				t.Errorf("step %d: error %v, receipts %v", i, m.err, m.receipts)
			}
		case s.Error != nil:
			var e *Error
			if !errors.As(ended(s.Error.As).err, &e) || e.Code != s.Error.Code || e.Message == "" {
				t.Fatalf("step %d: error %v", i, calls[s.Error.As].err)
			}
			if digest := ""; e.Dialog != nil {
				if digest = e.Dialog.Digest; digest != s.Error.Dialog {
					t.Errorf("step %d: dialog %q", i, digest)
				}
			} else if s.Error.Dialog != "" {
				t.Errorf("step %d: no dialog", i)
			}
		case s.Broken != nil:
			var e *Error
			if err := ended(s.Broken.As).err; err == nil || errors.As(err, &e) {
				t.Errorf("step %d: error %v", i, err)
			}
		case s.Known != nil:
			synctest.Wait()
			all, complete := client.Sessions()
			got := map[string]string{}
			for _, one := range all {
				got[string(one.ID)] = one.Name
			}
			if !reflect.DeepEqual(got, s.Known.Sessions) || complete != s.Known.Complete {
				t.Errorf("step %d: knows %v (%v), want %v", i, got, complete, s.Known)
			}
		case s.Ended != nil:
			<-client.Ended()
			var bye *ByeError
			if errors.As(client.Err(), &bye) {
				if string(bye.Code) != *s.Ended {
					t.Errorf("step %d: ended %v", i, client.Err())
				}
			} else if *s.Ended != "" {
				t.Errorf("step %d: ended %v", i, client.Err())
			}
		case len(s.Machine) == 0 || string(s.Machine) == "null":
			theirs.Close()
		default:
			var line bytes.Buffer
			if err := json.Compact(&line, s.Machine); err != nil {
				t.Fatal(err)
			}
			if _, err := theirs.Write(append(line.Bytes(), '\n')); err != nil {
				t.Fatalf("step %d: %v", i, err)
			}
			if i == 1 {
				if err := <-opened; err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	client.Close()
}

func TestKeyVectors(t *testing.T) {
	var file struct{ Known, Refused []string }
	readVector(t, "keys.json", &file)
	for _, k := range file.Known {
		if !KnownKey(k) {
			t.Errorf("key %q is not known", k)
		}
	}
	for _, k := range file.Refused {
		if KnownKey(k) {
			t.Errorf("key %q is taken", k)
		}
	}
}

func TestOpenRefusesWhatIsNoMachine(t *testing.T) {
	for name, say := range map[string]string{
		"a banner":        "Welcome to mini!\n",
		"another op":      `{"op":"snapshot","sessions":[]}` + "\n",
		"no version":      `{"op":"hello"}` + "\n",
		"an endless line": strings.Repeat("x", MaxLineBytes+2),
		"nothing":         "",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				go io.Copy(io.Discard, theirs) // ends with the pipe
				go io.WriteString(theirs, say) // the same
				began := time.Now()
				if _, err := Open(t.Context(), ours, ClientOptions{}); err == nil {
					t.Error("opened")
				}
				if time.Since(began) > openTimeout {
					t.Errorf("after %v", time.Since(began))
				}
				theirs.Close()
			})
		})
	}
}

func TestARequestThatIsTooLongIsNotSent(t *testing.T) {
	if _, err := join(Request{OpReply, 1}, Reply{Text: strings.Repeat("x", MaxLineBytes)}); CodeOf(err) != CodeLimit {
		t.Errorf("error %v", err)
	}
	for _, params := range []any{5, []int{1}, nil, struct{}{}} {
		line, err := join(Request{OpPing, 1}, params)
		if _, object := params.(struct{}); params != nil && !object {
			if err == nil {
				t.Errorf("%v: %s", params, line)
			}
		} else if err != nil || string(line) != `{"op":"ping","id":1}` {
			t.Errorf("%v: %s, %v", params, line, err)
		}
	}
}

func TestLines(t *testing.T) {
	long := strings.Repeat("y", MaxLineBytes)
	r := NewLineReader(strings.NewReader("a\n\n" + long + "\nend"))
	for _, want := range []string{"a", "", long} {
		if got, err := r.Next(); err != nil || string(got) != want {
			t.Fatalf("line of %d bytes, %v", len(got), err)
		}
	}
	if _, err := r.Next(); err != io.ErrUnexpectedEOF {
		t.Errorf("a line that was cut: %v", err)
	}
	if _, err := NewLineReader(strings.NewReader(long + "y\n")).Next(); err != ErrLine {
		t.Errorf("one byte too many: %v", err)
	}
	if _, err := NewLineReader(strings.NewReader("")).Next(); err != io.EOF {
		t.Errorf("the end: %v", err)
	}
}

func TestCut(t *testing.T) {
	for _, c := range []struct {
		in, want string
		max      int
	}{{"abc", "abc", 3}, {"abcd", "abc", 3}, {"日本", "日", 5}, {"🙂", "", 3}, {"\xff", "\uFFFD", 3}} {
		if got := Cut(c.in, c.max); got != c.want {
			t.Errorf("Cut(%q, %d) = %q", c.in, c.max, got)
		}
	}
}

func FuzzClient(f *testing.F) {
	f.Add([]byte(`{"op":"hello","version":1}` + "\n" + `{"op":"snapshot","sessions":[{"id":"a"}]}` + "\n" + `{"op":"bye"}` + "\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		ours, theirs := net.Pipe()
		go func() { // ends with the pipe
			go io.Copy(io.Discard, theirs)
			theirs.Write(in)
			theirs.Close()
		}()
		c, err := Open(context.Background(), ours, ClientOptions{Watch: true})
		if err != nil {
			return
		}
		<-c.Ended()
		c.Close()
	})
}
