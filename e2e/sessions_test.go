package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"holdfast/e2e/scriptedmodel"
)

// paneLine is what is looked at of a line of `holdfast sessions --json`.
type paneLine struct {
	ID     string `json:"id"`
	Gone   string `json:"gone"`
	Name   string `json:"name"`
	Server string `json:"server"`
	Tool   string `json:"tool"`
	PID    int    `json:"pid"`
	Status struct {
		State    string `json:"state"`
		Kind     string `json:"kind"`
		Evidence []struct {
			Source string `json:"source"`
			Detail string `json:"detail"`
		} `json:"evidence"`
		Dialog *struct {
			Digest  string `json:"digest"`
			Title   string `json:"title"`
			Text    string `json:"text"`
			Options []struct {
				ID    string `json:"id"`
				Label string `json:"label"`
				Role  string `json:"role"`
			} `json:"options"`
		} `json:"dialog"`
	} `json:"status"`
}

// is says whether the status is one of the states, each "state" or "state/kind".
func (l paneLine) is(states ...string) bool {
	for _, s := range states {
		if s == l.Status.State || s == l.Status.State+"/"+l.Status.Kind {
			return true
		}
	}
	return false
}

// desk is a computer with tmux servers, a scripted model and an eye on all of it.
type desk struct {
	*computer
	tmux    string
	model   *httptest.Server
	project string

	mu   sync.Mutex
	last map[string]paneLine // by server and name
	ids  map[string]string   // id to that key
}

// newDesk starts the eye: `holdfast sessions --local --watch --json`.
func newDesk(t *testing.T) *desk {
	d := &desk{computer: newComputer(t), tmux: need(t, "tmux"), model: httptest.NewServer(scriptedmodel.Handler()), last: map[string]paneLine{}, ids: map[string]string{}}
	t.Cleanup(d.model.CloseClientConnections)
	d.project = filepath.Join(d.home, "project")
	for _, dir := range []string{d.project, d.state} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	watch := d.start("sessions", "--local", "--watch", "--json")
	// Ends with the lines of the process, which the test's cleanup ends.
	go func() {
		for line := range watch.lines {
			var l paneLine
			if json.Unmarshal([]byte(line), &l) != nil {
				continue
			}
			d.mu.Lock()
			if l.Gone != "" {
				delete(d.last, d.ids[l.Gone])
			} else {
				key := l.Server + "\x00" + l.Name
				d.last[key], d.ids[l.ID] = l, key
			}
			d.mu.Unlock()
		}
	}()
	return d
}

// pane is one pane of a server of this desk.
type pane struct {
	d            *desk
	socket, name string
}

// run starts a program in a new tmux session, on a server of its own socket.
func (d *desk) run(socket, name string, env map[string]string, args ...string) *pane {
	d.t.Helper()
	p := &pane{d, socket, name}
	_, err := os.Stat(socket)
	fresh := err != nil
	full := []string{"new-session", "-d", "-s", name, "-x", "100", "-y", "40", "-c", d.project}
	for k, v := range env {
		full = append(full, "-e", k+"="+v)
	}
	p.do(append(full, args...)...)
	if fresh {
		p.do("set-option", "-g", "remain-on-exit", "on")
		socket := &pane{d, socket, name}
		d.t.Cleanup(socket.end)
	}
	return p
}

// end ends the pane's server and what runs in it: a tool that is asked to end
// still writes into directories that are to be removed.
func (p *pane) end() {
	pids := strings.Fields(p.do("list-panes", "-a", "-F", "#{?pane_dead,,#{pane_pid}}"))
	p.do("kill-server")
	for start := time.Now(); len(pids) > 0; {
		pid, err := strconv.Atoi(pids[0])
		if err != nil || syscall.Kill(pid, 0) != nil {
			pids = pids[1:]
			continue
		}
		if time.Since(start) > 5*time.Second {
			_ = syscall.Kill(pid, syscall.SIGKILL) // gone meanwhile is as good
		}
		if time.Since(start) > patience {
			p.d.t.Errorf("process %d of %s does not end", pid, p.name)
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// do runs one tmux command on the pane's server.
func (p *pane) do(args ...string) string {
	p.d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	r := runCmd(p.d.t, p.d.command(ctx, p.d.tmux, append([]string{"-u", "-S", p.socket, "-f", "/dev/null"}, args...)...))
	if r.code != 0 {
		p.d.t.Errorf("tmux %s: %s", strings.Join(args, " "), r)
	}
	return r.stdout
}

func (p *pane) keys(keys ...string) {
	p.do(append([]string{"send-keys", "-t", "=" + p.name + ":"}, keys...)...)
}

func (p *pane) screen() string { return p.do("capture-pane", "-p", "-t", "="+p.name+":") }

// now is what was last said about the pane.
func (p *pane) now() (paneLine, bool) {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	l, ok := p.d.last[p.socket+"\x00"+p.name]
	return l, ok
}

// patience is how long a status may take on a computer that has other work too.
const patience = 60 * time.Second

// until waits for a status and returns it. The time that it took is logged.
func (p *pane) until(what string, good func(paneLine) bool) paneLine {
	p.d.t.Helper()
	start := time.Now()
	for time.Since(start) < patience {
		if l, ok := p.now(); ok && good(l) {
			p.d.t.Logf("%s: %s: %s/%s after %v: %+v", p.name, what, l.Status.State, l.Status.Kind, time.Since(start).Round(time.Millisecond), l.Status.Evidence)
			return l
		}
		time.Sleep(20 * time.Millisecond)
	}
	l, ok := p.now()
	p.d.t.Fatalf("%s: %s did not come within %v; seen %v: %+v\n%s", p.name, what, patience, ok, l, p.screen())
	return paneLine{}
}

func (p *pane) untilIs(states ...string) paneLine {
	p.d.t.Helper()
	return p.until(strings.Join(states, " or "), func(l paneLine) bool { return l.is(states...) })
}

// shows waits for a text on the screen.
func (p *pane) shows(text string) {
	p.d.t.Helper()
	for start := time.Now(); time.Since(start) < patience; time.Sleep(100 * time.Millisecond) {
		if strings.Contains(p.screen(), text) {
			return
		}
	}
	p.d.t.Fatalf("%s: the screen does not show %q:\n%s", p.name, text, p.screen())
}

// reply sends a text through the command and wants it accepted.
func (p *pane) reply(text string) {
	p.d.t.Helper()
	l, _ := p.now()
	if r := p.d.holdfast("reply", l.ID, text, "--local"); r.code != 0 || !strings.Contains(r.stdout, "accepted") {
		p.d.t.Fatalf("reply %q: %s\n%s", text, r, p.screen())
	}
}

// approve answers the dialog with a digest.
func (p *pane) approve(digest string, more ...string) result {
	p.d.t.Helper()
	l, _ := p.now()
	return p.d.holdfast(append([]string{"approve", l.ID, "--local", "--dialog", digest}, more...)...)
}

// dialog waits for a dialog about something.
func (p *pane) dialog(kind, about string) paneLine {
	p.d.t.Helper()
	return p.until("a dialog about "+about, func(l paneLine) bool {
		d := l.Status.Dialog
		return l.is("waiting/"+kind) && d != nil && strings.Contains(d.Title+d.Text, about)
	})
}

// exists waits for a file of the project.
func (d *desk) exists(name string) {
	d.t.Helper()
	for start := time.Now(); time.Since(start) < patience; time.Sleep(50 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(d.project, name)); err == nil {
			return
		}
	}
	d.t.Fatalf("%s was not made", name)
}

func (d *desk) missing(name string) {
	d.t.Helper()
	if _, err := os.Stat(filepath.Join(d.project, name)); err == nil {
		d.t.Errorf("%s was made", name)
	}
}

// tool is the path of a coding tool that scripts/setup test installed.
func tool(t *testing.T, patterns ...string) string {
	t.Helper()
	for _, pattern := range patterns {
		found, err := filepath.Glob(filepath.Join("..", ".cache", "tools", "node_modules", pattern))
		if err == nil && len(found) > 0 {
			path, err := filepath.Abs(found[0])
			if err != nil {
				t.Fatal(err)
			}
			return path
		}
	}
	if os.Getenv("HOLDFAST_TEST_ALL") == "1" {
		t.Fatalf("%s is not installed: run scripts/setup test", patterns[0])
	}
	t.Skipf("%s is not installed: run scripts/setup test", patterns[0])
	return ""
}

// key is what the tools want to have; the scripted model asks for none.
const key = "sk-ant-local-0000000000000000000000000000"

// claude starts a real Claude Code that has answered its first questions.
func (d *desk) claude(socket, name string) *pane {
	d.t.Helper()
	program := tool(d.t, "@anthropic-ai/claude-code-*/claude")
	config := filepath.Join(d.home, "claude-"+name)
	if err := os.MkdirAll(config, 0o700); err != nil {
		d.t.Fatal(err)
	}
	settings, err := json.Marshal(map[string]any{
		"hasCompletedOnboarding": true, "theme": "dark",
		"customApiKeyResponses": map[string]any{"approved": []string{key[len(key)-20:]}},
		"projects":              map[string]any{d.project: map[string]any{"hasTrustDialogAccepted": true}},
	})
	if err != nil {
		d.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(config, ".claude.json"), settings, 0o600); err != nil {
		d.t.Fatal(err)
	}
	p := d.run(socket, name, map[string]string{
		"ANTHROPIC_BASE_URL": d.model.URL, "ANTHROPIC_API_KEY": key, "CLAUDE_CONFIG_DIR": config,
		"DISABLE_AUTOUPDATER": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "CLAUDE_CODE_MAX_RETRIES": "1",
	}, program, "--permission-mode", "default")
	p.shows("? for shortcuts")
	p.until("an idle Claude Code", func(l paneLine) bool { return l.Tool == "claude" && l.is("idle", "done") })
	return p
}

// part is a subtest on a desk; what fails in one ends the test, since the next
// stands on it.
func (d *desk) part(name string, f func(t *testing.T)) {
	whole := d.t
	whole.Helper()
	ok := whole.Run(name, func(t *testing.T) {
		d.t = t
		defer func() { d.t = whole }()
		f(t)
	})
	if !ok {
		whole.FailNow()
	}
}

func TestClaudeCode(t *testing.T) {
	d := newDesk(t)
	p := d.claude(filepath.Join(d.home, "t"), "ai")

	d.part("plain reply, in other scripts too", func(t *testing.T) {
		p.reply("日本語で 🙂 do: say はい、わかりました。👍")
		p.shows("● はい、わかりました。")
		p.untilIs("done", "idle")
	})
	d.part("permission", func(t *testing.T) {
		p.reply("do: bash date > one.txt then say All done.")
		l := p.dialog("permission", "date > one.txt")
		d.missing("one.txt")
		if r := p.approve(l.Status.Dialog.Digest); r.code != 0 || !strings.Contains(r.stdout, "accepted") {
			t.Errorf("approve: %s", r)
		}
		d.exists("one.txt")
		p.untilIs("done", "idle")
	})
	d.part("two dialogs and a late tap", func(t *testing.T) {
		p.reply("do: bash date > first.txt then bash date > second.txt then say Both.")
		first := p.dialog("permission", "first.txt").Status.Dialog.Digest
		if r := p.approve(first); r.code != 0 {
			t.Fatalf("approve the first: %s", r)
		}
		d.exists("first.txt")
		second := p.dialog("permission", "second.txt").Status.Dialog.Digest
		if first == second {
			t.Error("both dialogs have one digest")
		}
		if r := p.approve(first); r.code == 0 {
			t.Errorf("a late approval of the first answered the second: %s", r)
		}
		d.missing("second.txt")
		if l, _ := p.now(); !l.is("waiting/permission") {
			t.Errorf("after the late approval: %+v", l)
		}
		if r := p.approve(second, "--deny"); r.code != 0 {
			t.Errorf("deny the second: %s", r)
		}
		p.untilIs("done", "idle")
		d.missing("second.txt")
	})
	d.part("the same asked twice", func(*testing.T) { p.asksTheSameTwice("bash date >> same.txt then bash date >> same.txt", "1") })
	d.part("the same asked twice in one answer", func(*testing.T) { p.asksTheSameTwice("twice bash date >> same.txt; sleep 3", "1") })
	d.part("the same asked by two sub-agents", func(*testing.T) { p.asksTheSameTwice("twice agent bash date >> same.txt; sleep 3", "1") })
	d.part("answered at the desk", func(t *testing.T) {
		p.reply("do: bash date > desk.txt then say Fine.")
		digest := p.dialog("permission", "desk.txt").Status.Dialog.Digest
		p.keys("1")
		d.exists("desk.txt")
		p.until("no dialog", func(l paneLine) bool { return l.Status.Dialog == nil && !l.is("waiting") })
		if r := p.approve(digest); r.code == 0 {
			t.Errorf("a dialog that is gone was approved: %s", r)
		}
	})
	d.part("question", func(t *testing.T) {
		p.untilIs("done", "idle")
		p.reply("do: ask 1 then say Thanks.")
		l := p.dialog("question", "Which colour")
		if options := l.Status.Dialog.Options; len(options) < 4 || options[1].Label != "Blue" || options[1].ID != "2" {
			t.Errorf("options %+v", options)
		}
		if r := p.approve(l.Status.Dialog.Digest, "--option", "2"); r.code != 0 {
			t.Errorf("choose: %s", r)
		}
		p.shows("→ Blue")
		p.untilIs("done", "idle")
	})
	d.part("escape in a turn", func(t *testing.T) {
		if err := os.WriteFile(filepath.Join(d.project, "notes.txt"), []byte("notes\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		p.reply("do: read notes.txt then wait 60 say Too late.")
		p.shows("Read") // "Reading notes.txt", or how many files
		p.untilIs("working")
		p.keys("Escape")
		start := time.Now()
		p.untilIs("idle")
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("idle only %v after Escape", took)
		}
	})
	d.part("copy mode", func(t *testing.T) {
		p.keys("C-u")
		p.do("copy-mode", "-t", "="+p.name+":")
		p.reply("do: say Out of copy mode.")
		p.shows("● Out of copy mode.")
		p.untilIs("done", "idle")
	})
	d.part("work in the background", func(t *testing.T) {
		p.reply("do: background sleep 8 then say Started it.")
		p.untilIs("background")
		p.shows("Started it.")
		p.untilIs("done", "idle")
	})
	d.part("clear", func(t *testing.T) {
		p.reply("/clear")
		p.untilIs("idle", "done")
		p.reply("do: say A new beginning.")
		p.shows("● A new beginning.")
		p.untilIs("done", "idle")
		l, _ := p.now()
		r := d.must("show", l.ID, "--local")
		if !strings.Contains(r.stdout, "A new beginning.") || strings.Contains(r.stdout, "Out of copy mode.") {
			t.Errorf("the conversation after /clear: %s", r)
		}
	})
	d.part("text in the input box", func(t *testing.T) {
		p.keys("half a thought")
		p.shows("half a thought")
		l, _ := p.now()
		if r := d.holdfast("reply", l.ID, "something else", "--local"); r.code == 0 || !strings.Contains(r.stderr, "half a thought") {
			t.Errorf("a reply over a text that stood there: %s", r)
		}
		p.keys("C-u")
	})
	d.part("killed", func(t *testing.T) {
		l, _ := p.now()
		if err := syscall.Kill(l.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		p.untilIs("exited")
		if r := d.holdfast("reply", l.ID, "hello", "--local"); r.code == 0 {
			t.Errorf("a reply to a dead program: %s", r)
		}
	})
}

// asksTheSameTwice has a tool ask the same twice, by steps that run one command
// twice, answers the first at the desk by a key, and taps late: nothing but its words
// is the same in the second.
func (p *pane) asksTheSameTwice(steps, key string) {
	t := p.d.t
	t.Helper()
	file := filepath.Join(p.d.project, "same.txt")
	if err := os.RemoveAll(file); err != nil {
		t.Fatal(err)
	}
	dates := func() int {
		b, _ := os.ReadFile(file)
		return strings.Count(string(b), "\n")
	}
	p.reply("do: " + steps + " then say Twice.")
	first := p.dialog("permission", "same.txt").Status.Dialog.Digest
	p.keys(key)
	for start := time.Now(); dates() != 1; time.Sleep(5 * time.Millisecond) {
		if time.Since(start) > limit {
			t.Fatalf("the first did not run %d s after it was answered", limit/time.Second)
		}
	}
	late := func() {
		t.Helper()
		if r := p.approve(first); r.code == 0 {
			t.Errorf("a late approval of the first answered the second, with the same words: %s", r)
		}
	}
	// While the second comes up, and when it is there.
	late()
	p.until("the second dialog", func(l paneLine) bool { return l.Status.Dialog != nil && l.Status.Dialog.Digest != first })
	late()
	if n := dates(); n != 1 {
		t.Errorf("the command ran %d times before the second was answered", n)
	}
	// What ends beside it may give it another digest while it is read.
	p.until("the second approved", func(l paneLine) bool {
		return l.Status.Dialog != nil && l.Status.Dialog.Digest != first && p.approve(l.Status.Dialog.Digest).code == 0
	})
	p.shows("Twice.")
	p.untilIs("done", "idle")
	if n := dates(); n != 2 {
		t.Errorf("the command ran %d times", n)
	}
}

// codex starts a Codex at a terminal, with or without the background server that it
// starts by itself, and waits until it takes input.
func (d *desk) codex(server bool) *pane {
	program := tool(d.t, ".bin/codex")
	need(d.t, "node")
	home := filepath.Join(d.home, "codex")
	if err := os.MkdirAll(home, 0o700); err != nil {
		d.t.Fatal(err)
	}
	config := fmt.Sprintf("model = \"gpt-5.1-codex\"\nmodel_provider = \"local\"\napproval_policy = \"on-request\"\nsandbox_mode = \"read-only\"\n"+
		"[features]\ndaemon_auto_start = %v\n"+
		"[model_providers.local]\nname = \"local\"\nbase_url = %q\nwire_api = \"responses\"\nenv_key = \"LOCAL_KEY\"\n[projects.%q]\ntrust_level = \"trusted\"\n",
		server, d.model.URL+"/v1", d.project)
	if err := os.WriteFile(filepath.Join(home, "config.toml"), []byte(config), 0o600); err != nil {
		d.t.Fatal(err)
	}
	env := map[string]string{"CODEX_HOME": home, "LOCAL_KEY": "x"}
	p := d.run(filepath.Join(d.home, "t"), "cx", env, program)
	if server {
		d.t.Cleanup(func() {
			// The command that stops the server leaves the one that updates it.
			for _, name := range []string{"daemon-updater.pid", "daemon.pid"} {
				var who struct{ PID int }
				b, err := os.ReadFile(filepath.Join(home, "app-server-daemon", name))
				if err == nil {
					err = json.Unmarshal(b, &who)
				}
				if err == nil && who.PID > 1 {
					err = syscall.Kill(who.PID, syscall.SIGKILL)
				}
				if err != nil {
					d.t.Errorf("end Codex's server: %s: %v", name, err)
				}
			}
		})
		// It copies 300 MB first. Its input line is there all the while, and takes
		// nothing: the reply that follows the wait would not arrive.
		for start := time.Now(); time.Since(start) < 3*time.Minute; time.Sleep(200 * time.Millisecond) {
			if l, ok := p.now(); ok && l.Tool == "codex" && l.is("idle", "done") {
				break
			}
		}
	}
	p.until("an idle Codex", func(l paneLine) bool { return l.Tool == "codex" && l.is("idle", "done") })
	return p
}

func TestCodex(t *testing.T) {
	d := newDesk(t)
	p := d.codex(false)

	p.reply("do: bash date > one.txt then say はい、できました。")
	l := p.dialog("permission", "date > one.txt")
	if r := p.approve(l.Status.Dialog.Digest); r.code != 0 {
		t.Errorf("approve: %s", r)
	}
	d.exists("one.txt")
	p.shows("• はい、できました。")
	p.untilIs("done", "idle")

	p.reply("do: bash date > two.txt then say No.")
	l = p.dialog("permission", "date > two.txt")
	if r := p.approve(l.Status.Dialog.Digest, "--deny"); r.code != 0 {
		t.Errorf("deny: %s", r)
	}
	p.untilIs("idle", "done")
	d.missing("two.txt")

	p.asksTheSameTwice("bash date >> same.txt then bash date >> same.txt", "y")
	p.asksTheSameTwice("twice bash date >> same.txt; sleep 3", "y")
	// Here the dialog leaves no room for what Codex says was answered.
	p.do("resize-window", "-t", "="+p.name+":", "-x", "40", "-y", "14")
	p.asksTheSameTwice("twice bash date >> same.txt; sleep 3", "y")
	p.do("resize-window", "-t", "="+p.name+":", "-x", "100", "-y", "40")

	p.reply("do: wait 60 say Too late.")
	p.untilIs("working")
	p.shows("esc to interrupt")
	p.keys("Escape")
	p.untilIs("idle")
}

func TestCodexWithItsServer(t *testing.T) {
	d := newDesk(t)
	p := d.codex(true)
	p.reply("do: bash date > one.txt then say Written.")
	l := p.dialog("permission", "date > one.txt")
	if r := p.approve(l.Status.Dialog.Digest); r.code != 0 {
		t.Errorf("approve: %s", r)
	}
	d.exists("one.txt")
	p.shows("• Written.")
	p.untilIs("done", "idle")
	p.asksTheSameTwice("bash date >> same.txt then bash date >> same.txt", "y")
	p.asksTheSameTwice("twice bash date >> same.txt; sleep 3", "y")
}

// A second server, in a directory that no variable of ours names, with a script
// that asks.
func TestScriptOnASecondServer(t *testing.T) {
	d := newDesk(t)
	d.run(filepath.Join(d.home, "t"), "first", nil, "sleep", "600")
	odd := filepath.Join(d.home, "odd dir")
	if err := os.Mkdir(odd, 0o700); err != nil {
		t.Fatal(err)
	}
	p := d.run(filepath.Join(odd, "s"), "名前 with: dots.", nil, "bash", "-c", `read -rp "Overwrite notes.md? [y/N] " a; echo "it was <$a>" > answer.txt; sleep 600`)
	// tmux writes two characters of names another way.
	p.name = "名前 with_ dots_"
	l := p.dialog("question", "Overwrite notes.md?")
	if r := p.approve(l.Status.Dialog.Digest, "--option", "y"); r.code != 0 {
		t.Errorf("approve: %s", r)
	}
	d.exists("answer.txt")
	if b, err := os.ReadFile(filepath.Join(d.project, "answer.txt")); err != nil || string(b) != "it was <y>\n" {
		t.Errorf("the script read %q, %v", b, err)
	}
	p.until("no question", func(l paneLine) bool { return !l.is("waiting") })
}

// Hooks that Claude Code itself runs reach the spool, and it shows no error.
func TestHooksOfClaudeCode(t *testing.T) {
	d := newDesk(t)
	config := filepath.Join(d.home, "claude-hooked")
	if err := os.MkdirAll(config, 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	install := d.command(ctx, binary, "hooks", "install", "claude", "--state", d.state)
	install.Env = append(install.Env, "CLAUDE_CONFIG_DIR="+config)
	if r := runCmd(t, install); r.code != 0 {
		t.Fatalf("install: %s", r)
	}
	p := d.claude(filepath.Join(d.home, "t"), "hooked")
	p.reply("do: bash date > one.txt then say Done now.")
	l := p.dialog("permission", "one.txt")
	if r := p.approve(l.Status.Dialog.Digest); r.code != 0 {
		t.Errorf("approve: %s", r)
	}
	p.shows("● Done now.")
	if strings.Contains(strings.ToLower(p.screen()), "hook error") {
		t.Errorf("the tool shows an error:\n%s", p.screen())
	}
	found := ""
	for start := time.Now(); time.Since(start) < patience && !strings.Contains(found, `"name":"Stop"`); time.Sleep(100 * time.Millisecond) {
		out, err := exec.Command("sh", "-c", `cat "$0"/hooks/*.json`, d.state).Output()
		if err == nil {
			found = string(out)
		}
	}
	if !strings.Contains(found, `"name":"Stop"`) || !strings.Contains(found, `"tool":"claude"`) || strings.Contains(found, "date >") {
		t.Errorf("the spool holds %s", found)
	}
	p.untilIs("done", "idle")
}
