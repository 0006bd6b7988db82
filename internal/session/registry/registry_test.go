package registry

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"holdfast/internal/session"
)

// real is a file as Claude Code 2.1.332 wrote it, with places to fill in.
const real = `{"pid":%d,"sessionId":"db6928a6-cb31-4039-a653-b77ba26f2b63","cwd":"/home/dev/demo","startedAt":1796010149689,"procStart":"%s","version":"2.1.332","peerProtocol":1,"peerFeatures":["notify_idle"],"kind":"interactive","entrypoint":"cli","pidDomain":"linux:%s:pid:[4026531836]","asksForConvertedSkills":null,"tmux":"c1:@0.%%0","messagingSocketPath":"/tmp/cc-socks/1.sock","name":"demo-d0","nameSource":"derived","nameSince":1796010149690,%s"updatedAt":1796010159127,"statusUpdatedAt":1796010159127}`

func write(t *testing.T, dir string, pid int, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, "sessions"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(Path(dir, pid), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestClaudeStatuses(t *testing.T) {
	pid := os.Getpid()
	for status, want := range map[string]struct {
		state session.State
		kind  session.Kind
	}{
		`"status":"idle",`:  {session.Idle, ""},
		`"status":"busy",`:  {session.Working, ""},
		`"status":"shell",`: {session.Background, ""},
		`"status":"waiting","waitingFor":"permission prompt",`: {session.Waiting, session.Permission},
		`"status":"waiting","waitingFor":"input needed",`:      {session.Waiting, session.Question},
		`"status":"waiting","waitingFor":"dialog open",`:       {session.Waiting, session.Question},
		`"status":"waiting",`:                                  {session.Waiting, session.Question},
		`"status":"levitating",`:                               {"", ""},
		`"status":{"new":true},`:                               {"", ""},
		``:                                                     {"", ""},
		`"waitingFor":["a","b"],`:                              {"", ""},
	} {
		dir := t.TempDir()
		write(t, dir, pid, fmt.Sprintf(real, pid, Start(pid), machineID(), status))
		r, err := Claude(dir, pid, "")
		if err != nil {
			t.Errorf("%s: %v", status, err)
			continue
		}
		if r.State != want.state || r.Wait != want.kind {
			t.Errorf("%s: state %q kind %q, want %q %q", status, r.State, r.Wait, want.state, want.kind)
		}
		if r.SessionID != "db6928a6-cb31-4039-a653-b77ba26f2b63" || r.Dir != "/home/dev/demo" || r.NameGiven || r.Tmux != "c1:@0.%0" {
			t.Errorf("%s: %+v", status, r)
		}
		if want := time.UnixMilli(1796010159127); !r.StatusAt.Equal(want) {
			t.Errorf("%s: status at %v, want %v", status, r.StatusAt, want)
		}
	}
}

func TestClaudeRecordOfAnotherProcess(t *testing.T) {
	pid := os.Getpid()
	dir := t.TempDir()
	if _, err := Claude(dir, pid, ""); !errors.Is(err, ErrNone) {
		t.Errorf("without a file: %v, want ErrNone", err)
	}
	write(t, dir, pid, fmt.Sprintf(real, pid, "1", machineID(), ""))
	if _, err := Claude(dir, pid, "2"); !errors.Is(err, ErrStale) {
		t.Errorf("another start: %v, want ErrStale", err)
	}
	if _, err := Claude(dir, pid, "1"); err != nil {
		t.Errorf("the same start: %v", err)
	}
	write(t, dir, pid, fmt.Sprintf(real, pid+1, "1", machineID(), ""))
	if _, err := Claude(dir, pid, "1"); !errors.Is(err, ErrStale) {
		t.Errorf("another process id inside: %v, want ErrStale", err)
	}
	if runtime.GOOS == "linux" && machineID() != "" {
		write(t, dir, pid, fmt.Sprintf(real, pid, "1", strings.Repeat("0", 32), ""))
		if _, err := Claude(dir, pid, "1"); !errors.Is(err, ErrStale) {
			t.Errorf("another computer: %v, want ErrStale", err)
		}
		if Start(pid) == "" {
			t.Error("the start of this process is not known")
		}
	}
}

func TestClaudeDamagedFiles(t *testing.T) {
	pid := os.Getpid()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"empty": "", "half": `{"pid":12,"sess`, "zeros": strings.Repeat("\x00", 512), "list": `[1,2]`,
		"huge": `{"status":"` + strings.Repeat("a", maxFile) + `"}`,
	} {
		write(t, dir, pid, content)
		if r, err := Claude(dir, pid, "1"); err == nil {
			t.Errorf("%s: no error, record %+v", name, r)
		}
	}
	// A directory in the place of the file.
	if err := os.Remove(Path(dir, pid)); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(Path(dir, pid), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Claude(dir, pid, "1"); err == nil {
		t.Error("a directory was read as a record")
	}
}

func TestJobs(t *testing.T) {
	dir := t.TempDir()
	if jobs, err := Jobs(dir); err != nil || len(jobs) != 0 {
		t.Errorf("no directory: %v, %v", jobs, err)
	}
	for id, content := range map[string]string{"a1": `{"state":"blocked","sessionId":"s","cwd":"/d"}`, "b2": `{"state":`} {
		if err := os.MkdirAll(filepath.Join(dir, "jobs", id), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "jobs", id, "state.json"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	jobs, err := Jobs(dir)
	if err != nil || len(jobs) != 1 || jobs[0].ID != "a1" || jobs[0].State != session.Waiting {
		t.Errorf("%+v, %v", jobs, err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(fmt.Sprintf(real, 1, "2", "3", `"status":"busy",`)))
	f.Add([]byte(`{"startedAt":1e400,"procStart":7}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := decode(b)
		if err != nil {
			return
		}
		r := got.record(1)
		if len(r.SessionID) > maxText || len(r.Status) > maxText || len(r.WaitingFor) > maxText || strings.ContainsAny(r.Name, "\x00\n\x1b") {
			t.Errorf("not bounded or not clean: %+v", r)
		}
		if (r.State == session.Waiting) != (r.Wait != "") {
			t.Errorf("state %q with kind %q", r.State, r.Wait)
		}
	})
}
