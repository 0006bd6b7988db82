package client

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/internal/state"
)

func testOpenSSH(t *testing.T, dir string, binary string) OpenSSH {
	t.Helper()
	d, err := state.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return OpenSSH{Store: NewStore(d), Binary: binary}
}

// needSSH finds OpenSSH's client.
func needSSH(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("ssh")
	if err != nil {
		if os.Getenv("HOLDFAST_TEST_ALL") == "1" {
			t.Fatal("ssh is not installed")
		}
		t.Skip("ssh is not installed")
	}
	return path
}

// resolve asks OpenSSH what it makes of a configuration, without connecting.
func resolve(t *testing.T, ssh string, args ...string) map[string]string {
	t.Helper()
	out, err := exec.Command(ssh, append([]string{"-G"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("ssh -G %q: %v\n%s", args, err, out)
	}
	options := map[string]string{}
	for line := range strings.Lines(string(out)) {
		key, value, _ := strings.Cut(strings.TrimRight(line, "\n"), " ")
		options[key] = value
	}
	return options
}

// oddPaths are directories that a person may have.
var oddPaths = []string{"plain", "with space", "100%h", `back\slash`, `quo"te`, "it's", "$HOME", "#hash", "ünï"}

// TestConfigWithOddPaths lets OpenSSH itself say what it understood.
func TestConfigWithOddPaths(t *testing.T) {
	ssh := needSSH(t)
	for _, odd := range oddPaths {
		dir := filepath.Join(t.TempDir(), odd)
		o := testOpenSSH(t, dir, filepath.Join(dir, "holdfast"))
		o.KnownHostsCommand = true
		o.InsecureHTTP, o.Keepalive = true, 20*time.Second
		m := testMachine("mini", 1)
		m.Service = "ssh"
		put(t, o.Store, m)
		text, err := o.ConfigText()
		if err != nil {
			t.Fatalf("%q: %v", odd, err)
		}
		config := filepath.Join(t.TempDir(), "config")
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for host, service := range map[string]string{"mini": "ssh", "mini.ssh": "ssh"} {
			got := resolve(t, ssh, "-F", config, host)
			checkOptions(t, odd, got, dir, service)
		}
		args, err := o.Args(m, "", []string{"-v", "-o", "StrictHostKeyChecking=no"}, nil)
		if err != nil {
			t.Fatalf("%q: %v", odd, err)
		}
		got := resolve(t, ssh, append([]string{"-F", "none"}, args[1:]...)...)
		checkOptions(t, odd, got, dir, "")
		if got["stricthostkeychecking"] != "true" {
			t.Errorf("%q: an option of the person's turned the check of host keys off: %q", odd, got["stricthostkeychecking"])
		}
	}
}

func checkOptions(t *testing.T, odd string, got map[string]string, dir, service string) {
	t.Helper()
	alias, flag := "mini.holdfast", ""
	if service != "" {
		alias, flag = "mini."+service+".holdfast", "--service "+service+" "
	}
	for key, want := range map[string]string{
		"user":                         "ann",
		"hostkeyalias":                 alias,
		"hostkeyalgorithms":            "ssh-ed25519",
		"identitiesonly":               "yes",
		"passwordauthentication":       "no",
		"kbdinteractiveauthentication": "no",
		"serveraliveinterval":          "15",
		"updatehostkeys":               "true",
	} {
		if got[key] != want {
			t.Errorf("%q: %s is %q, want %q", odd, key, got[key], want)
		}
	}
	// -G prints these unexpanded.
	for key, want := range map[string]string{"userknownhostsfile": "known_hosts", "identityfile": "device_key"} {
		have := strings.ReplaceAll(strings.Trim(got[key], `"`), "%%", "%")
		if have != filepath.Join(dir, want) {
			t.Errorf("%q: %s is %q", odd, key, got[key])
		}
	}
	// OpenSSH expands the percent signs, then a shell runs the line.
	line := strings.ReplaceAll(got["proxycommand"], "%%", "%")
	out, err := exec.Command("/bin/sh", "-c", `for w in "$@"; do :; done; set -- `+line+`; printf '%s\n' "$@"`).Output()
	if err != nil {
		t.Fatalf("%q: sh does not take %q: %v", odd, line, err)
	}
	want := filepath.Join(dir, "holdfast") + "\nproxy\n--state\n" + dir + "\n--insecure-http\n--keepalive\n20s\n" +
		strings.ReplaceAll(flag, " ", "\n") + "mini\n"
	if string(out) != want {
		t.Errorf("%q: the proxy command is %q, want %q", odd, out, want)
	}
}

func TestUnquotablePathsAreRefused(t *testing.T) {
	for _, odd := range []string{"a${HOME}", "line\nbreak"} {
		o := testOpenSSH(t, filepath.Join(t.TempDir(), odd), "/bin/holdfast")
		put(t, o.Store, testMachine("mini", 1))
		if text, err := o.ConfigText(); !errors.Is(err, ErrUnquotable) {
			t.Errorf("%q: got %q, %v", odd, text, err)
		}
	}
}

func TestNoKeyNoBlindTrust(t *testing.T) {
	o := testOpenSSH(t, t.TempDir(), "/bin/holdfast")
	m := testMachine("mini", 1)
	m.SSHDKeys = nil
	put(t, o.Store, m)
	if args, err := o.Args(m, "", nil, nil); !errors.Is(err, ErrNoHostKey) {
		t.Errorf("sshd without a pinned key: %q, %v", args, err)
	}
	if args, err := o.Args(m, "web", nil, nil); !errors.Is(err, ErrNoHostKey) {
		t.Errorf("a service without a pinned key: %q, %v", args, err)
	}
	if _, err := o.Args(m, "ssh", nil, nil); err != nil {
		t.Errorf("the built-in server: %v", err)
	}
}

func TestSplitSSHArgs(t *testing.T) {
	value := func(name string) bool { return name == "state" || name == "service" }
	for _, c := range []struct{ in, options, long, command string }{
		{"", "", "", ""},
		{"uptime -p", "", "", "uptime -p"},
		{"-v uptime", "-v", "", "uptime"},
		{"-L 8080:localhost:80 -N", "-L 8080:localhost:80 -N", "", ""},
		{"-L8080:localhost:80 ls -l", "-L8080:localhost:80", "", "ls -l"},
		{"-tp 22 top", "-tp 22", "", "top"},
		{"-vvp22 top", "-vvp22", "", "top"},
		{"-o User=x -- -weird command", "-o User=x", "", "-weird command"},
		{"--state DIR -A ls --state", "-A", "--state DIR", "ls --state"},
		{"--service=ssh --insecure-http ls", "", "--service=ssh --insecure-http", "ls"},
		{"- ls", "", "", "- ls"},
		{"-L", "-L", "", ""},
	} {
		options, long, command := SplitSSHArgs(strings.Fields(c.in), value)
		got := []string{strings.Join(options, " "), strings.Join(long, " "), strings.Join(command, " ")}
		if want := []string{c.options, c.long, c.command}; !slices.Equal(got, want) {
			t.Errorf("%q: got %q, want %q", c.in, got, want)
		}
	}
}

func TestInstallChangesOneLine(t *testing.T) {
	home := t.TempDir()
	o := testOpenSSH(t, filepath.Join(t.TempDir(), "with space"), "/bin/holdfast")
	put(t, o.Store, testMachine("mini", 1))
	dir := filepath.Join(home, ".ssh")
	config := filepath.Join(dir, "config")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	const own = "Host *\n    Compression yes\n"
	if err := os.WriteFile(config, []byte(own), 0o640); err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{true, false} {
		changed, err := o.Install(home)
		if err != nil || changed != want {
			t.Fatalf("time %d: changed %v, %v", i+1, changed, err)
		}
	}
	b, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(string(b), "\n"+own) || strings.Count(string(b), "Include") != 1 || strings.Index(string(b), "Include") > strings.Index(string(b), "Host") {
		t.Errorf("the configuration is now\n%s", b)
	}
	if st, err := os.Stat(config); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("its mode is %v (%v)", st.Mode(), err)
	}
	ssh := needSSH(t)
	got := resolve(t, ssh, "-F", config, "mini")
	if got["hostkeyalias"] != "mini.holdfast" || got["compression"] != "yes" {
		t.Errorf("OpenSSH reads host key alias %q, compression %q", got["hostkeyalias"], got["compression"])
	}
	// A machine that is paired later comes in by itself.
	put(t, o.Store, testMachine("attic", 2))
	if err := o.Refresh(); err != nil {
		t.Fatal(err)
	}
	if got := resolve(t, ssh, "-F", config, "attic.ssh"); got["hostkeyalias"] != "attic.ssh.holdfast" {
		t.Errorf("a later machine: host key alias %q", got["hostkeyalias"])
	}
}

func TestInstallMakesWhatIsMissing(t *testing.T) {
	home := t.TempDir()
	o := testOpenSSH(t, t.TempDir(), "/bin/holdfast")
	if changed, err := o.Install(home); err != nil || !changed {
		t.Fatalf("changed %v, %v", changed, err)
	}
	for path, mode := range map[string]os.FileMode{".ssh": 0o700, ".ssh/config": 0o600} {
		if st, err := os.Stat(filepath.Join(home, path)); err != nil || st.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", path, st, err)
		}
	}
}

func TestInstallFollowsNoLink(t *testing.T) {
	home := t.TempDir()
	o := testOpenSSH(t, t.TempDir(), "/bin/holdfast")
	elsewhere := filepath.Join(home, "dotfiles")
	if err := os.WriteFile(elsewhere, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(home, ".ssh"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, filepath.Join(home, ".ssh", "config")); err != nil {
		t.Fatal(err)
	}
	_, err := o.Install(home)
	if !errors.Is(err, ErrSymlink) || !strings.Contains(err.Error(), "Include") {
		t.Errorf("want an error that says which line to add, got %v", err)
	}
	if b, _ := os.ReadFile(elsewhere); len(b) != 0 {
		t.Errorf("the link was followed: %q", b)
	}
	odd := testOpenSSH(t, filepath.Join(t.TempDir(), "star*"), "/bin/holdfast")
	if _, err := odd.Install(t.TempDir()); !errors.Is(err, ErrUnquotable) {
		t.Errorf("a directory that Include takes for a pattern: %v", err)
	}
}
