package hooks

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/session"
)

func TestMeaning(t *testing.T) {
	for _, c := range []struct {
		tool, in string
		state    session.State
		kind     session.Kind
	}{
		{"claude", `{"hook_event_name":"SessionStart","source":"startup"}`, session.Idle, ""},
		{"claude", `{"hook_event_name":"SessionStart","source":"compact"}`, "", ""},
		{"claude", `{"hook_event_name":"UserPromptSubmit","prompt":"p"}`, session.Working, ""},
		{"claude", `{"hook_event_name":"PreToolUse","tool_name":"Bash","tool_input":{"command":"x"}}`, session.Working, ""},
		{"claude", `{"hook_event_name":"PreToolUse","tool_name":"AskUserQuestion"}`, session.Waiting, session.Question},
		{"claude", `{"hook_event_name":"PreToolUse","tool_name":"ExitPlanMode"}`, session.Waiting, session.Permission},
		{"claude", `{"hook_event_name":"PermissionRequest","tool_name":"Bash"}`, session.Waiting, session.Permission},
		{"claude", `{"hook_event_name":"PermissionRequest","tool_name":"Bash","agent_id":"a1"}`, session.Waiting, session.Permission},
		{"claude", `{"hook_event_name":"PreToolUse","tool_name":"Bash","agent_id":"a1"}`, "", ""},
		{"claude", `{"hook_event_name":"PostToolUse","tool_name":"Bash"}`, session.Working, ""},
		{"claude", `{"hook_event_name":"PostToolUseFailure","error":"e","is_interrupt":true}`, session.Idle, ""},
		{"claude", `{"hook_event_name":"Notification","notification_type":"permission_prompt"}`, session.Waiting, session.Permission},
		{"claude", `{"hook_event_name":"Notification","notification_type":"idle_prompt"}`, "", ""},
		{"claude", `{"hook_event_name":"Stop","background_tasks":[]}`, session.Done, ""},
		{"claude", `{"hook_event_name":"Stop","background_tasks":[{"id":"b1"}]}`, session.Background, ""},
		{"claude", `{"hook_event_name":"SubagentStop","agent_id":"a1"}`, "", ""},
		{"claude", `{"hook_event_name":"StopFailure","error":"rate_limit"}`, session.Waiting, session.Limit},
		{"claude", `{"hook_event_name":"StopFailure","error":"server_error"}`, session.Idle, ""},
		{"claude", `{"hook_event_name":"StopFailure","error":{"new":"shape"}}`, session.Idle, ""},
		{"claude", `{"hook_event_name":"SessionEnd","reason":"clear"}`, "", ""},
		{"claude", `{"hook_event_name":"SessionEnd","reason":"logout"}`, session.Exited, ""},
		{"claude", `{"hook_event_name":"FromTheFuture"}`, "", ""},
		{"claude", `{"hook_event_name":"Stop","cwd":7}`, session.Done, ""},
		{"claude", `not json`, "", ""},
		{"codex", `{"hook_event_name":"PermissionRequest","tool_name":"Bash","transcript_path":null}`, session.Waiting, session.Permission},
		{"codex", `{"hook_event_name":"Stop"}`, session.Done, ""},
		{"gemini", `{"hook_event_name":"BeforeAgent"}`, session.Working, ""},
		{"gemini", `{"hook_event_name":"AfterAgent"}`, session.Done, ""},
		{"gemini", `{"hook_event_name":"Notification","notification_type":"ToolPermission"}`, session.Waiting, session.Permission},
	} {
		e, ok := Parse(c.tool, []byte(c.in), time.Now())
		if e.State != c.state || e.Kind != c.kind || ok != (c.state != "") {
			t.Errorf("%s %s: %q %q %v, want %q %q", c.tool, c.in, e.State, e.Kind, ok, c.state, c.kind)
		}
	}
}

// What a tool's tool is asked to do may hold secrets and stays out of the spool.
func TestSpoolHoldsNoInput(t *testing.T) {
	dir := t.TempDir()
	env := func(name string) string {
		return map[string]string{"TMUX_PANE": "%3", "TMUX": "/tmp/tmux-1/default,99,0"}[name]
	}
	in := `{"hook_event_name":"PermissionRequest","session_id":"s1","cwd":"/w","transcript_path":"/t.jsonl","tool_name":"Bash","tool_input":{"command":"curl -H hunter2"},"prompt":"hunter2"}`
	if err := Run(dir, "claude", strings.NewReader(in), env, []int{5, 4}); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(SpoolDir(dir), "*.json"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v", files, err)
	}
	b, err := os.ReadFile(files[0])
	if err != nil || strings.Contains(string(b), "hunter2") {
		t.Errorf("the spool holds %s, %v", b, err)
	}
	if info, err := os.Stat(files[0]); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	events, err := Events(dir)
	if err != nil || len(events) != 1 {
		t.Fatalf("%+v, %v", events, err)
	}
	if e := events[0]; e.Socket != "/tmp/tmux-1/default" || e.Pane != "%3" || e.SessionID != "s1" || e.Transcript != "/t.jsonl" || e.Dir != "/w" || len(e.PIDs) != 2 || e.State != session.Waiting {
		t.Errorf("%+v", e)
	}
}

func TestSpoolKeepsTheNewestOfEachSession(t *testing.T) {
	dir := t.TempDir()
	start := time.Now()
	var wait sync.WaitGroup
	for i := range 40 {
		wait.Add(1)
		go func() {
			defer wait.Done()
			e := Event{Tool: "claude", Name: fmt.Sprint(i), Pane: "%1", SessionID: fmt.Sprint(i % 4), State: session.Working, At: start.Add(time.Duration(i) * time.Millisecond)}
			for range 20 { // a hook that finds the spool busy gives up; here all are to count
				if Spool(dir, e) == nil {
					return
				}
			}
			t.Errorf("event %d was not kept", i)
		}()
	}
	wait.Wait()
	events, err := Events(dir)
	if err != nil || len(events) != 4 {
		t.Fatalf("%d events, %v", len(events), err)
	}
	for i, e := range events {
		if want := fmt.Sprint(39 - i); e.Name != want {
			t.Errorf("event %d is %s, want %s", i, e.Name, want)
		}
	}
}

func TestSpoolIsBounded(t *testing.T) {
	dir := t.TempDir()
	for i := range maxFiles + 20 {
		e := Event{Tool: "claude", Name: "Stop", SessionID: fmt.Sprint(i), State: session.Done, At: time.Now()}
		if err := Spool(dir, e); err != nil {
			t.Fatal(err)
		}
	}
	files, err := filepath.Glob(filepath.Join(SpoolDir(dir), "*"))
	if err != nil || len(files) > maxFiles+1 {
		t.Errorf("%d files, %v", len(files), err)
	}
	if err := os.WriteFile(filepath.Join(SpoolDir(dir), "x.json"), []byte(strings.Repeat("[", maxEvent*2)), 0o600); err != nil {
		t.Fatal(err)
	}
	if events, err := Events(dir); err != nil || len(events) > maxFiles {
		t.Errorf("%d events, %v", len(events), err)
	}
}

func TestRunGivesUpOnATool(t *testing.T) {
	r, w := io.Pipe()
	defer w.Close()
	start := time.Now()
	if err := Run(t.TempDir(), "claude", r, func(string) string { return "" }, nil); err == nil {
		t.Error("an event that does not end was taken")
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
}

func options(t *testing.T, tool string) Options {
	return Options{Tool: tool, Dir: t.TempDir(), Program: "/opt/it's/holdfast", State: "/home/dev/state"}
}

func TestInstallAndRemoveLeaveTheRestAsItIs(t *testing.T) {
	for name, content := range map[string]string{
		"empty object":   "{}",
		"with a newline": "{}\n",
		"other settings": "{\n  \"model\": \"opus\",\n  \"permissions\": {\"allow\": [ \"Bash(ls:*)\" ]}\n}\n",
		"tabs":           "{\n\t\"env\": {\"A\": \"a\\u00e9\"},\n\t\"n\": 1.50e2\n}",
		"hooks of others": `{"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "notify-send done"}]}],
  "PreToolUse" : [ {"matcher":"Bash", "hooks":[{"type":"command","command":"~/check hooks run x"}] } ]}, "z": [1,2 , 3]}`,
		"hooks last": "{\n    \"a\": 1,\n    \"hooks\": {\n        \"Notification\": [\n            {\"hooks\": [{\"type\": \"command\", \"command\": \"bell\"}]}\n        ]\n    }\n}\n",
	} {
		for _, tool := range Tools() {
			o := options(t, tool)
			file := filepath.Join(o.Dir, settings[tool].file)
			if err := os.WriteFile(file, []byte(content), 0o640); err != nil {
				t.Fatal(err)
			}
			r, err := Install(o)
			if err != nil || !r.Changed || r.File != file {
				t.Fatalf("%s, %s: %+v, %v", name, tool, r, err)
			}
			installed, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var got struct {
				Hooks map[string][]struct {
					Hooks []hook `json:"hooks"`
				} `json:"hooks"`
			}
			if err := json.Unmarshal(installed, &got); err != nil {
				t.Fatalf("%s, %s: %v in\n%s", name, tool, err, installed)
			}
			for _, event := range settings[tool].events {
				list := got.Hooks[event]
				if n := len(list); n == 0 || list[n-1].Hooks[0].Command != command(o) {
					t.Errorf("%s, %s: %s has no hook of ours", name, tool, event)
				}
			}
			if again, err := Install(o); err != nil || again.Changed {
				t.Errorf("%s, %s: a second time: %+v, %v", name, tool, again, err)
			}
			moved := o
			moved.Program = "/usr/bin/holdfast"
			if r, err := Install(moved); err != nil || !r.Changed {
				t.Errorf("%s, %s: moved: %+v, %v", name, tool, r, err)
			}
			if b, err := os.ReadFile(file); err != nil || strings.Contains(string(b), "/opt/") {
				t.Errorf("%s, %s: the old hook is still there: %s, %v", name, tool, b, err)
			}
			if r, err := Remove(o); err != nil || !r.Changed {
				t.Errorf("%s, %s: remove: %+v, %v", name, tool, r, err)
			}
			after, err := os.ReadFile(file)
			if err != nil || string(after) != content {
				t.Errorf("%s, %s: after all\n%s\nwant\n%s\n%v", name, tool, after, content, err)
			}
			if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o640 {
				t.Errorf("%s, %s: mode %v, %v", name, tool, info.Mode(), err)
			}
			if r, err := Remove(o); err != nil || r.Changed {
				t.Errorf("%s, %s: remove a second time: %+v, %v", name, tool, r, err)
			}
		}
	}
}

func TestAHookOfOthersAfterOursStays(t *testing.T) {
	o := options(t, "claude")
	file := filepath.Join(o.Dir, "settings.json")
	if _, err := Install(o); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	other := `{"type":"command","command":"mine"}`
	// In our own group, as a person might write it.
	changed := strings.Replace(string(b), `"timeout":5}`, `"timeout":5}, `+other, 1)
	if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := Install(o); err != nil || r.Changed {
		t.Errorf("again: %+v, %v", r, err)
	}
	if _, err := Remove(o); err != nil {
		t.Fatal(err)
	}
	if b, err = os.ReadFile(file); err != nil || !strings.Contains(string(b), other) || strings.Contains(string(b), "holdfast") || !json.Valid(b) {
		t.Errorf("%s, %v", b, err)
	}
}

func TestInstallRefuses(t *testing.T) {
	for name, content := range map[string]string{
		"no JSON": "{ // comment\n}", "half": `{"a":`, "a list": `[]`, "two": "{} {}",
		"hooks of another shape": `{"hooks": "none"}`, "an event of another shape": `{"hooks": {"Stop": {}}}`,
	} {
		o := options(t, "claude")
		file := filepath.Join(o.Dir, "settings.json")
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Install(o); err == nil {
			t.Errorf("%s: no error", name)
		}
		if b, err := os.ReadFile(file); err != nil || string(b) != content {
			t.Errorf("%s: the file is %q now, %v", name, b, err)
		}
	}
	o := options(t, "claude")
	o.Dir = filepath.Join(o.Dir, "gone")
	if _, err := Install(o); !errors.Is(err, ErrNotThere) {
		t.Errorf("no directory: %v", err)
	}
	o = options(t, "claude")
	o.Program = "holdfast"
	if _, err := Install(o); err == nil {
		t.Error("a relative program was taken")
	}
	o = options(t, "vi")
	if _, err := Install(o); err == nil {
		t.Error("an unknown tool was taken")
	}
}

func TestInstallFollowsALink(t *testing.T) {
	o := options(t, "claude")
	real := filepath.Join(t.TempDir(), "dotfiles.json")
	if err := os.WriteFile(real, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(o.Dir, "settings.json")
	if err := os.Symlink(real, link); err != nil {
		t.Fatal(err)
	}
	if _, err := Install(o); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is gone: %v, %v", info.Mode(), err)
	}
	if b, err := os.ReadFile(real); err != nil || !strings.Contains(string(b), "hooks run claude") {
		t.Errorf("%s, %v", b, err)
	}
}

func FuzzEdit(f *testing.F) {
	f.Add(`{"hooks":{"Stop":[{"hooks":[{"type":"command","command":"x"}]}]}}`)
	f.Add(`{"a":{},"hooks":{},"b":[]}`)
	f.Add("{\t\"hooks\" : {\"Stop\": [ ] } }")
	o := Options{Tool: "claude", Program: "/p", State: "/s"}
	entry, err := encode(settings["claude"].entry(command(o)))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, content string) {
		bare, err := take([]byte(content), ours)
		if err != nil {
			return
		}
		with, err := add(bare, settings["claude"].events, entry)
		if err != nil {
			return
		}
		if !json.Valid(with) {
			t.Fatalf("no JSON: %s", with)
		}
		without, err := take(with, ours)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(without), "hooks run claude --state '/s'") && !strings.Contains(content, "hooks run claude --state '/s'") {
			t.Fatalf("ours is still there: %s", without)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add("claude", `{"hook_event_name":"Stop","background_tasks":[1,2]}`)
	f.Add("gemini", `{"hook_event_name":"Notification","notification_type":"ToolPermission"}`)
	f.Fuzz(func(t *testing.T, tool, in string) {
		e, ok := Parse(tool, []byte(in), time.Now())
		if ok && (e.State == "" || len(e.SessionID) > maxWord || len(e.Transcript) > maxPath || (e.State == session.Waiting) != (e.Kind != "")) {
			t.Errorf("%+v", e)
		}
	})
}
